"""Linear regression for initialisation, in NumPy."""

import numpy as np
from jaxtyping import Float


def ridge(
    inputs: Float[np.ndarray, "n i"], outputs: Float[np.ndarray, "n o"], strength: float = 1e-3
) -> tuple[Float[np.ndarray, "o i"], Float[np.ndarray, " o"]]:
    """Slope and intercept of a ridge regression; the penalty is relative to the mean variance of the inputs."""
    x_mean, y_mean = inputs.mean(axis=0), outputs.mean(axis=0)
    x, y = inputs - x_mean, outputs - y_mean
    gram = x.T @ x / len(x)
    level = max(np.trace(gram) / max(len(gram), 1), np.finfo(float).tiny ** 0.5)
    slope = np.linalg.solve(gram + strength * level * np.eye(len(gram)), x.T @ y / len(x)).T
    return slope, y_mean - slope @ x_mean


def principal_axes(rows: Float[np.ndarray, "n c"], count: int) -> Float[np.ndarray, "k c"]:
    """The leading right singular vectors of the rows."""
    return np.linalg.svd(rows, full_matrices=False)[2][:count]


def clipped_spectral_radius(matrix: Float[np.ndarray, "n n"], most: float) -> Float[np.ndarray, "n n"]:
    """The matrix with its eigenvalues clipped to a modulus of at most `most`."""
    values, vectors = np.linalg.eig(matrix)
    size = np.abs(values)
    if size.max() <= most:
        return matrix
    if np.linalg.cond(vectors) < 1e8:
        clipped = (vectors * (values * np.minimum(1.0, most / np.maximum(size, most)))) @ np.linalg.inv(vectors)
        return clipped.real
    return matrix * most / size.max()
