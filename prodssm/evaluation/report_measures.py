"""What a report measures on data: forecasts from many origins and their calibration, gaps, and the learned transition."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from prodssm.data.scaling import DataScaling
from prodssm.data.series import Series, part_of
from prodssm.estimators.results import Decomposition, Prediction
from prodssm.models.components import Components

LONGEST_HORIZON, LONGEST_PAST = 50, 1000  # time steps
MOST_ORIGINS, MOST_FORECASTS = 20, 400  # of one series, of all
MOST_DECOMPOSED = 20  # forecasts whose variance is decomposed
LEVELS = (0.5, 0.8, 0.95)  # probabilities of the intervals whose coverage is measured
GRID, MOST_SLICES = 61, 8  # points of a slice through the transition; states that are sliced
SLOPE_STEP = 0.1  # standard deviations of a state to each side, of the central difference
SAME = 1e-5  # relative difference of means and scales up to which data count as those of the fit

Errors = (ValueError, FloatingPointError, NotImplementedError)  # with which the library says what it cannot answer


@dataclass(frozen=True)
class OriginForecast:
    """A forecast from an origin inside a series, and what was observed after it.

    Attributes:
        series: Index of the series.
        origin: Index of the first time step that is forecast.
        past: Number of time steps before it that the forecast is conditioned on.
        truth: Observations after the origin; NaN is missing.
        last: The last observed value of each output before the origin: the simplest forecast.
        prediction: The model's forecast.
    """

    series: int
    origin: int
    past: int
    truth: Float[np.ndarray, "steps y"]
    last: Float[np.ndarray, " y"]
    prediction: Prediction


@dataclass(frozen=True)
class HorizonScores:
    """Scores of forecasts at some horizons, over all origins, series and (but for errors) outputs.

    Attributes:
        low: Shortest horizon.
        high: Longest horizon.
        count: Number of observed values.
        coverage: Fraction of them inside central intervals, by the probability of the interval.
        bias: Mean of the standardised errors (y - mean) / std; zero if calibrated.
        spread: Their standard deviation; one if calibrated.
        rmse: Root mean squared error of the mean, output by output; NaN without an observation.
        last_value: The same of the last value before the origin.
    """

    low: int
    high: int
    count: int
    coverage: dict[float, float]
    bias: float
    spread: float
    rmse: Float[np.ndarray, " y"]
    last_value: Float[np.ndarray, " y"]


class Gap(NamedTuple):
    """Consecutive missing values of one output of one series; the end is exclusive."""

    series: int
    output: int
    begin: int
    end: int


@dataclass(frozen=True)
class LearnedTransition:
    """The transition around the mean state: slices along each state, and its slope there.

    Attributes:
        center: Mean of the states that were visited.
        control: The control that it is evaluated at, the mean of the data; None without controls.
        grids: Values of the state along each slice, (slices, points).
        means: The next state along each slice, (slices, points, x).
        stds: Its standard deviation from uncertain weights.
        slope: Change of each next state per change of each state, (x, x).
    """

    center: Float[np.ndarray, " x"]
    control: Float[np.ndarray, " u"] | None
    grids: Float[np.ndarray, "slices points"]
    means: Float[np.ndarray, "slices points x"]
    stds: Float[np.ndarray, "slices points x"]
    slope: Float[np.ndarray, "x x"]


# ---------------------------------------------------------------- forecasts from many origins


def origins(series: Sequence[Series]) -> list[list[int]]:
    """Time steps to forecast from: evenly spread, with enough of the series before and after them.

    Example:
        >>> origins([Series(np.arange(24.0))])
        [[12, 13, 14, 15, 16, 17, 18]]
    """
    most = min(MOST_ORIGINS, max(1, MOST_FORECASTS // len(series)))
    stride = -(-len(series) // MOST_FORECASTS)  # of more series than forecasts only some are forecast
    return [_origins_of(each, most) if n % stride == 0 else [] for n, each in enumerate(series)]


def horizon_of(series: Series) -> int:
    """Steps that a series is forecast ahead."""
    return max(1, min(LONGEST_HORIZON, len(series) // 4))


def past_of(series: Series) -> int:
    """Time steps before an origin that a forecast is conditioned on; the same for all, so that one program is compiled."""
    return max(2, min(LONGEST_PAST, len(series) // 2))


def _origins_of(series: Series, most: int) -> list[int]:
    past, horizon = past_of(series), horizon_of(series)
    if len(series) < past + horizon:
        return []
    seen = np.isfinite(np.asarray(series.y, float))
    found = np.unique(np.linspace(len(series) - horizon, past, most).astype(int)).tolist()
    return [n for n in found if seen[n - past : n].any(axis=0).all() and seen[n : n + horizon].any()]


def forecast_origins(
    model: Any, series: Sequence[Series], begins: Sequence[Sequence[int]], done: Callable[[], Any]
) -> tuple[list[OriginForecast], list[str]]:
    """Forecasts from all origins, and the words of the library where a forecast fails.

    Args:
        model: A fitted `ProDSSM`.
        series: The data.
        begins: Origins of each series.
        done: Called after each forecast.
    """
    found, failures = [], []
    for n, (each, places) in enumerate(zip(series, begins, strict=True)):
        for origin in places:
            try:
                found.append(_forecast_from(model, each, n, origin))
            except FloatingPointError as error:
                failures.append(str(error))
            done()
    return found, failures


def _forecast_from(model: Any, series: Series, number: int, origin: int) -> OriginForecast:
    past, horizon = past_of(series), horizon_of(series)
    before, after = part_of(series, origin - past, origin), part_of(series, origin, origin + horizon)
    prediction = model._forecast_at(part_of(series, origin - past, origin + horizon), [past], horizon)[0]
    known = np.asarray(before.y, float)
    last = np.array([column[np.isfinite(column)][-1] for column in known.T])
    return OriginForecast(number, origin, past, np.asarray(after.y, float), last, prediction)


# ---------------------------------------------------------------- calibration


def horizon_groups(longest: int) -> list[tuple[int, int]]:
    """Ranges of horizons, each twice as long as the one before.

    Example:
        >>> horizon_groups(10)
        [(1, 1), (2, 3), (4, 7), (8, 10)]
    """
    lows = [1 << n for n in range(longest.bit_length())]
    return [(low, min(2 * low - 1, longest)) for low in lows]


def scores_at(forecasts: Sequence[OriginForecast], low: int, high: int) -> HorizonScores | None:
    """Scores over a range of horizons; None without an observation."""
    at = slice(low - 1, high)
    truth = np.concatenate([each.truth[at] for each in forecasts])
    mean, std = (_stacked(forecasts, at, lambda found, name=name: getattr(found, name)) for name in ("mean", "std"))
    last = np.concatenate([np.broadcast_to(each.last, each.truth[at].shape) for each in forecasts])
    seen = np.isfinite(truth)
    if not seen.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        standardised = ((truth - mean) / std)[seen]
    coverage = {}
    for level in LEVELS:
        lower, upper = (_stacked(forecasts, at, lambda found, n=n, p=level: found.interval(p)[n]) for n in (0, 1))
        coverage[level] = float(((lower <= truth) & (truth <= upper))[seen].mean())
    errors = [_rmse_by_output(truth - guess) for guess in (mean, last)]
    return HorizonScores(low, high, int(seen.sum()), coverage, float(standardised.mean()), float(standardised.std()), *errors)


def _stacked(forecasts: Sequence[OriginForecast], at: slice, part: Callable[[Any], Any]) -> np.ndarray:
    return np.concatenate([np.asarray(part(each.prediction), float)[at] for each in forecasts])


def _rmse_by_output(error: Float[np.ndarray, "n y"]) -> Float[np.ndarray, " y"]:
    seen = np.isfinite(error)
    square = np.where(seen, error, 0.0) ** 2
    return np.sqrt(np.where(seen.any(axis=0), square.sum(axis=0) / np.maximum(seen.sum(axis=0), 1), np.nan))


def pit_values(forecasts: Sequence[OriginForecast]) -> Float[np.ndarray, " n"]:
    """Probability integral transform of all observed values, by the distribution functions of their forecasts."""
    seen = [np.isfinite(each.truth) for each in forecasts]
    parts = [
        Components.of(each.prediction).pit(np.where(known, each.truth, 0.0))[known]
        for each, known in zip(forecasts, seen, strict=True)
    ]
    return np.concatenate(parts)


def decomposed(forecasts: Sequence[OriginForecast]) -> list[OriginForecast]:
    """Some of the forecasts of the longest horizon, evenly spread: those whose variance is decomposed."""
    longest = max(len(each.truth) for each in forecasts)
    whole = [each for each in forecasts if len(each.truth) == longest]
    return [whole[n] for n in np.unique(np.linspace(0, len(whole) - 1, MOST_DECOMPOSED).astype(int))]


def variance_parts(forecasts: Sequence[OriginForecast]) -> Decomposition | str:
    """Parts of the variance of forecasts, averaged over these; or why the library cannot tell them."""
    try:
        found = [each.prediction.decompose() for each in decomposed(forecasts)]
    except Errors as error:
        return str(error)
    return Decomposition(*(np.mean([getattr(each, name) for each in found], axis=0) for name in vars(found[0])))


# ---------------------------------------------------------------- data


def gaps(series: Sequence[Series]) -> list[Gap]:
    """All runs of missing values, the longest first.

    Example:
        >>> [tuple(gap) for gap in gaps([Series([1.0, np.nan, np.nan, 2.0])])]
        [(0, 0, 1, 3)]
    """
    found = []
    for n, each in enumerate(series):
        for output, column in enumerate(np.isnan(np.asarray(each.y, float)).T):
            change = np.flatnonzero(np.diff(np.concatenate([[False], column, [False]]).astype(int)))
            found += [Gap(n, output, begin, end) for begin, end in change.reshape(-1, 2).tolist()]
    return sorted(found, key=lambda gap: (gap.begin - gap.end, gap))


def are_training_data(model: Any, series: Sequence[Series]) -> bool:
    """Whether data have the mean and scale of every column that the model was fitted with.

    The only trace of the training data in a fitted model is its scaling; other data have another one.
    """
    fitted: DataScaling = model.scaling_
    likelihood = model.ssm_.likelihood
    unseen = np.isnan(np.concatenate([np.asarray(each.y, float) for each in series])).all(axis=0)
    if unseen.any() or max(map(len, series)) < 2:  # nothing can be fitted to these
        return False
    found = DataScaling.fit(series, regular=False, standardise=likelihood.standardiser)
    pairs = [(found.y, fitted.y)] if found.u is None or fitted.u is None else [(found.y, fitted.y), (found.u, fitted.u)]
    if not np.any(np.asarray(fitted.y.mean)):  # a likelihood that leaves observations as they are
        return False
    close = [np.abs(a.mean - b.mean) <= SAME * b.scale for a, b in pairs]
    close += [np.abs(a.scale - b.scale) <= SAME * b.scale for a, b in pairs]
    return all(bool(each.all()) for each in close)


# ---------------------------------------------------------------- dynamics


def learned_transition(model: Any, states: Float[np.ndarray, "n x"], series: Sequence[Series]) -> LearnedTransition:
    """The transition around the mean of states that were visited.

    Args:
        model: A fitted `ProDSSM`.
        states: Smoothed states.
        series: The data, for the mean control.
    """
    center, scale = states.mean(axis=0), np.maximum(states.std(axis=0), np.finfo(float).eps)
    control = None if series[0].u is None else np.concatenate([np.asarray(each.u, float) for each in series]).mean(axis=0)
    size = min(center.size, MOST_SLICES)
    low, high = np.quantile(states[:, :size], (0.01, 0.99), axis=0)
    low, high = (
        np.where(high > low, low, center[:size] - scale[:size]),
        np.where(high > low, high, center[:size] + scale[:size]),
    )
    grids = np.linspace(low, high, GRID).T
    slices = np.tile(center, (size, GRID, 1))
    for n, grid in enumerate(grids):
        slices[n, :, n] = grid
    steps = np.diag(SLOPE_STEP * scale)
    points = np.concatenate([slices.reshape(-1, center.size), center + steps, center - steps])
    found = model.transition(points, None if control is None else np.tile(control, (len(points), 1)))
    means, stds = (np.asarray(part, float) for part in (found.mean, found.std))
    count = size * GRID
    up, down = means[count : count + center.size], means[count + center.size :]
    slope = ((up - down) / (2 * np.diagonal(steps))[:, None]).T
    shape = (size, GRID, center.size)
    return LearnedTransition(center, control, grids, means[:count].reshape(shape), stds[:count].reshape(shape), slope)
