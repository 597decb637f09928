"""What training maximises: the evidence of the data with the weights integrated out, and the paper's hyper-prior."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.inference import Finder, walk
from prodssm.layers import Linear
from prodssm.model import StateSpaceModel
from prodssm.network import Network
from prodssm.series import Frames


def log_hyper_prior(network: Network) -> Float[Array, ""]:
    r"""$\frac12 \sum_i (\log v_i - m_i^2 - v_i)$ over uncertain weights: N(0, 1) on means, Gamma(3/2, 1/2) on variances.

    It equals minus the divergence of the weights from N(0, 1), up to a constant.
    """
    return sum((_layer_prior(layer) for layer in network.linears if layer.uncertain), jnp.zeros(()))


def _layer_prior(layer: Linear) -> Array:
    total = jnp.zeros((), layer.weight.dtype)
    for mean, log_var in ((layer.weight, layer.weight_log_var), (layer.bias, layer.bias_log_var)):
        assert log_var is not None
        total = total + 0.5 * (log_var - mean**2 - jnp.exp(log_var)).sum()
    return total


def model_prior(model: StateSpaceModel) -> Float[Array, ""]:
    """The hyper-prior of every network of the model whose weights are random."""
    networks = [model.transition] if model.weights != "point" else []
    networks += [model.process_network] if model.process_network is not None else []
    return sum((log_hyper_prior(network) for network in networks), jnp.zeros(()))


def log_evidence(finder: Finder, frames: Frames) -> Float[Array, ""]:
    """Log density of the observations of one series after the first, each given those before it (the filter's)."""
    return walk(finder, frames)[1][2][1:].sum()


def log_posterior(
    model: StateSpaceModel,
    batch: Frames,
    *,
    method: str,
    options: dict[str, Any],
    prior_weight: Array | float,
    share: Array | float,
) -> Float[Array, ""]:
    """Type-II maximum a posteriori: evidence of the batch, scaled up to all data, plus the weighted hyper-prior.

    Args:
        model: The model.
        batch: Frames with a batch axis.
        method: How channels are found.
        options: For the method.
        prior_weight: Weight of the hyper-prior; 1 is the paper's.
        share: Share of all series that the batch is.
    """
    finder = Finder(model, options, method)
    evidence = jax.vmap(lambda frames: log_evidence(finder, frames))(batch).sum()
    return evidence / share + prior_weight * model_prior(model)
