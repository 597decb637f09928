"""What all experiments share: a frozen spec per row, rows that are appended once and never lost, provenance, and tables.

An experiment is a module with

    NAME        of its CSV file in results/
    SPECS       frozen data classes, one per row; their fields are the key of a row
    run         makes the row of a spec; it begins with the fields of the spec
    QUICK       a smoke run: specs with settings for `run`
    tables      the tables of the pages in docs, by name

and is run by `python experiments/kink.py`. Rows that are there are not made again: an interrupted run resumes. Jobs go through
joblib: `--jobs 2` makes two rows at a time, `--backend dask` on a Dask cluster (of DASK_SCHEDULER_ADDRESS, else a local one),
`--backend ray` on a Ray cluster. `--only weights=local --only r=0.8` chooses rows.
"""

import argparse
import csv
import importlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import joblib
import numpy as np

RESULTS = Path(__file__).parent / "results"
BACKENDS = ("loky", "threading", "dask", "ray")

Call = tuple[Any, dict[str, Any]]
"""A spec, and settings for `run`."""


def main(file: str) -> None:
    """Run an experiment, given the path of its module: make the rows that are missing, then print its tables."""
    # By its name, not as __main__: other processes can import it.
    experiment: Any = importlib.import_module(Path(file).stem)
    parser = arguments(experiment.__doc__)
    parser.add_argument("--only", action="append", default=[], metavar="FIELD=VALUE", help="rows of this value; repeatable")
    options = parser.parse_args()
    if options.quick:
        smoke(experiment.run, experiment.QUICK, options)
        return
    make_rows(experiment.NAME, experiment.run, chosen(experiment.SPECS, options.only), options)
    for table in experiment.tables().values():
        say(table)


def arguments(text: str | None) -> argparse.ArgumentParser:
    """The options of all experiments."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few iterations that writes nothing")
    parser.add_argument("--jobs", type=int, default=1, help="rows at a time")
    parser.add_argument("--backend", choices=BACKENDS, default="loky", help="where they are made, see joblib")
    return parser


def chosen(specs: Sequence[Any], only: Sequence[str]) -> list[Any]:
    """The specs with these values, each written FIELD=VALUE."""
    wanted = [part.split("=", 1) for part in only]
    for field, *value in wanted:
        if not value or field not in asdict(specs[0]):
            raise SystemExit(f"--only takes FIELD=VALUE with a field of {', '.join(asdict(specs[0]))}, got {field}")
    return [spec for spec in specs if all(str(getattr(spec, field)) == value for field, value in wanted)]


def make_rows(name: str, run: Callable[..., dict[str, Any]], specs: Sequence[Any], options: argparse.Namespace) -> None:
    """Make the rows that are missing, and append each as it is done."""
    if not specs:
        return
    there = {tuple(row[key] for key in asdict(specs[0])) for row in rows(name)}
    left = [(spec, {}) for spec in specs if tuple(str(value) for value in asdict(spec).values()) not in there]
    for row in made(run, left, options):
        append(name, row)


def made(run: Callable[..., Any], calls: Sequence[Call], options: argparse.Namespace) -> Iterator[Any]:
    """Rows in the order in which they are done."""
    with cluster(options), joblib.parallel_config(backend=options.backend, n_jobs=options.jobs):
        tasks = (joblib.delayed(whole)(run, spec, settings) for spec, settings in calls)
        yield from joblib.Parallel(return_as="generator_unordered")(tasks)


def whole(run: Callable[..., Any], spec: Any, settings: dict[str, Any]) -> Any:
    """The row of a spec. A signal leaves none: an interrupted fit would return its best model so far, and make another row."""
    signals: list[int] = []

    def interrupt(number: int, _: Any) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    alone = threading.current_thread() is threading.main_thread()
    before = {each: signal.signal(each, interrupt) for each in (signal.SIGINT, signal.SIGTERM)} if alone else {}
    try:
        row = run(spec, **settings)
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    if signals:
        raise KeyboardInterrupt
    return row


def cluster(options: argparse.Namespace) -> AbstractContextManager[Any]:
    """The cluster that a backend needs, if any."""
    if options.backend == "dask":
        from distributed import Client  # an extra

        address = os.environ.get("DASK_SCHEDULER_ADDRESS")
        local = {} if address else {"n_workers": options.jobs, "threads_per_worker": 1, "dashboard_address": None}
        return Client(address, **local)
    if options.backend == "ray":
        from ray.util.joblib import register_ray  # an extra

        register_ray()
    return nullcontext()


def commit() -> str:
    """The commit that the code is at."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return found.stdout.strip()


def rows(name: str) -> list[dict[str, str]]:
    """The rows of one experiment; none if it has not run."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def append(name: str, row: dict[str, Any]) -> None:
    """Append a row and print it; refuse one of other columns, which would spoil the file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.csv"
    fresh = not path.exists()
    if not fresh and list(row) != (there := path.read_text(encoding="utf-8").split("\n", 1)[0].split(",")):
        raise ValueError(f"{path.name} has the columns {there}, got {list(row)}; move the file away to begin a new one")
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
        if fresh:
            writer.writeheader()
        writer.writerow(row)
    say(row)


def say(what: Any) -> None:
    """Print at once."""
    sys.stdout.write(f"{what}\n")
    sys.stdout.flush()


def smoke(run: Callable[..., Any], calls: Sequence[Call], options: argparse.Namespace) -> None:
    """Print what a few iterations came to, or that the data are not on this machine."""
    try:
        for row in made(run, calls, options):
            say(row)
    except FileNotFoundError as error:
        say(f"skipped: {error}")


def mean_and_error(values: Iterable[float]) -> str:
    """Mean and standard error, as the paper prints them."""
    found = np.asarray(list(values), float)
    if not len(found):
        return ""
    error = f" ({standard_error(found):.3f})" if len(found) > 1 else ""
    return f"{found.mean():.3f}{error}" if abs(found.mean()) >= 0.01 or len(found) > 1 else f"{found.mean():.3g}"


def standard_error(values: np.ndarray) -> float:
    """Of the mean; NaN of one value."""
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def against_paper(values: Iterable[float], paper: str, note: str = "") -> str:
    """Ours, a verdict, the paper's: "like" within two standard errors of the difference.

    Args:
        values: Of our runs; the smaller the better.
        paper: "mean(standard error)" as printed, whose rounding counts as an error of half a digit at least; or no number.
        note: Stands behind our number.
    """
    found, number = np.asarray(list(values), float), re.match(r"(-?[\d.]+)\(([\d.]+)\)", paper)
    if not len(found):
        return f"- / {paper}"
    ours = mean_and_error(found) + note
    if number is None:
        return f"{ours} / {paper}"
    mean, error = float(number[1]), max(float(number[2]), 0.005)
    own = standard_error(found) if len(found) > 1 else error
    difference = found.mean() - mean
    verdict = "like" if abs(difference) <= 2 * np.hypot(own, error) else "better than" if difference < 0 else "worse than"
    return f"{ours} {verdict} {paper}"


def markdown(head: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
