"""Mixtures of Gaussians as answers, in NumPy: moments, densities, quantiles and the continuous ranked probability score.

Arrays have the components first: m components, n rows, y outputs. Weights, (m, n), are equal where none are given.
"""

from typing import Any

import numpy as np
from jaxtyping import Float

from prodssm._validation import require_probability

Weights = Float[np.ndarray, "m n"] | None


def mixture_moments(
    mean: Float[np.ndarray, "m n y"], cov: Float[np.ndarray, "m n y y"], weights: Weights = None
) -> tuple[Float[np.ndarray, "n y"], Float[np.ndarray, "n y y"]]:
    """Mean and covariance of a mixture, by the law of total covariance.

    Example:
        >>> mixture_moments(np.array([[[0.0]], [[2.0]]]), np.ones((2, 1, 1, 1)))
        (array([[1.]]), array([[[2.]]]))
    """
    centre = _average(mean, weights)
    gap = mean - centre
    return centre, _average(cov + gap[..., :, None] * gap[..., None, :], weights)


def mixture_log_prob(log_probs: Float[np.ndarray, "m n"], weights: Weights = None) -> Float[np.ndarray, " n"]:
    """Log density of a mixture, from those of its components.

    Example:
        >>> np.exp(mixture_log_prob(np.log([[0.5], [0.25]]))).round(6)
        array([0.375])
    """
    if weights is None:
        return np.logaddexp.reduce(log_probs, axis=0) - np.log(len(log_probs))
    with np.errstate(divide="ignore"):
        return np.logaddexp.reduce(log_probs + np.log(weights), axis=0)


def mixture_cdf(
    y: Any, mean: Float[np.ndarray, "m n y"], std: Float[np.ndarray, "m n y"], weights: Weights = None
) -> Float[np.ndarray, "n y"]:
    """Marginal distribution functions of a mixture; a component of zero variance has all or none of its mass below.

    Example:
        >>> mixture_cdf(np.zeros((1, 1)), np.array([[[0.0]], [[9.0]]]), np.ones((2, 1, 1))).round(6)
        array([[0.25]])
    """
    from scipy.special import ndtr  # slow to import

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _average(np.where(std > 0, ndtr((y - mean) / std), y >= mean), weights)


def mixture_quantile(
    probability: float, mean: Float[np.ndarray, "m n y"], std: Float[np.ndarray, "m n y"], weights: Weights = None
) -> Float[np.ndarray, "n y"]:
    """Marginal quantiles of a mixture, by bisection to the last bit.

    A diverged component moves a quantile little as long as its weight 1/m is below the probability beyond it: medians are
    robust to that, the ends of 95 % intervals only with more than forty components.

    Example:
        >>> mixture_quantile(0.5, np.array([[[0.0]], [[0.1]], [[1e30]]]), np.ones((3, 1, 1))).round(1)
        array([[0.7]])
    """
    from scipy.special import ndtri  # slow to import

    require_probability(probability)
    each = mean + ndtri(probability) * std
    there = np.True_ if weights is None else weights[..., None] > 0
    # No component, and every component, has its quantile below.
    low, high = np.where(there, each, np.inf).min(axis=0), np.where(there, each, -np.inf).max(axis=0)
    middle = low / 2 + high / 2
    while ((low < middle) & (middle < high)).any():  # until there is no floating point number in between
        below = mixture_cdf(middle, mean, std, weights)
        low, high = np.where(below < probability, middle, low), np.where(below < probability, high, middle)
        middle = low / 2 + high / 2
    return middle


def mixture_crps(
    y: Any, mean: Float[np.ndarray, "m n y"], std: Float[np.ndarray, "m n y"], weights: Weights = None
) -> Float[np.ndarray, "n y"]:
    r"""Continuous ranked probability score of a mixture, value by value, in the unit of `y`.

    $E|X - y| - E|X - X'|/2$ for independent draws $X, X'$ of the mixture.

    Args:
        y: The outcomes.
        mean: Means of the components.
        std: Their standard deviations; zero is allowed.
        weights: Their weights.

    Example:
        >>> float(mixture_crps(np.zeros((1, 1)), np.zeros((2, 1, 1)), np.ones((2, 1, 1)))[0, 0].round(6))
        0.233695
    """
    if np.shape(y) != mean.shape[1:]:
        raise ValueError(f"y must have the shape of one component, {mean.shape[1:]}; got {np.shape(y)}")
    error = _average(mean_abs(mean - y, std), weights)
    apart = [_average(mean_abs(mean - m, np.hypot(std, s)), weights) for m, s in zip(mean, std, strict=True)]
    return error - _average(np.stack(apart), weights) / 2


def _average(values: np.ndarray, weights: Weights) -> np.ndarray:
    """Over components."""
    if weights is None:
        return values.mean(axis=0)
    return (values * weights.reshape(weights.shape + (1,) * (values.ndim - 2))).sum(axis=0)


def mean_abs(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E|x| of a Gaussian variable."""
    from scipy.special import ndtr  # slow to import

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(std > 0, mean / std, np.copysign(np.inf, mean))
        return mean * (2 * ndtr(z) - 1) + std * np.exp(-(z**2) / 2) * np.sqrt(2 / np.pi)
