"""What does size cost? Time per iteration against number of series, length, devices and processes; memory of chunked passes.

    python benchmarks/scale.py --save benchmarks/results/scale.jsonl     half an hour
    python benchmarks/scale.py --quick
    python benchmarks/scale.py --long 100000000     the chunked filter and forecast, against 10^6 steps and against one pass
    python benchmarks/scale.py --learn 10000000     fit, filter and forecast of three outputs on disk within 2 GiB
    python benchmarks/scale.py --rows 5000000       the command line on a CSV file of so many rows: fit, forecast, filter

cost = a size^p is fitted to each curve, and p is printed. The curves are of one core. Devices are virtual ones that share all
cores; of several processes each has a core of its own, as far as there are cores. To these measurements a model is fitted,

    seconds = length (s + w ceil(series / machines)) + e ceil(log2 machines),

where a machine is a core like that of the measurements: the recursion over time (s) is sequential, the work on series (w) is
divided, and the gradients are exchanged (e) once per doubling of the machines. Its rows say so: they are no measurements.
"""

import argparse
import json
import math
import os
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))

import numpy as np  # noqa: E402
from common import Printer, exponent, machine, parser, verdict  # noqa: E402

SERIES, SHORT = (10, 100, 1000, 10_000), 100  # numbers of series, and their length
LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
DEVICES, PROCESSES = (1, 2, 4), (1, 2)
SHARED = ((1000, 100), (100, 1000))  # series and length of what processes share
PROBLEMS = ((10_000, 1000), (1000, 10_000), (100, 100_000))  # of the extrapolation
MACHINES = (1, 10, 100, 1000)
FIRST_STEPS, STEPS, CHUNK = 1_000_000, (1_000_000, 10_000_000), 100_000  # of the chunked passes
MEMORY_RATIO, MEMORY, ONE_PASS = 1.1, 2048.0, 1e-9  # promised: of a longer series, in MiB of a fit, relative error
REPEATS = 3
LIMIT = 3600  # seconds of any process


def small_model() -> Any:
    """Two states and a network of ten hidden units."""
    import jax.random as jr

    import prodssm as ps

    return ps.StateSpaceModel(
        initial=ps.Gaussian(np.zeros(2), np.eye(2)),
        transition=ps.Network.mlp((2, 10, 2), key=jr.key(0)),
        emission=ps.Network.from_arrays([np.eye(1, 2)], [np.zeros(1)]),
        process_noise=np.full(2, 0.01),
        measurement_noise=np.full(1, 0.1),
        residual=True,
    )


def waves(begin: int, end: int, outputs: int) -> np.ndarray:
    """Rows of a long series: noisy sines that are the same whichever rows are asked for together."""
    phase = 0.1 * np.arange(begin, end)[:, None] + np.arange(outputs)
    return (np.sin(phase) + 0.1 * np.sin(1e4 * phase**2)).astype(np.float32)


def seconds_of_iteration(series: int, length: int) -> float:
    """Of a gradient step on all of so many series, compilation excluded; the median of several chunks of iterations."""
    import jax.random as jr

    import prodssm as ps
    from prodssm.training import loop

    data = [ps.Series(waves(1000 * n, 1000 * n + length, 1)) for n in range(series)]
    loop.CHUNK = max(1, min(25, 1_000_000 // (series * length)))
    # A small rate: a run that diverges would end before it is timed.
    recipe = ps.Recipe(iterations=(REPEATS + 1) * loop.CHUNK, learning_rate=1e-4)
    _, history = ps.train(small_model(), data, recipe, key=jr.key(0), progress=False)
    if len(history.seconds) <= REPEATS:
        raise RuntimeError(f"{series} series of {length} steps: {history.stop_reason}")
    return float(np.median(np.diff(history.seconds)) / loop.CHUNK)


def seconds_of_filter(length: int) -> float:
    """Of one pass over a series in memory, compilation excluded."""
    import prodssm as ps

    y, model, found = waves(0, length, 1), small_model(), []
    for _ in range(REPEATS + 1):
        begin = time.monotonic()
        ps.filter_states(model, y)
        found.append(time.monotonic() - begin)
    return float(np.median(found[1:]))


def long_series(folder: Path, steps: int, outputs: int, parquet: bool = False) -> Any:
    """So many steps in a file that is written chunk by chunk."""
    import prodssm as ps

    parts = ((begin, min(begin + CHUNK, steps)) for begin in range(0, steps, CHUNK))
    if not parquet:
        with (folder / "y.npy").open("wb") as file:
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(np.float32)), "fortran_order": False}
            np.lib.format.write_array_header_2_0(file, header | {"shape": (steps, outputs)})
            for part in parts:
                waves(*part, outputs).tofile(file)
        return ps.LongSeries.of_arrays(np.load(folder / "y.npy", mmap_mode="r"))
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    schema = pyarrow.schema([(f"y{n}", pyarrow.float32()) for n in range(outputs)])
    with ParquetWriter(folder / "y.parquet", schema) as writer:
        for part in parts:
            writer.write_table(pyarrow.table(list(waves(*part, outputs).T), schema=schema))
    return ps.LongSeries.of_parquet(folder / "y.parquet")


def estimator(iterations: int) -> Any:
    """A small ProDSSM."""
    import prodssm as ps

    return ps.ProDSSM(
        latent_dim=2,
        hidden=(10,),
        activation="relu",
        emission="linear",
        residual=True,
        n_estimators=1,
        recipe=ps.Recipe(iterations=iterations),
        progress=False,
    )


def fitted_elsewhere(path: Path, outputs: int) -> Any:
    """A fitted model of so many outputs; the fit needs more memory than the passes, and would hide what they need."""
    import prodssm as ps

    answer(started("--fit", path, outputs, cores=CORES))
    return ps.load(path)


def chunked(steps: int, outputs: int, *, learn: bool = False, parquet: bool = False) -> dict[str, Any]:
    """Seconds of a filter and of a forecast of a series on disk, and peak memory; with `learn`, of a fit to it as well."""
    with tempfile.TemporaryDirectory() as folder:
        long = long_series(Path(folder), steps, outputs, parquet)
        begin = time.monotonic()
        model = estimator(50).fit(long) if learn else fitted_elsewhere(Path(folder) / "m.safetensors", outputs)
        fitted = time.monotonic()
        score = sum(float(part.log_evidence.sum(dtype=float)) for part in model.filter_in_chunks(long, CHUNK))
        filtered = time.monotonic()
        ahead = model.forecast(long, steps=24)
        spent = {"filter_seconds": filtered - fitted, "forecast_seconds": time.monotonic() - filtered}
    assert np.isfinite(score)
    assert np.isfinite(ahead.mean).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return spent | ({"fit_seconds": fitted - begin} if learn else {}) | {"MiB": peak}


def error_of_chunks(steps: int) -> float:
    """Largest relative error of the beliefs of a chunked filter and forecast against one pass, in double precision."""
    import jax

    jax.config.update("jax_enable_x64", True)
    import prodssm as ps
    from prodssm.estimators import chunks

    chunks.CHUNK = steps // 10  # of the forecast
    y = waves(0, steps, 1).astype(float)
    model = estimator(1).fit(y[:200])
    whole, parts = model.filter(y), list(model.filter_in_chunks(ps.LongSeries.of_arrays(y), steps // 10))
    pairs = [(np.concatenate([getattr(p, n) for p in parts]), getattr(whole, n)) for n in ("mean", "cov", "log_evidence")]
    ahead, wanted = model.forecast(ps.LongSeries.of_arrays(y), steps=24), model.forecast(y, steps=24)
    pairs += [(ahead.mean, wanted.mean), (ahead.cov, wanted.cov)]
    return max(float(np.abs(found - right).max() / np.abs(right).max()) for found, right in pairs)


def started(*words: Any, cores: list[int], devices: int = 1) -> subprocess.Popen[str]:
    """This script in a process of its own, on these cores and with so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    command = [sys.executable, __file__, *map(str, words), "--cores", *map(str, cores)]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=os.environ | {"XLA_FLAGS": flags}, **pipes)


def answer(*running: subprocess.Popen[str]) -> Any:
    """What the first of these processes prints at last; none of them is left."""
    try:
        found = [each.communicate(timeout=LIMIT) for each in running]
    finally:
        for each in running:
            each.kill()
    for each, (_, error) in zip(running, found, strict=True):
        if each.returncode:
            raise RuntimeError(error[-2000:])
    return json.loads(found[0][0].splitlines()[-1])


def on_devices(devices: int, series: int, length: int) -> float:
    """Seconds of an iteration that virtual devices share, on all cores."""
    return answer(started("--iteration", series, length, cores=CORES, devices=devices))


def in_processes(count: int, series: int, length: int) -> float:
    """Seconds of an iteration that processes share, each on a core of its own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    words = "--iteration", series, length, "--address", address, "--process"
    return answer(*(started(*words, n, count, cores=[CORES[n % len(CORES)]]) for n in range(count)))


def fitted_model(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The three constants of the model, and its largest relative error where one machine was measured.

    s and w by non-negative least squares of relative errors; e is the median of what two processes need beyond the model.
    """
    from scipy.optimize import nnls

    alone = [row for row in rows if row["machines"] == 1]
    seconds = np.array([row["seconds"] for row in alone])
    terms = np.array([[row["length"], row["length"] * row["series"]] for row in alone])
    (step, work), _ = nnls(terms / seconds[:, None], np.ones(len(alone)))
    found = {"seconds_per_step": step, "seconds_per_step_and_series": work}
    errors = np.abs(terms @ [step, work] / seconds - 1)
    beyond = [
        row["seconds"] - predicted(found | {"seconds_per_exchange": 0.0}, **sizes(row)) for row in rows if row not in alone
    ]
    return found | {"seconds_per_exchange": max(float(np.median(beyond)), 0.0), "largest_error": float(errors.max())}


def sizes(row: dict[str, Any]) -> dict[str, int]:
    """What the model needs to know of a row."""
    return {name: row[name] for name in ("series", "length", "machines")}


def predicted(model: dict[str, float], series: int, length: int, machines: int) -> float:
    """Seconds of an iteration by the model."""
    work = model["seconds_per_step"] + model["seconds_per_step_and_series"] * math.ceil(series / machines)
    return length * work + model["seconds_per_exchange"] * math.ceil(math.log2(machines))


def curve(out: Printer, what: str, against: str, costs: dict[int, float]) -> None:
    """The exponent of one curve."""
    out.row(
        table="growth", what=what, against=against, first=min(costs), last=max(costs), exponent=exponent(costs, costs.values())
    )


def iterations(out: Printer, quick: bool) -> list[dict[str, Any]]:
    """Measured iterations and their growth; the rows of one core and of processes, which the model is fitted to."""
    found = []

    def measured(machines: int, series: int, length: int, seconds: float, devices: int = 1) -> float:
        row = {"machines": machines, "devices": devices, "series": series, "length": length, "seconds": seconds}
        out.row(table="iteration", **row)
        found.append(row)
        return seconds

    counts, lengths = (SERIES[:2], LENGTHS[:2]) if quick else (SERIES, LENGTHS)
    costs = {n: measured(1, n, SHORT, seconds_of_iteration(n, SHORT)) for n in counts}
    curve(out, "iteration", "series", costs)
    costs = {n: measured(1, 1, n, seconds_of_iteration(1, n)) for n in lengths}
    curve(out, "iteration", "length", costs)
    for series, length in ((64, SHORT),) if quick else SHARED:
        costs = {n: measured(n, series, length, in_processes(n, series, length)) for n in PROCESSES}
        curve(out, f"iteration, {series} series of {length}", "processes", costs)
    model_rows = list(found)
    series, length = (64, SHORT) if quick else SHARED[0]
    costs = {n: measured(1, series, length, on_devices(n, series, length), n) for n in (DEVICES[:2] if quick else DEVICES)}
    curve(out, f"iteration, {series} series of {length}", "devices", costs)
    return model_rows


def measure(out: Printer, quick: bool) -> None:
    """Everything, row by row."""
    out.row(benchmark="scale", all_cores=len(CORES), **machine())
    model = fitted_model(iterations(out, quick))
    out.row(table="model", **model)
    for series, length in PROBLEMS:
        alone = predicted(model, series, length, 1)
        for machines in MACHINES:
            seconds = predicted(model, series, length, machines)
            row = {
                "series": series,
                "length": length,
                "machines": machines,
                "seconds": seconds,
                "times_faster": alone / seconds,
            }
            out.row(table="machines", what="model, not measured", **row)
    costs = {}
    for length in LENGTHS[:2] if quick else LENGTHS:
        costs[length] = seconds_of_filter(length)
        out.row(table="filter", length=length, seconds=costs[length])
    curve(out, "filter", "length", costs)
    for steps in (CHUNK, 3 * CHUNK) if quick else STEPS:
        out.row(table="chunks", steps=steps, outputs=1, **answer(started("--chunked", steps, 1, cores=CORES)))


def check_long(out: Printer, steps: int) -> bool:
    """Whether the memory of the chunked passes does not grow, and their answers are those of one pass."""
    peaks = []
    for count in (FIRST_STEPS, steps):
        row = answer(started("--chunked", count, 1, cores=CORES))
        out.row(table="chunks", steps=count, outputs=1, **row)
        peaks.append(row["MiB"])
    claims = [
        verdict(f"peak memory at {steps} steps / at {FIRST_STEPS}", peaks[1] / peaks[0], most=MEMORY_RATIO),
        verdict(f"relative error to one pass, {FIRST_STEPS} steps", answer(started("--error", cores=CORES)), most=ONE_PASS),
    ]
    return told(out, claims)


def check_learning(out: Printer, steps: int) -> bool:
    """Whether a fit to three outputs on disk, a filter and a forecast stay within 2 GiB."""
    claims = []
    for source in ("arrays", "parquet"):
        row = answer(started("--chunked", steps, 3, "--source", source, cores=CORES[:2]))
        out.row(table="learning", source=source, steps=steps, outputs=3, **row)
        claims.append(
            verdict(f"MiB of fit, filter and forecast, {steps} steps of 3 outputs, {source}", row["MiB"], most=MEMORY)
        )
    return told(out, claims)


def check_commands(out: Printer, rows: int) -> bool:
    """Time and peak memory of each command on a CSV file, which is written first; whether all of them succeed."""
    import pyarrow
    from pyarrow import csv

    good, t = True, np.arange(rows)
    level = np.sin(0.05 * t) + 0.3 * np.sin(0.02 * t) + 0.1 * np.random.default_rng(0).normal(size=rows)
    when = np.datetime64("2010-01-01T00:00:00", "s") + 10 * t.astype("timedelta64[s]")
    with tempfile.TemporaryDirectory() as folder:
        csv.write_csv(pyarrow.table({"when": when, "level": level, "pump": np.sin(0.02 * t)}), Path(folder) / "rows.csv")
        csv.write_csv(pyarrow.table({"pump": np.zeros(100)}), Path(folder) / "u.csv")
        roles = ["--output", "level", "--control", "pump"]
        for words in (
            ["fit", "rows.csv", *roles, "--iterations", "50", "--model", "m.safetensors"],
            ["forecast", "m.safetensors", "rows.csv", "--steps", "100", "--controls", "u.csv", "--out", "ahead.csv"],
            ["filter", "m.safetensors", "rows.csv", "--out", "states.parquet"],
        ):
            begin, command = time.monotonic(), [sys.executable, "-c", "from prodssm.cli import main; main()", *words, "--quiet"]
            _, status, used = os.wait4(subprocess.Popen(command, cwd=folder).pid, 0)
            code = os.waitstatus_to_exitcode(status)
            spent = {"s": time.monotonic() - begin, "cpu_s": used.ru_utime + used.ru_stime, "MiB": used.ru_maxrss / 1024}
            out.row(table="commands", command=words[0], rows=rows, code=code, **spent)
            good &= code == 0
    return good


def told(out: Printer, claims: list[dict[str, Any]]) -> bool:
    """Whether all of these claims hold, which are printed."""
    for claim in claims:
        out.row(**claim)
    return all(claim["holds"] for claim in claims)


def in_child(options: argparse.Namespace) -> Any:
    """What a process answers that this script has started."""
    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, options.cores)
    if options.process and options.process[1] > 1:
        import jax

        jax.distributed.initialize(options.address, options.process[1], options.process[0])
    if options.fit:
        estimator(1).fit(waves(0, 200, int(options.fit[1]))).save(options.fit[0])
        return None
    if options.iteration:
        return seconds_of_iteration(*options.iteration)
    if options.chunked:
        return chunked(*options.chunked, learn=options.source is not None, parquet=options.source == "parquet")
    return error_of_chunks(FIRST_STEPS)


def main() -> int:
    """Measure, and print one line for each; return 1 if a promise does not hold."""
    words = parser(__doc__ or "")
    words.formatter_class = argparse.RawDescriptionHelpFormatter
    words.add_argument("--long", type=int, metavar="STEPS", help="only check the chunked filter and forecast of so many steps")
    words.add_argument("--learn", type=int, metavar="STEPS", help="only check the memory of a fit to three outputs on disk")
    words.add_argument("--rows", type=int, help="only the command line on a file of so many rows")
    child = words.add_argument_group("processes that this script starts")
    child.add_argument("--iteration", type=int, nargs=2, metavar=("SERIES", "LENGTH"), help="seconds of an iteration")
    child.add_argument(
        "--chunked", type=int, nargs=2, metavar=("STEPS", "OUTPUTS"), help="seconds and memory of chunked passes"
    )
    child.add_argument("--fit", nargs=2, metavar=("FILE", "OUTPUTS"), help="write a fitted model")
    child.add_argument("--source", choices=("arrays", "parquet"), help="of chunked passes, with a fit")
    child.add_argument("--error", action="store_true", help="relative error of chunked passes to one pass")
    child.add_argument("--process", type=int, nargs=2, metavar=("NUMBER", "COUNT"), help="as one of several")
    child.add_argument("--address", help="of the first of them")
    child.add_argument("--cores", type=int, nargs="+", help="that it runs on")
    options = words.parse_args()
    if options.iteration or options.chunked or options.error or options.fit:
        print(json.dumps(in_child(options)))
        return 0
    out = Printer(options)
    if options.rows:
        return int(not check_commands(out, options.rows))
    if options.long or options.learn:
        long = options.long is None or check_long(out, options.long)
        return int(not (long & (options.learn is None or check_learning(out, options.learn))))
    measure(out, options.quick)
    return 0


if __name__ == "__main__":
    sys.exit(main())
