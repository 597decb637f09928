"""Training raises the objective, keeps what must not move, stops in time, and goes on bit by bit where it was stopped."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm import training
from prodssm.batches import Data
from prodssm.objective import Objective
from prodssm.persistence import read
from prodssm.training import Recipe, Task, train, trainable


@pytest.fixture(autouse=True)
def standard_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


CHEAP = {"order": 1}
RNG = np.random.default_rng(0)
SERIES = [ps.Series(array(np.cumsum(RNG.normal(size=(12, 1)), axis=0) * 0.3)) for _ in range(3)]
RECIPE = Recipe(iterations=60)


def model():
    return ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 6, 1), key=jr.key(0)),
        process_noise=jnp.array([0.1]),
        measurement_noise=jnp.array([0.2]),
    )


def run(recipe=RECIPE, **more):
    return train(model(), SERIES, recipe, **({"key": jr.key(1), "options": CHEAP, "progress": False} | more))


def same(first, second):
    return all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))


def test_variances_can_be_learned_faster_than_all_else():
    learned = eqx.filter(model(), eqx.is_inexact_array)

    def first_update(recipe: Recipe) -> ps.StateSpaceModel:
        optimiser = recipe.optimiser()
        update, _ = optimiser.update(learned, optimiser.init(learned), learned)
        return cast(ps.StateSpaceModel, update)

    usual, hurried = first_update(RECIPE), first_update(replace(RECIPE, variance_rate=5.0))
    for part in ("log_process_noise", "log_measurement_noise"):
        assert np.allclose(getattr(hurried, part), 5 * getattr(usual, part))
    for fast, slow in zip(hurried.transition.linears, usual.transition.linears, strict=True):
        assert np.allclose(fast.weight_log_var, 5 * slow.weight_log_var)
        assert np.allclose(fast.bias_log_var, 5 * slow.bias_log_var)
        assert same((fast.weight, fast.bias), (slow.weight, slow.bias))
    assert same((hurried.initial_mean, hurried.initial_root), (usual.initial_mean, usual.initial_root))


@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_learning_rate_rises_over_a_share_of_the_iterations(schedule):
    recipe = replace(RECIPE, schedule=schedule, iterations=100, warm_up=0.2, learning_rate=0.5)
    usual, gentle = replace(recipe, warm_up=0.0).rate(), recipe.rate()
    assert callable(gentle)
    for n in (0, 1, 10, 19, 20, 50, 99):
        full = usual(n) if callable(usual) else usual
        assert gentle(n) == pytest.approx(float(full) * min((n + 1) / 20, 1.0))


def test_no_iterations_to_rise_over_is_no_rise():
    assert float(cast(Any, replace(RECIPE, iterations=2, warm_up=0.2, learning_rate=0.5).rate())(0)) == 0.5


def test_another_prior_weight_is_learned_without_compiling_again(monkeypatch):
    traced = []
    judged = Task.objective
    monkeypatch.setattr(Task, "objective", lambda self, *given: traced.append(1) or judged(self, *given))
    few = replace(RECIPE, iterations=30)  # nobody else's
    usual, _ = run(few)
    once = len(traced)
    heavy, _ = run(replace(few, prior_weight=5.0, patience=7))
    assert once
    assert len(traced) == once
    assert not same(usual, heavy)


def test_training_improves_and_leaves_alone_what_is_fixed():
    start = model()
    found, history = run(spec=trainable(start, measurement_noise=False))
    assert history.objective[-1] > history.objective[0]
    assert history.iterations == [10, 35, 60]  # the short chunk first
    assert (found.log_measurement_noise == start.log_measurement_noise).all()
    assert (found.log_process_noise != start.log_process_noise).all()


@pytest.mark.parametrize(
    "more",
    [
        {"batch": 5, "window": 4},
        {"objective": Objective((1, 3), "bound"), "schedule": "cosine"},
    ],
)
def test_every_way_to_train_improves_and_is_repeatable(more):
    recipe = replace(RECIPE, iterations=50, **more)
    (first, history), (second, _) = run(recipe), run(recipe)
    assert same(first, second)
    assert history.objective[-1] > history.objective[0]


def test_windows_are_drawn_from_inside_their_series():
    data = Data.of([SERIES[0], SERIES[1].window(0, 6)])
    for n in range(20):
        members, starts = data.draw(jr.key(n), 4, 5)
        frames, scored = data.batch(members, starts, 5)
        assert frames.y.shape == (4, 5, 1)
        assert not np.isnan(frames.y).any()
        assert (scored.sum(axis=1) >= 4).all()


def test_it_stops_when_the_held_out_part_is_foreseen_no_better_and_returns_the_best():
    held_out = Data.of([SERIES[2]])
    recipe = Recipe(iterations=2000, patience=50, prior_weight=0.0, learning_rate=0.05)
    found, history = run(recipe, held_out=held_out)
    assert history.iterations[-1] < 2000
    assert history.stopped.startswith("no progress on the held-out part")
    scores = [
        training.mean_foreseen(recipe.objective, found, held_out.frames, held_out.scored, method="moments", options=CHEAP)
    ]
    assert np.isclose(scores[0], max(history.validation), rtol=1e-5)


def test_an_interrupted_run_resumes_to_the_same_result(tmp_path, monkeypatch):
    recipe, path = replace(RECIPE, iterations=100, batch=2), tmp_path / "run.safetensors"
    whole, wanted = run(recipe)
    original, calls = training._run_chunk, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(training, "_run_chunk", interrupted)
    part, history = run(recipe, checkpoint=path)
    assert history.stopped.startswith("interrupted")
    assert not same(part, whole)
    monkeypatch.setattr(training, "_run_chunk", original)
    resumed, history = run(recipe, checkpoint=path)
    assert same(resumed, whole)
    assert (history.iterations, history.objective) == (wanted.iterations, wanted.objective)


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    path = tmp_path / "run.safetensors"
    run(replace(RECIPE, iterations=25), checkpoint=path)
    with pytest.raises(ValueError, match="belongs to another run"):
        run(replace(RECIPE, iterations=25), checkpoint=path, key=jr.key(2))
    (tmp_path / "other").write_bytes(b"not ours")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        run(checkpoint=tmp_path / "other")


KILLED = """
import sys, jax
sys.path.insert(0, {tests!r})
jax.config.update("jax_enable_x64", {wide})
import test_training as t
found, _ = t.train(t.model(), t.SERIES, t.replace(t.RECIPE, iterations=20000, batch=2), key=t.jr.key(1),
                   options=t.CHEAP, progress=False, checkpoint={path!r})
"""


def test_a_killed_run_leaves_a_whole_checkpoint(tmp_path):
    path = tmp_path / "run.safetensors"
    tests = os.path.dirname(__file__)
    code = KILLED.format(tests=tests, path=str(path), wide=bool(jax.config.read("jax_enable_x64")))
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 120
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    recipe = replace(RECIPE, iterations=20000, batch=2)
    done = read(path).config["iterations"][-1]
    assert 0 < done < 20000
    # The same 20,000 iterations, cut at the next chunk, from the file and from the start.
    resumed, history = _cut(recipe, done + 25, checkpoint=path)
    fresh, _ = _cut(recipe, done + 25)
    assert history.iterations[-1] == done + 25
    assert same(resumed, fresh)


def _cut(recipe, iterations, **more):
    """A run that is interrupted after so many iterations."""
    original, is_over = training._run_chunk, training._is_over

    def over(progress, history, task):
        if history.iterations and history.iterations[-1] >= iterations:
            raise KeyboardInterrupt
        return is_over(progress, history, task)

    training._is_over = over
    try:
        return run(recipe, **more)
    finally:
        training._run_chunk, training._is_over = original, is_over


@pytest.mark.parametrize(
    "wrong",
    [
        {"iterations": 0},
        {"learning_rate": -1.0},
        {"variance_rate": 0.0},
        {"warm_up": 1.5},
        {"warm_up": -0.1},
        {"clip": 0.0},
        {"prior_weight": -0.1},
        {"schedule": "steps"},
        {"batch": 0},
        {"window": 1},
        {"patience": 0},
    ],
)
def test_bad_recipes_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        run(Recipe(**wrong))
