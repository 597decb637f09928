"""How good is `ProDSSM()` without arguments, next to ARX, on the development suite (systems.py)?

Odd systems and those of more_systems.py choose defaults, even systems report them (`--report`). Scored is the free run: RMSE
and CRPS in standard deviations of the training data, pooled over outputs and series, and the coverage of 95 % intervals.

    python experiments/defaults.py             systems that choose; resumes; rows go to results/defaults.csv
    python experiments/defaults.py --report    even systems; --jobs 2 makes two rows at a time
    python experiments/defaults.py --quick
"""

import time
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import common
import numpy as np
import systems
from more_systems import MORE

import prodssm as ps
from prodssm.baselines.arx import ARX
from prodssm.beliefs.mixture_scores import mixture_crps, mixture_quantile

NAME = "defaults"
WORSE, BETTER = 1.05, 0.9  # of the RMSE of ARX: at most so much on 80 % of the systems, below on half of them
COVERED = (0.85, 0.99)
CHOOSE = (*systems.CHOOSE, *MORE)


@dataclass(frozen=True)
class Spec:
    """One row."""

    system: int
    seed: int
    model: str


def specs(numbers: tuple[int, ...]) -> list[Spec]:
    """All rows of these systems."""
    return [Spec(n, seed, model) for n in numbers for seed in systems.SEEDS for model in ("arx", "prodssm")]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table; a forecast that overflows has NaN scores."""
    task, begin = systems.load(spec.system, spec.seed), time.monotonic()
    scores, chosen = dict.fromkeys(("rmse", "crps", "coverage"), float("nan")), ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found, chosen = forecasts(task, spec.model, settings)
            scores = score(task, found)
    except FloatingPointError as error:
        common.say(f"{spec}: {error}")
    row = asdict(spec) | {name: f"{value:.4f}" for name, value in scores.items()}
    return row | {"chosen": chosen} | provenance(begin)


def provenance(begin: float) -> dict[str, Any]:
    """Time and commit."""
    return {"seconds": round(time.monotonic() - begin, 1), "commit": common.commit()}


Moments = list[tuple[np.ndarray, np.ndarray]]


def forecasts(task: systems.Task, model: str, settings: dict[str, Any]) -> tuple[Moments, str]:
    """Means and standard deviations of the members, (member, step, output), of each test series; and what was chosen."""
    ahead = list(zip(task.past, task.u, task.dt, task.truth, strict=True))
    if model == "arx":
        arx = ARX.fit(task.train)
        found = [arx.forecast(past, len(truth), u) for past, u, _, truth in ahead]
        lags = f"{len(arx.past)} lags"
        return [(mean[None], np.sqrt(np.diagonal(cov, axis1=1, axis2=2))[None]) for mean, cov in found], lags
    fitted = ps.ProDSSM(progress=False, **settings).fit(task.train if len(task.train) > 1 else task.train[0])
    answers = []
    for past, u, dt, truth in ahead:
        answer = fitted.forecast(past, len(truth), u=u, dt=dt)
        members = getattr(answer, "members", (answer,))
        answers.append(tuple(np.stack([np.asarray(getattr(m, part), float) for m in members]) for part in ("mean", "std")))
    chosen = fitted.choices_
    units = f"{chosen.hidden[0]} hidden units" if chosen.hidden else "no hidden layer"
    return answers, f"{chosen.latent_dim} states; {chosen.emission}; {units}; members: {chosen.n_estimators}"


def score(task: systems.Task, found: list[tuple[np.ndarray, np.ndarray]]) -> dict[str, float]:
    """RMSE, CRPS and coverage of the mixture of the members, pooled."""
    scale = np.nanstd(np.concatenate([np.asarray(each.y, float) for each in task.train]), axis=0)
    errors, crps, covered = [], [], []
    for (means, stds), truth in zip(found, task.truth, strict=True):
        seen = np.isfinite(truth)
        low, high = (mixture_quantile(p, means, stds) for p in (0.025, 0.975))
        errors.append(((means.mean(axis=0) - truth) / scale)[seen])
        crps.append((mixture_crps(np.where(seen, truth, 0.0), means, stds) / scale)[seen])
        covered.append(((truth >= low) & (truth <= high))[seen])
    pooled = [np.concatenate(part) for part in (errors, crps, covered)]
    return {
        "rmse": float(np.sqrt((pooled[0] ** 2).mean())),
        "crps": float(pooled[1].mean()),
        "coverage": float(pooled[2].mean()),
    }


def tables() -> dict[str, str]:
    """The tables of both halves."""
    return {"defaults, chosen on": table(CHOOSE), "defaults, reported": table(systems.REPORT)}


def table(numbers: tuple[int, ...]) -> str:
    """Means over seeds of each system, next to ARX, and the promised bounds."""
    found: dict[tuple[int, str], list[dict[str, str]]] = {}
    for row in common.rows(NAME):
        found.setdefault((int(row["system"]), row["model"]), []).append(row)
    there = [n for n in numbers if all((n, model) in found for model in ("arx", "prodssm"))]

    for rows in found.values():
        rows.sort(key=lambda row: int(row["seed"]))

    def mean(number: int, model: str, part: str) -> float:
        values = np.array([float(row[part]) for row in found[number, model]])
        return float(np.where(np.isfinite(values), values, 1e3).mean())

    body, ratios, coverages, crps = [], [], [], []
    for n in there:
        ours, theirs = ({p: mean(n, model, p) for p in ("rmse", "crps", "coverage", "seconds")} for model in ("prodssm", "arx"))
        ratios.append(ours["rmse"] / theirs["rmse"])
        crps.append(ours["crps"] / theirs["crps"])
        coverages.append(ours["coverage"])
        figures = [ours["rmse"], theirs["rmse"], ratios[-1], crps[-1], ours["coverage"], theirs["coverage"], ours["seconds"]]
        body.append([n, systems.SYSTEMS[n].name, *(f"{each:.3f}" for each in figures[:-1]), f"{figures[-1]:.0f}"])
        body[-1].append(found[n, "prodssm"][0]["chosen"])
    head = ["", "system", "RMSE", "ARX", "RMSE / ARX", "CRPS / ARX", "coverage", "of ARX", "seconds", "chosen (seed 0)"]
    cells = common.markdown(head, body)
    if not there:
        return cells
    ratio, cover = np.array(ratios), np.array(coverages)
    held = (cover >= COVERED[0]) & (cover <= COVERED[1])
    lines = [
        f"RMSE at most {WORSE} times ARX on {100 * (ratio <= WORSE).mean():.0f} % of the systems (80 asked for), "
        f"below {BETTER} times on {100 * (ratio < BETTER).mean():.0f} % (50); worst {ratio.max():.2f}.",
        f"Coverage of 95 % intervals between {COVERED[0]} and {COVERED[1]} on {100 * held.mean():.0f} % (80); "
        f"lowest {cover.min():.2f}.",
        f"Median CRPS {np.median(crps):.2f} times that of ARX (0.85).",
    ]
    return "\n\n".join([cells, *lines])


def main() -> None:
    """Run the rows that are missing, print the table."""
    parser = common.arguments(__doc__)
    parser.add_argument("--report", action="store_true", help="the even systems")
    parser.add_argument("--only", choices=("arx", "prodssm"), help="one of the two models")
    options = parser.parse_args()
    if options.quick:
        common.smoke(run, QUICK, options)
        return
    numbers = systems.REPORT if options.report else CHOOSE
    wanted = [spec for spec in specs(numbers) if options.only in (None, spec.model)]
    common.make_rows(NAME, run, wanted, options)
    common.say(table(numbers))


QUICK = [(Spec(13, 0, "arx"), {}), (Spec(13, 0, "prodssm"), {"recipe": ps.Recipe(iterations=2)})]

if __name__ == "__main__":
    main()
