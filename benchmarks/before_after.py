"""Is this checkout as fast as another one? Before and after in one run.

The benchmark scripts of both checkouts run alternately in subprocesses, with `--quick --json`, on the same Python and with the
package of their own checkout. Only rows that time our own code are compared; rivals are ignored. The time of a row is its
minimum over the rounds, because other load on the machine only ever adds to it. Single rows remain noisy on a shared machine,
so the bound is on the geometric mean of the ratios after / before over all rows of a benchmark.

`filter` needs dynamax and cuthbert, `train` needs torch (the extra `bench`). A benchmark that fails is skipped, and its row
says why.

    python benchmarks/before_after.py --before ../older_checkout --rounds 3 --only one_step global
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import common
import numpy as np

AFTER = Path(__file__).resolve().parent.parent
MOST = 1.1  # of the geometric mean of after / before

Row = dict[str, Any]
Times = dict[tuple[tuple[str, Any], ...], float]


class Benchmark(NamedTuple):
    """How the rows of a benchmark script are matched.

    Attributes:
        ours: Whether a row times our own code.
        keys: Columns that identify a row.
        times: Columns that may hold its time.
        options: More options of the script.
    """

    ours: Callable[[Row], bool]
    keys: tuple[str, ...]
    times: tuple[str, ...]
    options: tuple[str, ...] = ()


BENCHMARKS = {
    "one_step": Benchmark(
        lambda row: row["name"].startswith(("local", "global")), ("D", "name"), ("seconds",), options=("--no-torch",)
    ),
    "filter": Benchmark(
        lambda row: row["name"] in ("moments", "linearised", "unscented"),
        ("dtype", "net", "weights", "what", "T", "name"),
        ("us_per_step",),
    ),
    "train": Benchmark(lambda row: row["name"] == "prodssm", ("problem", "T"), ("ms_per_iteration",)),
    "global": Benchmark(
        lambda row: not row["weights"].endswith(("draws", "particles")), ("part", "weights", "width", "steps"), ("ms",)
    ),
    # Of a stream the CPU time: it excludes the waiting for other processes.
    "stream": Benchmark(lambda row: True, ("net", "weights", "calls", "T"), ("cpu_us_per_call", "us_per_step")),
}


class FailedError(Exception):
    """A benchmark script failed; its message is the last line of the error."""


def run(root: Path, *arguments: str) -> str:
    """The standard output of Python in the benchmarks folder of a checkout, with the package of that checkout."""
    environment = os.environ | {"PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=root / "benchmarks", env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FailedError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return done.stdout


def require_own_package(root: Path) -> None:
    """Raise unless Python imports the package of this checkout there: an installed one might come first."""
    if not (root / "benchmarks").is_dir():
        raise SystemExit(f"{root} has no folder benchmarks")
    found = Path(run(root, "-c", "import prodssm; print(prodssm.__file__)").strip()).resolve()
    if not found.is_relative_to(root):
        raise SystemExit(f"Python imports {found} there, not the package of {root}: the comparison would be void")


def measure(root: Path, name: str) -> Times:
    """The times of our own code in one run of a benchmark."""
    benchmark, found = BENCHMARKS[name], {}
    for line in run(root, f"{name}.py", "--quick", "--json", *benchmark.options).splitlines():
        row = json.loads(line)
        time = next((row[column] for column in benchmark.times if column in row), None)
        if time is not None and benchmark.ours(row):
            found[tuple((key, row[key]) for key in benchmark.keys if key in row)] = time
    return found


def alternate(name: str, roots: dict[str, Path], rounds: int) -> dict[str, Times]:
    """The minimum over the rounds of each time, for both checkouts."""
    best: dict[str, Times] = {side: {} for side in roots}
    for number in range(rounds):
        # The order is reversed from round to round, so that a trend in the load of the machine favours neither.
        for side in list(roots)[:: 1 if number % 2 == 0 else -1]:
            try:
                found = measure(roots[side], name)
            except FailedError as error:
                raise FailedError(f"{side}: {error}") from error
            best[side] |= {key: min(time, best[side].get(key, np.inf)) for key, time in found.items()}
    return best


def compare(printer: common.Printer, name: str, best: dict[str, Times]) -> None:
    """The ratio of every matched row, their summary, and the verdict."""
    before, after = best["before"], best["after"]
    ratios = {key: after[key] / before[key] for key in before if key in after}
    for key, ratio in ratios.items():
        printer.row(table="row", benchmark=name, **dict(key), before=before[key], after=after[key], after_to_before=ratio)
    unmatched = len(before.keys() ^ after.keys())
    if not ratios:
        printer.row(table="summary", benchmark=name, rows=0, unmatched=unmatched)
        return
    worst = max(ratios, key=lambda key: ratios[key])
    values = np.array(list(ratios.values()))
    printer.row(
        table="summary",
        benchmark=name,
        rows=len(ratios),
        unmatched=unmatched,
        median_ratio=float(np.median(values)),
        worst_ratio=ratios[worst],
        worst_row=", ".join(f"{column} {value}" for column, value in worst),
    )
    mean = float(np.exp(np.log(values).mean()))
    printer.row(benchmark=name, **common.verdict(f"{name}: after / before, geometric mean of rows", mean, most=MOST))


def main() -> None:
    """Run both checkouts alternately, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="PATH", type=Path, required=True, help="the other checkout, with its benchmarks")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every script per checkout")
    parser.add_argument("--only", nargs="+", choices=BENCHMARKS, default=list(BENCHMARKS), help="some of the benchmarks")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line and nothing else")
    parser.add_argument("--save", metavar="FILE", type=Path, help="write the JSON lines into this file as well")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}")
    roots = {"before": options.before.resolve(), "after": AFTER}
    for root in roots.values():
        require_own_package(root)
    printer = common.Printer(options)
    paths = {side: str(root) for side, root in roots.items()}
    printer.row(benchmark="before_after", rounds=options.rounds, **paths, **common.machine())
    for name in options.only:
        try:
            best = alternate(name, roots, options.rounds)
        except FailedError as error:
            printer.row(table="skipped", benchmark=name, reason=str(error))
        else:
            compare(printer, name, best)


if __name__ == "__main__":
    main()
