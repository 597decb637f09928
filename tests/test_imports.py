"""Imports point one way, and importing the library changes nothing."""

import ast
import subprocess
import sys
from pathlib import Path

import prodssm

ROOMS = ["checks", "metrics", "persistence"]
ROOMS += ["linalg", "gaussian", "links", "weights", "quadrature", "activations", "layers", "network", "methods"]
ROOMS += ["model", "series", "datasets", "inference", "units", "objective", "batches", "training"]
ROOMS += ["held_out", "subspace", "assembly", "checking"]
ROOMS += ["frames", "answers", "mixture", "regression", "regressor", "estimators", "plots"]
PACKAGE = Path(prodssm.__file__).parent


def imported_rooms(file):
    """Rooms of the library that a file imports, wherever in the file the import stands."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file.name}: relative imports hide where they point"
            names = [node.module]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "prodssm":
                yield name.split(".")[1] if "." in name else ""


def test_each_room_imports_only_rooms_before_it():
    for file in sorted(PACKAGE.rglob("*.py")):
        room = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in ROOMS, f"{room} has no place in the order of rooms"
        for other in imported_rooms(file):
            assert other in ROOMS, f"{room} imports {other or 'the package itself'}"
            earlier = ROOMS.index(other) < ROOMS.index(room)
            assert earlier or (room == other and room in ("methods", "datasets")), f"{room} imports {other}"


def test_the_linear_algebra_and_the_checks_know_nothing_of_the_library():
    for room in ("linalg", "checks"):
        assert list(imported_rooms(PACKAGE / f"{room}.py")) == []


def test_only_linalg_factorises():
    for file in sorted(PACKAGE.rglob("*.py")):
        if file.name == "linalg.py":
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Attribute):
                assert node.attr not in {"cholesky", "inv", "solve_triangular", "cho_solve", "svd"} or (
                    isinstance(node.value, ast.Name) and node.value.id in ("np", "_numpy")
                ), f"{file.name} calls {node.attr}"


def test_importing_sets_no_jax_flag_and_starts_no_device():
    program = (
        "import jax\n"
        "before = dict(jax.config.values)\n"
        "import prodssm\n"
        "assert dict(jax.config.values) == before\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a computation ran on import'\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
