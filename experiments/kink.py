"""Learning the kink function from 120 noisy points: the paper's dynamical modelling table, left, with the library's defaults.

For each noise level ten fresh trajectories (seed 1000 + 100 level + run), each learned by `ProDSSM` on its own. Scored are mean
squared error and negative log likelihood of the true function at 70 points between the ends of the true trajectory, under the
learned weights and without process noise. Nothing of this is looked at when the defaults are chosen (experiments/recipe.py).

    python experiments/kink.py [--weights local global] [--runs 10]      resumes; rows go to results/kink.csv
    python experiments/kink.py --quick
"""

import time
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.datasets import kink

PAPER = {  # NLL and MSE of the Det. rows
    "local": {0.008: (-1.50, 0.00), 0.08: (-0.41, 0.04), 0.8: (0.54, 0.22)},
    "global": {0.008: (-1.53, 0.00), 0.08: (-0.47, 0.03), 0.8: (0.72, 0.22)},
}


def learn(weights: str, r: float, run: int, **settings: Any) -> dict[str, Any]:
    """One row of the table."""
    data = kink.simulate(r, seed=1000 + 100 * kink.NOISE_LEVELS.index(r) + run)
    begin = time.monotonic()
    model = ps.ProDSSM(weights=weights, measurement_noise=r, seed=run, progress=False, **settings).fit(data.y)
    seconds = time.monotonic() - begin
    grid = kink.grid(data)
    found, truth = model.transition(grid[:, None]), kink.kink(grid)[:, None]
    mean, var = np.asarray(found.mean, float), np.asarray(found.var, float)
    variances = np.concatenate([np.ravel(np.exp(layer.weight_log_var)) for layer in model.ssm_.transition.linears])
    return {
        "weights": weights,
        "r": r,
        "run": run,
        "nll": round(ps.metrics.nll(truth, mean, var), 5),
        "mse": round(ps.metrics.mse(truth, mean), 6),
        "process_var": round(float(np.exp(model.ssm_.log_process_noise)[0] * model.units_.y.scale[0] ** 2), 6),
        "weight_var": round(float(variances.mean()), 5),
        "iterations": model.history_.iterations[-1],
        "prior_weight": model.prior_weight,
        "learning_rate": model.learning_rate,
        "schedule": model.schedule,
        "seconds": round(seconds, 1),
        "commit": common.commit(),
    }


def main() -> None:
    """Run what is missing, print the table."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--weights", nargs="+", default=["local", "global"])
    parser.add_argument("--runs", type=int, default=10)
    chosen = parser.parse_args()
    if chosen.quick:
        common.say(learn("local", 0.08, 0, iterations=2))
        return
    table = common.Table("kink", ("weights", "r", "run"))
    for weights in chosen.weights:
        for run in range(chosen.runs):
            for r in kink.NOISE_LEVELS:
                if not table.has(weights=weights, r=r, run=run):
                    table.add(learn(weights, r, run))
    for weights in chosen.weights:
        for r in kink.NOISE_LEVELS:
            rows = [row for row in table.rows if row["weights"] == weights and float(row["r"]) == r]
            nll, mse = (common.mean_and_error(float(row[name]) for row in rows) for name in ("nll", "mse"))
            paper = PAPER[weights][r]
            common.say(f"{weights:6} r={r:<5} n={len(rows):2} NLL {nll} (paper {paper[0]})  MSE {mse} (paper {paper[1]})")


if __name__ == "__main__":
    main()
