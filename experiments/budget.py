"""What does a budget buy? Test NLL against training time, by moments and by Monte Carlo: the paper's claim.

Local weights throughout; what differs is the method alone. Each point is a training of its own with a given number of
iterations, whose schedule ends there, in programs that are compiled already; seconds are those of training alone.

kink      ten trajectories at r = 0.08, scored as in kink.py: by the true function, in closed form
energy    five splits of the UCI set, one member, prior weight 0.1, no early stopping; particles also for the test rows, four
          times as many
walks     the rule of mocap.py with so many iterations of either stage; 256 particles for the test sequences

    python experiments/budget.py      resumes; rows go to results/budget.csv; draws docs/images/budget.png
    python experiments/budget.py --quick
"""

import itertools
import time
import warnings
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import common
import kink as kink_table
import mocap as walks_table
import numpy as np

import prodssm as ps
from prodssm.datasets import kink, mocap, uci

NAME = "budget"
PICTURE = Path(__file__).parent.parent / "docs" / "images" / "budget.png"
R, NAMES = 0.08, {"kink": "kink, r = 0.08", "energy": "energy", "walks": "walks"}
MODELS = {  # samples in training by task; 0: moments
    "kink": (0, 8, 64),
    "energy": (0, 8, 32),
    "walks": (0, walks_table.TRAINING_SAMPLES),
}
ITERATIONS = {"kink": (25, 50, 100, 200, 400, 800), "energy": (100, 300, 1000, 3000), "walks": (50, 100, 200, 400)}
RUNS = {"kink": 10, "energy": 5, "walks": 1}


@dataclass(frozen=True)
class Spec:
    """One row: a training; the run is the seed."""

    task: str
    samples: int
    iterations: int
    run: int


SPECS = [
    Spec(task, samples, iterations, run)
    for task in RUNS
    for run, iterations, samples in itertools.product(range(RUNS[task]), ITERATIONS[task], MODELS[task])
]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row."""
    task = {"kink": on_kink, "energy": on_energy, "walks": on_walks}[spec.task]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        task(replace(spec, iterations=1), **settings)  # compiles
        nll, seconds = task(spec, **settings)
    return asdict(spec) | {"nll": round(nll, 5), "seconds": round(seconds, 3), "commit": common.commit()}


def method(samples: int) -> ps.Method:
    """Moments, or so many particles."""
    return ps.Sampled(samples) if samples else ps.Moments()


def on_kink(spec: Spec) -> tuple[float, float]:
    """NLL of the true function."""
    data, begin = kink.simulate(R, seed=1000 + 100 * kink.NOISE_LEVELS.index(R) + spec.run), time.monotonic()
    recipe = ps.Recipe(iterations=spec.iterations)
    model = kink_table.learn("local", R, spec.run, method=method(spec.samples), recipe=recipe)
    seconds, grid = time.monotonic() - begin, kink.grid(data)
    found = model.with_method("moments").transition(grid[:, None])
    return ps.metrics.nll(kink.kink(grid)[:, None], np.asarray(found.mean), np.asarray(found.var)), seconds


def on_energy(spec: Spec) -> tuple[float, float]:
    """NLL of the test rows."""
    data, (train, test) = uci.load("energy"), uci.split("energy", spec.run)
    recipe = ps.Recipe(iterations=spec.iterations, patience=spec.iterations, prior_weight=0.1)
    parts = {"recipe": recipe, "n_estimators": 1, "random_state": spec.run, "progress": False}
    begin = time.monotonic()
    model = ps.DeepStochasticRegressor(method=method(spec.samples), **parts).fit(data.x[train], data.y[train])
    seconds = time.monotonic() - begin
    if spec.samples:
        model = model.with_method(ps.Sampled(4 * spec.samples))
    return -float(model.log_prob(data.x[test], data.y[test]).mean()), seconds


def on_walks(spec: Spec) -> tuple[float, float]:
    """NLL of the test sequences after three frames."""
    data, rate, begin = mocap.load(), walks_table.chosen_rate(), time.monotonic()
    budget = {"iterations": spec.iterations, "free_run": spec.iterations, "patience": spec.iterations}
    recipe = replace(walks_table.RECIPE, learning_rate=rate, **budget)
    row = walks_table.Spec("MC local" if spec.samples else "Det. local", spec.run)
    forecast, _ = walks_table.prodssm(row, data, {"recipe": recipe})
    seconds = time.monotonic() - begin
    return walks_table.scored(forecast, data.test)["nll"], seconds


def curves() -> dict[tuple[str, int], np.ndarray]:
    """By task and samples: columns iterations, seconds, NLL, its standard error, runs."""
    found: dict[tuple[str, int], dict[int, list[tuple[float, float]]]] = {}
    for row in common.rows(NAME):
        curve = found.setdefault((row["task"], int(row["samples"])), {})
        curve.setdefault(int(row["iterations"]), []).append((float(row["seconds"]), float(row["nll"])))
    return {key: np.array([_point(n, rows) for n, rows in sorted(curve.items())]) for key, curve in found.items()}


def _point(iterations: int, rows: list[tuple[float, float]]) -> list[float]:
    seconds, nll = np.array(rows).T
    error = nll.std(ddof=1) / np.sqrt(len(nll)) if len(nll) > 1 else 0.0
    return [iterations, seconds.mean(), nll.mean(), error, len(nll)]


def label(samples: int) -> str:
    """The name of a curve."""
    return f"Monte Carlo, {samples}" if samples else "moments"


def tables() -> dict[str, str]:
    """Every point of every curve."""
    found = curves()
    body = []
    for task in RUNS:
        for samples in MODELS[task]:
            points = found.get((task, samples), [])
            cells = [f"{seconds:.3g} s: {nll:.2f}{f' ({error:.2f})' if error else ''}" for _, seconds, nll, error, _ in points]
            body.append([NAMES[task], label(samples), "; ".join(cells)])
    return {"budget": common.markdown(["task", "method", "training time: NLL"], body)}


def draw() -> None:
    """The curves, into docs/images."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    found = curves()
    tasks = [task for task in RUNS if any(name == task for name, _ in found)]
    figure, axes = plt.subplots(1, len(tasks), figsize=(5 * len(tasks), 3.5), layout="constrained", squeeze=False)
    for axis, task in zip(axes[0], tasks, strict=True):
        for samples in MODELS[task]:
            if (task, samples) in found:
                _, seconds, nll, error, _ = found[task, samples].T
                axis.errorbar(seconds, nll, error, marker="o", capsize=2, label=label(samples))
        axis.set(title=NAMES[task], xlabel="seconds of training", xscale="log")
        axis.legend()
    axes[0, 0].set_ylabel("test NLL")
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
    common.say(PICTURE.name)


QUICK = [(Spec("kink", 0, 2, 0), {}), (Spec("energy", 8, 2, 0), {})]

if __name__ == "__main__":
    common.main(__file__)
