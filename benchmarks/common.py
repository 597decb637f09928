"""Shared by all benchmarks: interleaved timing, JSON lines, command line, and pinning to one core.

Import this before JAX. Benchmarks run on one core unless `--all-cores` is given: waking a second thread takes longer than the
small matrix products that are compared here, by an amount that depends on the load of the machine.
"""

import argparse
import atexit
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

if "--all-cores" not in sys.argv and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import jax
import numpy as np


def parser(what: str) -> argparse.ArgumentParser:
    """The options that all benchmarks have."""
    found = argparse.ArgumentParser(description=what)
    found.add_argument("--quick", action="store_true", help="a small version that takes less than a minute")
    found.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else")
    found.add_argument("--all-cores", action="store_true", help="do not stay on one core")
    found.add_argument("--save", metavar="FILE", type=Path, help="write the JSON lines into this file as well")
    found.add_argument("--plot", metavar="FILE", type=Path, help="draw the figure into this file")
    return found


def interleaved(
    functions: dict[str, Callable[[], Any]],
    *,
    seconds: float = 0.5,
    least: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds per call of each function, interleaved so that other load on the machine affects all of them alike.

    A turn begins with a warm-up call that is not timed, because the function before may have evicted the caches, and lasts
    about ten milliseconds. A function that takes longer than a quarter of a second is timed three times without warm-up.
    Compilation is not timed. With `clock=time.process_time`, CPU seconds: on a shared machine long calls are interrupted more
    often than short ones, which a ratio of wall-clock times would show.
    """
    repeats, slow = {}, set()
    for name, function in functions.items():
        jax.block_until_ready(function())
        begin = time.perf_counter()
        jax.block_until_ready(function())
        lasted = time.perf_counter() - begin
        repeats[name] = max(1, round(1e-2 / max(lasted, 1e-6)))
        slow |= {name} if lasted > 0.25 else set()
    times: dict[str, list[float]] = {name: [] for name in functions}
    begin = time.perf_counter()
    turn = 0
    while turn < least or time.perf_counter() - begin < seconds * len(functions):
        turn += 1
        for name, function in functions.items():
            if name in slow and turn > 3:
                continue
            if name not in slow:
                jax.block_until_ready(function())
            start = clock()
            for _ in range(repeats[name]):
                jax.block_until_ready(function())
            times[name].append((clock() - start) / repeats[name])
    return {name: float(np.median(found)) for name, found in times.items()}


class Compiled(NamedTuple):
    """A compiled function bound to its arguments, its compilation time in seconds, and its peak memory in bytes."""

    run: Callable[[], Any]
    seconds: float
    bytes: int


def compiled(function: Callable[..., Any], *arguments: Any) -> Compiled:
    """Trace and compile a function of arrays; peak memory counts arguments, results and temporaries."""
    begin = time.perf_counter()
    program = jax.jit(function).lower(*arguments).compile()
    seconds = time.perf_counter() - begin
    found: Any = program.memory_analysis()
    peak = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return Compiled(lambda: program(*arguments), seconds, peak)


def verdict(claim: str, ratio: float, *, least: float | None = None, most: float | None = None) -> dict[str, Any]:
    """A row that compares a measured ratio with its promised bounds."""
    bounds = {name: bound for name, bound in (("least", least), ("most", most)) if bound is not None}
    holds = (least is None or ratio >= least) and (most is None or ratio <= most)
    return {"claim": claim, "ratio": float(ratio)} | bounds | ({"holds": bool(holds)} if bounds else {})


def exponent(sizes: Iterable[float], costs: Iterable[float]) -> float:
    """The exponent of the power law from sizes to costs, by least squares on logarithms."""
    return float(np.polyfit(np.log(list(sizes)), np.log(list(costs)), 1)[0])


def machine() -> dict[str, Any]:
    """The hardware and the version of JAX."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {"cores": cores, "machine": platform.machine(), "jax": jax.__version__}


class Printer:
    """Prints rows as JSON lines or as text, and appends them to a file if one is given."""

    def __init__(self, options: argparse.Namespace):
        self.as_json, self.save = options.json, None
        if options.save:
            options.save.parent.mkdir(parents=True, exist_ok=True)
            self.save = options.save.with_suffix(".part")
            self.save.write_text("")
            # An interrupted or failed run must not overwrite the rows of the last complete one.
            atexit.register(lambda: hasattr(sys, "last_value") or os.replace(self.save, options.save))

    def row(self, **values: Any) -> None:
        """One measured row."""
        if self.save:
            with self.save.open("a") as file:
                file.write(json.dumps(values) + "\n")
        if self.as_json:
            print(json.dumps(values), flush=True)
        else:
            print("  ".join(f"{name}={_short(value)}" for name, value in values.items()), flush=True)

    def text(self, line: str) -> None:
        """A line of text, left out with `--json`."""
        if not self.as_json:
            print(line, flush=True)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
