"""What the columns of a data frame stand for, and how controls are made of them."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import equinox as eqx
import jax
import narwhals as nw
import numpy as np

from prodssm.data.calendar import calendar_features
from prodssm.data.series import Series
from prodssm.data.stamps import NUMBER, Stamps, iso_dates

Columns = dict[str, nw.Series]


@dataclass(frozen=True)
class Layout:
    """The roles of the columns of a data frame.

    Attributes:
        outputs: Columns of y, in the order of the model's outputs.
        controls: Columns of u.
        time: Column of time stamps.
        group: Column that identifies the series of a row.
        backend: Library of the frame, if `to_frame` supports it.
        index: Whether time stamps are the index of a pandas frame.
        clock: On which time is measured, see `Stamps`.
        calendar: Features of the calendar that are controls as well, see `prodssm.data.calendar`.
        categories: Columns that are turned into indicators, each with the values that it had in fit.
        fill: How gaps in controls are filled, a name of `FILLS`; None: they are an error.
    """

    outputs: tuple[str, ...]
    controls: tuple[str, ...] = ()
    time: str | None = None
    group: str | None = None
    backend: str | None = None
    index: bool = False
    clock: str | None = None
    calendar: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[str, ...]], ...] = ()
    fill: str | None = None

    @property
    def inputs(self) -> list[str]:
        """Columns that controls are made of."""
        return [*self.controls, *(name for name, _ in self.categories)]

    @property
    def names(self) -> list[str]:
        """All columns except the group, which is optional in later data."""
        return [*self.outputs, *self.inputs, *([self.time] if self.time is not None else [])]

    @property
    def control_names(self) -> list[str]:
        """The columns of u, indicators and features of the calendar included."""
        indicators = [f"{name}={value}" for name, values in self.categories for value in values]
        one = Stamps(np.zeros(1, "datetime64[ns]"))
        features = [f"{name}.{n}" for name in self.calendar for n in range(calendar_features([name], one).shape[1])]
        return [*self.controls, *indicators, *features]


class FrameSeries(Series):
    """A series with the layout of the data frame that it was read from, and the label of its group."""

    layout: Layout = eqx.field(static=True, default=Layout(()))
    label: Any = eqx.field(static=True, default=None)

    def __init__(self, y: Any, u: Any, time: Any, layout: Layout, label: Any = None):
        super().__init__(y, u, time)
        self.layout, self.label = layout, label


# ---------------------------------------------------------------- columns


def columns_in(data: Any) -> Columns | None:
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


def levels_in(frame: Any) -> Columns:
    """The levels of a pandas index that are named, or dates, as columns; a column of the same name comes first."""
    index = nw.maybe_get_index(nw.from_native(frame, eager_only=True))
    if index is None:
        return {}
    found = {}
    for n in range(index.nlevels):
        level = index.get_level_values(n)
        level = level.to_timestamp() if hasattr(level, "to_timestamp") else level  # periods are stamped at their beginning
        column = nw.from_native(level.to_series(index=range(len(level))), series_only=True)
        name = level.name if level.name is not None else "time" if is_date(column) else None
        if name is not None and str(name) not in frame.columns:
            found[str(name)] = column
    return found


def is_date(column: nw.Series) -> bool:
    """Whether a column holds dates or times."""
    return column.dtype in (nw.Date, nw.Datetime)


def groups_in(name: str, column: nw.Series) -> list[tuple[Any, np.ndarray]]:
    """Return the labels in order of first appearance, with the rows of each."""
    require_complete(name, column.is_null().to_numpy())
    labels = column.to_list()
    numbers = {label: n for n, label in enumerate(dict.fromkeys(labels))}
    codes = np.array([numbers[label] for label in labels])
    order = np.argsort(codes, kind="stable")
    ends = np.cumsum(np.bincount(codes, minlength=len(numbers)))
    return list(zip(numbers, np.split(order, ends[:-1]), strict=True))


def matrix_of(columns: Columns, names: Sequence[str]) -> np.ndarray:
    """Columns as float64, with NaN for missing values, (rows, columns)."""
    rows = len(next(iter(columns.values())))
    return np.concatenate([np.empty((rows, 0)), *(numbers_of(name, columns[name])[:, None] for name in names)], axis=1)


def numbers_of(name: str, column: nw.Series) -> np.ndarray:
    """A column as float64, with NaN for missing values."""
    if column.null_count() == len(column):  # a sensor that was off all the time, whose type nobody knows
        return np.full(len(column), np.nan)
    if not (column.dtype.is_numeric() or column.dtype == nw.Boolean):
        raise TypeError(
            f"column {name!r} must be numeric, got {column.dtype}{_first_text(column)}; leave it out, or declare it as time, "
            "group or one_hot"
        )
    try:
        return np.array(column.cast(nw.Float64).to_numpy(), float)
    except Exception as error:  # each backend raises its own type
        raise ValueError(f"column {name!r} cannot be read as numbers in double precision: {error}") from error


def _first_text(column: nw.Series) -> str:
    """The first value that is not a number, for a message."""
    values = (value for value in column.to_list() if value is not None)
    found = next((value for value in values if not spells_number(value)), None)
    if found is None:
        return ""
    commas = isinstance(found, str) and "," in found and spells_number(found.replace(",", ""))
    return f" such as {found!r}" + (" (write numbers with a decimal point and without other signs)" if commas else "")


def spells_number(value: Any) -> bool:
    """Whether a value is a number, or text that spells one."""
    try:
        float(value)
    except (TypeError, ValueError):
        return False
    return True


def stamps_of(name: str, column: nw.Series, clock: str | None = None) -> Stamps:
    """A column of numbers, dates, times, or text that spells these."""
    require_complete(name, column.is_null().to_numpy())
    if column.dtype in (nw.String, nw.Object, nw.Categorical):
        column = _parsed(name, column)
    numbers = column.dtype.is_numeric()
    if clock is not None and numbers != (clock == NUMBER):
        raise TypeError(
            f"time column {name!r} must hold {'numbers' if clock == NUMBER else 'dates'} as in fit, got {column.dtype}"
        )
    if column.dtype.is_integer():
        return Stamps.read(np.asarray(column.to_numpy()))
    if numbers:
        values = numbers_of(name, column)
        require_complete(name, ~np.isfinite(values))
        return Stamps.read(values)
    if column.dtype not in (nw.Date, nw.Datetime):
        raise TypeError(f"time column {name!r} must hold numbers, dates or times, got {column.dtype}")
    unit = "ns" if getattr(column.dtype, "time_unit", None) == "ns" else "us"
    ticks = np.asarray(column.dt.timestamp(unit).to_numpy()).astype(np.int64).astype(f"datetime64[{unit}]")
    return Stamps.read(ticks, getattr(column.dtype, "time_zone", None), clock)


def _parsed(name: str, column: nw.Series) -> nw.Series:
    """Text as dates and times."""
    texts = [str(each) for each in column.to_list()]
    rewritten = iso_dates(texts)
    if rewritten is None:
        raise ValueError(
            f"time column {name!r} must say which number is the day, got text such as {texts[0]!r}; write year-month-day, "
            "such as '2024-01-31 18:00:00'"
        )
    try:
        text = (
            column.cast(nw.String)
            if rewritten is texts
            else nw.new_series(name, rewritten, nw.String, backend=column.implementation)
        )
        return text.str.to_datetime()
    except Exception as error:  # each backend raises its own type
        spelt = nw.new_series(name, rewritten, nw.String, backend=column.implementation)
        row = bisect_left(range(1, len(texts)), True, key=lambda count: not _are_dates(spelt[:count]))
        raise ValueError(
            f"time column {name!r} must hold numbers, dates or times of one format and time zone, such as "
            f"'2024-01-31 18:00:00', got text that cannot be read, such as {texts[row]!r} in row {row}"
        ) from error


def _are_dates(text: nw.Series) -> bool:
    """Whether all of these texts can be read as dates of one format."""
    try:
        text.str.to_datetime()
    except Exception:
        return False
    return True


def require_complete(name: str, missing: np.ndarray, remedy: str = "") -> None:
    """Raise if a column has gaps."""
    if missing.any():
        row = int(np.argmax(missing))
        raise ValueError(f"column {name!r} must be complete, got a missing value in row {row}{remedy}")


def require_columns(what: str, given: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise unless the same columns are given, in any order."""
    missing, unknown = ([name for name in a if name not in b] for a, b in ((wanted, given), (given, wanted)))
    if missing or unknown:
        problems = [(kind, names) for kind, names in (("without", missing), ("with", unknown)) if names]
        text = " and ".join(f"{kind} {', '.join(map(repr, names))}" for kind, names in problems)
        wanted_text = ", ".join(repr(name) for name in wanted)
        raise ValueError(f"{what} must have the columns of fit, {wanted_text}, in any order; got a frame {text}")


def require_column(name: str, found: Sequence[str]) -> None:
    """Raise unless there is such a column; the message suggests one."""
    if name not in found:
        near = get_close_matches(name, [str(each) for each in found], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"frame must have a column {name!r}, got {', '.join(map(repr, found)) or 'none'}{hint}")


# ---------------------------------------------------------------- controls


def _previous(values: np.ndarray, time: np.ndarray) -> np.ndarray:
    """The last value that is known, at the beginning the first one."""
    known = np.where(np.isnan(values), -1, np.arange(len(values)))
    last = np.maximum.accumulate(known)
    return values[np.where(last < 0, int(np.argmax(known >= 0)), last)]


def _interpolated(values: np.ndarray, time: np.ndarray) -> np.ndarray:
    """Linear in time between the values that are known, constant beyond."""
    known = ~np.isnan(values)
    return np.interp(time, time[known], values[known])


FILLS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {"previous": _previous, "interpolate": _interpolated}
"""How gaps in controls are filled."""


def controls_of(columns: Columns, layout: Layout) -> np.ndarray | None:
    """Controls from columns, gaps as NaN, without features of the calendar; None if there are none."""
    if not layout.inputs:
        return None
    parts = [indicators(columns[name], name, values) for name, values in layout.categories]
    return np.concatenate([matrix_of(columns, layout.controls), *parts], axis=1)


def indicators(column: nw.Series, name: str, values: Sequence[str]) -> np.ndarray:
    """One column per value: 1 where it is that value, NaN where it is missing."""
    texts = [None if value is None or value != value else str(value) for value in column.to_list()]
    unknown = next((text for text in texts if text is not None and text not in values), None)
    if unknown is not None:
        raise ValueError(f"column {name!r} must have values of fit, {', '.join(map(repr, values))}; got {unknown!r}")
    found = np.array([[text == value for value in values] for text in texts], float).reshape(len(texts), len(values))
    found[[text is None for text in texts]] = np.nan
    return found


def completed(u: np.ndarray | None, layout: Layout, stamps: Stamps | None, rows: int) -> np.ndarray | None:
    """Controls of consecutive rows without gaps, and with features of the calendar."""
    parts = []
    if u is not None:
        time = np.arange(rows, dtype=float) if stamps is None else stamps.elapsed
        names = layout.control_names
        parts = [_filled(names[n], u[:, n], time, layout.fill)[:, None] for n in range(u.shape[1])]
    if layout.calendar:
        parts.append(calendar_features(layout.calendar, _dates(stamps)))
    return np.concatenate(parts, axis=1) if parts else None


def _filled(name: str, values: np.ndarray, time: np.ndarray, fill: str | None) -> np.ndarray:
    gaps = np.isnan(values)
    if not gaps.any():
        return values
    if fill is None or gaps.all():
        require_complete(name, gaps, "" if gaps.all() else f"; say how to fill gaps, fill={' or '.join(map(repr, FILLS))}")
    assert fill is not None
    return FILLS[fill](values, time)


def _dates(stamps: Stamps | None) -> Stamps:
    if stamps is None or stamps.values.dtype.kind != "M":
        raise ValueError("features of the calendar need time stamps that are dates; name their column with time=")
    return stamps
