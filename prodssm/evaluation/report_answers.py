"""The sections of a report on what the model answers: forecasts, states, dynamics, parts of the variance; and its settings."""

import platform
import sys
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from prodssm.evaluation.report_findings import Findings
from prodssm.evaluation.report_html import (
    Markup,
    called,
    count,
    figure,
    join,
    listed,
    name_of,
    number,
    paragraph,
    percent,
    plural,
    say,
    section,
    select,
    table,
    tag,
    words,
)
from prodssm.evaluation.report_measures import decomposed
from prodssm.evaluation.report_pictures import MOST_STATES, Pictures
from prodssm.evaluation.report_sections import drawing_note, in_words

HORIZONS = (1, 2, 5, 10, 20, 50)  # of the table of variances
PARTS = ("epistemic", "aleatoric", "measurement")
MOST_SLOPES = 12  # states in the table of slopes
PACKAGES = ("jax", "jaxlib", "equinox", "optax", "numpy", "scipy", "scikit-learn")
LEFT_OUT = ("progress", "checkpoint")  # parameters that change no number


def heading(found: Findings, now: datetime) -> Markup:
    """The title of the page and a line below it."""
    outputs = [name_of(name) for name in found.names.outputs]
    line = [
        say(
            "{models} with {states}",
            models=plural(len(found.model.members_), "model"),
            states=plural(len(found.names.states), "state"),
        ),
        plural(sum(len(each) for each in found.series), "time step"),
        tag("time", now.strftime("%Y-%m-%d"), datetime=now.isoformat(timespec="seconds")),
        join("prodssm ", tag("code", versions()["prodssm"])),
    ]
    return join(tag("h1", "Forecast model of ", listed(outputs)), tag("p", join(*line, between=" · "), class_="sub"))


def forecast_section(found: Findings, pictures: Pictures) -> Markup:
    """Forecasts with intervals, from origins that the reader picks."""
    if "forecast" not in pictures.figures:
        return section("forecasts", "Forecasts", paragraph("The series are too short to be forecast."))
    future = "One origin is the end of the data."
    if found.names.controls:
        future = "Controls are those of the data; what follows their end is not known, so nothing is forecast there."
    calibrated = any(each.prediction.calibrated for each in found.forecasts)
    mixture = found.model.members_[0].components > 1
    caption = say(
        "Median of the forecast with {half} and {most} intervals from one origin, the last time that it knows, beside what was "
        "observed. {places}{widths} {future}",
        half=percent(0.5),
        most=percent(0.95),
        places="Where there are several modes the likeliest half takes the place of the narrower interval. " if mixture else "",
        widths="Widths are calibrated." if calibrated else "Widths are the model's own, not calibrated.",
        future=future,
    )
    label = "Forecast with intervals from one origin, beside what was observed"
    return section(
        "forecasts",
        "Forecasts",
        figure("forecast", label, caption, select("origin", "Origin", pictures.choices["origin"]["0"])),
    )


# ---------------------------------------------------------------- states


def state_section(found: Findings, pictures: Pictures) -> Markup:
    """Filtered and smoothed outputs and states."""
    told = "Filtered is what was known at each time, smoothed is what all the data say about it, also in gaps."
    parts = [paragraph(told, say("Bands are {level} intervals.", level=percent(0.95)))]
    for name, kept in (("Filtered", found.filtered), ("Smoothed", found.smoothed)):
        if isinstance(kept, str):
            parts.append(
                paragraph(say("{name} states are not available: {why}", name=name, why=tag("q", kept, class_="words")))
            )
    if "outputs" in pictures.figures:
        caption = join(
            "What the sensors would show without noise, in the units of the data.", drawing_note(found, pictures), between=" "
        )
        parts.append(figure("outputs", "Filtered and smoothed outputs over time", caption))
    if "states" in pictures.figures:
        notes: list[Any] = ["Latent states, without a unit."]
        if len(found.model.members_) > 1:
            notes.append("Latent coordinates differ between the models of an ensemble; these are the first model's.")
        if (hidden := len(found.names.states) - MOST_STATES) > 0:
            notes.append(say("{count} more states are not drawn.", count=count(hidden)))
        parts.append(figure("states", "Filtered and smoothed latent states over time", join(*notes, between=" ")))
    return section("states", "States", *parts, _score(found))


def _score(found: Findings) -> Markup:
    """The log density per value one step ahead, if all series were filtered."""
    values = sum(int((~np.isnan(each.y[1:])).sum()) for each in found.series)
    if isinstance(found.filtered, str) or len(found.shown) < len(found.series) or not values:
        return join()
    score = number(sum(float(each.log_evidence[1:].sum()) for each in found.filtered) / values, source="model.score(data)")
    return paragraph(say("One step ahead, the mean log density per observed value is {score}.", score=score))


# ---------------------------------------------------------------- dynamics


def transition_section(found: Findings, pictures: Pictures) -> Markup:
    """The learned transition: slices and slopes."""
    title, learned, states = "Learned dynamics", found.transition, found.names.states
    if isinstance(learned, str):
        why = tag("q", learned, class_="words")
        return section("dynamics", title, paragraph(say("The transition is not available: {why}", why=why)))
    notes = [say("Bands are {level} intervals from uncertain weights, without process noise.", level=percent(0.95))]
    if learned.control is not None:
        pairs = zip(found.names.controls, learned.control, strict=True)
        means = join(*(say("{name} = {value}", name=called(name), value=number(value)) for name, value in pairs), between=", ")
        notes.append(say("Controls are at their mean: {means}.", means=means))
    if len(states) == 1:
        told, picker = "The next state as a function of the state, over the range that was visited.", []
    else:
        told = "How much each state changes in one time step along one state, with the others at their mean."
        picker = [select("along", "Along", pictures.choices["along"])]
    picture = figure("transition", told.rstrip("."), join(told, *notes, between=" "), *picker)
    largest = float(np.abs(np.linalg.eigvals(learned.slope)).max())
    fate = (
        "below one, so small disturbances die out"
        if largest < 1
        else "not below one, so small disturbances last or grow at first"
    )
    around = say(
        "Around the mean state, the largest eigenvalue of the transition's slope has modulus {value}: {fate}.",
        value=number(largest, key="eigenvalue", digits=4),
        fate=fate,
    )
    slopes = _slopes(learned.slope, states) if 1 < len(states) <= MOST_SLOPES else join()
    return section("dynamics", title, picture, paragraph(around), slopes)


def _slopes(slope: np.ndarray, states: tuple[str, ...]) -> Markup:
    scale = max(float(np.abs(slope).max()), np.finfo(float).tiny)

    def cell(n: int, k: int) -> Markup:
        value = slope[n, k]
        sign = "up" if value >= 0 else "down"
        shown = number(value, key=f"slope/{n}/{k}", digits=2)
        return tag("span", shown, class_=f"shade {sign}", style=f"--v:{abs(value) / scale:.3f}")

    rows = [[join("next ", called(name)), *(cell(n, k) for k in range(len(states)))] for n, name in enumerate(states)]
    caption = "Slope at the mean state: change of the next state (rows) per change of the state (columns)"
    return table(caption, ["", *map(called, states)], rows, class_="heat")


# ---------------------------------------------------------------- parts of the variance


def variance_section(found: Findings, pictures: Pictures) -> Markup:
    """What the uncertainty of forecasts is made of."""
    title, parts = "What the uncertainty is made of", found.parts
    if parts is None:
        return section("variance", title, paragraph("The series are too short to be forecast."))
    if isinstance(parts, str):
        told = "The library does not split the variance of these forecasts. In its own words:"
        return section("variance", title, paragraph(told), tag("blockquote", parts, class_="words"))
    several = len(found.model.members_) > 1
    what = "Epistemic variance comes from uncertain weights, which more data would make certain."
    if several and found.model.weights == "local":
        what = (
            "Epistemic variance is what the models of the ensemble disagree on. Their local weights are redrawn at every step "
            "and act as process noise, so what these add is counted as aleatoric."
        )
    elif several:
        what = f"{what} What the models of the ensemble disagree on is part of it."
    rest = "Aleatoric variance comes from process noise and the uncertain state, measurement variance from the sensor."
    labels = pictures.choices["output"]
    picker = [select("output", "Output", labels)] if len(labels) > 1 else []
    caption = say(
        "Parts of the variance, mean over {forecasts}.", forecasts=plural(len(decomposed(found.forecasts)), "forecast")
    )
    return section(
        "variance",
        title,
        paragraph(what, rest),
        figure("variance", "Parts of the variance by steps ahead", caption, *picker),
        _shares(found),
    )


def _shares(found: Findings) -> Markup:
    rows, last = [], len(found.parts.epistemic)  # type: ignore[union-attr]
    for k, name in enumerate(found.names.outputs):
        for step in sorted({*(n for n in HORIZONS if n <= last), last}):
            values = [float(getattr(found.parts, part)[step - 1, k]) for part in PARTS]
            total = sum(values)
            shares = [
                percent(v / total if total > 0 else 0.0, key=f"share/{part}/{step}/{k}")
                for part, v in zip(PARTS, values, strict=True)
            ]
            deviation = number(np.sqrt(max(total, 0.0)), key=f"std/{step}/{k}")
            rows.append([say("{name}, {step} ahead", name=called(name), step=count(step)), *shares, deviation])
    caption = "Shares of the variance, and the standard deviation in the units of the data"
    return table(caption, ["forecast", *PARTS, "standard deviation"], rows)


# ---------------------------------------------------------------- settings


def settings_section(found: Findings, now: datetime) -> Markup:
    """Parameters, training, versions and date."""
    model, history = found.model, found.model.history_
    params = {name: value for name, value in model.get_params(deep=False).items() if name not in LEFT_OUT}
    rows = [[tag("code", name), tag("code", in_words(value), data_words=f"model.{name}")] for name, value in params.items()]
    training = []
    for label, name in (("iterations", "iterations"), ("last objective per value", "objective"), ("seconds", "seconds")):
        if recorded := getattr(history, name):
            show = count if name == "iterations" else number
            training.append([label, show(recorded[-1], source=f"model.history_.{name}[-1]")])
    training.append(["ended because", words(history.stop_reason, "model.history_.stop_reason")])
    used = {"python": platform.python_version(), **versions()}
    used |= {"system": f"{platform.system()} {platform.machine()}", "precision": str(model.ssm_.dtype)}
    versioned = table("Versions", ["what", "version"], [[name, tag("code", each)] for name, each in used.items()])
    when = tag("time", now.strftime("%Y-%m-%d %H:%M UTC"), datetime=now.isoformat(timespec="seconds"))
    return section(
        "settings",
        "Settings and versions",
        table("Parameters of the model, as given", ["parameter", "value"], rows),
        tag("div", table("Training", ["what", "value"], training), versioned, class_="pair"),
        paragraph(say("Made on {when} by {what}.", when=when, what=tag("code", "model.report"))),
    )


def versions() -> dict[str, str]:
    """Versions of the packages that numbers depend on."""
    # Submodules do not import the package itself, but it is always loaded when one of them is.
    found = {"prodssm": str(sys.modules["prodssm"].__version__)}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
