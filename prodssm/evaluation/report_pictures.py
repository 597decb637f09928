"""The pictures of a report as compact data for its script: long lines decimated, numbers rounded.

A picture has views, one for each choice of the reader (of a series, of an origin); a view has panels, a panel has layers, and a
layer draws a line of the common pool.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from prodssm.data.series import REGULAR_TOLERANCE, Series
from prodssm.data.stamps import SECOND, Stamps

DIGITS, TIME_DIGITS = 5, 8  # significant ones
MOST_SERIES, MOST_OUTPUTS, MOST_CONTROLS, MOST_STATES, MOST_GAPS = 40, 8, 4, 8, 100  # that are drawn, of gaps per series
CHARACTERS, PER_NUMBER = 1_600_000, 8  # of all lines over time together, and of one number
FEWEST_POINTS, MOST_POINTS = 60, 2000  # of one line
MOST_FORECASTS = 80  # times outputs, that are drawn


@dataclass
class Pictures:
    """Data of all pictures of a page.

    Attributes:
        lines: The pool of lines.
        figures: By the name of the picture.
        choices: Labels of what a reader can choose, by the name of the choice; origins by series.
        decimated: Number of points per line where lines are decimated, else None.
    """

    lines: list[dict[str, Any]] = field(default_factory=list)
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    choices: dict[str, Any] = field(default_factory=dict)
    decimated: int | None = None

    def add_line(self, **columns: Any) -> int:
        """The index of a new line of the pool."""
        self.lines.append(columns)
        return len(self.lines) - 1

    def add_view(self, name: str, key: str, panels: list[dict[str, Any]], **of_figure: Any) -> None:
        """A view of a figure; what is said of the figure is the same for all of its views."""
        self.figures.setdefault(name, of_figure | {"views": {}})["views"][key] = panels

    def to_json(self) -> str:
        """All of it, harmless inside a script element."""
        text = compact({"lines": self.lines, "figures": self.figures, "choices": self.choices})
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def layer(kind: str, line: int, name: str = "", colour: str = "ink") -> dict[str, Any]:
    """One line of a panel: how it is drawn, what it is called."""
    return {"k": kind, "d": line, "n": name, "c": colour}


def panel(title: str, x: str, layers: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
    """Axes with what is drawn on them."""
    return {"t": title, "x": x, "layers": layers} | options


# ---------------------------------------------------------------- time


@dataclass(frozen=True)
class TimeAxis:
    """The times of a series: regular, or one number for each time step; seconds since the first one where they are dates.

    Attributes:
        step: The typical time step.
        values: Time since the first row; None if it is regular.
        stamps: The dates, if these are the times.
    """

    step: float
    values: Float[np.ndarray, " time"] | None = None
    stamps: Stamps | None = None

    @classmethod
    def of(cls, series: Series) -> "TimeAxis":
        """The axis of a series, which counts time steps where there are no stamps."""
        if series.time is None or len(series) == 1:
            return cls(1.0)
        dates = series.stamps if series.stamps is not None and series.stamps.values.dtype.kind == "M" else None
        since = np.asarray(series.time, float) if dates is None else _seconds(dates)
        steps = np.asarray(series.dt[:-1], float) if dates is None else np.diff(since)
        step = float(np.median(steps))
        regular = bool((np.abs(steps / step - 1) < REGULAR_TOLERANCE).all())
        return cls(step, None if regular else since, dates)

    def at(self, index: int) -> float:
        """The time at a time step, also after the end."""
        if self.values is None:
            return self.step * index
        beyond = index - len(self.values) + 1
        if beyond <= 0:
            return float(self.values[index])
        if self.stamps is None:
            return float(self.values[-1]) + self.step * beyond
        return float((_shown(self.stamps.later(beyond))[-1] - _shown(self.stamps[:1])[0]) / np.timedelta64(1, "s"))

    @property
    def date(self) -> int:
        """The date of the first row, in milliseconds since 1970, as its own clock shows it."""
        assert self.stamps is not None
        return int(_shown(self.stamps[:1])[0].astype("datetime64[ms]").astype(np.int64))

    def text(self, index: int) -> str:
        """A time for people, of at most six digits or a date."""
        if self.stamps is None:
            return f"{self.at(index):.6g}"
        value = np.datetime64(self.date + round(1000 * self.at(index)), "ms")
        unit = next((each for each in ("D", "m") if value.astype(f"datetime64[{each}]") == value), "s")
        return str(value.astype(f"datetime64[{unit}]")).replace("T", " ")

    def named(self, name: str) -> str:
        """The name of time, with the offset from UTC of dates that are not those of the clock on the wall throughout."""
        if self.stamps is None or self.stamps.zone is None or self.stamps.clock != SECOND:
            return name
        minutes = int((self.stamps[:1].wall[0] - self.stamps.values[0]) / np.timedelta64(1, "m"))
        return f"{name} (UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d})"

    def panel(self, title: str, name: str, layers: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """A panel over time, which has this name."""
        dates = {} if self.stamps is None else {"date": self.date}
        return panel(title, self.named(name), layers, **dates, **options)

    def line(self, kept: Int[np.ndarray, " n"], **columns: Any) -> dict[str, Any]:
        """A line over some of the time steps; regular ones are told by their differences, which are short."""
        if self.values is not None:
            times = np.array([self.at(int(n)) for n in kept])
            return {"x": rounded(times, TIME_DIGITS)} | columns
        start, differences = int(kept[0]), np.diff(kept)
        found: dict[str, Any] = {"x0": rounded([self.step * start], TIME_DIGITS)[0], "dx": self.step}
        return found | ({} if (differences == 1).all() else {"i": differences.tolist()}) | columns


def _shown(stamps: Stamps) -> np.ndarray:
    """Dates that increase: as the wall shows them, or at the offset of the first where time is that which passes."""
    if stamps.zone is None or stamps.clock != SECOND:
        return stamps.wall
    return stamps.values + (stamps[:1].wall[0] - stamps.values[0])


def _seconds(stamps: Stamps) -> Float[np.ndarray, " time"]:
    shown = _shown(stamps)
    return (shown - shown[0]) / np.timedelta64(1, "s")


def points_per_line(series: Sequence[Series], lines: int) -> int:
    """Points that a line over time may have, so that all together stay small.

    Args:
        series: What is drawn.
        lines: Number of arrays per series.
    """
    room = CHARACTERS // (PER_NUMBER * len(series) * max(lines, 1))
    return int(np.clip(room, FEWEST_POINTS, MOST_POINTS)) // 2 * 2


def decimate(low: Float[np.ndarray, " n"], high: Float[np.ndarray, " n"], most: int) -> Int[np.ndarray, " m"]:
    """Indices of at most so many points: both ends; of each stretch, where the lower line is lowest and the upper one highest.

    Missing values are no extremes, but a stretch without any other stays as a gap.

    Example:
        >>> wave = np.array([0.0, 0, 9, 0, 0, 0, -9, 0])
        >>> decimate(wave, wave, 6).tolist()
        [0, 2, 4, 6, 7]
    """
    count = len(low)
    if count <= most:
        return np.arange(count)
    width = -(-count // (most // 2 - 1))
    room = -(-count // width) * width
    rows = [np.full(room, fill) for fill in (np.inf, -np.inf)]
    for row, values, fill in zip(rows, (low, high), (np.inf, -np.inf), strict=True):
        row[:count] = np.where(np.isfinite(values), values, fill)
    starts = np.arange(0, room, width)
    lowest = starts + rows[0].reshape(-1, width).argmin(axis=1)
    highest = starts + rows[1].reshape(-1, width).argmax(axis=1)
    return np.unique(np.concatenate([[0], lowest, highest, [count - 1]]))


# ---------------------------------------------------------------- JSON


def rounded(values: Any, digits: int = DIGITS) -> list[float | None]:
    """Numbers with so many significant digits; None for what is missing."""
    return [float(f"{each:.{digits}g}") if np.isfinite(each) else None for each in np.asarray(values, float).ravel().tolist()]


def compact(value: Any) -> str:
    """JSON in the fewest characters: no spaces, whole numbers without a point, arrays rounded."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(str(name))}:{compact(each)}" for name, each in value.items()) + "}"
    if isinstance(value, np.ndarray):
        return compact(rounded(value))
    if isinstance(value, list | tuple):
        return "[" + ",".join(compact(each) for each in value) + "]"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    return json.dumps(value, allow_nan=False)
