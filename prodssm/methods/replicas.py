r"""Covariances between replicas: two trajectories that share their global weights and nothing else.

$Var_w E[y \mid w] = Cov[y, \tilde y]$ for replicas y and $\tilde y$, so the epistemic part of a variance is carried beside it
by the same recursions, without what each replica draws for itself.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.beliefs.channel import Channel, Link
from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.joint import JointGaussian
from prodssm.beliefs.linalg import sandwich
from prodssm.methods.moments import Moments
from prodssm.methods.moments_global import ActivationTrace, forward
from prodssm.methods.moments_local import activation_moments
from prodssm.networks.expansions import Expansion, is_certain
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network


def initial_replica_cov(belief: JointGaussian) -> Float[Array, "x x"]:
    """Covariance between the states of replicas that start from this belief: Var_w E[x | w]."""
    return belief.weights.solve(belief.cross) @ belief.cross.T


def propagate_replicas(
    method: Moments,
    network: Network,
    belief: JointGaussian,
    replica_cov: Float[Array, "x x"],
    control: Float[Array, " u"] | None,
    link: Link | None,
) -> tuple[Channel, JointGaussian, Float[Array, "x x"]]:
    """One transition: the channel, the predicted belief, and the covariance between the states of two replicas.

    Args:
        method: Moment matching; its order is that of the forecast, or the parts would not add up to its variance.
        network: The transition network.
        belief: The belief about state and weights, the same for both replicas.
        replica_cov: Covariance between their states before the transition.
        control: Known inputs that follow the state.
        link: What `dt` times the network is added to; `None` for f(x).
    """
    passed = forward(network, belief, control, method.order_for(belief))
    channel, predicted = passed.plain() if link is None else passed.beside(link)
    between, depth = replica_cov, 0
    for layer in passed.trace:
        if isinstance(layer, ActivationTrace):
            between = _activate(layer.expansion, layer.std, between)
        else:
            # As the covariance itself, with Cov[h, h~] in place of Cov[h] in the products of deviations.
            own = belief.weights.contract(depth, between)
            between = sandwich(layer.weight, between) + layer.shared + own + layer.products
            depth += 1
    if link is None:
        return channel, predicted, between
    # Cov[dt f, x~] for replicas: the network's slope acts on their covariance, the weights are shared.
    across = ((channel.slope - link.slope) @ replica_cov + channel.weight_slope @ belief.cross.T) @ link.slope.T
    return channel, predicted, sandwich(link.slope, replica_cov) + across + across.T + link.dt**2 * between


def output_replica_cov(
    method: Moments, network: Network, state: Gaussian, replica_cov: Float[Array, "x x"]
) -> Float[Array, "y y"]:
    """Covariance between the outputs of replicas behind a network with point weights, given that between their states."""
    mean, cov, between = state.mean, state.cov, replica_cov
    order = method.order_for(state)
    for layer in network.layers:
        if isinstance(layer, Linear):
            mean, cov, between = layer(mean), sandwich(layer.weight, cov), sandwich(layer.weight, between)
        else:
            var = jnp.diag(cov)
            found = layer.expand(mean, var, order)
            std = jnp.sqrt(jnp.where(is_certain(mean, var), 1.0, var))
            mean, cov, between = found.mean, activation_moments(found, std, cov, cov)[0], _activate(found, std, between)
    return between


def _activate(found: Expansion, std: Array, between: Array) -> Array:
    """The covariance between replicas behind an activation: the same series, without the remaining variance of each unit."""
    shared = Expansion(found.mean, found.slope, found.curved, jnp.zeros_like(found.rest))
    return activation_moments(shared, std, between, between)[0]
