"""A model that several devices train, of one process or several, is the one that a single device trains."""

import json
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import prodssm as ps
from prodssm._storage import read
from prodssm.training.devices import training_mesh

SCRIPT = str(Path(__file__).with_name("distributed_training.py"))
LIMIT = 300  # seconds after which a training that hangs is killed
TOLERANCE = {64: 1e-9, 32: 1e-4}


class Training:
    """Processes that train together; leaving the context kills what is left of them."""

    def __init__(self, processes, devices, bits=64, iterations=50, checkpoint="none", slow=False):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        words = [port, devices, bits, iterations, checkpoint, *(["slow"] if slow else [])]
        self.running = [
            subprocess.Popen(
                [sys.executable, SCRIPT, *map(str, (processes, n, *words))],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for n in range(processes)
        ]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for each in self.running:
            each.kill()
            each.communicate()

    def answer(self, limit=LIMIT):
        deadline = time.monotonic() + limit
        found = [each.communicate(timeout=deadline - time.monotonic()) for each in self.running]
        assert all(each.returncode == 0 for each in self.running), found
        return json.loads(found[0][0].splitlines()[-1])

    def wait_for(self, path):
        deadline = time.monotonic() + LIMIT
        while not path.exists() and time.monotonic() < deadline:
            assert all(each.poll() is None for each in self.running), "ended before its first checkpoint"
            time.sleep(0.02)
        assert path.exists()


@cache
def alone(bits):
    """What one device answers."""
    with Training(1, 1, bits) as training:
        return training.answer()


def test_one_device_needs_no_mesh():
    assert training_mesh(10) is None
    with ps.use_mesh(Mesh(np.array(jax.devices()[:1]), "any")):
        assert training_mesh(10).devices.tolist() == jax.devices()[:1]  # where the user says so
    with pytest.raises(TypeError, match=r"must be a jax\.sharding\.Mesh, got list"), ps.use_mesh([0]):
        pass


def test_a_mesh_of_one_device_trains_the_same_model(training_problem, standard_promotion):
    recipe = replace(training_problem.recipe, iterations=25)
    wanted, _ = training_problem.train(recipe)
    with ps.use_mesh(Mesh(np.array(jax.devices()[:1]), "any")):
        found, _ = training_problem.train(recipe)
    leaves = zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)
    assert all(np.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in leaves)


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("bits", [64, 32])
@pytest.mark.parametrize(("processes", "devices"), [(1, 3), (2, 2)])
def test_several_devices_train_the_model_of_one(processes, devices, bits):
    with Training(processes, devices, bits) as training:
        found = training.answer()
    assert found["devices"] == processes * devices
    for name in ("objective", "validation", "learned"):
        assert np.allclose(found[name], alone(bits)[name], rtol=TOLERANCE[bits], atol=0.0)


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize(("processes", "bits"), [((2, 1), 64), ((1, 2), 64), ((2, 1), 32)])
def test_killed_processes_are_resumed_by_another_number_of_them(tmp_path, processes, bits):
    path = tmp_path / "run.safetensors"
    with Training(processes[0], 2, bits, checkpoint=str(path), slow=True) as training:
        training.wait_for(path)
        for each in training.running:
            each.send_signal(signal.SIGKILL)
        assert [each.wait() for each in training.running] == [-signal.SIGKILL] * processes[0]
    assert read(path).config["iterations"] == [25]
    with Training(processes[1], 2, bits, checkpoint=str(path)) as training:
        found = training.answer()
    for name in ("objective", "validation", "learned"):
        assert np.allclose(found[name], alone(bits)[name], rtol=TOLERANCE[bits], atol=0.0)


@pytest.mark.slow
@pytest.mark.float64
def test_a_training_that_hangs_is_killed_at_its_time_limit(tmp_path):
    path = tmp_path / "run.safetensors"
    with Training(2, 1, iterations=100_000, checkpoint=str(path)) as training:
        training.wait_for(path)
        training.running[1].send_signal(signal.SIGSTOP)  # the other one waits for it in a collective
        begin = time.monotonic()
        with pytest.raises(subprocess.TimeoutExpired):
            training.answer(limit=5)
    assert time.monotonic() - begin < 20
    assert [each.returncode for each in training.running] == [-signal.SIGKILL] * 2


@pytest.mark.slow
@pytest.mark.float64
def test_a_signal_to_one_process_stops_all_together(tmp_path):
    path = tmp_path / "run.safetensors"
    with Training(2, 1, iterations=5000, checkpoint=str(path)) as training:
        training.wait_for(path)
        training.running[1].send_signal(signal.SIGTERM)
        found = training.answer()
    assert "interrupted" in found["stopped"].lower()
    assert len(found["objective"]) < 200
