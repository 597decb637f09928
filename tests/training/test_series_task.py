"""Training on series raises the objective, leaves alone what is fixed, and refuses data that cannot be scored."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.data.batching import SeriesBatch
from prodssm.training.objectives import Objective, mean_log_score
from prodssm.training.recipe import SERIES_RECIPE, Recipe
from prodssm.training.series_task import NOISE_FACTORS, SeriesTask, require_scored, trainable

pytestmark = pytest.mark.usefixtures("standard_promotion")


def test_training_improves_and_leaves_alone_what_is_fixed(training_problem):
    known = ps.GaussianLikelihood([0.2])
    start = eqx.tree_at(lambda m: m.likelihood, training_problem.model, known)
    found, history = training_problem.train(model=start)
    assert history.objective[-1] > history.objective[0]
    assert history.iterations == [10, 35, 60]  # the short chunk first
    assert (found.likelihood.variance == known.variance).all()
    assert (found.log_process_noise != start.log_process_noise).all()


def test_what_is_trainable_is_the_likelihoods_choice_and_perhaps_the_initial_belief(training_problem):
    model = training_problem.model
    whole, rest = (jax.tree.leaves(eqx.filter(model, trainable(model, initial=initial))) for initial in (True, False))
    assert len(whole) == len(jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array)))
    assert len(rest) == len(whole) - 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [{"batch": 5, "window": 4}, {"horizons": (1, 3), "objective": "bound", "schedule": "cosine"}],
    ids=["windows", "horizons"],
)
def test_every_way_to_train_improves_and_is_repeatable(more, training_problem, same):
    recipe = replace(training_problem.recipe, iterations=50, **more)
    (first, history), (second, _) = training_problem.train(recipe), training_problem.train(recipe)
    assert same(first, second)
    assert history.objective[-1] > history.objective[0]


@pytest.mark.slow
def test_a_random_method_draws_anew_at_every_iteration(training_problem):
    method, learned = ps.Sampled(samples=20, key=jr.key(5)), eqx.filter(training_problem.model, eqx.is_inexact_array)
    task = task_of(training_problem, method=method)
    keys = jr.split(jr.key(0))[jnp.array([0, 0, 1])]
    first, again, other = jax.jit(jax.vmap(lambda key: task.objective(learned, key)))(keys)
    assert first == again
    assert first != other


def task_of(problem, method=None, validation=None, **changes):
    """A task of the problem's series."""
    recipe = replace(problem.recipe, **changes)
    fixed = eqx.filter(problem.model, eqx.is_inexact_array, inverse=True)
    return SeriesTask(
        fixed=fixed,
        data=SeriesBatch.stack(problem.series),
        validation=validation,
        prior_weight=array(recipe.prior_weight),
        method=method or problem.method,
        recipe=recipe,
        pace=recipe.pace(array(0.0).dtype),
        stable=False,
        full_batch=True,
    )


@pytest.mark.slow
def test_other_numbers_and_lengths_of_one_bucket_trigger_no_recompilation(training_problem, same, monkeypatch):
    traced = []
    original = SeriesTask.objective
    monkeypatch.setattr(SeriesTask, "objective", lambda self, *given: traced.append(1) or original(self, *given))
    recipe = replace(training_problem.recipe, iterations=30)  # no other test's
    usual, _ = training_problem.train(recipe)
    once = len(traced)
    others = {"prior_weight": 5.0, "patience": 7, "iterations": 55, "learning_rate": 0.02, "warm_up": 0.1}
    heavy, _ = training_problem.train(replace(recipe, **others))
    assert once
    assert len(traced) == once
    assert not same(usual, heavy)


@pytest.mark.parametrize("calibrate", [True, False])
def test_validation_data_choose_the_multiple_of_the_process_noise(calibrate, training_problem):
    validation = SeriesBatch.stack([training_problem.series[2]])
    quiet = eqx.tree_at(lambda m: m.log_process_noise, training_problem.model, array([np.log(1e-4)]))
    task = task_of(training_problem, validation=validation, calibrate=calibrate)
    learned = eqx.filter(quiet, eqx.is_inexact_array)
    found, score = jax.jit(lambda: task.evaluate(learned, array(0.0), array(1)))()
    ratio = np.exp(float(found.log_process_noise[0]) - np.log(1e-4))

    @jax.jit
    @jax.vmap
    def scores_of(factor):
        louder = eqx.tree_at(lambda m: m.log_process_noise, quiet, quiet.log_process_noise + jnp.log(factor))
        return mean_log_score(Objective(), louder, validation.record, validation.scored, method=training_problem.method)

    scores = np.asarray(scores_of(array(NOISE_FACTORS)))
    best = int(np.argmax(scores)) if calibrate else 0
    assert NOISE_FACTORS[best] != 1.0 or not calibrate
    assert np.isclose(ratio, NOISE_FACTORS[best], rtol=1e-4)
    assert np.isclose(score, scores[best], rtol=1e-4)


SHORT = [ps.Series(array(np.arange(4.0)))]
GAP = [ps.Series(array([1.0, np.nan, np.nan]))]
WHOLE = SeriesBatch.stack(SHORT)


@pytest.mark.parametrize(
    ("data", "validation", "settings", "said"),
    [
        (GAP, None, {}, "data must have observations after the first of a series, to learn from$"),
        (GAP, WHOLE, {"validation": 0.2}, "to learn from that validation=0.2 leaves; give more data, or a smaller fraction"),
        (
            SHORT,
            None,
            {"horizons": (1, 4, 9)},
            r"horizons must reach .* got \(1, 4, 9\) of which none of \(4, 9\) does .* 4 steps",
        ),
        (SHORT, None, {"horizons": (1, 3), "window": 2}, r"none of \(3,\) does in series or windows of at most 2 steps"),
        (SHORT, SeriesBatch.stack(GAP), {}, "what is validation data must have observations after the first"),
        (SHORT, SeriesBatch.stack(GAP), {"validation": 0.2}, "what validation=0.2 holds out must have observations"),
        (SHORT, WHOLE, {"validation_horizons": (4,)}, r"validation_horizons must reach .* \(4,\) of which none of \(4,\)"),
    ],
)
def test_data_without_observations_to_score_are_refused(data, validation, settings, said):
    with pytest.raises(ValueError, match=said):
        require_scored(data, validation, Recipe(**settings).filled(SERIES_RECIPE))


def test_data_that_can_be_scored_are_accepted():
    require_scored(SHORT, WHOLE, Recipe(horizons=(1, 3), validation_horizons=(2,)).filled(SERIES_RECIPE))
