"""Run scripts with --quick, one after the other in one process: most of such a run would be importing and compiling."""

import runpy
import sys
from pathlib import Path

for name in sys.argv[1:]:
    print(f"{name} --quick", flush=True)
    # As Python itself does it: arguments, and the script's own folder first.
    sys.argv, sys.path[0] = [name, "--quick"], str(Path(name).parent.resolve())
    runpy.run_path(name, run_name="__main__")
