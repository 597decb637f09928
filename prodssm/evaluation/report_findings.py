"""Everything that a report tells of a fitted model and data, found before a word of it is written."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from prodssm._progress import Progress
from prodssm.data.series import Series
from prodssm.estimators.results import Decomposition, Prediction
from prodssm.evaluation.report_measures import (
    Errors,
    Gap,
    HorizonScores,
    LearnedTransition,
    OriginForecast,
    are_training_data,
    forecast_origins,
    gaps,
    horizon_groups,
    horizon_of,
    learned_transition,
    origins,
    scores_at,
    variance_parts,
)
from prodssm.evaluation.report_pictures import MOST_SERIES
from prodssm.models.filtering import Beliefs

MOST_VISITED = 50_000  # states that the transition is looked at around


@dataclass(frozen=True)
class Names:
    """What things are called on the page.

    Attributes:
        series: One name per series.
        outputs: Columns of the observations.
        controls: Columns of the controls.
        states: The states.
        time: Of the axis of time.
    """

    series: tuple[str, ...]
    outputs: tuple[str, ...]
    controls: tuple[str, ...]
    states: tuple[str, ...]
    time: str


@dataclass(frozen=True)
class Findings:
    """What was found.

    Attributes:
        model: The fitted `ProDSSM`.
        series: The data.
        names: What they are called.
        training_data: Whether they are the data of the fit.
        gaps: Runs of missing values, the longest first.
        shown: Indices of the series that are drawn.
        filtered: Filtered beliefs of these, or why there are none.
        smoothed: Smoothed ones, likewise.
        ahead: Forecasts beyond the end of these; none if the model has controls, whose future is not known.
        forecasts: From many origins.
        failures: What the library said where a forecast failed.
        groups: Scores of the forecasts by horizon.
        overall: The same over all horizons; None without forecasts.
        parts: Parts of their variance, or why the library cannot tell them; None without forecasts.
        transition: The learned transition, or why it cannot be evaluated.
    """

    model: Any
    series: Sequence[Series]
    names: Names
    training_data: bool
    gaps: list[Gap]
    shown: list[int]
    filtered: list[Beliefs] | str
    smoothed: list[Beliefs] | str
    ahead: list[Prediction] | None
    forecasts: list[OriginForecast]
    failures: list[str]
    groups: list[HorizonScores]
    overall: HorizonScores | None
    parts: Decomposition | str | None
    transition: LearnedTransition | str

    @property
    def identity(self) -> bool:
        """Whether states are observed as they are."""
        return self.model.ssm_.emission is None


def find(model: Any, series: Sequence[Series]) -> Findings:
    """All findings, with a progress bar if the model shows any."""
    begins, shown = origins(series), list(range(min(len(series), MOST_SERIES)))
    total = sum(map(len, begins)) + 3 * len(shown) + 2
    with Progress("report", total, "answer", shown=model.progress) as bar:
        drawn = [series[n] for n in shown]
        filtered, smoothed = (_beliefs(function, drawn, bar) for function in (model.filter, model.smooth))
        ahead = None if series[0].u is not None else _ahead(model, drawn, bar)
        forecasts, failures = forecast_origins(model, series, begins, bar.update)
        longest = max((len(each.truth) for each in forecasts), default=0)
        scores = [scores_at(forecasts, *group) for group in horizon_groups(longest)] if forecasts else []
        overall = scores_at(forecasts, 1, longest) if forecasts else None
        parts = variance_parts(forecasts) if forecasts else None
        bar.update()
        transition = _transition(model, smoothed if isinstance(smoothed, list) else filtered, series)
        bar.update(total - bar.done)
    return Findings(
        model,
        series,
        _names(model, series),
        are_training_data(model, series),
        gaps(series),
        shown,
        filtered,
        smoothed,
        ahead,
        forecasts,
        failures,
        [each for each in scores if each is not None],
        overall,
        parts,
        transition,
    )


def _names(model: Any, series: Sequence[Series]) -> Names:
    layout, outputs = model.layout_, model.output_names_
    controls = tuple(f"u{n}" for n in range(model.scaling_.controls)) if layout is None else tuple(layout.control_names)
    states = outputs if model.ssm_.emission is None else tuple(f"x{n}" for n in range(model.ssm_.x_size))
    time = "time step" if series[0].time is None else "time" if layout is None or layout.time is None else layout.time
    labels = [getattr(each, "label", None) for each in series]
    group = "series" if layout is None or layout.group is None else layout.group
    labels = [n if label is None else label for n, label in enumerate(labels)]
    names = tuple(label if isinstance(label, str) else f"{group} {label}" for label in labels)
    return Names(names, outputs, controls, states, time)


def _beliefs(function: Any, series: Sequence[Series], bar: Progress) -> list[Beliefs] | str:
    found = []
    for each in series:
        try:
            found.append(function(each))
        except (*Errors, MemoryError) as error:
            return str(error)
        bar.update()
    return found


def _ahead(model: Any, series: Sequence[Series], bar: Progress) -> list[Prediction] | None:
    """Forecasts beyond the end of each series; None if one of them overflows."""
    found = []
    for each in series:
        try:
            found.append(model.forecast(each, horizon_of(each)))
        except FloatingPointError:
            return None
        bar.update()
    return found


def _transition(model: Any, beliefs: list[Beliefs] | str, series: Sequence[Series]) -> LearnedTransition | str:
    if isinstance(beliefs, str):
        return beliefs
    visited = np.concatenate([np.asarray(each.mean, float) for each in beliefs])
    try:
        return learned_transition(model, visited[:: -(-len(visited) // MOST_VISITED)], series)
    except Errors as error:
        return str(error)
