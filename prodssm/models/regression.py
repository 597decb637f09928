"""Regression with deep stochastic layers: a row of inputs is a certain state; after some transitions it is emitted as y.

No filter is needed, because nothing is observed on the way. Written for one row; `jax.vmap` at the edge.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import compiled, scan
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.joint import JointGaussian
from prodssm.beliefs.linalg import symmetrise
from prodssm.beliefs.weights.cross import StepwiseCross
from prodssm.methods.base import Method
from prodssm.methods.moments import Moments
from prodssm.methods.sampled import Sampled
from prodssm.models.state_space import StateSpaceModel

ROWS_PER_CHUNK = 128  # rows that are evaluated at once outside of training
CARRIED_ROWS_PER_CHUNK = 32  # rows with carried weights that are evaluated at once: they need more memory
UNROLLED_STEPS = 8  # steps with carried weights up to which the loop is unrolled


class LayerStack(eqx.Module):
    """How a row becomes a belief about its target.

    Attributes:
        steps: Number of transitions.
        method: How channels are found; `Sampled` propagates particles along whole paths instead.
    """

    steps: int = eqx.field(static=True)
    method: Method


def output_belief(
    model: StateSpaceModel, stack: LayerStack, x: Float[Array, " x"], *, key: PRNGKeyArray, weights_key: PRNGKeyArray
) -> Gaussian:
    """Belief about the emission's output for one row, without measurement noise.

    Args:
        model: Its initial belief is not used: the row takes its place.
        stack: Number of transitions and method.
        x: Inputs of the row.
        key: Randomness of this row; only particles use it.
        weights_key: Randomness of global weights, which rows may share.
    """
    if isinstance(stack.method, Sampled):
        return _by_particles(model, stack.steps, x, stack.method.samples, key=key, weights_key=weights_key)
    return _by_channels(model, stack, x)


def _by_channels(model: StateSpaceModel, stack: LayerStack, x: Float[Array, " x"]) -> Gaussian:
    @jax.checkpoint  # a gradient stores the beliefs between steps only
    def moved(belief):
        return model.move(stack.method, belief, None)[1]

    last: Belief = Gaussian.certain(x)
    if model.weights == "global" and isinstance(stack.method, Moments) and stack.steps <= UNROLLED_STEPS:
        # Without observations the weights stay independent and their cross-covariance with the state is a sum that grows with
        # every step: a scan would have to carry it at full length from the start. Only moment matching works with the sum.
        weights = model.transition.weights
        last = JointGaussian(last, StepwiseCross.zero(x.size, weights), weights)
        for _ in range(stack.steps):
            last = moved(last)
    else:
        last = JointGaussian.independent(last, model.transition.weights) if model.weights == "global" else last
        last = scan(lambda belief, _: (moved(belief), None), last, jnp.arange(stack.steps))[0]
    return model.emit(stack.method, last.state)[1]


def _by_particles(
    model: StateSpaceModel,
    steps: int,
    x: Float[Array, " x"],
    samples: int,
    *,
    key: PRNGKeyArray,
    weights_key: PRNGKeyArray,
) -> Gaussian:
    """The Gaussian with the moments of the ends of simulated paths."""

    def path(row_key: PRNGKeyArray, weight_key: PRNGKeyArray) -> Float[Array, " y"]:
        drawn = model.transition.sample(weight_key) if model.weights == "global" else model.transition

        def move(state, step_key):
            f_key, l_key, noise_key = jr.split(step_key, 3)
            change = drawn.sample_output(state, key=f_key) if model.weights == "local" else drawn.at_mean()(state)
            var = model.sample_process_variances(state, key=l_key)
            return state + change + jnp.sqrt(var) * jr.normal(noise_key, state.shape, state.dtype), None

        return model.output(scan(move, x, jr.split(row_key, steps))[0])

    ends = jax.vmap(path)(jr.split(key, samples), jr.split(weights_key, samples))
    mean = ends.mean(axis=0)
    centred = ends - mean[None, :]
    return Gaussian(mean, symmetrise(centred.T @ centred / max(samples - 1, 1)))


def row_log_probs(
    model: StateSpaceModel, stack: LayerStack, x: Float[Array, "n x"], y: Float[Array, "n y"], *, key: PRNGKeyArray
) -> Float[Array, " n"]:
    """Log density of the target of each row. Rows draw their own particles, but share global weights."""
    rows_key, weights_key = jr.split(key)

    def one(x, y, row_key):
        return model.likelihood.log_prob(output_belief(model, stack, x, key=row_key, weights_key=weights_key), y)

    return _over_rows(model, stack, one, x, y, jr.split(rows_key, x.shape[0]))


@compiled
def predict_rows(
    model: StateSpaceModel, stack: LayerStack, x: Float[Array, "n x"], key: PRNGKeyArray
) -> tuple[Float[Array, "n y"], Float[Array, "n y y"]]:
    """Means and covariances of the targets. All rows see the same particles, so that none depends on its neighbours."""
    row_key, weights_key = jr.split(key)

    def one(row):
        return model.likelihood.predict(output_belief(model, stack, row, key=row_key, weights_key=weights_key))

    found = _over_rows(model, stack, one, x)
    return found.mean, found.cov


def _over_rows(model: StateSpaceModel, stack: LayerStack, one: Callable[..., Any], *rows: Any) -> Any:
    """`one` for each row, vectorised over as many rows as memory suggests."""
    if model.weights == "global" and not isinstance(stack.method, Sampled):
        return jax.lax.map(lambda row: one(*row), rows, batch_size=CARRIED_ROWS_PER_CHUNK)
    return jax.vmap(one)(*rows)


def in_chunks(function: Callable[..., Any], *columns: np.ndarray) -> Any:
    """A function of rows in chunks of equal length, so that another number of rows triggers no recompilation."""
    count, dtype = len(columns[0]), columns[-1].dtype
    room = -count % ROWS_PER_CHUNK
    full = [np.pad(each.astype(dtype), ((0, room), *((0, 0),) * (each.ndim - 1)), mode="edge") for each in columns]
    starts = range(0, count, ROWS_PER_CHUNK)
    found = [function(*(each[n : n + ROWS_PER_CHUNK] for each in full)) for n in starts]
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part, float) for part in parts])[:count], *found)
