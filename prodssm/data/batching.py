"""Padded batches of series with a mask of the scored observations, and random mini-batches and windows of them."""

from collections.abc import Sequence
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from prodssm._compilation import pad
from prodssm.data.folds import Block
from prodssm.data.folds import context as share_known
from prodssm.data.series import Record, Series, Values, part_of, stack_records

LEAD = 100  # observations before a held-out block that are filtered


class SeriesBatch(eqx.Module):
    """Series padded to one batch, and the mask of the observations that an objective scores.

    Attributes:
        record: The padded arrays, batch axis first.
        count: Number of series before padding, traced.
        scored: 1 at time steps that are scored, 0 elsewhere.
        observed: Number of observed values at scored time steps.
        given: Which observations are conditioned on; None for all. The others are predicted in a free run.
    """

    record: Record
    count: Int[Values, ""]
    scored: Float[Values, "batch time"]
    observed: Float[Values, ""]
    given: Bool[Values, "batch time"] | None = None

    @classmethod
    def stack(
        cls,
        series: Sequence[Series],
        begin: Sequence[int] | None = None,
        end: Sequence[int] | None = None,
        room: tuple[int, int] = (0, 0),
    ) -> "SeriesBatch":
        """Stack series of unequal length.

        The first time step of a series is never scored: only the initial belief predicts it.

        Args:
            series: The series.
            begin: First scored time step of each series; 1 if not given.
            end: End (exclusive) of the scored time steps of each series; its length if not given.
            room: Number of series and of time steps that there is room for, at least.
        """
        record = stack_records(series, room)
        lengths = np.array([len(each) for each in series])
        first = np.maximum(1, np.zeros(len(series), int) if begin is None else np.asarray(begin))
        at, last = np.arange(record.dt.shape[1])[None, :], lengths if end is None else np.asarray(end)
        scored = ((first[:, None] <= at) & (at < last[:, None])).astype(record.y.dtype)
        scored = pad(scored, len(record.dt))
        observed = (np.isfinite(record.y) * scored[:, :, None]).sum(dtype=float)
        return cls(record, np.asarray(len(series), np.int32), scored, np.asarray(observed, scored.dtype))

    @classmethod
    def of_blocks(
        cls, series: Sequence[Series], blocks: Sequence[Block], among: Sequence[Sequence[Block]] = ()
    ) -> "SeriesBatch":
        """One row per block: some observations before it that are known, then the block, which is scored in a free run.

        Args:
            series: The series.
            blocks: Blocks of them.
            among: Sets of blocks, each of which there is room for, so that none of them triggers recompilation.
        """
        room = max(map(len, among), default=0), max((b.end - max(0, b.begin - LEAD) for part in among for b in part), default=0)
        starts = [max(0, block.begin - LEAD) for block in blocks]
        known = np.array([block.begin - start for block, start in zip(blocks, starts, strict=True)], np.int32)
        parts = [part_of(series[block.series], start, block.end) for block, start in zip(blocks, starts, strict=True)]
        whole = cls.stack(parts, known.tolist(), room=room)
        known = pad(known, len(whole.scored))
        return replace(whole, given=np.arange(whole.scored.shape[1])[None, :] < known[:, None])

    def in_free_run(self, context: int | None) -> "SeriesBatch":
        """The batch whose scored observations are predicted in a free run from those before the first of them.

        Args:
            context: Observations that are known of a series of which all are scored; None for a share of it.
        """
        if self.given is not None:
            return self
        assert self.record.length is not None
        lengths, at = np.asarray(self.record.length), np.arange(self.scored.shape[1])[None, :]
        first = np.argmax(np.asarray(self.scored) > 0, axis=1)
        begin = np.array([share_known(n) if context is None else context for n in lengths.tolist()])
        begin = np.where(first > 1, first, np.minimum(begin, np.maximum(lengths - 1, 1)))
        scored = np.asarray(self.scored) * (at >= begin[:, None])
        observed = (np.isfinite(np.asarray(self.record.y)) * scored[:, :, None]).sum(dtype=float)
        return replace(self, scored=scored, observed=np.asarray(observed, scored.dtype), given=at < begin[:, None])

    @property
    def longest(self) -> int:
        """Number of time steps of the longest series."""
        assert self.record.length is not None
        return int(np.max(self.record.length))

    def select(self, members: Array, starts: Array, window: int | None) -> tuple[Record, Array]:
        """Return the records and score masks of a mini-batch.

        Args:
            members: Indices of the series.
            starts: First time step of the window of each member.
            window: Length of the windows; None, or at least the padded length, takes whole series.
        """
        record, scored = jax.tree.map(lambda part: jnp.asarray(part)[members], (self.record, self.scored))
        if window is None or window >= scored.shape[1]:
            return record, scored

        def cut(record: Record, scored: Array, start: Array) -> tuple[Record, Array]:
            arrays = (record.y, record.u, record.dt, scored)
            y, u, dt, kept = jax.tree.map(lambda part: jax.lax.dynamic_slice_in_dim(part, start, window), arrays)
            assert record.length is not None
            return Record(y, u, dt, jnp.minimum(record.length - start, window)), kept

        return jax.vmap(cut)(record, scored, starts)

    def is_full_batch(self, size: int | None, window: int | None) -> bool:
        """Whether mini-batches of this size with windows of this length contain all of the data."""
        return (size is None or size >= int(self.count)) and (window is None or window >= self.longest)

    def draw(self, key: PRNGKeyArray, size: int | None, window: int | None) -> tuple[Array, Array]:
        """Draw a mini-batch: members, without replacement as long as there are enough, and the starts of their windows.

        Padding is never drawn, unless the batch is all there is.
        """
        assert self.record.length is not None
        lengths = jnp.asarray(self.record.length)
        members = jnp.arange(lengths.size, dtype=jnp.int32)
        if size is not None:
            # A random permutation of the first `count` members, which is traced: they are sorted by random bits.
            bits = jr.bits(jr.split(jr.fold_in(key, 0))[1], members.shape, jnp.uint32)
            last = jnp.where(members < self.count, bits, np.uint32(0xFFFFFFFF))
            order = jax.lax.sort_key_val(last, members)[1]
            members = order[jnp.arange(size, dtype=jnp.int32) % self.count]
        room = jnp.maximum(lengths[members] - (window or 0), 0)
        return members, jr.randint(jr.fold_in(key, 1), members.shape, 0, room + 1).astype(jnp.int32)
