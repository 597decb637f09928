"""Run the unit tests on every Python that is installed, and on the oldest and newest versions of what the package needs.

"pinned" takes the pins of constraints.txt, "oldest" the lower bounds of pyproject.toml, "newest" what pip finds where NEEDED
and what follows from them are not pinned, on the oldest Python and on the youngest, which has newer ones. sktime and skpro hold
pandas back, so that their adapters are not tested beside the newest. Each environment is a copy of what git tracks in
.cache/versions, with constraints and a virtual environment of its own; its versions are printed.

    python scripts/versions.py                     all of them, about ten minutes each
    python scripts/versions.py --only oldest-3.11
    python scripts/versions.py --list
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PYTHONS = ("3.11", "3.12", "3.13")
NEEDED = ("jax", "equinox", "optax", "scikit-learn", "numpy", "pandas")
FOLLOWS = ("jaxlib", "ml_dtypes", "scipy", "numba", "llvmlite")  # from the versions of those
WITHOUT_ADAPTERS = {"PYTEST_ADDOPTS": "--ignore=tests/adapters"}
ALSO_OLD = {
    "pandas": "2.2.3",
    "jaxlib": None,
    "ml_dtypes": None,
}  # of the tests; what follows from other versions is not pinned


def interpreter(version: str) -> str | None:
    """A Python of this version; None if there is none."""
    found = [shutil.which(f"python{version}"), *map(str, Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))]
    for each in found:
        if each is not None and subprocess.run([each, "-c", ""], capture_output=True).returncode == 0:
            return each
    return None


def oldest() -> str:
    """constraints.txt with the lower bounds of what the package needs."""
    needs = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    bounds = {re.split(r"[><=\[]", need)[0]: re.search(r">=([\d.]+)", need) for need in needs}
    pins = {name: bound[1] for name, bound in bounds.items() if bound} | ALSO_OLD
    lines = []
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name = line.split("==")[0]
        if name not in pins:
            lines.append(line)
        elif pins[name] is not None:
            lines.append(f"{name}=={pins[name]}.0" if pins[name].count(".") == 1 else f"{name}=={pins[name]}")
    return "\n".join(lines) + "\n"


def newest() -> str:
    """constraints.txt without the pins of what is to be the newest."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return "\n".join(line for line in lines if line.split("==")[0] not in NEEDED + FOLLOWS) + "\n"


def environments() -> dict[str, tuple[str, str]]:
    """Interpreter and constraints of each environment that this machine can have."""
    pythons = {version: found for version in PYTHONS if (found := interpreter(version)) is not None}
    pinned = (ROOT / "constraints.txt").read_text()
    ordered = sorted(pythons, key=lambda version: int(version.split(".")[1]))
    result = {f"pinned-{version}": (pythons[version], pinned) for version in ordered}
    first, last = ordered[0], ordered[-1]
    result |= {f"newest-{version}": (pythons[version], newest()) for version in (first, last)}
    return {f"oldest-{first}": (pythons[first], oldest())} | result


def passes(name: str, python: str, constraints: str) -> bool:
    """Whether the unit tests pass there; what they print is kept beside it."""
    place = ROOT / ".cache" / "versions" / name
    place.mkdir(parents=True, exist_ok=True)
    files = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True).stdout.split("\0")
    for file in (each for each in files if each and each != "constraints.txt"):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / file, place / file)
    pins = place / "constraints.txt"  # its time decides whether make installs anew
    if not pins.exists() or pins.read_text() != constraints:
        pins.write_text(constraints)
    steps, environment = [["make", ".venv/test", f"PYTHON={python}"]], dict(os.environ)
    if name.startswith("newest"):
        pip = [".venv/bin/python", "-m", "pip", "--disable-pip-version-check", "-q"]
        steps.append([*pip, "install", "--no-compile", "--no-deps", "--upgrade", "pandas"])
        environment |= WITHOUT_ADAPTERS
    steps.append(["make", "unit", f"PYTHON={python}"])
    with (place.parent / f"{name}.log").open("w") as log:
        runs = (subprocess.run(step, cwd=place, env=environment, stdout=log, stderr=subprocess.STDOUT) for step in steps)
        return all(run.returncode == 0 for run in runs)


def versions(name: str) -> str:
    """What an environment has of the packages in question."""
    code = "import sys; from importlib.metadata import version; print(*(f'{n} {version(n)}' for n in sys.argv[1:]), sep=', ')"
    python = ROOT / ".cache" / "versions" / name / ".venv" / "bin" / "python"
    return subprocess.run([python, "-c", code, *NEEDED], capture_output=True, text=True).stdout.strip()


def main() -> int:
    """Return 1 if tests fail anywhere."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    found = environments()
    if unknown := set(options.only) - set(found):
        raise SystemExit(f"--only takes {', '.join(found)}; got {', '.join(unknown)}")
    failed = 0
    for name, (python, constraints) in found.items():
        if options.list:
            print(name)
        if options.list or (options.only and name not in options.only):
            continue
        begin = time.monotonic()
        good = passes(name, python, constraints)
        failed += not good
        verdict = "passes" if good else f"FAILS, see .cache/versions/{name}.log"
        print(f"{name}: {verdict} ({time.monotonic() - begin:.0f} s; {versions(name)})")
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
