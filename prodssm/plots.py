"""Small pictures of what a model believes. Each function draws on the axes it is given, or on new ones, and returns them.

They need matplotlib (`pip install 'prodssm[plot]'`). Bands are central 95 % intervals.
"""

from typing import Any

import numpy as np
from scipy import special

from prodssm.checking import MEAN_TOLERANCE, STD_TOLERANCE, Check
from prodssm.checks import require_integer
from prodssm.frames import central_interval, from_frames
from prodssm.series import Series
from prodssm.training import History

PROBABILITY = 0.95


def plot_forecast(
    prediction: Any, history: Any = None, channel: int | str | None = None, ax: Any = None, *, last: int | None = None
) -> Any:
    """A forecast with its band, after what was seen.

    Args:
        prediction: What `ProDSSM.forecast` or `prodssm.forecast` returned.
        history: What was seen before, an array (time, y), a `Series` or a data frame; the forecast continues its time steps.
        channel: Which channel to draw, by number or name; all of them if not given.
        ax: Axes to draw on.
        last: How many time steps of the history to draw; all of them if not given.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    ends = central_interval(prediction, PROBABILITY)
    # A mixture's mean may lie outside its own band.
    mean = np.asarray(prediction.quantile(0.5) if hasattr(prediction, "quantile") else prediction.mean)
    names = getattr(prediction, "names", tuple(f"y{n}" for n in range(mean.shape[1])))
    history = from_frames(history, getattr(prediction, "layout", None))
    seen = None if history is None else _matrix("history", history, mean.shape[1])
    times = (1 if seen is None else len(seen)) + np.arange(len(mean))
    for n in _chosen("channel", channel, names):
        colour = f"C{n % 10}"
        if seen is not None:
            shown = _tail(len(seen), last)
            ax.plot(shown, seen[shown, n], ".", color=colour, alpha=0.5, ms=4, label=f"{names[n]}, observed")
        _band(ax, times, mean[:, n], [end[:, n] for end in ends], colour, f"{names[n]}, forecast, 95 %")
    if seen is not None:
        ax.axvline(len(seen) - 0.5, color="0.6", lw=0.8)
    ax.set(xlabel="steps ahead" if seen is None else "time step", ylabel="observation")
    return _with_legend(ax)


def plot_states(
    beliefs: Any,
    truth: Any = None,
    state: int | None = None,
    ax: Any = None,
    *,
    label: str = "state",
    last: int | None = None,
    colour: str | None = None,
) -> Any:
    """Filtered or smoothed states with their bands.

    Args:
        beliefs: What `filter` or `smooth` returned.
        truth: The true states, (time, x), if they are known.
        state: Which state to draw; all of them if not given.
        ax: Axes to draw on, for instance those of the filter for the smoother.
        label: What to call the states in the legend.
        last: How many time steps to draw; all of them if not given.
        colour: Of the first state that is drawn; the next one that the axes have if not given.

    Returns:
        The axes.
    """
    ax = _axes(ax)
    mean, ends = np.asarray(beliefs.mean), central_interval(beliefs, PROBABILITY)
    true = None if truth is None else _matrix("truth", truth, mean.shape[1], len(mean))
    chosen, shown = _chosen("state", state, tuple(f"x{n}" for n in range(mean.shape[1]))), _tail(len(mean), last)
    for n in chosen:
        text = label if mean.shape[1] == 1 else f"{label} {n}"
        band = [end[shown, n] for end in ends]
        line = _band(ax, shown, mean[shown, n], band, colour if n == chosen[0] else None, f"{text}, 95 %")
        if true is not None:
            style = {"color": "k" if len(chosen) == 1 else line.get_color(), "ls": "--", "lw": 0.8}
            ax.plot(shown, true[shown, n], label=f"true {text}", **style)
    ax.set(xlabel="time step", ylabel="state")
    return _with_legend(ax)


def plot_transition(model: Any, grid: Any, truth: Any = None, ax: Any = None) -> Any:
    """The learned dynamics of a model with one state and no controls, with the uncertainty of the weights.

    Args:
        model: A fitted `ProDSSM`.
        grid: States at which to draw, (n,).
        truth: The true function, or its values on the grid, if it is known.
        ax: Axes to draw on.

    Returns:
        The axes.
    """
    grid = np.asarray(grid)
    if grid.ndim != 1:
        raise ValueError(f"grid must have 1 axis, a model with one state; got shape {grid.shape}")
    learned = model.transition(grid[:, None])
    ax = _axes(ax)
    ends = [end[:, 0] for end in central_interval(learned, PROBABILITY)]
    _band(ax, grid, np.asarray(learned.mean)[:, 0], ends, None, "learned, 95 % of f(x, w)")
    if truth is not None:
        values = truth(grid) if callable(truth) else truth
        ax.plot(grid, _matrix("truth", values, 1, len(grid))[:, 0], "k--", lw=1, label="truth")
    ax.set(xlabel="state", ylabel="next state")
    return _with_legend(ax)


def plot_history(history: History, ax: Any = None) -> Any:
    """How training went: the objective, and how well the part that was held out was foreseen."""
    ax = _axes(ax)
    ax.plot(history.iterations, history.objective, label="objective")
    if history.validation:
        ax.plot(history.iterations[-len(history.validation) :], history.validation, label="held-out data")
    ax.set(xlabel="iteration", ylabel="per observed value", title=history.stopped)
    return _with_legend(ax)


def plot_check(check: Check, ax: Any = None) -> Any:
    """Where a forecast can be trusted: its widths and means against sampled futures, step by step, one line per channel.

    Dotted lines are the errors that a check forgives before it allows for its sampling error. Only shaded steps are trusted.
    """
    ax = _axes(ax)
    steps = np.arange(1, len(check.mean_gap) + 1)
    ax.axvspan(0.5, check.trusted + 0.5, color="0.93", lw=0, label="trusted")
    parts = {"width of the forecast / of the samples": check.std_ratio, "distance of the means, in deviations": check.mean_gap}
    for n, (label, values) in enumerate(parts.items()):
        lines = ax.plot(steps, values, color=f"C{n}", marker=".", lw=1)
        lines[0].set_label(label)
    for level, colour in ((1 / STD_TOLERANCE, "C0"), (STD_TOLERANCE, "C0"), (MEAN_TOLERANCE, "C1")):
        ax.axhline(level, color=colour, ls=":", lw=0.8)
    ax.set(
        xlabel="steps ahead", xlim=(0.5, len(steps) + 0.5), title=f"{check.trusted} of {len(steps)} steps agree with samples"
    )
    return _with_legend(ax)


def plot_pit(pit: Any, bins: int = 10, ax: Any = None) -> Any:
    """Calibration: the histogram of `prodssm.metrics.pit`, flat if forecasts are as wide as they should be.

    A hump in the middle says that they are too wide, a valley that they are too narrow, a slope that they are biased. Of the
    bars of independent calibrated forecasts 95 % would end in the band.

    Args:
        pit: Values between 0 and 1, of any shape; NaN (not observed) is left out.
        bins: How many bars.
        ax: Axes to draw on.

    Returns:
        The axes.
    """
    require_integer("bins", bins, least=1)
    values = np.asarray(pit, float).ravel()
    values = values[~np.isnan(values)]
    if not values.size or values.min() < 0 or values.max() > 1:
        raise ValueError("pit must hold values between 0 and 1, see prodssm.metrics.pit")
    ax = _axes(ax)
    low, high = np.ceil(special.bdtrik([(1 - PROBABILITY) / 2, (1 + PROBABILITY) / 2], values.size, 1 / bins))
    ax.hist(values, bins=bins, range=(0, 1), color="C0", alpha=0.7, rwidth=0.95)
    ax.axhspan(low, high, color="k", alpha=0.12, lw=0, label="95 % if calibrated")
    ax.axhline(values.size / bins, color="k", lw=0.8, ls="--")
    ax.set(xlabel="probability integral transform", ylabel="observations", xlim=(0, 1))
    return _with_legend(ax)


# ---------------------------------------------------------------- parts


def _axes(ax: Any) -> Any:
    """The axes that were given, or new ones."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install 'prodssm[plot]'") from error
    return plt.subplots(layout="constrained")[1]


def _band(ax: Any, x: np.ndarray, mean: np.ndarray, ends: Any, colour: str | None, label: str) -> Any:
    line = ax.plot(x, mean, color=colour, lw=1.2, label=label)[0]
    ax.fill_between(x, *ends, color=line.get_color(), alpha=0.2, lw=0)
    return line


def _with_legend(ax: Any) -> Any:
    ax.legend(frameon=False, fontsize=8)
    return ax


def _matrix(name: str, values: Any, columns: int, rows: int | None = None) -> np.ndarray:
    """Time by column."""
    found = np.asarray(values.y if isinstance(values, Series) else values)
    found = found[:, None] if found.ndim == 1 else found
    if found.ndim != 2 or found.shape[1] != columns or rows not in (None, len(found)):
        raise ValueError(f"{name} must have shape ({'time' if rows is None else rows}, {columns}), got {found.shape}")
    return found


def _chosen(what: str, given: int | str | None, names: tuple[str, ...]) -> list[int]:
    """Numbers of the channels to draw."""
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


def _tail(length: int, last: int | None) -> np.ndarray:
    """The time steps to draw."""
    if last is not None:
        require_integer("last", last, least=1)
    return np.arange(length)[-(last or length) :]
