"""Quantiles and expectations of predictive distributions, in NumPy, for many forecasts at once."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from jaxtyping import Float

BISECTIONS, DOUBLINGS = 60, 60
REACH = 8.5  # standard deviations, beyond which a normal variable has no mass in double precision


@lru_cache
def normal_nodes(count: int = 129) -> tuple[Float[np.ndarray, " q"], Float[np.ndarray, " q"]]:
    """Nodes and weights for the expectation of a function of a standard normal variable, by the trapezoidal rule.

    For analytic functions it converges like a Gauss rule, and it forgives kinks.
    """
    nodes = np.linspace(-REACH, REACH, count)
    weights = np.exp(-0.5 * nodes**2)
    return nodes, weights / weights.sum()


def step(gap: np.ndarray, std: np.ndarray) -> np.ndarray:
    r"""$\\Phi(gap / std)$, where zero standard deviation is a step."""
    from scipy.special import ndtr  # slow to import

    return np.where(std > 0, ndtr(gap / np.where(std > 0, std, 1.0)), (gap >= 0) * 1.0)


def find_quantile(
    cdf: Callable[[np.ndarray], np.ndarray], support: str, probability: float, start: np.ndarray, width: np.ndarray
) -> Float[np.ndarray, "*any y"]:
    """The smallest y with a probability P(Y <= y) of at least this, elementwise.

    Args:
        cdf: P(Y <= y), elementwise and increasing.
        support: Of Y: "real", "counts" or "binary".
        probability: The probability.
        start: Where a search over real numbers starts.
        width: How far its first step reaches.
    """
    if support == "binary":
        return np.where(cdf(np.zeros_like(start)) >= probability, 0.0, 1.0)
    if support == "counts":
        return _count_quantile(cdf, probability, np.zeros_like(start))
    low, high = _bracket(cdf, probability, start, width)
    for _ in range(BISECTIONS):
        middle = low / 2 + high / 2
        below = cdf(middle) < probability
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return low / 2 + high / 2


def _bracket(
    cdf: Callable[[np.ndarray], np.ndarray], probability: float, start: np.ndarray, width: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Points below and above the quantile."""
    low, high = start - width, start + width
    for n in range(1, DOUBLINGS):
        outside = cdf(low) >= probability, cdf(high) < probability
        if not (outside[0].any() or outside[1].any()):
            break
        low, high = np.where(outside[0], start - width * 2.0**n, low), np.where(outside[1], start + width * 2.0**n, high)
    return low, high


def _count_quantile(cdf: Callable[[np.ndarray], np.ndarray], probability: float, zero: np.ndarray) -> np.ndarray:
    """By doubling and bisection over whole numbers."""
    low, high = zero - 1, zero.copy()
    for n in range(DOUBLINGS):
        short = cdf(high) < probability
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 2.0**n, high)
    while (high - low > 1).any():
        middle = np.floor((low + high) / 2)
        below = cdf(middle) < probability
        low, high = np.where(below, middle, low), np.where(below, high, np.maximum(middle, low + 1))
    return high
