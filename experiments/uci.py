"""Regression on eight UCI sets: the paper's UCI tables.

All models learn from the training rows of a split. Negative log likelihood and root mean squared error of its test rows are in
the units of the target. "protein" has five published splits.

Det. local, Det. global, DSSM, MC: `DeepStochasticRegressor` with local, global or point weights and its defaults: five members,
each with another fifth of the rows as validation rows, which choose the weight of the hyper-prior and when to stop; their
mixture predicts. MC propagates particles instead of moments ("8/32": 8 in training, 32 for test rows), to whose ends a Gaussian
is fitted.
The learned measurement noise has a floor of 1e-6 of the target's variance, the process noise one of 1e-6 of the inputs'.
Dropout, DVI: `prodssm.baselines`, each with its own rule, which sees training rows only.

    python experiments/uci.py      resumes; rows go to results/uci.csv (hours; small sets come first)
    python experiments/uci.py --only set=boston --only "model=MC local 8/32"
    python experiments/uci.py --quick
"""

import itertools
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.baselines.dropout import DropoutRegressor
from prodssm.baselines.dvi import DVIRegressor
from prodssm.datasets import uci
from prodssm.estimators.row_recipe import ROWS_RECIPE

NAME = "uci"
SMALL, LARGE = uci.NAMES[:4], uci.NAMES[4:]
WEIGHTS = {"Det. local": "local", "Det. global": "global", "DSSM": "point"}
PARTICLES = {"8/32": (8, 32), "32/128": (32, 128)}
MONTE_CARLO = [f"MC {weights} {counts}" for weights, counts in itertools.product(("local", "global"), PARTICLES)]
BASELINES = {"Dropout": DropoutRegressor, "DVI": DVIRegressor}
MODELS = [*WEIGHTS, *MONTE_CARLO, *BASELINES]
PAPER = {  # (NLL, RMSE) by set, in the order of uci.NAMES; "" is not reported
    "Det. local": "2.33(.03) .43(.04) 3.00(.03) .92(.01) -1.30(.00) 2.79(.01) -5.52(.03) 2.76(.01); "
    "2.99(.13) .41(.01) 5.24(.12) .63(.00) .07(.00) 3.99(.03) .01(.00) 4.35(.02)",
    "Det. global": "2.34(.02) .44(.03) 2.99(.04) .92(.00) -1.27(.01)* 2.79(.01) -4.75(.08)* 2.82(.01)*; "
    "3.05(.11) .42(.02) 5.24(.14) .63(.00) .07(.00)* 4.01(.03) .01(.00)* 4.57(.03)*",
    "DSSM": "2.37(.03) .70(.06) 2.92(.02) .93(.02) -1.22(.00) 2.80(.01) -4.45(.02) 2.76(.01); "
    "3.26(.15) .87(.13) 5.12(.09) .63(.00) .08(.00) 4.07(.03) .01(.00) 4.45(.00)",
    "MC local 8/32": "2.42(.03) .47(.03) 3.02(.02) .96(.01) -1.25(.00) 2.85(.01) -5.88(.09) 2.86(.01); "
    "3.17(.14) .43(.01) 5.48(.10) .64(.00) .07(.00) 4.14(.03) .01(.00) 4.63(.02)",
    "MC local 32/128": "2.37(.02) .43(.04) 2.99(.01) .93(.01) -1.29(.01) 2.79(.01) -6.10(.07) 2.77(.01); "
    "3.11(.13) .41(.01) 5.43(.11) .63(.00) .07(.00) 4.00(.03) .01(.00) 4.39(.01)",
    "MC global 8/32": "2.49(.02) .56(.03) 3.08(.02) .96(.01) -1.22(.01) 2.85(.01) -6.16(.05) 2.89(.01); "
    "3.39(.13) .47(.01) 5.66(1.00) .64(.00) .07(.00) 4.15(.03) .01(.00) 4.70(.04)",
    "MC global 32/128": "2.44(.05) .50(.06) 3.03(.02) .93(.01) -1.25(.01) 2.81(.01) -6.22(.07) 2.77(.01); "
    "3.15(.13) .44(.02) 5.44(.10) .63(.00) .07(.00) 4.04(.03) .01(.00) 4.39(.01)",
    "Dropout": "2.46(.06) 1.99(.02) 3.04(.02) .93(.01) -.95(.01) 2.80(.01) -3.80(.01) 2.89(.00); "
    "2.97(.19) 1.66(.04) 5.23(.12) .62(.01) .10(.00) 4.02(.04) .01(.00) 4.36(.01)",
    "DVI": "2.41(.02) 1.01(.06) 3.06(.01) .90(.01) -1.13(.00) 2.80(.00) -6.29(.04) 2.85(.00); - - - - - - - -",
}


@dataclass(frozen=True)
class Spec:
    """One row: a model on one split of a set; the split is the seed."""

    set: str
    split: int
    model: str


def specs() -> list[Spec]:
    """All rows: small sets and cheap models first."""
    found = [Spec(name, split, model) for model, split, name in itertools.product((*WEIGHTS, *BASELINES), range(20), SMALL)]
    found += [Spec(name, split, model) for model, split, name in itertools.product(MONTE_CARLO, range(5), SMALL[:3])]
    found += [Spec(name, 0, model) for model, name in itertools.product(BASELINES, LARGE)]
    for split, name, model in itertools.product(range(3), LARGE, ("Det. local", "DSSM", "Det. global")):
        if split == 0 or (model != "Det. global" and name != "protein"):
            found.append(Spec(name, split, model))
    return found


SPECS = specs()


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table."""
    data, (train, test) = uci.load(spec.set), uci.split(spec.set, spec.split)
    begin = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fit = baseline if spec.model in BASELINES else regressor
        model, config = fit(spec, data.x[train], data.y[train], settings)
    seconds = time.monotonic() - begin
    error = model.predict(data.x[test]) - data.y[test]
    return asdict(spec) | {
        "nll": round(-float(model.log_prob(data.x[test], data.y[test]).mean()), 5),
        "rmse": round(float(np.sqrt((error**2).mean())), 6),
        "config": ", ".join(f"{name}={value}" for name, value in config.items()),
        "seconds": round(seconds, 1),
        "commit": common.commit(),
    }


def regressor(spec: Spec, x: np.ndarray, y: np.ndarray, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Deep stochastic layers, by moments or by particles."""
    weights, training, testing = WEIGHTS.get(spec.model), {}, None
    if weights is None:
        _, weights, counts = spec.model.split()
        training, testing = {"method": ps.Sampled(PARTICLES[counts][0])}, ps.Sampled(PARTICLES[counts][1])
    model = ps.DeepStochasticRegressor(weights=weights, random_state=spec.split, progress=False, **(training | settings))
    model.fit(x, y)
    config = {
        "prior_weight": model.prior_weight_,
        "iterations": model.n_iter_,
        "members": len(model.ssms_),
        "steps": model.choices_.steps,
        "order": "" if training else model.get_params()["method__order"],
        "batch_size": ROWS_RECIPE.batch,
        "learning_rate": ROWS_RECIPE.learning_rate,
    }
    return (model if testing is None else model.with_method(testing)), config


def baseline(spec: Spec, x: np.ndarray, y: np.ndarray, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Dropout or DVI; rows come in random order, because the last ones validate."""
    order = np.random.default_rng(spec.split).permutation(len(x))
    model = BASELINES[spec.model](random_state=spec.split, progress=False, **settings).fit(x[order], y[order])
    config = {"iterations": model.history_.iterations[-1], "units": model.network_.linears[0].bias.size}
    if spec.model == "Dropout":
        config |= {"rate": model.rate_, "precision": round(model.precision_, 5)}
    return model, config


def tables() -> dict[str, str]:
    """NLL and RMSE by model and set, each next to the paper's."""
    found: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in common.rows(NAME):
        found.setdefault((row["model"], row["set"]), []).append(row)
    result = {}
    for n, score in enumerate(("nll", "rmse")):
        body = []
        for model in MODELS:
            paper = PAPER[model].split("; ")[n].split()
            for part, sets in enumerate((SMALL, LARGE)):
                cells = [_cell(found.get((model, name), []), score, paper[4 * part + k]) for k, name in enumerate(sets)]
                body.append((part, [model, *cells]))
        for part, (name, sets) in enumerate((("small", SMALL), ("large", LARGE))):
            lines = [line for where, line in body if where == part]
            result[f"uci {score} {name}"] = common.markdown(["model", *sets], lines)
    return result


def _cell(rows: list[dict[str, str]], score: str, paper: str) -> str:
    """Ours with its number of splits, then the paper's."""
    return common.against_paper((float(row[score]) for row in rows), paper, f" [{len(rows)}]")


SMOKE = {"n_estimators": 2, "recipe": ps.Recipe(iterations=2, prior_weight=0.3)}
QUICK = [(Spec("boston", 0, model), SMOKE) for model in ("Det. local", "DSSM", "MC global 8/32")]
QUICK += [(Spec("boston", 0, "Dropout"), {"epochs": 1, "passes": 10}), (Spec("boston", 0, "DVI"), {"iterations": 2})]

if __name__ == "__main__":
    common.main(__file__)
