"""One series that need not fit in memory: read in order, in chunks, or from random places, from arrays or Parquet files."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prodssm._validation import require_integer
from prodssm.data.batching import SeriesBatch
from prodssm.data.frames import from_frames, series_of
from prodssm.data.layout import FrameSeries, Layout
from prodssm.data.scaling import DataScaling
from prodssm.data.series import Series, part_of
from prodssm.data.splitting import with_gaps

CHUNK = 100_000  # time steps that are read at a time
KEPT_GROUPS = 4  # row groups of Parquet files that are kept in memory


class Reader(ABC):
    """Consecutive rows of something that lies on disk."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows."""

    @abstractmethod
    def read(self, begin: int, end: int) -> Series:
        """The rows from `begin` to `end` (exclusive) as a series."""


class LongSeries:
    """A series that is read piece by piece; `ProDSSM` learns from it, filters it in chunks, and forecasts what follows.

    Attributes:
        reader: Where its rows come from.

    Example:
        >>> long = LongSeries.of_arrays(np.zeros((1000, 2)))
        >>> len(long), long.part(990, 1000).y.shape
        (1000, (10, 2))
        >>> sum(len(part) for part in long.chunks(300))
        1000
    """

    def __init__(self, reader: Reader):
        self.reader = reader

    @classmethod
    def of_arrays(cls, y: Any, u: Any = None, time: Any = None) -> "LongSeries":
        """Of arrays that are sliced like NumPy's: `np.memmap`, what `np.load(..., mmap_mode="r")` returns, HDF5 or zarr arrays.

        Args:
            y: Observations, (time, y) or (time,); NaN is missing.
            u: Control inputs, (time, u).
            time: Increasing time stamps, numbers or datetime64.
        """
        return cls(ArrayReader(y, u, time))

    @classmethod
    def of_parquet(
        cls,
        path: Any,
        *,
        columns: str | Sequence[str] | None = None,
        controls: str | Sequence[str] | None = None,
        time: str | None = None,
        calendar: str | Sequence[str] | None = None,
    ) -> "LongSeries":
        """Of a Parquet file, or of all in a folder in the order of their names; arguments as for `frames.series_of`."""
        return cls(ParquetReader(path, columns=columns, controls=controls, time=time, calendar=calendar))

    def __len__(self) -> int:
        """Number of time steps."""
        return len(self.reader)

    @property
    def layout(self) -> Layout | None:
        """The columns of the files; None for arrays."""
        return getattr(self.reader, "layout", None)

    def part(self, begin: int, end: int) -> Series:
        """The time steps from `begin` to `end` (exclusive) as a series, with the time step that follows the last one."""
        if not 0 <= begin < end <= len(self):
            raise ValueError(f"a part must lie within {len(self)} time steps, got {begin} to {end}")
        return part_of(self.reader.read(begin, min(end + 1, len(self))), 0, end - begin)

    def chunks(self, size: int = CHUNK) -> Iterator[Series]:
        """All time steps in order, in pieces of this size."""
        require_integer("size", size, least=2)
        ends = list(range(size, len(self) - 1, size))  # a single row at the end belongs to the chunk before it
        return (self.part(*each) for each in zip([0, *ends], [*ends, len(self)], strict=True))

    def spread(self, count: int, length: int) -> list[tuple[int, Series]]:
        """So many pieces at equal distances, each with its first time step; the whole series if it is not longer."""
        if count * length >= len(self):
            return [(0, self.part(0, len(self)))]
        begins = np.linspace(0, len(self) - length, count).astype(int).tolist()
        return [(begin, self.part(begin, begin + length)) for begin in begins]


class ArrayReader(Reader):
    """Rows of arrays."""

    def __init__(self, y: Any, u: Any, time: Any):
        for name, array in (("y", y), ("u", u), ("time", time)):
            if array is not None and not hasattr(array, "shape"):
                raise TypeError(f"{name} must be an array that can be sliced, such as np.memmap, got {type(array).__name__}")
            if array is not None and len(array) != len(y):
                raise ValueError(f"{name} must have {len(y)} rows, one per observation, got {len(array)}")
        if len(y) < 2:
            raise ValueError(f"y must have at least two time steps, got {len(y)}")
        self.parts = y, u, time

    def __len__(self) -> int:
        return len(self.parts[0])

    def read(self, begin: int, end: int) -> Series:
        """Rows of all arrays."""
        return Series(*(None if part is None else _rows(part, begin, end) for part in self.parts))


def _rows(array: Any, begin: int, end: int) -> np.ndarray:
    """Rows as an array in memory. A file that is mapped whole would count as memory page by page, so they are read from it."""
    if not isinstance(array, np.memmap) or array.filename is None or not array.flags.c_contiguous or array.base is None:
        return np.array(array[begin:end])
    row = int(array.itemsize * np.prod(array.shape[1:], dtype=int))
    # A slice of a map keeps the offset of the map, so the first row is found by its address.
    whole = array.base if isinstance(array.base, np.memmap) else array
    start = array.offset + (array.ctypes.data - whole.ctypes.data)
    count = (end - begin) * row // array.itemsize
    with open(array.filename, "rb") as file:
        file.seek(start + begin * row)
        found = np.fromfile(file, array.dtype, count)
    return found.reshape(end - begin, *array.shape[1:])


class ParquetReader(Reader):
    """Rows of Parquet files, by row groups."""

    def __init__(self, path: Any, **roles: Any):
        try:
            from pyarrow import parquet  # an extra
        except ImportError as error:
            raise ImportError("Parquet files need pyarrow: pip install pyarrow") from error
        paths = sorted(Path(path).glob("*.parquet")) if Path(path).is_dir() else [Path(path)]
        if not paths:
            raise FileNotFoundError(f"{path} has no file that ends in .parquet")
        self.files = [parquet.ParquetFile(each) for each in paths]
        self.groups = [(file, n) for file in self.files for n in range(file.metadata.num_row_groups)]
        sizes = [file.metadata.row_group(n).num_rows for file, n in self.groups]
        self.begins = np.concatenate([[0], np.cumsum(sizes)])
        if len(self) < 2:
            raise ValueError(f"{path} must have at least two rows, got {len(self)}")
        self.kept: OrderedDict[int, Any] = OrderedDict()
        self.layout: Layout = series_of(self._table(0, min(len(self), CHUNK)), **roles).layout

    def __len__(self) -> int:
        return int(self.begins[-1])

    def read(self, begin: int, end: int) -> FrameSeries:
        """Rows of the columns that have a role."""
        return from_frames(self._table(begin, end).select(self.layout.names), self.layout)

    def _table(self, begin: int, end: int) -> Any:
        """Rows as a table of pyarrow."""
        import pyarrow

        first, last = np.searchsorted(self.begins, [begin, end - 1], side="right") - 1
        found = pyarrow.concat_tables([self._group(n) for n in range(first, last + 1)])
        return found.slice(begin - int(self.begins[first]), end - begin)

    def _group(self, n: int) -> Any:
        if n not in self.kept:
            file, number = self.groups[n]
            names = self.layout.names if hasattr(self, "layout") else None
            self.kept[n] = file.read_row_group(number, columns=names)
        self.kept.move_to_end(n)
        while len(self.kept) > KEPT_GROUPS:
            self.kept.popitem(last=False)
        return self.kept[n]


@dataclass(frozen=True)
class Pool:
    """Stretches of a long series that the windows of minibatches are drawn from, other ones every time.

    Attributes:
        long: The series.
        scaling: Of its data.
        held_out: First and last (exclusive) time steps that are not trained on.
        observed: About how many values the whole series has.
        count: Number of stretches.
        length: Of each.
        seed: Of the places.
    """

    long: LongSeries
    scaling: DataScaling
    held_out: tuple[tuple[int, int], ...]
    observed: float
    count: int
    length: int
    seed: int

    def drawn(self, number: int) -> SeriesBatch:
        """The stretches of the chunk of iterations with this number."""
        length = min(self.length, len(self.long))
        begins = np.random.default_rng([self.seed, number]).integers(0, len(self.long) - length + 1, self.count)
        found = [self._stretch(begin, begin + length) for begin in sorted(begins.tolist())]
        batch = SeriesBatch.stack(found)
        return replace(batch, observed=np.asarray(self.observed, batch.observed.dtype))

    def _stretch(self, begin: int, end: int) -> Series:
        gaps = [(max(first, begin) - begin, min(last, end) - begin) for first, last in self.held_out]
        found = self.scaling.transform_series(self.long.part(begin, end))
        return with_gaps(found, [(first, last) for first, last in gaps if first < last])
