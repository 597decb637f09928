"""What do a filter and a smoother cost per time step, next to other libraries on the same fixed networks?

Two sizes: the kink network (1-50-1, identity emission) and a larger one (6-30-30-6 with 50 linear outputs), ReLU. The rivals
are dynamax (EKF, UKF), cuthbert (EKF in square-root form) and filterpy (EKF, UKF; NumPy, double precision only). None of them
supports uncertain weights, so these are compared with an unscented filter on the state augmented by the 151 weights.

All start from a belief about the first observed state, condition and then predict, and before anything is timed all must agree
on a linear model. Networks are constants of the compiled functions; all contenders of one length are interleaved. A contender
that would need more than a few seconds for one call is left out at that length: filterpy, a Python loop, stops early.

The second question is accuracy: the mean negative log density of the true state, on trajectories simulated from the model
itself, for the network fitted to samples of the kink and for networks trained on 120 noisy observations.
"""

from functools import partial
from typing import Any

import common
import jax
import jax.numpy as jnp
import jax.random as jr
import kink
import numpy as np
import rivals

import prodssm as ps

LENGTHS = (100, 1000, 10_000, 100_000, 1_000_000)
LARGE = 20_000  # from this length on the dispatch overhead of a call is negligible
LARGEST_BYTES = 3 * 2**30
WEIGHT_VAR = 1e-4


def larger() -> ps.StateSpaceModel:
    """A contracting 6-30-30-6 network with 50 linear outputs."""
    net = ps.Network.mlp((6, 30, 30, 6), uncertain=False, key=jr.key(0))
    weights, biases = [0.7 * layer.weight for layer in net.linears], [layer.bias for layer in net.linears]
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(6), jnp.eye(6)),
        transition=ps.Network.from_arrays(weights, biases),
        emission=ps.Network.mlp((6, 50), uncertain=False, key=jr.key(1)),
        process_noise=jnp.full(6, 0.01),
        measurement_noise=jnp.full(50, 0.1),
        weights="point",
    )


def linear() -> ps.StateSpaceModel:
    """A linear model, on which every filter is the Kalman filter."""
    transition = ps.Network.from_arrays([[[0.9, 0.2], [-0.2, 0.8]]], [[0.1, -0.2]])
    emission = ps.Network.from_arrays([[[1.0, 0.0], [0.5, -1.0], [0.2, 0.7]]], [[0.0, 0.3, 0.0]])
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.array([1.0, -1.0]), jnp.array([[1.0, 0.3], [0.3, 0.5]])),
        transition=transition,
        emission=emission,
        process_noise=jnp.array([0.1, 0.2]),
        measurement_noise=jnp.array([0.3, 0.2, 0.5]),
        weights="point",
    )


def require_agreement(printer: common.Printer, *, quick: bool) -> None:
    """On a linear model all contenders must equal the Kalman filter and the Rauch-Tung-Striebel smoother."""
    ssm = linear()
    y = ps.simulate(ssm, 25, key=jr.key(0))[1]
    for smooth in (False,) if quick else (False, True):  # a quick run times no smoother
        worst, found = 0.0, {}
        for name, make in rivals.contenders(ssm, quick=quick).items():
            if smooth and name == "filterpy EKF":
                continue
            run = make(smooth)
            mean, log_likelihood, _ = run(np.asarray(y)) if name.startswith("filterpy") else jax.jit(run)(y)
            found[name] = np.append(np.ravel(mean), float(log_likelihood))
            off = float(np.abs(found[name] - found["moments"]).max())
            worst = max(worst, off)
            if not off < 1e-5:
                raise SystemExit(f"{name} differs by {off:.3g} from ours on a linear model: the comparison would be unfair")
        printer.row(table="agreement", what=_what(smooth), contenders=len(found), largest_difference=worst)


def _what(smooth: bool) -> str:
    return "smoother" if smooth else "filter"


def measure(
    printer: common.Printer, label: dict[str, Any], makers: rivals.Makers, y: jax.Array, lengths: Any, smooth: bool, quick: bool
) -> dict[tuple[str, int], float]:
    """Seconds per step of each contender at each length, as rows; a contender is left out where a call would take too long."""
    longest = 1.0 if quick else 3.0
    steps: dict[tuple[str, int], float] = {}
    known: dict[str, float] = {}
    for length in lengths:
        part, built = y[:length], {}
        for name, make in makers.items():
            reason = f"a call would take {known.get(name, 0.0) * length:.0f} s"
            if known.get(name, 0.0) * length <= longest:
                found = _ready(name, make(smooth), part)
                if found.bytes <= LARGEST_BYTES:
                    built[name] = found
                    continue
                reason = f"it would need {found.bytes / 2**30:.1f} GiB"
            printer.row(**label, what=_what(smooth), T=length, name=name, left_out=reason)
        times = common.interleaved({name: found.run for name, found in built.items()}, seconds=0.1 if quick else 0.5)
        for name, seconds in times.items():
            known[name] = steps[name, length] = seconds / length
            row = label | {"what": _what(smooth), "T": length, "name": name, "us_per_step": 1e6 * known[name]}
            if built[name].bytes:
                row |= {"compile_seconds": built[name].seconds, "MiB": built[name].bytes / 2**20}
            printer.row(**row)
    return steps


def _ready(name: str, run: rivals.Run, y: jax.Array) -> common.Compiled:
    if name.startswith("filterpy"):
        return common.Compiled(partial(run, np.asarray(y)), 0.0, 0)
    return common.compiled(run, y)


def certain_weights(printer: common.Printer, dtype: str, quick: bool) -> list[dict[str, Any]]:
    """Ours and the rivals on both networks with point weights; the verdicts."""
    rows: list[dict[str, Any]] = []
    short = {True: (LARGE,), False: (1000,)}
    for net, ssm in {"1-50-1": kink.model(kink.fitted()), "6-30-30-6-50": larger()}.items():
        small = net == "1-50-1"
        lengths = short[small] if quick else LENGTHS if small else LENGTHS[:-1]
        y = ps.simulate(ssm, max(lengths), key=jr.key(0))[1]
        label = {"dtype": dtype, "net": net, "weights": "point"}
        # NumPy computes in double precision whatever the input.
        makers = rivals.contenders(ssm, quick=quick, python=dtype == "float64" and not quick)
        makers |= {} if small else {"linearised": partial(rivals.ours, ssm, method="linearised")}
        for smooth in (False,) if quick else (False, True):
            able = {name: make for name, make in makers.items() if not (smooth and name == "filterpy EKF")}
            steps = measure(printer, label, able, y, lengths, smooth, quick)
            rows += [label | {"what": _what(smooth), "T": T, "name": name, "s": s} for (name, T), s in steps.items()]
            for length in [T for name, T in steps if name == "moments" and T >= LARGE and small and not smooth]:
                ratio = steps["moments", length] / steps["dynamax EKF", length]
                most = 1.5 if dtype == "float64" else 1.2
                printer.row(**label, T=length, **common.verdict("filter: moments / dynamax EKF", ratio, most=most))
            if not small and not smooth:
                longest = max(length for name, length in steps if name == "dynamax EKF")
                for name, least in (("moments", 1.6), ("linearised", 3.0)):
                    ratio = steps["dynamax EKF", longest] / steps[name, longest]
                    bound = {"least": least} if dtype == "float32" else {}
                    printer.row(**label, T=longest, **common.verdict(f"filter: dynamax EKF / {name}", ratio, **bound))
    return rows


def uncertain_weights(printer: common.Printer, dtype: str, quick: bool) -> None:
    """Local and global weights against an unscented filter on the augmented state."""
    lengths = (1000,) if quick else LENGTHS
    y = ps.simulate(kink.model(kink.fitted()), max(lengths), key=jr.key(0))[1]
    for weights in ("local", "global"):
        ssm = kink.model(kink.fitted(WEIGHT_VAR), weights=weights)
        label = {"dtype": dtype, "net": "1-50-1", "weights": weights}
        makers: rivals.Makers = {name: partial(rivals.ours, ssm, method=name) for name in ("moments", "unscented")}
        if weights == "global" and not quick:
            makers["dynamax UKF"] = partial(rivals.dynamax, ssm, kind="UKF", augmented=True)
        for smooth in (False,) if quick else (False, True):
            able = {name: make for name, make in makers.items() if not (smooth and name.startswith("dynamax"))}
            steps = measure(printer, label, able, y, lengths, smooth, quick)
            for rival in makers if not smooth else ():
                shared = [length for name, length in steps if name == rival and ("moments", length) in steps]
                if rival != "moments":
                    ratio = steps[rival, max(shared)] / steps["moments", max(shared)]
                    claim = f"filter: {rival} on the augmented state / moments"
                    printer.row(**label, T=max(shared), **common.verdict(claim, ratio, least=8.0))


def endurance(printer: common.Printer, quick: bool) -> None:
    """A million steps in float32: finite, positive semi-definite, and how much memory."""
    steps = LENGTHS[-1]
    problems = {f"1-50-1 {w}": kink.model(kink.fitted(WEIGHT_VAR), weights=w) for w in ("local", "point", "global")}
    problems |= {"6-30-30-6-50 point": larger()}
    for name, ssm in list(problems.items())[: 1 if quick else None]:
        y = ps.simulate(ssm, steps, key=jr.key(0))[1]
        # A smoother of global weights would store a covariance of all weights for every step.
        for smooth in (False,) if quick or ssm.weights == "global" else (False, True):
            built = common.compiled(rivals.ours(ssm, smooth, "moments"), y)
            mean, _, cov = (np.asarray(part) for part in built.run())
            finite = bool(np.isfinite(mean).all() and np.isfinite(cov).all())
            found = np.linalg.eigvalsh(cov) if finite else np.full(1, np.nan)
            lowest = float(found.min() / found.max())
            row = {"what": _what(smooth), "T": steps, "dtype": str(mean.dtype), "MiB": built.bytes / 2**20, "finite": finite}
            printer.row(table="endurance", net=name, **row, lowest_to_highest_eigenvalue=lowest, holds=lowest > -1e-6)


def state_nll(ssm: ps.StateSpaceModel, count: int, kinds: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Negative log density of the true scalar state under each filter, mean over time: one number per trajectory."""
    x, y = jax.vmap(lambda key: ps.simulate(ssm, 120, key=key))(jr.split(jr.key(1), count))
    runs = {"moments": rivals.ours(ssm, False, "moments")}
    runs |= {f"dynamax {kind}": rivals.dynamax(ssm, False, kind) for kind in kinds}
    found = {}
    for name, run in runs.items():
        mean, _, cov = jax.jit(jax.vmap(run))(y)
        var = cov[..., 0]
        found[name] = np.asarray((0.5 * jnp.log(2 * jnp.pi * var) + 0.5 * (x - mean) ** 2 / var).mean(axis=(1, 2)))
    return found


def accuracy(printer: common.Printer, quick: bool) -> None:
    """Negative log density of the true state under our filter and dynamax's, at the three noise levels; the verdicts."""
    count, seeds = (50, 1) if quick else (100, 5)
    noises = kink.NOISES[-1:] if quick else kink.NOISES
    problems = [(noise, "fitted", kink.fitted) for noise in noises]
    problems += [(noise, "trained", partial(kink.learned, noise, seed)) for noise in noises for seed in range(seeds)]
    lost: dict[tuple[float, str], list[float]] = {}
    for noise, kind, build in problems:
        ssm = kink.model(build(), noise, start_var=kink.PROCESS_STD**2)
        scores = state_nll(ssm, count, ("EKF",) if quick else ("EKF", "UKF"))
        gap = scores["dynamax EKF"] - scores["moments"]
        lost.setdefault((noise, kind), []).append(float(gap.mean()))
        row = {"EKF_loses": float(gap.mean()), "standard_error": float(gap.std() / np.sqrt(count))}
        nll = {name: float(score.mean()) for name, score in scores.items()}
        printer.row(table="nll", net=f"{kind} {len(lost[noise, kind]) - 1}", noise=noise, **nll, **row)
    for (noise, kind), gaps in lost.items():
        claim = f"nats that dynamax EKF loses to moments, median of {len(gaps)} {kind} network(s)"
        # Better at every noise level, and by more than a nat at the largest.
        for least in (0.0, 1.0) if noise == max(noises) else (0.0,):
            printer.row(noise=noise, worst=min(gaps), **common.verdict(claim, float(np.median(gaps)), least=least))


def main() -> None:
    """Agree, measure, score, plot."""
    options = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(options)
    printer.row(benchmark="filter", process_std=kink.PROCESS_STD, weight_var=WEIGHT_VAR, **common.machine())
    rows: list[dict[str, Any]] = []
    for bits in (64, 32):
        # Rivals create arrays of the default dtype inside, so the precision is a setting of the process and not of the data.
        jax.config.update("jax_enable_x64", bits == 64)
        if bits == 64:
            require_agreement(printer, quick=options.quick)
            accuracy(printer, options.quick)
        rows += certain_weights(printer, f"float{bits}", options.quick)
        if bits == 32 or not options.quick:
            uncertain_weights(printer, f"float{bits}", options.quick)
    endurance(printer, options.quick)
    if options.plot:
        plot(rows, options.plot)
        printer.text(f"figure: {options.plot}")


def plot(rows: list[dict[str, Any]], path: Any) -> None:
    """Time per step against length."""
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((row["net"], row["dtype"], row["what"]) for row in rows))
    figure, axes = plt.subplots(2, (len(panels) + 1) // 2, figsize=(18, 8), squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, panels, strict=False):
        shown = [row for row in rows if (row["net"], row["dtype"], row["what"]) == panel]
        for name in dict.fromkeys(row["name"] for row in shown):
            points = [(row["T"], 1e6 * row["s"]) for row in shown if row["name"] == name]
            style = {"linewidth": 2.5} if name == "moments" else {"linestyle": "--", "alpha": 0.7}
            axis.loglog(*zip(*points, strict=True), marker=".", label=name, **style)
        axis.set(title=", ".join(panel), xlabel="time steps", ylabel="microseconds per step")
        axis.legend(fontsize=7)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
