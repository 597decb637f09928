"""How long does one fit of `ProDSSM()` take, with everything chosen from the data and compilation included?

Two tanks with a pump: 1,000 points of one output, at most 120 seconds; 200,000 points of three outputs, at most ten minutes,
on two cores (`--all-cores`).
"""

import time
import warnings

import common  # first: it pins this process to one core
import numpy as np

import prodssm as ps
from prodssm.datasets import tanks

SIZES = ((1_000, 1, 120.0), (200_000, 3, 600.0))  # points, outputs, seconds at most


def data(points: int, outputs: int) -> ps.Series:
    """The lower level, the upper one, and their sum, as many as are asked for."""
    run = tanks.simulate(seed=0, steps=points)
    noise = 0.005 * np.random.default_rng(1).normal(size=(points, 2))
    upper = run.levels[:, :1] + noise[:, :1]
    columns = np.concatenate([run.y, upper, run.levels.sum(axis=1, keepdims=True) + noise[:, 1:]], axis=1)
    return ps.Series(columns[:, :outputs], u=run.u)


def main() -> None:
    """Fit, print what it took."""
    options = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(options)
    printer.row(benchmark="automatic", **common.machine())
    for points, outputs, most in SIZES[: 1 if options.quick else None]:
        series = data(points, outputs)
        begin = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = ps.ProDSSM(progress=False).fit(series)
        seconds = time.monotonic() - begin
        printer.row(points=points, outputs=outputs, seconds=round(seconds, 1), held_out=model.skill_.overall["model"]["rmse"])
        printer.row(**common.verdict(f"seconds of a fit to {points} x {outputs} points", seconds, most=most))


if __name__ == "__main__":
    main()
