"""The first paragraph of a report: how good the forecasts are and how far their intervals can be trusted, in plain words."""

import math
from typing import Any

import numpy as np

from prodssm.estimators.skill import LAST, LINEAR, MODEL, SEASONAL
from prodssm.evaluation.report_findings import Findings
from prodssm.evaluation.report_html import (
    Markup,
    called,
    count,
    join,
    listed,
    name_of,
    number,
    paragraph,
    percent,
    plural,
    say,
    steps,
    tag,
    unit_of,
)

FEWEST_VALUES = 100  # on which a coverage is judged
NARROW, WIDE = 0.90, 0.98  # coverage of 95 % intervals below and above which they are called so
SIMPLE = {LINEAR: "a linear model", LAST: "the last value", SEASONAL: "the last season"}


def verdict(found: Findings) -> Markup:
    """One paragraph."""
    return paragraph(_skill(found), *_coverage(found), origin_of_data(found), *_warnings(found), class_="verdict")


def key_figures(found: Findings) -> Markup:
    """The few numbers that matter most."""
    tiles: list[tuple[Markup, Markup]] = []
    skill = found.model.skill_
    gain = math.nan if skill is None else best_rival(skill)[1]
    if skill is not None and math.isfinite(gain):
        where = "training data" if skill.in_sample else "held-out data"
        relation = "closer" if gain >= 0 else "further off"
        tiles.append((percent(abs(gain), key="gain"), say(f"{relation} than the best simple forecast, on {where}")))
    if found.overall is not None:
        inside = percent(found.overall.coverage[0.95], key="coverage/all/0.95")
        tiles.append((inside, say("of values inside {level} intervals, here", level=percent(0.95))))
        name = found.names.outputs[0]
        for each in dict.fromkeys((found.groups[0].low, found.groups[-1].low)):
            group = next(one for one in found.groups if one.low == each)
            error = number(group.rmse[0], key=f"rmse/{group.low}/0", digits=2, unit=unit_of(name))
            noun = "step" if group.high == 1 else "steps"
            ahead = say(
                "error of {name}, {steps} {noun} ahead",
                name=called(name_of(name)),
                steps=steps(group.low, group.high),
                noun=noun,
            )
            tiles.append((error, ahead))
    return tag("dl", *(tag("div", tag("dt", text), tag("dd", value)) for value, text in tiles), class_="tiles")


def best_rival(skill: Any) -> tuple[str | None, float]:
    """The simple forecast with the smallest error, and by which fraction of it the model's error is smaller."""
    rivals = {name: scores["rmse"] for name, scores in skill.overall.items() if name != MODEL and np.isfinite(scores["rmse"])}
    if not rivals:
        return None, math.nan
    best = min(rivals, key=lambda name: rivals[name])
    return best, 1 - skill.overall[MODEL]["rmse"] / rivals[best] if rivals[best] > 0 else math.nan


def _skill(found: Findings) -> Markup:
    skill = found.model.skill_
    if skill is None:
        return join("How forecasts compare with simple ones was not measured when the model was fitted.")
    rival, gain = best_rival(skill)
    if rival is None or not math.isfinite(gain):
        return join("There is no simple forecast to compare with.")
    ours, theirs = (
        number(skill.overall[name]["rmse"], source=f"model.skill_.overall[{name!r}]['rmse']") for name in (MODEL, rival)
    )
    return say(
        "{where} forecasts of {outputs} up to {steps} steps ahead are {gain} {relation} the truth than the best simple "
        "forecast, {rival} (root mean squared error {ours} against {theirs} standard deviations of the data).",
        where="On data that it was trained on, because none were held out,"
        if skill.in_sample
        else "On data that were held out,",
        outputs=listed([name_of(name) for name in found.names.outputs]),
        steps=count(skill.ranges[-1][1], source="model.skill_.ranges[-1][1]"),
        gain=tag("strong", percent(abs(gain), key="gain")),
        relation="closer to" if gain >= 0 else "further from",
        rival=SIMPLE.get(rival, rival),
        ours=ours,
        theirs=theirs,
    )


def _coverage(found: Findings) -> list[Markup]:
    overall, skill, level, sentences = found.overall, found.model.skill_, percent(0.95), []
    if skill is not None and not skill.in_sample:
        covered = percent(skill.overall[MODEL]["coverage"], source=f"model.skill_.overall[{MODEL!r}]['coverage']")
        sentences.append(say("There, {level} intervals cover {covered} of the values.", level=level, covered=covered))
    if overall is None:
        return [*sentences, join("The data of this report are too short to measure forecasts on them.")]
    share = overall.coverage[0.95]
    measured = say(
        "On the data of this report, forecast from {places} up to {steps} steps ahead, {what} cover {share} of {values} values",
        places=plural(len(found.forecasts), "origin"),
        steps=count(overall.high),
        what="they" if sentences else join(level, " intervals"),
        share=tag("strong", percent(share, key="coverage/all/0.95")),
        values=count(overall.count),
    )
    judged = f": {judgement(share)}." if overall.count >= FEWEST_VALUES else "."
    return [*sentences, join(measured, judged)]


def judgement(coverage: float) -> str:
    """What the coverage of 95 % intervals says of them."""
    if coverage < NARROW:
        return "the intervals are too narrow"
    return "the intervals are wider than needed" if coverage > WIDE else "about what they should"


def origin_of_data(found: Findings) -> Markup:
    """Whether the model was trained on these data, as far as it knows."""
    if found.training_data:
        return join("These are the data that the model was fitted to, so expect somewhat larger errors on new data.")
    return join("These are not exactly the data that the model was fitted to; it does not know whether they overlap.")


def _warnings(found: Findings) -> list[Markup]:
    sentences = []
    skill, check = found.model.skill_, found.model.check_
    if skill is not None and skill.worse_than:
        sentences.append(join("A simple forecast is clearly better: use it, or give the model more data."))
    if found.failures:
        failed = plural(len(found.failures), "forecast")
        sentences.append(say("{failed} overflowed: the learned system is unstable there.", failed=failed))
    if check is not None and not check.holds:
        trusted = count(check.trusted, source="model.check_.trusted")
        sentences.append(say("The Gaussian approximation of its forecasts holds for {trusted} steps only.", trusted=trusted))
    return sentences
