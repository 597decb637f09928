"""Build the wheel, install it without the checkout, and run the quick tests against it.

    python scripts/wheel.py                     all of them, about fifteen minutes
    python scripts/wheel.py tests/estimators    or some, with any options of pytest

The tests run in a copy of what git tracks without the folder `prodssm`, so that nothing but the wheel can be imported.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEFT_OUT = "tests/test_packaging.py"  # its claims are about the files of the checkout, which is not there


def main() -> int:
    """Return 1 if a test fails, or tests another package."""
    with tempfile.TemporaryDirectory() as folder:
        place, copy, installed = Path(folder), Path(folder) / "copy", Path(folder) / "installed"
        run = [sys.executable, "-m"]
        subprocess.run([*run, "build", "--no-isolation", "--wheel", "--outdir", place, ROOT], check=True, capture_output=True)
        wheel = next(place.glob("*.whl"))
        subprocess.run([*run, "pip", "install", "-q", "--no-deps", "--no-index", "--target", installed, wheel], check=True)
        files = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split(
            "\0"
        )
        for file in (each for each in files if each and not each.startswith("prodssm/")):
            (copy / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / file, copy / file)
        environment = os.environ | {"PYTHONPATH": str(installed)}
        where = [sys.executable, "-c", "import prodssm; print(prodssm.__file__)"]
        found = subprocess.run(where, cwd=copy, env=environment, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(found).is_relative_to(installed):
            print(f"{wheel.name}: the tests would import {found}")
            return 1
        words = sys.argv[1:] or ["tests", f"--ignore={LEFT_OUT}"]
        command = [*run, "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *words]
        good = subprocess.run(command, cwd=copy, env=environment).returncode == 0
    print(f"{wheel.name}, installed without the checkout: the quick tests {'pass' if good else 'FAIL'}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
