"""Backward passes over filtered beliefs and transition channels: smoothed beliefs, and posterior paths."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import scan
from prodssm.beliefs.gaussian import Belief
from prodssm.data.series import Record
from prodssm.models.filtering import select


class Marginals(NamedTuple):
    """Beliefs about the state at every time step, each on its own."""

    mean: Float[Array, "time x"]
    cov: Float[Array, "time x x"]


def smooth_backward(record: Record, filtered: Belief, channels: Any) -> tuple[Belief, Marginals]:
    """The smoothed belief at the first time step, and those about the states at all of them.

    Args:
        record: The record; what is padded carries the last belief.
        filtered: Filtered beliefs over time.
        channels: The transition's channels over time, each around the filtered belief.
    """
    end = record.last

    def body(following, now):
        t, belief, channel = now
        smoothed = belief.smooth(channel, following)
        if record.length is not None:  # the last belief, smoothed as filtered, is carried over the padding
            smoothed = select(t < end, smoothed, following)
        return smoothed, smoothed.state

    last = jax.tree.map(lambda leaf: leaf[end], filtered)
    steps = jnp.arange(record.dt.size, dtype=jnp.int32), filtered, channels
    first, states = scan(body, last, jax.tree.map(lambda leaf: leaf[:-1], steps), reverse=True)
    means = jnp.concatenate([states.mean, last.state.mean[None]])
    covs = jnp.concatenate([states.cov, last.state.cov[None]])
    return first, Marginals(means, covs)


def sample_backward(record: Record, filtered: Belief, channels: Any, *, key: PRNGKeyArray) -> Float[Array, "time x"]:
    """One path of the state given all observations: the last state from its belief, each other one given the next."""
    end, (last_key, key) = record.last, jr.split(key)
    state, weights = jax.tree.map(lambda leaf: leaf[end], filtered).draw(key=last_key)

    def body(following, now):
        t, belief, channel, step_key = now
        drawn = belief.draw_before(channel, following, weights, key=step_key)
        drawn = select(t < end, drawn, following)
        return drawn, drawn

    steps = jnp.arange(record.dt.size, dtype=jnp.int32), filtered, channels, jr.split(key, record.dt.size)
    _, path = scan(body, state, jax.tree.map(lambda leaf: leaf[:-1], steps), reverse=True)
    return jnp.concatenate([path, state[None]])
