"""Data frames in and out, of whatever kind narwhals knows: pandas, polars, pyarrow tables.

A frame that is handed to a model has one numeric column per channel. Where columns mean something else (controls, time stamps,
which series a row belongs to), `series_of` says so; a model remembers it and reads later frames by the names of their columns.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any, overload

import equinox as eqx
import jax
import narwhals as nw
import numpy as np

from prodssm.checks import require_probability
from prodssm.series import Series, as_series, timed

BUILDERS = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}  # what makes a frame of columns by name

Columns = dict[str, nw.Series]
Names = str | Sequence[str] | None


@dataclass(frozen=True)
class Layout:
    """What the columns of a data frame mean.

    Attributes:
        channels: Columns of y, in the order of a model's channels.
        controls: Columns of u.
        time: Column of time stamps.
        group: Column that says which series a row belongs to.
        backend: The library that the frame came from, if it is one that we can make frames of.
    """

    channels: tuple[str, ...]
    controls: tuple[str, ...] = ()
    time: str | None = None
    group: str | None = None
    backend: str | None = None

    @property
    def names(self) -> list[str]:
        """All columns but the group, which later data need not have."""
        return [*self.channels, *self.controls, *([self.time] if self.time is not None else [])]


class FrameSeries(Series):
    """A series that remembers which columns it was made of."""

    layout: Layout = eqx.field(static=True)

    def __init__(self, y: Any, u: Any, time: Any, layout: Layout):
        super().__init__(y, u, time)
        self.layout = layout


# ---------------------------------------------------------------- in


@overload
def series_of(
    frame: Any, *, columns: Names = None, controls: Names = None, time: str | None = None, group: None = None
) -> FrameSeries: ...
@overload
def series_of(
    frame: Any, *, columns: Names = None, controls: Names = None, time: str | None = None, group: str
) -> list[FrameSeries]: ...
def series_of(
    frame: Any, *, columns: Names = None, controls: Names = None, time: str | None = None, group: str | None = None
) -> FrameSeries | list[FrameSeries]:
    """Series from a data frame, one row per time step.

    Missing values of a channel are observations that were not made; controls, time stamps and groups must be complete. Time
    counts from the first row of each series: in seconds if the stamps are dates or times, else in their own unit. An index of
    pandas is not a column and is not looked at; `frame.reset_index()` makes it one.

    Args:
        frame: A pandas or polars data frame, a pyarrow table, or another kind that narwhals knows.
        columns: Channels of y; all columns that are not named below if not given.
        controls: Columns of u. `u[t]` acts between `y[t]` and `y[t + 1]`.
        time: Column of time stamps: numbers, dates or times, increasing within each series.
        group: Column that says which series a row belongs to.

    Returns:
        One series; or, if `group` is given, a list of them in the order in which they first appear.

    Example:
        >>> import pyarrow
        >>> frame = pyarrow.table({"level": [0.1, None, 0.3], "valve": [1, 1, 0]})
        >>> series_of(frame, controls="valve").y.shape
        (3, 1)
    """
    found = _columns(frame)
    if found is None:
        raise TypeError(f"frame must be a data frame of pandas, polars or pyarrow, got {type(frame).__name__}")
    time, group = (None if name is None else str(name) for name in (time, group))
    inputs, special = _names(controls), [name for name in (time, group) if name is not None]
    channels = [name for name in found if name not in (*inputs, *special)] if columns is None else _names(columns)
    named = [*channels, *inputs, *special]
    for name in named:
        if name not in found:
            raise ValueError(f"frame must have a column {name!r}, got {', '.join(map(repr, found))}")
        if named.count(name) > 1:
            raise ValueError(f"columns, controls, time and group must be different columns, got {name!r} twice")
    if not channels:
        raise ValueError(f"frame must have at least one column of observations, got {', '.join(map(repr, found)) or 'none'}")
    return _read(found, Layout(tuple(channels), tuple(inputs), time, group, _backend(frame)))


def layout_of(data: Any) -> Layout | None:
    """What the columns of the first data frame among the data mean; None where there is none."""
    for each in data if isinstance(data, list | tuple) else [data]:
        if isinstance(each, FrameSeries):
            return each.layout
        found = _columns(each)
        if found is not None:
            return Layout(tuple(found), backend=_backend(each))
    return None


def from_frames(data: Any, layout: Layout | None) -> Any:
    """Data in which every data frame has become series, with the columns in the order of the layout."""
    layout = layout_of(data) if layout is None else layout
    if layout is None:
        return data
    if not isinstance(data, list | tuple):
        return _arranged(data, layout)
    found = [_arranged(each, layout) for each in data]
    if all(new is old for new, old in zip(found, data, strict=True)):
        return data  # numbers, or arrays
    return [one for each in found for one in (each if _are_series(each) else [as_series(each)])]


def values_from(name: str, value: Any, columns: Sequence[str]) -> Any:
    """The named columns of a data frame as a matrix; anything else as it is."""
    found = _columns(value)
    if found is None:
        return value
    _require_names(name, list(found), columns or list(found))
    return _matrix(found, columns or list(found), complete=True)


def row_from(value: Any, columns: Sequence[str]) -> Any:
    """One row with names, such as a dict or a row of a pandas frame, in the order of the columns; anything else as it is."""
    names = list(value.keys()) if callable(getattr(value, "keys", None)) else []
    if not columns or not any(isinstance(name, str) for name in names):
        return value
    _require_names("a row", [str(name) for name in names], columns)
    return np.array([value[name] for name in columns], float)


def _are_series(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, FrameSeries) for each in value)


def _arranged(data: Any, layout: Layout) -> Any:
    """Series from a frame, or a series made of one, with columns in the order of the layout."""
    if isinstance(data, FrameSeries):
        if data.layout == layout:
            return data
        _require_names("data", data.layout.names, layout.names)
        y = data.y[:, np.array([data.layout.channels.index(name) for name in layout.channels])]
        u = None if data.u is None else data.u[:, np.array([data.layout.controls.index(name) for name in layout.controls])]
        found = FrameSeries(y, u, None, layout)
        return found if data.time is None else timed(found, data.time, data.dt)
    found = _columns(data)
    if found is None:
        return data
    _require_names("data", [name for name in found if name != layout.group], layout.names)
    return _read(found, layout)


def _require_names(what: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    """The same columns in any order."""
    missing, unknown = ([repr(name) for name in a if name not in b] for a, b in ((wanted, given), (given, wanted)))
    if missing or unknown:
        problems = [f"{kind} {', '.join(names)}" for kind, names in (("without", missing), ("with", unknown)) if names]
        wanted_text = ", ".join(repr(name) for name in wanted)
        raise ValueError(
            f"{what} must have the columns of fit, {wanted_text}, in any order; got a frame {' and '.join(problems)}"
        )


def _read(columns: Columns, layout: Layout) -> FrameSeries | list[FrameSeries]:
    y = _matrix(columns, layout.channels, complete=False)
    u = _matrix(columns, layout.controls, complete=True) if layout.controls else None
    time = None if layout.time is None else _stamps(layout.time, columns[layout.time])

    def part(rows: Any) -> FrameSeries:
        # Only differences matter, and single precision would lose them in seconds since 1970.
        stamps = None if time is None else time[rows] - time[rows][:1]
        return FrameSeries(y[rows], None if u is None else u[rows], stamps, layout)

    if layout.group is None or layout.group not in columns:
        return part(slice(None))
    return [_in_group(part, *each) for each in _groups(layout.group, columns[layout.group])]


def _in_group(part: Callable[[Any], FrameSeries], label: Any, rows: np.ndarray) -> FrameSeries:
    """The series of one group; an error says whose it is."""
    try:
        return part(rows)
    except ValueError as error:
        raise ValueError(f"group {label!r}: {error}") from error


def _groups(name: str, column: nw.Series) -> list[tuple[Any, np.ndarray]]:
    """Labels in the order of their first row, with the rows of each."""
    _require_complete(name, column.is_null().to_numpy())
    labels = column.to_list()
    numbers = {label: n for n, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([numbers[label] for label in labels])
    return [(label, np.flatnonzero(codes == n)) for label, n in numbers.items()]


def _matrix(columns: Columns, names: Sequence[str], *, complete: bool) -> np.ndarray:
    return np.column_stack([_numbers(name, columns[name], complete=complete) for name in names])


def _numbers(name: str, column: nw.Series, *, complete: bool) -> np.ndarray:
    """A column in float64, NaN where a value is missing."""
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise TypeError(
            f"column {name!r} must be numeric, got {column.dtype}; leave it out, or name it as the time or group of "
            "prodssm.frames.series_of"
        )
    try:
        values = np.array(column.cast(nw.Float64).to_numpy(), float)
    except Exception as error:  # each backend has its own
        raise ValueError(f"column {name!r} cannot be read as numbers in double precision: {error}") from error
    if complete:
        _require_complete(name, np.isnan(values))
    return values


def _stamps(name: str, column: nw.Series) -> np.ndarray:
    """Time since the first row: seconds for dates and times, numbers as they are."""
    _require_complete(name, column.is_null().to_numpy())
    if column.dtype.is_integer():
        values, ticks = np.asarray(column.to_numpy()).astype(np.int64), 1.0  # whole numbers until the start is taken away
    elif column.dtype.is_numeric():
        values, ticks = _numbers(name, column, complete=True), 1.0
    elif column.dtype in (nw.Date, nw.Datetime):
        # Whole numbers until the start is taken away: seconds since 1970 in float64 are good to a quarter of a microsecond.
        unit, ticks = ("ns", 1e9) if getattr(column.dtype, "time_unit", None) == "ns" else ("us", 1e6)
        values = column.dt.timestamp(unit).to_numpy()
    else:
        raise TypeError(f"time column {name!r} must hold numbers, dates or times, got {column.dtype}")
    return (values - values[:1]) / ticks


def _require_complete(name: str, missing: np.ndarray) -> None:
    if missing.any():
        raise ValueError(f"column {name!r} must be complete, got a missing value in row {int(np.argmax(missing))}")


def _columns(data: Any) -> Columns | None:
    """The columns of a data frame by name; None if it is something else."""
    if isinstance(data, np.ndarray | jax.Array | Series | list | tuple | int | float):  # most often, and at once
        return None
    table = nw.from_native(data, pass_through=True)
    if isinstance(table, nw.LazyFrame):
        raise TypeError(f"a data frame must hold its data, got {type(data).__name__}; collect it first")
    if not isinstance(table, nw.DataFrame):
        return None
    found = {str(name): column for name, column in zip(table.columns, table.iter_columns(), strict=True)}
    if len(found) < len(table.columns):
        raise ValueError(f"a data frame must have columns of different names, got {', '.join(map(repr, table.columns))}")
    return found


def _backend(frame: Any) -> str | None:
    name = nw.get_native_namespace(frame).__name__
    return name if name in BUILDERS else None


def _names(given: Names) -> list[str]:
    if given is None:
        return []
    return [str(given)] if isinstance(given, str | int | np.integer) else [str(name) for name in given]


# ---------------------------------------------------------------- out


def to_frame(
    found: Any, *, names: Sequence[str] | None = None, backend: str | None = None, probability: float = 0.95, first: int = 0
) -> Any:
    """Beliefs over time as a data frame: a row per step, and four columns per channel or state.

    Args:
        found: Anything with `.mean` and `.std`, time by channel: what `filter`, `smooth` or `forecast` return.
        names: One per channel; x0, x1, ... if not given.
        backend: "pandas", "polars" or "pyarrow"; the first of them that is installed if not given.
        probability: Of the central interval from `lower` to `upper`.
        first: Number of the first step.

    Returns:
        A frame with the columns `step`, and `_mean`, `_std`, `_lower` and `_upper` after each name.
    """
    mean, std = np.asarray(found.mean), np.asarray(found.std)
    names = [f"x{n}" for n in range(mean.shape[1])] if names is None else _names(names)
    if len(names) != mean.shape[1]:
        raise ValueError(f"names must be {mean.shape[1]}, one per channel, got {len(names)}")
    lower, upper = (np.asarray(end) for end in central_interval(found, probability))
    columns = {"step": first + np.arange(len(mean))}
    for n, name in enumerate(names):
        parts = {"mean": mean, "std": std, "lower": lower, "upper": upper}
        columns |= {f"{name}_{kind}": part[:, n] for kind, part in parts.items()}
    return _build(columns, backend)


def central_interval(found: Any, probability: float) -> tuple[Any, Any]:
    """Lower and upper ends: those that a belief gives itself, or else those of a normal distribution."""
    require_probability(probability)
    if callable(getattr(found, "interval", None)):
        return found.interval(probability)
    mean, reach = np.asarray(found.mean), NormalDist().inv_cdf(0.5 + float(probability) / 2) * np.asarray(found.std)
    return mean - reach, mean + reach


def _build(columns: dict[str, np.ndarray], backend: str | None) -> Any:
    if backend is not None and backend not in BUILDERS:
        raise ValueError(f"backend must be one of {', '.join(BUILDERS)}; got {backend!r}")
    able = [name for name in BUILDERS if find_spec(name) is not None]
    if backend is None and not able:
        raise ImportError(f"a data frame needs one of {', '.join(BUILDERS)}; install it, for instance `pip install pandas`")
    backend = able[0] if backend is None else backend
    if backend not in able:
        raise ImportError(f"backend={backend!r} is not installed; `pip install {backend}`, or choose another")
    return getattr(import_module(backend), BUILDERS[backend])(columns)
