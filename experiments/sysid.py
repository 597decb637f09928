"""Measured systems with controls: actuator, ball and beam, dryer, cascaded tanks, all with the same settings.

Four models (`n_estimators=4`) are trained on the first half of a record (tanks: the estimation record), with the last fifth of
it as validation data. On the test half they filter the first 50 samples and run free to the end: only the controls are given.
Scored are the RMSE of the median, negative log likelihood and CRPS in the units of the data, and the coverage of 95 %
intervals, beside linear state-space models that the same library trains (`hidden=()`, from subspace identification) and beside
the mean of the training half.

    python experiments/sysid.py      resumes; rows go to results/sysid.csv
    python experiments/sysid.py --quick
"""

import itertools
import time
from dataclasses import asdict, dataclass
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.beliefs.mixture import mixture_crps
from prodssm.datasets import sysid

FILTERED = 50  # samples of the test half that the filter sees
RECIPE = ps.Recipe(horizons=(1, 5, 20, 50), stride=10, window=100, batch=4, validation=0.2)


@dataclass(frozen=True)
class Spec:
    """One row."""

    data: str
    hidden: tuple[int, ...]
    n_estimators: int = 4


SPECS = [Spec(data, hidden) for data, hidden in itertools.product(sysid.NAMES, ((50,), ()))]


def run(spec: Spec, recipe: ps.Recipe = RECIPE) -> dict[str, Any]:
    """One row of the table; NaN if all models diverge."""
    data, begin = sysid.load(spec.data), time.monotonic()
    model = ps.ProDSSM(
        latent_dim=4,
        hidden=spec.hidden,
        residual=True,
        emission="linear",
        method=ps.Moments(order=1),
        recipe=recipe,
        n_estimators=spec.n_estimators,
        progress=False,
    )
    assert data.test.u is not None
    past, truth = data.test.window(0, FILTERED), np.asarray(data.test.y, float)[FILTERED:]
    scores = dict.fromkeys(("rmse", "nll", "crps", "coverage"), float("nan"))
    try:
        ahead = model.fit(data.train).forecast(past, len(truth), u=data.test.u[FILTERED:])
        members = getattr(ahead, "members", (ahead,))
        means, stds = (np.stack([np.asarray(getattr(each, part), float) for each in members]) for part in ("mean", "std"))
        low, high = (np.asarray(end, float) for end in ahead.interval(0.95))
        scores = {
            "rmse": ps.metrics.rmse(truth, np.asarray(ahead.quantile(0.5), float)),
            "nll": -float(np.asarray(ahead.log_prob(truth), float).mean()),
            "crps": float(mixture_crps(truth, means, stds).mean()),
            "coverage": float(((low <= truth) & (truth <= high)).mean()),
        }
    except FloatingPointError as error:
        common.say(f"{spec}: {error}")
    constant = ps.metrics.rmse(truth, np.full_like(truth, np.asarray(data.train.y, float).mean()))
    ends = {"constant_rmse": round(constant, 4), "seconds": round(time.monotonic() - begin, 1), "commit": common.commit()}
    return asdict(spec) | {name: round(value, 4) for name, value in scores.items()} | ends


def tables() -> dict[str, str]:
    """The table of docs/results.md."""
    body = []
    for name in sysid.NAMES:
        found = {row["hidden"]: row for row in common.rows("sysid") if row["data"] == name}
        if len(found) == 2:
            ours, linear = found["(50,)"], found["()"]
            cells = [cell for column in ("rmse", "crps", "coverage") for cell in (ours[column], linear[column])]
            body.append([name, *cells, ours["constant_rmse"], ours["seconds"]])
    head = ["data", "RMSE", "linear", "CRPS", "linear", "coverage of 95 %", "linear", "RMSE of the mean", "seconds"]
    return {"sysid": common.markdown(head, body)}


def quick() -> Any:
    """A smoke run."""
    return run(Spec("tanks", (5,), 2), ps.Recipe(iterations=2, horizons=(1, 3), stride=10, window=30, batch=2, validation=0.2))


if __name__ == "__main__":
    common.main(__doc__, "sysid", SPECS, run, quick, tables)
