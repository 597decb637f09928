"""Rebuild the tables of the pages in docs from the rows in experiments/results; no number is typed by hand.

A table stands between `<!-- name -->` and `<!-- end -->`; an experiment's `tables()` makes it.
"""

import importlib
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXPERIMENTS = ROOT / "experiments"
sys.path.insert(0, str(EXPERIMENTS))


def main() -> None:
    """Replace every table of every page."""
    modules = [importlib.import_module(path.stem) for path in sorted(EXPERIMENTS.glob("*.py"))]
    found = {name: table for module in modules if hasattr(module, "tables") for name, table in module.tables().items()}
    for page in (ROOT / "docs" / name for name in ("results.md", "recipe.md", "choosing.md")):
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"<!-- (?!end)(.+?) -->", text):
            pattern = rf"<!-- {re.escape(name)} -->\n.*?<!-- end -->"
            text = re.sub(pattern, lambda _, name=name: f"<!-- {name} -->\n{found[name]}\n<!-- end -->", text, flags=re.S)
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
