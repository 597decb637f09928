"""Results as data frames: one row per time step, with the time stamps that the data had."""

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from statistics import NormalDist
from typing import Any

import narwhals as nw
import numpy as np

from prodssm._validation import require_probability
from prodssm.data.layout import Layout
from prodssm.data.stamps import Stamps

BUILDERS = {"pandas": "DataFrame", "polars": "DataFrame", "pyarrow": "table"}  # the constructor that takes columns by name
STEP = "step"

Table = dict[str, Any]  # columns by name: arrays, or stamps


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
        A frame with the time stamps of the data, else the column `step`, and `_mean`, `_std`, `_lower` and `_upper` for each
        name.

    Example:
        >>> from types import SimpleNamespace
        >>> found = SimpleNamespace(mean=np.zeros((2, 1)), std=np.ones((2, 1)))
        >>> to_frame(found, names=["level"], backend="pyarrow").column_names
        ['step', 'level_mean', 'level_std', 'level_lower', 'level_upper']
    """
    table = table_of(found, names=names, probability=probability, first=first)
    return build(table, backend, getattr(found, "layout", None))


def table_of(found: Any, *, names: Sequence[str] | None, probability: float, first: int) -> Table:
    """The columns of beliefs over time."""
    mean, std = np.asarray(found.mean), np.asarray(found.std)
    names = [f"x{n}" for n in range(mean.shape[1])] if names is None else [str(name) for name in names]
    if len(names) != mean.shape[1]:
        raise ValueError(f"names must be {mean.shape[1]}, one per output or state, got {len(names)}")
    lower, upper = (np.asarray(bound) for bound in central_interval(found, probability))
    parts = {"mean": mean, "std": std, "lower": lower, "upper": upper}
    values = {f"{name}_{kind}": part[:, n] for n, name in enumerate(names) for kind, part in parts.items()}
    return time_of(found, len(mean), first) | values


def time_of(found: Any, count: int, first: int) -> Table:
    """The column of time: stamps, or the number of the step."""
    stamps, layout = getattr(found, "stamps", None), getattr(found, "layout", None)
    if stamps is None:
        return {STEP: first + np.arange(count)}
    return {"time" if layout is None or layout.time is None else layout.time: stamps}


def central_interval(found: Any, probability: float) -> tuple[Any, Any]:
    """Return the bounds of the central interval: those of `found.interval` if it has one, else those of a Gaussian."""
    require_probability(probability)
    if callable(getattr(found, "interval", None)):
        return found.interval(probability)
    mean, radius = np.asarray(found.mean), NormalDist().inv_cdf(0.5 + float(probability) / 2) * np.asarray(found.std)
    return mean - radius, mean + radius


def joined(tables: Sequence[Table], labels: Sequence[Any], group: str) -> Table:
    """The rows of several tables of the same columns, with a column that says which one they are of."""
    lengths = [len(next(iter(table.values()))) for table in tables]
    found: Table = {group: np.repeat(np.array(labels, dtype=object if isinstance(labels[0], str) else None), lengths)}
    for name, first in tables[0].items():
        parts = [table[name] for table in tables]
        if isinstance(first, Stamps):
            found[name] = Stamps(np.concatenate([each.values for each in parts]), first.clock, first.zone)
        else:
            found[name] = np.concatenate(parts)
    return found


def build(table: Table, backend: str | None, layout: Layout | None = None) -> Any:
    """A data frame of these columns; with the index of the frame that they belong to, if that was its time."""
    backend = _installed(backend or (None if layout is None else layout.backend))
    columns = {name: each.values if isinstance(each, Stamps) else each for name, each in table.items()}
    found = getattr(import_module(backend), BUILDERS[backend])(columns)
    zones = {name: each.zone for name, each in table.items() if isinstance(each, Stamps) and each.zone is not None}
    if zones:
        aware = [nw.col(name).dt.replace_time_zone("UTC").dt.convert_time_zone(zone) for name, zone in zones.items()]
        found = nw.from_native(found).with_columns(*aware).to_native()
    if backend == "pandas" and layout is not None and layout.index and layout.time in table:
        levels = [name for name in (layout.group, layout.time) if name is not None and name in table]
        found = found.set_index(levels if len(levels) > 1 else levels[0])
    return found


def _installed(backend: str | None) -> str:
    if backend is not None and backend not in BUILDERS:
        raise ValueError(f"backend must be one of {', '.join(BUILDERS)}; got {backend!r}")
    installed = [name for name in BUILDERS if find_spec(name) is not None]
    if backend is None and not installed:
        raise ImportError(f"a data frame needs one of {', '.join(BUILDERS)}; install it, for instance `pip install pandas`")
    backend = installed[0] if backend is None else backend
    if backend not in installed:
        raise ImportError(f"backend={backend!r} is not installed; `pip install {backend}`, or choose another")
    return backend
