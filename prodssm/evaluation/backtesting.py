"""Backtests: forecasts from many past origins against what happened then."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from prodssm._jobs import run_jobs
from prodssm._progress import Progress
from prodssm._validation import require_integer, require_probability
from prodssm.data.frames import from_frames, layout_of
from prodssm.data.layout import Layout
from prodssm.data.series import Series, as_series_list, part_of
from prodssm.data.stamps import Stamps
from prodssm.data.tables import Table, build
from prodssm.models.components import Components
from prodssm.scoring import metrics

FIRST_ORIGIN = 0.5  # of a series, by default


@dataclass(frozen=True, eq=False)
class Backtest:
    """Forecasts from many origins, and their scores.

    Arrays have a row per origin: (origins, horizon, outputs).

    Attributes:
        truth: What was observed; NaN is missing.
        mean: What was forecast.
        std: Standard deviations of the forecasts.
        lower: Lower ends of the intervals.
        upper: Upper ends.
        crps: Continuous ranked probability scores of the forecast distributions.
        log_prob: Log densities of what was observed, or probabilities for counts and events, output by output.
        last: The last value before the origin that was observed, (origins, outputs): what a forecast must beat.
        origins: Index of the first time step that was forecast, in its series.
        series: Number of the series.
        labels: The groups of all series, or their numbers.
        names: Of the outputs.
        probability: Of the intervals.

    Example:
        >>> found = backtest(model, y, horizon=5, step=10)
        >>> found.origins.tolist(), found.mean.shape
        ([30, 40, 50], (3, 5, 1))
    """

    truth: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    crps: np.ndarray
    log_prob: np.ndarray
    last: np.ndarray
    origins: np.ndarray
    series: np.ndarray
    labels: tuple[Any, ...]
    names: tuple[str, ...]
    probability: float
    _stamps: tuple[Stamps | None, ...] = field(repr=False)
    _layout: Layout | None = field(repr=False)

    @property
    def scores(self) -> Any:
        """A data frame by output and horizon: RMSE, MAE, CRPS, NLL, coverage and width of the intervals.

        `rmse_last` is the RMSE of the last value before the origin. Horizon 0 stands for all of them.
        """
        horizons = range(self.mean.shape[1] + 1)
        rows = [(name, h, self._scored(n, h)) for n, name in enumerate(self.names) for h in horizons]
        found: Table = {"output": np.array([name for name, _, _ in rows], object), "horizon": np.array([h for _, h, _ in rows])}
        found |= {key: np.array([each[key] for _, _, each in rows]) for key in rows[0][2]}
        return build(found, None if self._layout is None else self._layout.backend)

    def _scored(self, output: int, horizon: int) -> dict[str, Any]:
        steps = slice(None) if horizon == 0 else slice(horizon - 1, horizon)
        names = ("truth", "mean", "lower", "upper", "crps", "log_prob")
        parts = [getattr(self, name)[:, steps, output] for name in names]
        seen = ~np.isnan(parts[0])
        last = np.broadcast_to(self.last[:, None, output], seen.shape)
        truth, mean, lower, upper, crps, log_prob, last = (part[seen] for part in (*parts, last))
        if not len(truth):
            names = ("rmse", "mae", "crps", "nll", "coverage", "width", "rmse_last")
            return {"count": 0, **dict.fromkeys(names, float("nan"))}
        known = ~np.isnan(last)
        return {
            "count": len(truth),
            "rmse": metrics.rmse(truth, mean),
            "mae": float(np.abs(truth - mean).mean()),
            "crps": float(crps.mean()),
            "nll": -float(log_prob.mean()),
            "coverage": float(((truth >= lower) & (truth <= upper)).mean()),
            "width": float((upper - lower).mean()),
            "rmse_last": metrics.rmse(truth[known], last[known]) if known.any() else float("nan"),
        }

    def to_frame(self, backend: str | None = None) -> Any:
        """Every forecast as a row: series, origin, horizon, time, output, truth, mean, std, lower and upper.

        Example:
            >>> backtest(model, y, horizon=5, step=10).to_frame("pandas").shape
            (15, 9)
        """
        count, horizon, outputs = self.mean.shape
        shape = (count, horizon, outputs)

        def spread(values: Any, axis: int) -> np.ndarray:
            return np.broadcast_to(np.asarray(values).reshape([-1 if n == axis else 1 for n in range(3)]), shape).ravel()

        names = np.array(self.names, object)
        labels = np.array([self.labels[n] for n in self.series], object if isinstance(self.labels[0], str) else None)
        found: Table = {"series": spread(labels, 0), "origin": spread(self.origins, 0)}
        found |= {"horizon": spread(np.arange(1, horizon + 1), 1)}
        found |= self._times(horizon, outputs)
        found |= {"output": spread(names, 2)}
        parts = {"truth": self.truth, "mean": self.mean, "std": self.std, "lower": self.lower, "upper": self.upper}
        found |= {name: part.ravel() for name, part in parts.items()}
        return build(found, backend or (None if self._layout is None else self._layout.backend))

    def _times(self, horizon: int, outputs: int) -> Table:
        """The time stamps of the forecasts, if the data had some."""
        first = self._stamps[0]
        if first is None:
            return {}
        pairs = zip(self.origins, self.series, strict=True)
        values = [stamps.values[n : n + horizon] for n, k in pairs if (stamps := self._stamps[k]) is not None]
        return {"time": Stamps(np.repeat(np.concatenate(values), outputs), first.clock, first.zone)}

    def plot(self, output: int | str = 0) -> Any:
        """RMSE and coverage by horizon.

        Example:
            >>> len(backtest(model, y, horizon=5, step=10).plot())
            2
        """
        from prodssm.evaluation.plots import plot_backtest

        return plot_backtest(self, output)

    def __repr__(self) -> str:
        """What was forecast, and the scores over all horizons."""
        whole = [f"{name}: RMSE {s['rmse']:.4g}, {s['coverage']:.0%} covered" for name, s in self._overall().items()]
        return f"Backtest({len(self.origins)} origins, horizon {self.mean.shape[1]}; {'; '.join(whole)})"

    def _overall(self) -> dict[str, dict[str, Any]]:
        return {name: self._scored(n, 0) for n, name in enumerate(self.names)}


def backtest(
    model: Any,
    data: Any,
    horizon: int,
    step: int | None = None,
    *,
    refit: bool = False,
    start: int | None = None,
    window: int | None = None,
    probability: float = 0.95,
    n_jobs: int | None = None,
    progress: bool | None = None,
) -> Backtest:
    """Forecast from many past origins, and score what happened then.

    Controls are taken as known in advance: those of the data.

    Args:
        model: A `ProDSSM`. One that is not fitted is fitted once, to what precedes the first origin of each series.
        data: One or many series, as for `fit`. Scores of data that a fitted model has seen say too much good of it.
        horizon: Steps ahead.
        step: From one origin to the next; the horizon if not given.
        refit: Whether to fit a new model at every origin, to what precedes it.
        start: The first origin: number of observations before it; half of the shortest series if not given.
        window: How many observations before an origin the model is refitted to and conditioned on; all of them if not given.
        probability: Of the intervals.
        n_jobs: Refits at a time; as joblib is configured (`joblib.parallel_config`) if not given.
        progress: Show a progress bar; as the model does if not given.

    Example:
        >>> from prodssm import ProDSSM, Recipe
        >>> y = np.sin(0.3 * np.arange(60))
        >>> model = ProDSSM(hidden=(), latent_dim=2, emission="linear", recipe=Recipe(iterations=2), progress=False)
        >>> backtest(model, y, horizon=5).mean.shape
        (6, 5, 1)
    """
    for name, value in (
        ("horizon", horizon),
        ("step", 1 if step is None else step),
        ("window", 2 if window is None else window),
    ):
        require_integer(name, value, least=1)
    require_probability(probability)
    if n_jobs is not None and (isinstance(n_jobs, bool) or not isinstance(n_jobs, int) or n_jobs == 0):
        raise ValueError(f"n_jobs must be a number of processes, or -1 for all cores; got {n_jobs!r}")
    layout = model.layout_ if hasattr(model, "members_") else layout_of(data)
    series = as_series_list(from_frames(data, layout))
    start = max(2, int(FIRST_ORIGIN * min(map(len, series)))) if start is None else start
    require_integer("start", start, least=1)
    origins = [list(range(start, len(each) - horizon + 1, step or horizon)) for each in series]
    if not any(origins):
        raise ValueError(
            f"data must have at least {start + horizon} observations, {start} before the first origin and {horizon} "
            f"after it; got {max(map(len, series))}"
        )
    shown = model.progress if progress is None else progress
    if not refit and not hasattr(model, "members_"):
        past = [part_of(each, 0, start) for each in series if len(each) >= start]
        model = _fitted(_fresh(model).set_params(progress=shown), past)
    with Progress("backtest", sum(map(len, origins)), "origin", shown=shown) as bar:
        found = list(_forecasts(model, series, origins, horizon, window, refit, n_jobs, bar))
    return _collected(found, series, origins, horizon, probability, layout)


def _forecasts(
    model: Any,
    series: Sequence[Series],
    origins: Sequence[Sequence[int]],
    horizon: int,
    window: int | None,
    refit: bool,
    n_jobs: int | None,
    bar: Any,
) -> Iterator[Any]:
    """Forecasts of all origins of all series, in their order."""
    if refit:
        jobs = [
            (model, part_of(each, 0 if window is None else max(0, n - window), n + horizon), horizon)
            for each, those in zip(series, origins, strict=True)
            for n in those
        ]
        found: dict[int, Any] = {}
        for number, forecast in run_jobs(_refitted, jobs, n_jobs):
            found[number] = forecast
            bar.update()
        yield from (found[number] for number in range(len(jobs)))
        return
    for each, those in zip(series, origins, strict=True):
        if window is None:
            yield from model._forecast_at(each, those, horizon) if those else ()
        else:
            for n in those:
                yield model._forecast_at(part_of(each, max(0, n - window), n + horizon), [min(n, window)], horizon)[0]
        bar.update(len(those))


def _fresh(model: Any) -> Any:
    """A model with the same parameters that is not fitted, and keeps quiet."""
    from sklearn.base import clone

    fresh: Any = clone(model)
    return fresh.set_params(progress=False, checkpoint=None)  # a checkpoint belongs to one fit


def _refitted(model: Any, series: Series, horizon: int) -> Any:
    """The forecast of the last observations of a series by a model that is fitted to those before."""
    origin = len(series) - horizon
    return _fitted(_fresh(model), part_of(series, 0, origin))._forecast_at(series, [origin], horizon)[0]


def _fitted(model: Any, data: Any) -> Any:
    """The model, fitted; an interrupted fit, which keeps the model so far, ends the backtest."""
    if model.fit(data).history_.interrupted:
        raise KeyboardInterrupt
    return model


def _collected(
    found: Sequence[Any],
    series: Sequence[Series],
    origins: Sequence[Sequence[int]],
    horizon: int,
    probability: float,
    layout: Layout | None,
) -> Backtest:
    """Forecasts and what happened, as arrays."""
    where = [(k, n) for k, those in enumerate(origins) for n in those]
    intervals = [each.interval(probability) for each in found]
    parts = [[each.mean for each in found], [each.std for each in found], *zip(*intervals, strict=True)]
    truth = [np.asarray(series[k].y[n : n + horizon], float) for k, n in where]
    parts += [[each.crps(y) for each, y in zip(found, truth, strict=True)]]
    parts += [[Components.of(each).marginal_log_prob(y) for each, y in zip(found, truth, strict=True)]]
    labels = [getattr(each, "label", None) for each in series]
    return Backtest(
        np.stack(truth),
        *(np.stack([np.asarray(each, float) for each in part]) for part in parts),
        last=np.stack([_last_seen(np.asarray(series[k].y[:n], float)) for k, n in where]),
        origins=np.array([n for _, n in where]),
        series=np.array([k for k, _ in where]),
        labels=tuple(n if label is None else label for n, label in enumerate(labels)),
        names=found[0].names,
        probability=probability,
        _stamps=tuple(each.stamps for each in series),
        _layout=layout,
    )


def _last_seen(y: np.ndarray) -> np.ndarray:
    """The last value of each output that was observed."""
    seen = ~np.isnan(y)
    rows = len(y) - 1 - np.argmax(seen[::-1], axis=0)
    return np.where(seen.any(axis=0), y[rows, np.arange(y.shape[1])], np.nan)
