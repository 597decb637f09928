"""Are time and memory of a stream constant in the number of observations?

A model of the kink (1-50-1, ReLU, uncertain weights) filters one observation at a time through the public interface:
`state, seen = model.step(state, y)`. After 1,000, 10,000 and 100,000 calls the resident memory of the process, the number of
compilations so far and the time per call since the last row are recorded: wall-clock time, and CPU time, which excludes the
waiting for other processes. All in float32, with observations of the true system.

The second question is numerical stability: a million steps of `prodssm.filter_states` in float32, with the number of NaN and
infinities and the lowest eigenvalue of all covariances relative to their trace. The covariance of a scalar state is positive
semi-definite unless it is negative. So for global weights the covariance of the 151 weights after the last step is tested as
well, and a network with six states and 50 outputs is added.
"""

import os
import resource
import time
from typing import Any

import common
import filter as filters
import jax
import jax.random as jr
import kink
import numpy as np

import prodssm as ps
from prodssm.data.scaling import DataScaling
from prodssm.estimators.fitted import FittedModel

COUNTS = (1_000, 10_000, 100_000)
STEPS = 1_000_000
WEIGHT_VAR = filters.WEIGHT_VAR
NOISE = 0.08
COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """Counts the compilations of JAX from its creation on."""

    def __init__(self):
        self.count = 0
        jax.monitoring.register_event_duration_secs_listener(self._heard)

    def _heard(self, event: str, duration_secs: float, **_: Any) -> None:
        self.count += event == COMPILED


def resident_mib() -> float:
    """Resident memory of this process; its peak where the system does not report the current value."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except FileNotFoundError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def estimator(weights: str) -> ps.ProDSSM:
    """A fitted estimator, with the network of the other benchmarks in place of a trained one."""
    model = ps.ProDSSM(emission="identity", hidden=(kink.HIDDEN,), weights=weights, measurement_noise=NOISE)
    ssm = kink.model(kink.fitted(WEIGHT_VAR), NOISE, weights=weights)
    model.scaling_, model.layout_ = DataScaling.identity(outputs=1, controls=0), None
    model.members_ = (FittedModel(ssm, model.scaling_, ps.Moments(), seed=0),)
    return model


class Clock:
    """Wall-clock and CPU time per call since the last reading, in microseconds."""

    def __init__(self, calls: int):
        self.start(calls)

    def start(self, calls: int) -> None:
        """Restart both times."""
        self.calls, self.wall, self.busy = calls, time.perf_counter(), time.process_time()

    def read(self, calls: int) -> dict[str, float]:
        """Both times per call, given the total number of calls."""
        wall, busy, count = time.perf_counter() - self.wall, time.process_time() - self.busy, calls - self.calls
        self.start(calls)
        return {"us_per_call": 1e6 * wall / count, "cpu_us_per_call": 1e6 * busy / count}


def stream(printer: common.Printer, weights: str, counts: tuple[int, ...]) -> list[dict[str, Any]]:
    """One stream; the rows at each count, and the verdicts."""
    model, observations = estimator(weights), kink.trajectory(counts[-1], NOISE, 1)
    compilations, rows, clock = Compilations(), [], Clock(0)
    state, seen = model.step(model.start(), observations[0])
    label = {"weights": weights, "dtype": str(seen.mean.dtype), "first_call_seconds": 1e-6 * clock.read(1)["us_per_call"]}
    for n, y in enumerate(observations[1:], 2):
        state, seen = model.step(state, y)
        if n in counts:
            finite = bool(np.isfinite(seen.mean).all() and np.isfinite(seen.cov).all())
            row = label | {"calls": n} | clock.read(n) | {"MiB": resident_mib(), "compilations": compilations.count}
            rows.append(row | {"finite": finite})
            printer.row(table="stream", **rows[-1])
    first, last = rows[0], rows[-1]
    for claim, ratio, most in (
        ("memory at the end / after 1,000 calls", last["MiB"] / first["MiB"], 1.02),
        ("compilations after 1,000 calls", last["compilations"] - first["compilations"], 0.0),
    ):
        printer.row(weights=weights, calls=counts[-1], **common.verdict(claim, ratio, most=most))
    return rows


def long_filter(printer: common.Printer, net: str, ssm: ps.StateSpaceModel, steps: int) -> None:
    """A long series in one call: time per step, non-finite values, eigenvalues."""
    y = ps.simulate(ssm, steps, key=jr.key(0))[1]
    built = common.compiled(lambda y: ps.filter_states(ssm, y), y)
    begin = time.perf_counter()
    found = jax.block_until_ready(built.run())
    seconds = time.perf_counter() - begin
    parts = [np.asarray(part) for part in (found.mean, found.cov, found.log_evidence)]
    row: dict[str, Any] = {"net": net, "weights": ssm.weights, "T": steps, "dtype": str(parts[0].dtype)}
    row |= {"us_per_step": 1e6 * seconds / steps, "not_finite": int(sum((~np.isfinite(part)).sum() for part in parts))}
    row |= {"lowest_eigenvalue_to_trace": lowest(parts[1])}
    if ssm.weights == "global":
        row |= {"weights_lowest_eigenvalue_to_trace": lowest(np.asarray(found.weights.cov())[None])}
    worst = min(value for name, value in row.items() if name.endswith("eigenvalue_to_trace"))
    printer.row(table="long filter", **row, holds=row["not_finite"] == 0 and worst > -1e-6)


def lowest(covs: np.ndarray) -> float:
    """The lowest eigenvalue of all matrices, each relative to its trace."""
    if not np.isfinite(covs).all():
        return float("nan")
    return float((np.linalg.eigvalsh(covs)[:, 0] / np.trace(covs, axis1=1, axis2=2)).min())


def plot(rows: list[dict[str, Any]], path: Any) -> None:
    """CPU time and memory against the number of calls."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
    for axis, column, label in zip(axes, ("cpu_us_per_call", "MiB"), ("microseconds per call", "resident MiB"), strict=True):
        for weights in dict.fromkeys(row["weights"] for row in rows):
            points = [(row["calls"], row[column]) for row in rows if row["weights"] == weights]
            axis.semilogx(*zip(*points, strict=True), marker="o", label=f"{weights} weights")
        axis.set(xlabel="calls", ylabel=label, ylim=(0, 1.15 * max(row[column] for row in rows)))
        axis.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Stream, filter, plot."""
    options = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(options)
    printer.row(benchmark="stream", net="1-50-1", weight_var=WEIGHT_VAR, noise=NOISE, **common.machine())
    rows = [row for w in ("local", "global") for row in stream(printer, w, COUNTS[:2] if options.quick else COUNTS)]
    kinds = ("local",) if options.quick else ("local", "global")
    for weights in kinds:
        long_filter(printer, "1-50-1", kink.model(kink.fitted(WEIGHT_VAR), NOISE, weights=weights), STEPS)
    if not options.quick:
        long_filter(printer, "6-30-30-6-50", filters.larger(), STEPS)
    if options.plot:
        plot(rows, options.plot)
        printer.text(f"figure: {options.plot}")


if __name__ == "__main__":
    main()
