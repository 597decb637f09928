"""Run the tutorials and write their pages: a script in examples/tutorials becomes a page with its pictures in docs/tutorials.

A tutorial is a script of cells, as editors and notebooks know them: "# %% [markdown]" begins text, "# %%" begins code. Under a
code cell the page shows what the cell printed and the figures that it drew.

    python scripts/tutorials.py            all of them
    python scripts/tutorials.py tanks      one
    python scripts/tutorials.py --check    run them, write nothing
"""

import argparse
import contextlib
import io
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from PIL import Image

ROOT = Path(__file__).parent.parent
SCRIPTS, PAGES = ROOT / "examples" / "tutorials", ROOT / "docs" / "tutorials"
COLOURS = 128
MARKER = re.compile(r"^# %%(.*)$", flags=re.M)


class Cell(NamedTuple):
    """Text or code of a tutorial, and its first line in the script."""

    text: bool
    content: str
    line: int


def cells(script: str) -> list[Cell]:
    """The cells of a script; what comes before the first marker is its own docstring and is not shown."""
    starts = list(MARKER.finditer(script))
    found = []
    for start, following in zip(starts, [*starts[1:], None], strict=True):
        content = script[start.end() : following.start() if following else None]
        text, line = "[markdown]" in start[1], script[: start.end()].count("\n") + 1
        if text:
            content = re.sub(r"^# ?", "", content, flags=re.M)
        found.append(Cell(text, content.strip("\n"), line))
    return found


def page(path: Path, images: Path) -> Iterator[str]:
    """Run a tutorial, cell by cell, save its pictures, and yield the parts of its page."""
    names: dict[str, object] = {"__name__": "__main__"}
    figures, title = 0, path.stem
    for cell in cells(path.read_text(encoding="utf-8")):
        if cell.text:
            title = [title, *re.findall(r"^#+ (.*)$", cell.content, flags=re.M)][-1]
            yield cell.content
            continue
        yield f"```python\n{cell.content}\n```"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("\n" * cell.line + cell.content, str(path), "exec"), names)
        if printed.getvalue().strip():
            yield f"```text\n{printed.getvalue().rstrip()}\n```"
        for number in plt.get_fignums():
            figures += 1
            picture = f"{path.stem}_{figures}.png"
            save(plt.figure(number), images / picture)
            yield f"![{title}](images/{picture})"
        plt.close("all")
    yield f"This page is `examples/tutorials/{path.name}`, run by `make tutorials`."


def save(figure: plt.Figure, path: Path) -> None:
    """Write a figure with few colours, which makes a small file."""
    raw = io.BytesIO()
    figure.savefig(raw, dpi=100)
    Image.open(raw).convert("RGB").quantize(COLOURS).save(path, optimize=True)


def main() -> None:
    """Run all of them, or those that are named."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("names", nargs="*")
    options.add_argument("--check", action="store_true", help="run them, write nothing")
    chosen = options.parse_args()
    (PAGES / "images").mkdir(parents=True, exist_ok=True)
    known = {path.stem: path for path in sorted(SCRIPTS.glob("*.py"))}
    if unknown := set(chosen.names) - known.keys():
        options.error(f"no tutorial {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    for name in chosen.names or known:
        begin = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            images = Path(folder) if chosen.check else PAGES / "images"
            text = "\n\n".join(page(known[name], images)) + "\n"
        if not chosen.check:
            (PAGES / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
