"""Epistemic and aleatoric parts of a forecast's variance, by the law of total variance over global weights."""

from functools import partial
from typing import Any, cast

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm._compilation import compiled, scan
from prodssm.data.series import Record, Values
from prodssm.methods.moments import Moments
from prodssm.methods.replicas import initial_replica_cov, output_replica_cov, propagate_replicas
from prodssm.models.filtering import Recursion
from prodssm.models.forecasting import Moves, forecast_from
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.network import Network


class VarianceParts(eqx.Module):
    """Parts of the variance of forecast observations, step by output; they add up to it."""

    epistemic: Float[Values, "steps y"]
    aleatoric: Float[Values, "steps y"]
    measurement: Float[Values, "steps y"]


def decompose(recursion: Recursion, record: Record, ahead: Moves) -> VarianceParts:
    """The parts of the variance of a forecast that follows a record.

    Point weights have no epistemic part. For global weights it is the covariance between replicas.
    """
    mode = recursion.model.weights
    if mode == "local":
        raise ValueError(
            "decompose cannot tell epistemic from aleatoric variance for weights='local': they are redrawn at every step "
            "and act as process noise. Use weights='global', or compare transition(x).var with the process noise"
        )
    if mode == "global" and not isinstance(recursion.method, Moments):
        raise ValueError(f"decompose needs method='moments', got {type(recursion.method).__name__}")
    functions = recursion.model.transition, recursion.model.emission
    if mode == "global" and not all(each is None or isinstance(each, Network) for each in functions):
        raise ValueError("decompose has no rule for known functions with weights='global'; use a Network")
    return forecast_from(_decompose, recursion, record, ahead)


@compiled
def _decompose(recursion: Recursion, belief: Any, times: Array, ahead: Moves) -> VarianceParts:
    model: StateSpaceModel = recursion.model
    method: Any = recursion.method  # Moments where there are replicas
    replicas, transition = belief.weights is not None, cast(Network, model.transition)

    def body(carry, now):
        belief, between = carry
        t, move = now
        _, following = recursion.move(belief, move.u, move.dt, t)
        if replicas:
            link = model.link(belief.mean, move.u, move.dt)
            _, _, between = propagate_replicas(method, transition, belief, between, move.u, link)
        output = recursion.emit(following, move.seen_u, t + 1)
        shared, emission = between, model.emission_at(move.seen_u)
        if emission is not None:
            # Only moment matching has a rule for replicas; without them the covariance between them stays zero.
            emission = emission.at_mean()
            shared = output_replica_cov(method, emission, following.state, between) if replicas else output.cov * 0.0
        epistemic = output.average(partial(_shared_var, model.likelihood, jnp.diag(shared)))
        noise = output.average(model.likelihood.conditional_var)
        total = jnp.diag(recursion.observation(following, move.seen_u, t + 1).cov)
        return (following, between), (epistemic, total - noise - epistemic, noise)

    start = initial_replica_cov(belief) if replicas else jnp.zeros_like(belief.cov)
    return VarianceParts(*scan(body, (belief, start), (times, ahead))[1])


def _shared_var(likelihood: Likelihood, shared: Array, output: Any) -> Array:
    """The variance of observations that these variances of outputs contribute."""
    return likelihood.shared_var(output, shared)
