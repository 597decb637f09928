"""Real systems with controls: actuator, ball and beam, dryer, cascaded tanks, all with the same settings.

Trained on the first half (tanks: the estimation record). On the test half the model filters the first 50 samples, then runs
free to the end: only the controls are given. Printed are RMSE and negative log likelihood of the free run in the units of the
data and the coverage of its 95 % intervals, beside a linear state-space model fitted by the same library (`hidden=()`).

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
SETTINGS: dict[str, Any] = {
    "latent_dim": 4,
    "emission": "linear",
    "residual": True,
    "horizons": (1, 5, 20, 50),
    "stride": 10,
    "window": 100,
    "batch": 4,
}
WARM_UP = 50  # samples of the test half that the filter may see


def evaluate(name: str, kind: str, seed: int, **settings: Any) -> dict[str, Any]:
    """Train on one data set and run free on its test half."""
    data = sysid.load(name)
    begin = time.monotonic()
    model = ps.ProDSSM(hidden=KINDS[kind], seed=seed, progress=False, **(SETTINGS | settings)).fit(data.train)
    seconds = time.monotonic() - begin
    test = data.test
    assert test.u is not None
    steps = len(test) - WARM_UP
    ahead = model.forecast(test.window(0, WARM_UP), steps, u=test.u[WARM_UP:])
    y, mean, std = (np.asarray(part, float) for part in (test.y[WARM_UP:], ahead.mean, ahead.std))
    return {
        "data": name,
        "kind": kind,
        "seed": seed,
        "rmse": round(ps.metrics.rmse(y, mean), 5),
        "nll": round(ps.metrics.nll(y, mean, std**2), 4),
        "coverage": round(ps.metrics.coverage(y, mean, std), 4),
        "one_step": round(model.score(test), 4),
        "iterations": model.history_.iterations[-1],
        "prior_weight": model.prior_weight,
        "trusted_steps": model.check_.trusted,
        "seconds": round(seconds, 1),
        "commit": common.commit(),
    }


def main() -> None:
    """Run what is missing, print the table."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    if chosen.quick:
        try:
            common.say(evaluate("dryer", "network", 0, iterations=2))
        except FileNotFoundError as error:
            common.say(f"skipped: {error}")
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
