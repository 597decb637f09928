"""The quick start in the README runs as written."""

import re
import warnings
from pathlib import Path

import jax

README = Path(__file__).parent.parent / "README.md"


def test_every_python_block_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.S)
    assert blocks
    names: dict = {}
    # As a user has it; the strict promotion of our tests is not for the optimiser, which is not ours.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"), warnings.catch_warnings():
        # The kink expands, and a model that saw 50 iterations says that its long forecasts are not Gaussian.
        warnings.filterwarnings("ignore", "The Gaussian forecast agrees")
        for block in blocks:
            exec(compile(block, str(README), "exec"), names)
    assert capsys.readouterr().out


def test_the_two_commands_are_there():
    text = README.read_text(encoding="utf-8")
    assert "make demo" in text
    assert "make test" in text
