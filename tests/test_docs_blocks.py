"""What the pages show is right: Python runs, commands and settings exist, tutorials are those of their scripts."""

import importlib.util
import re
import subprocess
import sys
import tomllib

import matplotlib.pyplot as plt
import pytest
import typer
from pages import DOCS, PAGES, ROOT, blocks

from prodssm.cli.app import app
from prodssm.cli.settings import Config

# The cells of a tutorial build on each other: its script is run instead.
WRITTEN = [page for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "tutorials"]
TUTORIALS = sorted((ROOT / "examples" / "tutorials").glob("*.py"))
COMMANDS = typer.main.get_command(app).commands
# sktime says so of its own pipelines.
KEEPS_DATA = "ignore:The default of config ``remember_data`` will change:FutureWarning"


def numbered(pages, language):
    found = [(page, n, block) for page in pages for n, block in enumerate(blocks(page, language))]
    return [pytest.param(block, id=f"{page.stem}-{n}") for page, n, block in found]


def tutorials_script():
    spec = importlib.util.spec_from_file_location("tutorials", ROOT / "scripts" / "tutorials.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.filterwarnings(KEEPS_DATA)
@pytest.mark.parametrize("block", numbered(WRITTEN, "python"))
def test_a_python_block_runs_on_its_own_without_a_warning(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plt.switch_backend("agg")
    block.run()
    plt.close("all")


@pytest.mark.slow
def test_both_filters_of_the_comparison_print_the_same_state(capsys):
    printed = []
    for block in blocks(DOCS / "comparison.md")[:2]:
        block.run()
        printed.append([float(number) for number in re.findall(r"-?\d+\.\d+", capsys.readouterr().out)])
    assert len(printed[0]) == 2
    assert printed[0] == pytest.approx(printed[1], rel=1e-5)


def test_only_two_pages_show_libraries_that_may_be_missing():
    assert {page.stem for page in PAGES for block in blocks(page) if block.needs} <= {"comparison", "adapters"}


@pytest.mark.parametrize("block", numbered(PAGES, "console"))
def test_commands_and_flags_exist(block):
    for line in block.code.splitlines():
        words = line.split("#")[0].split()
        if words[:1] == ["prodssm"]:
            known = [flag for parameter in COMMANDS[words[1]].params for flag in parameter.opts] + ["--help"]
            flags = [word.split("=")[0] for word in words if word.startswith("--")]
            assert set(flags) <= set(known), line


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_prose_names_exist(page):
    prose = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`prodssm ([a-z]+)", prose)) <= COMMANDS.keys()


@pytest.mark.parametrize("block", numbered(PAGES, "toml"))
def test_settings_exist(block, tmp_path):
    tomllib.loads(block.code)
    (tmp_path / "run.toml").write_text(block.code, encoding="utf-8")
    assert Config.read(tmp_path / "run.toml", [parameter.name for parameter in COMMANDS["fit"].params])


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_the_page_of_a_tutorial_is_that_of_its_script(path):
    page = (DOCS / "tutorials" / f"{path.stem}.md").read_text(encoding="utf-8")
    for cell in tutorials_script().cells(path.read_text(encoding="utf-8")):
        assert cell.content in page, f"run `make tutorials`: the page lacks the cell at line {cell.line}"
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", page):
        assert (DOCS / "tutorials" / picture).stat().st_size < 150_000


@pytest.mark.slow
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs(path):
    command = [sys.executable, "-W", "error::UserWarning", ROOT / "scripts" / "tutorials.py", path.stem, "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
