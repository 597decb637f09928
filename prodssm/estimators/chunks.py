"""Series that do not fit in memory: filtered chunk by chunk in constant memory, and forecast from their end."""

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from typing import Any

from prodssm._progress import Progress
from prodssm.data.long import CHUNK, LongSeries
from prodssm.data.series import Series
from prodssm.estimators.ensemble import mix_beliefs
from prodssm.estimators.fitted import FittedModel, require_fit
from prodssm.models.filtering import Beliefs, Origin


class Chunked:
    """The part of `ProDSSM` that reads a series piece by piece."""

    members_: tuple[FittedModel, ...]
    progress: bool
    _origin: Callable[[Series], Origin]
    _series: Callable[[Any], list[Series]]

    def filter_in_chunks(self, data: Any, size: int = CHUNK) -> Iterator[Beliefs]:
        """What `filter` answers about a `LongSeries`, chunk after chunk; memory does not grow with its length.

        Args:
            data: The series.
            size: Time steps of a chunk.

        Returns:
            An iterator over beliefs about consecutive time steps, each like the answer of `filter`.

        Example:
            >>> parts = model.filter_in_chunks(ps.LongSeries.of_arrays(y), size=40)
            >>> [part.mean.shape for part in parts]
            [(40, 1), (20, 1)]
        """
        require_fit(self)
        if not isinstance(data, LongSeries):
            raise TypeError(f"data must be a LongSeries, got {type(data).__name__}; filter(data) takes what is in memory")
        return self._chunks(data, size)

    def _chunks(self, long: LongSeries, size: int) -> Iterator[Beliefs]:
        members = [member.begun() for member in self.members_]
        with Progress("filter", len(long), "step", shown=self.progress) as bar:
            for part in self._parts(long, size):
                members, found = zip(*(member.filter_on(part) for member in members), strict=True)
                mixed = mix_beliefs(found, same_states=members[0].ssm.emission is None)
                yield replace(mixed, origin=self._origin(part))
                bar.update(len(part))

    def _parts(self, long: LongSeries, size: int) -> Iterator[Series]:
        """Chunks with the columns in the order of fit."""
        return (self._series(part)[0] for part in long.chunks(size))

    def _at_end(self, long: LongSeries) -> tuple[Any, Series]:
        """The model behind all but the last chunk of a series, and that chunk."""
        members = [member.begun() for member in self.members_]
        last = None
        with Progress("filter", len(long), "step", shown=self.progress) as bar:
            for part in self._parts(long, CHUNK):
                if last is not None:
                    members = [member.filter_on(last)[0] for member in members]
                last = part
                bar.update(len(part))
        assert last is not None
        behind = copy(self)
        behind.members_ = tuple(members)
        return behind, last
