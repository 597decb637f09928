"""A run resumes bit by bit from its checkpoint, whatever ended it, and from no other's."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import jax.random as jr
import pytest

import prodssm as ps
from prodssm._storage import read
from prodssm.training import loop
from prodssm.training.checkpoints import describe_method, describe_model

pytestmark = pytest.mark.usefixtures("standard_promotion")


@pytest.mark.slow
def test_an_interrupted_run_resumes_to_the_same_result(training_problem, same, tmp_path, monkeypatch):
    recipe, path = replace(training_problem.recipe, iterations=100, batch=2), tmp_path / "run.safetensors"
    whole, wanted = training_problem.train(recipe)
    original, calls = loop._run_chunk, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(loop, "_run_chunk", interrupted)
    part, history = training_problem.train(recipe, checkpoint=path)
    assert history.stop_reason is ps.StopReason.INTERRUPTED
    assert not same(part, whole)
    monkeypatch.setattr(loop, "_run_chunk", original)
    resumed, history = training_problem.train(recipe, checkpoint=path)
    assert same(resumed, whole)
    assert (history.iterations, history.objective) == (wanted.iterations, wanted.objective)


def test_a_checkpoint_of_another_run_is_refused(training_problem, tmp_path):
    path, recipe = tmp_path / "run.safetensors", replace(training_problem.recipe, iterations=25)
    training_problem.train(recipe, checkpoint=path)
    for another in (
        {"key": jr.key(2)},
        {"recipe": replace(recipe, learning_rate=0.02)},
        {"method": ps.Moments(order=2)},
        {"method": "linearised"},
        {"model": training_problem.model.with_weight_mode("point")},
    ):
        with pytest.raises(ValueError, match="belongs to another run"):
            training_problem.train(**({"recipe": recipe} | another), checkpoint=path)
    (tmp_path / "other").write_bytes(b"not ours")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        training_problem.train(checkpoint=tmp_path / "other")


def test_the_identity_of_a_run_names_what_is_static(training_problem):
    assert describe_method(ps.Moments(order=3)) == "Moments(order=3, components=1, splits=27)"
    assert describe_method(ps.Sampled(50, jr.key(0))) == "Sampled(samples=50, draw=outputs)"
    words = describe_model(training_problem.model)
    assert words == (
        "local",
        "False",
        "None",
        "GaussianLikelihood(scalar=False, floor=0.0, learned=True, positive=True)",
        "relu",
    )


KILLED = """
import sys, jax
jax.config.update("jax_enable_x64", {wide})
sys.path[:0] = [{folder!r}, {tests!r}]
from dataclasses import replace
from conftest import make_problem
problem = make_problem()
problem.train(replace(problem.recipe, iterations=20000, batch=2), checkpoint={path!r})
"""


@pytest.mark.slow
def test_a_killed_run_leaves_a_whole_checkpoint(training_problem, same, tmp_path):
    path, folder = tmp_path / "run.safetensors", Path(__file__).parent
    wide = bool(jax.config.read("jax_enable_x64"))
    code = KILLED.format(folder=str(folder), tests=str(folder.parent), path=str(path), wide=wide)
    process = subprocess.Popen([sys.executable, "-c", code], env=os.environ)
    deadline = time.monotonic() + 120
    while not path.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    recipe = replace(training_problem.recipe, iterations=20000, batch=2)
    done = read(path).config["iterations"][-1]
    assert 0 < done < 20000
    # The same 20,000 iterations, cut at the next chunk, from the file and from the start.
    resumed, history = cut(training_problem, recipe, done + 25, checkpoint=path)
    fresh, _ = cut(training_problem, recipe, done + 25)
    assert history.iterations[-1] == done + 25
    assert same(resumed, fresh)


def cut(problem, recipe, iterations, **more):
    """A run that is interrupted after so many iterations."""
    is_over = loop._is_over

    def over(state, history, task):
        if history.iterations and history.iterations[-1] >= iterations:
            raise KeyboardInterrupt
        return is_over(state, history, task)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_is_over", over)
        return problem.train(recipe, **more)
