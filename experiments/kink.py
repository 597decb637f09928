"""Learning the kink function from 120 noisy points: the paper's dynamical modelling table, left, with the library's defaults.

For each noise level ten fresh trajectories (seed 1000 + 100 level + run), each learned by `ProDSSM` on its own. Scored are mean
squared error and negative log likelihood of the true function at 70 points between the ends of the true trajectory, under the
learned weights and without process noise. The defaults were chosen elsewhere (experiments/recipe.py).

    python experiments/kink.py      resumes; rows go to results/kink.csv
    python experiments/kink.py --quick
"""

import itertools
import time
from dataclasses import asdict, dataclass
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.datasets import kink
from prodssm.training.recipe import SERIES_RECIPE

PAPER = {  # NLL and MSE of the Det. rows
    ("local", 0.008): ("-1.50(.03)", ".00(.00)"),
    ("local", 0.08): ("-.41(.07)", ".04(.01)"),
    ("local", 0.8): (".54(.07)", ".22(.04)"),
    ("global", 0.008): ("-1.53(.03)", ".00(.00)"),
    ("global", 0.08): ("-.47(.07)", ".03(.01)"),
    ("global", 0.8): (".72(.17)", ".22(.05)"),
}
RUNS = 10


@dataclass(frozen=True)
class Spec:
    """One row: the measurement noise is known, everything else is the default."""

    weights: str
    r: float
    run: int


SPECS = [Spec(weights, r, run) for weights, run, r in itertools.product(("local", "global"), range(RUNS), kink.NOISE_LEVELS)]


def learn(spec: Spec, recipe: ps.Recipe | None = None) -> tuple[ps.ProDSSM, Any]:
    """The model that one trajectory gives, and the trajectory."""
    data = kink.simulate(spec.r, seed=1000 + 100 * kink.NOISE_LEVELS.index(spec.r) + spec.run)
    model = ps.ProDSSM(
        emission="identity",
        weights=spec.weights,
        measurement_noise=spec.r,
        recipe=recipe,
        random_state=spec.run,
        progress=False,
    )
    return model.fit(data.y), data


def run(spec: Spec, recipe: ps.Recipe | None = None) -> dict[str, Any]:
    """One row of the table."""
    begin = time.monotonic()
    model, data = learn(spec, recipe)
    seconds = time.monotonic() - begin
    grid = kink.grid(data)
    found, truth = model.transition(grid[:, None]), kink.kink(grid)[:, None]
    mean, var = np.asarray(found.mean, float), np.asarray(found.var, float)
    variances = np.concatenate([np.ravel(np.exp(layer.weight_log_var)) for layer in model.ssm_.transition.linears])
    filled = (recipe or ps.Recipe()).filled(SERIES_RECIPE)
    return asdict(spec) | {
        "nll": round(ps.metrics.nll(truth, mean, var), 5),
        "mse": round(ps.metrics.mse(truth, mean), 6),
        "process_var": round(float(np.exp(model.ssm_.log_process_noise)[0] * model.scaling_.y.scale[0] ** 2), 6),
        "weight_var": round(float(variances.mean()), 5),
        "iterations": model.history_.iterations[-1],
        "prior_weight": filled.prior_weight,
        "learning_rate": filled.learning_rate,
        "schedule": filled.schedule,
        "seconds": round(seconds, 1),
        "commit": common.commit(),
    }


def tables() -> dict[str, str]:
    """The table of docs/results.md."""
    body = []
    for (weights, r), (nll, mse) in PAPER.items():
        rows = [row for row in common.rows("kink") if (row["weights"], float(row["r"])) == (weights, r)]
        cells = [common.mean_and_error(float(row[name]) for row in rows) for name in ("nll", "mse", "weight_var", "seconds")]
        body.append([weights, r, len(rows), cells[0], nll, cells[1], mse, cells[2], cells[3]])
    head = ["weights", "r", "runs", "NLL", "paper", "MSE", "paper", "weight variance", "seconds per fit"]
    return {"kink": common.markdown(head, body)}


if __name__ == "__main__":
    common.main(__doc__, "kink", SPECS, run, lambda: run(SPECS[1], ps.Recipe(iterations=2)), tables)
