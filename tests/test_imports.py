"""Imports point one way, importing the library changes nothing, and files and functions stay small."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import prodssm as ps

PACKAGE = Path(ps.__file__).parent
ORDER = ["_compilation", "_jobs", "_progress", "_validation", "_files", "_storage", "beliefs", "networks", "methods", "data"]
ORDER += ["models", "training", "scoring", "estimators", "evaluation", "adapters", "cli"]
ALSO = {
    "datasets": {"_compilation", "_validation", "data", "datasets"},
    "baselines": {*ORDER[: ORDER.index("training") + 1], "baselines"},
}
LONGEST_FILE, LONGEST_FUNCTION = 350, 60


def imported_rooms(tree, file):
    """Rooms of the library that a file imports at its top level; inside a function a facade may lean on a later room."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide where they point"
            names = [f"{node.module}.{alias.name}" if node.module == "prodssm" else node.module for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "prodssm":
                yield name.split(".")[1] if "." in name else ""


def sources():
    for file in sorted(PACKAGE.rglob("*.py")):
        yield file.relative_to(PACKAGE), file.read_text(encoding="utf-8")


def test_each_room_imports_only_itself_and_rooms_before_it():
    for file, text in sources():
        room = file.parts[0].removesuffix(".py")
        if room == "__init__":
            continue
        assert room in ORDER or room in ALSO, f"{room} has no place in the order of rooms (docs/architecture.md)"
        allowed = ALSO[room] if room in ALSO else set(ORDER[: ORDER.index(room) + 1])
        for other in imported_rooms(ast.parse(text), file):
            assert other in allowed, f"{file} imports {other or 'the package itself'}"


def test_only_linalg_factorises():
    for file, text in sources():
        if file.name == "linalg.py":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Attribute) and node.attr in {"cholesky", "inv", "solve_triangular", "cho_solve", "svd"}:
                assert ast.unparse(node.value) == "np.linalg", f"{file} calls {node.attr}"


def test_files_and_functions_stay_small():
    for file, text in sources():
        assert text.count("\n") <= LONGEST_FILE, f"{file} has more than {LONGEST_FILE} lines"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                documented = isinstance(node.body[0], ast.Expr) and isinstance(node.body[0].value, ast.Constant)
                docstring = node.body[0].end_lineno - node.body[0].lineno + 1 if documented else 0
                length = node.end_lineno - node.lineno + 1 - docstring
                assert length <= LONGEST_FUNCTION, f"{file}: {node.name} has {length} lines"


def test_estimators_have_few_parameters():
    for estimator in (ps.ProDSSM, ps.DeepStochasticRegressor):
        assert len(inspect.signature(estimator).parameters) <= 16


def test_importing_leaves_slow_modules_to_the_functions_that_need_them():
    slow = ["scipy", "sklearn", "pandas", "polars", "pyarrow", "matplotlib", "joblib", "distributed", "prodssm.estimators"]
    program = f"import sys, prodssm\nprint(*sorted(set({slow!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_every_public_name_resolves_and_is_listed():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = [alias.asname for node in imports for alias in node.names if alias.asname]
    assert len(names) == len(set(names)) >= 40
    assert set(ps._ESTIMATORS) <= set(names)
    for name in names:
        assert name in dir(ps)
        assert getattr(ps, name) is not None
    with pytest.raises(AttributeError, match="module 'prodssm' has no attribute 'Nothing'"):
        _ = ps.Nothing


def test_importing_sets_no_jax_flag_starts_no_device_and_needs_no_optional_library():
    program = (
        "import jax, sys\n"
        "before = dict(jax.config.values)\n"
        "import prodssm\n"
        "assert dict(jax.config.values) == before\n"
        "assert not {'sktime', 'skpro'} & set(sys.modules), 'an optional library was imported'\n"
        "from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'a computation ran on import'\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
