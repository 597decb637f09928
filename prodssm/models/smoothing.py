"""The Rauch-Tung-Striebel smoother: a backward pass over the filter's beliefs and channels."""

from typing import Any

import jax
import jax.numpy as jnp

from prodssm._compilation import compiled, scan
from prodssm.data.series import Record
from prodssm.methods.base import Method
from prodssm.models.filtering import Beliefs, Recursion, checked_input, select, trimmed
from prodssm.models.state_space import StateSpaceModel, require_memory


def smooth_states(model: StateSpaceModel, series: Any, method: str | Method = "moments") -> Beliefs:
    """Smoothed beliefs: about the state at each time given all observations.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.

    Returns:
        As `filter_states`; global weights are smoothed as well.

    Example:
        >>> smooth_states(ssm, y).mean.shape
        (60, 1)
    """
    series, found = checked_input(model, series, method)
    require_memory(model, len(series), found)
    recursion = Recursion(model, found)
    require_gaussian(recursion)
    return trimmed("the smoother", _smooth(recursion, recursion.bucketed(series.record)), len(series))


def require_gaussian(recursion: Recursion) -> None:
    """Raise if the belief is a mixture, which has no smoother in closed form: it would divide by a mixture."""
    if jax.eval_shape(recursion.initial_belief).mixture is not None:
        raise ValueError(
            "method must carry one Gaussian to smooth, got components of a mixture; use method='moments', of a fitted model "
            "model.with_method('moments').smooth(data)"
        )


@compiled
def _smooth(recursion: Recursion, record: Record) -> Beliefs:
    _, (filtered, channels, log_evidence) = recursion.scan(record, keep_channels=True)
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
    return Beliefs(means, covs, log_evidence, first.weights)
