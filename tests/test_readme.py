"""Every block of the README runs as written."""

import pytest
from pages import ROOT, blocks

README = ROOT / "README.md"


@pytest.mark.parametrize("block", [pytest.param(block, id=f"README-{n}") for n, block in enumerate(blocks(README))])
def test_every_python_block_runs_on_its_own_without_a_warning(block, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert block.needs is None
    block.run()
    assert capsys.readouterr().out


def test_the_two_commands_are_there():
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
