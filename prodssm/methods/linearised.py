"""Linearisation, as in an extended Kalman filter: value and Jacobian at the mean, blind to the spread of the belief."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.network import Network


def linearised(network: Network, belief: Gaussian | JointGaussian, control: Float[Array, " u"] | None = None) -> Channel:
    """The channel of a network by its first-order expansion at the mean (MATH 6.8).

    Args:
        network: The network; its weights are redrawn at every step if they are uncertain and not part of the belief.
        belief: What is believed about its input, joint with its weights if these are drawn once.
        control: Known inputs that follow the state.

    Returns:
        The channel. Uncertain weights act through their own Jacobian.
    """
    joint = isinstance(belief, JointGaussian)
    weights = belief.weights if joint else network.weights

    def output(x: Array, w: Array) -> Array:
        return network.with_weights(w).given(control)(x)

    mean = output(belief.mean, weights.mean)
    slope = jax.jacobian(output, argnums=0)(belief.mean, weights.mean)
    noise = jnp.zeros((mean.size, mean.size), mean.dtype)
    if not joint and not network.uncertain:
        return Channel(mean, slope, noise)
    weight_slope = jax.jacrev(output, argnums=1)(belief.mean, weights.mean)
    if joint:
        return Channel(mean, slope, noise, weight_slope=weight_slope)
    return Channel(mean, slope, weights.times(weight_slope) @ weight_slope.T)
