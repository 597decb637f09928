"""Beliefs, and the affine Gaussian channels that carry them: linear-Gaussian algebra that has never heard of networks.

Around a belief every function is a channel, `f(x) = mean + slope (x - E[x]) + N(0, noise)`. Prediction, Bayes' rule, smoothing,
composition and residual links need nothing else.
"""

import math
from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.checks import as_array, require_shape, require_variances, values_of
from prodssm.linalg import (
    cholesky,
    rounding_of,
    safe_sqrt,
    sandwich,
    settle,
    solve_lower,
    solve_psd,
    solve_upper,
    symmetrise,
)


class Channel(eqx.Module):
    r"""What a function does to one belief: $f(x) = mean + slope\,(x - E[x]) + e$ with $e \sim N(0, noise)$.

    Under a joint belief about state and weights there is also a slope with respect to the weights.

    Attributes:
        mean: $E[f(x)]$.
        slope: The expected Jacobian with respect to the state, output by input.
        noise: Covariance of what no affine function of the carried vector explains; positive semi-definite.
        cov: $Cov[f(x)]$ under the belief that the channel was built around, where the rule has it anyway. It equals
            `slope @ cov_x @ slope.T + noise` when no weights are carried.
        weight_slope: The expected Jacobian with respect to carried weights, output by weight; `None` if none are carried.
        cross: $Cov[f(x), w]$ with carried weights, under the belief that the channel was built around, as for `cov`.
        shared: `weight_slope @ cross_xw.T`, what output and state have in common through the weights, as for `cov`.
        spread: `weight_slope @ cov_w @ weight_slope.T`, what the weights alone add to the output's covariance, as for `cov`;
            `None` where the rule does not have it.
        factors: The weight slope unmultiplied: per layer how the output moves with the layer's, and the mean of its input.
    """

    mean: Float[Array, " y"] = eqx.field(converter=partial(as_array, "mean", ndim=1))
    slope: Float[Array, "y x"] = eqx.field(converter=partial(as_array, "slope", ndim=2))
    noise: Float[Array, "y y"] = eqx.field(converter=partial(as_array, "noise", ndim=2))
    cov: Float[Array, "y y"] | None = None
    weight_slope: Float[Array, "y w"] | None = None
    cross: Any = None
    shared: Float[Array, "y x"] | None = None
    spread: Float[Array, "y y"] | None = None
    factors: tuple[tuple[Float[Array, "y _"], Float[Array, " _"]], ...] | None = None

    def __check_init__(self):
        n = self.mean.size
        if self.slope.shape[0] != n:
            raise ValueError(f"slope must have shape ({n}, inputs) to match mean, got {self.slope.shape}")
        if self.noise.shape != (n, n):
            raise ValueError(f"noise must have shape {(n, n)} to match mean, got {self.noise.shape}")

    def plus(self, variances: Float[Array, " y"]) -> "Channel":
        """The same function with independent noise of these variances added to its output."""
        variances = as_array("variances", variances, ndim=1).astype(self.mean.dtype)
        require_shape("variances", variances, self.mean.shape)
        require_variances("variances", variances)
        extra = jnp.diag(variances)
        cov = None if self.cov is None else self.cov + extra
        return replace(self, noise=self.noise + extra, cov=cov)

    def residual(self, mean: Float[Array, " y"], dt: Float[Array, ""] | float = 1.0) -> "Channel":
        """The channel of `x + dt f(x)` around a state of this mean: the link only adds the identity to the slope."""
        n = self.mean.size
        if self.slope.shape != (n, n):
            raise ValueError(f"a residual link needs as many outputs as states, got a slope of shape {self.slope.shape}")
        require_shape("mean", mean, (n,))
        slope = jnp.eye(n, dtype=self.slope.dtype) + dt * self.slope
        weight_slope, shared = (None if part is None else dt * part for part in (self.weight_slope, self.shared))
        spread = None if self.spread is None else dt**2 * self.spread
        factors = None if self.factors is None else tuple((dt * behind, inputs) for behind, inputs in self.factors)
        return Channel(mean + dt * self.mean, slope, dt**2 * self.noise, None, weight_slope, None, shared, spread, factors)


def _require_fit(mean: Array, channel: Channel) -> None:
    """A channel must take as many inputs as the belief has coordinates."""
    if channel.slope.shape[1] != mean.size:
        raise ValueError(f"channel.slope must have {mean.size} columns to match the belief, got shape {channel.slope.shape}")


def _require_no_weights(channel: Channel) -> None:
    """A slope in the weights means nothing to a belief that does not carry them."""
    if channel.weight_slope is not None:
        raise ValueError(
            "channel.weight_slope must be None here: a channel of global weights needs a belief that carries them to predict "
            "with, see JointGaussian.independent(belief, network.weights), and cannot be observed through"
        )


def compose(first: Channel, then: Channel) -> Channel:
    """The channel of `then(first(x))`, where `then` was built around what `first` makes of the belief."""
    noise = sandwich(then.slope, first.noise) + then.noise
    weight_slope = first.weight_slope
    if weight_slope is not None:
        weight_slope = then.slope @ weight_slope
    if then.weight_slope is not None:
        weight_slope = then.weight_slope if weight_slope is None else weight_slope + then.weight_slope
    return Channel(then.mean, then.slope @ first.slope, noise, then.cov, weight_slope)


class Gaussian(eqx.Module):
    """A normal belief about one vector: a best guess and how unsure we are of it.

    Example:
        >>> belief = Gaussian([0.0, 1.0], [[1.0, 0.5], [0.5, 2.0]])
        >>> channel = Channel(jnp.array([1.0]), jnp.array([[1.0, 1.0]]), jnp.array([[0.5]]))
        >>> belief.predict(channel).cov.item()
        4.5
    """

    mean: Float[Array, " x"] = eqx.field(converter=partial(as_array, "mean", ndim=1))
    cov: Float[Array, "x x"] = eqx.field(converter=partial(as_array, "cov", ndim=2))

    def __check_init__(self):
        wanted = (self.mean.size, self.mean.size)
        if self.cov.shape != wanted:
            raise ValueError(f"cov must have shape {wanted} to match mean, got {self.cov.shape}")
        if self.cov.dtype != self.mean.dtype:
            raise ValueError(f"cov must have the dtype of mean, {self.mean.dtype}, got {self.cov.dtype}")

    @classmethod
    def certain(cls, mean: Any) -> "Gaussian":
        """The belief of someone who knows the vector exactly: zero covariance."""
        mean = as_array("mean", mean, ndim=1)
        return cls(mean, jnp.zeros((mean.size, mean.size), mean.dtype))

    @property
    def state(self) -> "Gaussian":
        """The belief about the state alone, which here is all there is."""
        return self

    @property
    def var(self) -> Float[Array, " x"]:
        """Variance of each coordinate."""
        return jnp.diag(self.cov)

    @property
    def std(self) -> Float[Array, " x"]:
        """Standard deviation of each coordinate."""
        return safe_sqrt(self.var)

    def advance(self, channel: Channel) -> "Gaussian":
        """As `predict`, for a channel that was built around this very belief: its covariance is known already."""
        return self.predict(channel) if channel.cov is None else Gaussian(channel.mean, channel.cov)

    def predict(self, channel: Channel) -> "Gaussian":
        """The belief about what comes out of the channel."""
        _require_fit(self.mean, channel)
        _require_no_weights(channel)
        return Gaussian(channel.mean, symmetrise(sandwich(channel.slope, self.cov) + channel.noise))

    def condition(self, channel: Channel, y: Float[Array, " y"]) -> tuple["Gaussian", Float[Array, ""]]:
        """The belief after seeing y through the channel, and the log evidence of y.

        Coordinates of y that are NaN were not observed: they change nothing and cost no evidence.
        """
        y = as_array("y", y, ndim=1).astype(self.mean.dtype)
        seen = observe(self.predict(channel), channel, y)
        gain = seen.gain(seen.slope @ self.cov)
        keep = jnp.eye(self.mean.size, dtype=self.cov.dtype) - gain @ seen.slope
        # Joseph's form: a sum of two positive semi-definite terms stays so in floating point.
        cov = sandwich(keep, self.cov) + sandwich(gain, seen.noise)
        return Gaussian(self.mean + gain @ seen.innovation, symmetrise(cov)), seen.log_evidence

    def smooth(self, channel: Channel, following: "Gaussian") -> "Gaussian":
        """This belief after learning what the future says about the state that the channel leads to."""
        predicted = self.predict(channel)
        gain = solve_psd(predicted.cov, channel.slope @ self.cov).T
        keep = jnp.eye(self.mean.size, dtype=self.cov.dtype) - gain @ channel.slope
        cov = sandwich(keep, self.cov) + sandwich(gain, channel.noise + following.cov)
        return Gaussian(self.mean + gain @ (following.mean - predicted.mean), symmetrise(cov))

    def log_prob(self, y: Float[Array, " x"]) -> Float[Array, ""]:
        """Log density at y; coordinates that are NaN are left out."""
        n = self.mean.size
        nothing = jnp.zeros((n, n), self.cov.dtype)
        return observe(self, Channel(self.mean, nothing, nothing), y).log_evidence

    def sample(self, *, key: PRNGKeyArray, shape: tuple[int, ...] = ()) -> Float[Array, "... x"]:
        """Vectors drawn from the belief."""
        white = jr.normal(key, (*shape, self.mean.size), self.mean.dtype)
        return jnp.broadcast_to(self.mean, white.shape) + white @ cholesky(self.cov).T


class Observation(eqx.Module):
    """What a partly observed vector tells through a channel: missing coordinates carry neither slope nor innovation."""

    slope: Float[Array, "y x"]
    noise: Float[Array, "y y"]
    innovation: Float[Array, " y"]
    root: Float[Array, "y y"]
    log_evidence: Float[Array, ""]

    def gain(self, cov_yc: Float[Array, "y c"]) -> Float[Array, "c y"]:
        """How a vector with this covariance with y moves per unit of innovation."""
        return solve_upper(self.root, solve_lower(self.root, cov_yc)).T


def observe(expected: Gaussian, channel: Channel, y: Float[Array, " y"]) -> Observation:
    """Compare y with what was expected of it through the channel."""
    require_shape("y", y, expected.mean.shape)
    values = values_of(y)
    if values is not None and np.isinf(values).any():
        raise ValueError(f"y must be finite, or NaN where nothing was observed; got {values}")
    seen = ~jnp.isnan(y)
    both = seen[:, None] & seen[None, :]
    innovation = jnp.where(seen, jnp.where(seen, y, 0.0) - expected.mean, 0.0)
    root = cholesky(jnp.where(both, expected.cov, jnp.eye(y.size, dtype=expected.cov.dtype)), definite=True)
    white = solve_lower(root, innovation[:, None])
    log_scale = jnp.log(jnp.diag(root)).sum() + 0.5 * math.log(2 * math.pi) * seen.sum(dtype=root.dtype)
    return Observation(
        slope=jnp.where(seen[:, None], channel.slope, 0.0),
        noise=jnp.where(both, channel.noise, 0.0),
        innovation=innovation,
        root=root,
        log_evidence=-0.5 * (white**2).sum() - log_scale,
    )


class JointGaussian(eqx.Module):
    """A belief about a state together with the weights that drive it, which are drawn once and learned on the way.

    Attributes:
        state: The belief about the state.
        cross: Covariance of state and weights, state by weight; or in a form of its own that the weights understand.
        weights: The belief about the weights; it knows its own structure and nobody asks (see `prodssm.weights`).
    """

    state: Gaussian
    cross: Any
    weights: Any

    def __check_init__(self):
        if not isinstance(self.state, Gaussian):
            raise TypeError(f"state must be a Gaussian, got {type(self.state).__name__}")
        if not hasattr(self.weights, "times"):
            raise TypeError(f"weights must be a belief about weights, got {type(self.weights).__name__}")
        wanted = (self.state.mean.size, self.weights.mean.size)
        if self.cross.shape != wanted:
            raise ValueError(f"cross must have shape {wanted} (state, weights), got {self.cross.shape}")

    @classmethod
    def independent(cls, state: Gaussian, weights: Any) -> "JointGaussian":
        """State and weights that have not met yet."""
        if not hasattr(weights, "times"):
            raise TypeError(f"weights must be a belief about weights such as network.weights, got {type(weights).__name__}")
        return cls(state, jnp.zeros((state.mean.size, weights.mean.size), state.mean.dtype), weights)

    @property
    def mean(self) -> Float[Array, " x"]:
        """Mean of the state."""
        return self.state.mean

    @property
    def cov(self) -> Float[Array, "x x"]:
        """Covariance of the state."""
        return self.state.cov

    @property
    def std(self) -> Float[Array, " x"]:
        """Standard deviation of each coordinate of the state."""
        return self.state.std

    def predict(self, channel: Channel) -> "JointGaussian":
        """The belief about what comes out of the channel, still joint with the same weights."""
        return self.advance(replace(channel, cov=None, cross=None, shared=None, spread=None))

    def advance(self, channel: Channel) -> "JointGaussian":
        """The same for a channel that was built around this very belief: what it knows already is not worked out again."""
        _require_fit(self.mean, channel)
        if channel.cov is not None and channel.cross is not None:
            return JointGaussian(Gaussian(channel.mean, channel.cov), channel.cross, self.weights)
        slope, weight_slope = channel.slope, channel.weight_slope
        cov = sandwich(slope, self.cov) + channel.noise
        if weight_slope is not None:
            both = slope @ (self.cross @ weight_slope.T if channel.shared is None else channel.shared.T)
            spread = self.weights.times(weight_slope) @ weight_slope.T if channel.spread is None else channel.spread
            cov = cov + both + both.T + spread
        cross = self.weights.follow(self.cross, slope, weight_slope, channel.factors)
        return JointGaussian(Gaussian(channel.mean, symmetrise(cov)), cross, self.weights)

    def condition(self, channel: Channel, y: Float[Array, " y"]) -> tuple["JointGaussian", Float[Array, ""]]:
        """The belief after seeing y through a channel of the state, and the log evidence of y.

        The weights learn only through the state: each observation takes from their covariance a matrix whose rank is at
        most the smaller of the two sizes.
        """
        state, log_evidence = self.state.condition(channel, y)
        seen = observe(self.state.predict(channel), channel, as_array("y", y, ndim=1).astype(self.mean.dtype))
        known = seen.slope @ self.cross
        if seen.innovation.size <= self.mean.size:
            removed = solve_lower(seen.root, known).T
        else:
            white_slope = solve_lower(seen.root, seen.slope)
            removed = self.cross.T @ cholesky(white_slope.T @ white_slope)
        told = known.T @ seen.gain(seen.innovation[:, None])[0]
        # An observation without noise leaves a variance of squared rounding, which no covariance of rounding would agree with.
        left = state.var > rounding_of(state.cov) ** 2 * self.state.var
        cross = jnp.where(left[:, None], self.cross - seen.gain(seen.slope @ self.cov) @ known, 0.0)
        cov = jnp.where(left[:, None] & left[None, :], state.cov, 0.0)
        # Settled, or all that meets the weights would work these out anew for every one of them.
        state, cross = Gaussian(settle(state.mean), cov), settle(cross)
        return JointGaussian(state, cross, self.weights.learn(told, removed)), log_evidence

    def smooth(self, channel: Channel, following: "JointGaussian") -> "JointGaussian":
        """This belief after learning what the future says about the next state and about the weights.

        Weights do not move, so theirs is the future's belief; only the state has a gain of its own (MATH 6.5).
        """
        if channel.weight_slope is None:
            raise ValueError("channel.weight_slope must be given: smoothing a joint belief needs the transition's channel")
        explained = self.weights.solve(self.cross)
        own = self.cov - explained @ self.cross.T
        spread = sandwich(channel.slope, own) + channel.noise
        gain = solve_psd(spread, channel.slope @ own).T
        weight_gain = explained - gain @ (channel.slope @ explained + channel.weight_slope)
        surprise = following.mean - channel.mean
        shift = following.weights.mean - self.weights.mean
        cross = gain @ following.cross + following.weights.times(weight_gain)
        keep = jnp.eye(self.mean.size, dtype=self.cov.dtype) - gain @ channel.slope
        shared = gain @ following.cross @ weight_gain.T
        cov = sandwich(keep, own) + sandwich(gain, channel.noise + following.cov) + shared + shared.T
        cov = cov + following.weights.times(weight_gain) @ weight_gain.T
        state = Gaussian(self.mean + gain @ surprise + weight_gain @ shift, symmetrise(cov))
        return JointGaussian(state, cross, following.weights)

    def sample(self, *, key: PRNGKeyArray) -> tuple[Float[Array, " x"], Float[Array, " w"]]:
        """A state and weights drawn together; without the matrix of both where the weight belief can do without its own."""
        if not hasattr(self.weights, "sample"):
            whole = self.dense().sample(key=key)
            return whole[: self.mean.size], whole[self.mean.size :]
        state_key, weight_key = jr.split(key)
        weights = self.weights.sample(key=weight_key)
        explained = self.weights.solve(self.cross)
        own = Gaussian(jnp.zeros_like(self.mean), symmetrise(self.cov - explained @ self.cross.T))
        return self.mean + explained @ (weights - self.weights.mean) + own.sample(key=state_key), weights

    def dense(self) -> Gaussian:
        """The same belief about the stacked vector (state, weights), with every covariance written out."""
        mean = jnp.concatenate([self.mean, self.weights.mean])
        return Gaussian(mean, jnp.block([[self.cov, self.cross], [self.cross.T, self.weights.cov()]]))
