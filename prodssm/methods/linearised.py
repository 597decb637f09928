"""Linearisation, as in an extended Kalman filter: value and Jacobian at the mean, blind to the covariance of the belief."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief
from prodssm.methods.base import Method
from prodssm.networks.base import Function


class Linearised(Method):
    """First-order Taylor expansion at the mean; uncertain weights act through their own Jacobian.

    Example:
        >>> ps.channel(net, belief, method=Linearised()).mean.item()  # |E[x]|: net is |x|, belief is N(0, 1)
        0.0
    """

    def channel(self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None) -> Channel:
        """The channel by first-order expansion."""
        carried = belief.weights is not None
        weights = belief.weights if carried else network.weights

        def output(x: Array, w: Array) -> Array:
            return network.with_weights(w).given(control)(x)

        mean = output(belief.mean, weights.mean)
        slope = jax.jacobian(output, argnums=0)(belief.mean, weights.mean)
        noise = jnp.zeros((mean.size, mean.size), mean.dtype)
        if not carried and not network.uncertain:
            return Channel(mean, slope, noise)
        weight_slope = jax.jacrev(output, argnums=1)(belief.mean, weights.mean)
        if carried:
            return Channel(mean, slope, noise, weight_slope)
        return Channel(mean, slope, weights.times(weight_slope) @ weight_slope.T)
