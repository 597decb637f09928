"""A recipe is filled from defaults, checked by name, and becomes an optimiser."""

from dataclasses import fields, replace
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from prodssm.training.objectives import Objective
from prodssm.training.recipe import FINE_TUNE_RATE, SERIES_RECIPE, Recipe, stages

RECIPE = Recipe(iterations=60).filled(SERIES_RECIPE)


def unchecked(base, **values):
    """A recipe as users may write it, past the type checker of the tests."""
    recipe = replace(base)
    for name, value in values.items():
        object.__setattr__(recipe, name, value)
    return recipe


def test_what_is_none_is_filled_from_the_defaults():
    found = unchecked(Recipe(), iterations=np.int64(7), horizons=[1, 5]).filled(SERIES_RECIPE)
    assert found == replace(SERIES_RECIPE, iterations=7, horizons=(1, 5))
    assert type(found.iterations) is int
    assert all(getattr(Recipe(), part.name) is None for part in fields(Recipe))


def test_all_members_or_whole_series_are_no_number():
    assert (RECIPE.batch_size, RECIPE.window_length) == (None, None)
    found = replace(RECIPE, batch=4, window=20)
    assert (found.batch_size, found.window_length) == (4, 20)


def test_validation_data_are_scored_at_the_horizons_of_training_unless_others_are_given():
    recipe = replace(RECIPE, horizons=(1, 3), objective="bound", stride=2)
    assert recipe.training_objective == Objective((1, 3), "bound", 2)
    assert recipe.validation_objective == recipe.training_objective
    assert replace(recipe, validation_horizons=(9,)).validation_objective == Objective((9,), "bound", 2)


def test_the_squared_error_of_validation_data_is_that_of_a_free_run():
    recipe = Recipe(validation_score="squared_error")
    with pytest.raises(ValueError, match="validation_score='squared_error' is that of a free run: give free_run"):
        recipe.filled(SERIES_RECIPE)
    assert replace(recipe, free_run=10).filled(SERIES_RECIPE).scores_free_runs
    assert replace(recipe, objective="free_run", context=3).filled(SERIES_RECIPE).training_objective.known(100) == 3
    assert Objective(score="free_run").known(100) == 25


def test_global_weights_are_trained_as_local_ones_first_and_then_fine_tuned():
    recipe = replace(RECIPE, fine_tune=10, learning_rate=0.5)
    assert stages("local", recipe) == [("local", recipe)]
    assert stages("global", replace(recipe, fine_tune=0)) == [("global", replace(recipe, fine_tune=0))]
    first, (weights, then) = stages("global", recipe)
    assert first == ("local", recipe)
    assert weights == "global"
    assert then == replace(recipe, iterations=10, learning_rate=0.5 * FINE_TUNE_RATE)


@pytest.mark.usefixtures("standard_promotion")
def test_log_variances_can_be_learned_faster_than_all_else(training_problem, same):
    learned = eqx.filter(training_problem.model, eqx.is_inexact_array)

    def first_update(recipe):
        optimiser = recipe.pace(learned.initial_mean.dtype).optimiser(recipe.schedule)
        return cast(Any, jax.jit(lambda: optimiser.update(learned, optimiser.init(learned), learned)[0])())

    usual, faster = first_update(RECIPE), first_update(replace(RECIPE, variance_rate=5.0))
    assert np.allclose(faster.log_process_noise, 5 * usual.log_process_noise)
    assert np.allclose(faster.likelihood.log_variance, 5 * usual.likelihood.log_variance)
    for fast, slow in zip(faster.transition.linears, usual.transition.linears, strict=True):
        assert np.allclose(fast.weight_log_var, 5 * slow.weight_log_var)
        assert np.allclose(fast.bias_log_var, 5 * slow.bias_log_var)
        assert same((fast.weight, fast.bias), (slow.weight, slow.bias))
    assert same((faster.initial_mean, faster.initial_chol), (usual.initial_mean, usual.initial_chol))


def rate(recipe, iteration):
    return float(recipe.pace(jnp.result_type(float)).rate(recipe.schedule, jnp.int32(iteration)))


@pytest.mark.usefixtures("standard_promotion")
@pytest.mark.parametrize("schedule", ["constant", "cosine"])
def test_the_learning_rate_rises_over_a_fraction_of_the_iterations(schedule):
    recipe = replace(RECIPE, schedule=schedule, iterations=100, warm_up=0.2, learning_rate=0.5)
    for n in (0, 1, 10, 19, 20, 50, 99):
        full = 0.5 if schedule == "constant" else 0.5 * (0.01 + 0.99 * (1 + np.cos(np.pi * n / 100)) / 2)
        assert rate(replace(recipe, warm_up=0.0), n) == pytest.approx(full)
        assert rate(recipe, n) == pytest.approx(full * min((n + 1) / 20, 1.0))


def test_no_iterations_to_rise_over_is_no_rise():
    assert rate(replace(RECIPE, iterations=2, warm_up=0.2, learning_rate=0.5), 0) == 0.5


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
        {"prior_weight": "much"},
        {"schedule": "steps"},
        {"batch": 0},
        {"batch": "some"},
        {"window": 1},
        {"patience": 0},
        {"validation": 1.0},
        {"validation": -0.1},
        {"horizons": ()},
        {"horizons": (0,)},
        {"horizons": (2, 2)},
        {"horizons": 5},
        {"validation_horizons": (0,)},
        {"objective": "guess"},
        {"stride": 0},
        {"fine_tune": -1},
        {"calibrate": 1},
        {"linear_start": "yes"},
    ],
    ids=str,
)
def test_bad_recipes_are_refused_by_name(wrong):
    with pytest.raises((ValueError, TypeError), match=f"^{next(iter(wrong))} must"):
        unchecked(RECIPE, **wrong).check()
