"""Every block of the README and of docs/adapters.md runs as written."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent
README, ADAPTERS = ROOT / "README.md", ROOT / "docs" / "adapters.md"
# sktime says so of its own pipelines.
KEEPS_DATA = pytest.mark.filterwarnings("ignore:The default of config ``remember_data`` will change:FutureWarning")


def blocks(page, *marks):
    found = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    return [pytest.param(block, marks=marks, id=f"{page.stem}-{n}") for n, block in enumerate(found)]


@pytest.mark.parametrize("block", [*blocks(README), *blocks(ADAPTERS, pytest.mark.slow, KEEPS_DATA)])
def test_every_python_block_runs_on_its_own_without_a_warning(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # As a user has it; the strict promotion of our tests is not for the optimiser, which is not ours.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(block, "page", "exec"), {})
    assert capsys.readouterr().out


def test_the_two_commands_are_there():
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
