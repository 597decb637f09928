"""Measured systems with controls: actuator, ball and beam, dryer, cascaded tanks, by `ProDSSM()` without arguments.

It is trained on the first half of a record (tanks: the estimation record). On the test half it filters the first 50 samples
and runs free to the end: only the controls are given. Scored are the RMSE of the mean, negative log likelihood and CRPS in the
units of the data, and the coverage of 95 % intervals, beside ARX by least squares and the mean of the training half. Defaults
are chosen on simulated systems (defaults.py); these data are seen once, afterwards.

    python experiments/sysid.py      resumes; rows go to results/sysid.csv
    python experiments/sysid.py --quick
"""

import itertools
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import common
import numpy as np

import prodssm as ps
from prodssm.baselines.arx import ARX
from prodssm.beliefs.mixture_scores import mixture_crps, mixture_log_prob, mixture_quantile
from prodssm.datasets import sysid

NAME = "sysid"
FILTERED = 50  # samples of the test half that the filter sees


@dataclass(frozen=True)
class Spec:
    """One row."""

    data: str
    model: str


SPECS = [Spec(data, model) for data, model in itertools.product(sysid.NAMES, ("prodssm", "arx"))]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table; NaN if the forecast overflows."""
    data, begin = sysid.load(spec.data), time.monotonic()
    truth = np.asarray(data.test.y, float)[FILTERED:]
    scores, chosen = dict.fromkeys(("rmse", "nll", "crps", "coverage"), float("nan")), ""
    try:
        means, stds, chosen = forecast(spec.model, data, len(truth), settings)
        low, high = (mixture_quantile(p, means, stds) for p in (0.025, 0.975))
        logs = -0.5 * (((truth - means) / stds) ** 2 + np.log(2 * np.pi * stds**2)).sum(axis=-1)
        scores = {
            "rmse": ps.metrics.rmse(truth, means.mean(axis=0)),
            "nll": -float(mixture_log_prob(logs).mean()),
            "crps": float(mixture_crps(truth, means, stds).mean()),
            "coverage": float(((low <= truth) & (truth <= high)).mean()),
        }
    except FloatingPointError as error:
        common.say(f"{spec}: {error}")
    constant = ps.metrics.rmse(truth, np.full_like(truth, np.asarray(data.train.y, float).mean()))
    ends = {"constant_rmse": round(constant, 4), "chosen": chosen}
    ends |= {"seconds": round(time.monotonic() - begin, 1), "commit": common.commit()}
    return asdict(spec) | {name: round(value, 4) for name, value in scores.items()} | ends


def forecast(model: str, data: Any, steps: int, settings: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, str]:
    """Means and standard deviations of the members, (member, step, output), of a free run; and what was chosen."""
    past, u = data.test.window(0, FILTERED), data.test.u[FILTERED:]
    if model == "arx":
        arx = ARX.fit([data.train])
        mean, cov = arx.forecast(past, steps, u)
        return mean[None], np.sqrt(np.diagonal(cov, axis1=1, axis2=2))[None], f"{len(arx.past)} lags"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = ps.ProDSSM(progress=False, **settings).fit(data.train)
    ahead = fitted.forecast(past, steps, u=u)
    members = getattr(ahead, "members", (ahead,))
    means, stds = (np.stack([np.asarray(getattr(each, part), float) for each in members]) for part in ("mean", "std"))
    chosen = fitted.choices_
    return means, stds, f"{chosen.latent_dim} states; {chosen.emission}; hidden {list(chosen.hidden)}"


def tables() -> dict[str, str]:
    """The table of docs/results.md."""
    body = []
    for name in sysid.NAMES:
        found = {row["model"]: row for row in common.rows(NAME) if row["data"] == name}
        if len(found) == 2:
            ours, arx = found["prodssm"], found["arx"]
            cells = [cell for column in ("rmse", "crps", "coverage") for cell in (ours[column], arx[column])]
            body.append([name, *cells, ours["constant_rmse"], ours["seconds"], ours["chosen"]])
    head = ["data", "RMSE", "ARX", "CRPS", "ARX", "coverage of 95 %", "ARX", "RMSE of the mean", "seconds", "chosen"]
    return {"sysid": common.markdown(head, body)}


QUICK = [(Spec("tanks", "prodssm"), {"recipe": ps.Recipe(iterations=2, free_run=2)})]

if __name__ == "__main__":
    common.main(__file__)
