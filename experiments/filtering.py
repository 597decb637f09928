"""Filtering with learned models: the paper's filtering table, our rule against unscented filters over state and weights.

For each noise level and weight mode a model is learned from one trajectory of the kink system (run 0 of
experiments/kink.py) with the library's defaults. It then simulates ten trajectories of 120 points (local weights: redrawn at
every step; global: drawn once per trajectory), and each filter, given the same fixed model, is scored by the true states: mean
squared error and negative log likelihood per time step, and how far the latter is behind that of our rule on the same
trajectories. The unscented filter runs with three sets of (alpha, beta, kappa), the first of them the default, all in double
precision; n is the size of state and weights together.

    python experiments/filtering.py            resumes; rows go to results/filtering.csv
    python experiments/filtering.py --quick
"""

import time
from typing import Any

import common
import jax
import jax.random as jr
import numpy as np

jax.config.update("jax_enable_x64", True)

import prodssm as ps  # noqa: E402
from prodssm.datasets import kink  # noqa: E402

WEIGHTS = ("point", "local", "global")
LENGTH, REPEATS = 120, 10


def filters(model: ps.StateSpaceModel) -> dict[str, dict[str, Any]]:
    """The contenders: how each finds its channels."""
    n = model.x_size + (0 if model.weights == "point" else model.transition.weights.mean.size)
    return {
        "moments": {"method": "moments"},
        "linearised": {"method": "linearised"},
        "unscented (1, 2, 0)": {"method": "unscented", "alpha": 1.0, "beta": 2.0, "kappa": 0.0},
        "unscented (1, 0, 3-n)": {"method": "unscented", "alpha": 1.0, "beta": 0.0, "kappa": 3.0 - n},
        "unscented (1e-3, 2, 0)": {"method": "unscented", "alpha": 1e-3, "beta": 2.0, "kappa": 0.0},
    }


def learn(weights: str, r: float, **settings: Any) -> ps.StateSpaceModel:
    """A model from one trajectory, as experiments/kink.py does it."""
    data = kink.simulate(r, seed=1000 + 100 * kink.NOISE_LEVELS.index(r))
    return ps.ProDSSM(weights=weights, measurement_noise=r, seed=0, progress=False, **settings).fit(data.y).ssm_


def losses(model: ps.StateSpaceModel, options: dict[str, Any], repeats: int) -> np.ndarray:
    """Errors of one filter on trajectories of the model itself, in standard units: (repeats, 2), NaN where the filter fails."""
    found = np.full((repeats, 2), np.nan)
    for repeat in range(repeats):
        states, y = ps.simulate(model, LENGTH, key=jr.key(repeat))
        try:
            belief = ps.filter_states(model, ps.Series(y), **options)
        except FloatingPointError:
            continue
        truth, mean, cov = (np.asarray(part, float) for part in (states, belief.mean, belief.cov))
        if (np.diagonal(cov, axis1=1, axis2=2) > 0).all():
            found[repeat] = ps.metrics.mse(truth, mean), ps.metrics.nll(truth, mean, cov)
    return found


def score(found: np.ndarray, ours: np.ndarray) -> dict[str, float]:
    """Means and standard errors; NaN for a filter that fails on any trajectory, except how far it is behind on the others."""
    done = ~np.isnan(found[:, 1])
    columns = {"mse": found[:, 0], "nll": found[:, 1], "behind": (found - ours)[done, 1]}
    numbers = {}
    for name, values in columns.items():
        many = len(values) > 1
        numbers[name] = float(np.mean(values)) if many else float("nan")
        numbers[f"{name}_se"] = float(np.std(values, ddof=1) / np.sqrt(len(values))) if many else float("nan")
    return numbers | {"failed": int((~done).sum())}


def main() -> None:
    """Run what is missing, print the table."""
    chosen = common.parser(__doc__ or "").parse_args()
    if chosen.quick:
        model = learn("local", 0.08, iterations=2)
        found = losses(model, filters(model)["moments"], 2)
        common.say(score(found, found))
        return
    table = common.Table("filtering", ("weights", "r", "filter"))
    for weights in WEIGHTS:
        for r in kink.NOISE_LEVELS:
            names = ("moments", "linearised", "unscented (1, 2, 0)", "unscented (1, 0, 3-n)", "unscented (1e-3, 2, 0)")
            missing = [name for name in names if not table.has(weights=weights, r=r, filter=name)]
            if not missing:
                continue
            model = learn(weights, r)
            ours = losses(model, filters(model)["moments"], REPEATS)
            for name in missing:
                begin = time.monotonic()
                scores = score(losses(model, filters(model)[name], REPEATS), ours)
                found = {key: round(value, 5) for key, value in scores.items()}
                found |= {"seconds": round(time.monotonic() - begin, 1), "commit": common.commit()}
                table.add({"weights": weights, "r": r, "filter": name} | found)
    for row in table.rows:
        common.say(
            f"{row['weights']:6} r={row['r']:5} {row['filter']:24} "
            f"MSE {float(row['mse']):.3f} ({float(row['mse_se']):.3f})  "
            f"NLL {float(row['nll']):.3f} ({float(row['nll_se']):.3f})  "
            f"behind {float(row['behind']):.3f} ({float(row['behind_se']):.3f}), failed {row['failed']}"
        )


if __name__ == "__main__":
    main()
