"""The jobs of an experiment run wherever joblib runs them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
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


def test_a_verdict_needs_two_standard_errors(monkeypatch):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import common  # pyright: ignore[reportMissingImports]

    assert common.against_paper([1.0, 1.2], "1.00(.05)") == "1.100 (0.100) like 1.00(.05)"
    assert common.against_paper([1.0, 1.2], "2.00(.05)*") == "1.100 (0.100) better than 2.00(.05)*"
    assert common.against_paper([-1.0], "-1.10(.01)", " [1]") == "-1.000 [1] worse than -1.10(.01)"
    assert common.against_paper([0.012], ".01(.00)") == "0.012 like .01(.00)"  # .00 is rounded
    assert common.against_paper([], "NR") == "- / NR"
    assert common.against_paper([1.0], "NR") == "1.000 / NR"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fit_makes_no_row(monkeypatch, number):
    monkeypatch.syspath_prepend(str(EXPERIMENTS))
    import common  # pyright: ignore[reportMissingImports]

    def run(spec, patience):
        """Like a fit, which returns the best model so far."""
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), number)
            time.sleep(patience)
        return {"spec": spec}

    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt):
        common.whole(run, 1, {"patience": 10})
    assert signal.getsignal(number) is before
    assert common.whole(lambda spec: {"spec": spec}, 1, {}) == {"spec": 1}
