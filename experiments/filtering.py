"""Filtering with learned models: the paper's filtering table, moment matching against unscented filters over (state, weights).

For each noise level and weight mode a model is learned from one trajectory of the kink system (run 0 of experiments/kink.py)
with the library's defaults. It then simulates ten trajectories of 120 points (local weights: redrawn at every step; global:
drawn once per trajectory), and each filter, given the same fixed model, is scored by the true states: mean squared error and
negative log likelihood per time step, and the difference of the latter from that of moment matching on the same trajectories.
The unscented filter runs with three sets of (alpha, beta, kappa), all in double precision; n is the size of state and weights.
The neural filter (`prodssm.baselines.neural_filter`) is for point weights only; it learns from trajectories of the same model.

    python experiments/filtering.py      resumes; rows go to results/filtering.csv
    python experiments/filtering.py --quick
"""

import itertools
import time
from collections.abc import Callable
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
from prodssm.baselines.neural_filter import NeuralFilter  # noqa: E402
from prodssm.datasets import kink  # noqa: E402

NAME, NEURAL = "filtering", "neural filter"
PAPER = {  # NLL, then MSE, at the three noise levels
    ("point", "neural filter"): "-.87(.08) .25(.10) 1.23(.11); .01(.00) .08(.01) .73(.19)",
    ("point", "unscented (1, 2, 0)"): "-.89(.05) .09(.05) 1.03(.08); .01(.00) .07(.00) .49(.08)",
    ("point", "moments"): "-.88(.04) .10(.04) 1.00(.08); .01(.00) .07(.01) .46(.07)",
    ("local", "unscented (1, 2, 0)"): "-.85(.06) .64(.20) 3.10(.46); .02(.01) .12(.02) 1.35(.15)",
    ("local", "moments"): "-.90(.02) .08(.03) 1.00(.05); .01(.00) .07(.03) .44(.05)",
    ("global", "unscented (1, 2, 0)"): "-.91(.01) 2.89(.83) 3.56(.89); .01(.00) .27(.06) 1.18(.25)",
    ("global", "moments"): "-.89(.02) .12(.03) .98(.06); .01(.00) .06(.02) .48(.04)",
}
FILTERS = ("moments", "linearised", "unscented (1, 2, 0)", "unscented (1, 0, 3-n)", "unscented (1e-3, 2, 0)")
LENGTH, REPEATS = 120, 10


@dataclass(frozen=True)
class Spec:
    """One row: a filter on trajectories of one learned model."""

    weights: str
    r: float
    filter: str


SPECS = [Spec(*parts) for parts in itertools.product(("point", "local", "global"), kink.NOISE_LEVELS, FILTERS)]
SPECS += [Spec("point", r, NEURAL) for r in kink.NOISE_LEVELS]


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
def learned(weights: str, r: float, recipe: ps.Recipe | None = None) -> tuple[ps.StateSpaceModel, float]:
    """The model of one trajectory, in standardised units, and the standard deviation that is their unit."""
    model = kink_table.learn(weights, r, 0, recipe=recipe)
    return model.ssm_, float(model.scaling_.y.scale[0])


def filter_of(model: ps.StateSpaceModel, name: str, recipe: ps.Recipe | None) -> Callable[[Any], Any]:
    """A filter as a function of observations."""
    if name == NEURAL:
        return NeuralFilter(model, recipe=recipe, progress=False).fit().filter
    return lambda y: ps.filter_states(model, ps.Series(y), method(name, model))


@lru_cache
def losses(weights: str, r: float, name: str, recipe: ps.Recipe | None, repeats: int) -> np.ndarray:
    """MSE and NLL of one filter on each trajectory, in the units of the data: (repeats, 2), NaN where the filter fails."""
    model, scale = learned(weights, r, recipe)
    found = np.full((repeats, 2), np.nan)
    filtered = filter_of(model, name, recipe)
    for repeat in range(repeats):
        states, y = ps.simulate(model, LENGTH, key=jr.key(repeat))
        try:
            belief = filtered(y)
        except FloatingPointError:
            continue
        truth, mean, cov = (np.asarray(part, float) for part in (states, belief.mean, belief.cov))
        if (np.diagonal(cov, axis1=1, axis2=2) > 0).all():
            found[repeat] = scale**2 * ps.metrics.mse(truth, mean), np.log(scale) + ps.metrics.nll(truth, mean, cov)
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
    """The paper's table, and how far other filters are behind moment matching on the same trajectories."""
    found = {(row["weights"], float(row["r"]), row["filter"]): row for row in common.rows(NAME)}
    body = []
    for (weights, name), text in PAPER.items():
        cells = [
            _cell(found.get((weights, r, name)), score, paper)
            for score, numbers in zip(("nll", "mse"), text.split("; "), strict=True)
            for r, paper in zip(kink.NOISE_LEVELS, numbers.split(), strict=True)
        ]
        body.append([weights, name, *cells])
    head = ["weights", "filter", *(f"{score}, r = {r}" for score in ("NLL", "MSE") for r in kink.NOISE_LEVELS)]
    behind = []
    for weights, r in itertools.product(("point", "local", "global"), kink.NOISE_LEVELS):
        behind.append([weights, r, *(_behind(found.get((weights, r, name))) for name in (*FILTERS[1:], NEURAL))])
    return {
        "filtering": common.markdown(head, body),
        "filtering, behind": common.markdown(["weights", "r", *FILTERS[1:], NEURAL], behind),
    }


def _cell(row: dict[str, str] | None, score: str, paper: str) -> str:
    """Ours, then the paper's."""
    ours = "-" if row is None else f"{float(row[score]):.3f} ({float(row[f'{score}_se']):.3f})"
    return f"{ours} / {paper}"


def _behind(row: dict[str, str] | None) -> str:
    if row is None:
        return ""
    failed = int(row["failed"])
    return f"fails on {failed}" if failed else f"{float(row['behind']):+.3f} ({float(row['behind_se']):.3f})"


QUICK = [(Spec("local", 0.08, "unscented (1, 2, 0)"), {"recipe": ps.Recipe(iterations=2), "repeats": 2})]
QUICK += [(Spec("point", 0.08, NEURAL), {"recipe": ps.Recipe(iterations=2), "repeats": 2})]

if __name__ == "__main__":
    common.main(__file__)
