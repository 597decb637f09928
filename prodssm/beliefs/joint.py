"""The joint Gaussian belief about a state and the global weights that drive it."""

from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, Gaussian, require_input_size
from prodssm.beliefs.linalg import fusion_barrier, rounding_error, sandwich, solve_psd, symmetrise
from prodssm.beliefs.observation import Observation
from prodssm.beliefs.weights.base import WeightBelief


class JointGaussian(Belief):
    """A Gaussian belief about a state and global weights, which are drawn once and learned while filtering.

    Attributes:
        state: The marginal belief about the state.
        cross: Cross-covariance of state and weights, state by weight; or a structured form that the weight belief understands.
        weights: The marginal belief about the weights, in its own covariance structure.

    Example:
        >>> net = ps.Network.mlp((1, 3, 1), key=jr.key(0))
        >>> joint = JointGaussian.independent(belief, net.weights)
        >>> joint.predict(ps.channel(net, joint, weights="global")).cross.shape
        (1, 10)
    """

    state: Gaussian
    cross: Any
    weights: Any

    if TYPE_CHECKING:  # the abstract variables of Belief are no constructor arguments

        def __init__(self, state: Gaussian, cross: Any, weights: WeightBelief): ...

    def __check_init__(self):
        if not isinstance(self.state, Gaussian):
            raise TypeError(f"state must be a Gaussian, got {type(self.state).__name__}")
        _require_weights(self.weights)
        wanted = (self.state.mean.size, self.weights.mean.size)
        if self.cross.shape != wanted:
            raise ValueError(f"cross must have shape {wanted} (state, weights), got {self.cross.shape}")

    @classmethod
    def independent(cls, state: Gaussian, weights: WeightBelief) -> "JointGaussian":
        """State and weights with zero cross-covariance, as before the first transition."""
        _require_weights(weights)
        return cls(state, jnp.zeros((state.mean.size, weights.mean.size), state.mean.dtype), weights)

    @property
    def mean(self) -> Float[Array, " x"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Mean of the state."""
        return self.state.mean

    @property
    def cov(self) -> Float[Array, "x x"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Covariance of the state."""
        return self.state.cov

    def predict(self, channel: Channel) -> "JointGaussian":
        """The belief about the output of the channel, joint with the same weights."""
        require_input_size(self.mean, channel)
        slope, weight_slope = channel.slope, channel.weight_slope
        cov, cross = sandwich(slope, self.cov) + channel.noise, slope @ self.cross
        if weight_slope is not None:
            mixed = cross @ weight_slope.T
            from_weights = self.weights.times(weight_slope)
            cov = cov + mixed + mixed.T + from_weights @ weight_slope.T
            cross = cross + from_weights
        return JointGaussian(Gaussian(channel.mean, symmetrise(cov)), cross, self.weights)

    def plus(self, variances: Float[Array, " x"]) -> "JointGaussian":
        """The belief about the state plus independent noise of these variances; the weights are as before."""
        return JointGaussian(self.state.plus(variances), self.cross, self.weights)

    def condition(
        self, channel: Channel, y: Float[Array, " y"], variance: Float[Array, " y"] | None = None
    ) -> tuple["JointGaussian", Float[Array, ""]]:
        """The posterior given y through a channel of the state, and the log evidence of y.

        The weights are observed through the state only: each observation downdates their covariance by a matrix whose rank is
        at most the smaller of the two sizes.
        """
        seen = self.state.observe(channel, y, variance)
        return self._after(seen), seen.log_evidence

    def revise(self, channel: Channel, marginal: Gaussian) -> "JointGaussian":
        """The belief after that about the output of a channel of the state has become another one, by Jeffrey's rule.

        What an outlier adds to the variance of the state is independent of the weights, whose covariance never grows.
        """
        return self._after(self.state.revision(channel, marginal))

    def _after(self, seen: Observation) -> "JointGaussian":
        downdate = self.cross.T @ seen.factor
        # After a noise-free observation the state's variance is squared rounding error; a cross-covariance of plain rounding
        # error beside it would make the joint covariance indefinite.
        random = jnp.diag(seen.cov) > rounding_error(seen.cov) ** 2 * self.state.var
        cross = jnp.where(random[:, None], self.cross - (self.cov @ seen.factor) @ downdate.T, 0.0)
        cov = jnp.where(random[:, None] & random[None, :], seen.cov, 0.0)
        weights = self.weights.downdate(self.cross.T @ seen.innovation, downdate)
        # Fusion barriers, or XLA would recompute both for every weight that they meet.
        return JointGaussian(Gaussian(fusion_barrier(seen.mean), cov), fusion_barrier(cross), weights)

    def smooth(self, channel: Channel, following: "JointGaussian") -> "JointGaussian":
        """The Rauch-Tung-Striebel step on (state, weights).

        Weights are static, so their smoothed belief is that of the next step; only the state rows have a gain.
        """
        own, gain, weight_gain = self._backward_gains(channel)
        innovation = following.mean - channel.mean
        shift = following.weights.mean - self.weights.mean
        cross = gain @ following.cross + following.weights.times(weight_gain)
        keep = jnp.eye(self.mean.size, dtype=self.cov.dtype) - gain @ channel.slope
        mixed = gain @ following.cross @ weight_gain.T
        cov = sandwich(keep, own) + sandwich(gain, channel.noise + following.cov) + mixed + mixed.T
        cov = cov + following.weights.times(weight_gain) @ weight_gain.T
        state = Gaussian(self.mean + gain @ innovation + weight_gain @ shift, symmetrise(cov))
        return JointGaussian(state, cross, following.weights)

    def _backward_gains(self, channel: Channel) -> tuple[Array, Array, Array]:
        """Cov[state | weights], and the gains of the next state and of the weights in the state."""
        if channel.weight_slope is None:
            raise ValueError("channel.weight_slope must be given: smoothing a joint belief needs the transition's channel")
        regression = self.weights.solve(self.cross)  # of the state on the weights
        own = self.cov - regression @ self.cross.T
        innovation_cov = sandwich(channel.slope, own) + channel.noise
        gain = solve_psd(innovation_cov, channel.slope @ own).T
        return own, gain, regression - gain @ (channel.slope @ regression + channel.weight_slope)

    def draw_before(
        self, channel: Channel, following: Float[Array, " x"], weights: Float[Array, " w"] | None, *, key: PRNGKeyArray
    ) -> Float[Array, " x"]:
        """A state given the next one and the weights."""
        own, gain, weight_gain = self._backward_gains(channel)
        keep = jnp.eye(self.mean.size, dtype=self.cov.dtype) - gain @ channel.slope
        shift = gain @ (following - channel.mean) + weight_gain @ (weights - self.weights.mean)
        cov = sandwich(keep, own) + sandwich(gain, channel.noise)
        return Gaussian(self.mean + shift, symmetrise(cov)).sample(key=key)

    def draw(self, *, key: PRNGKeyArray) -> tuple[Float[Array, " x"], Float[Array, " w"]]:
        """A state and weights drawn jointly: the weights from their marginal, the state given them."""
        state_key, weight_key = jr.split(key)
        weights = self.weights.sample(key=weight_key)
        regression = self.weights.solve(self.cross)
        own = Gaussian(jnp.zeros_like(self.mean), symmetrise(self.cov - regression @ self.cross.T))
        return self.mean + regression @ (weights - self.weights.mean) + own.sample(key=state_key), weights

    def dense(self) -> Gaussian:
        """The same belief about the stacked vector (state, weights), with every covariance written out."""
        mean = jnp.concatenate([self.mean, self.weights.mean])
        return Gaussian(mean, jnp.block([[self.cov, self.cross], [self.cross.T, self.weights.cov()]]))


def _require_weights(weights: Any) -> None:
    if not isinstance(weights, WeightBelief):
        raise TypeError(f"weights must be a belief about weights such as network.weights, got {type(weights).__name__}")
