"""The loop keeps the best parameters, stops in time, and says why."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array
from oracles import array

from prodssm.data.batching import SeriesBatch
from prodssm.training import loop
from prodssm.training.history import StopReason
from prodssm.training.loop import Task, latest_score, maximise
from prodssm.training.objectives import mean_log_score
from prodssm.training.recipe import SERIES_RECIPE, Pace, Recipe

pytestmark = pytest.mark.usefixtures("standard_promotion")


class Parabola(Task):
    """-(x - 1)^2, or NaN beyond a point; the validation score has its maximum elsewhere."""

    recipe: Recipe = eqx.field(static=True)
    pace: Pace
    prior_weight: Array
    end: float = eqx.field(static=True, default=jnp.inf)
    best: float | None = eqx.field(static=True, default=None)

    def objective(self, learned, key):
        return jnp.where(learned > self.end, jnp.nan, -((learned - 1.0) ** 2))

    def evaluate(self, learned, objective, done):
        return learned, latest_score(objective, done) if self.best is None else -((learned - self.best) ** 2)

    @property
    def validated(self):
        return self.best is not None

    @property
    def identity(self):
        return ("parabola",), ()


def climb(*, iterations, patience=1000, checkpoint=None, **more):
    """From zero, in steps of nearly 0.01."""
    recipe = Recipe(iterations=iterations, schedule="constant", patience=patience).filled(SERIES_RECIPE)
    task = Parabola(recipe, recipe.pace(array(0.0).dtype), array(0.0), **more)
    return maximise(task, array(0.0), key=jr.key(0), checkpoint=checkpoint, progress=False)


def test_a_maximum_is_found_and_the_short_chunk_comes_first():
    found, history = climb(iterations=310)
    assert abs(found - 1.0) < 0.01
    assert history.iterations == [10, *range(35, 311, 25)]
    assert history.stop_reason is StopReason.COMPLETED
    assert history.validation == []
    assert len(history.seconds) == len(history.objective) == len(history.iterations)


def test_the_best_parameters_by_validation_are_kept_and_training_stops_after_patience():
    found, history = climb(iterations=310, patience=50, best=0.5)
    assert history.stop_reason is StopReason.EARLY_STOPPING
    assert history.iterations[-1] == history.iterations[int(np.argmax(history.validation))] + 50
    assert np.isclose(-((found - 0.5) ** 2), max(history.validation))
    assert history.best_validation == max(history.validation)


def test_parameters_before_a_divergence_are_kept():
    found, history = climb(iterations=310, end=0.5)
    assert history.stop_reason is StopReason.DIVERGED
    assert history.diverged
    assert history.iterations[-1] < 310
    assert 0 < found <= 0.5


def test_progress_is_shown_with_the_scores(capsys):
    recipe = Recipe(iterations=20).filled(SERIES_RECIPE)
    task = Parabola(recipe, recipe.pace(array(0.0).dtype), array(0.0), best=0.5)
    maximise(task, array(0.0), key=jr.key(0), progress=True)
    shown = capsys.readouterr().err
    assert "training" in shown
    assert "log likelihood -" in shown
    assert ", validation -" in shown


def test_without_comparable_objectives_the_latest_finite_parameters_win():
    assert latest_score(array(-3.0), jnp.int32(50)) == 50
    assert latest_score(array(jnp.nan), jnp.int32(50)) == -jnp.inf


def test_an_interruption_keeps_the_best_so_far_and_a_checkpoint_resumes_it(monkeypatch, tmp_path):
    whole, _ = climb(iterations=100)
    original, calls = loop._run_chunk, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(loop, "_run_chunk", interrupted)
    found, history = climb(iterations=100, checkpoint=tmp_path / "run")
    assert history.interrupted
    assert history.iterations == [25, 50]
    assert 0.2 < found < 0.8
    resumed, history = climb(iterations=100, checkpoint=tmp_path / "run")
    assert resumed == whole
    assert history.iterations == [25, 50, 75, 100]
    assert history.stop_reason is StopReason.COMPLETED


@pytest.mark.slow
def test_a_model_stops_when_the_validation_score_no_longer_improves_and_the_best_is_returned(training_problem):
    validation = SeriesBatch.stack([training_problem.series[2]])
    recipe = Recipe(iterations=2000, patience=50, prior_weight=0.0, learning_rate=0.05).filled(SERIES_RECIPE)
    found, history = training_problem.train(recipe, validation=validation)
    assert history.iterations[-1] < 2000
    assert history.stop_reason is StopReason.EARLY_STOPPING
    score = mean_log_score(
        recipe.training_objective, found, validation.record, validation.scored, method=training_problem.method
    )
    assert np.isclose(score, max(history.validation), rtol=1e-5)
