"""Filtering with learned models: the paper's filtering table, moment matching against unscented filters over (state, weights).

For each noise level and weight mode a model is learned from one trajectory of the kink system (run 0 of experiments/kink.py)
with the library's defaults. It then simulates ten trajectories of 120 points (local weights: redrawn at every step; global:
drawn once per trajectory), and each filter, given the same fixed model, is scored by the true states: mean squared error and
negative log likelihood per time step, and the difference of the latter from that of moment matching on the same trajectories.
The unscented filter runs with three sets of (alpha, beta, kappa), all in double precision; n is the size of state and weights.

    python experiments/filtering.py      resumes; rows go to results/filtering.csv
    python experiments/filtering.py --quick
"""

import itertools
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import common
import jax
import jax.random as jr
import numpy as np

jax.config.update("jax_enable_x64", True)

import kink as kink_table  # noqa: E402

import prodssm as ps  # noqa: E402
from prodssm.datasets import kink  # noqa: E402

FILTERS = ("moments", "linearised", "unscented (1, 2, 0)", "unscented (1, 0, 3-n)", "unscented (1e-3, 2, 0)")
LENGTH, REPEATS = 120, 10


@dataclass(frozen=True)
class Spec:
    """One row: a filter on trajectories of one learned model."""

    weights: str
    r: float
    filter: str


SPECS = [Spec(*parts) for parts in itertools.product(("point", "local", "global"), kink.NOISE_LEVELS, FILTERS)]


def method(name: str, model: ps.StateSpaceModel) -> ps.Method:
    """The method behind a filter."""
    n = model.x_size + (0 if model.weights == "point" else model.weight_count)
    return {
        "moments": ps.Moments(),
        "linearised": ps.Linearised(),
        "unscented (1, 2, 0)": ps.Unscented(1.0, 2.0, 0.0),
        "unscented (1, 0, 3-n)": ps.Unscented(1.0, 0.0, 3.0 - n),
        "unscented (1e-3, 2, 0)": ps.Unscented(1e-3, 2.0, 0.0),
    }[name]


@lru_cache
def learned(weights: str, r: float, recipe: ps.Recipe | None = None) -> ps.StateSpaceModel:
    """The model of one trajectory."""
    return kink_table.learn(kink_table.Spec(weights, r, 0), recipe)[0].ssm_


@lru_cache
def losses(weights: str, r: float, name: str, recipe: ps.Recipe | None, repeats: int) -> np.ndarray:
    """MSE and NLL of one filter on each trajectory, in standardised units: (repeats, 2), NaN where the filter fails."""
    model = learned(weights, r, recipe)
    found = np.full((repeats, 2), np.nan)
    for repeat in range(repeats):
        states, y = ps.simulate(model, LENGTH, key=jr.key(repeat))
        try:
            belief = ps.filter_states(model, ps.Series(y), method(name, model))
        except FloatingPointError:
            continue
        truth, mean, cov = (np.asarray(part, float) for part in (states, belief.mean, belief.cov))
        if (np.diagonal(cov, axis1=1, axis2=2) > 0).all():
            found[repeat] = ps.metrics.mse(truth, mean), ps.metrics.nll(truth, mean, cov)
    return found


def run(spec: Spec, recipe: ps.Recipe | None = None, repeats: int = REPEATS) -> dict[str, Any]:
    """One row of the table; NaN for a filter that fails on any trajectory, except its difference on the others."""
    ours, begin = losses(spec.weights, spec.r, "moments", recipe, repeats), time.monotonic()
    found = losses(spec.weights, spec.r, spec.filter, recipe, repeats)
    done = ~np.isnan(found[:, 1])
    numbers: dict[str, Any] = {}
    for name, values in {"mse": found[:, 0], "nll": found[:, 1], "behind": (found - ours)[done, 1]}.items():
        many = len(values) > 1
        numbers[name] = round(float(np.mean(values)), 5) if many else float("nan")
        numbers[f"{name}_se"] = round(float(np.std(values, ddof=1) / np.sqrt(len(values))), 5) if many else float("nan")
    ends = {"failed": int((~done).sum()), "seconds": round(time.monotonic() - begin, 1), "commit": common.commit()}
    return asdict(spec) | numbers | ends


def tables() -> dict[str, str]:
    """The table of docs/results.md: NLL by filter, and its difference from moment matching."""
    body = []
    for weights, r in itertools.product(("point", "local", "global"), kink.NOISE_LEVELS):
        found = {row["filter"]: row for row in common.rows("filtering") if (row["weights"], float(row["r"])) == (weights, r)}
        if found:
            ours = found["moments"]
            cells = [f"{float(ours['mse']):.3f}", f"{float(ours['nll']):.3f} ({float(ours['nll_se']):.3f})"]
            for name in FILTERS[1:]:
                row = found[name]
                failed = int(row["failed"])
                difference = f"{float(row['behind']):+.3f} ({float(row['behind_se']):.3f})"
                cells.append(difference if not failed else f"fails on {failed}")
            body.append([weights, r, *cells])
    return {"filtering": common.markdown(["weights", "r", "MSE", "NLL", *FILTERS[1:]], body)}


def quick() -> Any:
    """A smoke run."""
    return run(Spec("local", 0.08, "unscented (1, 2, 0)"), ps.Recipe(iterations=2), repeats=2)


if __name__ == "__main__":
    common.main(__doc__, "filtering", SPECS, run, quick, tables)
