"""Scores of Gaussian forecasts: how likely the truth was, how far off it lies, how honest the claimed doubt is.

Everywhere `y` (n, y) holds what came true, one forecast per row, and NaN means not observed: such values are left out of every
average. A vector is n forecasts of one number. All scores are worked out in float64 in NumPy, whatever JAX is set to.
"""

import math
from statistics import NormalDist
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray
from scipy.special import ndtr

from prodssm.checks import require_finite, require_integer, require_probability, require_shape, require_variances


def nll(y: Any, mean: Any, cov: Any) -> float:
    r"""Mean over the rows of $-\log N(y; m, C)$, natural logarithm, all constants included; lower is better.

    Args:
        y: What came true. Unobserved coordinates are marginalised out; rows without any observation are skipped.
        mean: Means of the forecasts, shaped like `y`.
        cov: Their covariances (n, y, y), or variances shaped like `y`. Must be positive definite where `y` is observed.

    Returns:
        The score per row, joint over its coordinates.

    Example:
        >>> round(nll([0.0, 1.0], mean=[0.0, 1.0], cov=[1.0, 1.0]), 6)
        0.918939
    """
    y, mean, observed = _outcomes(y, mean)
    var, cov, rounding = _uncertainty(cov, y.shape)
    if (observed & (var == 0)).any():
        at = _first(observed & (var == 0))
        raise ValueError(f"cov must be positive to have a density, got 0 at row {at[0]}; crps and energy_score accept it")
    y, mean, observed, std = (_rows(each) for each in (y, mean, observed, np.sqrt(var)))
    white = np.where(observed, y - mean, 0.0) / np.where(observed, std, 1.0)
    log_det = 2 * np.log(std, where=observed, out=np.zeros_like(std)).sum(axis=1)
    if cov is not None:
        values, vectors = _correlation_spectrum(cov, std, observed, rounding)
        white = np.einsum("nij,ni->nj", vectors, white) / np.sqrt(values)
        log_det = log_det + np.log(values).sum(axis=1)
    count = observed.sum(axis=1)
    scores = ((white**2).sum(axis=1) + log_det + count * math.log(2 * math.pi)) / 2
    return float(scores[count > 0].mean())


def mse(y: Any, mean: Any) -> float:
    """Mean squared error over all observed values."""
    y, mean, observed = _outcomes(y, mean)
    return float(((y - mean)[observed] ** 2).mean())


def rmse(y: Any, mean: Any) -> float:
    """Root of the mean squared error over all observed values, in the unit of `y`."""
    return math.sqrt(mse(y, mean))


def crps(y: Any, mean: Any, std: Any) -> float:
    r"""Mean continuous ranked probability score over all observed values, in the unit of `y`; lower is better.

    $\mathrm{CRPS} = s\,[z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]$ with $z = (y - m)/s$; the absolute error if $s = 0$.

    Args:
        y: What came true.
        mean: Means of the forecasts, shaped like `y`.
        std: Their standard deviations, shaped like `y`; zero is welcome.

    Returns:
        The score per observed value.

    Example:
        >>> round(crps([0.0, float("nan")], mean=[0.0, 0.0], std=[1.0, 1.0]), 6)
        0.233695
    """
    error, std, observed = _errors(y, mean, std)
    z = _in_deviations(error, std)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    # The error itself, not std times z, so that a certain forecast is scored by its absolute error.
    scores = error * (2 * ndtr(z) - 1) + std * (2 * density - 1 / math.sqrt(math.pi))
    return float(scores[observed].mean())


def energy_score(y: Any, mean: Any, cov: Any, *, key: PRNGKeyArray, samples: int = 1000) -> float:
    r"""Mean over the rows of $E|X - y| - E|X - X'|/2$ for $X, X' \sim N(m, C)$: the CRPS of vectors; lower is better.

    A row is one joint forecast: of the channels at one time, or of one channel over a whole trajectory. Coordinates are weighed
    as they come, so bring them to a common unit first. The estimate is unbiased for any number of samples.

    Args:
        y: What came true. Unobserved coordinates are marginalised out; rows without any observation are skipped.
        mean: Means of the forecasts, shaped like `y`.
        cov: Their covariances (n, y, y), or variances shaped like `y`; singular ones are welcome.
        key: Randomness.
        samples: Draws per row.

    Returns:
        The score per row.

    Example:
        >>> energy_score([[3.0, 4.0]], mean=[[0.0, 0.0]], cov=[[0.0, 0.0]], key=jr.key(0))
        5.0
    """
    y, mean, observed = _outcomes(y, mean)
    var, cov, rounding = _uncertainty(cov, y.shape)
    require_integer("samples", samples, least=1)
    rng = _generator(key)
    error, observed, std = (_rows(each) for each in (np.where(observed, y - mean, 0.0), observed, np.sqrt(var) * observed))
    roots = None if cov is None else _roots(cov, observed, rounding)
    scores = []
    for row in np.flatnonzero(observed.any(axis=1)):
        noise = rng.standard_normal((samples, error.shape[1]))
        noise = noise * std[row] if roots is None else noise @ roots[row].T
        # The difference of two independent draws is one draw stretched by √2: no pairs of samples are needed.
        spread = np.linalg.norm(noise, axis=1) / math.sqrt(2)
        scores.append((np.linalg.norm(noise - error[row], axis=1) - spread).mean())
    return float(np.mean(scores))


def coverage(y: Any, mean: Any, std: Any, probability: float = 0.95) -> float:
    """Share of the observed values inside the central interval that should hold them with this probability."""
    reach = _quantile(probability)
    error, std, observed = _errors(y, mean, std)
    return float((np.abs(error) <= reach * std)[observed].mean())


def width(std: Any, probability: float = 0.95) -> float:
    """Mean width of the central intervals that should hold the truth with this probability."""
    reach = _quantile(probability)
    std = _numbers("std", std)
    require_variances("std", std)
    return float(2 * reach * std.mean())


def pit(y: Any, mean: Any, std: Any) -> np.ndarray:
    r"""Probability integral transform $\Phi((y - m)/s)$: uniform on [0, 1] if the forecasts are calibrated.

    Args:
        y: What came true.
        mean: Means of the forecasts, shaped like `y`.
        std: Their standard deviations, shaped like `y`. A certain forecast gives 0, 1, or one half where it is right.

    Returns:
        One value per entry of `y`, shaped like it; NaN where it is not observed.
    """
    error, std, observed = _errors(y, mean, std)
    return np.where(observed, ndtr(_in_deviations(error, std)), np.nan)


def pit_histogram(y: Any, mean: Any, std: Any, bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """How many observed values have their PIT in each of so many equal bins; flat if the forecasts are calibrated.

    A hump in the middle says that the forecasts are too wide, a valley that they are too narrow, a slope that they are biased.

    Args:
        y: What came true.
        mean: Means of the forecasts, shaped like `y`.
        std: Their standard deviations, shaped like `y`.
        bins: How many.

    Returns:
        Counts, one per bin, and the edges of the bins from 0 to 1, one more.

    Example:
        >>> pit_histogram([-1.0, 0.5, 0.5], mean=[0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0], bins=2)[0].tolist()
        [1, 2]
    """
    require_integer("bins", bins, least=1)
    values = pit(y, mean, std)
    return np.histogram(values[~np.isnan(values)], bins=bins, range=(0.0, 1.0))


# ---------------------------------------------------------------- what comes in


def _numbers(name: str, value: Any) -> np.ndarray:
    """Real numbers in float64, none of them lost to the precision that JAX is set to."""
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} must be a plain array, got a masked one; write .astype(float).filled(numpy.nan)")
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}") from error
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__} of dtype {array.dtype}")
    if array.size == 0:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    return array.astype(float)


def _outcomes(y: Any, mean: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Checked outcomes and means of the same shape, and which outcomes were observed."""
    y, mean = _numbers("y", y), _numbers("mean", mean)
    if y.ndim not in (1, 2):
        raise ValueError(f"y must have 1 or 2 axes, got shape {y.shape}")
    if np.isinf(y).any():
        raise ValueError(f"y must be finite or NaN (not observed), got {y[_first(np.isinf(y))]} at index {_first(np.isinf(y))}")
    require_shape("mean", mean, y.shape)
    require_finite("mean", mean)
    observed = ~np.isnan(y)
    if not observed.any():
        raise ValueError("y must have at least one observed value, got only NaN")
    return y, mean, observed


def _errors(y: Any, mean: Any, std: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How far off each mean is (0 where not observed), the standard deviations, and which outcomes were observed."""
    y, mean, observed = _outcomes(y, mean)
    std = _numbers("std", std)
    require_shape("std", std, y.shape)
    require_variances("std", std)
    return np.where(observed, y - mean, 0.0), std, observed


def _uncertainty(cov: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Variances shaped like y, the symmetric covariances if there are any, and a rounding error of what came in."""
    given, cov = cov, _numbers("cov", cov)
    dtype = np.asarray(given).dtype
    size = shape[1] if len(shape) == 2 else 1
    full = (shape[0], size, size)
    rounding = size * float(np.finfo(dtype if dtype.kind == "f" else float).eps)
    if cov.shape not in (shape, full):
        raise ValueError(f"cov must have shape {shape} (variances) or {full} (covariances), got {cov.shape}")
    if cov.shape == shape:
        require_variances("cov", cov)
        return cov, None, rounding
    require_finite("cov", cov)
    var = np.diagonal(cov, axis1=1, axis2=2).copy()
    if (var < 0).any():
        raise ValueError(f"cov must not have negative variances, got {var[_first(var < 0)]} at row {_first(var < 0)[0]}")
    mirror = np.swapaxes(cov, 1, 2)
    skew = np.abs(cov - mirror).max(axis=(1, 2)) > 100 * rounding * np.abs(cov).max(axis=(1, 2))
    if skew.any():
        raise ValueError(f"cov must be symmetric, got a matrix that is not at row {_first(skew)[0]}")
    return var.reshape(shape), (cov + mirror) / 2, rounding


def _quantile(probability: float) -> float:
    """Half the width of the central interval, in standard deviations."""
    require_probability(probability)
    return NormalDist().inv_cdf(0.5 + float(probability) / 2)


def _generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy's generator seeded by a JAX key: draws in float64 that do not depend on what JAX is set to."""
    try:
        seed = np.asarray(jr.key_data(key)).reshape(-1)
    except (TypeError, ValueError) as error:
        raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {type(key).__name__}") from error
    return np.random.default_rng(seed)


# ---------------------------------------------------------------- algebra of many small matrices


def _in_deviations(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Errors in standard deviations, cut where the normal distribution has reached 0 or 1 in float64; 0/0 is 0."""
    # Dividing by a number near zero is meant to overflow.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.clip(np.where(error == 0, 0.0, error / std), -40.0, 40.0)


def _correlation_spectrum(
    cov: np.ndarray, std: np.ndarray, observed: np.ndarray, rounding: float
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and eigenvectors of the correlations between observed coordinates; the others are as if independent."""
    both = observed[:, :, None] & observed[:, None, :]
    # Correlations, so that channels of very different units do not drown each other.
    scale = np.where(observed, std, 1.0)
    correlation = np.where(both, cov / scale[:, :, None] / scale[:, None, :], np.eye(std.shape[1]))
    values, vectors = np.linalg.eigh(correlation)
    if (values <= rounding).any():
        row = int(np.argmin(values[:, 0]))
        raise ValueError(
            f"cov must be positive definite to have a density, got correlations with an eigenvalue of {values[row, 0]:.3g} "
            f"at row {row}; add the measurement noise or use energy_score"
        )
    return values, vectors


def _roots(cov: np.ndarray, observed: np.ndarray, rounding: float) -> np.ndarray:
    """Roots of the covariances of the observed coordinates; zero elsewhere."""
    values, vectors = np.linalg.eigh(cov * (observed[:, :, None] & observed[:, None, :]))
    bad = values[:, 0] < -100 * rounding * np.abs(cov).max(axis=(1, 2))
    if bad.any():
        row = _first(bad)[0]
        raise ValueError(f"cov must be positive semi-definite, got an eigenvalue of {values[row, 0]:.3g} at row {row}")
    return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def _rows(array: np.ndarray) -> np.ndarray:
    """One row per forecast."""
    return array[:, None] if array.ndim == 1 else array


def _first(mask: np.ndarray) -> tuple[int, ...]:
    """Index of the first entry that is true."""
    return tuple(int(i) for i in np.argwhere(mask)[0])
