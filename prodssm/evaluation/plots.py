"""Plots of forecasts, states, residuals, transitions, training curves and calibration.

Each function draws on the given axes, or on new ones, and returns them. Bands are central 95 % intervals. Requires matplotlib
(`pip install 'prodssm[plot]'`).
"""

from typing import Any

import numpy as np

from prodssm._validation import require_integer
from prodssm.data.frames import from_frames
from prodssm.data.tables import central_interval
from prodssm.evaluation.drawing import (
    as_matrix,
    axes_or_new,
    cell_probabilities,
    chosen_indices,
    draw_band,
    has_modes,
    last_steps,
    pyplot,
    wall_times,
    with_legend,
)
from prodssm.scoring.diagnostics import CDF_TOLERANCE, MEAN_TOLERANCE, STD_TOLERANCE, GaussianCheck

PROBABILITY = 0.95


def plot_forecast(
    prediction: Any,
    history: Any = None,
    output: int | str | None = None,
    ax: Any = None,
    *,
    last: int | None = None,
    colour: str | None = None,
) -> Any:
    """Plot a forecast with its band, and the observations before it.

    Where a mixture has several modes each step is shaded by its density, and dotted lines are the ends of the interval.

    Args:
        prediction: Result of `ProDSSM.forecast` or `prodssm.forecast`.
        history: Observations before the forecast: an array (time, y), a `Series` or a data frame.
        output: Output to draw, by index or name; all outputs if not given.
        ax: Axes to draw on.
        last: Number of last time steps of the history to draw; all of them if not given.
        colour: Colour of the first output; the first one of the colour cycle if not given.

    Returns:
        The axes.

    Example:
        >>> plot_forecast(ahead, history=y).get_xlabel()
        'time step'
    """
    ax = axes_or_new(ax)
    bounds = central_interval(prediction, PROBABILITY)
    # The median, because the mean of a mixture may lie outside its central interval.
    mean = np.asarray(prediction.quantile(0.5) if hasattr(prediction, "quantile") else prediction.mean)
    mixture = getattr(prediction, "components", None)
    names = getattr(prediction, "names", tuple(f"y{n}" for n in range(mean.shape[1])))
    history = from_frames(history, getattr(prediction, "layout", None))
    observed = None if history is None else as_matrix("history", history, mean.shape[1])
    times = (1 if observed is None else len(observed)) + np.arange(len(mean))
    before, after = (wall_times(each) for each in (history, prediction))
    dated = after is not None and (observed is None or before is not None)
    times = times if after is None or not dated else after
    chosen = chosen_indices("output", output, names)
    for n in chosen:
        shade = colour if colour is not None and n == chosen[0] else f"C{n % 10}"
        if observed is not None:
            shown = last_steps(len(observed), last)
            at = shown if before is None or not dated else before[shown]
            ax.plot(at, observed[shown, n], ".", color=shade, alpha=0.5, ms=4, label=f"{names[n]}, observed")
        density = cell_probabilities(mixture, n) if getattr(mixture, "support", None) == "real" else None
        density = density if density is not None and has_modes(density[1]) else None
        band = [bound[:, n] for bound in bounds]
        draw_band(ax, times, mean[:, n], band, shade, f"{names[n]}, forecast, 95 %", density=density)
    if observed is not None:
        ax.axvline(len(observed) - 0.5 if before is None or not dated else before[-1], color="0.6", lw=0.8)
    ax.set(xlabel="time" if dated else "steps ahead" if observed is None else "time step", ylabel="observation")
    return with_legend(ax)


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
    """Plot filtered or smoothed states with their bands.

    Args:
        beliefs: Result of `filter` or `smooth`.
        truth: True states, (time, x), if known.
        state: Index of the state to draw; all states if not given.
        ax: Axes to draw on, for instance those of the filtered states for the smoothed ones.
        label: Name of the states in the legend.
        last: Number of last time steps to draw; all of them if not given.
        colour: Colour of the first state; the next one in the colour cycle if not given.

    Returns:
        The axes.

    Example:
        >>> plot_states(model.filter(y)).get_ylabel()
        'state'
    """
    ax = axes_or_new(ax)
    mean, bounds = np.asarray(beliefs.mean), central_interval(beliefs, PROBABILITY)
    true = None if truth is None else as_matrix("truth", truth, mean.shape[1], len(mean))
    chosen, shown = chosen_indices("state", state, tuple(f"x{n}" for n in range(mean.shape[1]))), last_steps(len(mean), last)
    wall = wall_times(beliefs)
    times = shown if wall is None else wall[shown]
    for n in chosen:
        text = label if mean.shape[1] == 1 else f"{label} {n}"
        band = [bound[shown, n] for bound in bounds]
        line = draw_band(ax, times, mean[shown, n], band, colour if n == chosen[0] else None, f"{text}, 95 %")
        if true is not None:
            style = {"color": "k" if len(chosen) == 1 else line.get_color(), "ls": "--", "lw": 0.8}
            ax.plot(times, true[shown, n], label=f"true {text}", **style)
    ax.set(xlabel="time step" if wall is None else "time", ylabel="state")
    return with_legend(ax)


def plot_transition(model: Any, grid: Any, truth: Any = None, ax: Any = None) -> Any:
    """Plot the learned transition function of a model with one state and no control inputs, with its weight uncertainty.

    Args:
        model: A fitted `ProDSSM`.
        grid: States at which to evaluate the transition, (n,).
        truth: True transition function, or its values on the grid, if known.
        ax: Axes to draw on.

    Returns:
        The axes.

    Example:
        >>> plot_transition(model, np.linspace(-1, 1, 5)).get_ylabel()
        'next state'
    """
    grid = np.asarray(grid)
    if grid.ndim != 1:
        raise ValueError(f"grid must have 1 axis, a model with one state; got shape {grid.shape}")
    learned = model.transition(grid[:, None])
    ax = axes_or_new(ax)
    bounds = [bound[:, 0] for bound in central_interval(learned, PROBABILITY)]
    draw_band(ax, grid, np.asarray(learned.mean)[:, 0], bounds, None, "learned, 95 % of f(x, w)")
    if truth is not None:
        values = truth(grid) if callable(truth) else truth
        ax.plot(grid, as_matrix("truth", values, 1, len(grid))[:, 0], "k--", lw=1, label="truth")
    ax.set(xlabel="state", ylabel="next state")
    return with_legend(ax)


def plot_skill(skill: Any, metric: str = "rmse", ax: Any = None) -> Any:
    """Plot a score on held-out blocks over the steps ahead, beside that of simple forecasts.

    Args:
        skill: Of a fitted model, `ProDSSM.skill_`.
        metric: "rmse", "crps", "nll" or "coverage".
        ax: Axes to draw on.

    Returns:
        The axes.

    Example:
        >>> plot_skill(model.skill_, metric="crps").get_xlabel()
        'steps ahead'
    """
    if metric not in (known := next(iter(skill.scores.values()))):
        raise ValueError(f"metric must be one of {', '.join(known)}; got {metric!r}")
    ax = axes_or_new(ax)
    labels = [str(low) if low == high else f"{low} to {high}" for low, high in skill.ranges]
    for n, (name, scores) in enumerate(skill.scores.items()):
        style = {"lw": 2, "color": "C0"} if n == 0 else {"lw": 1, "ls": "--", "color": f"C{n + 2}"}
        ax.plot(range(len(labels)), scores[metric], marker="o", ms=4, label=name, **({"ls": "-"} | style))
    if metric == "coverage":
        ax.axhline(PROBABILITY, color="0.6", lw=0.8)
    unit = ", in standard deviations" if metric in ("rmse", "crps") else ""
    ax.set_xticks(range(len(labels)), labels)
    where = "training data" if skill.in_sample else "held-out blocks"
    ax.set(
        xlabel="steps ahead", ylabel=f"{metric.upper() if metric != 'coverage' else metric}{unit}", title=f"Skill on {where}"
    )
    return with_legend(ax)


def plot_history(history: Any, ax: Any = None) -> Any:
    """Plot the training objective, and the score of the validation data if there were any, over the iterations.

    Args:
        history: Training history, for instance `ProDSSM.history_`.
        ax: Axes to draw on.

    Returns:
        The axes.

    Example:
        >>> plot_history(model.history_).get_title()
        'all iterations done'
    """
    ax = axes_or_new(ax)
    ax.plot(history.iterations, history.objective, label="objective")
    if history.validation:
        ax.plot(history.iterations[-len(history.validation) :], history.validation, label="validation data")
    ax.set(xlabel="iteration", ylabel="per observed value", title=str(history.stop_reason))
    return with_legend(ax)


def plot_check(check: GaussianCheck, ax: Any = None) -> Any:
    """Plot the agreement of a forecast with futures sampled from the same model, one line per output.

    Dotted lines are the tolerances without the allowance for sampling error. Shaded steps are trusted.

    Args:
        check: Result of `ProDSSM.check`.
        ax: Axes to draw on.

    Returns:
        The axes.

    Example:
        >>> plot_check(model.check(y, steps=3)).get_title()
        '3 of 3 steps agree with samples'
    """
    ax = axes_or_new(ax)
    steps = np.arange(1, len(check.mean_gap) + 1)
    ax.axvspan(0.5, check.trusted + 0.5, color="0.93", lw=0, label="trusted")
    curves = {
        "std of the forecast / std of the samples": check.std_ratio,
        "distance of the means / std": check.mean_gap,
        "error of probabilities": check.cdf_gap,
    }
    for n, (label, values) in enumerate(curves.items()):
        lines = ax.plot(steps, values, color=f"C{n}", marker=".", lw=1)
        lines[0].set_label(label)
    levels = (1 / STD_TOLERANCE, "C0"), (STD_TOLERANCE, "C0"), (MEAN_TOLERANCE, "C1"), (CDF_TOLERANCE, "C2")
    for level, colour in levels:
        ax.axhline(level, color=colour, ls=":", lw=0.8)
    ax.set(
        xlabel="steps ahead", xlim=(0.5, len(steps) + 0.5), title=f"{check.trusted} of {len(steps)} steps agree with samples"
    )
    return with_legend(ax)


def plot_pit(pit: Any, bins: int = 10, ax: Any = None) -> Any:
    """Plot the histogram of the probability integral transform, which is flat for calibrated forecasts.

    A hump means that the forecasts are underconfident (too wide), a U shape that they are overconfident (too narrow), a slope
    that they are biased. For independent calibrated forecasts, 95 % of the bars end inside the band.

    Args:
        pit: Result of `prodssm.metrics.pit`, of any shape; NaN (missing) is left out.
        bins: Number of bars.
        ax: Axes to draw on.

    Returns:
        The axes.

    Example:
        >>> plot_pit(np.linspace(0.05, 0.95, 10)).get_ylabel()
        'observations'
    """
    require_integer("bins", bins, least=1)
    values = np.asarray(pit, float).ravel()
    values = values[~np.isnan(values)]
    if not values.size or values.min() < 0 or values.max() > 1:
        raise ValueError("pit must hold values between 0 and 1, such as those of prodssm.metrics.pit")
    from scipy.special import bdtrik  # slow to import

    ax = axes_or_new(ax)
    low, high = np.ceil(bdtrik([(1 - PROBABILITY) / 2, (1 + PROBABILITY) / 2], values.size, 1 / bins))
    ax.hist(values, bins=bins, range=(0, 1), color="C0", alpha=0.7, rwidth=0.95)
    ax.axhspan(low, high, color="k", alpha=0.12, lw=0, label="95 % if calibrated")
    ax.axhline(values.size / bins, color="k", lw=0.8, ls="--")
    ax.set(xlabel="probability integral transform", ylabel="observations", xlim=(0, 1))
    return with_legend(ax)


def plot_residuals(residuals: Any, output: int | str = 0, lags: int = 20) -> Any:
    """Plot standardised one-step residuals: over time, as a histogram beside the Gaussian density, their autocorrelation.

    Args:
        residuals: Result of `ProDSSM.residuals`.
        output: Output to draw, by index or name.
        lags: Number of lags of the autocorrelation; bands hold 95 % of those of white noise.

    Returns:
        The three axes.

    Example:
        >>> plot_residuals(model.residuals(y))[2].get_ylabel()
        'autocorrelation'
    """
    require_integer("lags", lags, least=1)
    n = chosen_indices("output", output, residuals.names)[0]
    values = residuals.values[:, n]
    seen = values[~np.isnan(values)]
    axes = pyplot().subplots(1, 3, figsize=(12, 3.2), layout="constrained", width_ratios=(2, 1, 1))[1]
    wall = wall_times(residuals)
    times = residuals.time if wall is None else wall
    axes[0].plot(times, values, ".", ms=3)
    for bound in (-1.96, 1.96):
        axes[0].axhline(bound, color="0.6", lw=0.8, ls="--")
    axes[0].set(xlabel="time step" if wall is None else "time", ylabel=f"residual of {residuals.names[n]}")
    axes[1].hist(seen, bins=min(40, max(5, len(seen) // 10)), density=True, alpha=0.5)
    grid = np.linspace(-4, 4, 100)
    axes[1].plot(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), color="0.3", lw=1)
    axes[1].set(xlabel="residual", ylabel="density")
    axes[2].bar(np.arange(1, lags + 1), residuals.autocorrelation(lags)[:, n], width=0.6)
    axes[2].axhspan(*(sign * 1.96 / np.sqrt(max(len(seen), 1)) for sign in (-1, 1)), color="0.8", zorder=0)
    axes[2].set(xlabel="lag", ylabel="autocorrelation")
    return axes


def plot_backtest(found: Any, output: int | str = 0) -> Any:
    """Plot RMSE and coverage by horizon.

    Args:
        found: Result of `prodssm.evaluation.backtest`.
        output: Output to draw, by index or name.

    Returns:
        The two axes.

    Example:
        >>> plot_backtest(ps.evaluation.backtest(model, y, horizon=5))[0].get_ylabel()
        'RMSE of y0'
    """
    n = chosen_indices("output", output, found.names)[0]
    horizons = np.arange(1, found.mean.shape[1] + 1)
    scores = [found._scored(n, int(h)) for h in horizons]
    axes = pyplot().subplots(1, 2, figsize=(10, 3.4), layout="constrained")[1]
    axes[0].plot(horizons, [each["rmse"] for each in scores], marker=".", label="model")
    axes[0].plot(horizons, [each["rmse_last"] for each in scores], color="0.6", label="last value")
    axes[0].set(xlabel="steps ahead", ylabel=f"RMSE of {found.names[n]}", ylim=(0, None))
    axes[1].plot(horizons, [each["coverage"] for each in scores], marker=".")
    axes[1].axhline(found.probability, color="0.6", lw=0.8, ls="--")
    axes[1].set(xlabel="steps ahead", ylabel=f"covered by {100 * found.probability:g} % intervals", ylim=(0, 1.02))
    with_legend(axes[0])
    return axes
