"""Gaussian measurement noise, independent between outputs."""

import math
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import as_array, require_number, require_probability, require_variances, values_of
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.data.scaling import Standardiser
from prodssm.models.likelihoods.base import Likelihood

INITIAL_VARIANCE = 0.1  # of learned measurement noise, in standardised units
DEFAULT_FLOOR = 1e-6


class GaussianLikelihood(Likelihood):
    """y ~ N(g, diag(variance)).

    Args:
        variance: Variance of the measurement noise, one number or one per output, in the units of the data squared; it is then
            known and not learned. `None` learns it.
        floor: Smallest variance that is learned, as a fraction of the variance of an output; one number or one per output.
        learned: Whether training changes a given variance.

    Example:
        >>> GaussianLikelihood(variance=1.0).predict(Gaussian([0.0], [[3.0]])).std.item()
        2.0
    """

    gaussian = True
    constant_noise = True

    log_variance: Float[Array, " y"] | None
    scalar: bool = eqx.field(static=True)
    floor: float | tuple[float, ...] = eqx.field(static=True)
    learned: bool = eqx.field(static=True)
    positive: bool = eqx.field(static=True)  # whether every variance is known to be positive

    def __init__(self, variance: Any = None, floor: Any = DEFAULT_FLOOR, learned: bool | None = None):
        """Check the values and store what is learned without bounds."""
        if np.ndim(floor) == 0:
            require_number("floor", floor)
        require_variances("floor", floor)
        self.floor = float(floor) if np.ndim(floor) == 0 else tuple(np.asarray(floor, float).tolist())
        self.scalar = variance is not None and np.ndim(variance) == 0
        self.learned = variance is None if learned is None else bool(learned)
        self.log_variance = None
        self.positive = self.learned and bool((np.asarray(self.floor) > 0).all())
        if variance is not None:
            values = jnp.atleast_1d(as_array("variance", variance, ndim=np.ndim(variance)))
            if values.ndim != 1:
                raise ValueError(f"variance must be one number or one per output, got shape {values.shape}")
            require_variances("variance", values)
            self.log_variance = jnp.where(values > 0, jnp.log(jnp.where(values > 0, values, 1.0)), -jnp.inf)
            concrete = values_of(values)
            self.positive = self.positive or (concrete is not None and bool((concrete > 0).all()))

    def __repr__(self) -> str:
        """The constructor's arguments."""
        return f"GaussianLikelihood(variance={self.variance}, floor={self.floor}, learned={self.learned})"

    def constructor_params(self) -> dict[str, Any]:
        """The constructor's arguments, by name: the variance as it was given, without the floor."""
        given = None if self.log_variance is None else jnp.exp(self.log_variance)
        learned = None if self.learned == (given is None) else self.learned
        return {"variance": given[0] if self.scalar and given is not None else given, "floor": self.floor, "learned": learned}

    @property
    def variance(self) -> Float[Array, " y"] | None:
        """Variances of the measurement noise; `None` until they are learned."""
        return None if self.log_variance is None else self._variance

    @property
    def size(self) -> int:
        """Number of outputs."""
        return self._log_variance.size

    @property
    def _log_variance(self) -> Float[Array, " y"]:
        if self.log_variance is None:
            raise ValueError("variance must be given where nothing is fitted: GaussianLikelihood(variance=...)")
        return self.log_variance

    @property
    def _variance(self) -> Float[Array, " y"]:
        learned = jnp.exp(self._log_variance)
        return learned + jnp.asarray(self.floor, learned.dtype) if self.learned else learned

    def for_data(self, scaling: Standardiser) -> "GaussianLikelihood":
        """The likelihood in standardised units; a learned variance starts at a tenth of an output's."""
        size, dtype = scaling.scale.size, scaling.scale.dtype
        if np.ndim(self.floor) and np.size(self.floor) != size:
            raise ValueError(f"the floor of the measurement noise must be one number or {size}, got {np.size(self.floor)}")
        if self.log_variance is None:
            return GaussianLikelihood(jnp.full(size, INITIAL_VARIANCE, dtype), self.floor, learned=True)
        given = np.exp(np.asarray(self.log_variance, float))
        if not self.scalar and given.size != size:
            raise ValueError(f"the variance of the measurement noise must be one number or {size}, got {given.size}")
        scaled = np.broadcast_to(given, (size,)) / np.asarray(scaling.scale, float) ** 2
        return GaussianLikelihood(jnp.asarray(scaled, dtype), self.floor, learned=self.learned)

    def with_initial_variance(self, variance: Float[np.ndarray, " y"]) -> "GaussianLikelihood":
        """The likelihood with a learned variance that starts at this one."""
        if not self.learned:
            return self
        floor = np.asarray(self.floor)
        log_variance = np.log(np.maximum(variance - floor, floor))
        return eqx.tree_at(lambda noise: noise.log_variance, self, jnp.asarray(log_variance, self._log_variance.dtype))

    def trainable(self) -> Any:
        """The variance, if it is learned."""
        return eqx.tree_at(lambda noise: noise.log_variance, self, self.learned)

    def predict(self, g: Gaussian) -> Gaussian:
        """N(g.mean, g.cov + diag(variance))."""
        return g.plus(self._variance)

    def condition(self, belief: Belief, emission: Channel, y: Float[Array, " y"]) -> tuple[Belief, Float[Array, ""]]:
        """The Kalman update through the emission channel plus measurement noise."""
        if self.positive:
            return belief.condition(emission, y, self._variance)
        return belief.condition(emission.plus(self._variance), y)

    def log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        """Log density of y under N(g.mean, g.cov + diag(variance))."""
        return self.predict(g).log_prob(y)

    def expected_log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        r"""$E[\log N(y; g, r)]$; by Jensen's inequality at most the log density."""
        noise, observed = self._variance, ~jnp.isnan(y)
        square = (jnp.where(observed, y, 0.0) - g.mean) ** 2 + g.var
        return jnp.where(observed, -0.5 * (jnp.log(2 * math.pi * noise) + square / noise), 0.0).sum()

    def require_bound(self) -> None:
        """Raise if a variance is zero: the bound divides by it."""
        if not (np.asarray(self._variance) > 0).all():
            raise ValueError("measurement_noise must be positive for objective='bound', which divides by it; got zero")

    def cdf(self, mean: Any, var: Any, y: Any) -> Float[np.ndarray, "*any y"]:
        """The normal distribution function; zero variance is a step."""
        from scipy.special import ndtr  # slow to import

        gap, var = np.asarray(y, float) - np.asarray(mean, float), np.asarray(var, float) + np.asarray(self._variance, float)
        std = np.sqrt(np.where(var > 0, var, 1.0))
        return np.where(var > 0, ndtr(gap / std), (gap >= 0) * 1.0)

    def quantile(self, mean: Any, var: Any, probability: float) -> Float[np.ndarray, "*any y"]:
        """The normal quantile."""
        require_probability(probability)
        std = np.sqrt(np.asarray(var, float) + np.asarray(self._variance, float))
        return np.asarray(mean, float) + NormalDist().inv_cdf(float(probability)) * std

    def conditional_var(self, g: Gaussian) -> Float[Array, " y"]:
        """The variance of the measurement noise."""
        return self._variance

    def sample(self, g: Float[Array, "... y"], *, key: PRNGKeyArray) -> Float[Array, "... y"]:
        """Outputs plus measurement noise."""
        noise = jr.normal(key, g.shape, g.dtype)
        return g + noise * jnp.broadcast_to(jnp.sqrt(self._variance), g.shape)
