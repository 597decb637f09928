"""Regression on eight UCI sets with deep stochastic layers: the paper's UCI tables, with the library's defaults.

For each set and split `DeepStochasticRegressor` learns from the training rows: five members, each with another fifth of them as
validation rows, whose mixture predicts. Scored are negative log likelihood and root mean squared error of the test rows in the
units of the target. "protein" has five published splits. The learned measurement noise has a floor of 1e-6 of the target's
variance, the process noise one of 1e-6 of the inputs'.

    python experiments/uci.py      resumes; rows go to results/uci.csv (days for all; small sets come first)
    python experiments/uci.py --quick
"""

import itertools
from dataclasses import asdict, dataclass
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.datasets import uci
from prodssm.estimators.row_recipe import ROWS_RECIPE

PAPER = {  # NLL and RMSE of the Det. rows
    ("boston", "local"): ("2.33(.03)", "2.99(.13)"),
    ("boston", "global"): ("2.34(.02)", "3.05(.11)"),
    ("energy", "local"): (".43(.04)", ".41(.01)"),
    ("energy", "global"): (".44(.03)", ".42(.02)"),
    ("concrete", "local"): ("3.00(.03)", "5.24(.12)"),
    ("concrete", "global"): ("2.99(.04)", "5.24(.14)"),
    ("wine", "local"): (".92(.01)", ".63(.00)"),
    ("wine", "global"): (".92(.00)", ".63(.00)"),
    ("kin8nm", "local"): ("-1.30(.00)", ".07(.00)"),
    ("kin8nm", "global"): ("-1.27(.01)*", ".07(.00)*"),
    ("power", "local"): ("2.79(.01)", "3.99(.03)"),
    ("power", "global"): ("2.79(.01)", "4.01(.03)"),
    ("naval", "local"): ("-5.52(.03)", ".01(.00)"),
    ("naval", "global"): ("-4.75(.08)*", ".01(.00)*"),
    ("protein", "local"): ("2.76(.01)", "4.35(.02)"),
    ("protein", "global"): ("2.82(.01)*", "4.57(.03)*"),
}
SMALL, LARGE = uci.NAMES[:4], uci.NAMES[4:]


@dataclass(frozen=True)
class Spec:
    """One row: everything else is the default."""

    set: str
    split: int
    weights: str


SPECS = [
    Spec(name, split, weights)
    for sets in (SMALL, LARGE)
    for split, name, weights in itertools.product(range(uci.SPLITS), sets, ("local", "global"))
]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table."""
    data, (train, test) = uci.load(spec.set), uci.split(spec.set, spec.split)
    model = ps.DeepStochasticRegressor(weights=spec.weights, random_state=spec.split, **settings)
    model.fit(data.x[train], data.y[train])
    error = model.predict(data.x[test]) - data.y[test]
    return asdict(spec) | {
        "nll": round(-float(model.log_prob(data.x[test], data.y[test]).mean()), 5),
        "rmse": round(float(np.sqrt((error**2).mean())), 6),
        "prior_weight": model.prior_weight_,
        "iterations": model.n_iter_,
        "members": len(model.ssms_),
        "steps": model.steps,
        "order": model.get_params()["method__order"],
        "batch_size": ROWS_RECIPE.batch,
        "learning_rate": ROWS_RECIPE.learning_rate,
        "seconds": round(sum(history.seconds[-1] for _, history in model.trials_), 1),
        "commit": common.commit(),
    }


def tables() -> dict[str, str]:
    """The table of docs/results.md."""
    body = []
    for (name, weights), (nll, rmse) in PAPER.items():
        rows = [row for row in common.rows("uci") if (row["set"], row["weights"]) == (name, weights)]
        if rows:
            found = [common.mean_and_error(float(row[score]) for row in rows) for score in ("nll", "rmse")]
            body.append([name, weights, len(rows), found[0], nll, found[1], rmse])
    return {"uci": common.markdown(["set", "weights", "splits", "NLL", "paper", "RMSE", "paper"], body)}


def quick() -> Any:
    """A smoke run."""
    return run(Spec("boston", 0, "local"), n_estimators=2, recipe=ps.Recipe(iterations=2, prior_weight=0.3))


if __name__ == "__main__":
    common.main(__doc__, "uci", SPECS, run, quick, tables)
