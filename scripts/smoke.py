"""Run every example and experiment with --quick, in one process: most of such a run would be importing and compiling."""

import os
import runpy
import sys
from pathlib import Path

os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1",
)
ROOT = Path(__file__).parent.parent

for path in sorted([*(ROOT / "examples").glob("*.py"), *(ROOT / "experiments").glob("*.py")]):
    if '__name__ == "__main__"' not in path.read_text(encoding="utf-8"):
        continue  # a module of the others
    print(f"{path.relative_to(ROOT)} --quick", flush=True)
    # As Python itself does it: arguments, and the script's own folder first.
    sys.argv, sys.path[0] = [str(path), "--quick"], str(path.parent)
    runpy.run_path(str(path), run_name="__main__")
