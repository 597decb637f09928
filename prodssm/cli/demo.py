"""The demonstration: the commands that a user would type, on the record of two simulated tanks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

TRAINING, AHEAD, SEED = 400, 100, 3


def run_demo(folder: Path, *, quick: bool, call: Callable[..., int], say: Callable[[str], None]) -> None:
    """Write the data and run fit, forecast and report on them.

    Args:
        folder: Where to put all files.
        quick: Train for a few iterations only.
        call: Runs a command and returns its exit code.
        say: Prints a line.
    """
    import pyarrow

    from prodssm.cli.files import write_table
    from prodssm.datasets import tanks

    folder.mkdir(parents=True, exist_ok=True)
    run = tanks.simulate(seed=SEED, steps=TRAINING + AHEAD)
    level = run.y[:, 0].copy()
    level[300:340] = np.nan  # the sensor was off
    table = pyarrow.table({"seconds": run.time, "level": pyarrow.array(level, from_pandas=True), "pump": run.u[:, 0]})
    write_table(table[:TRAINING], folder / "tanks.csv")
    write_table(table.select(["seconds", "pump"])[TRAINING:], folder / "schedule.csv")
    data, model, schedule, ahead, picture, page = (
        str(folder / name)
        for name in ("tanks.csv", "tanks.safetensors", "schedule.csv", "forecast.csv", "forecast.png", "report.html")
    )
    say(f"{data} has {TRAINING} levels of a tank and the voltage of its pump, {schedule} what the pump will do next.")
    short = ("--iterations", "5") if quick else ()
    commands = [
        ("fit", data, "--time", "seconds", "--output", "level", "--control", "pump", "--model", model, *short),
        ("forecast", model, data, "--steps", str(AHEAD), "--controls", schedule, "--out", ahead, "--plot", picture),
        ("report", model, data, "--out", page),
    ]
    for words in commands:
        say(f"\n$ prodssm {' '.join(words)}")
        code = call(*words)
        if code:
            raise RuntimeError(f"`prodssm {words[0]}` ended with exit code {code}")
