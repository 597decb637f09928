"""Scores of Gaussian forecasts: log density, errors, proper scores and calibration.

Throughout, `y` (n, y) holds the outcomes, one forecast per row. NaN marks a missing value, which is excluded from every
average. A vector is n forecasts of a scalar. All scores are computed in float64 with NumPy, whatever precision JAX is set to.
"""

import math
from statistics import NormalDist
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from prodssm._validation import require_finite, require_integer, require_probability, require_shape, require_variances


def nll(y: Any, mean: Any, cov: Any) -> float:
    r"""Mean negative log-likelihood $-\log N(y; m, C)$ over the rows, in nats, with all constants; lower is better.

    Args:
        y: Outcomes. Missing coordinates are marginalised out; rows without any observation are skipped.
        mean: Means of the forecasts, shaped like `y`.
        cov: Covariances of the forecasts (n, y, y), or variances shaped like `y`; positive definite where `y` is observed.

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
    """Mean squared error over all observed values.

    Example:
        >>> mse([1.0, 2.0], mean=[1.0, 4.0])
        2.0
    """
    y, mean, observed = _outcomes(y, mean)
    return float(((y - mean)[observed] ** 2).mean())


def rmse(y: Any, mean: Any) -> float:
    """Root mean squared error over all observed values, in the unit of `y`.

    Example:
        >>> rmse([1.0, float("nan")], mean=[4.0, 0.0])
        3.0
    """
    return math.sqrt(mse(y, mean))


def crps(y: Any, mean: Any, std: Any) -> float:
    r"""Mean continuous ranked probability score over all observed values, in the unit of `y`; lower is better.

    $\mathrm{CRPS} = s\,[z(2\Phi(z) - 1) + 2\varphi(z) - 1/\sqrt\pi]$ with $z = (y - m)/s$; the absolute error if $s = 0$.

    Args:
        y: Outcomes.
        mean: Means of the forecasts, shaped like `y`.
        std: Standard deviations of the forecasts, shaped like `y`; zero is allowed.

    Returns:
        The score per observed value.

    Example:
        >>> round(crps([0.0, float("nan")], mean=[0.0, 0.0], std=[1.0, 1.0]), 6)
        0.233695
    """
    error, std, observed = _errors(y, mean, std)
    z = _z_scores(error, std)
    density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
    # The error itself rather than std * z, so that the score at zero standard deviation is the absolute error.
    scores = error * (2 * _normal_cdf(z) - 1) + std * (2 * density - 1 / math.sqrt(math.pi))
    return float(scores[observed].mean())


def energy_score(y: Any, mean: Any, cov: Any, *, key: PRNGKeyArray, samples: int = 1000) -> float:
    r"""Mean over the rows of $E|X - y| - E|X - X'|/2$ for $X, X' \sim N(m, C)$: the multivariate CRPS; lower is better.

    A row is one joint forecast: of all outputs at one time step, or of one output over a trajectory. The score is not invariant
    to the scaling of the coordinates, so standardise them first. The estimate is unbiased for any number of samples.

    Args:
        y: Outcomes. Missing coordinates are marginalised out; rows without any observation are skipped.
        mean: Means of the forecasts, shaped like `y`.
        cov: Covariances of the forecasts (n, y, y), or variances shaped like `y`; may be singular.
        key: Random key.
        samples: Number of samples per row.

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
        # The difference of two independent samples is distributed like √2 times one centred sample: no pairs are needed.
        spread = np.linalg.norm(noise, axis=1) / math.sqrt(2)
        scores.append((np.linalg.norm(noise - error[row], axis=1) - spread).mean())
    return float(np.mean(scores))


def coverage(y: Any, mean: Any, std: Any, probability: float = 0.95) -> float:
    """Fraction of the observed values inside the central interval of this probability; equal to it if calibrated.

    Example:
        >>> coverage([0.0, 3.0], mean=[0.0, 0.0], std=[1.0, 1.0])
        0.5
    """
    radius = _quantile(probability)
    error, std, observed = _errors(y, mean, std)
    return float((np.abs(error) <= radius * std)[observed].mean())


def width(std: Any, probability: float = 0.95) -> float:
    """Mean width of the central intervals of this probability.

    Example:
        >>> round(width([1.0, 1.0], probability=0.95), 2)
        3.92
    """
    radius = _quantile(probability)
    std = _numbers("std", std)
    require_variances("std", std)
    return float(2 * radius * std.mean())


def pit(y: Any, mean: Any, std: Any) -> np.ndarray:
    r"""Probability integral transform $\Phi((y - m)/s)$: uniform on [0, 1] if the forecasts are calibrated.

    Args:
        y: Outcomes.
        mean: Means of the forecasts, shaped like `y`.
        std: Standard deviations of the forecasts, shaped like `y`. A zero standard deviation gives 0, 1, or 0.5 if exact.

    Returns:
        One value per entry of `y`; NaN where it is missing.

    Example:
        >>> pit([0.0, float("nan")], mean=[0.0, 0.0], std=[1.0, 1.0]).tolist()
        [0.5, nan]
    """
    error, std, observed = _errors(y, mean, std)
    return np.where(observed, _normal_cdf(_z_scores(error, std)), np.nan)


def pit_histogram(y: Any, mean: Any, std: Any, bins: int = 10) -> tuple[np.ndarray, np.ndarray]:
    """Histogram of the probability integral transform of the observed values; flat if the forecasts are calibrated.

    A hump means that the forecasts are underconfident (too wide), a U shape that they are overconfident (too narrow), a slope
    that they are biased.

    Args:
        y: Outcomes.
        mean: Means of the forecasts, shaped like `y`.
        std: Standard deviations of the forecasts, shaped like `y`.
        bins: Number of bins of equal width.

    Returns:
        Counts (bins,), and the edges of the bins from 0 to 1, (bins + 1,).

    Example:
        >>> pit_histogram([-1.0, 0.5, 0.5], mean=[0.0, 0.0, 0.0], std=[1.0, 1.0, 1.0], bins=2)[0].tolist()
        [1, 2]
    """
    require_integer("bins", bins, least=1)
    values = pit(y, mean, std)
    return np.histogram(values[~np.isnan(values)], bins=bins, range=(0.0, 1.0))


# ---------------------------------------------------------------- validation


def _numbers(name: str, value: Any) -> np.ndarray:
    """Convert to a non-empty float64 array, independently of the precision that JAX is set to."""
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
    """Validated outcomes and means of the same shape, and the mask of the observed outcomes."""
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
    """Validated errors of the means (0 where missing), standard deviations, and the mask of the observed outcomes."""
    y, mean, observed = _outcomes(y, mean)
    std = _numbers("std", std)
    require_shape("std", std, y.shape)
    require_variances("std", std)
    return np.where(observed, y - mean, 0.0), std, observed


def _uncertainty(cov: Any, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray | None, float]:
    """Validated variances shaped like y, symmetric covariances if given, and their relative rounding error."""
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
    """Half the width of the central interval of this probability, in standard deviations."""
    require_probability(probability)
    return NormalDist().inv_cdf(0.5 + float(probability) / 2)


def _normal_cdf(z: np.ndarray) -> np.ndarray:
    """Standard normal distribution function."""
    from scipy.special import ndtr  # slow to import

    return ndtr(z)


def _generator(key: PRNGKeyArray) -> np.random.Generator:
    """NumPy generator seeded by a JAX key: float64 samples independent of the precision that JAX is set to."""
    try:
        seed = np.asarray(jr.key_data(key)).reshape(-1)
    except (TypeError, ValueError) as error:
        raise TypeError(f"key must be a JAX random key such as jax.random.key(0), got {type(key).__name__}") from error
    return np.random.default_rng(seed)


# ---------------------------------------------------------------- batched linear algebra


def _z_scores(error: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Errors in standard deviations, clipped where the Gaussian CDF has reached 0 or 1 in float64; 0/0 is 0."""
    # Overflow of a division by a tiny standard deviation is clipped.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.clip(np.where(error == 0, 0.0, error / std), -40.0, 40.0)


def _correlation_spectrum(
    cov: np.ndarray, std: np.ndarray, observed: np.ndarray, rounding: float
) -> tuple[np.ndarray, np.ndarray]:
    """Eigendecomposition of the correlations of the observed coordinates; missing ones count as independent."""
    both = observed[:, :, None] & observed[:, None, :]
    # Correlations rather than covariances: the spectrum then does not depend on the units of the outputs.
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
    """Matrix square roots of the covariances of the observed coordinates; zero elsewhere."""
    values, vectors = np.linalg.eigh(cov * (observed[:, :, None] & observed[:, None, :]))
    bad = values[:, 0] < -100 * rounding * np.abs(cov).max(axis=(1, 2))
    if bad.any():
        row = _first(bad)[0]
        raise ValueError(f"cov must be positive semi-definite, got an eigenvalue of {values[row, 0]:.3g} at row {row}")
    return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]


def _rows(array: np.ndarray) -> np.ndarray:
    """One row per forecast: a vector becomes a single column."""
    return array[:, None] if array.ndim == 1 else array


def _first(mask: np.ndarray) -> tuple[int, ...]:
    """Index of the first entry that is true."""
    return tuple(int(i) for i in np.argwhere(mask)[0])
