"""Real systems with controls: actuator, ball and beam, dryer, cascaded tanks, all with the same settings.

Trained on the first half (tanks: the estimation record). On the test half the model filters the first 50 samples, then runs
free to the end: only the controls are given. Printed are RMSE and negative log likelihood of the free run in the units of the
data and the coverage of its 95 % intervals, beside a linear state-space model fitted by the same library (`hidden=()`).

The settings are chosen on the training halves alone: each candidate learns the first three quarters of them and runs free
over the last quarter, with three seeds, and the one with the smallest mean negative log likelihood per standard unit over the
four sets wins, where a run that left its data counts as 5.

    python experiments/sysid.py --select   resumes; rows go to results/sysid_settings.csv
    python experiments/sysid.py            resumes; rows go to results/sysid.csv
    python experiments/sysid.py --quick
"""

import time
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
}
WARM_UP = 50  # samples of the test half that the filter may see


LOST = 5.0  # what a run that left its data counts
FAR: dict[str, Any] = {"horizons": (1, 10, 50, 100), "stride": 20, "window": 200, "batch": 2}
HELD_OUT: dict[str, Any] = {"validation": 0.2, "patience": 200}
RANDOM, CALM = {"linear_start": False}, {"prior_weight": 1.0, "learning_rate": 0.005}
CANDIDATES: dict[str, dict[str, Any]] = {
    "random start": USUAL | HELD_OUT | RANDOM,
    "linear start": USUAL | HELD_OUT,
    "linear start, weight 1, rate 0.005": USUAL | HELD_OUT | CALM,
    "random start, to 100": USUAL | FAR | HELD_OUT | RANDOM,
    "linear start, to 100": USUAL | FAR | HELD_OUT,
}
SEEDS = 3
SETTINGS = CANDIDATES["random start"]  # until --select has run to its end


def run_free(model: ps.ProDSSM, test: ps.Series) -> dict[str, float]:
    """Filter the first samples, then predict all others from the controls."""
    assert test.u is not None
    try:
        ahead = model.forecast(test.window(0, WARM_UP), len(test) - WARM_UP, u=test.u[WARM_UP:])
    except FloatingPointError:
        return {"rmse": np.inf, "nll": np.inf, "coverage": 0.0}
    y, mean, std = (np.asarray(part, float) for part in (test.y[WARM_UP:], ahead.mean, ahead.std))
    return {
        "rmse": round(ps.metrics.rmse(y, mean), 5),
        "nll": round(ps.metrics.nll(y, mean, std**2), 4),
        "coverage": round(ps.metrics.coverage(y, mean, std), 4),
    }


def fit(train: ps.Series, kind: str, seed: int, **settings: Any) -> tuple[ps.ProDSSM, float]:
    """A model, and how many seconds it took."""
    begin = time.monotonic()
    model = ps.ProDSSM(hidden=KINDS[kind], seed=seed, progress=False, **settings).fit(train)
    return model, round(time.monotonic() - begin, 1)


def evaluate(name: str, kind: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Train on one data set and run free on its test half."""
    data = sysid.load(name)
    model, seconds = fit(data.train, kind, seed, **(SETTINGS | settings))
    return {
        "data": name,
        "kind": kind,
        "seed": seed,
        **run_free(model, data.test),
        "one_step": round(model.score(data.test), 4),
        "iterations": model.history_.iterations[-1],
        "prior_weight": model.prior_weight,
        "trusted_steps": model.check_.trusted,
        "seconds": seconds,
        "commit": common.commit(),
    }


def select() -> None:
    """Score every candidate on the training halves, print the table."""
    table = common.Table("sysid_settings", ("candidate", "data", "seed"))
    for seed in range(SEEDS):
        for candidate, settings in CANDIDATES.items():
            for name in sysid.NAMES:
                if not table.has(candidate=candidate, data=name, seed=seed):
                    table.add({"candidate": candidate, "data": name, "seed": seed, **quarter(name, seed, settings)})
    for candidate in CANDIDATES:
        scores = [float(row["standard_nll"]) for row in table.rows if row["candidate"] == candidate]
        common.say(f"{candidate:40} {common.mean_and_error(scores)} of {len(scores)}")


def quarter(name: str, seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Train on three quarters of the training half of one data set and run free on the last."""
    train = sysid.load(name).train
    split = 3 * len(train) // 4
    model, seconds = fit(train.window(0, split), "network", seed, **settings)
    found = run_free(model, train.window(split - WARM_UP, len(train) - split + WARM_UP))
    standard = min(found["nll"] - float(np.log(np.asarray(train.y).std())), LOST)
    return {"standard_nll": round(standard, 4), **found, "seconds": seconds, "commit": common.commit()}


def main() -> None:
    """Run what is missing, print the table."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--select", action="store_true", help="choose the settings on the training halves")
    chosen = parser.parse_args()
    if chosen.select:
        select()
        return
    if chosen.quick:
        common.smoke(lambda: evaluate("dryer", "network", 0, iterations=2))
        return
    table = common.Table("sysid", ("data", "kind", "seed"))
    for seed in range(chosen.seeds):
        for name in sysid.NAMES:
            for kind in KINDS:
                if not table.has(data=name, kind=kind, seed=seed):
                    table.add(evaluate(name, kind, seed))
    for name in sysid.NAMES:
        for kind in KINDS:
            rows = [row for row in table.rows if (row["data"], row["kind"]) == (name, kind)]
            found = {key: common.mean_and_error(float(row[key]) for row in rows) for key in ("rmse", "nll", "coverage")}
            common.say(f"{name:9} {kind:8} " + "  ".join(f"{key} {value}" for key, value in found.items()))


if __name__ == "__main__":
    main()
