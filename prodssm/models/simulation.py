"""Trajectories drawn from a model: simulations from its start, and sampled futures of a series."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import bucket, compiled, is_traced, scan
from prodssm._validation import require_answer, require_key
from prodssm.beliefs.gaussian import Belief
from prodssm.data.series import Record, Values
from prodssm.models.filtering import Recursion
from prodssm.models.forecasting import Moves, checked_controls, checked_time_steps, forecast_from
from prodssm.models.state_space import StateSpaceModel, require_steps
from prodssm.networks.base import Function


def simulate(
    model: StateSpaceModel, steps: int, *, key: Any, u: Any = None, dt: Any = None
) -> tuple[Float[Values, "steps x"], Float[Values, "steps y"]]:
    """States and observations drawn from the model, weights included.

    Args:
        model: The model.
        steps: Number of observations.
        key: Randomness.
        u: Controls, (steps, u), if the model has any; the last row is used with direct feedthrough only and may be left out
            otherwise.
        dt: Time steps, (steps,), of which the last is not used; ones if not given.

    Returns:
        States (steps, x) and observations (steps, y).

    Example:
        >>> states, observations = simulate(ssm, 5, key=jr.key(0))
        >>> states.shape, observations.shape
        ((5, 1), (5, 1))
    """
    require_steps(model, steps)
    require_key("key", key)
    if (u is None) != (model.u_size == 0):
        raise ValueError(f"u must {'be given' if u is None else 'not be given'}: the transition takes {model.u_size} controls")
    u = None if u is None else checked_controls(model, u, steps if model.feedthrough else steps - 1).astype(model.dtype)
    dt = checked_time_steps(model, dt, steps - 1, default=np.ones(1, model.dtype))
    first, ahead = u[0] if model.feedthrough and u is not None else None, Moves.between(model, u, dt)
    if not is_traced((model, key, u, dt)):
        ahead = ahead.padded(bucket(steps) - 1)
    states, y = _simulate(model, key, first, ahead)
    if not is_traced((states, y)):
        states, y = np.asarray(states)[:steps], np.asarray(y)[:steps]
    require_answer("the simulation", states, y, advice="the system is unstable; simulate fewer steps")
    return states, y


@compiled
def _simulate(model: StateSpaceModel, key: Array, first_u: Array | None, ahead: Moves):
    start_key, weight_key, path_key, noise_key = jr.split(key, 4)
    network = model.transition.sample(weight_key) if model.weights == "global" else model.transition
    first = model.initial.sample(key=start_key)  # observed before the first transition
    later, outputs = _path(model, network, first, ahead, path_key)
    states = jnp.concatenate([first[None], later])
    return states, model.likelihood.sample(jnp.concatenate([model.output(first, first_u)[None], outputs]), key=noise_key)


def sample_futures(
    recursion: Recursion, record: Record, ahead: Moves, *, key: PRNGKeyArray, samples: int
) -> Float[Values, "samples steps y"]:
    """Observations along sampled futures of a record."""

    def rule(recursion: Recursion, belief: Belief, _: Values, ahead: Moves) -> Array:
        return _futures(recursion.model, _starts(key, samples, belief), key, ahead)

    return forecast_from(rule, recursion, record, ahead).swapaxes(0, 1)


@compiled
def _starts(key: PRNGKeyArray, samples: int, belief: Belief) -> tuple[Array, Any, Array]:
    """States, weights if they are carried, and keys of paths; a program of its own, so that methods share that of paths."""
    start_keys, path_keys = jax.vmap(jr.split, out_axes=1)(jr.split(key, samples))
    return *jax.vmap(lambda key: belief.draw(key=key))(start_keys), path_keys


@compiled
def _futures(model: StateSpaceModel, starts: Any, key: PRNGKeyArray, ahead: Moves) -> Float[Array, "steps samples y"]:
    def future(x, weights, path_key):
        network = model.transition if weights is None else model.transition.with_weights(weights)
        return _path(model, network, x, ahead, path_key)[1]

    outputs = jax.vmap(future, out_axes=1)(*starts)
    return model.likelihood.sample(outputs, key=jr.fold_in(key, 1))


def _path(model: StateSpaceModel, network: Function, x: Array, ahead: Moves, key: PRNGKeyArray):
    """One path from a state: the states after each transition, and the emission's outputs there."""
    network = network.at_mean() if model.weights == "point" else network

    def body(x, now):
        move, key = now
        move_key, var_key, noise_key = jr.split(key, 3)
        inputs, step = x if move.u is None else jnp.concatenate([x, move.u]), move.dt
        moved = network.sample_output(inputs, key=move_key) + model.linear_part(x, move.u)
        var = model.sample_process_variances(inputs, key=var_key)
        noise = jr.normal(noise_key, x.shape, x.dtype)
        following = x + step * moved + jnp.sqrt(step * var) * noise if model.residual else moved + jnp.sqrt(var) * noise
        return following, (following, model.output(following, move.seen_u))

    return scan(body, x, (ahead, jr.split(key, ahead.dt.size)))[1]
