"""Counts: a Poisson distribution whose log rate is the emission's output."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.linalg import symmetrise
from prodssm.models.likelihoods.quantiles import normal_nodes, step
from prodssm.models.likelihoods.scalar import ScalarLikelihood
from prodssm.models.likelihoods.support import require_counts

STIRLING = 8.0  # counts above which the series of log y! is exact to the last digit
LARGEST_RATE = 1e9  # of a draw, whose type is an integer of 32 bits
HALF_COUNT = 0.5  # added to a count before its logarithm is taken


class Poisson(ScalarLikelihood):
    r"""$y \sim Poisson(e^g)$, for counts.

    Under a Gaussian belief about g the moments are those of a log-normal rate: mean $\lambda = \exp(m + S_{ii} / 2)$ and
    covariance $\lambda \lambda^\top \circ (e^S - 1) + diag(\lambda)$.

    Example:
        >>> ps.Poisson().predict(Gaussian([1.0], [[0.0]])).var.round(3).tolist()
        [2.718]
    """

    support = "counts"

    def require_data(self, y: Any, names: Sequence[str] | None = None) -> None:
        """Raise unless all observations are counts."""
        require_counts("Poisson", y, names)

    def link(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
        """log(y + 1/2)."""
        return np.log(y + np.asarray(HALF_COUNT, y.dtype))

    def offset(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, " y"]:
        """The logarithm of the mean count, where no count was seen of half of one in all."""
        seen = np.isfinite(y)
        count = np.maximum(seen.sum(axis=0), 1)
        return np.log(np.maximum(np.where(seen, y, 0.0).sum(axis=0), HALF_COUNT) / count).astype(y.dtype)

    def log_density(self, g: Float[Array, " q"], y: Float[Array, ""]) -> Float[Array, " q"]:
        """Y g - e^g - log y!, relative to its largest value: with many counts its terms would cancel."""
        g = jnp.minimum(g, 0.9 * math.log(float(jnp.finfo(g.dtype).max)))  # a rate beyond would overflow
        safe = jnp.where(y > 0, y, 1.0)
        distance = g - jnp.log(safe)
        bulk = -safe * (jnp.expm1(distance) - distance) + _log_peak(safe)
        return jnp.where(y > 0, bulk, -jnp.exp(g))

    def mean_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """The rate."""
        return jnp.exp(g)

    def var_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """The rate."""
        return jnp.exp(g)

    def predict(self, g: Gaussian) -> Gaussian:
        """Mean and covariance of counts with a log-normal rate."""
        rate = self.conditional_var(g)
        return Gaussian(rate, symmetrise(rate[:, None] * rate[None, :] * jnp.expm1(g.cov) + jnp.diag(rate)))

    def conditional_var(self, g: Gaussian) -> Float[Array, " y"]:
        """The expected rate."""
        return jnp.exp(g.mean + g.var / 2)

    def shared_var(self, g: Gaussian, shared: Float[Array, " y"]) -> Float[Array, " y"]:
        """Covariance of two rates whose logarithms have this covariance."""
        return self.conditional_var(g) ** 2 * jnp.expm1(shared)

    def expected_log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        """Y m - exp(m + s^2 / 2) - log y!, summed over observed outputs."""
        seen, y = self.observed(y, g.mean)
        return jnp.where(seen, y * g.mean - self.conditional_var(g) - jax.lax.lgamma(y + 1), 0.0).sum()

    def cdf(self, mean: Any, var: Any, y: Any) -> Float[np.ndarray, "*any y"]:
        r"""P(Y <= k), which is $P(g \le \log G)$ for G of the Gamma(k + 1) distribution; over the narrower one."""
        mean, var, y = np.broadcast_arrays(*(np.asarray(part, float) for part in (mean, var, y)))
        k, std = np.maximum(np.floor(y), 0.0)[..., None], np.sqrt(var)[..., None]
        over_rate = _over_gamma(k, mean[..., None], std)
        found = np.where(std[..., 0] ** 2 * (k[..., 0] + 1) > 1, over_rate, _over_normal(k, mean[..., None], std))
        return np.clip(np.where(y < 0, 0.0, found), 0.0, 1.0)

    def sample(self, g: Float[Array, "... y"], *, key: PRNGKeyArray) -> Float[Array, "... y"]:
        """Counts drawn with the rates exp(g)."""
        return jr.poisson(key, jnp.minimum(jnp.exp(g), LARGEST_RATE), g.shape).astype(g.dtype)


def _over_gamma(k: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E[Phi((log G - m) / s)] by the trapezoidal rule in log G, whose left tail is exponential with the rate k + 1."""
    steps = np.linspace(0.0, 1.0, 193)
    width = 1 / np.sqrt(k + 1)
    low, high = -width * (9 + 27 * width), width * (6 + 3 * width)
    v = low + (high - low) * steps  # log G - log(k + 1)
    density = np.exp((k + 1) * (v - np.expm1(v)))
    weights = density / density.sum(axis=-1, keepdims=True)
    return (weights * step(v + np.log(k + 1) - mean, std)).sum(axis=-1)


def _over_normal(k: np.ndarray, mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """E[P(Y <= k | g)] by the trapezoidal rule in g."""
    from scipy.special import pdtr  # slow to import

    nodes, weights = normal_nodes()
    with np.errstate(over="ignore"):
        rate = np.exp(np.minimum(mean + std * nodes, 700.0))
    return pdtr(k, rate) @ weights


def _log_peak(y: Float[Array, ""]) -> Float[Array, ""]:
    """Log of the probability of y at the rate y, by Stirling's series for large y."""
    large = jnp.maximum(y, STIRLING)
    series = -0.5 * jnp.log(2 * math.pi * large) - (1 - 1 / (30 * large**2) * (1 - 2 / (7 * large**2))) / (12 * large)
    small = jnp.minimum(y, STIRLING)
    return jnp.where(y > STIRLING, series, small * jnp.log(small) - small - jax.lax.lgamma(small + 1))
