"""What commands share: reading data for a model, writing answers, and saying what happens."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from prodssm.cli.files import PLOTS, TABLES, read_table, require_source, require_target, write_answer
from prodssm.cli.settings import named

errors = Console(stderr=True, highlight=False, soft_wrap=True)


def listed(series: Any) -> list[Any]:
    """One or several series as a list."""
    return series if isinstance(series, list) else [series]


def load_model(path: Path) -> Any:
    """A fitted model from its file."""
    from prodssm import ProDSSM, load

    require_source(path)
    found = load(path)
    if not isinstance(found, ProDSSM):
        raise ValueError(f"{path} holds a {type(found).__name__}; the command line works with ProDSSM")
    return found


def opened(
    model: Path, data: Path, out: Path, plot: Path | None, delimiter: str | None, encoding: str | None, quiet: bool
) -> tuple[Any, Any]:
    """The model and the data of a question, after a look at where the answer goes."""
    for path, kinds in ((out, TABLES), (plot, PLOTS)):
        if path is not None:
            require_target(path, kinds, model, data)
    with reading(quiet):
        fitted = load_model(model)
        return fitted, read_for(fitted, data, delimiter, encoding)


def read_for(fitted: Any, path: Path, delimiter: str | None, encoding: str | None) -> Any:
    """Series like those that a model was fitted to; other columns are ignored."""
    from prodssm.data.frames import from_frames

    table = selected(read_table(path, delimiter, encoding), fitted, path)
    with named(path):
        return from_frames(table, fitted.layout_)


def selected(table: Any, fitted: Any, path: Path, *, future: bool = False) -> Any:
    """The columns that a model knows, or only those of its controls."""
    from prodssm.data.layout import require_column

    layout = fitted.layout_
    if layout is None:
        return table
    wanted = layout.inputs if future else layout.names
    with named(path):
        for name in wanted:
            require_column(name, table.column_names)
    return table.select([*wanted, *([layout.group] if layout.group in table.column_names else [])])


def controls_for(
    fitted: Any, path: Path | None, steps: int, out: Path, delimiter: str | None = None, encoding: str | None = None
) -> Any:
    """The table of the controls of a forecast or a simulation; None where none are needed."""
    if path is not None:
        require_target(out, TABLES, path)
        return selected(read_table(path, delimiter, encoding), fitted, path, future=True)
    names = [] if fitted.layout_ is None else fitted.layout_.inputs
    wanted = steps if fitted.ssm_.feedthrough else steps - 1
    if names and wanted:
        raise ValueError(f"--controls must name a file with the values of {', '.join(map(repr, names))}, {wanted} rows or more")
    return None


def write_beliefs(rule: Any, series: Any, out: Path, plot: Path | None, states: bool, probability: float, quiet: bool) -> None:
    """Filtered or smoothed outputs or states as a table, and a picture of them."""
    from prodssm.evaluation.plots import plot_states

    with working("at work", quiet):
        found = rule(series)
        shown = found if states else _outputs_of(found)
    first = shown[0] if isinstance(series, list) else shown
    label = "state" if states else "output"
    write_answer(shown.to_frame("pyarrow", probability), out, plot, lambda: plot_states(first, label=label))
    say(quiet, f"the answer is in {out}")


def _outputs_of(found: Any) -> Any:
    from prodssm.estimators.results import Panel

    return Panel([each.outputs for each in found], found.labels) if isinstance(found, Panel) else found.outputs


@contextmanager
def working(what: str, quiet: bool) -> Iterator[None]:
    """Something moves while the machine works."""
    if quiet:
        yield
        return
    with errors.status(f"{what}; the first call compiles, which takes some seconds"):
        yield


def reading(quiet: bool) -> Any:
    """Something moves while files are read."""
    return nullcontext() if quiet else errors.status("reading")


def say(quiet: bool, text: str) -> None:
    """Print a line, unless nobody wants to hear it."""
    if not quiet:
        typer.echo(text)
