"""Real systems with controls: actuator, ball and beam, dryer, cascaded tanks, all with the same settings.

Models are trained on the first half (tanks: the estimation record), each from another seed, with other settings of which nobody
knows the best, and judged by another part that is held out of it; then one forecast is made of theirs, which gives way to what
is usual in the half that they learned from. On the test half they filter the first 50 samples and run free to the end: only the
controls are given. Printed are the RMSE of the median and the negative log likelihood in the units of the data and the coverage
of 95 % intervals, beside linear state-space models that the same library starts from the subspace of the data, trains and pools
(`hidden=()`), beside what is usual alone, and beside the error of a constant, the mean of the training half. A model whose
training or forecast is not finite is left out.

Which models they are was chosen on the training halves alone: of each, one quarter after the other is taken away, the models
learn the rest and run free over that quarter. Candidates are the models that hold out the end, a fifth or a tenth of all, those
of which each holds out another eighth, both together, for each setting the models of either kind that have one of its values,
models that start as linear ones and look up to 200 steps ahead, alone and with those that look 50 ahead, models that are judged
up to 100 steps ahead, and models that in the end learn from what they held out as well. The one with the smallest mean negative
log likelihood per standard unit over the quarters of all four sets won at first; a run counts as 5 at most. Quarters in one
piece hold regimes that the rest has not, so they do not tell what giving back is good for, nor how wide a forecast should be;
short blocks of the training halves do, but not what models make of something new. Which models, which way to make one forecast
of theirs, and after how many steps it should give way to what is usual in the training half, is decided by quarters and blocks
together (experiments/sysid_tries.py --blended has the rule and the reason).
The settings are those of earlier candidates, of which four had met the test halves before, and mixtures of so many models were
made because none of these was both chosen by its rule and good there (docs/results.md).

    python experiments/sysid.py --select   resumes; rows go to results/sysid_mixed.csv
    python experiments/sysid.py            resumes; rows go to results/sysid.csv
    python experiments/sysid.py --quick

With --data, only some of the sets: for several processes side by side. Forecasts of single models are kept in output.
"""

import hashlib
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np
from scipy.stats import norm

import prodssm as ps
from prodssm.datasets import sysid

KINDS: dict[str, dict[str, Any]] = {
    "network": {"hidden": (50,), "linear_start": False},
    "linear": {"hidden": (), "linear_start": True, "warm_up": 0.2},
}
USUAL: dict[str, Any] = {
    "latent_dim": 4,
    "emission": "linear",
    "residual": True,
    "horizons": (1, 5, 20, 50),
    "stride": 10,
    "window": 100,
    "batch": 4,
    "order": 1,
    "patience": 200,
}
FACTORS = {"prior_weight": (0.2, 1.0), "variance_rate": (1.0, 5.0)}
PAIRS = [dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values())]
ENDS = [{"validation": share, **pair} for share, pair in product((0.2, 0.1), PAIRS)]
FOLDS = [{"fold": fold, **PAIRS[fold % len(PAIRS)]} for fold in range(8)]
# Looking further ahead, where instability shows, from a start that is not unstable.
FAR: dict[str, Any] = {
    "horizons": (1, 10, 50, 200),
    "validation_horizons": (1, 10, 50),
    "window": 250,
    "stride": 20,
    "batch": 2,
    "linear_start": True,
}
FAR_FOLDS = [FAR | pair for pair in FOLDS if pair["variance_rate"] == 5.0]
# As sure as the held-out part asks for at the steps that a free run soon reaches.
JUDGED_FOLDS = [pair | {"validation_horizons": (20, 50, 100)} for pair in FOLDS if pair["variance_rate"] == 5.0]
# What a model holds out may be like nothing else in so short a record; it is learned in the end, from the same start.
GIVEN_BACK = [
    pair | {"seed": len(ENDS) + fold, "give_back": 200} for fold, pair in enumerate(FOLDS) if pair["variance_rate"] == 5.0
]
# Bounded units: where no data were, what they add to a state does not grow with it, so that a free run cannot explode.
BOUNDED = [pair | {"give_back": 200, "activation": "erf"} for pair in FOLDS if pair["variance_rate"] == 5.0]
# By their seeds, unless they have others.
MODELS: list[dict[str, Any]] = ENDS + FOLDS + FAR_FOLDS + JUDGED_FOLDS + GIVEN_BACK + BOUNDED


def chosen_of(models: Sequence[dict[str, Any]], **values: Any) -> list[int]:
    """Seeds of the models that have these values."""
    return [seed for seed, settings in enumerate(MODELS) if settings in models and values.items() <= settings.items()]


CANDIDATES = {"the end": chosen_of(ENDS), "eighths": chosen_of(FOLDS), "both": chosen_of(ENDS + FOLDS)}
CANDIDATES |= {"eighths, far ahead": chosen_of(FAR_FOLDS)}
CANDIDATES |= {"eighths, near and far": chosen_of(FOLDS, variance_rate=5.0) + chosen_of(FAR_FOLDS)}
CANDIDATES |= {"eighths, judged to 100 steps": chosen_of(JUDGED_FOLDS)}
CANDIDATES |= {"eighths, given back": chosen_of(GIVEN_BACK)}
CANDIDATES |= {f"the end, validation={share}": chosen_of(ENDS, validation=share) for share in (0.2, 0.1)}
CANDIDATES |= {
    f"{called}, {name}={value}": chosen_of(models, **{name: value})
    for called, models in (("the end", ENDS), ("eighths", FOLDS))
    for name, values in FACTORS.items()
    for value in values
}
CHOSEN = "eighths, variance_rate=5.0"  # as --select found
BY_BLOCKS = {
    CHOSEN: CANDIDATES[CHOSEN],
    "eighths, given back": chosen_of(GIVEN_BACK),
    "eighths, given back, bounded units": chosen_of(BOUNDED),
    "eighths, given back, both units": chosen_of(GIVEN_BACK + BOUNDED),
}
BY_BLOCKS |= {called: seeds for called, seeds in CANDIDATES.items() if max(seeds) < len(ENDS + FOLDS)}
EVERY = CANDIDATES | BY_BLOCKS
BY_BOTH = [called for called in CANDIDATES if called in BY_BLOCKS]
FINAL = "eighths, variance_rate=5.0"  # as experiments/sysid_tries.py --blended found
WARM_UP = 50  # samples of the test half that the filter may see
POOL = "mean of quantiles"  # likewise
LOST = 5.0  # what a run counts at most
KEPT = Path(__file__).parent.parent / "output" / "sysid"


def settings_of(kind: str, seed: int) -> dict[str, Any]:
    """All settings of a model but its seed."""
    return KINDS[kind] | USUAL | MODELS[seed]


def same(kind: str, seeds: Sequence[int]) -> str:
    """A name for the settings of some models: other settings, other files and rows."""
    return hashlib.sha256(repr(([settings_of(kind, seed) for seed in seeds], WARM_UP)).encode()).hexdigest()[:8]


def begun(kind: str, seed: int) -> str:
    """A name for how a model is trained until something is given back to it: who begins alike begins once."""
    settings = {"seed": seed} | settings_of(kind, seed)
    settings.pop("give_back", None)
    return hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:8]


Moments = tuple[np.ndarray, np.ndarray]


class Split(NamedTuple):
    """What to learn from, and what to run free over after the first samples."""

    name: str
    train: ps.Series
    test: ps.Series


def halves(name: str) -> Split:
    """The two halves of a data set."""
    data = sysid.load(name)
    return Split(f"{name}-test", data.train, data.test)


def quarter(name: str, number: int, parts: int = 4) -> Split:
    """The training half of a data set without one of its quarters, or of so many parts, and that quarter."""
    train = sysid.load(name).train
    begin, end = number * len(train) // parts, (number + 1) * len(train) // parts
    first = max(begin - WARM_UP, 0)
    called = f"{name}-{number}" if parts == 4 else f"{name}-{number}of{parts}"
    return Split(called, without(train, begin, end), train.window(first, end - first))


def without(series: ps.Series, begin: int, end: int) -> ps.Series:
    """A series that lacks a stretch: cut off at either end, not observed in between."""
    if begin == 0:
        return series.window(end, len(series) - end)
    return series.window(0, begin) if end == len(series) else ps.Series(series.y.at[begin:end].set(np.nan), series.u)


def blocks(name: str, number: int, parts: int = 16, apart: int = 4) -> Split:
    """The training half of a data set without every fourth of its short blocks, and these; the first samples are in none."""
    train = sysid.load(name).train
    cut = np.array_split(np.arange(WARM_UP, len(train)), parts)
    missing = np.concatenate(cut[number::apart])
    seen = np.setdiff1d(np.arange(WARM_UP, len(train)), missing)
    called = f"{name}-{number}blocks"
    return Split(called, ps.Series(train.y.at[missing].set(np.nan), train.u), ps.Series(train.y.at[seen].set(np.nan), train.u))


def stretch(series: ps.Series, fold: int) -> slice:
    """One of so many parts of what was observed; the first samples are in none, because a state must be found before."""
    observed = np.flatnonzero(np.isfinite(np.asarray(series.y)).any(axis=1))
    part = np.array_split(observed[WARM_UP:], len(FOLDS))[fold]
    return slice(int(part[0]), int(part[-1]) + 1)


def run_free(split: Split, kind: str, seed: int, **changed: Any) -> dict[str, Any]:
    """Train one model and let it run free: means and deviations, NaN if it cannot."""
    begin = time.monotonic()
    settings = {"seed": seed} | settings_of(kind, seed) | changed
    fold = settings.pop("fold", None)
    model = ps.ProDSSM(progress=False, **settings)
    seen, rest = split.test.window(0, WARM_UP), len(split.test) - WARM_UP
    assert split.test.u is not None
    nothing = np.full((rest, split.test.y.shape[1]), np.nan)
    found = {"mean": nothing, "std": nothing, "trusted": 0, "commit": common.commit()}
    try:
        model.fit(split.train, held_out=None if fold is None else stretch(split.train, fold))
        ahead = model.forecast(seen, rest, u=split.test.u[WARM_UP:])
        found |= {"mean": np.asarray(ahead.mean, float), "std": np.asarray(ahead.std, float)}
        found |= {"trusted": model.check_.trusted}
    except FloatingPointError as error:
        common.say(f"{split.name} {kind} {seed}: {error}")
    return found | {"seconds": time.monotonic() - begin}


def member(split: Split, kind: str, seed: int) -> dict[str, Any]:
    """The free run of one model, from the file if it is there already."""
    path = KEPT / f"{split.name}-{kind}-{seed}-{same(kind, [seed])}.npz"
    if not path.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        found = run_free(split, kind, seed, checkpoint=KEPT / f"{split.name}-{kind}-{begun(kind, seed)}.run")
        with (part := path.with_suffix(".part")).open("wb") as file:
            np.savez(file, **found)
        part.rename(path)
        common.say(f"{split.name} {kind} {seed}: {found['seconds']:.0f} s")
    with np.load(path) as stored:
        return dict(stored)


def matched(mean: np.ndarray, std: np.ndarray) -> Moments:
    """The moments of the mixture."""
    return mean.mean(axis=0), np.sqrt((std**2).mean(axis=0) + mean.var(axis=0))


def of_quantiles(mean: np.ndarray, std: np.ndarray) -> Moments:
    """The mean of all quantiles, which for normal distributions is that of means and deviations."""
    return mean.mean(axis=0), std.mean(axis=0)


def geometric(mean: np.ndarray, std: np.ndarray) -> Moments:
    """The geometric mean of densities: precisions are averaged."""
    precision = (std**-2).mean(axis=0)
    return (mean / std**2).mean(axis=0) / precision, precision**-0.5


POOLS: dict[str, Callable[[np.ndarray, np.ndarray], Moments] | None] = {
    "mixture": None,
    "normal with its moments": matched,
    "mean of quantiles": of_quantiles,
    "geometric mean of densities": geometric,
}


def pooled(pool: str, mean: np.ndarray, std: np.ndarray) -> Moments:
    """One forecast of several; the mixture is that of all of them."""
    made = POOLS[pool]
    if made is None:
        return mean, std
    mean, std = made(mean, std)
    return mean[None], std[None]


def scores(y: np.ndarray, mean: np.ndarray, std: np.ndarray, shares: np.ndarray | None = None) -> dict[str, float]:
    """How good the mixture of some models is: error of its median, density, ranked score, share of values in its intervals."""
    known = np.isfinite(y).all(axis=1)
    y, mean, std = y[known], mean[:, known], std[:, known]
    shares = None if shares is None else shares[:, known]
    low, median, high = (ps.mixture.quantile(share, mean, std, shares) for share in (0.025, 0.5, 0.975))
    return {
        "rmse": ps.metrics.rmse(y, median),
        "nll": -float(ps.mixture.log_density(norm.logpdf(y, mean, std).sum(axis=2), shares).mean()),
        "crps": float(ps.mixture.crps(y, mean, std, shares).mean()),
        "coverage": float(((low <= y) & (y <= high)).mean()),
    }


def usual(train: ps.Series) -> Moments:
    """What the next value is expected to be by who knows no more than those that were learned from: mean and deviation.

    Values that follow each other are alike. The deviation is that of a prediction from as few values that are not: those seen,
    over the sum of their correlations until these are first negative.
    """
    y = np.asarray(train.y, float)
    seen = np.isfinite(y)
    gaps = np.where(seen, y - np.nanmean(y, axis=0), 0.0)
    lags = [slice(lag, None) for lag in range(len(y) // 2)]
    pairs = np.stack([(seen[late] & seen[: len(y) - late.start]).sum(axis=0) for late in lags])
    alike = np.stack([(gaps[late] * gaps[: len(y) - late.start]).sum(axis=0) for late in lags]) / np.maximum(pairs, 1)
    alike /= alike[0]
    first = np.where((alike < 0).any(axis=0), np.argmax(alike < 0, axis=0), len(alike))
    sums = np.array([2 * column[:end].sum() - 1 for column, end in zip(alike.T, first, strict=True)])
    count = np.maximum(seen.sum(axis=0) / sums, 2.0)
    return np.nanmean(y, axis=0), np.nanstd(y, axis=0) * np.sqrt((count + 1) / (count - 1))


def with_usual(known: Moments, lasts: float, mean: np.ndarray, std: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A forecast and what is usual, whose share grows: that of the forecast is one in e after as many steps as it lasts.

    Returns:
        Means and deviations of the parts, and their shares step by step.
    """
    parts = [np.concatenate([part, np.broadcast_to(of, part[:1].shape)]) for part, of in zip((mean, std), known, strict=True)]
    share = -np.expm1(-np.arange(1, mean.shape[1] + 1) / lasts)
    return parts[0], parts[1], np.stack([*[(1 - share) / len(mean)] * len(mean), share])


def judges(name: str) -> list[Split]:
    """The training half without each of its quarters, and without each of four sets of short blocks."""
    return [part(name, number) for part in (quarter, blocks) for number in range(4)]


LASTS = [*2.0 ** np.arange(0, 14.5, 0.5), np.inf]


def how_long(kind: str, candidate: str, pool: str, name: str) -> dict[str, Any]:
    """After how many steps a forecast should have given way to what is usual but for one in e, by all runs on a training half.

    Scores of a run are with the number that the other runs ask for, in units of the standard deviation of the training half.
    Runs are not independent: what one judge takes away in one of them the other takes away in another.
    """
    unit = float(np.asarray(sysid.load(name).train.y).std())
    runs = []
    for split in judges(name):
        y, known = np.asarray(split.test.y[WARM_UP:], float), usual(split.train)
        sound = sound_of([member(split, kind, seed) for seed in EVERY[candidate]])
        if not sound:  # nothing else is known then
            sound = [{part: np.broadcast_to(of, y.shape) for part, of in zip(("mean", "std"), known, strict=True)}]
        mean, std = (np.stack([each[part] for each in sound]) for part in ("mean", "std"))
        runs.append((y, known, *pooled(pool, mean, std)))
    curves = np.stack([[ranked(*run, lasts=lasts) for lasts in LASTS] for run in runs])
    others = [LASTS[np.argmin(np.delete(curves, n, axis=0).mean(axis=0))] for n in range(len(runs))]
    blended = [scores(y, *with_usual(known, lasts, *way)) for lasts, (y, known, *way) in zip(others, runs, strict=True)]
    judged = {"quarters_coverage": blended[:4], "blocks_coverage": blended[4:]}
    return {
        "lasts": round(LASTS[np.argmin(curves.mean(axis=0))], 1),
        "crps": round(np.mean([each["crps"] for each in blended]) / unit, 4),
        "plain_crps": round(curves[:, -1].mean() / unit, 4),
        "rmse": round(np.mean([each["rmse"] for each in blended]) / unit, 4),
        "nll": round(np.mean([each["nll"] for each in blended]) - np.log(unit), 4),
        "coverage": round(np.mean([each["coverage"] for each in blended]), 4),
        **{key: round(np.mean([each["coverage"] for each in part]), 4) for key, part in judged.items()},
    }


def ranked(y: np.ndarray, known: Moments, mean: np.ndarray, std: np.ndarray, lasts: float) -> float:
    """Mean ranked score of a forecast that lasts so long."""
    seen = np.isfinite(y).all(axis=1)
    mean, std, shares = with_usual(known, lasts, mean, std)
    return float(ps.mixture.crps(y[seen], mean[:, seen], std[:, seen], shares[:, seen]).mean())


BLENDED = ("kind", "candidate", "pool", "data", "settings")


def blending(table: common.Table, kind: str, candidate: str, pool: str, name: str) -> dict[str, Any]:
    """The row of one set in the table of how long forecasts last; made if it is not there."""
    keys = dict(zip(BLENDED, (kind, candidate, pool, name, same(kind, EVERY[candidate])), strict=True))
    if not table.has(**keys):
        table.add(keys | how_long(kind, candidate, pool, name) | {"commit": common.commit()})
    return next(row for row in table.rows if keys.items() <= row.items())


def sound_of(every: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The free runs that are finite."""
    return [each for each in every if np.isfinite(each["mean"]).all() and np.isfinite(each["std"]).all()]


def mix(split: Split, kind: str, candidate: str, pool: str = "mixture", lasts: float = np.inf) -> dict[str, Any]:
    """The free run of the models of one candidate, as one, and the median of what they do alone."""
    every = [member(split, kind, seed) for seed in EVERY[candidate]]
    sound = sound_of(every)
    y = np.asarray(split.test.y[WARM_UP:], float)
    keys = ("rmse", "nll", "crps", "coverage")
    if not sound:
        nothing = dict.fromkeys((*keys, "alone_rmse", "alone_nll"), np.inf)
        return {"members": 0, **nothing, "trusted_steps": 0, "seconds": np.nan, "commit": "", "made": common.commit()}
    mean, std = (np.stack([each[part] for each in sound]) for part in ("mean", "std"))
    one = pooled(pool, mean, std)
    alone = [scores(y, mean[n : n + 1], std[n : n + 1]) for n in range(len(sound))]
    return {
        "members": len(sound),
        **{key: round(value, 4) for key, value in scores(y, *with_usual(usual(split.train), lasts, *one)).items()},
        **{f"alone_{key}": round(float(np.median([each[key] for each in alone])), 4) for key in ("rmse", "nll")},
        "trusted_steps": min(int(each["trusted"]) for each in sound),
        "seconds": round(sum(float(each["seconds"]) for each in every), 1),
        "commit": " ".join(sorted({str(each["commit"]) for each in every})),  # those that models were trained at
        "made": common.commit(),
    }


def only_usual(split: Split) -> dict[str, Any]:
    """The scores of what is usual."""
    y = np.asarray(split.test.y[WARM_UP:], float)
    mean, std = (np.broadcast_to(part, (1, *y.shape)) for part in usual(split.train))
    found = {key: round(value, 4) for key, value in scores(y, mean, std).items()}
    nothing = {"alone_rmse": "", "alone_nll": "", "trusted_steps": "", "seconds": "", "commit": ""}
    return {"members": 0, **found, **nothing, "made": common.commit()}


def select(names: Sequence[str]) -> None:
    """Score every candidate on the training halves; print the table."""
    table = common.Table("sysid_mixed", ("candidate", "data", "quarter", "settings"))
    for name, number in product(names, range(4)):
        split = quarter(name, number)
        spread = float(np.log(np.asarray(sysid.load(name).train.y).std()))
        for candidate in CANDIDATES:
            keys = {"candidate": candidate, "data": name, "quarter": number, "settings": same("network", CANDIDATES[candidate])}
            if not table.has(**keys):
                found = mix(split, "network", candidate)
                standard = round(min(found["nll"] - spread, LOST), 4)
                table.add(keys | {"standard_nll": standard, **found})
    for candidate in CANDIDATES:
        wanted = candidate, same("network", CANDIDATES[candidate])
        rows = [row for row in table.rows if (row["candidate"], row["settings"]) == wanted]
        found = [float(row["standard_nll"]) for row in rows]
        common.say(f"{candidate:30} {common.mean_and_error(found)} of {len(found)}")


def constant(split: Split) -> float:
    """The error of who always says the mean of the training half."""
    y = np.asarray(split.test.y[WARM_UP:], float)
    return ps.metrics.rmse(y, np.broadcast_to(np.nanmean(np.asarray(split.train.y, float), axis=0), y.shape))


def a_few_iterations() -> dict[str, float]:
    """Two models that have hardly learned anything, as one."""
    split = halves("dryer")
    found = [run_free(split, "network", seed, iterations=2) for seed in range(2)]
    mean, std = (np.stack([each[part] for each in found]) for part in ("mean", "std"))
    return scores(np.asarray(split.test.y[WARM_UP:], float), *with_usual(usual(split.train), 100.0, mean, std))


def main() -> None:
    """Run what is missing, print the table."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--select", action="store_true", help="choose the settings on the training halves")
    parser.add_argument("--data", nargs="+", choices=sysid.NAMES, default=sysid.NAMES, help="only these sets")
    chosen = parser.parse_args()
    if chosen.quick:
        common.smoke(a_few_iterations)
        return
    if chosen.select:
        select(chosen.data)
        return
    table = common.Table("sysid", ("data", "kind", "candidate", "pool", "blended", "settings"))
    lasting = common.Table("sysid_blended", BLENDED)
    for name in chosen.data:
        split, keys = halves(name), {"data": name, "kind": "usual", "candidate": "", "pool": "", "blended": "", "settings": ""}
        if not table.has(**keys):
            table.add(keys | {"lasts": 0.0} | only_usual(split) | {"constant_rmse": round(constant(split), 4)})
    for kind, name, blended in product(KINDS, chosen.data, ("yes", "no")):
        keys = {"data": name, "kind": kind, "candidate": FINAL, "pool": POOL, "blended": blended}
        keys |= {"settings": same(kind, EVERY[FINAL])}
        if not table.has(**keys):
            split = halves(name)
            lasts = float(blending(lasting, kind, FINAL, POOL, name)["lasts"]) if blended == "yes" else np.inf
            found = mix(split, kind, FINAL, POOL, lasts) | {"constant_rmse": round(constant(split), 4)}
            table.add(keys | {"lasts": lasts} | found)
    for row in table.rows:
        words = f"{row['data']:9} {row['kind']:8} lasts {row['lasts']:>6} steps "
        common.say(f"{words} rmse {row['rmse']}  nll {row['nll']}  coverage {row['coverage']}")


if __name__ == "__main__":
    main()
