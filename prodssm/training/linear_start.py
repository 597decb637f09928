"""The linear model of subspace identification as the initial model of a state-space model."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm._compilation import bucket, compiled, pad
from prodssm.beliefs.gaussian import Gaussian
from prodssm.data.series import Series
from prodssm.methods.moments import Moments
from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network
from prodssm.training.initialisation import scale_variances
from prodssm.training.subspace import LinearModel, identify

SMALLEST_NOISE = 1e-5  # in standardised units
NOISE_SHARE = 0.5  # of the linear model's noise that the weights, the process noise and the measurement noise start with
POINTS = 2000  # at most, at which the noise of a network is measured


def linear_start(model: StateSpaceModel, series: Sequence[Series]) -> StateSpaceModel:
    """The model with a linear model's transition, emission and noise; as it is if it or the series have no room for one.

    Args:
        model: With a linear emission. Its linear part becomes the linear model, and the network that it is
            added to starts at a constant; without hidden layers the network itself becomes the linear model.
        series: Standardised.
    """
    if model.linear is None and len(model.transition.linears) > 1:
        return model
    found = identify(series, model.x_size, feedthrough=model.feedthrough)
    return model if found is None else start_from(model, found)


def start_from(model: StateSpaceModel, found: LinearModel) -> StateSpaceModel:
    """The model with the transition, emission and noise of a linear model."""
    noise = np.maximum(np.diag(found.gain @ found.innovation_cov @ found.gain.T), SMALLEST_NOISE)
    slope, size = found.slope, model.x_size
    if not model.residual:
        slope = slope + np.eye(size, slope.shape[1])
    deep = model.linear is not None
    transition = _with_last_layer(model.transition, 0 * slope if deep else slope, found.drift)
    emission = _with_last_layer(model.emission, found.emission if model.feedthrough else found.emission[:, :size], found.offset)
    changes: dict[str, Any] = {
        "transition": _bound_output_noise(transition, found.points, NOISE_SHARE * noise),
        "emission": emission,
        "likelihood": model.likelihood.with_initial_variance(NOISE_SHARE * np.diag(found.innovation_cov)),
    }
    if deep:
        changes["linear"] = jnp.asarray(slope, model.dtype)
    if model.log_process_noise is not None:
        changes["log_process_noise"] = jnp.asarray(np.log(NOISE_SHARE * noise), model.dtype)
    return eqx.tree_at(lambda m: [getattr(m, name) for name in changes], model, list(changes.values()))


def _with_last_layer(network: Any, slope: Float[np.ndarray, "o i"], bias: Float[np.ndarray, " o"]) -> Network:
    """The network with these mean weights of its last layer; with hidden layers its slope is zero."""
    *inner, last = network.linears
    weight = np.zeros(last.weight.shape) if inner else slope
    means = jnp.asarray(weight, last.weight.dtype), jnp.asarray(bias, last.weight.dtype)
    return network.with_linears([*inner, Linear(*means, last.weight_log_var, last.bias_log_var)])


def _bound_output_noise(network: Network, inputs: Float[np.ndarray, "n i"], noise: Float[np.ndarray, " o"]) -> Network:
    """The network with weight variances so small that no output has more than this variance on average."""
    if not network.uncertain:
        return network
    # A sample of the points: all of a long series would exceed memory.
    points = inputs[:: max(1, len(inputs) // POINTS)].astype(network.linears[0].weight.dtype)
    variances = np.asarray(_output_noise(network, pad(points, bucket(len(points)))), float)[: len(points)]
    return scale_variances(network, min(1.0, 1 / float((variances.mean(axis=0) / noise).max())))


@compiled
def _output_noise(network: Network, points: Float[Array, "n i"]) -> Float[Array, "n o"]:
    """Variances of the outputs of a network at certain inputs."""
    return jax.vmap(lambda at: jnp.diag(Moments().channel(network, Gaussian.certain(at)).noise))(points)
