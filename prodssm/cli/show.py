"""What commands say: models and data for people, metrics as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np


def facts_of_model(model: Any) -> dict[str, Any]:
    """What a fitted model is, as JSON can say it."""
    skill, layout = model.skill_, model.layout_
    choices = model.choices_.words()
    return {
        "outputs": list(model.output_names_),
        "controls": [] if layout is None else layout.control_names,
        "time": None if layout is None else layout.time,
        "group": None if layout is None else layout.group,
        "time_step": model.scaling_.time_step,
        "states": int(model.ssm_.x_size),
        "hidden": [int(each.weight.shape[0]) for each in model.ssm_.transition.linears[:-1]],
        "weights": model.weights,
        "members": len(model.members_),
        "iterations": int(sum(model.history_.iterations[-1:])),
        "seconds": round(float(sum(model.history_.seconds[-1:])), 1),
        "calibrated": model.calibration_ is not None,
        "choices": {name: _plain(value) for name, value in choices.items()},
        "skill": None if skill is None else skill.words(),
    }


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | bool | type(None) | dict) else str(value)


def lines_of_model(model: Any) -> str:
    """The same for people."""
    facts = facts_of_model(model)
    controls = f", controls {', '.join(facts['controls'])}" if facts["controls"] else ""
    lines = [
        f"outputs {', '.join(facts['outputs'])}{controls}",
        f"{facts['states']} states, hidden layers {tuple(facts['hidden']) or 'none'}, {facts['weights']} weights, "
        f"{facts['members']} member{'s' if facts['members'] > 1 else ''}",
        f"trained for {facts['iterations']} iterations in {facts['seconds']:g} s; "
        f"forecasts are {'' if facts['calibrated'] else 'not '}calibrated by held-out data",
        str(model.choices_),
    ]
    if model.skill_ is not None:
        lines.append(str(model.skill_))
    return "\n".join(lines)


def lines_of_data(series: Sequence[Any]) -> str:
    """What the data are: lengths, sampling, gaps, ranges."""
    first = series[0]
    layout, lengths = first.layout, [len(each) for each in series]
    shown = f"{lengths[0]} rows" if len(series) == 1 else f"{len(series)} series of {min(lengths)} to {max(lengths)} rows"
    lines = [shown]
    if layout.time is not None:
        steps = np.concatenate([np.asarray(each.dt[:-1], float) for each in series])
        unit = {"number": "", "month": " months"}.get(layout.clock or "", " s")
        stamps = first.stamps
        lines.append(f"time {layout.time}: from {stamps.text(0)} to {stamps.text(-1)}")
        if len(steps):
            even = "every" if np.ptp(steps) <= 1e-3 * np.median(steps) else "irregular, typically every"
            lines[-1] += f", {even} {np.median(steps):g}{unit}"
    columns = [
        ("output", name, np.concatenate([np.asarray(each.y[:, n], float) for each in series]))
        for n, name in enumerate(layout.outputs)
    ]
    if first.u is not None:
        columns += [
            ("control", name, np.concatenate([np.asarray(each.u[:, n], float) for each in series]))
            for n, name in enumerate(layout.control_names)
        ]
    for role, name, values in columns:
        seen = values[~np.isnan(values)]
        gaps = f", {len(values) - len(seen)} missing" if len(seen) < len(values) else ""
        extent = f"{seen.min():.6g} to {seen.max():.6g}" if len(seen) else "nothing observed"
        lines.append(f"{role} {name}: {extent}{gaps}")
    return "\n".join(lines)


def write_metrics(facts: dict[str, Any], path: Path) -> None:
    """Facts as JSON; what is not a finite number is null."""
    from prodssm.cli.files import write_text

    write_text(json.dumps(_finite(facts), indent=2) + "\n", path)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
