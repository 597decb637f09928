"""The sections of a report on the data and on what was chosen from them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prodssm._validation import plain
from prodssm.estimators.choices import AUTO
from prodssm.evaluation.report_findings import Findings
from prodssm.evaluation.report_html import (
    Markup,
    called,
    count,
    details,
    figure,
    join,
    listed,
    number,
    paragraph,
    percent,
    plural,
    say,
    section,
    table,
    tag,
    words,
)
from prodssm.evaluation.report_measures import Gap
from prodssm.evaluation.report_pictures import MOST_CONTROLS, MOST_OUTPUTS, Pictures, TimeAxis

MOST_ROWS = 100  # of a table of series
LONGEST_GAPS = 8  # that are listed
CHOICES = {
    "latent_dim": "states",
    "hidden": "hidden layers of the transition",
    "emission": "emission",
    "residual": "residual transition",
    "activation": "activation",
    "n_estimators": "models in the ensemble",
    "window": "length of training windows",
    "batch": "windows per training step",
}


# ---------------------------------------------------------------- data


def data_section(found: Findings, pictures: Pictures) -> Markup:
    """The data and their gaps."""
    names, series = found.names, found.series
    length = plural(sum(len(each) for each in series), "time step")
    several = say(" in {count} series", count=count(len(series))) if len(series) > 1 else join()
    controls = say("Controls: {names}.", names=listed(names.controls)) if names.controls else join("There are no controls.")
    runs = [gap for gap in found.gaps if gap.end - gap.begin > 1]
    what = "Observations and controls" if names.controls else "Observations"
    caption = say("{what} over {time}.{gaps}", what=what, time=called(names.time), gaps=" Gaps are shaded." if runs else "")
    return section(
        "data",
        "The data",
        paragraph(
            say("There are {length}{several}.", length=length, several=several),
            say("Outputs: {names}.", names=listed(names.outputs)),
            controls,
            _missing(found, runs),
        ),
        figure("data", f"{what} over {names.time}", join(caption, drawing_note(found, pictures), between=" ")),
        _columns(found),
        _gaps(found, runs[:LONGEST_GAPS]),
        _series(found),
    )


def _missing(found: Findings, runs: Sequence[Gap]) -> Markup:
    total = sum(np.asarray(each.y).size for each in found.series)
    missing = sum(int(np.isnan(np.asarray(each.y, float)).sum()) for each in found.series)
    if not missing:
        return join("Nothing is missing.")
    longest = (
        say(" the longest gap has {steps} time steps", steps=count(runs[0].end - runs[0].begin, key="longest gap"))
        if runs
        else " no two in a row"
    )
    return say(
        "{missing} of {total} values are missing ({share});{longest}.",
        missing=count(missing, key="missing"),
        total=count(total),
        share=percent(missing / total),
        longest=longest,
    )


def drawing_note(found: Findings, pictures: Pictures) -> Markup:
    """How time is counted, and what is left out of pictures over time."""
    notes = []
    if found.series[0].time is not None and TimeAxis.of(found.series[0]).stamps is None:
        notes.append(join("Time counts from the first row of a series."))
    if pictures.decimated is not None:
        notes.append(
            say(
                "Long lines are decimated for the picture to at most {most} points, the lowest and the highest value of each "
                "stretch, so that peaks survive.",
                most=count(pictures.decimated, key="decimated"),
            )
        )
    if len(found.shown) < len(found.series):
        notes.append(say("Drawn are the first {count} series.", count=count(len(found.shown))))
    for kind, most in (("outputs", MOST_OUTPUTS), ("controls", MOST_CONTROLS)):
        hidden = len(getattr(found.names, kind)) - most
        if hidden > 0:
            notes.append(say("{count} more {kind} are not drawn.", count=count(hidden), kind=kind))
    return join(*notes, between=" ")


def moment(axis: TimeAxis, index: int) -> Markup:
    """When a time step was: a number with its exact value, or a date."""
    return number(axis.at(index), digits=6) if axis.stamps is None else join(axis.text(index))


def _columns(found: Findings) -> Markup:
    y = np.concatenate([np.asarray(each.y, float) for each in found.series])
    rows = [[called(name), *_moments(y[:, k], f"y/{k}")] for k, name in enumerate(found.names.outputs)]
    if found.series[0].u is not None:
        u = np.concatenate([np.asarray(each.u, float) for each in found.series])
        rows += [[called(name), *_moments(u[:, k], f"u/{k}")] for k, name in enumerate(found.names.controls)]
    heads = ["column", "observed", "missing", "mean", "standard deviation", "lowest", "highest"]
    return table("Columns, in the units of the data", heads, rows)


def _moments(values: np.ndarray, key: str) -> list[Markup]:
    seen = values[np.isfinite(values)]
    moments = dict.fromkeys(("mean", "std", "min", "max"), float("nan"))
    if seen.size:
        moments = {"mean": seen.mean(), "std": seen.std(), "min": seen.min(), "max": seen.max()}
    numbers = [number(value, key=f"{key}/{name}", digits=4) for name, value in moments.items()]
    return [count(seen.size), percent(1 - seen.size / values.size), *numbers]


def _gaps(found: Findings, runs: Sequence[Gap]) -> Markup:
    if not runs:
        return join()
    several = len(found.series) > 1
    rows = []
    for gap in runs:
        axis = TimeAxis.of(found.series[gap.series])
        ends = [moment(axis, n) for n in (gap.begin, gap.end - 1)]
        where = [called(found.names.series[gap.series])] if several else []
        rows.append([called(found.names.outputs[gap.output]), *where, *ends, count(gap.end - gap.begin)])
    time = TimeAxis.of(found.series[0]).named(found.names.time)
    first, last = (join(f"{end}, ", called(time)) for end in ("first", "last"))
    return table("The longest gaps", ["output", *(["series"] if several else []), first, last, "time steps"], rows)


def _series(found: Findings) -> Markup:
    if len(found.series) == 1:
        return join()
    rows = []
    for name, each in zip(found.names.series[:MOST_ROWS], found.series, strict=False):
        end = moment(TimeAxis.of(each), len(each) - 1)
        rows.append([called(name), count(len(each)), percent(np.isnan(np.asarray(each.y, float)).mean()), end])
    caption = "Series" if len(found.series) <= MOST_ROWS else say("The first {count} series", count=count(MOST_ROWS))
    heads = ["series", "time steps", "missing", join("ends at ", called(TimeAxis.of(found.series[0]).named(found.names.time)))]
    return details("Each series", table(caption, heads, rows))


# ---------------------------------------------------------------- choices


def choices_section(model: Any) -> Markup:
    """What a fit has chosen from its data, and why."""
    choices = model.choices_
    rows = []
    for name, label in CHOICES.items():
        if name in ("window", "batch") and name not in choices.reasons:
            continue
        value = tag("code", in_words(getattr(choices, name)), data_words=f"model.choices_.{name}")
        reason: Any = "the default" if plain(getattr(model, name, None)) in (AUTO, None) else "given"
        if name in choices.reasons:
            reason = words(choices.reasons[name], f"model.choices_.reasons[{name!r}]")
        rows.append([join(label, " ", tag("code", name)), value, reason])
    kept = "No blocks of the training data were held out."
    if choices.held_out:
        kept = "Each model held out other blocks of the training data, which said when to stop and how sure to be."
    parts = [paragraph(kept), table("Settings of the fit, and why", ["setting", "value", "why"], rows)]
    if choices.scores:
        ladder = [
            [called(name), number(score, source=f"model.choices_.scores[{name!r}]")] for name, score in choices.scores.items()
        ]
        caption = "Linear models of growing size: error of free runs over held-out blocks, in standard deviations of the data"
        parts.append(details("How many states a linear model needs", table(caption, ["states and emission", "RMSE"], ladder)))
    return section("choices", "What was chosen, and why", *parts)


def in_words(value: object) -> str:
    """A setting in words: functions by their names."""
    return value if isinstance(value, str) else getattr(value, "__name__", None) or repr(value)
