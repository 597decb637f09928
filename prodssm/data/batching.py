"""Padded batches of series with a mask of the scored observations, and random mini-batches and windows of them."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.data.series import Record, Series, stack_records


class SeriesBatch(eqx.Module):
    """Series padded to one batch, and the mask of the observations that an objective scores.

    Attributes:
        record: The padded arrays, batch axis first.
        lengths: Number of time steps of each series before padding, (batch,).
        scored: 1 at time steps that are scored, 0 elsewhere.
        observed: Number of observed values at scored time steps.
    """

    record: Record
    lengths: Array
    scored: Float[Array, "batch time"]
    observed: float

    @classmethod
    def stack(
        cls, series: Sequence[Series], begin: Sequence[int] | None = None, end: Sequence[int] | None = None
    ) -> "SeriesBatch":
        """Stack series of unequal length.

        The first time step of a series is never scored: only the initial belief predicts it.

        Args:
            series: The series.
            begin: First scored time step of each series; 1 if not given.
            end: End (exclusive) of the scored time steps of each series; its length if not given.
        """
        record = stack_records(series)
        lengths = np.array([len(each) for each in series])
        first = np.maximum(1, np.zeros(len(series), int) if begin is None else np.asarray(begin))
        at, last = np.arange(record.dt.shape[1])[None, :], lengths if end is None else np.asarray(end)
        scored = ((first[:, None] <= at) & (at < last[:, None])).astype(record.y.dtype)
        observed = float((np.isfinite(np.asarray(record.y)) * scored[:, :, None]).sum())
        return cls(record, jnp.asarray(lengths), jnp.asarray(scored), observed)

    def select(self, members: Array, starts: Array, window: int | None) -> tuple[Record, Array]:
        """Return the records and score masks of a mini-batch.

        Args:
            members: Indices of the series.
            starts: First time step of the window of each member.
            window: Length of the windows; None, or at least the padded length, takes whole series.
        """
        record, scored = self.record[members], self.scored[members]
        if window is None or window >= scored.shape[1]:
            return record, scored
        cut = jax.vmap(lambda tree, start: jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, window), tree))
        return cut((record, scored), starts)

    def is_full_batch(self, size: int | None, window: int | None) -> bool:
        """Whether mini-batches of this size with windows of this length contain all of the data."""
        return (size is None or size >= len(self.lengths)) and (window is None or window >= self.scored.shape[1])

    def draw(self, key: PRNGKeyArray, size: int | None, window: int | None) -> tuple[Array, Array]:
        """Draw a mini-batch: members, without replacement as long as there are enough, and the starts of their windows."""
        count = len(self.lengths)
        members = jnp.arange(count)
        if size is not None:
            order = jr.permutation(jr.fold_in(key, 0), count)
            members = order[jnp.arange(size) % count]
        room = jnp.maximum(self.lengths[members] - (window or 0), 0)
        return members, jr.randint(jr.fold_in(key, 1), members.shape, 0, room + 1)
