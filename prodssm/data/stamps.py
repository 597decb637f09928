"""Time stamps as they are given: numbers, or dates and times; on which clock their steps are regular, and which ones follow."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np

REGULAR_TOLERANCE = 1e-3  # relative deviation of a time step up to which sampling counts as regular
NUMBER, SECOND, WALL, MONTH = "number", "second", "wall", "month"
TICKS = (1_000_000_000, 1_000_000, 1_000, 1)  # nanoseconds that stamps may be multiples of
DATE = re.compile(r"(\d{1,2})([./-])(\d{1,2})\2(\d{4})(.*)$")  # the day or the month first
QUARTER = np.timedelta64(15, "m")  # offsets of time zones change at its multiples


@dataclass(frozen=True, eq=False)
class Stamps:
    """Time stamps, and the clock on which the time between them is measured.

    Attributes:
        values: Numbers, or datetime64[ns]: in UTC if there is a zone, else as given.
        clock: "number" (differences of numbers), "second" (seconds that pass), "wall" (seconds of the zone's own time, in which
            a day has 24 hours) or "month" (calendar months).
        zone: The time zone's name.
    """

    values: np.ndarray
    clock: str = NUMBER
    zone: str | None = None

    @classmethod
    def read(cls, values: Any, zone: str | None = None, clock: str | None = None) -> "Stamps":
        """Stamps from an array of numbers or of dates and times; without a clock, on the first that has regular steps."""
        values = np.asarray(values)
        if values.dtype.kind != "M":
            return cls(values.astype(np.int64) if values.dtype.kind in "ub" else values)
        found = cls(values.astype("datetime64[ns]"), SECOND, zone)
        beyond = (found.values.astype(values.dtype) != values) & ~np.isnat(values)
        if beyond.any():
            raise ValueError(f"time stamps must lie between the years 1678 and 2261, got {values[np.argmax(beyond)]}")
        if clock is not None:
            return replace(found, clock=clock)
        clocks = (SECOND, *([WALL] if zone else []), MONTH)
        candidates = (replace(found, clock=each) for each in clocks if len(values) > 2)
        return next((each for each in candidates if each._is_regular()), found)

    # Stamps are no part of a compiled program: other ones must not trigger a recompilation.
    def __eq__(self, other: object) -> bool:
        """Whether the other are stamps as well, whichever."""
        return isinstance(other, Stamps)

    def __hash__(self) -> int:
        """The same for all."""
        return hash(Stamps)

    def __len__(self) -> int:
        """The number of stamps."""
        return len(self.values)

    def __getitem__(self, rows: Any) -> "Stamps":
        """Some of them."""
        return replace(self, values=self.values[rows])

    @property
    def elapsed(self) -> np.ndarray:
        """Time since the first stamp, in double precision: the difference is taken before it is rounded."""
        if self.clock == MONTH:
            months = _months(self.wall)
            return months - months[:1]
        values = self.wall if self.clock == WALL else self.values
        since = values - values[:1]
        return since / np.timedelta64(1, "s") if since.dtype.kind == "m" else since.astype(float)

    @property
    def wall(self) -> np.ndarray:
        """Dates and times as a clock on the wall shows them."""
        if self.zone is None or self.values.dtype.kind != "M":
            return self.values
        # The offset of each quarter of an hour that occurs, so that long records ask for few.
        quarters, which = np.unique(self.values.astype("datetime64[m]").astype(np.int64) // 15, return_inverse=True)
        zone = _zone(self.zone)
        offsets = [datetime.fromtimestamp(900 * int(quarter), zone).utcoffset() for quarter in quarters]
        seconds = np.array([0 if offset is None else offset.total_seconds() for offset in offsets])
        return self.values + (1e9 * seconds).astype("timedelta64[ns]")[which]

    def _is_regular(self) -> bool:
        """Whether all time steps are the same up to a tolerance; steps in months are about whole ones."""
        steps = np.diff(self.elapsed)
        typical = float(np.median(steps))
        return bool((np.abs(steps - typical) <= REGULAR_TOLERANCE * typical).all()) and (self.clock != MONTH or typical > 0.9)

    def later(self, count: int, dt: Any = None) -> "Stamps":
        """The stamps that follow the last one, at time steps on the clock; by default that between the last two."""
        if dt is None:
            last = np.diff(self.elapsed[-2:]) if len(self) > 1 else np.ones(1)
            since = np.arange(1, count + 1) * float(last[-1])
        else:
            since = np.cumsum(np.asarray(dt, float)[:count])
        if self.values.dtype.kind != "M":
            after = self.values[-1] + since
            whole = self.values.dtype.kind == "i" and np.allclose(after, np.rint(after))
            return replace(self, values=np.rint(after).astype(np.int64) if whole else after)
        if self.clock == MONTH:
            after = self._from_wall(_stamps_of_months(self.wall, since))
        elif self.clock == WALL:
            after = self._from_wall(self.wall[-1] + self._nanoseconds(since))
        else:
            after = self.values[-1] + self._nanoseconds(since)
        return replace(self, values=after)

    def _nanoseconds(self, seconds: np.ndarray) -> np.ndarray:
        """Time steps, rounded to the finest unit that the stamps make use of: single precision does not hold 0.1 s."""
        ticks = self.values.astype(np.int64)
        unit = next(each for each in TICKS if not (ticks % each).any())
        return (np.rint(seconds * (1e9 / unit)).astype(np.int64) * unit).astype("timedelta64[ns]")

    def _from_wall(self, wall: np.ndarray) -> np.ndarray:
        """In UTC; a time that the zone skips is moved forward."""
        if self.zone is None:
            return wall
        zone, base = _zone(self.zone), wall.astype("datetime64[s]")
        utc = [int(each.item().replace(tzinfo=zone).timestamp()) for each in base]
        return np.array(utc, "datetime64[s]").astype("datetime64[ns]") + (wall - base)

    def text(self, row: int) -> str:
        """One stamp for people."""
        value = self.wall[row] if self.values.dtype.kind == "M" else self.values[row]
        return str(value) if value.dtype.kind != "M" else str(value.astype("datetime64[us]").item())


def iso_dates(texts: Sequence[str]) -> Sequence[str] | None:
    """Dates such as 31.01.2024 or 1/31/2024 with the year first; None if nothing says which number is the day.

    With points the day comes first, with slashes or dashes what exceeds twelve is the day: libraries of data frames would
    guess, each in its own way. Texts of another form are returned as they are.

    Example:
        >>> iso_dates(["12.01.2024 18:00", "13.01.2024 18:00"])
        ['2024-01-12 18:00', '2024-01-13 18:00']
    """
    found = [DATE.match(text) for text in texts]
    if not found or not all(found):
        return texts
    parts = [each.groups() for each in found if each is not None]
    points = all(each[1] == "." for each in parts)
    first, second = (points or max(int(each[n]) for each in parts) > 12 for n in (0, 2))
    if first == second and not points:
        return None
    day, month = (0, 2) if first else (2, 0)
    return [f"{each[3]}-{int(each[month]):02d}-{int(each[day]):02d}{each[4]}" for each in parts]


def require_increasing(stamps: Stamps, where: str) -> None:
    """Raise unless stamps increase; the message names the first that does not."""
    values = stamps.values
    bad = ~(values[1:] > values[:-1])
    if not bad.any():
        return
    row = int(np.argmax(bad)) + 1
    if values[row] == values[row - 1]:
        raise ValueError(f"{where} must increase, got {stamps.text(row)} twice (rows {row - 1} and {row}); drop one of them")
    raise ValueError(f"{where} must increase, got {stamps.text(row)} after {stamps.text(row - 1)} (row {row}); sort the rows")


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"time zone {name!r} is not known on this machine; `pip install tzdata`, or convert to UTC") from error


def _month_ends(wall: np.ndarray) -> bool:
    """Whether all stamps lie on the last day of a month."""
    following = wall + np.timedelta64(1, "D")
    return bool((following.astype("datetime64[D]") == following.astype("datetime64[M]").astype("datetime64[D]")).all())


def _months(wall: np.ndarray) -> np.ndarray:
    """Months since 1970, with the fraction of the current one that has passed; the last day of a month counts as its end."""
    wall = wall + np.timedelta64(1, "D") if _month_ends(wall) else wall
    month = wall.astype("datetime64[M]")
    begin, end = (each.astype("datetime64[ns]") for each in (month, month + 1))
    return month.astype(np.int64) + (wall - begin) / (end - begin)


def _stamps_of_months(wall: np.ndarray, since: np.ndarray) -> np.ndarray:
    """The stamps so many months after the last, at the same part of the month, to the second."""
    ends, months = _month_ends(wall), _months(wall)[-1] + since
    whole = np.floor(months + 1e-9)
    month = whole.astype(np.int64).astype("datetime64[M]")
    begin, end = (each.astype("datetime64[ns]") for each in (month, month + 1))
    part = np.rint((months - whole).clip(0) * ((end - begin) / np.timedelta64(1, "s"))).astype("timedelta64[s]")
    return begin + part - (np.timedelta64(1, "D") if ends else np.timedelta64(0, "D"))
