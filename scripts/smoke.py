"""Run every example and experiment with --quick, in one process: most of such a run would be importing and compiling."""

import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tests"))

from light_xla import LIGHT  # noqa: E402

os.environ.setdefault("XLA_FLAGS", LIGHT)

for path in sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "experiments").glob("*.py")]):
    if '__name__ == "__main__"' not in path.read_text(encoding="utf-8"):
        continue  # a module of the others
    print(f"{path.relative_to(ROOT)} --quick", flush=True)
    # As Python itself does it: arguments, and the script's own folder first.
    sys.argv, sys.path[0] = [str(path), "--quick"], str(path.parent)
    runpy.run_path(str(path), run_name="__main__")
