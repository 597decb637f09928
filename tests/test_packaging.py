"""The wheel holds the package and nothing else, works without the checkout, and the sdist builds the same wheel."""

import email
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import prodssm as ps
from prodssm.cli import main

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
# Extras whose packages are commands or bring other extras.
TOOLS = {"test", "dev", "docs"}

QUICK_START = """
import sys
sys.path[:] = [folder for folder in sys.path if folder != sys.argv[1]]  # an editable installation puts the checkout there
import prodssm as ps
print(ps.__file__)
run = ps.datasets.tanks.simulate(seed=0, steps=60)
past, planned = ps.Series(run.y[:50], u=run.u[:50]), run.u[50:]
model = ps.ProDSSM(hidden=(5,), latent_dim=2, n_estimators=1, recipe=ps.Recipe(iterations=25), progress=False).fit(past)
model.save("tanks.safetensors")
ahead = ps.load("tanks.safetensors").forecast(past, steps=10, u=planned)
print(ahead.mean.shape, (ahead.std > 0).all())
"""


def run(*command, **options):
    """The output of a command that succeeds."""
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(source, into, *formats):
    # Without isolation: the backend is that of the environment, and nothing is downloaded.
    run("-m", "build", "--no-isolation", *formats, "--outdir", into, source)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Paths of a wheel and an sdist, both made of the checkout."""
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder, "--wheel", "--sdist")
    return next(folder.glob("*.whl")), next(folder.glob("*.tar.gz"))


def contents(wheel):
    """Checksums of the files of a wheel, by name."""
    with zipfile.ZipFile(wheel) as file:
        return {info.filename: info.CRC for info in file.infolist() if not info.is_dir()}


@pytest.mark.slow
def test_the_wheel_holds_every_module_the_parts_of_the_report_the_type_marker_the_licence_and_nothing_else(built):
    info = f"prodssm-{ps.__version__}.dist-info"
    names = set(contents(built[0]))
    files = [*(ROOT / "prodssm").rglob("*.py"), *(ROOT / "prodssm" / "evaluation" / "assets").iterdir()]
    wanted = {file.relative_to(ROOT).as_posix() for file in files}
    assert {name for name in names if not name.startswith(info)} == wanted | {"prodssm/py.typed"}
    assert f"{info}/licenses/LICENSE" in names
    with zipfile.ZipFile(built[0]) as file:
        assert file.read(f"{info}/entry_points.txt").decode() == "[console_scripts]\nprodssm = prodssm.cli:main\n"


@pytest.mark.slow
def test_the_metadata_name_version_extras_and_description(built):
    with zipfile.ZipFile(built[0]) as file:
        found = email.message_from_bytes(file.read(f"prodssm-{ps.__version__}.dist-info/METADATA"))
    assert (found["Name"], found["Version"], found["License-Expression"]) == ("prodssm", ps.__version__, "Apache-2.0")
    assert set(found.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"])
    assert found.get_payload().startswith("# prodssm")


@pytest.mark.slow
def test_the_sdist_builds_the_same_wheel(built, tmp_path):
    wheel, sdist = built
    with tarfile.open(sdist) as file:
        file.extractall(tmp_path, filter="data")
    source = tmp_path / f"prodssm-{ps.__version__}"
    assert {"LICENSE", "README.md", "tests", "Makefile"} <= {path.name for path in source.iterdir()}
    assert not [path for path in source.rglob("*") if path.suffix == ".pyc" or path.name in ("__pycache__", ".cache", ".venv")]
    build(source, tmp_path / "again", "--wheel")
    assert contents(next((tmp_path / "again").glob("*.whl"))) == contents(wheel)


@pytest.mark.slow
def test_the_wheel_works_without_the_checkout(built, tmp_path):
    installed, work = tmp_path / "installed", tmp_path / "work"
    work.mkdir()
    run("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", installed, built[0])
    environment = os.environ | {"PYTHONPATH": str(installed)}
    file, answer = run("-c", QUICK_START, ROOT, cwd=work, env=environment).splitlines()[-2:]
    assert Path(file).is_relative_to(installed)
    assert answer == "(10, 1) True"


def test_the_program_says_what_to_install_where_an_extra_is_missing(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("prodssm.cli.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "typer", None)  # as if it were not installed
    with pytest.raises(SystemExit, match=r"the program needs typer: pip install 'prodssm\[cli\]'"):
        main()


def test_every_extra_has_code_behind_it():
    folders = ("prodssm", "experiments", "benchmarks")
    code = "\n".join(file.read_text(encoding="utf-8") for folder in folders for file in (ROOT / folder).glob("**/*.py"))
    for extra in set(PROJECT["optional-dependencies"]) - TOOLS:
        for requirement in PROJECT["optional-dependencies"][extra]:
            package = re.split(r"[\[>=<]", requirement)[0]
            assert re.search(rf"^\s*(import|from) {package}\b", code, flags=re.M), f"{extra}: no file imports {package}"


def test_every_required_tool_is_pinned():
    pins = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()[1:]}
    extras = [requirement for group in PROJECT["optional-dependencies"].values() for requirement in group]
    for requirement in [*PROJECT["dependencies"], *extras]:
        package = re.split(r"[\[>=<]", requirement)[0]
        assert package == "prodssm" or {package, package.replace("-", "_")} & pins, f"{package} has no pin"
