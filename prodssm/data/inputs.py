"""Future controls and single rows, from data frames, dicts and arrays by the layout of fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import narwhals as nw
import numpy as np

from prodssm.data.calendar import calendar_features
from prodssm.data.layout import Layout, columns_in, completed, controls_of, groups_in, matrix_of, require_columns
from prodssm.data.stamps import Stamps


def future_controls(u: Any, layout: Layout | None, stamps: Stamps | None, rows: int) -> Any:
    """The controls at future time steps: columns of a frame by name, indicators and features of the calendar included.

    Args:
        u: A data frame, or an array of the columns before the calendar's; None if the calendar has them all.
        layout: The columns of fit.
        stamps: Those of the future, at least as many as rows.
        rows: Their number, if `u` does not say.
    """
    found = columns_in(u)
    if layout is None:
        return u if found is None else matrix_of(found, list(found))
    if found is not None:
        time = [] if layout.time is None else [layout.time]
        require_columns("u", [name for name in found if name not in (*time, *layout.outputs)], layout.inputs)
        u = controls_of(found, layout)
    if not layout.calendar:
        return u if found is None else completed(u, layout, None, len(u))
    values = None if u is None else np.atleast_2d(np.asarray(u, float))
    rows = rows if values is None else len(values)
    return completed(values, layout, None if stamps is None else stamps[:rows], rows)


def controls_from(u: Any, layout: Layout | None) -> Any:
    """Controls from the columns of a frame, by name and without the calendar's; anything else unchanged."""
    return future_controls(u, None if layout is None else replace(layout, calendar=()), None, 0)


def split_controls(u: Any, layout: Layout | None, labels: Sequence[Any]) -> list[Any]:
    """The controls of each of several series: from a list, or from a frame with their groups; else the same for all."""
    if isinstance(u, list | tuple) and len(labels) > 1 and len(u) == len(labels) and not np.isscalar(u[0]):
        return list(u)
    native: Any = u
    found = columns_in(native)
    if found is None or layout is None or layout.group is None or layout.group not in found:
        return [u] * len(labels)
    rows = dict(groups_in(layout.group, found[layout.group]))
    table: Any = nw.from_native(native, eager_only=True).drop(layout.group)
    for label in labels:
        if label not in rows:
            raise ValueError(f"u must have controls of group {label!r}, got {', '.join(map(repr, rows))}")
    return [table[rows[label].tolist()].to_native() for label in labels]


def row_from(value: Any, columns: Sequence[str]) -> Any:
    """Convert a row with names, such as a dict or a row of a pandas frame, to an array; return anything else unchanged."""
    names = list(value.keys()) if callable(getattr(value, "keys", None)) else []
    if not columns or not any(isinstance(name, str) for name in names):
        return value
    found = {str(name): value[name] for name in names}
    require_columns("a row", list(found), columns)
    return np.array([found[name] for name in columns], float)


def control_row(value: Any, layout: Layout, time: Any) -> Any:
    """One row of controls, with the features of the calendar at this time; None if there are none.

    Args:
        value: An array of the columns before the calendar's, or a row with names, in which categories are as in a frame.
        layout: The columns of fit.
        time: A date, as the clock on the wall shows it where the data come from.
    """
    if layout.categories and callable(getattr(value, "keys", None)):
        found = {str(name): value[name] for name in value.keys()}
        require_columns("a row", list(found), layout.inputs)
        numbers = [float(found[name]) for name in layout.controls]
        value = np.array(numbers + [float(str(found[name]) == each) for name, values in layout.categories for each in values])
    else:
        value = row_from(value, layout.controls)
    if not layout.calendar:
        return value
    if time is None:
        raise ValueError("time must be given: features of the calendar are controls of this model")
    wall = time.replace(tzinfo=None) if getattr(time, "tzinfo", None) is not None else time
    features = calendar_features(layout.calendar, Stamps.read(np.array([wall], "datetime64[ns]")))[0]
    return features if value is None else np.concatenate([np.asarray(value, float), features])
