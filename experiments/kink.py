"""Learning the kink function from 120 noisy points: the paper's dynamical modelling table, left.

For each noise level ten fresh trajectories (seed 1000 + 100 level + run), each learned on its own, the measurement noise known.
Scored are mean squared error and negative log likelihood of the true function at 70 points between the ends of the true
trajectory, under the learned weights and without process noise.

Det. local, Det. global: `ProDSSM` with its defaults, which were chosen elsewhere (recipe.py). Det. local x5: five members,
with the prior weight that was chosen for them there. MC local, MC global: the same architecture and recipe with 64 samples in
training (global weights are thus trained as local ones first); scored in closed form. ODE2VAE, E-PAC-Bayes:
`prodssm.baselines`, each with a rule of its own that never sees the true function.

    python experiments/kink.py      resumes; rows go to results/kink.csv
    python experiments/kink.py --quick
"""

import itertools
import time
import warnings
from dataclasses import asdict, dataclass, replace
from typing import Any

import common
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.baselines.monte_carlo import train_by_draws
from prodssm.baselines.ode2vae import KINK_RECIPE, ODE2VAE
from prodssm.baselines.pac_bayes import EPACBayes
from prodssm.datasets import kink
from prodssm.estimators.results import Transition
from prodssm.training.recipe import SERIES_RECIPE

NAME = "kink"
RUNS, SAMPLES = 10, 64
PAPER = {  # NLL, then MSE, at the three noise levels
    "Det. local": "-1.50(.03) -.41(.07) .54(.07); .00(.00) .04(.01) .22(.04)",
    "Det. local x5": "-1.50(.03) -.41(.07) .54(.07); .00(.00) .04(.01) .22(.04)",
    "Det. global": "-1.53(.03) -.47(.07) .72(.17); .00(.00) .03(.01) .22(.05)",
    "MC local": "-1.46(.04) -.44(.06) .82(.11); .00(.00) .04(.01) .28(.05)",
    "MC global": "-1.50(.07) -.46(.10) 1.13(.24); .00(.00) .04(.01) .31(.05)",
    "ODE2VAE": "-.07(.46) .29(.43) 4.11(1.42); .01(.00) .02(.00) .22(.05)",
    "E-PAC-Bayes": "-.67(.07) .47(.11) 1.13(.12); .02(.00) .05(.00) .41(.07)",
}
QUOTED = {  # not run here
    "VCDT": "-1.53(.31) 1.10(.72) 4.16(1.97)",
    "Laplace GP": "-1.35(.04) -.36(.08) 1.08(.15)",
}
WEIGHTS = {"Det. local": "local", "Det. local x5": "local", "Det. global": "global", "MC local": "local"}
MEMBERS, MEMBERS_RECIPE = 5, ps.Recipe(prior_weight=0.05)  # the best ensemble of recipe.py


@dataclass(frozen=True)
class Spec:
    """One row: a model at a noise level; the run is the seed."""

    model: str
    r: float
    run: int


SPECS = [Spec(model, r, run) for model, run, r in itertools.product(PAPER, range(RUNS), kink.NOISE_LEVELS)]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table."""
    data, begin = kink.simulate(spec.r, seed=1000 + 100 * kink.NOISE_LEVELS.index(spec.r) + spec.run), time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = {"MC global": by_draws, "ODE2VAE": ode2vae, "E-PAC-Bayes": pac_bayes}.get(spec.model, prodssm)
        grid = kink.grid(data)
        found, config = fit(spec, data.y, grid[:, None], settings)
    truth, mean, var = kink.kink(grid)[:, None], np.asarray(found.mean, float), np.asarray(found.var, float)
    return asdict(spec) | {
        "nll": round(ps.metrics.nll(truth, mean, var), 5),
        "mse": round(ps.metrics.mse(truth, mean), 6),
        "config": ", ".join(f"{name}={value}" for name, value in config.items()),
        "seconds": round(time.monotonic() - begin, 1),
        "commit": common.commit(),
    }


def learn(weights: str, r: float, run: int, **settings: Any) -> ps.ProDSSM:
    """The model that one trajectory gives, by default by moments."""
    data = kink.simulate(r, seed=1000 + 100 * kink.NOISE_LEVELS.index(r) + run)
    parts = {"emission": "identity", "weights": weights, "measurement_noise": r, "random_state": run, "progress": False}
    return ps.ProDSSM(**parts | settings).fit(data.y)


def prodssm(spec: Spec, _: np.ndarray, grid: np.ndarray, settings: dict[str, Any]) -> tuple[Transition, dict[str, Any]]:
    """Local or global weights by moments, or local ones by particles."""
    parts: dict[str, Any] = {"method": ps.Sampled(SAMPLES)} if spec.model == "MC local" else {}
    parts |= {"n_estimators": MEMBERS, "recipe": MEMBERS_RECIPE} if spec.model == "Det. local x5" else {}
    model = learn(WEIGHTS[spec.model], spec.r, spec.run, **parts | settings)
    config = described(model.ssm_, float(model.scaling_.y.scale[0]), (parts | settings).get("recipe"))
    return model.with_method("moments").transition(grid), config


def by_draws(spec: Spec, y: np.ndarray, grid: np.ndarray, settings: dict[str, Any]) -> tuple[Transition, dict[str, Any]]:
    """Global weights by Monte Carlo: trained as local ones first, then with a filter for each of their draws."""
    local = learn("local", spec.r, spec.run, method=ps.Sampled(SAMPLES), **settings)
    recipe, scaling = (settings.get("recipe") or ps.Recipe()).filled(SERIES_RECIPE), local.scaling_.y
    series, key = ps.Series(scaling.transform(np.asarray(y, scaling.mean.dtype))), jr.key(spec.run)
    model, _ = train_by_draws(local.ssm_, [series], recipe.fine_tuning(), samples=SAMPLES, key=key, progress=False)
    points = [ps.Gaussian(each, np.zeros((1, 1))) for each in scaling.transform(np.asarray(grid, scaling.mean.dtype))]
    channels = [ps.channel(model.transition, point) for point in points]
    mean, var = (np.array(part, float).reshape(-1, 1) for part in ([c.mean for c in channels], [c.noise for c in channels]))
    scale = float(scaling.scale[0])
    return Transition(scaling.inverse(mean), var * scale**2), described(model, scale, recipe)


def described(model: ps.StateSpaceModel, scale: float, recipe: ps.Recipe | None) -> dict[str, Any]:
    """How a model was trained, and the variances that it learned: process noise in units of the data, weights on average."""
    filled = (recipe or ps.Recipe()).filled(SERIES_RECIPE)
    variances = np.concatenate([np.ravel(np.exp(layer.weight_log_var)) for layer in model.transition.linears])
    return {
        "process_var": round(float(np.exp(model.log_process_noise)[0]) * scale**2, 6),
        "weight_var": round(float(variances.mean()), 5),
        "iterations": filled.iterations,
        "prior_weight": filled.prior_weight,
        "learning_rate": filled.learning_rate,
    }


def ode2vae(spec: Spec, y: np.ndarray, grid: np.ndarray, settings: dict[str, Any]) -> tuple[Transition, dict[str, Any]]:
    """A latent ODE with uncertain weights; here a map."""
    given = settings.get("recipe")
    recipe = KINK_RECIPE if given is None else replace(KINK_RECIPE, iterations=given.iterations)
    parts = {"latent": 1, "context": 2, "order": 1, "noise": spec.r, "step": 1.0, "recipe": recipe}
    model = ODE2VAE(**parts, random_state=spec.run, progress=False).fit(y[None])
    return Transition(*model.transition(grid, key=jr.key(spec.run))), {"iterations": model.history_.iterations[-1]}


def pac_bayes(spec: Spec, y: np.ndarray, grid: np.ndarray, settings: dict[str, Any]) -> tuple[Transition, dict[str, Any]]:
    """A neural SDE with uncertain weights."""
    model = EPACBayes(spec.r, random_state=spec.run, progress=False, **settings).fit(y)
    return Transition(*model.transition(grid)), {"iterations": model.history_.iterations[-1], "window": model.window}


def tables() -> dict[str, str]:
    """NLL and MSE, each next to the paper's."""
    found: dict[tuple[str, float], list[dict[str, str]]] = {}
    for row in common.rows(NAME):
        found.setdefault((row["model"], float(row["r"])), []).append(row)
    body = []
    for model, text in PAPER.items():
        cells = []
        for score, numbers in zip(("nll", "mse"), text.split("; "), strict=True):
            for r, paper in zip(kink.NOISE_LEVELS, numbers.split(), strict=True):
                cells.append(common.against_paper((float(row[score]) for row in found.get((model, r), [])), paper))
        seconds = [float(row["seconds"]) for r in kink.NOISE_LEVELS for row in found.get((model, r), [])]
        body.append(
            [model, len(found.get((model, kink.NOISE_LEVELS[0]), [])), *cells, f"{np.mean(seconds):.0f}" if seconds else ""]
        )
    body += [
        [f"{name} (quoted)", "", *(f"/ {number}" for number in text.split()), "", "", "", ""] for name, text in QUOTED.items()
    ]
    head = ["model", "runs", *(f"{score}, r = {r}" for score in ("NLL", "MSE") for r in kink.NOISE_LEVELS), "seconds"]
    return {"kink": common.markdown(head, body)}


QUICK = [(Spec(model, 0.08, 0), {"recipe": ps.Recipe(iterations=2)}) for model in PAPER if model != "Det. global"]

if __name__ == "__main__":
    common.main(__file__)
