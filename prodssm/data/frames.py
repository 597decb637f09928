"""Data frames of any library that narwhals supports, pandas, polars and pyarrow tables, read as series.

By default every column of a frame is an output and must be numeric, and a pandas index of dates is the time. `series_of`
declares controls, time stamps, series identifiers and features of the calendar; a model stores this `Layout` and reads the
columns of later frames by name.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, overload

import narwhals as nw
import numpy as np

from prodssm.data.calendar import AUTO, chosen_features, require_features
from prodssm.data.layout import (
    FILLS,
    Columns,
    FrameSeries,
    Layout,
    columns_in,
    completed,
    controls_of,
    groups_in,
    is_date,
    levels_in,
    matrix_of,
    require_column,
    require_columns,
    stamps_of,
)
from prodssm.data.series import as_series, is_row, with_times
from prodssm.data.stamps import require_increasing
from prodssm.data.tables import BUILDERS as BUILDERS
from prodssm.data.tables import to_frame as to_frame

Names = str | Sequence[str] | None


@overload
def series_of(
    frame: Any,
    *,
    columns: Names = None,
    controls: Names = None,
    time: str | None = None,
    group: None = None,
    calendar: Names = None,
    one_hot: Names = None,
    fill: str | None = None,
) -> FrameSeries: ...
@overload
def series_of(
    frame: Any,
    *,
    columns: Names = None,
    controls: Names = None,
    time: str | None = None,
    group: str,
    calendar: Names = None,
    one_hot: Names = None,
    fill: str | None = None,
) -> list[FrameSeries]: ...
def series_of(
    frame: Any,
    *,
    columns: Names = None,
    controls: Names = None,
    time: str | None = None,
    group: str | None = None,
    calendar: Names = None,
    one_hot: Names = None,
    fill: str | None = None,
) -> FrameSeries | list[FrameSeries]:
    """Read series from a data frame with one row per time step.

    Missing values are allowed in outputs, in controls if `fill` says what to do, not in time stamps and groups. Time is in
    seconds if the stamps are dates or times (months, if only these make equal steps), else in their own unit.

    Args:
        frame: A pandas or polars data frame, a pyarrow table, or another frame that narwhals supports.
        columns: Outputs y; by default all columns without another role.
        controls: Control inputs u. `u[t]` acts between `y[t]` and `y[t + 1]`.
        time: Column of time stamps: numbers, dates or times, increasing within each series. By default the index of a pandas
            frame, if it holds dates.
        group: Column that identifies the series of a row.
        calendar: Features of the calendar that are controls too: "hour_of_day", "day_of_week", "weekend", "day_of_year", or
            "auto" for those whose cycles the data show. Forecasts know their future values.
        one_hot: Columns of categories, each of which becomes a control that is 0 or 1.
        fill: How gaps in controls are filled: "previous" or "interpolate".

    Returns:
        One series; or, if `group` is given, a list of series in order of first appearance.

    Example:
        >>> import pyarrow
        >>> frame = pyarrow.table({"level": [0.1, None, 0.3], "valve": [1, 1, 0]})
        >>> series_of(frame, controls="valve").y.shape
        (3, 1)
    """
    found = columns_in(frame)
    if found is None:
        raise TypeError(f"frame must be a data frame of pandas, polars or pyarrow, got {type(frame).__name__}")
    levels = levels_in(frame)
    time, group = (None if name is None else str(name) for name in (time, group))
    time = _dates_in(levels) if time is None else time
    inputs, categories = _names(controls), _names(one_hot)
    special = [name for name in (time, group) if name is not None]
    outputs = [name for name in found if name not in (*inputs, *categories, *special)] if columns is None else _names(columns)
    _require_roles([*outputs, *inputs, *categories, *special], [*found, *levels])
    if not outputs:
        raise ValueError(f"frame must have at least one column of observations, got {', '.join(map(repr, found)) or 'none'}")
    if fill is not None and fill not in FILLS:
        raise ValueError(f"fill must be one of {', '.join(map(repr, FILLS))}; got {fill!r}")
    everything = found | levels
    layout = Layout(tuple(outputs), tuple(inputs), time, group, _backend(frame), time in levels, fill=fill)
    layout = replace(layout, categories=tuple((name, _values(name, everything[name])) for name in categories))
    return _read(everything, _with_calendar(layout, everything, calendar))


def layout_of(data: Any) -> Layout | None:
    """Return the layout of the first data frame among the data; None if there is none.

    Example:
        >>> import pyarrow
        >>> layout_of(pyarrow.table({"level": [0.1, 0.3]})).outputs
        ('level',)
    """
    for each in data if isinstance(data, list | tuple) else [data]:
        if isinstance(each, FrameSeries):
            return each.layout
        found = columns_in(each)
        if found is not None:
            levels = levels_in(each)
            time = _dates_in(levels)
            return _clocked(Layout(tuple(found), time=time, backend=_backend(each), index=time is not None), found | levels)
    return None


def from_frames(data: Any, layout: Layout | None) -> Any:
    """Convert every data frame among the data to series with columns in the order of the layout; keep other data unchanged.

    Example:
        >>> import pyarrow
        >>> from_frames([pyarrow.table({"level": [0.1, 0.3]})], None)[0].y.shape
        (2, 1)
    """
    layout = layout_of(data) if layout is None else layout
    if layout is None:
        return data
    if not isinstance(data, list | tuple):
        return _ordered(data, layout)
    found = [_ordered(each, layout) for each in data]
    if all(new is old for new, old in zip(found, data, strict=True)):
        return data  # no data frame among them
    return [one for each in found for one in (each if _are_series(each) else [as_series(each)])]


def is_panel(data: Any, layout: Layout | None) -> bool:
    """Whether data are several series, if only a list of one, rather than a series.

    Example:
        >>> is_panel([np.zeros((5, 1)), np.zeros((7, 1))], None), is_panel(np.zeros((5, 1)), None)
        (True, False)
    """
    if isinstance(data, list | tuple):
        return len(data) > 0 and not is_row(data[0])
    if layout is None or layout.group is None:
        return False
    return layout.group in (columns_in(data) or {}) or layout.group in (levels_in(data) if columns_in(data) is not None else {})


# ---------------------------------------------------------------- reading


def _are_series(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, FrameSeries) for each in value)


def _ordered(data: Any, layout: Layout) -> Any:
    """Convert a frame, or a series read from one, to series with columns in the order of the layout."""
    if isinstance(data, FrameSeries):
        if data.layout == layout:
            return data
        require_columns("data", data.layout.names, layout.names)
        require_columns("data", data.layout.control_names, layout.control_names)
        y = data.y[:, np.array([data.layout.outputs.index(name) for name in layout.outputs])]
        given = data.layout.control_names
        u = None if data.u is None else data.u[:, np.array([given.index(name) for name in layout.control_names])]
        found = FrameSeries(y, u, data.stamps, layout, data.label)
        return found if data.time is None else with_times(found, data.time, data.dt)
    found = columns_in(data)
    if found is None:
        return data
    levels = {name: column for name, column in levels_in(data).items() if name in (layout.time, layout.group)}
    require_columns("data", [name for name in found | levels if name != layout.group], layout.names)
    return _read(found | levels, layout)


def _require_roles(named: Sequence[str], found: Sequence[str]) -> None:
    """Raise unless there are these columns, each with one role."""
    for name in named:
        require_column(name, found)
        if named.count(name) > 1:
            raise ValueError(f"columns, controls, one_hot, time and group must be different columns, got {name!r} twice")


def _read(columns: Columns, layout: Layout) -> FrameSeries | list[FrameSeries]:
    y, u = matrix_of(columns, layout.outputs), controls_of(columns, layout)
    stamps = None if layout.time is None else stamps_of(layout.time, columns[layout.time], layout.clock)

    def part(rows: Any, label: Any = None) -> FrameSeries:
        those = None if stamps is None else stamps[rows]
        if those is not None:
            require_increasing(those, f"time column {layout.time!r}")
        controls = completed(None if u is None else u[rows], layout, those, len(y[rows]))
        return FrameSeries(y[rows], controls, those, layout, label)

    if layout.group is None or layout.group not in columns:
        return part(slice(None))
    return [_in_group(part, *each) for each in groups_in(layout.group, columns[layout.group])]


def _in_group(part: Callable[[Any, Any], FrameSeries], label: Any, rows: np.ndarray) -> FrameSeries:
    """Read the series of one group, with its label in the error message."""
    try:
        return part(rows, label)
    except ValueError as error:
        raise ValueError(f"group {label!r}: {error}") from error


def _clocked(layout: Layout, columns: Columns) -> Layout:
    """The layout with the clock on which the stamps of its first series are regular."""
    if layout.time is None:
        return layout
    column = columns[layout.time]
    if layout.group is not None:
        first = groups_in(layout.group, columns[layout.group])[0][1]
        column = column[first.tolist()]
    return replace(layout, clock=stamps_of(layout.time, column).clock)


def _with_calendar(layout: Layout, columns: Columns, calendar: Names) -> Layout:
    """The layout with its clock, and with the features of the calendar that are asked for."""
    layout = _clocked(layout, columns)
    if calendar is None:
        return layout
    if layout.time is None:
        raise ValueError("calendar needs time stamps: name their column with time=")
    stamps = stamps_of(layout.time, columns[layout.time], layout.clock)
    if stamps.values.dtype.kind != "M":
        raise ValueError(f"calendar needs dates or times, column {layout.time!r} has numbers")
    features = chosen_features(stamps) if calendar == AUTO else tuple(_names(calendar))
    require_features(features)
    return replace(layout, calendar=features)


def _values(name: str, column: nw.Series) -> tuple[str, ...]:
    """The values of a column of categories, sorted."""
    found = sorted({str(value) for value in column.to_list() if value is not None and value == value})
    if not found:
        raise ValueError(f"one_hot column {name!r} must have values, got none")
    return tuple(found)


def _dates_in(levels: Columns) -> str | None:
    """The name of the level that holds dates."""
    return next((name for name, column in levels.items() if is_date(column)), None)


def _backend(frame: Any) -> str | None:
    name = nw.get_native_namespace(frame).__name__
    return name if name in BUILDERS else None


def _names(given: Names) -> list[str]:
    if given is None:
        return []
    return [str(given)] if isinstance(given, str | int | np.integer) else [str(name) for name in given]
