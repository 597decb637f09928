"""Every block of the README runs as written."""

import re
from pathlib import Path

import jax
import pytest

README = Path(__file__).parent.parent / "README.md"


BLOCKS = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_python_block_runs_on_its_own_without_a_warning(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # As a user has it; the strict promotion of our tests is not for the optimiser, which is not ours.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        exec(compile(block, str(README), "exec"), {})
    assert capsys.readouterr().out


def test_the_two_commands_are_there():
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
