"""Series as one batch: which of their observations count, and what is drawn from them at a step of training."""

from collections.abc import Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.objective import Objective
from prodssm.series import Frames, Series, stack


class Data(eqx.Module):
    """Series as one batch, and which of their observations count."""

    frames: Frames
    lengths: Array
    scored: Float[Array, "batch time"]
    observed: float

    @classmethod
    def of(cls, series: Sequence[Series], begin: Sequence[int] | None = None, end: Sequence[int] | None = None) -> "Data":
        """All observations but the first of each series, or those from `begin` on, and before `end`."""
        frames = stack(series)
        lengths = np.array([len(each) for each in series])
        first = np.maximum(1, np.zeros(len(series), int) if begin is None else np.asarray(begin))
        at, last = np.arange(frames.dt.shape[1])[None, :], lengths if end is None else np.asarray(end)
        scored = ((first[:, None] <= at) & (at < last[:, None])).astype(frames.y.dtype)
        observed = float((np.isfinite(np.asarray(frames.y)) * scored[:, :, None]).sum())
        return cls(frames, jnp.asarray(lengths), jnp.asarray(scored), observed)

    def missed(self, objective: Objective, window: int | None = None) -> tuple[int, ...]:
        """Horizons at which no observation that counts is foreseen, in windows of this length if they are shorter."""
        length = self.frames.dt.shape[1]
        counts = np.isfinite(np.asarray(self.frames.y)).any(axis=-1) * np.asarray(self.scored)

        def reached(alone: Objective) -> bool:
            if window is not None and window < length:
                return bool(alone.reach(window).any() and counts.any())
            return bool((counts * alone.reach(length)[None, :]).any())

        return tuple(h for h in objective.horizons if not reached(objective._replace(horizons=(h,))))

    def batch(self, members: Array, starts: Array, window: int | None) -> tuple[Frames, Array]:
        """Some of the series, or a window of each."""
        frames, scored = self.frames[members], self.scored[members]
        if window is None or window >= scored.shape[1]:
            return frames, scored
        cut = jax.vmap(lambda tree, start: jax.tree.map(lambda x: jax.lax.dynamic_slice_in_dim(x, start, window), tree))
        return cut((frames, scored), starts)

    def drawn_whole(self, size: int | None, window: int | None) -> bool:
        """Whether a batch of this size with windows of this length is all there is."""
        return (size is None or size >= len(self.lengths)) and (window is None or window >= self.scored.shape[1])

    def draw(self, key: PRNGKeyArray, size: int | None, window: int | None) -> tuple[Array, Array]:
        """Members of one step's batch, without replacement as long as there are enough, and where their windows start."""
        count = len(self.lengths)
        members = jnp.arange(count)
        if size is not None:
            order = jr.permutation(jr.fold_in(key, 0), count)
            members = order[jnp.arange(size) % count]
        room = jnp.maximum(self.lengths[members] - (window or 0), 0)
        return members, jr.randint(jr.fold_in(key, 1), members.shape, 0, room + 1)
