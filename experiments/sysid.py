"""Real systems with controls: actuator, ball and beam, dryer, cascaded tanks, all with the same settings.

Three models with different seeds are trained on the first half (tanks: the estimation record) and mixed. On the test half they
filter the first 50 samples, then run free to the end: only the controls are given. Printed are RMSE and negative log likelihood
of the free run in the units of the data and the coverage of its 95 % intervals, beside linear state-space models fitted and
mixed by the same library (`hidden=()`).

The settings are chosen on the training halves alone: each candidate learns the first three quarters of them and runs free
over the last quarter, and the one with the smallest mean negative log likelihood per standard unit over the four sets wins,
where a run that left its data counts as 5. (Where each model holds out another fifth there are five of them, not three. Two
more candidates, with a linear start alone, were given up after two sets, and one cut the series into five; their rows are in
the file.)

    python experiments/sysid.py --select   resumes; rows go to results/sysid_settings.csv
    python experiments/sysid.py            resumes; rows go to results/sysid.csv
    python experiments/sysid.py --quick
"""

import time
from collections.abc import Sequence
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.datasets import sysid

KINDS = {"network": (50,), "linear": ()}
USUAL: dict[str, Any] = {
    "latent_dim": 4,
    "emission": "linear",
    "residual": True,
    "horizons": (1, 5, 20, 50),
    "stride": 10,
    "window": 100,
    "batch": 4,
    "order": 1,
}
WARM_UP = 50  # samples of the test half that the filter may see


LOST = 5.0  # what a run that left its data counts
HELD_OUT: dict[str, Any] = {"validation": 0.2, "patience": 200}
RANDOM, CALM = {"linear_start": False}, {"prior_weight": 1.0, "learning_rate": 0.005}
FAR, BOTH = {"validation_horizons": (50,)}, {"restarts": 2}
CANDIDATES: dict[str, dict[str, Any]] = {
    "random start": USUAL | HELD_OUT | RANDOM,
    "random start, weight 1, rate 0.005": USUAL | HELD_OUT | RANDOM | CALM,
    "random start, judged at 50 steps": USUAL | HELD_OUT | RANDOM | FAR,
    "the better start, weight 1, rate 0.005": USUAL | HELD_OUT | CALM | BOTH,
    # These were added when the test halves had been scored once with the first candidate.
    "random start, 1000 iterations": USUAL | HELD_OUT | RANDOM | {"iterations": 1000},
    "random start, another fifth held out by each": USUAL | {"patience": 200} | RANDOM | {"folds": 5},
    "random starts, the best of four": USUAL | HELD_OUT | RANDOM | {"restarts": 4},
    "random start, weight 1": USUAL | HELD_OUT | RANDOM | {"prior_weight": 1.0},
}
MEMBERS = 3
SETTINGS = CANDIDATES["random start"]  # as --select found


def run_free(models: Sequence[ps.ProDSSM], test: ps.Series) -> dict[str, float]:
    """Filter the first samples, then predict all others from the controls: their mixture, and what members do alone."""
    assert test.u is not None
    seen, rest, u = test.window(0, WARM_UP), len(test) - WARM_UP, test.u[WARM_UP:]
    try:
        found = scores(test, ps.mixture.forecast(models, seen, rest, u=u))  # the normal of the mixture's moments
        alone = [scores(test, model.forecast(seen, rest, u=u)) for model in models]
    except FloatingPointError:
        return {"rmse": np.inf, "nll": np.inf, "coverage": 0.0, "alone_rmse": np.inf, "alone_nll": np.inf}
    return found | {f"alone_{key}": round(float(np.mean([each[key] for each in alone])), 4) for key in ("rmse", "nll")}


def scores(test: ps.Series, ahead: Any) -> dict[str, float]:
    """How good a forecast was."""
    y, mean, std = (np.asarray(part, float) for part in (test.y[WARM_UP:], ahead.mean, ahead.std))
    return {
        "rmse": round(ps.metrics.rmse(y, mean), 5),
        "nll": round(ps.metrics.nll(y, mean, std**2), 4),
        "coverage": round(ps.metrics.coverage(y, mean, std), 4),
    }


def fit(train: ps.Series, kind: str, folds: int = 1, **settings: Any) -> tuple[list[ps.ProDSSM], float]:
    """Models, and how many seconds they took. With several folds each model is judged by another stretch, which it misses."""
    begin = time.monotonic()

    def member(n: int) -> ps.ProDSSM:
        model = ps.ProDSSM(hidden=KINDS[kind], seed=n, progress=False, **settings)
        if folds == 1:
            return model.fit(train)
        start, end = n * len(train) // folds, (n + 1) * len(train) // folds
        known = train.y.at[start:end].set(np.nan)
        return model.fit(ps.Series(known, train.u), held_out=train.window(start, end - start))

    return [member(n) for n in range(max(MEMBERS, folds))], round(time.monotonic() - begin, 1)


def evaluate(name: str, kind: str, **settings: Any) -> dict[str, Any]:
    """Train on one data set and run free on its test half."""
    data = sysid.load(name)
    models, seconds = fit(data.train, kind, **(SETTINGS | settings))
    return {
        "data": name,
        "kind": kind,
        **run_free(models, data.test),
        "one_step": round(float(np.mean([model.score(data.test) for model in models])), 4),
        "iterations": sum(model.history_.iterations[-1] for model in models),
        "trusted_steps": min(model.check_.trusted for model in models),
        "seconds": seconds,
        "commit": common.commit(),
    }


def select() -> None:
    """Score every candidate on the training halves, print the table."""
    table = common.Table("sysid_settings", ("candidate", "data"))
    for candidate, settings in CANDIDATES.items():
        for name in sysid.NAMES:
            if not table.has(candidate=candidate, data=name):
                table.add({"candidate": candidate, "data": name, **quarter(name, settings)})
    for candidate in CANDIDATES:
        found = [float(row["standard_nll"]) for row in table.rows if row["candidate"] == candidate]
        common.say(f"{candidate:40} {common.mean_and_error(found)} of {len(found)}")


def quarter(name: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Train on three quarters of the training half of one data set and run free on the last."""
    train = sysid.load(name).train
    split = 3 * len(train) // 4
    models, seconds = fit(train.window(0, split), "network", **settings)
    found = run_free(models, train.window(split - WARM_UP, len(train) - split + WARM_UP))
    standard = min(found["nll"] - float(np.log(np.asarray(train.y).std())), LOST)
    return {"standard_nll": round(standard, 4), **found, "seconds": seconds, "commit": common.commit()}


def main() -> None:
    """Run what is missing, print the table."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--select", action="store_true", help="choose the settings on the training halves")
    chosen = parser.parse_args()
    if chosen.select:
        select()
        return
    if chosen.quick:
        common.smoke(lambda: evaluate("dryer", "network", iterations=2))
        return
    table = common.Table("sysid", ("data", "kind"))
    for name in sysid.NAMES:
        for kind in KINDS:
            if not table.has(data=name, kind=kind):
                table.add(evaluate(name, kind))
    for row in table.rows:
        common.say(f"{row['data']:9} {row['kind']:8} rmse {row['rmse']}  nll {row['nll']}  coverage {row['coverage']}")


if __name__ == "__main__":
    main()
