"""What all experiments share: a frozen spec per row, rows that are appended once and never lost, provenance, and tables."""

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def main(
    text: str | None,
    name: str,
    specs: Sequence[Any],
    run: Callable[[Any], dict[str, Any]],
    quick: Callable[[], Any],
    tables: Callable[[], dict[str, str]],
) -> None:
    """Run the specs whose rows are missing, then print the tables.

    Args:
        text: What the experiment is.
        name: Name of the CSV file.
        specs: Frozen data classes, one per row; their fields are the key of a row.
        run: Makes the row of a spec; it begins with the fields of the spec.
        quick: A smoke run of a few iterations that writes nothing.
        tables: The tables of docs/results.md by name.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a smoke run of a few iterations that writes nothing")
    if parser.parse_args().quick:
        smoke(quick)
        return
    there = {tuple(row[key] for key in asdict(specs[0])) for row in rows(name)}
    for spec in specs:
        if tuple(str(value) for value in asdict(spec).values()) not in there:
            append(name, run(spec))
    for table in tables().values():
        say(table)


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


def smoke(run: Callable[[], Any]) -> None:
    """Print what a few iterations came to, or that the data are not on this machine."""
    try:
        say(run())
    except FileNotFoundError as error:
        say(f"skipped: {error}")


def mean_and_error(values: Iterable[float]) -> str:
    """Mean and standard error, as the paper prints them."""
    found = np.asarray(list(values), float)
    if not len(found):
        return ""
    error = f" ({found.std(ddof=1) / np.sqrt(len(found)):.3f})" if len(found) > 1 else ""
    return f"{found.mean():.3f}{error}" if abs(found.mean()) >= 0.01 or len(found) > 1 else f"{found.mean():.3g}"


def markdown(head: Sequence[str], body: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
