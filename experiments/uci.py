"""Regression on eight UCI sets with deep stochastic layers: the paper's UCI tables, with the library's defaults.

For each set and split `DeepStochasticRegressor` learns from the training rows: five members, each of which holds out another
fifth of them, and whose mixture predicts. Scored are negative log likelihood and root mean squared error of the test rows in
the units of the target. "protein" has five published splits; later ones continue their stream. The measurement noise that is
learned has a floor of 1e-6 of the target's variance, the process noise one of 1e-6 of the inputs'.

The regressor's defaults were chosen on held-out training rows alone: `--select` trains each candidate on four fifths of the
training rows of the first split of four sets with two prior weights. The mean log density of the other fifth, at the better
prior weight, is its score. Differences below 0.01 are chance; of the two cheapest candidates that close to the best the
defaults are the one that averages its last parameters, which took a tenth longer. `--members` compares numbers of members: it
trains on nine tenths of the training rows and scores the other tenth, on which nothing was chosen.

    python experiments/uci.py --select                        resumes; rows go to results/uci_settings.csv
    python experiments/uci.py --members --splits 0-1          resumes; rows go to results/uci_members.csv
    python experiments/uci.py [--sets boston,energy] [--weights local,global,point] [--splits 0-19]
                                                              resumes; rows go to results/uci.csv
    python experiments/uci.py --passes 250 --refine 4000 [--settle 5000] --sets naval --splits 0
                                                              longer runs; rows go to results/uci_long.csv, and what is needed
                                                              to resume in the middle of one to the folder of --checkpoints
    python experiments/uci.py --quick
"""

import itertools
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import common
import numpy as np

from prodssm.datasets import uci
from prodssm.regressor import DeepStochasticRegressor

PAPER = {  # NLL and RMSE of the Det. rows and of DSSM
    "local": {
        "boston": (2.33, 2.99),
        "energy": (0.43, 0.41),
        "concrete": (3.00, 5.24),
        "wine": (0.92, 0.63),
        "kin8nm": (-1.30, 0.07),
        "power": (2.79, 3.99),
        "naval": (-5.52, 0.01),
        "protein": (2.76, 4.35),
    },
    "global": {
        "boston": (2.34, 3.05),
        "energy": (0.44, 0.42),
        "concrete": (2.99, 5.24),
        "wine": (0.92, 0.63),
        "kin8nm": (-1.27, 0.07),
        "power": (2.79, 4.01),
        "naval": (-4.75, 0.01),
        "protein": (2.82, 4.57),
    },
    "point": {
        "boston": (2.37, 3.26),
        "energy": (0.70, 0.87),
        "concrete": (2.92, 5.12),
        "wine": (0.93, 0.63),
        "kin8nm": (-1.22, 0.08),
        "power": (2.80, 4.07),
        "naval": (-4.45, 0.01),
        "protein": (2.76, 4.45),
    },
}


def learn(name: str, split: int, weights: str, curves_in: str | None = None, **settings: Any) -> dict[str, Any]:
    """One row of the table; `curves_in` says where the flatness of its validation curves is written down."""
    data, (train, test) = uci.load(name), uci.split(name, split)
    model = DeepStochasticRegressor(weights=weights, random_state=split, **settings)
    model.fit(data.x[train], data.y[train])
    # Of all runs that led here, also those that a checkpoint remembers.
    seconds = sum(history.seconds[-1] for _, history in model.trials_)
    if curves_in is not None:
        curves(curves_in, name, split, weights, model)
    error = model.predict(data.x[test]) - data.y[test]
    return {
        "set": name,
        "split": split,
        "weights": weights,
        "nll": round(-float(model.log_prob(data.x[test], data.y[test]).mean()), 5),
        "rmse": round(float(np.sqrt((error**2).mean())), 6),
        "prior_weight": model.prior_weight_,
        "iterations": model.n_iter_,
        "members": len(model.ssms_),
        "steps": model.steps,
        "order": model.order,
        "batch_size": model.batch_size,
        "learning_rate": model.learning_rate,
        "seconds": round(seconds, 1),
        "commit": common.commit(),
    }


def longer(name: str, split: int, weights: str, asked: Any) -> dict[str, Any]:
    """Settings of a run that shows all rows more often, with the prior weight that the run with defaults chose."""
    if asked.passes is None:
        return {}
    usual = common.Table("uci", ("set", "split", "weights")).rows
    chosen = next((row for row in usual if (row["set"], row["split"], row["weights"]) == (name, str(split), weights)), None)
    if chosen is None:
        raise SystemExit(f"--passes takes the prior weight of the usual run: run {name}, split {split} without it first")
    iterations = -(-asked.passes * len(uci.split(name, split)[0]) // DeepStochasticRegressor().batch_size)
    settings = {"prior_weight": float(chosen["prior_weight"]), "iterations": iterations, "settle": asked.settle}
    return settings | ({} if asked.refine is None else {"refine": asked.refine})


def curves(file: str, name: str, split: int, weights: str, model: DeepStochasticRegressor) -> None:
    """How flat the validation curve of each run was at its end: what its last fifth gained, in nats per standard unit."""
    table = common.Table(file, ("set", "split", "weights", "run"))
    for run, (prior_weight, history) in enumerate(model.trials_):
        found, last = np.asarray(history.validation, float), history.iterations[-1]
        if found.size and not table.has(set=name, split=split, weights=weights, run=run):
            early = found[np.asarray(history.iterations) <= 0.8 * last]
            row = {
                "set": name,
                "split": split,
                "weights": weights,
                "run": run,
                "prior_weight": prior_weight,
                "iterations": last,
            }
            row |= {"best_iteration": history.iterations[int(found.argmax())], "best": round(float(found.max()), 5)}
            gain = found.max() - early.max() if early.size else np.nan
            table.add(row | {"gain": round(float(gain), 5), "stopped": history.stopped.split(";")[0]})


LONG: dict[str, Any] = {"order": 1, "iterations": 3000, "patience": 600, "batch_size": 64}
# Before the mean of the last parameters was kept, nine more were scored: results/uci_settings_first.csv.
CANDIDATES: dict[str, dict[str, Any]] = {
    "order 1, 3000 iterations, averaged": LONG,
    "order 1, 3000 iterations, batches of 32, averaged": LONG | {"batch_size": 32},
    # Added when the test rows had been scored with the one before.
    "order 1, 10000 iterations, batches of 32, averaged": LONG | {"batch_size": 32, "iterations": 10_000, "patience": 2000},
}
MEMBERS = (1, 5)
SMALL = ("boston", "energy", "concrete", "wine")


def select() -> None:
    """Score every candidate on held-out training rows, print the table."""
    table = common.Table("uci_settings", ("candidate", "set", "prior_weight"))
    for candidate, settings in CANDIDATES.items():
        for name in SMALL:
            for prior_weight in (0.1, 0.3):
                if not table.has(candidate=candidate, set=name, prior_weight=prior_weight):
                    table.add(held_out(name, candidate, prior_weight, settings))
    for candidate in CANDIDATES:
        rows = [row for row in table.rows if row["candidate"] == candidate]
        best = [max(float(row["log_density"]) for row in rows if row["set"] == name) for name in SMALL]
        common.say(f"{candidate:50} {np.mean(best):.4f}")


def nested(splits: Iterable[int]) -> None:
    """Score numbers of members on training rows that nothing was chosen on, print the table."""
    table = common.Table("uci_members", ("set", "split", "members"))
    for split in splits:
        for name in SMALL:
            for members in MEMBERS:
                if not table.has(set=name, split=split, members=members):
                    table.add(nested_score(name, split, members))
    for members in MEMBERS:
        mine = [row for row in table.rows if row["members"] == str(members)]
        scores = {name: [float(row["standard_nll"]) for row in mine if row["set"] == name] for name in SMALL}
        common.say(f"members {members}: " + "  ".join(f"{name} {common.mean_and_error(scores[name])}" for name in SMALL))


def nested_score(name: str, split: int, members: int) -> dict[str, Any]:
    """How a mixture that learned nine tenths of the training rows of a split predicts the other tenth."""
    data, (train, _) = uci.load(name), uci.split(name, split)
    inner, outer = np.split(train, [round(0.9 * len(train))])
    begin = time.monotonic()
    model = DeepStochasticRegressor(members=members, random_state=split).fit(data.x[inner], data.y[inner])
    nll = -model.log_prob(data.x[outer], data.y[outer]).mean() - np.log(data.y[inner].std())
    return {
        "set": name,
        "split": split,
        "members": members,
        "standard_nll": round(float(nll), 5),
        "prior_weight": model.prior_weight_,
        "iterations": model.n_iter_,
        "seconds": round(time.monotonic() - begin, 1),
        "commit": common.commit(),
    }


def held_out(name: str, candidate: str, prior_weight: float, settings: dict[str, Any]) -> dict[str, Any]:
    """The best log density, in standard units, of held-out training rows."""
    data, (train, _) = uci.load(name), uci.split(name, 0)
    begin = time.monotonic()
    model = DeepStochasticRegressor(prior_weight=prior_weight, members=1, **settings).fit(data.x[train], data.y[train])
    history = model.history_
    return {
        "candidate": candidate,
        "set": name,
        "prior_weight": prior_weight,
        "log_density": round(max(history.validation), 5),
        "iterations": history.iterations[int(np.argmax(history.validation))],
        "seconds": round(time.monotonic() - begin, 1),
        "commit": common.commit(),
    }


def numbers(text: str) -> list[int]:
    """Numbers such as "0-4,7"."""
    spans = [[int(end) for end in part.split("-")] for part in text.split(",")]
    return [n for span in spans for n in range(span[0], span[-1] + 1)]


def main() -> None:
    """Run what is missing, print the table."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--sets", default=",".join(uci.NAMES))
    parser.add_argument("--weights", default="local,global,point")
    parser.add_argument("--splits", default="0-19")
    parser.add_argument("--passes", type=int, help="show all rows so often, instead of as often as is usual")
    parser.add_argument("--refine", type=int, help="iterations with weights drawn once, with --passes")
    parser.add_argument("--settle", type=int, help="iterations at a hundredth of the learning rate at the end, with --passes")
    parser.add_argument("--checkpoints", help="a folder that keeps unfinished runs; otherwise one that is killed starts again")
    parser.add_argument("--select", action="store_true", help="compare settings on held-out training rows")
    parser.add_argument("--members", action="store_true", help="compare numbers of members on training rows")
    asked = parser.parse_args()
    if asked.select:
        select()
        return
    if asked.members:
        nested(numbers(asked.splits))
        return
    if asked.quick:
        common.smoke(lambda: learn("boston", 0, "local", iterations=2, prior_weight=0.3, members=2))
        return
    if asked.passes is None and (asked.refine, asked.settle) != (None, None):
        parser.error("--refine and --settle are for runs with --passes")
    chosen = {name: getattr(asked, name) or 0 for name in ("passes", "refine", "settle")}
    file, long = ("uci", {}) if asked.passes is None else ("uci_long", chosen)
    table = common.Table(file, ("set", "split", "weights", *long))
    sets, kinds = asked.sets.split(","), asked.weights.split(",")
    for split, name in itertools.product(numbers(asked.splits), sets):
        # Weights that are drawn once are learned as redrawn ones first: that part is not learned again for them.
        with tempfile.TemporaryDirectory() as passing:
            folder = Path(asked.checkpoints or passing)
            folder.mkdir(exist_ok=True)
            for weights in kinds:
                if not table.has(set=name, split=split, weights=weights, **long):
                    kept = None if weights == "point" else folder / f"{name}.{split}.safetensors"
                    settings = longer(name, split, weights, asked)
                    table.add(learn(name, split, weights, f"{file}_curves", checkpoint=kept, **settings) | long)
    for name in sets:
        for weights in kinds:
            rows = [row for row in table.rows if (row["set"], row["weights"]) == (name, weights)]
            nll, rmse = (common.mean_and_error(float(row[score]) for row in rows) for score in ("nll", "rmse"))
            paper = PAPER[weights][name]
            common.say(f"{name:8} {weights:6} n={len(rows):2} NLL {nll} (paper {paper[0]})  RMSE {rmse} (paper {paper[1]})")


if __name__ == "__main__":
    main()
