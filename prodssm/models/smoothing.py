"""The Rauch-Tung-Striebel smoother: a backward pass over the filter's beliefs and channels."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from prodssm._validation import require_answer
from prodssm.data.series import Record
from prodssm.methods.base import Method
from prodssm.models.filtering import Beliefs, Recursion, checked_input
from prodssm.models.state_space import StateSpaceModel, require_memory


def smooth_states(model: StateSpaceModel, series: Any, method: str | Method = "moments") -> Beliefs:
    """Smoothed beliefs: about the state at each time given all observations.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.

    Returns:
        As `filter_states`; global weights are smoothed as well.
    """
    series, found = checked_input(model, series, method)
    require_memory(model, len(series), found)
    beliefs = _smooth(Recursion(model, found), series.record)
    require_answer("the smoother", beliefs.mean, beliefs.cov, beliefs.log_evidence)
    return beliefs


@eqx.filter_jit
def _smooth(recursion: Recursion, record: Record) -> Beliefs:
    _, (filtered, channels, log_evidence) = recursion.scan(record, keep_channels=True)
    last = jax.tree.map(lambda leaf: leaf[-1], filtered)

    def body(following, now):
        belief, channel = now
        smoothed = belief.smooth(channel, following)
        return smoothed, smoothed.state

    earlier = jax.tree.map(lambda leaf: leaf[:-1], (filtered, channels))
    first, states = jax.lax.scan(body, last, earlier, reverse=True)
    means = jnp.concatenate([states.mean, last.state.mean[None]])
    covs = jnp.concatenate([states.cov, last.state.cov[None]])
    return Beliefs(means, covs, log_evidence, first.weights)
