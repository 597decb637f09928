"""The pictures of a report: what is drawn of the findings."""

from typing import Any

import numpy as np
from scipy import special

from prodssm.data.series import Series
from prodssm.data.tables import central_interval
from prodssm.evaluation.drawing import cell_probabilities, has_modes, likeliest
from prodssm.evaluation.report_findings import Findings
from prodssm.evaluation.report_html import DASH, name_of, unit_of
from prodssm.evaluation.report_measures import LEVELS, LearnedTransition, pit_values
from prodssm.evaluation.report_pictures import (
    MOST_CONTROLS,
    MOST_FORECASTS,
    MOST_GAPS,
    MOST_OUTPUTS,
    MOST_STATES,
    TIME_DIGITS,
    Pictures,
    TimeAxis,
    decimate,
    layer,
    panel,
    points_per_line,
    rounded,
)

PALETTE = ("blue", "orange", "green", "purple", "red", "teal", "pink", "grey")
RIVALS = ("orange", "green", "purple")
PIT_BINS = 10
BAND = 0.95  # probability of the band around filtered and smoothed means
PART_COLOURS = {"measurement": "grey", "aleatoric": "orange", "epistemic": "blue"}
METRIC_LABELS = {
    "rmse": "RMSE, in standard deviations",
    "crps": "CRPS, in standard deviations",
    "nll": "NLL per value, standardised",
    "coverage": "coverage of 95 % intervals",
}


def draw(found: Findings) -> Pictures:
    """All pictures."""
    pictures = Pictures()
    pictures.choices["series"] = [found.names.series[n] for n in found.shown]
    _draw_time(pictures, found)
    _draw_forecasts(pictures, found)
    _draw_skill(pictures, found.model.skill_)
    _draw_calibration(pictures, found)
    _draw_parts(pictures, found)
    if isinstance(found.transition, LearnedTransition):
        _draw_transition(pictures, found.transition, found.names.states)
    return pictures


# ---------------------------------------------------------------- over time


def _draw_time(pictures: Pictures, found: Findings) -> None:
    """Data, outputs and states of every series that is shown."""
    series = [found.series[n] for n in found.shown]
    beliefs = {name: kept for name in ("filtered", "smoothed") if isinstance(kept := getattr(found, name), list)}
    outputs, controls = len(found.names.outputs[:MOST_OUTPUTS]), len(found.names.controls[:MOST_CONTROLS])
    states = 0 if found.identity else len(found.names.states[:MOST_STATES])
    most = points_per_line(series, outputs + controls + 3 * len(beliefs) * (outputs + states))
    if max(map(len, series)) > most:
        pictures.decimated = most
    for n, each in enumerate(series):
        axis = TimeAxis.of(each)
        observed = _data_view(pictures, found, n, each, axis, most)
        if not beliefs:
            continue
        panels = {name: kept[n] for name, kept in beliefs.items()}
        shown = [
            (title, [each | ({"c": "grey"} if each["n"] == "observed" else {}) for each in observed[k]])
            for k, title in enumerate(found.names.outputs[:MOST_OUTPUTS])
        ]
        of_outputs = {name: kept.outputs for name, kept in panels.items()}
        _belief_view(pictures, "outputs", n, of_outputs, shown, axis, most, found.names.time)
        if not found.identity:
            latent: list[tuple[str, list]] = [(title, []) for title in found.names.states[:MOST_STATES]]
            _belief_view(pictures, "states", n, panels, latent, axis, most, found.names.time)


def _data_view(pictures: Pictures, found: Findings, n: int, series: Series, axis: TimeAxis, most: int) -> list[list[dict]]:
    """Observations with their gaps, and controls; returns the layers of the outputs, which other views show as well."""
    x_label, panels, layers = found.names.time, [], []
    y = np.asarray(series.y, float)
    for k, title in enumerate(found.names.outputs[:MOST_OUTPUTS]):
        kept = decimate(y[:, k], y[:, k], most)
        here = [gap for gap in found.gaps if gap.series == found.shown[n] and gap.output == k and gap.end - gap.begin > 1]
        # From the last value before a gap to the first one after it.
        ends = [(axis.at(max(gap.begin - 1, 0)), axis.at(min(gap.end, len(y) - 1))) for gap in here[:MOST_GAPS]]
        seen = pictures.add_line(**axis.line(kept, y=y[kept, k]))
        spans = pictures.add_line(x=rounded(np.array(ends).ravel(), TIME_DIGITS))
        # Extremes of stretches are no observations to be counted, so they are joined.
        shape = layer("dots" if len(kept) == len(y) else "trace", seen, "observed", "ink")
        layers.append([*([layer("spans", spans, "gap", "gap")] if ends else []), shape])
        panels.append(axis.panel(title, x_label, layers[-1]))
    for k, title in enumerate(found.names.controls[:MOST_CONTROLS]):
        u = np.asarray(series.u, float)[:, k]
        kept = decimate(u, u, most)
        line = pictures.add_line(**axis.line(kept, y=u[kept]))
        panels.append(axis.panel(title, x_label, [layer("step", line, "control", "grey")], h=110))
    pictures.add_view("data", str(n), panels, dims=["series"], link="time")
    return layers


def _belief_view(
    pictures: Pictures, name: str, n: int, beliefs: dict[str, Any], panels: list, axis: TimeAxis, most: int, x_label: str
) -> None:
    """Filtered and smoothed means with bands, above what is in the panels already."""
    colours = {"filtered": "orange", "smoothed": "blue"}
    found = []
    parts = {kind: (each.mean, *central_interval(each, BAND)) for kind, each in beliefs.items()}
    lines = {kind: [np.asarray(part, float) for part in each] for kind, each in parts.items()}
    for k, (title, layers) in enumerate(panels):
        bands = []
        for kind, (mean, low, high) in lines.items():
            kept = decimate(low[:, k], high[:, k], most)
            line = pictures.add_line(**axis.line(kept, y=mean[kept, k], lo=low[kept, k], hi=high[kept, k]))
            bands.append(layer("band", line, kind, colours[kind]))
        found.append(axis.panel(title, x_label, [*layers, *bands]))
    pictures.add_view(name, str(n), found, dims=["series"], link="time")


# ---------------------------------------------------------------- forecasts


def _draw_forecasts(pictures: Pictures, found: Findings) -> None:
    """Forecasts from some origins, and beyond the end, each with the observations around its origin."""
    outputs = len(found.names.outputs[:MOST_OUTPUTS])
    most = max(1, MOST_FORECASTS // (len(found.shown) * outputs))
    labels: dict[str, list[str]] = {}
    for place, n in enumerate(found.shown):
        axis = TimeAxis.of(found.series[n])
        here = [each for each in found.forecasts if each.series == n]
        chosen = (
            [here[k] for k in np.unique(np.linspace(len(here) - 1, 0, min(most, len(here))).astype(int))[::-1]] if here else []
        )
        for each in chosen:
            _forecast_view(pictures, found, place, len(labels.setdefault(str(place), [])), each.origin, each.prediction, axis)
            labels[str(place)].append(f"{axis.named(found.names.time)} {axis.text(each.origin - 1)}")
        if found.ahead is not None:
            end = len(found.series[n])
            _forecast_view(pictures, found, place, len(labels.setdefault(str(place), [])), end, found.ahead[place], axis)
            labels[str(place)].append("the end of the data")
    pictures.choices["origin"] = labels


def _forecast_view(
    pictures: Pictures, found: Findings, place: int, number: int, origin: int, prediction: Any, axis: TimeAxis
) -> None:
    y = np.asarray(found.series[found.shown[place]].y, float)
    steps = len(prediction.mean)
    before, after = np.arange(max(0, origin - 2 * steps), origin), np.arange(origin, origin + steps)
    known = np.arange(before[0], min(origin + steps, len(y)))
    bounds = {
        name: prediction.quantile(p) for name, p in (("y", 0.5), ("lo", 0.025), ("hi", 0.975), ("lo2", 0.25), ("hi2", 0.75))
    }
    panels = []
    for k, title in enumerate(found.names.outputs[:MOST_OUTPUTS]):
        places = _places(prediction, k)
        # The central half of several modes may be where nothing is likely.
        drawn = {name: np.asarray(part)[:, k] for name, part in bounds.items() if places is None or not name.endswith("2")}
        band = pictures.add_line(**axis.line(after, **drawn))
        dots = pictures.add_line(**axis.line(known, y=y[known, k]))
        mark = pictures.add_line(x=rounded([axis.at(origin - 1)], TIME_DIGITS))
        layers = [layer("mark", mark, "origin", "grey"), layer("band", band, "forecast", "blue")]
        if places is not None:
            at, low, high = (list(part) for part in zip(*places, strict=True))
            times = rounded([axis.at(origin + n) for n in at], TIME_DIGITS)
            boxes = pictures.add_line(x=times, w=axis.step, lo=rounded(low), hi=rounded(high))
            layers.insert(1, layer("boxes", boxes, "likeliest half", "blue"))
        panels.append(axis.panel(title, found.names.time, [*layers, layer("dots", dots, "observed", "ink")], h=260))
    pictures.add_view("forecast", f"{place}/{number}", panels, dims=["series", "origin"])


def _places(prediction: Any, output: int) -> list[tuple[int, float, float]] | None:
    """Where half of the probability is most likely to be, if a forecast has several modes."""
    if getattr(prediction.components, "support", None) != "real":
        return None
    edges, cells = cell_probabilities(prediction.components, output)
    return likeliest(edges, cells, 0.5) if has_modes(cells) else None


# ---------------------------------------------------------------- scores


def range_label(low: int, high: int) -> str:
    """A range of horizons in words."""
    return str(low) if low == high else f"{low}{DASH}{high}"


def _draw_skill(pictures: Pictures, skill: Any) -> None:
    if skill is None:
        return
    labels = [range_label(*each) for each in skill.ranges]
    metrics = [name for name in METRIC_LABELS if name in next(iter(skill.scores.values()))]
    pictures.choices["metric"] = [METRIC_LABELS[name] for name in metrics]
    for n, metric in enumerate(metrics):
        layers = []
        for k, (name, scores) in enumerate(skill.scores.items()):
            line = pictures.add_line(x=list(range(len(labels))), y=np.asarray(scores[metric], float))
            layers.append(layer("marks", line, "this model" if k == 0 else name, "blue" if k == 0 else RIVALS[(k - 1) % 3]))
        if metric == "coverage":
            layers.insert(0, layer("rule", pictures.add_line(y=[0.95]), "wanted", "grey"))
        zero = {} if metric in ("nll", "coverage") else {"low": 0}
        axes = panel(METRIC_LABELS[metric], "steps ahead", layers, cats=labels, h=260, **zero)
        pictures.add_view("skill", str(n), [axes], dims=["metric"])


def _draw_calibration(pictures: Pictures, found: Findings) -> None:
    if not found.groups:
        return
    labels = [range_label(each.low, each.high) for each in found.groups]
    layers = []
    for level, colour in zip(LEVELS, ("green", "orange", "blue"), strict=True):
        rule = pictures.add_line(y=[100 * level])
        line = pictures.add_line(x=list(range(len(labels))), y=np.array([100 * each.coverage[level] for each in found.groups]))
        layers += [layer("rule", rule, "", colour), layer("marks", line, f"{100 * level:.0f} % interval", colour)]
    axes = panel("values inside the interval, %", "steps ahead", layers, cats=labels, low=0, high=100, h=240)
    pictures.add_view("coverage", "", [axes], dims=[])
    values = pit_values(found.forecasts)
    counts, edges = np.histogram(values, bins=PIT_BINS, range=(0.0, 1.0))
    likely = np.ceil(special.bdtrik([0.025, 0.975], values.size, 1 / PIT_BINS))
    bars = pictures.add_line(x=rounded(edges[:-1]), y=counts.astype(float))
    band = pictures.add_line(lo=likely[:1], hi=likely[1:])
    layers = [layer("bars", bars, "values", "blue"), layer("hband", band, "95 % if calibrated and independent", "grey")]
    axes = panel("observed values", "probability integral transform", layers, low=0, h=240, width=1 / PIT_BINS)
    pictures.add_view("pit", "", [axes], dims=[])


def _draw_parts(pictures: Pictures, found: Findings) -> None:
    if found.parts is None or isinstance(found.parts, str):
        return
    pictures.choices["output"] = list(found.names.outputs[:MOST_OUTPUTS])
    steps = np.arange(1, len(found.parts.epistemic) + 1)
    for k, title in enumerate(found.names.outputs[:MOST_OUTPUTS]):
        below, layers = np.zeros(len(steps)), []
        for name, colour in PART_COLOURS.items():
            above = below + np.maximum(getattr(found.parts, name)[:, k], 0.0)
            line = pictures.add_line(x=steps.tolist(), lo=below, hi=above)
            layers.append(layer("area", line, name, colour))
            below = above
        unit = unit_of(title)
        square = "" if unit is None else f", {unit}²" if unit.isalpha() else f", ({unit})²"
        axes = panel(f"variance of {name_of(title)}{square}", "steps ahead", layers, low=0, h=240)
        pictures.add_view("variance", str(k), [axes], dims=["output"])


# ---------------------------------------------------------------- dynamics


def _draw_transition(pictures: Pictures, learned: LearnedTransition, states: tuple[str, ...]) -> None:
    if len(states) == 1:
        grid, mean, std = learned.grids[0], learned.means[0, :, 0], learned.stds[0, :, 0]
        band, same = pictures.add_line(x=rounded(grid), y=mean, s=std), pictures.add_line(x=rounded(grid), y=grid)
        layers = [layer("line", same, "unchanged", "grey"), layer("band", band, "next state", "blue")]
        pictures.add_view("transition", "", [panel(f"next {states[0]}", states[0], layers, h=280)], dims=[])
        return
    pictures.choices["along"] = list(states[: len(learned.grids)])
    for n, grid in enumerate(learned.grids):
        layers = []
        for k, name in enumerate(states[:MOST_STATES]):
            start = grid if k == n else np.full_like(grid, learned.center[k])
            line = pictures.add_line(x=rounded(grid), y=learned.means[n, :, k] - start, s=learned.stds[n, :, k])
            layers.append(layer("band", line, name, PALETTE[k % len(PALETTE)]))
        pictures.add_view("transition", str(n), [panel("change in one time step", states[n], layers, h=280)], dims=["along"])
