"""One series that need not fit in memory: read in order, in chunks, or from random places, from arrays or Parquet files."""

import warnings
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from prodssm._progress import LOG
from prodssm._validation import require_integer
from prodssm.data.batching import SeriesBatch
from prodssm.data.frames import from_frames, series_of
from prodssm.data.layout import FrameSeries, Layout
from prodssm.data.scaling import DataScaling
from prodssm.data.series import Series, part_of
from prodssm.data.splitting import with_gaps
from prodssm.data.stamps import Stamps

CHUNK = 100_000  # time steps that are read at a time
TRIES = 4  # at a stretch that can be learned from
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
    """Rows of arrays. Time is measured on the clock on which the first of them are regular."""

    def __init__(self, y: Any, u: Any, time: Any):
        for name, array in (("y", y), ("u", u), ("time", time)):
            if array is not None and not hasattr(array, "shape"):
                raise TypeError(f"{name} must be an array that can be sliced, such as np.memmap, got {type(array).__name__}")
            if array is not None and len(array) != len(y):
                raise ValueError(f"{name} must have {len(y)} rows, one per observation, got {len(array)}")
        if len(y) < 2:
            raise ValueError(f"y must have at least two time steps, got {len(y)}")
        self.y, self.u, self.time = (_File.of(part) or part for part in (y, u, time))
        self.clock = None if time is None else Stamps.read(self.time[: min(len(y), CHUNK)]).clock

    def __len__(self) -> int:
        return len(self.y)

    def read(self, begin: int, end: int) -> Series:
        """Rows of all arrays."""
        y, u, time = (None if part is None else _slice(part, begin, end) for part in (self.y, self.u, self.time))
        return Series(y, u, None if time is None else Stamps.read(time, clock=self.clock))


def _slice(array: Any, begin: int, end: int) -> np.ndarray:
    """Rows as an array in memory; masks are kept."""
    found = array[begin:end]
    return found if isinstance(found, np.ma.MaskedArray) else np.array(found)


@dataclass(frozen=True)
class _File:
    """Consecutive rows of a file: they are read, because the pages of a map that is read through would count as memory.

    Attributes:
        path: The file.
        start: Where the first row begins, in bytes.
        shape: Of the array.
        dtype: Of its entries.
    """

    path: str
    start: int
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, array: Any) -> "_File | None":
        """The rows of a mapped array whose file holds what it shows; None for any other array."""
        plain = isinstance(array, np.memmap) and array.filename is not None and array.flags.c_contiguous
        if not plain or array.mode == "c":  # changes of a private map are not in its file
            return None
        # A slice of a map keeps the offset of the map, so the first row is found by its address.
        whole = array
        while isinstance(whole.base, np.memmap):
            whole = whole.base
        start = array.offset + array.ctypes.data - whole.ctypes.data
        return cls(str(array.filename), int(start), array.shape, array.dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        begin, end, _ = rows.indices(len(self))
        width = int(np.prod(self.shape[1:], dtype=int))
        with open(self.path, "rb") as file:
            file.seek(self.start + begin * width * self.dtype.itemsize)
            found = np.fromfile(file, self.dtype, (end - begin) * width)
        if found.size < (end - begin) * width:
            raise ValueError(f"{self.path} has become shorter than the array that was mapped from it")
        return found.reshape(end - begin, *self.shape[1:])


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
        counts = [parquet.read_metadata(each) for each in paths]
        self.groups = [(str(each), n) for each, found in zip(paths, counts, strict=True) for n in range(found.num_row_groups)]
        sizes = [found.row_group(n).num_rows for found in counts for n in range(found.num_row_groups)]
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
        found = self.kept.pop(n, None)
        if found is None:
            from pyarrow import parquet

            path, number = self.groups[n]
            names = self.layout.names if hasattr(self, "layout") else None
            with parquet.ParquetFile(path) as file:
                found = file.read_row_group(number, columns=names)
        self.kept[n] = found  # the latest
        while len(self.kept) > KEPT_GROUPS:
            self.kept.popitem(last=False)
        return found

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"kept": OrderedDict()}


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
        length, rng, found = min(self.length, len(self.long)), np.random.default_rng([self.seed, number]), []
        for _ in range(self.count * TRIES):
            begin = int(rng.integers(0, len(self.long) - length + 1))
            try:
                found.append(self._stretch(begin, begin + length))
            except ValueError as error:  # an irregular step, an infinity: no reason to lose what has been learned
                LOG.warning("training leaves out the time steps from %d to %d: %s", begin, begin + length, error)
            if len(found) == self.count:
                break
        else:
            raise ValueError("most parts of the series cannot be learned from; the log of prodssm says why")
        batch = SeriesBatch.stack(found)
        return replace(batch, observed=np.asarray(self.observed, batch.observed.dtype))

    def _stretch(self, begin: int, end: int) -> Series:
        gaps = [(max(first, begin) - begin, min(last, end) - begin) for first, last in self.held_out]
        with warnings.catch_warnings():  # a quiet stretch varies less than single precision resolves, which the whole does not
            warnings.simplefilter("ignore", UserWarning)
            part = self.long.part(begin, end)
        found = self.scaling.transform_series(part)
        return with_gaps(found, [(first, last) for first, last in gaps if first < last])
