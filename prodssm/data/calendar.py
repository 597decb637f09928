"""Features of the calendar as controls: known for the future, so that a forecast needs no more than the time."""

from collections.abc import Callable, Sequence

import numpy as np

from prodssm.data.stamps import Stamps

HARMONICS = 2
AUTO = "auto"
DAY, WEEK, YEAR = 86400.0, 7 * 86400.0, 365.2425 * 86400.0  # seconds


def _since(wall: np.ndarray, unit: str) -> np.ndarray:
    """Seconds since the beginning of the day or the year."""
    return (wall - wall.astype(f"datetime64[{unit}]").astype(wall.dtype)) / np.timedelta64(1, "s")


def _waves(phase: np.ndarray) -> np.ndarray:
    """Sines and cosines of a phase in turns, and of its multiples."""
    angles = 2 * np.pi * phase[:, None] * np.arange(1, HARMONICS + 1)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _weekday(wall: np.ndarray) -> np.ndarray:
    """0 for Monday to 6 for Sunday."""
    return (wall.astype("datetime64[D]").astype(np.int64) + 3) % 7


FEATURES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "hour_of_day": lambda wall: _waves(_since(wall, "D") / DAY),
    "day_of_week": lambda wall: (_weekday(wall)[:, None] == np.arange(7)).astype(float),
    "weekend": lambda wall: (_weekday(wall) >= 5).astype(float)[:, None],
    "day_of_year": lambda wall: _waves(_since(wall, "Y") / YEAR),
}
"""By name: columns at times of the wall clock. Times of day and year are sines and cosines, days of the week are indicators."""


def calendar_features(names: Sequence[str], stamps: Stamps) -> np.ndarray:
    """The columns of these features, (time, columns)."""
    wall = stamps.wall
    return np.concatenate([np.empty((len(wall), 0)), *(FEATURES[name](wall) for name in names)], axis=1)


def chosen_features(stamps: Stamps) -> tuple[str, ...]:
    """What "auto" takes: cycles that are sampled more than twice and seen at least twice."""
    wall = stamps.wall
    span, step = ((each / np.timedelta64(1, "s")) for each in (wall[-1] - wall[0], np.median(np.diff(wall))))
    cycles = {"hour_of_day": DAY, "day_of_week": WEEK, "day_of_year": YEAR}
    return tuple(name for name, length in cycles.items() if 2 * step < length and span >= 2 * length)


def require_features(names: Sequence[str]) -> None:
    """Raise if a feature is not known."""
    for name in names:
        if name not in FEATURES:
            raise ValueError(f"calendar must be 'auto' or among {', '.join(FEATURES)}; got {name!r}")
