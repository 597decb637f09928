"""Training on rows: padding leaves no trace, and validation rows are only scored."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.data.rows import Rows, padded_length
from prodssm.models.regression import LayerStack, row_log_probs
from prodssm.training.initialisation import regression_model
from prodssm.training.loop import maximise
from prodssm.training.objectives import model_hyper_prior
from prodssm.training.recipe import SERIES_RECIPE, Recipe
from prodssm.training.regression_task import RegressionTask

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3, 2)), RNG.normal(size=(3, 1))
STACK = LayerStack(2, ps.Moments(order=1))


@pytest.fixture(scope="module")
def model():
    return regression_model(
        (4,), (3,), "relu", "local", ps.GaussianLikelihood(array([0.05]), learned=True), X, Y, key=jr.key(0)
    )


def task_of(model, rows, **settings):
    """The task, and what it learns."""
    return RegressionTask.of(model, rows, Recipe(**settings).filled(SERIES_RECIPE), STACK, key=jr.key(0))


@pytest.mark.slow
def test_padding_leaves_no_trace_and_validation_rows_are_only_scored(model):
    @eqx.filter_jit
    def values(task, learned):
        objective = task.objective(learned, jr.key(1))
        return objective, task.evaluate(learned, objective, jnp.int32(7))[1]

    prior = 0.3 * model_hyper_prior(model)
    scores = eqx.filter_jit(row_log_probs)(model, STACK, array(X), array(Y), key=jr.key(0))
    assert len(X) < padded_length(len(X))
    task, learned = task_of(model, Rows.padded(X, Y), prior_weight=0.3)
    assert not task.validated
    objective, score = values(task, learned)
    assert close(objective, scores.mean() + prior / 3)
    assert score == 7
    task, learned = task_of(model, Rows.padded(X, Y, validation=1), prior_weight=0.3)
    assert task.validated
    objective, score = values(task, learned)
    assert close(objective, scores[:2].mean() + prior / 2)
    assert close(score, scores[2])


def test_the_initial_belief_is_not_learned(model):
    _, learned = task_of(model, Rows.padded(X, Y))
    assert learned.initial_mean is None
    assert learned.initial_chol is None
    assert learned.transition.linears[0].weight is not None


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_other_numbers_of_rows_and_iterations_trigger_no_recompilation(model, monkeypatch):
    traced = []
    original = RegressionTask.objective
    monkeypatch.setattr(RegressionTask, "objective", lambda self, *given: traced.append(1) or original(self, *given))
    x, y = RNG.normal(size=(40, 2)), RNG.normal(size=(40, 1))

    def run(count, validation, **settings):
        task, learned = task_of(model, Rows.padded(x[:count], y[:count], validation), batch=16, **settings)
        maximise(task, learned, key=jr.key(1), progress=False)
        return len(traced)

    once = run(40, 8, iterations=25, prior_weight=0.1)
    assert once
    assert run(30, 5, iterations=50, learning_rate=0.02, prior_weight=2.0) == once
