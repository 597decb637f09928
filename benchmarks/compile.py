"""What does compilation cost a user who refits, forecasts many lengths, tries many sizes, or works on a busy machine?

Every part runs in a process of its own, because compiled programs stay. `--before PATH` runs the parts that another checkout
can run with its package too. Seconds of compilation are those that JAX reports for its backend. `--parts sizes` fits 300 models
of 300 hidden sizes in one process, and `--parts stall` a thousand models of 50 outputs; both are left out of `--quick`.

    python benchmarks/compile.py --before ../older_checkout
"""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.argv.append("--all-cores")  # compilers use all of them, and so do the processes of the parts
import common  # noqa: E402
import jax  # noqa: E402
import numpy as np  # noqa: E402

import prodssm as ps  # noqa: E402

HERE = Path(__file__).resolve()
LONGEST = 300


class Compilation:
    """Seconds that the backend has spent on compilation, and the number of programs."""

    def __init__(self):
        self.seconds, self.programs = 0.0, 0
        jax.monitoring.register_event_duration_secs_listener(self._add)

    def _add(self, name: str, seconds: float, **_: Any) -> None:
        if name.endswith("backend_compile_duration"):
            self.seconds, self.programs = self.seconds + seconds, self.programs + 1


def wave(length: int = LONGEST, outputs: int = 1) -> np.ndarray:
    """A noisy wave."""
    draw = np.random.default_rng(0)
    return np.sin(0.3 * np.arange(length))[:, None] + 0.1 * draw.normal(size=(length, outputs))


def estimator(**settings: Any) -> ps.ProDSSM:
    """A model that is trained for a moment."""
    return ps.ProDSSM(emission="identity", progress=False, recipe=ps.Recipe(iterations=25), **settings)


# ---------------------------------------------------------------- parts, each in a process of its own


def backtest(quick: bool) -> dict[str, Any]:
    """Refits and forecasts over histories of 150 to 300 points."""
    spent, y, folds = Compilation(), wave(), 10 if quick else 50
    lengths, first = np.linspace(LONGEST // 2, LONGEST - 1, folds).round().astype(int), 0.0
    begin = time.perf_counter()
    for fold, length in enumerate(lengths):
        estimator(hidden=(20,)).fit(y[:length]).forecast(y[:length], steps=10).interval()
        first = spent.seconds if fold == 0 else first
    return {
        "folds": folds,
        "seconds": time.perf_counter() - begin,
        "programs": spent.programs,
        "first": first,
        "compilation": spent.seconds,
    }


def growing(quick: bool) -> dict[str, Any]:
    """Forecasts of 40 growing histories with a fitted model."""
    y, count = wave(), 10 if quick else 40
    model = estimator(hidden=(20,)).fit(y[:100])
    model.forecast(y[:100], steps=10).interval()
    spent, begin = Compilation(), time.perf_counter()
    for length in np.linspace(101, LONGEST, count).astype(int):
        model.forecast(y[:length], steps=10).interval()
    return {"forecasts": count, "seconds": time.perf_counter() - begin, "programs": spent.programs}


def sizes(quick: bool) -> dict[str, Any]:
    """Fits of many hidden sizes in one process, and the memory maps that it has."""
    count, y, begin, maps = 10 if quick else 300, wave(60), time.perf_counter(), []
    for hidden in range(5, 5 + count):
        estimator(hidden=(hidden,), weights="point").fit(y)
        maps.append(Path("/proc/self/maps").read_bytes().count(b"\n"))
    return {"sizes": count, "seconds": time.perf_counter() - begin, "maps": maps[-1], "most_maps": max(maps)}


def solves() -> Callable[[], Any]:
    """Sixty batches of twelve 50 x 50 triangular solves, as one program of the library."""
    from prodssm._compilation import compiled

    @compiled
    def run(chol: jax.Array, rows: jax.Array) -> jax.Array:
        def body(_: Any, rows: jax.Array) -> jax.Array:
            return jax.vmap(lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True))(chol, rows)

        return jax.lax.fori_loop(0, 60, body, rows)

    draw = np.random.default_rng(0)
    chol = np.tril(draw.normal(size=(12, 50, 50)) * 0.1) + np.eye(50)
    rows = draw.normal(size=(12, 50, 50))
    return lambda: run(chol.astype(np.float32), rows.astype(np.float32))


def _spin() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Other processes that compute all the time."""
    workers = [multiprocessing.get_context("spawn").Process(target=_spin, daemon=True) for _ in range(processes)]
    for worker in workers:
        worker.start()
    time.sleep(1.0)
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()


def stall(quick: bool) -> dict[str, Any]:
    """Batched solves beside two busy processes, and many fits of a model with 50 outputs there."""
    run, fits = solves(), 20 if quick else 1000
    quiet = common.interleaved({"quiet": run}, seconds=1.0)["quiet"]
    model, y = estimator(hidden=(5,), latent_dim=4, emission="linear", weights="point"), wave(40, 50)
    with busy(2):
        loud = common.interleaved({"loud": run}, seconds=1.0)["loud"]
        begin = time.perf_counter()
        for _ in range(fits):
            model.fit(y)
        seconds = time.perf_counter() - begin
    return {"quiet_ms": 1e3 * quiet, "busy_ms": 1e3 * loud, "ratio": loud / quiet, "fits": fits, "fit_seconds": seconds}


def interrupt(quick: bool) -> dict[str, Any]:
    """Seconds from a signal to the return of a fit, while it is compiled and while it is trained."""
    found: dict[str, Any] = {}
    for name, after, number in (("compiling", 4.0, signal.SIGINT), ("training", 20.0, signal.SIGTERM)):
        model = ps.ProDSSM(emission="identity", hidden=(50, 50), progress=False, recipe=ps.Recipe(iterations=10**9))
        sent: list[float] = []

        def send(after: float = after, number: int = number, sent: list[float] = sent) -> None:
            time.sleep(after)
            sent.append(time.perf_counter())
            os.kill(os.getpid(), number)

        threading.Thread(target=send, daemon=True).start()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.fit(wave(2000, 4))
        found[f"{name}_seconds"] = time.perf_counter() - sent[0]
        found[f"{name}_said"] = any("interrupted" in str(warning.message) for warning in said)
    return found


def start(quick: bool) -> dict[str, Any]:
    """A fit and a forecast in a new process; with a cache on disk if the environment names a folder."""
    folder = os.environ.get("PRODSSM_BENCHMARK_CACHE")
    if folder:
        ps.enable_compilation_cache(folder)
    begin = time.perf_counter()
    model = estimator().fit(wave())
    fitted = time.perf_counter()
    model.forecast(wave(), steps=10)
    return {"fit_seconds": fitted - begin, "forecast_seconds": time.perf_counter() - fitted}


PARTS = {part.__name__: part for part in (backtest, growing, sizes, stall, interrupt, start)}
OLDER = ("backtest", "growing")  # what a checkout without these functions can run
LONG = ("sizes", "stall")


def in_process(part: str, quick: bool, package: Path, **environment: str) -> dict[str, Any]:
    """What a part finds in a new process with the package of a checkout."""
    program = [sys.executable, str(HERE), "--part", part, *(["--quick"] if quick else [])]
    done = subprocess.run(
        program, env=os.environ | {"PYTHONPATH": str(package)} | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def report(printer: common.Printer, part: str, found: dict[str, Any]) -> None:
    """The verdicts of a part."""
    if part == "backtest":
        ratio = found["compilation"] / found["first"]
        printer.row(**common.verdict("compilation of all folds / of one fit and forecast", ratio, most=5.0))
    if part == "growing":
        printer.row(**common.verdict("seconds of all forecasts of growing histories", found["seconds"], most=4.0))
    if part == "sizes":
        printer.row(**common.verdict("memory maps / the limit of the kernel", found["most_maps"] / 65_530, most=1.0))
    if part == "stall":
        printer.row(**common.verdict("triangular solves, busy / quiet", found["ratio"], most=5.0))
    if part == "interrupt":
        for name in ("compiling", "training"):
            seconds = found[f"{name}_seconds"]
            printer.row(**common.verdict(f"seconds until an interrupted fit returns, {name}", seconds, most=2.0))


def main() -> None:
    """Run the parts, compare."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--before", metavar="PATH", type=Path, help="another checkout")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="some of the parts")
    parser.add_argument("--part", choices=PARTS, help="run one part in this process and print what it finds")
    options = parser.parse_args()
    if options.part:
        warnings.simplefilter("ignore")
        print(json.dumps(PARTS[options.part](options.quick)))
        return
    printer = common.Printer(options)
    printer.row(benchmark="compile", **common.machine())
    for part in options.parts or [name for name in PARTS if not (options.quick and name in LONG)]:
        if options.before and part in OLDER:
            printer.row(part=part, package="before", **in_process(part, options.quick, options.before.resolve()))
        found = in_process(part, options.quick, HERE.parent.parent)
        printer.row(part=part, package="this", **found)
        report(printer, part, found)
        if part == "start":
            with tempfile.TemporaryDirectory() as folder:
                for name in ("written", "read"):
                    found = in_process(part, options.quick, HERE.parent.parent, PRODSSM_BENCHMARK_CACHE=folder)
                    printer.row(part=part, package="this", cache=name, **found)


if __name__ == "__main__":
    main()
