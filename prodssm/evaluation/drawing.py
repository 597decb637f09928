"""What all plots share: axes, bands, legends, and which outputs and time steps are drawn."""

from typing import Any

import numpy as np

from prodssm._validation import require_integer
from prodssm.data.series import Series


def wall_times(found: Any) -> np.ndarray | None:
    """The time stamps of data or of a result, as the clock on the wall shows them."""
    stamps = getattr(getattr(found, "origin", found), "stamps", None)
    return None if stamps is None else stamps.wall


def axes_or_new(ax: Any) -> Any:
    """Return the given axes, or new ones."""
    return pyplot().subplots(layout="constrained")[1] if ax is None else ax


def pyplot() -> Any:
    """Return matplotlib.pyplot, or an error that says what to install."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'prodssm[plot]'") from error
    return plt


def draw_band(ax: Any, x: np.ndarray, mean: np.ndarray, bounds: Any, colour: str | None, label: str) -> Any:
    """Draw a line with a band around it, and return the line."""
    line = ax.plot(x, mean, color=colour, lw=1.2, label=label)[0]
    ax.fill_between(x, *bounds, color=line.get_color(), alpha=0.2, lw=0)
    return line


def concise_dates(ax: Any) -> None:
    """Short labels on an axis of dates: long ones would run into each other."""
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    locator = ax.xaxis.get_major_locator()
    if isinstance(locator, AutoDateLocator):
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def with_legend(ax: Any) -> Any:
    """Return the axes with a legend."""
    ax.legend(frameon=False, fontsize=8)
    concise_dates(ax)
    return ax


def as_matrix(name: str, values: Any, columns: int, rows: int | None = None) -> np.ndarray:
    """Convert to a matrix (time, columns), of which a vector is a single column."""
    found = np.asarray(values.y if isinstance(values, Series) else values)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or found.shape[1] != columns or rows not in (None, len(found)):
        raise ValueError(f"{name} must have shape ({'time' if rows is None else rows}, {columns}), got {found.shape}")
    return found


def chosen_indices(what: str, given: int | str | None, names: tuple[str, ...]) -> list[int]:
    """Return the indices of the outputs or states to draw."""
    if given is None:
        return list(range(len(names)))
    if isinstance(given, str):
        if given not in names:
            raise ValueError(f"{what} must be one of {', '.join(names)}; got {given!r}")
        return [names.index(given)]
    require_integer(what, given, least=0)
    if given >= len(names):
        raise ValueError(f"{what} must be less than {len(names)}, got {given}")
    return [int(given)]


def last_steps(length: int, last: int | None) -> np.ndarray:
    """Return the indices of the time steps to draw."""
    if last is not None:
        require_integer("last", last, least=1)
    return np.arange(length)[-(last or length) :]
