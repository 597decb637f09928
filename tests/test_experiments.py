"""The jobs of an experiment run wherever joblib runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parent.parent / "experiments"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["dask", "loky"])
def test_the_quick_jobs_of_a_table_run_on_two_workers(backend):
    """With Dask on a real local cluster of two processes."""
    command = [sys.executable, "kink.py", "--quick", "--jobs", "2", "--backend", backend]
    found = subprocess.run(command, cwd=EXPERIMENTS, capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
    rows = [line for line in found.stdout.splitlines() if line.startswith("{'model': ")]
    assert len(rows) == len({row.split(",")[0] for row in rows}) >= 3
    assert all("'nll'" in row for row in rows)


def test_rows_are_chosen_by_their_fields(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import common  # pyright: ignore[reportMissingImports]
    import kink  # pyright: ignore[reportMissingImports]

    found = common.chosen(kink.SPECS, ["model=MC local", "r=0.08"])
    assert len(found) == kink.RUNS
    assert {(spec.model, spec.r) for spec in found} == {("MC local", 0.08)}
    with pytest.raises(SystemExit, match="--only takes FIELD=VALUE with a field of model, r, run, got size"):
        common.chosen(kink.SPECS, ["size=3"])
