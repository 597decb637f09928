"""Symmetric matrices, their roots and what is solved with them: the only file that factorises."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

# Up to this size a Cholesky factor is written out column by column. XLA fuses that into the code around it, while a call to
# LAPACK costs a microsecond or two, which is most of a filter step for a one- or two-dimensional state.
UNROLLED = 4


def symmetrise(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    """The symmetric part, which rounding would otherwise slowly lose."""
    return (matrix + matrix.T) / 2


def sandwich(left: Float[Array, "m n"], matrix: Float[Array, "n n"]) -> Float[Array, "m m"]:
    """`left @ matrix @ left.T`, the covariance after a linear map."""
    return (left @ matrix) @ left.T


def safe_sqrt(x: Float[Array, "..."]) -> Float[Array, "..."]:
    """Square root that is zero with zero slope where `x` is not positive."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


# Compiled as a whole where nothing else is; inlined where something is.
@partial(jax.jit, static_argnames=("definite", "jitter"), inline=True)
def cholesky(cov: Float[Array, "n n"], *, definite: bool = False, jitter: float = 0.0) -> Float[Array, "n n"]:
    r"""Lower root of a positive semi-definite matrix: `root @ root.T` equals `cov` up to rounding.

    The matrix is scaled to a unit diagonal first, so that channels of very different units do not drown each other.

    Args:
        cov: The matrix; singular ones are welcome. A pivot of a small matrix that is only rounding becomes a zero column with
            zero gradient; larger matrices get a jitter of a few rounding errors of each diagonal entry.
        definite: Keep every pivot positive, however small, because the root will be divided by.
        jitter: Share of each diagonal entry that is added to it.

    Returns:
        The lower triangular root.

    Example:
        >>> cholesky(jnp.array([[4.0, 2.0], [2.0, 1.0]])).tolist()
        [[2.0, 0.0], [1.0, 0.0]]
    """
    n, rounding = cov.shape[0], rounding_of(cov)
    # Small enough to mean nothing, large enough that powers of its inverse, which gradients meet, are finite.
    nothing = 1e-9 if jnp.finfo(cov.dtype).bits == 32 else 1e-60
    diagonal = jnp.diag(cov)
    scale = jnp.where(diagonal > 0, jnp.sqrt(jnp.where(diagonal > 0, diagonal, 1.0)), nothing)
    unit = cov / scale[:, None] / scale[None, :]
    if n > UNROLLED:
        # What does not vary is set apart, and no gradient goes through it: its scale is no number to divide by twice.
        alive = diagonal > 0
        unit = jnp.where(alive[:, None] & alive[None, :], unit, 0.0) + jnp.diag(jnp.where(alive, jitter + rounding, 1.0))
        return scale[:, None] * jnp.linalg.cholesky(unit, symmetrize_input=False)
    columns: list[Array] = []
    for j in range(n):
        column = unit[:, j]
        for done in columns:
            column = column - done * done[j]
        pivot = column[j] + jitter
        alive = pivot > rounding
        root = jnp.sqrt(jnp.where(alive, pivot, rounding if definite else 1.0))
        below = jnp.where(jnp.arange(n) > j, column / root, 0.0)
        whole = jnp.where(jnp.arange(n) == j, root, below)
        columns.append(whole if definite else jnp.where(alive, whole, 0.0))
    return scale[:, None] * jnp.stack(columns, axis=1)


def rounding_of(cov: Float[Array, "n n"]) -> float:
    """A few rounding errors of a factorisation, as a share of a diagonal entry."""
    return 4 * cov.shape[0] * float(jnp.finfo(cov.dtype).eps)


def solve_lower(root: Float[Array, "n n"], rows: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`root⁻¹ rows` for a lower triangular root."""
    n = root.shape[0]
    if n > UNROLLED:
        return jax.scipy.linalg.solve_triangular(root, rows, lower=True)
    solved: list[Array] = []
    for i in range(n):
        left = rows[i]
        for j, done in enumerate(solved):
            left = left - root[i, j] * done
        solved.append(left / root[i, i])
    return jnp.stack(solved)


def solve_upper(root: Float[Array, "n n"], rows: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`root⁻ᵀ rows` for a lower triangular root."""
    if root.shape[0] > UNROLLED:
        return jax.scipy.linalg.solve_triangular(root, rows, lower=True, trans=1)
    return solve_lower(root[::-1, ::-1].T, rows[::-1])[::-1]


def solve_psd(cov: Float[Array, "n n"], rows: Float[Array, "n m"]) -> Float[Array, "n m"]:
    """`cov⁻¹ rows` through a Cholesky factor."""
    root = cholesky(cov, definite=True)
    return solve_upper(root, solve_lower(root, rows))


def unwhiten(white: Float[Array, "y n"], root: Float[Array, "n n"], var: Float[Array, " n"]) -> Float[Array, "y n"]:
    """The slope whose product with the root is `white`; directions in which the root is only jitter get no slope."""
    alive = (var > 0) & (jnp.diag(root) ** 2 > 4 * rounding_of(root) * var)
    filled = jnp.where(alive[None, :], root, jnp.eye(var.size, dtype=root.dtype))
    return solve_upper(filled, jnp.where(alive[None, :], white, 0.0).T).T


def eigh(gram: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    """Eigenvalues, smallest first, and eigenvectors as columns."""
    return jnp.linalg.eigh(gram)


def leading(gram: Float[Array, "n n"], count: int) -> Float[Array, "n k"]:
    """Eigenvectors of the largest eigenvalues, as given directions: a gradient does not ask how they would turn."""
    return eigh(jax.lax.stop_gradient(gram))[1][:, ::-1][:, :count]


def settle(x: Array) -> Array:
    """X itself, worked out once, and its gradient too.

    XLA fuses cheap arithmetic into every loop that uses it and repeats it there, but never a division: this one is by a one
    that it cannot see through.
    """
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return x  # a count is cheap
    return x / jnp.where(jnp.isnan(jax.lax.stop_gradient(x)), jnp.full_like(x, 2.0), 1.0)


def inner(a: Float[Array, "m n"], b: Float[Array, "m n"]) -> Float[Array, ""]:
    """Sum of all products of entries. By way of a matrix product: XLA adds up a long list of numbers several times slower."""
    return ((a * b) @ jnp.ones(a.shape[1], a.dtype)).sum()


def ridge(
    inputs: Float[np.ndarray, "n i"], outputs: Float[np.ndarray, "n o"], strength: float = 1e-3
) -> tuple[Float[np.ndarray, "o i"], Float[np.ndarray, " o"]]:
    """Slope and intercept of a linear regression, shrunk by a share of the inputs' mean variance. For starts: NumPy."""
    x_mean, y_mean = inputs.mean(axis=0), outputs.mean(axis=0)
    x, y = inputs - x_mean, outputs - y_mean
    gram = x.T @ x / len(x)
    level = max(np.trace(gram) / max(len(gram), 1), np.finfo(float).tiny ** 0.5)
    slope = np.linalg.solve(gram + strength * level * np.eye(len(gram)), x.T @ y / len(x)).T
    return slope, y_mean - slope @ x_mean


def principal_axes(rows: Float[np.ndarray, "n c"], count: int) -> Float[np.ndarray, "k c"]:
    """Directions along which rows vary most, the most important first. For starts: NumPy."""
    return np.linalg.svd(rows, full_matrices=False)[2][:count]


def bounded_growth(matrix: Float[np.ndarray, "n n"], most: float) -> Float[np.ndarray, "n n"]:
    """The same map, shrunk until nothing grows by more than `most` in the long run. For starts: NumPy."""
    radius = np.abs(np.linalg.eigvals(matrix)).max()
    return matrix * min(1.0, most / max(radius, most))
