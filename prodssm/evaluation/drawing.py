"""What all plots share: axes, bands, legends, and which outputs and time steps are drawn."""

from typing import Any

import numpy as np

from prodssm._validation import require_integer
from prodssm.data.series import Series

TAIL, CELLS, DARKEST = 5e-4, 300, 0.75  # of a density: beyond its picture, cells, opacity of the likeliest one
VALLEY = 0.03  # depth of one between modes, relative to the likeliest cell


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


def draw_band(
    ax: Any, x: np.ndarray, mean: np.ndarray, bounds: Any, colour: str | None, label: str, *, density: Any = None
) -> Any:
    """Draw a line with a band around it, or its ends around a density, and return the line.

    Args:
        ax: Axes to draw on.
        x: Where.
        mean: The line.
        bounds: Lower and upper ends of the band.
        colour: Of all; the next one in the colour cycle if not given.
        label: Of the line in the legend.
        density: Edges of cells and probabilities of them at each step, see `cell_probabilities`; None fills the band.
    """
    line = ax.plot(x, mean, color=colour, lw=1.2 if density is None else 0.8, label=label)[0]
    if density is None:
        ax.fill_between(x, *bounds, color=line.get_color(), alpha=0.2, lw=0)
        return line
    for bound in bounds:
        ax.plot(x, bound, color=line.get_color(), lw=0.8, ls=":")
    edges, cells = density
    _draw_density(ax, x, edges, cells, line.get_color())
    return line


def cell_probabilities(distribution: Any, output: int) -> tuple[np.ndarray, np.ndarray]:
    """Edges of cells that cover nearly all of a predictive distribution, and their probabilities, cell by step.

    Args:
        distribution: With `.cdf` and `.quantile`.
        output: Index of the output.
    """
    low, high = (distribution.quantile(each)[:, output] for each in (TAIL, 1 - TAIL))
    edges = np.linspace(low.min(), high.max(), CELLS + 1)
    y = np.broadcast_to(edges[:, None, None], (CELLS + 1, *distribution.quantile(0.5).shape))
    return edges, np.diff(distribution.cdf(y)[..., output], axis=0)


def has_modes(cells: np.ndarray) -> bool:
    """Whether at some step there is a valley between two places that are more likely, which a band does not show.

    Args:
        cells: Probabilities, cell by step.
    """
    below, above = (np.maximum.accumulate(each, axis=0) for each in (cells, cells[::-1]))
    valley = np.minimum(below, above[::-1]) - cells
    return bool((valley > VALLEY * cells.max(axis=0)).any())


def likeliest(edges: np.ndarray, cells: np.ndarray, share: float) -> list[tuple[int, float, float]]:
    """The highest-density regions of a share of the probability, as (step, lower end, upper end); several if there are modes.

    Args:
        edges: Of the cells.
        cells: Probabilities, cell by step.
        share: Of the probability.
    """
    found = []
    for step, column in enumerate(cells.T):
        order = np.argsort(column)[::-1]
        inside = np.zeros(len(column) + 2, int)
        inside[order[: np.searchsorted(column[order].cumsum(), share * column.sum()) + 1] + 1] = 1
        starts, ends = (np.flatnonzero(np.diff(inside) == each) for each in (1, -1))
        found += [(step, float(edges[a]), float(edges[b])) for a, b in zip(starts, ends, strict=True)]
    return found


def _draw_density(ax: Any, x: np.ndarray, edges: np.ndarray, cells: np.ndarray, colour: str) -> None:
    """A column for each step, darkest where the step is most likely."""
    from matplotlib.colors import LinearSegmentedColormap, to_rgb

    shades = LinearSegmentedColormap.from_list("density", [(*to_rgb(colour), alpha) for alpha in (0.0, DARKEST)])
    at = np.asarray(ax.convert_xunits(x), float)
    between = (at[1:] + at[:-1]) / 2
    half = (at[1] - at[0], at[-1] - at[-2]) if len(at) > 1 else (1.0, 1.0)
    columns = np.concatenate([[at[0] - half[0] / 2], between, [at[-1] + half[1] / 2]])
    share = cells / np.maximum(cells.max(axis=0), np.finfo(float).tiny)
    ax.pcolormesh(columns, edges, share, cmap=shades, vmin=0, vmax=1, shading="flat", rasterized=True, zorder=0.5)


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
