"""The sections of a report on scores: skill as the fit has measured it, and calibration on the given data."""

from typing import Any

from prodssm.estimators.skill import LINEAR, MODEL
from prodssm.evaluation.report_findings import Findings
from prodssm.evaluation.report_html import (
    Markup,
    called,
    count,
    details,
    figure,
    join,
    name_of,
    number,
    paragraph,
    percent,
    plural,
    say,
    section,
    select,
    steps,
    table,
    tag,
    unit_of,
    words,
)
from prodssm.evaluation.report_measures import LEVELS, HorizonScores
from prodssm.evaluation.report_pictures import Pictures
from prodssm.evaluation.report_verdict import origin_of_data

SCORES = {
    "rmse": "Root mean squared error, in standard deviations of the data; lower is better",
    "coverage": "Share of values inside {level} intervals",
    "crps": "Continuous ranked probability score, in standard deviations of the data; lower is better",
    "nll": "Negative log-likelihood per standardised value; lower is better",
}


# ---------------------------------------------------------------- skill


def skill_section(found: Findings, pictures: Pictures) -> Markup:
    """Scores beside those of simple forecasts."""
    skill, title = found.model.skill_, "Skill against simple forecasts"
    if skill is None:
        return section("skill", title, paragraph("Skill was not measured when the model was fitted."))
    where = (
        "Blocks of the training data that were held out are forecast from what precedes them, by models that did not see them."
    )
    if skill.in_sample:
        where = "Nothing was held out in the fit: these are scores of forecasts of the training data, which flatters the model."
    season = join()
    if skill.period:
        period = count(skill.period, source="model.skill_.period")
        season = say("The data repeat after {period} time steps, which the seasonal naive forecast uses.", period=period)
    tables = {name: _scores(skill, name) for name in SCORES}
    told = "Scores of the model and of simple forecasts by steps ahead"
    return section(
        "skill",
        title,
        paragraph(where, season),
        figure("skill", told, f"{told}.", select("metric", "Score", pictures.choices["metric"])),
        tables["rmse"],
        tables["coverage"],
        details("More scores", tables["crps"], tables["nll"]),
    )


def _scores(skill: Any, metric: str) -> Markup:
    show, rows = percent if metric == "coverage" else number, []
    for name, scores in skill.scores.items():
        label = {MODEL: tag("strong", "this model"), LINEAR: "linear model"}.get(name, name)
        source = f"[{name!r}][{metric!r}]"
        cells = [show(value, source=f"model.skill_.scores{source}[{n}]") for n, value in enumerate(scores[metric])]
        rows.append([label, *cells, show(skill.overall[name][metric], source=f"model.skill_.overall{source}")])
    caption = say(SCORES[metric], level=percent(0.95))
    return table(caption, ["steps ahead", *(steps(*each) for each in skill.ranges), "all"], rows)


# ---------------------------------------------------------------- calibration


def calibration_section(found: Findings) -> Markup:
    """Coverage and standardised errors by horizon, on the given data."""
    title, checks = "Calibration on these data", _library_checks(found)
    if found.overall is None:
        return section(
            "calibration", title, paragraph("The series are too short to be forecast from origins inside them."), *checks
        )
    longest = max(each.past for each in found.forecasts)
    told = say(
        "{made} made, each from {past} time steps before its origin, and compared with {values} observed values.",
        made=join(plural(len(found.forecasts), "forecast"), " was" if len(found.forecasts) == 1 else " were"),
        past=join("" if all(each.past == longest for each in found.forecasts) else "up to ", count(longest)),
        values=count(found.overall.count),
    )
    caution = "Values at neighbouring horizons and origins depend on each other, so small differences mean little."
    inside = "Share of values inside central intervals; dashed is what it should be."
    where = "Where values fell in their forecast distributions: flat if calibrated, a hump if too wide, a U if too narrow."
    return section(
        "calibration",
        title,
        paragraph(told, origin_of_data(found), caution),
        tag(
            "div",
            figure("coverage", "Coverage of intervals by steps ahead", inside),
            figure("pit", "Histogram of the probability integral transform", where),
            class_="pair",
        ),
        _by_horizon(found.groups, found.overall),
        _errors(found),
        *checks,
    )


def _by_horizon(groups: list[HorizonScores], overall: HorizonScores) -> Markup:
    rows = []
    for each in [*groups, overall]:
        key, label = ("all", "all") if each is overall else (str(each.low), steps(each.low, each.high))
        covered = [percent(each.coverage[level], key=f"coverage/{key}/{level}") for level in LEVELS]
        moments = number(each.bias, key=f"bias/{key}", digits=2), number(each.spread, key=f"spread/{key}")
        rows.append([label, count(each.count), *covered, *moments])
    heads = ["steps ahead", "values", *(join(percent(level), " interval") for level in LEVELS), "mean", "standard deviation"]
    caption = "Share of values inside intervals; mean and standard deviation of standardised errors (calibrated: zero and one)"
    return table(caption, heads, rows)


def _errors(found: Findings) -> Markup:
    rows = []
    for k, name in enumerate(found.names.outputs):
        unit = unit_of(name)
        label = join(called(name_of(name)), "" if unit is None else say(" in {unit}", unit=called(unit)))
        for kind, whose in (("rmse", tag("strong", "this model")), ("last_value", "last value")):
            cells = [number(getattr(each, kind)[k], key=f"{kind}/{each.low}/{k}") for each in found.groups]
            rows.append([say("{label}, {whose}", label=label, whose=whose), *cells])
    heads = ["steps ahead", *(steps(each.low, each.high) for each in found.groups)]
    return table("Root mean squared error of the same forecasts, in the units of the data", heads, rows)


def _library_checks(found: Findings) -> list[Markup]:
    """What the library itself says of widths, of its Gaussian assumption and of failures."""
    parts, calibration, check = [], found.model.calibration_, found.model.check_
    if calibration is not None:
        ends = {
            end: number(getattr(calibration.factors, end)(), source=f"model.calibration_.factors.{end}()")
            for end in ("min", "max")
        }
        told = (
            "Data that were not trained on have said how wide forecasts must be: their standard deviations were multiplied by "
            "{min} to {max}, depending on the horizon and the output."
        )
        parts.append(paragraph(say(told, **ends)))
    if check is not None:
        parts.append(paragraph(words(check.verdict, "model.check_.verdict")))
    if found.failures:
        failed = plural(len(found.failures), "forecast")
        parts.append(paragraph(say("{failed} failed: {why}", failed=failed, why=tag("q", found.failures[0], class_="words"))))
    return parts
