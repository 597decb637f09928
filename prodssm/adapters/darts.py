"""Results as series of Darts."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from prodssm.data.stamps import MONTH, WALL, Stamps
from prodssm.estimators.results import Panel, Prediction
from prodssm.models.filtering import Outputs


def to_darts(found: Any, count: int | None = None, key: Any = None, freq: Any = None) -> Any:
    """Convert a result to a `darts.TimeSeries`, and those of several series to a list.

    A series of Darts is regular and knows no time zones: stamps with a zone are told in UTC, or by the own clock of the zone if
    their steps are days or months.

    Args:
        found: What `forecast`, `filter` or `smooth` returned, or its `outputs`.
        count: Number of paths of a forecast, the samples of a stochastic series; without it the series holds the means.
        key: Randomness of the paths, such as `jax.random.key(0)`.
        freq: Frequency of dates, which Darts cannot infer from fewer than three, such as "h".

    Example:
        >>> to_darts(model.forecast(y, steps=3), count=10, key=jr.key(0)).shape
        (3, 1, 10)
    """
    try:
        series = import_module("darts").TimeSeries
    except ImportError as error:
        raise ImportError("to_darts needs Darts: pip install darts") from error
    if isinstance(found, Panel):
        return [to_darts(each, count, key, freq) for each in found]
    if count is None:
        values = np.asarray(found.mean)
    elif isinstance(found, Prediction):
        values = np.moveaxis(found.sample(count, key), 0, 2)
    else:
        raise ValueError("paths are drawn from forecasts: leave out count for what filter and smooth return")
    names, stamps = _about(found)
    times = _times(stamps, len(values), first=int(isinstance(found, Prediction)))
    return series.from_times_and_values(times, values, columns=list(names), freq=freq)


def _about(found: Any) -> tuple[Sequence[str], Stamps | None]:
    """Names of what a result is about, and its time stamps."""
    if isinstance(found, Prediction):
        return found.names, found.stamps
    names = found.origin.outputs if isinstance(found, Outputs) else found.origin.states
    return names or [f"x{n}" for n in range(found.mean.shape[1])], found.origin.stamps


def _times(stamps: Stamps | None, count: int, first: int) -> Any:
    """The index of a series."""
    import pandas as pd

    if stamps is None:
        return pd.RangeIndex(first, first + count)
    if stamps.values.dtype.kind == "M":
        return pd.DatetimeIndex(stamps.wall if stamps.clock in (WALL, MONTH) else stamps.values)
    if stamps.values.dtype.kind != "i":
        raise ValueError(f"a series of Darts has dates or whole numbers as time stamps, got {stamps.text(0)}")
    return pd.Index(stamps.values)
