"""Conversion between series and data frames of any library that narwhals supports: pandas, polars, pyarrow tables.

By default every column of a frame is an output and must be numeric. `series_of` declares columns of control inputs, time stamps
and series identifiers; a model stores this `Layout` and reads the columns of later frames by name.
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

from prodssm._validation import require_probability
from prodssm.data.series import Series, as_series, with_times

BUILDERS = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}  # the constructor that takes columns by name

Columns = dict[str, nw.Series]
Names = str | Sequence[str] | None


@dataclass(frozen=True)
class Layout:
    """The roles of the columns of a data frame.

    Attributes:
        outputs: Columns of y, in the order of the model's outputs.
        controls: Columns of u.
        time: Column of time stamps.
        group: Column that identifies the series of a row.
        backend: Library of the frame, if `to_frame` supports it.
    """

    outputs: tuple[str, ...]
    controls: tuple[str, ...] = ()
    time: str | None = None
    group: str | None = None
    backend: str | None = None

    @property
    def names(self) -> list[str]:
        """All columns except the group, which is optional in later data."""
        return [*self.outputs, *self.controls, *([self.time] if self.time is not None else [])]


class FrameSeries(Series):
    """A series with the layout of the data frame that it was read from."""

    layout: Layout = eqx.field(static=True)

    def __init__(self, y: Any, u: Any, time: Any, layout: Layout):
        super().__init__(y, u, time)
        self.layout = layout


# ---------------------------------------------------------------- reading


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
    """Read series from a data frame with one row per time step.

    Missing values are allowed in outputs, not in control inputs, time stamps and groups. Time starts at zero in the first row
    of each series and is in seconds if the stamps are dates or times, else in their own unit. The index of a pandas frame is
    ignored; `frame.reset_index()` turns it into a column.

    Args:
        frame: A pandas or polars data frame, a pyarrow table, or another frame that narwhals supports.
        columns: Outputs y; by default all columns without another role.
        controls: Control inputs u. `u[t]` acts between `y[t]` and `y[t + 1]`.
        time: Column of time stamps: numbers, dates or times, increasing within each series.
        group: Column that identifies the series of a row.

    Returns:
        One series; or, if `group` is given, a list of series in order of first appearance.

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
    outputs = [name for name in found if name not in (*inputs, *special)] if columns is None else _names(columns)
    named = [*outputs, *inputs, *special]
    for name in named:
        if name not in found:
            raise ValueError(f"frame must have a column {name!r}, got {', '.join(map(repr, found))}")
        if named.count(name) > 1:
            raise ValueError(f"columns, controls, time and group must be different columns, got {name!r} twice")
    if not outputs:
        raise ValueError(f"frame must have at least one column of observations, got {', '.join(map(repr, found)) or 'none'}")
    return _read(found, Layout(tuple(outputs), tuple(inputs), time, group, _backend(frame)))


def layout_of(data: Any) -> Layout | None:
    """Return the layout of the first data frame among the data; None if there is none."""
    for each in data if isinstance(data, list | tuple) else [data]:
        if isinstance(each, FrameSeries):
            return each.layout
        found = _columns(each)
        if found is not None:
            return Layout(tuple(found), backend=_backend(each))
    return None


def from_frames(data: Any, layout: Layout | None) -> Any:
    """Convert every data frame among the data to series with columns in the order of the layout; keep other data unchanged."""
    layout = layout_of(data) if layout is None else layout
    if layout is None:
        return data
    if not isinstance(data, list | tuple):
        return _ordered(data, layout)
    found = [_ordered(each, layout) for each in data]
    if all(new is old for new, old in zip(found, data, strict=True)):
        return data  # no data frame among them
    return [one for each in found for one in (each if _are_series(each) else [as_series(each)])]


def values_from(name: str, value: Any, columns: Sequence[str]) -> Any:
    """Convert the named columns of a data frame to a matrix; return anything else unchanged."""
    found = _columns(value)
    if found is None:
        return value
    _require_names(name, list(found), columns or list(found))
    return _matrix(found, columns or list(found), complete=True)


def row_from(value: Any, columns: Sequence[str]) -> Any:
    """Convert a row with names, such as a dict or a row of a pandas frame, to an array; return anything else unchanged."""
    names = list(value.keys()) if callable(getattr(value, "keys", None)) else []
    if not columns or not any(isinstance(name, str) for name in names):
        return value
    found = {str(name): value[name] for name in names}
    _require_names("a row", list(found), columns)
    return np.array([found[name] for name in columns], float)


def _are_series(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, FrameSeries) for each in value)


def _ordered(data: Any, layout: Layout) -> Any:
    """Convert a frame, or a series read from one, to series with columns in the order of the layout."""
    if isinstance(data, FrameSeries):
        if data.layout == layout:
            return data
        _require_names("data", data.layout.names, layout.names)
        y = data.y[:, np.array([data.layout.outputs.index(name) for name in layout.outputs])]
        u = None if data.u is None else data.u[:, np.array([data.layout.controls.index(name) for name in layout.controls])]
        found = FrameSeries(y, u, None, layout)
        return found if data.time is None else with_times(found, data.time, data.dt)
    found = _columns(data)
    if found is None:
        return data
    _require_names("data", [name for name in found if name != layout.group], layout.names)
    return _read(found, layout)


def _require_names(what: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise unless the same columns are given, in any order."""
    missing, unknown = ([repr(name) for name in a if name not in b] for a, b in ((wanted, given), (given, wanted)))
    if missing or unknown:
        problems = [f"{kind} {', '.join(names)}" for kind, names in (("without", missing), ("with", unknown)) if names]
        wanted_text = ", ".join(repr(name) for name in wanted)
        raise ValueError(
            f"{what} must have the columns of fit, {wanted_text}, in any order; got a frame {' and '.join(problems)}"
        )


def _read(columns: Columns, layout: Layout) -> FrameSeries | list[FrameSeries]:
    y = _matrix(columns, layout.outputs, complete=False)
    u = _matrix(columns, layout.controls, complete=True) if layout.controls else None
    time = None if layout.time is None else _stamps(layout.time, columns[layout.time])

    def part(rows: Any) -> FrameSeries:
        # Only differences matter, and float32 does not resolve them in Unix time.
        stamps = None if time is None else time[rows] - time[rows][:1]
        return FrameSeries(y[rows], None if u is None else u[rows], stamps, layout)

    if layout.group is None or layout.group not in columns:
        return part(slice(None))
    return [_in_group(part, *each) for each in _groups(layout.group, columns[layout.group])]


def _in_group(part: Callable[[Any], FrameSeries], label: Any, rows: np.ndarray) -> FrameSeries:
    """Read the series of one group, with its label in the error message."""
    try:
        return part(rows)
    except ValueError as error:
        raise ValueError(f"group {label!r}: {error}") from error


def _groups(name: str, column: nw.Series) -> list[tuple[Any, np.ndarray]]:
    """Return the labels in order of first appearance, with the rows of each."""
    _require_complete(name, column.is_null().to_numpy())
    labels = column.to_list()
    numbers = {label: n for n, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([numbers[label] for label in labels])
    return [(label, np.flatnonzero(codes == n)) for label, n in numbers.items()]


def _matrix(columns: Columns, names: Sequence[str], *, complete: bool) -> np.ndarray:
    return np.column_stack([_numbers(name, columns[name], complete=complete) for name in names])


def _numbers(name: str, column: nw.Series, *, complete: bool) -> np.ndarray:
    """Convert a column to float64, with NaN for missing values."""
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise TypeError(
            f"column {name!r} must be numeric, got {column.dtype}; leave it out, or declare it as time or group with "
            "prodssm.frames.series_of"
        )
    try:
        values = np.array(column.cast(nw.Float64).to_numpy(), float)
    except Exception as error:  # each backend raises its own type
        raise ValueError(f"column {name!r} cannot be read as numbers in double precision: {error}") from error
    if complete:
        _require_complete(name, np.isnan(values))
    return values


def _stamps(name: str, column: nw.Series) -> np.ndarray:
    """Convert a column to time since the first row: in seconds for dates and times, in their own unit for numbers."""
    _require_complete(name, column.is_null().to_numpy())
    if column.dtype.is_integer():
        values, ticks = np.asarray(column.to_numpy()).astype(np.int64), 1.0  # exact integers until the first is subtracted
    elif column.dtype.is_numeric():
        values, ticks = _numbers(name, column, complete=True), 1.0
    elif column.dtype in (nw.Date, nw.Datetime):
        # Exact integers until the first is subtracted: float64 Unix time has a resolution of a quarter of a microsecond.
        unit, ticks = ("ns", 1e9) if getattr(column.dtype, "time_unit", None) == "ns" else ("us", 1e6)
        values = column.dt.timestamp(unit).to_numpy()
    else:
        raise TypeError(f"time column {name!r} must hold numbers, dates or times, got {column.dtype}")
    return (values - values[:1]) / ticks


def _require_complete(name: str, missing: np.ndarray) -> None:
    if missing.any():
        raise ValueError(f"column {name!r} must be complete, got a missing value in row {int(np.argmax(missing))}")


def _columns(data: Any) -> Columns | None:
    """Return the columns of a data frame by name; None if the data are something else."""
    if isinstance(data, np.ndarray | jax.Array | Series | list | tuple | int | float):  # the common types, without narwhals
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


# ---------------------------------------------------------------- writing


def to_frame(
    found: Any, *, names: Sequence[str] | None = None, backend: str | None = None, probability: float = 0.95, first: int = 0
) -> Any:
    """Convert Gaussian beliefs over time to a data frame with one row per time step and four columns per output or state.

    Args:
        found: A result of `filter`, `smooth` or `forecast`, or anything with `.mean` and `.std` of shape (time, size).
        names: One per output or state; x0, x1, ... if not given.
        backend: "pandas", "polars" or "pyarrow"; by default the first of them that is installed.
        probability: Probability of the central interval from `lower` to `upper`.
        first: Number of the first time step.

    Returns:
        A frame with the column `step`, and `_mean`, `_std`, `_lower` and `_upper` for each name.
    """
    mean, std = np.asarray(found.mean), np.asarray(found.std)
    names = [f"x{n}" for n in range(mean.shape[1])] if names is None else _names(names)
    if len(names) != mean.shape[1]:
        raise ValueError(f"names must be {mean.shape[1]}, one per output or state, got {len(names)}")
    lower, upper = (np.asarray(bound) for bound in central_interval(found, probability))
    columns = {"step": first + np.arange(len(mean))}
    for n, name in enumerate(names):
        parts = {"mean": mean, "std": std, "lower": lower, "upper": upper}
        columns |= {f"{name}_{kind}": part[:, n] for kind, part in parts.items()}
    return _build(columns, backend)


def central_interval(found: Any, probability: float) -> tuple[Any, Any]:
    """Return the bounds of the central interval: those of `found.interval` if it has one, else those of a Gaussian."""
    require_probability(probability)
    if callable(getattr(found, "interval", None)):
        return found.interval(probability)
    mean, radius = np.asarray(found.mean), NormalDist().inv_cdf(0.5 + float(probability) / 2) * np.asarray(found.std)
    return mean - radius, mean + radius


def _build(columns: dict[str, np.ndarray], backend: str | None) -> Any:
    if backend is not None and backend not in BUILDERS:
        raise ValueError(f"backend must be one of {', '.join(BUILDERS)}; got {backend!r}")
    installed = [name for name in BUILDERS if find_spec(name) is not None]
    if backend is None and not installed:
        raise ImportError(f"a data frame needs one of {', '.join(BUILDERS)}; install it, for instance `pip install pandas`")
    backend = installed[0] if backend is None else backend
    if backend not in installed:
        raise ImportError(f"backend={backend!r} is not installed; `pip install {backend}`, or choose another")
    return getattr(import_module(backend), BUILDERS[backend])(columns)
