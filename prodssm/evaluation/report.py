"""`ProDSSM.report`: one self-contained HTML page about a fitted model and data.

The page makes no request of any kind: style, script and data are inside it, and its content security policy forbids all else.
"""

import base64
import hashlib
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from prodssm._files import checked_target, replace_at_once
from prodssm.data.series import Series
from prodssm.evaluation.report_answers import (
    forecast_section,
    heading,
    settings_section,
    state_section,
    transition_section,
    variance_section,
)
from prodssm.evaluation.report_figures import draw
from prodssm.evaluation.report_findings import Findings, find
from prodssm.evaluation.report_html import Markup, join, select, tag
from prodssm.evaluation.report_scores import calibration_section, skill_section
from prodssm.evaluation.report_sections import choices_section, data_section
from prodssm.evaluation.report_verdict import key_figures, verdict

CONTENTS = {
    "data": "Data",
    "skill": "Skill",
    "calibration": "Calibration",
    "forecasts": "Forecasts",
    "states": "States",
    "dynamics": "Dynamics",
    "variance": "Uncertainty",
    "choices": "Choices",
    "settings": "Settings",
}


def write_report(model: Any, series: Sequence[Series], path: str | os.PathLike[str]) -> None:
    """Write the report of a fitted model on series, all of the page or nothing.

    Args:
        model: A fitted `ProDSSM`.
        series: The data, with columns in the order of fit.
        path: The file; its folder must exist.
    """
    target = checked_target(path)
    for each in series:
        model.scaling_.transform_series(each)  # raises if these are not data for this model
    replace_at_once(target, page(find(model, series), datetime.now(UTC)).encode())


def page(found: Findings, now: datetime) -> str:
    """The whole page."""
    pictures = draw(found)
    sections = {
        "data": data_section(found, pictures),
        "skill": skill_section(found, pictures),
        "calibration": calibration_section(found),
        "forecasts": forecast_section(found, pictures),
        "states": state_section(found, pictures),
        "dynamics": transition_section(found, pictures),
        "variance": variance_section(found, pictures),
        "choices": choices_section(found.model),
        "settings": settings_section(found, now),
    }
    script = asset("report.js")
    picker = select("series", "Series", pictures.choices["series"]) if len(found.shown) > 1 else join()
    return Template(asset("report.html")).substitute(
        title=escape(f"Forecast model of {', '.join(found.names.outputs)}"),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        style=asset("report.css"),
        script=script,
        data=pictures.to_json(),
        contents=_contents(),
        picker=picker,
        heading=heading(found, now),
        verdict=verdict(found),
        key_figures=key_figures(found),
        sections=join(*(sections[name] for name in CONTENTS)),
    )


def asset(name: str) -> str:
    """A file of the page, from inside the package."""
    return (files("prodssm.evaluation") / "assets" / name).read_text(encoding="utf-8")


def _contents() -> Markup:
    links = [tag("li", tag("a", title, href=f"#{name}")) for name, title in CONTENTS.items()]
    return tag("nav", tag("ul", *links), aria_label="Contents")
