"""Parameters follow scikit-learn's conventions, also those of the recipe, method and likelihood inside an estimator."""

import inspect
import json
from dataclasses import asdict
from typing import Any

import jax
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, ParameterGrid
from small_models import fit_unchecked, linear_regressor, same, small_prodssm, wave, without_training

import prodssm as ps
from prodssm.estimators.parameters import constructor_params, seed_of
from prodssm.training.recipe import SERIES_RECIPE, Recipe

ESTIMATORS = [ps.ProDSSM, ps.DeepStochasticRegressor]
either = pytest.mark.parametrize("estimator", ESTIMATORS)

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 2))
Y = 3 * X[:, 0] - X[:, 1] + 0.3 * RNG.normal(size=40)


# ---------------------------------------------------------------- conventions


@either
def test_an_estimator_has_at_most_sixteen_parameters(estimator):
    assert len(inspect.signature(estimator).parameters) <= 16


@either
def test_both_estimators_share_the_words_for_what_they_share(estimator):
    shared = {"hidden", "activation", "weights", "likelihood", "method", "recipe", "n_estimators", "checkpoint", "progress"}
    assert shared | {"random_state"} <= set(inspect.signature(estimator).parameters)


def test_parameters_are_stored_as_they_are_and_survive_cloning():
    given = {"hidden": [7, 7], "weights": "global", "measurement_noise": np.ones(2), "random_state": 5}
    model = ps.ProDSSM(**given)
    assert all(model.get_params()[name] is value for name, value in given.items())
    copied: Any = clone(model)
    assert copied.hidden == [7, 7]
    assert (copied.measurement_noise == 1).all()
    assert copied.set_params(random_state=6).random_state == 6
    assert model.random_state == 5
    with pytest.raises(ValueError, match="Invalid parameter"):
        model.set_params(hiden=(3,))


@either
def test_nested_objects_survive_cloning(estimator):
    nested = {"recipe": ps.Recipe(iterations=7), "method": ps.Moments(order=3), "likelihood": ps.GaussianLikelihood((0.1, 0.2))}
    copied: Any = clone(estimator(**nested))
    assert copied.recipe == nested["recipe"]
    assert copied.method == nested["method"]
    assert same(copied.likelihood, nested["likelihood"])


def test_a_clone_of_a_fitted_model_is_not_fitted(local_model):
    fresh: Any = clone(local_model)
    with pytest.raises(NotFittedError, match="fit"):
        fresh.filter(wave())
    assert fresh.recipe == local_model.recipe


def test_parameters_may_be_numpy_scalars_and_arrays(tmp_path, without_type_checks):
    settings = {"hidden": np.array([5]), "random_state": np.int64(3), "recipe__iterations": np.int64(7)}
    settings |= {"recipe__learning_rate": np.float32(0.01), "recipe__validation": np.float64(0.0)}
    model: Any = small_prodssm().set_params(**settings, recipe__horizons=np.array([1, 2]), method__order=np.int64(2))
    recipe = model.recipe.filled(SERIES_RECIPE)
    assert (recipe.iterations, recipe.horizons) == (7, (1, 2))
    json.dumps(asdict(recipe))  # as the fingerprint of a checkpoint does
    with without_training():
        model.fit(wave()).save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert (loaded.hidden, loaded.random_state, loaded.recipe.horizons, loaded.method.order) == ((5,), 3, (1, 2), 2)


@pytest.mark.parametrize(("random_state", "seed"), [(3, 3), (np.int64(3), 3), (np.random.RandomState(0), 209652396)])
def test_an_integer_is_its_own_seed_and_anything_else_draws_one(random_state, seed):
    assert seed_of(random_state) == seed
    assert type(seed_of(random_state)) is int


def test_true_is_no_seed():
    with pytest.raises(ValueError, match="cannot be used to seed"):
        seed_of("True")


# ---------------------------------------------------------------- nested parameters


@either
def test_deep_parameters_have_those_of_nested_objects(estimator):
    model = estimator(recipe=ps.Recipe(learning_rate=0.5), method=ps.Moments(order=3))
    shallow, deep = model.get_params(deep=False), model.get_params()
    assert set(shallow) == set(inspect.signature(estimator).parameters)
    assert deep["recipe__learning_rate"] == 0.5
    assert deep["recipe__iterations"] is None
    assert deep["method__order"] == 3
    assert deep["likelihood__variance"] is None
    nested = {f"recipe__{name}" for name in inspect.signature(ps.Recipe).parameters}
    nested |= {
        "method__order",
        "method__components",
        "method__splits",
        "likelihood__variance",
        "likelihood__floor",
        "likelihood__learned",
    }
    assert set(deep) == set(shallow) | nested


@either
@pytest.mark.parametrize("name", ["recipe", "method", "likelihood"])
@pytest.mark.parametrize("wrong", [3.0, "magic", [1]])
def test_parameters_that_fit_would_refuse_can_still_be_read_and_set(estimator, name, wrong):
    model = estimator().set_params(**{name: wrong})
    found = model.get_params()
    assert found[name] is wrong
    others = {"recipe", "method", "likelihood"} - {name}
    assert {key.split("__")[0] for key in found if "__" in key} == others
    with pytest.raises(ValueError, match=f"'{name}' has no nested parameters"):
        model.set_params(**{f"{name}__order": 3})
    assert model.set_params(**{name: None if name != "method" else "moments"}).get_params()[name] is not wrong


@either
@pytest.mark.parametrize("recipe", [None, ps.Recipe(iterations=7, learning_rate=0.1)])
def test_a_setting_of_the_recipe_replaces_the_recipe(estimator, recipe):
    model = estimator(recipe=recipe)
    assert model.set_params(recipe__learning_rate=0.5) is model
    assert model.recipe == ps.Recipe(iterations=recipe and 7, learning_rate=0.5)
    assert recipe is None or recipe.learning_rate == 0.1  # recipes are shared, so they must not change
    model.set_params(recipe__iterations=3, recipe__horizons=(1, 5))
    assert model.recipe == ps.Recipe(iterations=3, learning_rate=0.5, horizons=(1, 5))


@either
@pytest.mark.parametrize("method", ["moments", ps.Moments(), ps.Moments(order=1)])
def test_a_setting_of_the_method_replaces_the_method(estimator, method):
    assert estimator(method=method).set_params(method__order=2).method == ps.Moments(order=2)


@either
def test_nested_settings_belong_to_the_object_that_is_set_with_them(estimator):
    model = estimator(method="linearised").set_params(method="sampled", method__samples=16, recipe=None, recipe__clip=2.0)
    assert (model.method.samples, model.method.draw) == (16, "outputs")
    assert model.recipe == ps.Recipe(clip=2.0)


@either
def test_a_setting_of_the_likelihood_replaces_the_likelihood(estimator):
    model = estimator().set_params(likelihood__floor=0.1)
    assert (model.likelihood.floor, model.likelihood.learned, model.likelihood.variance) == (0.1, True, None)
    model.set_params(likelihood__variance=0.5)
    assert np.allclose(model.likelihood.variance, 0.5)
    assert (model.likelihood.floor, model.likelihood.learned) == (0.1, False)  # a variance that is given is known
    assert model.set_params(likelihood__learned=True).likelihood.learned
    assert np.allclose(model.likelihood.variance, 0.6)


@pytest.mark.parametrize(
    ("likelihood", "change"),
    [
        (ps.GaussianLikelihood(0.25), {"floor": 1e-3}),
        (ps.GaussianLikelihood((0.25, 0.1)), {"floor": 1e-3}),
        (ps.GaussianLikelihood(0.25, floor=0.1, learned=True), {"learned": True}),
    ],
)
def test_other_settings_of_a_likelihood_stay_as_they_were(likelihood, change):
    model: Any = ps.ProDSSM(likelihood=likelihood)
    changed = model.set_params(**{f"likelihood__{name}": to for name, to in change.items()}).likelihood
    assert np.allclose(changed.log_variance, likelihood.log_variance, rtol=1e-6)
    assert (changed.scalar, changed.learned) == (likelihood.scalar, likelihood.learned)


@either
@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"recipe__learning_speed": 1.0}, "recipe has no parameter 'learning_speed'; it has iterations"),
        ({"method__samples": 16}, "method has no parameter 'samples'; it has order, components, splits"),
        ({"likelihood__noise": 1.0}, "likelihood has no parameter 'noise'; it has variance"),
        ({"hidden__size": 3}, "'hidden' has no nested parameters; those that have are recipe, method, likelihood"),
        ({"nothing__size": 3}, "'nothing' has no nested parameters"),
    ],
)
def test_unknown_nested_parameters_are_refused(estimator, params, said):
    with pytest.raises(ValueError, match=said):
        estimator(method="moments").set_params(**params)


@pytest.mark.parametrize(
    "nested",
    [
        ps.Recipe(iterations=3, horizons=(1, 4)),
        ps.Moments(order=2),
        ps.Linearised(),
        ps.Unscented(alpha=0.5, beta=1.0, kappa=0.5),
        ps.Cubature(),
        ps.Sampled(samples=8, draw="weights"),
        ps.GaussianLikelihood(),
        ps.GaussianLikelihood(0.3),
        ps.GaussianLikelihood((0.3, 0.7), floor=1e-3),
        ps.GaussianLikelihood((0.3, 0.7), floor=0.1, learned=True),
        ps.GaussianLikelihood(0.0),
    ],
    ids=repr,
)
def test_nested_objects_are_made_of_their_constructor_arguments(nested):
    again = type(nested)(**constructor_params(nested))
    assert jax.tree.structure(again) == jax.tree.structure(nested)  # with all static fields
    for a, b in zip(jax.tree.leaves(again), jax.tree.leaves(nested), strict=True):
        assert a == b if isinstance(a, Recipe) else np.allclose(a, b, rtol=1e-6)


# ---------------------------------------------------------------- searches


@pytest.mark.parametrize(
    "candidates",
    [{"recipe__learning_rate": [1e-3, 0.1]}, pytest.param({"method__order": [1, 2]}, marks=pytest.mark.slow)],
    ids=["recipe", "method"],
)
def test_a_grid_search_over_nested_parameters_changes_the_fit(candidates):
    start: Any = linear_regressor(hidden=(4,), steps=2, iterations=3)
    grid = GridSearchCV(start, candidates, cv=2).fit(X, Y)
    scores = grid.cv_results_["mean_test_score"]
    assert scores[0] != scores[1]
    ((name, values),) = candidates.items()
    outer, inner = name.split("__")
    assert getattr(getattr(grid.best_estimator_, outer), inner) == values[int(np.argmax(scores))]
    copies: list[Any] = [clone(start) for _ in values]
    fits = [copied.set_params(**{name: value}).fit(X, Y) for copied, value in zip(copies, values, strict=True)]
    assert not same(*(fit.ssms_ for fit in fits))
    assert not np.array_equal(*(fit.predict(X) for fit in fits))
    assert np.array_equal(grid.predict(X), fits[int(np.argmax(scores))].predict(X))


@pytest.mark.parametrize(
    ("hidden", "candidates"),
    [((), {"recipe__learning_rate": [1e-3, 0.1]}), pytest.param((4,), {"method__order": [1, 2]}, marks=pytest.mark.slow)],
    ids=["recipe", "method"],
)
def test_a_search_over_nested_parameters_changes_the_fit_of_series(hidden, candidates):
    start: Any = small_prodssm(hidden=hidden, iterations=3)
    grid: list[Any] = list(ParameterGrid(candidates))
    copies: list[Any] = [clone(start) for _ in grid]
    fits = [fit_unchecked(copied.set_params(**params), wave()) for copied, params in zip(copies, grid, strict=True)]
    assert not same(*(fit.ssm_ for fit in fits))
    assert not np.array_equal(*(fit.forecast(wave(), 3).mean for fit in fits))
    assert fits[0].score(wave()) != fits[1].score(wave())


@pytest.mark.slow
def test_scikit_learn_searches_over_series():
    data = [wave(seed=0), wave(seed=1)]
    start = small_prodssm(hidden=(), iterations=3)
    folds = [([0], [1]), ([1], [0])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ps.ProDSSM, "_check_gaussian", lambda model, series: None)
        grid = GridSearchCV(start, {"recipe__learning_rate": [1e-3, 0.1]}, cv=folds).fit(data)
    scores = grid.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert scores[0] != scores[1]
    assert grid.best_estimator_.recipe.learning_rate == [1e-3, 0.1][int(np.argmax(scores))]
