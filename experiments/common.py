"""What all experiments share: rows that are appended once and never lost, the commit they were made with, and tables."""

import argparse
import csv
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

RESULTS = Path(__file__).parent / "results"


def parser(text: str) -> argparse.ArgumentParser:
    """Arguments of every experiment."""
    found = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--quick", action="store_true", help="a smoke run of a few iterations that writes nothing")
    return found


def commit() -> str:
    """The commit that the code is at."""
    found = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=RESULTS.parent)
    return found.stdout.strip()


class Table:
    """A CSV file that grows row by row; a run that was killed goes on with the rows that are missing."""

    def __init__(self, name: str, keys: Iterable[str]):
        """Open the table; `keys` are the columns that tell one row from another."""
        self.path, self.keys = RESULTS / f"{name}.csv", tuple(keys)

    @property
    def rows(self) -> list[dict[str, str]]:
        """What is there."""
        if not self.path.exists():
            return []
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def has(self, **keys: Any) -> bool:
        """Whether a row is there."""
        return any(all(row[name] == str(keys[name]) for name in self.keys) for row in self.rows)

    def add(self, row: dict[str, Any]) -> None:
        """Append a row and say so; refuse one of other columns, which would spoil the file."""
        RESULTS.mkdir(exist_ok=True)
        fresh = not self.path.exists()
        if not fresh and list(row) != (there := self.path.read_text(encoding="utf-8").split("\n", 1)[0].split(",")):
            raise ValueError(
                f"{self.path.name} has the columns {there}, got {list(row)}; move the file away to begin a new one"
            )
        with self.path.open("a", newline="") as file:
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
    """Say what a few iterations came to, or that nobody here has the data."""
    try:
        say(run())
    except FileNotFoundError as error:
        say(f"skipped: {error}")


def mean_and_error(values: Iterable[float]) -> str:
    """Mean and standard error, as the paper prints them."""
    found = np.asarray(list(values), float)
    error = found.std(ddof=1) / np.sqrt(len(found)) if len(found) > 1 else float("nan")
    return f"{found.mean():.3f} ({error:.3f})"
