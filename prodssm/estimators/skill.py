"""Skill: scores of a model on held-out blocks, horizon by horizon, beside those of simple forecasts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from prodssm.data.batching import LEAD
from prodssm.data.folds import Block
from prodssm.data.scaling import mean_and_scale
from prodssm.data.series import Series, part_of
from prodssm.data.splitting import without_blocks
from prodssm.estimators.calibration import Calibration
from prodssm.estimators.held_out import BlockForecast
from prodssm.scoring.metrics import coverage, crps, nll, rmse
from prodssm.training.subspace import LinearModel, identify

RANGES = ((1, 1), (2, 10), (11, 50), (51, 250))  # of horizons
METRICS = ("rmse", "crps", "nll", "coverage")
WORSE = 1.1  # times the RMSE of a simple forecast: more than that is a warning
EVIDENT = 0.5  # autocorrelation at a period
MULTIPLE = 0.95  # of the highest peak of the autocorrelation: the first one above is the period
FEWEST_PERIODS = 3
SMALLEST_STD = 1e-6  # of a simple forecast, in standardised units
MODEL, LINEAR, LAST, SEASONAL = "model", "linear", "last value", "seasonal naive"

Rule = Callable[[Series, int], tuple[np.ndarray, np.ndarray]]
"""A simple forecast: means and standard deviations of the observations of a series after the first so many."""


@dataclass(frozen=True)
class Skill:
    """Scores on blocks of the data by horizon, in standard deviations of the data.

    Attributes:
        ranges: Ranges of horizons, both ends included.
        scores: For each forecast and metric ("rmse", "crps", "nll", "coverage" of 95 % intervals), one number per range.
        overall: The same over all horizons.
        period: Period of the seasonal naive forecast; None if none is evident.
        in_sample: Whether the model was trained on these blocks, because nothing was held out.

    Example:
        >>> model.skill_.ranges[0], sorted(model.skill_.overall["model"])
        ((1, 1), ['coverage', 'crps', 'nll', 'rmse'])
    """

    ranges: tuple[tuple[int, int], ...]
    scores: dict[str, dict[str, list[float]]]
    overall: dict[str, dict[str, float]]
    period: int | None
    in_sample: bool = False

    @property
    def worse_than(self) -> tuple[str, ...]:
        """The simple forecasts that are clearly better than the model."""
        ours = self.overall[MODEL]["rmse"]
        return tuple(name for name, each in self.overall.items() if name != MODEL and not ours <= WORSE * each["rmse"])

    def __str__(self) -> str:
        """Four lines."""
        labels = [str(low) if low == high else f"{low}-{high}" for low, high in self.ranges]
        where = "data that it was trained on" if self.in_sample else "held-out data"
        lines = [f"RMSE on {where}, in standard deviations, by steps ahead" + "".join(f"{label:>8}" for label in labels)]
        simple = [name for name in (SEASONAL, LAST) if name in self.overall]
        naive = min(simple, key=lambda name: self.overall[name]["rmse"], default=None)
        covered = " ".join(f"{100 * each:.0f}" for each in self.scores[MODEL]["coverage"])
        for name, words in ((MODEL, f"this model; 95 % intervals cover {covered} %"), (LINEAR, "linear model"), (naive, naive)):
            if name is not None and name in self.scores:
                row = "".join(f"{each:8.3f}" for each in self.scores[name]["rmse"])
                lines.append(f"  {words:<{len(lines[0]) - 8 * len(labels) - 2}}" + row)
        return "\n".join(lines)

    def words(self) -> dict[str, Any]:
        """As JSON can say it."""
        return {name: getattr(self, name) for name in ("ranges", "scores", "overall", "period", "in_sample")}


def measure_skill(
    forecasts: Sequence[BlockForecast],
    series: list[Series],
    folds: Sequence[Sequence[Block]],
    *,
    linear: int,
    feedthrough: bool = False,
    in_sample: bool = False,
) -> Skill:
    """Scores of forecasts of blocks, beside those of simple forecasts that saw no more.

    Args:
        forecasts: The model's, calibrated as it will be.
        series: Standardised.
        folds: The blocks.
        linear: Number of states of the linear model.
        feedthrough: Whether its controls act on the output at once.
        in_sample: Whether the model was trained on the blocks.
    """
    period = evident_period(series)
    tables = {MODEL: list(forecasts)}
    for fold in sorted({each.fold for each in forecasts}):
        seen = series if in_sample else without_blocks(series, folds[fold])
        for name, rule in simple_rules(seen, linear, feedthrough, period).items():
            for each in (one for one in forecasts if one.fold == fold):
                tables.setdefault(name, []).append(_by_rule(rule, series, each, max(LEAD, period or 0)))
    longest = max(len(each.truth) for each in forecasts)
    ranges = tuple((low, min(high, longest)) for low, high in RANGES if low <= longest)
    scored = {name: [_scores(each, *limits) for limits in ranges] for name, each in tables.items()}
    by_range = {name: {metric: [each[metric] for each in rows] for metric in METRICS} for name, rows in scored.items()}
    overall = {name: _scores(each, 1, longest) for name, each in tables.items()}
    return Skill(ranges, by_range, overall, period, in_sample)


def calibrated_out_of_fold(forecasts: Sequence[BlockForecast]) -> list[BlockForecast]:
    """Each forecast calibrated by the other folds, so that its coverage is that of data which nothing was fitted to."""
    folds = sorted({each.fold for each in forecasts})
    if len(folds) < 2:
        return list(forecasts)
    found = []
    for fold in folds:
        rule = Calibration.fit([each for each in forecasts if each.fold != fold])
        found += [rule.calibrated(each) for each in forecasts if each.fold == fold]
    return found


def in_standard_deviations(
    forecasts: Sequence[BlockForecast], series: list[Series]
) -> tuple[list[BlockForecast], list[Series]]:
    """Forecasts and series of data that were not standardised, in standard deviations of the data."""
    scale = mean_and_scale(np.concatenate([np.asarray(each.y, float) for each in series]))[1]
    found = [replace(each, truth=each.truth / scale, mean=each.mean / scale, std=each.std / scale) for each in forecasts]
    divided = [eqx.tree_at(lambda one: one.y, each, (each.y / scale).astype(each.y.dtype)) for each in series]
    return found, divided


def evident_period(series: Sequence[Series]) -> int | None:
    """The period at which the outputs repeat themselves, by the first high peak of their autocorrelation; None without one."""
    longest = np.asarray(max(series, key=len).y, float)
    y = np.where(np.isfinite(longest), longest, np.nanmean(longest, axis=0))
    at = np.arange(len(y))
    y = y - np.stack([np.polyval(np.polyfit(at, column, 1), at) for column in y.T], axis=1)
    most = len(y) // FEWEST_PERIODS
    if most < 4 or not (y**2).sum():
        return None
    spectrum = np.abs(np.fft.rfft(y, 2 * len(y), axis=0)) ** 2
    correlation = np.fft.irfft(spectrum, axis=0)[: most + 1].sum(axis=1)
    correlation = correlation / correlation[0] * len(y) / (len(y) - np.arange(most + 1))
    inner = correlation[1:-1]
    peaks = np.flatnonzero((inner > correlation[:-2]) & (inner >= correlation[2:]) & (inner > EVIDENT)) + 1
    # Multiples of a period have peaks of about its height.
    return None if not len(peaks) else int(peaks[np.argmax(correlation[peaks] > MULTIPLE * correlation[peaks].max())])


def simple_rules(series: list[Series], linear: int, feedthrough: bool, period: int | None) -> dict[str, Rule]:
    """Simple forecasts, fitted to series with gaps where something is held out."""
    found: dict[str, Rule] = {}
    model = identify(series, linear, feedthrough=feedthrough)
    if model is not None:
        found[LINEAR] = _linear_rule(model)
    if period is not None:
        found[SEASONAL] = _repeated_rule(series, period)
    found[LAST] = _repeated_rule(series, 1)
    return found


def _linear_rule(model: LinearModel) -> Rule:
    def rule(series: Series, known: int) -> tuple[np.ndarray, np.ndarray]:
        mean, var = model.forecast(series, known)
        return mean, np.sqrt(var)

    return rule


def _repeated_rule(series: list[Series], period: int) -> Rule:
    """The last period again and again; standard deviations from the differences of the series at each number of periods."""
    columns = [np.asarray(each.y, float) for each in series]
    longest = max(len(each) for each in columns)
    outputs = columns[0].shape[1]

    @cache  # the same for every block, and work in proportion to the length of the series
    def deviation(gap: int) -> Float[np.ndarray, " y"]:
        differences = [each[gap:] - each[:-gap] for each in columns if len(each) > gap]
        together = np.concatenate(differences) if differences else np.full((1, outputs), np.nan)
        known = np.isfinite(together)
        square = np.where(known, together, 0.0) ** 2
        return np.sqrt(np.where(known.any(axis=0), square.sum(axis=0) / np.maximum(known.sum(axis=0), 1), 2.0))

    def rule(series: Series, known: int) -> tuple[np.ndarray, np.ndarray]:
        past = _filled(np.asarray(series.y[:known], float))
        ahead = np.arange(len(series) - known)
        repeats = ahead // period + 1
        mean = past[np.maximum(known - period, 0) + ahead % period] if known >= period else np.tile(past[-1], (len(ahead), 1))
        stds = {n: deviation(min(n * period, longest - 1)) for n in np.unique(repeats).tolist()}
        return mean, np.maximum(np.stack([stds[n] for n in repeats.tolist()]), SMALLEST_STD)

    return rule


def _filled(y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
    """Missing values replaced by the last one, or by the mean before the first."""
    y = y.copy()
    for t in range(len(y)):
        y[t] = np.where(np.isfinite(y[t]), y[t], y[t - 1] if t else 0.0)
    return y


def _by_rule(rule: Rule, series: list[Series], forecast: BlockForecast, lead: int) -> BlockForecast:
    """What a simple forecast says of the same block, from so many observations before it."""
    block = forecast.block
    begin = max(0, block.begin - lead)
    mean, std = rule(part_of(series[block.series], begin, block.end), block.begin - begin)
    return replace(forecast, mean=mean, std=std)


def _scores(forecasts: Sequence[BlockForecast], low: int, high: int) -> dict[str, float]:
    """All metrics over these horizons."""
    at = slice(low - 1, high)
    truth, mean, std = (np.concatenate([getattr(each, part)[at] for each in forecasts]) for part in ("truth", "mean", "std"))
    seen = np.isfinite(truth)
    if not seen.any():
        return dict.fromkeys(METRICS, float("nan"))
    y, m, s = truth[seen], mean[seen], np.maximum(std[seen], SMALLEST_STD)
    return {"rmse": rmse(y, m), "crps": crps(y, m, s), "nll": nll(y, m, s**2), "coverage": coverage(y, m, s)}
