"""Beliefs and their Gaussian member: linear-Gaussian algebra that knows neither networks nor methods.

Around a belief every function is a channel, `f(x) = mean + slope (x - E[x]) + N(0, noise)`. Prediction, Bayes' rule, smoothing,
composition and residual links need nothing else.
"""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import compiled
from prodssm._validation import as_array, require_shape
from prodssm.beliefs.channel import Channel, diagonal
from prodssm.beliefs.linalg import cholesky, safe_sqrt, sandwich, solve_psd, symmetrise
from prodssm.beliefs.observation import (
    Observation,
    log_density,
    observe_in_output_space,
    observe_in_state_space,
    revise_in_output_space,
)


def standard_deviations(cov: Float[Array | np.ndarray, "n x x"]) -> Float[Array | np.ndarray, "n x"]:
    """Standard deviations of many covariances; of NumPy's in NumPy, which compiles nothing for another number of them."""
    if isinstance(cov, np.ndarray):
        return np.sqrt(np.maximum(np.diagonal(cov, axis1=1, axis2=2), 0.0))
    return safe_sqrt(jnp.diagonal(cov, axis1=1, axis2=2))


class Belief(eqx.Module):
    """A belief about a state, perhaps jointly with network weights: what the recursion over time carries.

    Attributes:
        mean: Mean of the state.
        cov: Covariance of the state.
        state: The marginal belief about the state.
        weights: The belief about carried weights; `None` if the state alone is carried.

    Example:
        >>> belief: Belief = Gaussian([1.0], [[4.0]])
        >>> belief.plus(jnp.array([5.0])).std.item()
        3.0
    """

    mean: eqx.AbstractVar[Float[Array, " x"]]
    cov: eqx.AbstractVar[Float[Array, "x x"]]
    state: eqx.AbstractVar[Any]
    weights: eqx.AbstractVar[Any]

    @abstractmethod
    def predict(self, channel: Channel) -> "Belief":
        """The belief about the output of the channel."""

    @abstractmethod
    def plus(self, variances: Float[Array, " x"]) -> "Belief":
        """The belief about the state plus independent noise of these variances."""

    @abstractmethod
    def condition(
        self, channel: Channel, y: Float[Array, " y"], variance: Float[Array, " y"] | None = None
    ) -> tuple["Belief", Float[Array, ""]]:
        """The posterior given an observation y through a channel of the state, and the log evidence of y.

        Coordinates of y that are NaN are missing: they change nothing and do not count in the evidence.

        Args:
            channel: The channel from the state to y.
            y: The observation.
            variance: Positive variances of independent noise on top of the channel's. Given apart from an affine channel, they
                spare the factorisation of a matrix of the size of y where that is larger than the state.
        """

    @abstractmethod
    def revise(self, channel: Channel, marginal: "Gaussian") -> "Belief":
        """The belief after that about the output of the channel has become another one, by Jeffrey's rule.

        Given the output the belief stays as it was. A likelihood that is not Gaussian conditions by this rule.
        """

    @abstractmethod
    def smooth(self, channel: Channel, following: Any) -> "Belief":
        """The smoothed belief, given the transition channel and the smoothed belief at the next time step."""

    @abstractmethod
    def draw(self, *, key: PRNGKeyArray) -> tuple[Float[Array, " x"], Float[Array, " w"] | None]:
        """A state and the carried weights that belong to it, if any are carried."""

    def draw_before(
        self, channel: Channel, following: Float[Array, " x"], weights: Float[Array, " w"] | None, *, key: PRNGKeyArray
    ) -> Float[Array, " x"]:
        """A state given the next one and the carried weights: the step backwards of a posterior path.

        Args:
            channel: The transition channel around this belief.
            following: The state at the next time step.
            weights: The carried weights of the path, if any are carried.
            key: Randomness.
        """
        raise TypeError(f"posterior paths need Gaussian beliefs, got {type(self).__name__}")

    def log_prob(self, x: Float[Array, " x"]) -> Float[Array, ""]:
        """Log density of the state at x; coordinates that are NaN are marginalised."""
        return self.state.log_prob(x)

    # What the recursion over time asks for: rules are written for one component, and a mixture applies them to each.

    @property
    def mixture(self) -> Any:
        """The belief, if it is a mixture; else `None`."""
        return None

    def each(self, rule: Callable[[Any], Any]) -> Any:
        """The belief that a rule makes of this one."""
        return rule(self)

    def updated(self, rule: Callable[[Any], tuple[Any, Array]]) -> tuple["Belief", Float[Array, ""]]:
        """The posterior and the log evidence by a rule for one component."""
        return rule(self)

    def moved(self, rule: Callable[[Any], tuple[Channel, Any]]) -> tuple[Channel, "Belief"]:
        """The channel of a nonlinear function and the belief that it predicts, by a rule for one component."""
        return rule(self)

    def log_mean(self, rule: Callable[[Any], Array]) -> Float[Array, ""]:
        """The log density that a rule finds for one component."""
        return rule(self)

    def average(self, rule: Callable[[Any], Array]) -> Array:
        """The mean over components of what a rule finds for one."""
        return rule(self)

    @property
    def var(self) -> Float[Array, " x"]:
        """Variance of each state coordinate."""
        return jnp.diag(self.cov)

    @property
    def std(self) -> Float[Array, " x"]:
        """Standard deviation of each state coordinate."""
        return safe_sqrt(self.var)


class Gaussian(Belief):
    """A Gaussian belief N(mean, cov) about one vector.

    Example:
        >>> belief = Gaussian([0.0, 1.0], [[1.0, 0.5], [0.5, 2.0]])
        >>> channel = Channel(jnp.array([1.0]), jnp.array([[1.0, 1.0]]), jnp.array([[0.5]]))
        >>> belief.predict(channel).cov.item()
        4.5
    """

    mean: Float[Array, " x"] = eqx.field(converter=partial(as_array, "mean", ndim=1))
    cov: Float[Array, "x x"] = eqx.field(converter=partial(as_array, "cov", ndim=2))

    if TYPE_CHECKING:  # the abstract variables of Belief are no constructor arguments

        def __init__(self, mean: Any, cov: Any): ...

    def __check_init__(self):
        wanted = (self.mean.size, self.mean.size)
        if self.cov.shape != wanted:
            raise ValueError(f"cov must have shape {wanted} to match mean, got {self.cov.shape}")
        if self.cov.dtype != self.mean.dtype:
            raise ValueError(f"cov must have the dtype of mean, {self.mean.dtype}, got {self.cov.dtype}")

    @classmethod
    def certain(cls, mean: Any) -> "Gaussian":
        """A point mass: zero covariance."""
        mean = as_array("mean", mean, ndim=1)
        return cls(mean, jnp.zeros((mean.size, mean.size), mean.dtype))

    @property
    def weights(self) -> None:
        """No weights are carried."""
        return None

    @property
    def state(self) -> "Gaussian":  # pyright: ignore[reportIncompatibleVariableOverride]
        """The belief itself."""
        return self

    def predict(self, channel: Channel) -> "Gaussian":
        """The belief about the output of the channel."""
        require_input_size(self.mean, channel)
        _require_no_weights(channel)
        return Gaussian(channel.mean, symmetrise(sandwich(channel.slope, self.cov) + channel.noise))

    def plus(self, variances: Float[Array, " x"]) -> "Gaussian":
        """The belief about the vector plus independent noise of these variances."""
        return Gaussian(self.mean, self.cov + diagonal(variances, self.mean))

    def condition(
        self, channel: Channel, y: Float[Array, " y"], variance: Float[Array, " y"] | None = None
    ) -> tuple["Gaussian", Float[Array, ""]]:
        """The posterior given y, and the log evidence of y."""
        seen = self.observe(channel, y, variance)
        return Gaussian(seen.mean, seen.cov), seen.log_evidence

    def observe(self, channel: Channel, y: Float[Array, " y"], variance: Float[Array, " y"] | None = None) -> Observation:
        """The terms of Bayes' rule for y; see `condition`."""
        require_input_size(self.mean, channel)
        _require_no_weights(channel)
        y = as_array("y", y, ndim=1).astype(self.mean.dtype)
        if variance is not None and channel.affine and y.size > self.mean.size:
            return observe_in_state_space(self.mean, self.cov, channel.mean, channel.slope, variance, y)
        noisy = channel if variance is None else channel.plus(variance)
        return observe_in_output_space(self.mean, self.cov, noisy.mean, noisy.slope, noisy.noise, y)

    def revise(self, channel: Channel, marginal: "Gaussian") -> "Gaussian":
        """The belief after that about the output of the channel has become another one, by Jeffrey's rule."""
        seen = self.revision(channel, marginal)
        return Gaussian(seen.mean, seen.cov)

    def revision(self, channel: Channel, marginal: "Gaussian") -> Observation:
        """The terms of Jeffrey's rule; see `revise`."""
        require_input_size(self.mean, channel)
        _require_no_weights(channel)
        require_shape("marginal.mean", marginal.mean, channel.mean.shape)
        parts = channel.mean, channel.slope, channel.noise
        return revise_in_output_space(self.mean, self.cov, *parts, marginal.mean, marginal.cov)

    def smooth(self, channel: Channel, following: "Gaussian") -> "Gaussian":
        """The Rauch-Tung-Striebel step, with the covariance in Joseph form."""
        predicted = self.predict(channel)
        gain = solve_psd(predicted.cov, channel.slope @ self.cov).T
        keep = jnp.eye(self.mean.size, dtype=self.cov.dtype) - gain @ channel.slope
        cov = sandwich(keep, self.cov) + sandwich(gain, channel.noise + following.cov)
        return Gaussian(self.mean + gain @ (following.mean - predicted.mean), symmetrise(cov))

    def draw_before(
        self, channel: Channel, following: Float[Array, " x"], weights: Any = None, *, key: PRNGKeyArray
    ) -> Float[Array, " x"]:
        """A state given the next one: the Rauch-Tung-Striebel step around a certain state."""
        return self.smooth(channel, Gaussian.certain(following)).sample(key=key)

    def log_prob(self, x: Float[Array, " x"]) -> Float[Array, ""]:
        """Log density at x; coordinates that are NaN are marginalised."""
        return log_density(self.mean, self.cov, x)

    def sample(self, *, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "... x"]:
        """Vectors drawn from the belief."""
        white = jr.normal(key, (*shape, self.mean.size), self.mean.dtype)
        return jnp.broadcast_to(self.mean, white.shape) + white @ cholesky(self.cov).T

    def draw(self, *, key: PRNGKeyArray) -> tuple[Float[Array, " x"], None]:
        """A state, and no weights."""
        return self.sample(key=key), None


@compiled
def gaussian_log_probs(mean: Float[Array, "n y"], cov: Float[Array, "n y y"], y: Float[Array, "n y"]) -> Float[Array, " n"]:
    """Log density of each row under its own Gaussian; NaN is missing."""
    return jax.vmap(lambda m, c, row: Gaussian(m, c).log_prob(row))(mean, cov, y)


def require_input_size(mean: Array, channel: Channel) -> None:
    """Raise unless the channel takes as many inputs as the belief has coordinates."""
    if channel.slope.shape[1] != mean.size:
        raise ValueError(f"channel.slope must have {mean.size} columns to match the belief, got shape {channel.slope.shape}")


def _require_no_weights(channel: Channel) -> None:
    """Raise if the channel has a slope in weights that the belief does not carry."""
    if channel.weight_slope is not None:
        raise ValueError(
            "channel.weight_slope must be None here: a channel of global weights predicts a belief that carries them, "
            "see JointGaussian.independent(belief, network.weights), and cannot be an observation channel"
        )
