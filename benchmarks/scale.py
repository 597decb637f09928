"""What does size cost? Time of an iteration and of a filter against number of series, length and devices; memory of chunks.

cost = a size^p is fitted to each curve; p is printed. Devices are virtual ones of this machine's cores, each measured in a
process of its own: they show the overhead of sharing, not a speed-up.

python benchmarks/scale.py              minutes
python benchmarks/scale.py --quick
python benchmarks/scale.py --steps 100000000    the chunked filter alone, with its peak memory
python benchmarks/scale.py --rows 5000000       the command line on a CSV file of so many rows: fit, forecast, filter
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

import numpy as np

SERIES, LENGTH = (10, 100, 1000, 10_000), (1_000, 10_000, 100_000, 1_000_000)
FEW_SERIES, FEW_LENGTH = (10, 100), (1_000, 10_000)
DEVICES = (1, 2, 4)
STEPS, TOTAL = (1_000_000, 10_000_000), 10_000  # of the chunked filter; time steps of a batch while the number of series grows
CHUNK = 100_000
REPEATS = 5


def model(outputs: int = 1) -> Any:
    """Two states and a network of ten hidden units."""
    import jax.random as jr

    import prodssm as ps

    return ps.StateSpaceModel(
        initial=ps.Gaussian(np.zeros(2), np.eye(2)),
        transition=ps.Network.mlp((2, 10, 2), key=jr.key(0)),
        emission=ps.Network.from_arrays([np.eye(outputs, 2)], [np.zeros(outputs)]),
        process_noise=np.full(2, 0.01),
        measurement_noise=np.full(outputs, 0.1),
        residual=True,
    )


def seconds_of_iteration(series: int, length: int) -> float:
    """Of gradient steps on all of so many series, compilation excluded; the median of several chunks of 25."""
    import jax.random as jr

    import prodssm as ps
    from prodssm.training import loop

    rng = np.random.default_rng(0)
    data = [ps.Series(0.1 * rng.normal(size=(length, 1)).cumsum(axis=0) % 1.0) for _ in range(series)]
    loop.CHUNK = max(1, min(25, 2_000_000 // (series * length)))
    _, history = ps.train(model(), data, ps.Recipe(iterations=(REPEATS + 1) * loop.CHUNK), key=jr.key(0), progress=False)
    return float(np.median(np.diff(history.seconds)) / loop.CHUNK)


def seconds_of_filter(length: int) -> float:
    """Of one pass over a series in memory, compilation excluded."""
    import prodssm as ps

    y = np.sin(0.1 * np.arange(length))[:, None]
    found = []
    for _ in range(REPEATS):
        begin = time.monotonic()
        ps.filter_states(model(), y)
        found.append(time.monotonic() - begin)
    return float(np.median(found[1:]))


def chunked(steps: int) -> dict[str, float]:
    """Seconds, peak memory in MiB and mean log density of a chunked filter of a file that is written first."""
    import prodssm as ps
    from prodssm.data.scaling import DataScaling
    from prodssm.estimators.fitted import FittedModel
    from prodssm.methods.moments import Moments

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "y.npy"
        mapped = np.lib.format.open_memmap(path, "w+", np.float32, (steps, 1))
        del mapped
        with path.open("r+b") as file:
            file.seek(-4 * steps, os.SEEK_END)
            for begin in range(0, steps, CHUNK):
                np.sin(0.1 * np.arange(begin, min(begin + CHUNK, steps))).astype(np.float32).tofile(file)
        long = ps.LongSeries.of_arrays(np.load(path, mmap_mode="r"))
        estimator = ps.ProDSSM(progress=False)
        scaling = DataScaling.identity(1, 0)
        estimator.members_ = (FittedModel(model(), scaling, Moments(), 0),)
        estimator.scaling_, estimator.layout_ = scaling, None
        begin, total = time.monotonic(), 0.0
        for part in estimator.filter_in_chunks(long, CHUNK):
            total += float(part.log_evidence.sum(dtype=float))
        spent = time.monotonic() - begin
    return {"seconds": spent, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "score": total / steps}


def commands(rows: int) -> list[dict[str, Any]]:
    """Seconds of clock and processor, and peak memory in MiB, of each command on a CSV file that is written first."""
    import pyarrow
    from pyarrow import csv

    found, t = [], np.arange(rows)
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
            spent = {"s": time.monotonic() - begin, "cpu": used.ru_utime + used.ru_stime, "peak": used.ru_maxrss / 1024}
            found.append({"what": words[0], "size": rows, "code": os.waitstatus_to_exitcode(status)} | spent)
    return found


def elsewhere(*words: str, devices: int = 1) -> Any:
    """What this script prints in a process of its own with so many devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    run = subprocess.run(
        [sys.executable, __file__, *words], env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True
    )
    if run.returncode:
        raise RuntimeError(run.stderr[-2000:])
    return json.loads(run.stdout.splitlines()[-1])


def in_processes(count: int, series: int, length: int) -> float:
    """Seconds of an iteration that so many processes on this machine share."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    words = [sys.executable, __file__, "--iteration", str(series), str(length), "--address", f"127.0.0.1:{port}"]
    running = [
        subprocess.Popen([*words, "--process", str(n), str(count)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for n in range(count)
    ]
    try:
        found = [each.communicate(timeout=1200) for each in running]
    finally:
        for each in running:
            each.kill()
    if running[0].returncode:
        raise RuntimeError(found[0][1][-2000:])
    return json.loads(found[0][0].splitlines()[-1])["seconds"]


def predicted(alone: float, together: float, series: int) -> list[dict[str, Any]]:
    """A model, not a measurement: work divides, and every doubling of the machines adds one exchange as measured here.

    An exchange is what two processes need beyond half of the work of one, over the loopback; a network is slower or faster.
    """
    exchange = max(together - alone / 2, 0.0)
    found = []
    for machines in (10, 100, 1000):
        each = -(-max(series, machines) // machines) / series * alone
        cost = each + exchange * math.ceil(math.log2(machines))
        found.append(
            {"what": f"model, not measured: {series} series on machines", "size": machines, "s": cost, "times": alone / cost}
        )
    return found


def exponent(sizes: Any, costs: Any) -> float:
    """P of cost = a size^p, by least squares of logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def rows(quick: bool) -> list[dict[str, Any]]:
    """All measurements."""
    found = []

    def curve(what: str, sizes: Any, cost: Any, unit: str = "s") -> None:
        costs = [cost(size) for size in sizes]
        for size, value in zip(sizes, costs, strict=True):
            found.append({"what": what, "size": size, unit: value})
        found.append({"what": f"{what}: exponent", "size": "", "p": exponent(sizes, costs)})

    length = 100 if quick else 1000
    curve("iteration by number of series", FEW_SERIES if quick else SERIES[:3], lambda n: seconds_of_iteration(n, length))
    if not quick:
        curve("iteration by number of short series", SERIES, lambda n: seconds_of_iteration(n, 100))
    curve("iteration by length, 10 series", FEW_LENGTH if quick else LENGTH[:3], lambda n: seconds_of_iteration(10, n))
    curve("filter by length", FEW_LENGTH if quick else LENGTH, seconds_of_filter)
    for devices in DEVICES[:2] if quick else DEVICES:
        cost = elsewhere("--iteration", "64", str(length), devices=devices)["seconds"]
        found.append({"what": "iteration of 64 series by devices", "size": devices, "s": cost})
    series = 64 if quick else 1000
    costs = [in_processes(count, series, length) for count in (1, 2)]
    for count, cost in zip((1, 2), costs, strict=True):
        found.append({"what": f"iteration of {series} series by processes", "size": count, "s": cost})
    found += predicted(*costs, series)
    for steps in (100_000, 300_000) if quick else STEPS:
        found.append({"what": "chunked filter", "size": steps} | elsewhere("--steps", str(steps)))
    return found


def main() -> None:
    """Measure, and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--save", type=Path, help="a .jsonl file")
    parser.add_argument("--steps", type=int, help="only the chunked filter, of so many steps")
    parser.add_argument("--rows", type=int, help="only the command line, on a file of so many rows")
    parser.add_argument("--iteration", type=int, nargs=2, metavar=("SERIES", "LENGTH"), help="only an iteration")
    parser.add_argument("--process", type=int, nargs=2, metavar=("NUMBER", "COUNT"), help="as one of several processes")
    parser.add_argument("--address", help="of the first of them")
    options = parser.parse_args()
    if options.process and options.process[1] > 1:
        import jax

        jax.distributed.initialize(options.address, options.process[1], options.process[0])
    if options.steps:
        print(json.dumps(chunked(options.steps)))
        return
    if options.iteration:
        print(json.dumps({"seconds": seconds_of_iteration(*options.iteration)}))
        return
    found = commands(options.rows) if options.rows else rows(options.quick)
    for row in found:
        print(", ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{value}" for key, value in row.items()))
    if options.save is not None:
        options.save.write_text("".join(json.dumps(row) + "\n" for row in found))


if __name__ == "__main__":
    main()
