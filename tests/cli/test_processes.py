"""One fit in several processes on this machine: they end together, whatever ends them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from light_xla import LIGHT

import prodssm as ps

pytest.importorskip("typer")
LIMIT = 300
CONFIG = """
[model]
latent_dim = 1
hidden = [3]
emission = "linear"
residual = true
activation = "relu"
n_estimators = 1
[recipe]
iterations = {iterations}
"""


@pytest.fixture
def launch(tmp_path):
    """Start a fit of six short series in two processes."""
    rng = np.random.default_rng(0)
    rows = [f"{n},{t},{value:.4f}" for n in range(6) for t, value in enumerate(rng.normal(size=20).cumsum())]
    (tmp_path / "d.csv").write_text("\n".join(["id,t,y", *rows]))
    found = []

    def start(iterations, *words):
        (tmp_path / "run.toml").write_text(CONFIG.format(iterations=iterations))
        command = [sys.executable, "-c", "from prodssm.cli import main; main()", "fit", "d.csv", "--time", "t", "--output", "y"]
        command += ["--group", "id", "--config", "run.toml", "--model", "m.safetensors", "--processes", "2", *words]
        environment = os.environ | {"XLA_FLAGS": LIGHT, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        found.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
        return found[-1]

    yield start
    for each in found:
        each.terminate()
        each.wait()


def ended(process):
    """Exit code, and whether any process of this fit is left."""
    out, err = process.communicate(timeout=LIMIT)
    time.sleep(0.5)
    left = subprocess.run(["pgrep", "-f", "--", "--group id --config run.toml"], capture_output=True, text=True).stdout.split()
    return process.returncode, left, out + err


@pytest.mark.slow
def test_two_processes_write_one_model(launch, tmp_path):
    code, left, said = ended(launch(25))
    assert (code, left) == (0, []), said
    assert said.count("the model is in m.safetensors") == 1
    assert ps.load(tmp_path / "m.safetensors").history_.iterations == [25]


@pytest.mark.slow
def test_what_is_wrong_is_said_once(launch):
    code, left, said = ended(launch(25, "--weights", "sideways"))
    assert (code, left) == (2, [])
    assert said.count("error:") == 1
    assert "weights must be one of" in said


@pytest.mark.slow
def test_an_interrupted_launcher_stops_all_and_keeps_the_model(launch, tmp_path):
    process = launch(100_000, "--checkpoint", "run")
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "run").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    code, left, said = ended(process)
    assert (code, left) == (130, []), said
    assert ps.load(tmp_path / "m.safetensors").history_.iterations[-1] < 100_000


@pytest.mark.slow
def test_a_killed_process_takes_the_others_with_it(launch, tmp_path):
    process = launch(100_000, "--checkpoint", "run")
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "run").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True).stdout.split()
    assert len(found) == 2
    os.kill(int(found[1]), signal.SIGKILL)
    code, left, said = ended(process)
    assert code not in (0, 130), said
    assert left == []
