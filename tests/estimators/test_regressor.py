"""The regressor follows scikit-learn's conventions, in any units, with calibrated standard deviations."""

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from small_models import OF_RECIPE, fit_untrained_regressor, linear_regressor, same

import prodssm as ps
from prodssm.estimators import regressor, row_recipe
from prodssm.training import loop
from prodssm.training.history import History, StopReason

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.stack([3 * X[:, 0] - X[:, 1], X[:, 1]], axis=1) + 0.3 * RNG.normal(size=(60, 2))
y = Y[:, 0]


@pytest.fixture(scope="module")
def fitted():
    return linear_regressor().fit(X, y)


@pytest.fixture(scope="module")
def two_targets():
    return linear_regressor().fit(X, Y)


def equal(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture
def run_chunks(monkeypatch):
    """The number of chunks that training runs before it ends with an exception."""
    original, left = loop._run_chunk, [0]

    def ending_with(error, after):
        left[0] = after

        def run(*args):
            if not left[0]:
                raise error
            left[0] -= 1
            return original(*args)

        monkeypatch.setattr(loop, "_run_chunk", run)
        return left

    return ending_with


# ---------------------------------------------------------------- conventions of scikit-learn

CHECKED = """
import gc, sys, warnings
gc.set_threshold(200_000, 50, 100)  # as in conftest.py
sys.path[:0] = {folders!r}
warnings.simplefilter("ignore")  # of checks that scikit-learn itself skips
from sklearn.utils.estimator_checks import check_estimator
from small_models import linear_regressor
allowed = {{"check_parameters_default_constructible": "the default method is an object, Moments(order=1), which is immutable"}}
check_estimator(linear_regressor(), expected_failed_checks=allowed)
"""


@pytest.mark.slow
def test_scikit_learn_finds_nothing_wrong():
    # In a process of its own, because it also sets parameters that our type checks would refuse before `fit` sees them.
    folder = Path(__file__).parent
    code = CHECKED.format(folders=[str(folder), str(folder.parent)])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_fits_are_repeatable_and_can_be_cloned_and_pickled(fitted):
    copies: list[Any] = [clone(fitted) for _ in range(2)]
    again, other = copies[0].fit(X, y), copies[1].set_params(random_state=1).fit(X, y)
    wanted = fitted.predict(X, return_std=True)
    assert equal(again.predict(X, return_std=True), wanted)
    assert equal(pickle.loads(pickle.dumps(fitted)).predict(X, return_std=True), wanted)
    assert not equal(other.predict(X, return_std=True), wanted)


def test_cross_validation_and_pipelines_take_it():
    assert cross_val_score(linear_regressor(), X, y, cv=2).shape == (2,)
    pipeline = make_pipeline(PolynomialFeatures(1, include_bias=False), linear_regressor(iterations=25))
    assert pipeline.fit(X, y).score(X, y) > 0.5


# ---------------------------------------------------------------- predictions


def test_it_learns_and_its_standard_deviations_are_calibrated():
    # More iterations than elsewhere: 50 find the means and still overestimate the noise.
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 1000, 2))
    targets = rows @ [3.0, -1.0] + 0.3 * rng.normal(size=(2, 1000))
    model = linear_regressor(iterations=1000).fit(rows[0], targets[0])
    assert model.score(rows[1], targets[1]) > 0.9
    mean, std = model.predict(rows[1], return_std=True)
    assert mean.shape == std.shape == (1000,)
    # A mean of n squared standard normals is 1 with variance 2 / n; so is a variance learned from n rows, relative to itself.
    error = np.sqrt(2 / 1000 + 2 / 1000)
    assert abs((((targets[1] - mean) / std) ** 2).mean() - 1) < 4 * error


def test_log_prob_is_that_of_the_predicted_normal(fitted, two_targets):
    mean, std = fitted.predict(X, return_std=True)
    assert np.allclose(fitted.log_prob(X, y), norm.logpdf(y, mean, std))
    mean, cov = two_targets.predict(X, return_cov=True)
    assert cov.shape == (60, 2, 2)
    wanted = [multivariate_normal.logpdf(*row) for row in zip(Y, mean, cov, strict=True)]
    assert np.allclose(two_targets.log_prob(X, Y), wanted)
    assert np.allclose(two_targets.predict(X, return_std=True)[1] ** 2, np.diagonal(cov, axis1=1, axis2=2))


def test_units_do_not_matter(fitted):
    mean, std = fitted.predict(X, return_std=True)
    other = linear_regressor().fit(X * 1e-12 + 1e-9, 1e6 * y - 1e7)
    found = other.predict(X * 1e-12 + 1e-9, return_std=True)
    slack = 1e-3 if np.finfo(other.ssms_[0].dtype).bits == 32 else 1e-5
    assert np.allclose(found[0], 1e6 * mean - 1e7, atol=slack * 1e6)
    assert np.allclose(found[1], 1e6 * std, rtol=slack)


def test_constant_columns_constant_targets_integers_objects_and_one_row_are_fine():
    constant = np.stack([X[:, 0], np.full(60, 7.0)], axis=1)
    assert np.isfinite(linear_regressor(iterations=2).fit(constant, y).predict(constant)).all()
    mean, std = linear_regressor().fit(X, np.full(60, 5.0)).predict(X, return_std=True)
    assert np.allclose(mean, 5.0, atol=0.3)
    assert np.isfinite(std).all()
    for rows, targets in ((X.round().astype(int), y.round().astype(int)), (X.astype(object), y.astype(object)), (X[:1], y[:1])):
        model = linear_regressor(iterations=2).fit(rows, targets)
        assert np.isfinite(model.predict(rows)).all()
        assert np.isfinite(model.log_prob(rows, targets)).all()


def test_predictions_do_not_depend_on_the_other_rows(fitted):
    whole = fitted.predict(np.tile(X, (5, 1)))
    assert np.allclose(whole[:60], whole[240:], rtol=1e-6)
    assert np.allclose(fitted.predict(X[:1]), whole[:1], rtol=1e-6)


def test_equal_targets_have_a_density_wherever_they_are_predicted():
    twice = linear_regressor(likelihood=ps.GaussianLikelihood(floor=1e-6)).fit(X, np.stack([y, y], axis=1))
    far = np.concatenate([X, 100 * X])
    found = twice.log_prob(far, twice.predict(far))
    assert np.isfinite(found).all()
    apart = twice.log_prob(X, np.stack([y, y + 3 * y.std()], axis=1))
    assert (apart < twice.log_prob(X, np.stack([y, y], axis=1)) - 10).all()


# ---------------------------------------------------------------- models


@pytest.mark.slow
def test_any_number_of_particles_works():
    model = linear_regressor(weights="global", method=ps.Sampled(samples=3)).fit(X, y)
    assert model.score(X, y) > 0.5
    assert np.allclose(model.predict(X[:3]), model.predict(X)[:3], rtol=1e-6)


@pytest.mark.slow
def test_layers_with_hidden_units_learn():
    model = linear_regressor(weights="global", fine_tune=0, hidden=(3,), noise_hidden=(2,), steps=2).fit(X, y)
    assert model.score(X, y) > 0.5


@pytest.mark.parametrize("method", ["linearised", "cubature", "unscented"])
def test_every_method_predicts_a_linear_model_the_same(method):
    usual = fit_untrained_regressor(X, y, weights="point")
    first = usual.predict(X, return_std=True)
    found = fit_untrained_regressor(X, y, weights="point", method=method).predict(X, return_std=True)
    assert np.allclose(found, first, rtol=1e-3 if np.finfo(float).bits == 32 else 1e-5, atol=1e-3)
    assert np.array_equal(usual.with_method(method).predict(X, return_std=True), found)


def test_global_weights_are_trained_as_local_ones_first_and_then_fine_tuned(tmp_path):
    path = tmp_path / "run.safetensors"
    settings = {"weights": "global", "validation": 0.2, "patience": 25, "iterations": 75, "fine_tune": 30}
    model = linear_regressor(**settings, checkpoint=path).fit(X, y)
    assert model.ssms_[0].weights == "global"
    (first_weight, first), (weight, second) = model.trials_
    assert first_weight == weight == model.prior_weight_
    assert model.n_iter_ == first.iterations[-1] + second.iterations[-1]
    # The first stage is what local weights alone would have learned; the second goes on from there.
    alone = linear_regressor(**{**settings, "weights": "local"}).fit(X, y)
    assert model.history_.objective[: len(alone.history_.objective)] == alone.history_.objective
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"{path.name}.0.0.01", f"{path.name}.0.0.01.fine_tune"]
    again = linear_regressor(**settings, checkpoint=path).fit(X, y)
    assert equal(again.predict(X, return_std=True), model.predict(X, return_std=True))


def test_point_weights_have_no_prior_to_choose():
    model = linear_regressor(weights="point", prior_weight="auto").fit(X, y)
    assert not model.ssms_[0].transition.uncertain
    assert not model.ssms_[0].process_network.uncertain
    assert (model.prior_weight_, len(model.trials_)) == (0.0, 1)


def test_a_known_variance_is_not_trained():
    model = linear_regressor(likelihood=ps.GaussianLikelihood(0.25), iterations=25).fit(X, y)
    likelihood: Any = model.ssms_[0].likelihood
    assert np.allclose(likelihood.variance * y.var(), 0.25, rtol=1e-5)
    assert (model.predict(X, return_std=True)[1] > 0.5).all()


# ---------------------------------------------------------------- few rows


def untrained_default(rows, targets, **settings):
    """A regressor of defaults that went through all of `fit` but training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(regressor, "maximise", lambda task, learned, **_: (learned, History([1], [0.0])))
        return ps.DeepStochasticRegressor(n_estimators=2, **settings).fit(rows, targets)


def test_few_rows_of_a_noisy_sine_are_learned_by_default(tmp_path):
    rng = np.random.default_rng(3)
    rows, test = rng.uniform(-2, 2, (80, 1)), np.linspace(-2, 2, 200)[:, None]
    model = untrained_default(rows, np.sin(2 * rows[:, 0]) + 0.1 * rng.normal(size=80))
    assert (model.choices_.fourier, model.choices_.hidden, model.choices_.steps) == (True, (100,), 1)
    mean, std = model.predict(test, return_std=True)
    assert np.sqrt(((mean - np.sin(2 * test[:, 0])) ** 2).mean()) < 0.05
    assert 0.08 < std.mean() < 0.15
    model.save(tmp_path / "model.safetensors")
    back = ps.load(tmp_path / "model.safetensors")
    assert (back.choices_, back.hidden, back.steps, back.activation) == (model.choices_, "auto", "auto", "auto")
    assert np.array_equal(back.predict(test), mean)
    with pytest.raises(ValueError, match="changed after fit"):
        model.set_params(steps=2).save(tmp_path / "model.safetensors")


def test_training_after_fourier_features_is_short_and_over_all_rows():
    def recipe(rows, **settings):
        return ps.DeepStochasticRegressor(recipe=ps.Recipe(**settings))._rows_recipe(rows)

    found = recipe(80)
    assert (found.iterations, found.patience, found.batch, found.prior_weight) == (300, 60, "all", 0.1)
    # Without validation rows nothing would say when to stop.
    assert recipe(9).iterations == recipe(80, validation=0.0).iterations == loop.CHUNK
    given = recipe(80, iterations=7, batch=16, prior_weight="auto")
    assert (given.iterations, given.batch, given.prior_weight) == (7, 16, "auto")
    assert recipe(300) == replace(recipe(455), iterations=recipe(300).iterations, patience=recipe(300).patience)
    assert (recipe(300).iterations, recipe(300).batch, recipe(300).prior_weight) == (3000, 32, "auto")


# ---------------------------------------------------------------- training


def test_one_progress_bar_counts_the_iterations_of_all_members(capsys):
    settings = {"n_estimators": 3, "prior_weight": "auto", "validation": 0.2, "patience": 1000}
    linear_regressor(**settings, progress=True).fit(X, y)
    assert "350/350" in capsys.readouterr().err  # two members with three prior weights, one with the best
    linear_regressor(validation=0.2, iterations=1000, patience=25, progress=True).fit(X[:20], RNG.normal(size=20))
    shown = capsys.readouterr().err
    assert "/1000 [" in shown
    assert "100%" in shown  # early stopping takes what it saves from the total
    linear_regressor(**settings).fit(X, y)
    assert capsys.readouterr().err == ""  # "auto" shows long fits only


def test_more_rows_are_trained_on_for_longer_unless_told_otherwise():
    def recipe(rows, **settings):
        found = ps.DeepStochasticRegressor(recipe=ps.Recipe(**settings))._rows_recipe(rows)
        return found.iterations, found.patience

    assert [recipe(rows) for rows in (500, 40_000)] == [(3000, 600), (62_500, 12_500)]
    assert recipe(40_000, iterations=7, patience=3) == (7, 3)
    assert recipe(40_000, batch="all")[0] == 3000
    model = ps.DeepStochasticRegressor()
    assert [row_recipe.validation_rows(rows, model._rows_recipe(rows)) for rows in (9, 10, 500, 40_000)] == [0, 2, 100, 1000]
    assert row_recipe.validation_rows(500, ps.Recipe(validation=0.0)) == 0


def test_a_killed_fit_resumes_from_its_checkpoint(tmp_path, run_chunks):
    path = tmp_path / "run"
    whole = linear_regressor(n_estimators=2).fit(X, y)
    left = run_chunks(SystemExit, after=3)
    with pytest.raises(SystemExit):
        linear_regressor(n_estimators=2, checkpoint=path).fit(X, y)
    left[0] = 1  # all that is missing
    resumed = linear_regressor(n_estimators=2, checkpoint=path).fit(X, y)
    assert left[0] == 0
    assert resumed.history_.objective == whole.history_.objective
    assert equal(resumed.predict(X, return_std=True), whole.predict(X, return_std=True))
    with pytest.raises(ValueError, match="belongs to another run"):
        linear_regressor(n_estimators=2, checkpoint=path, learning_rate=0.5).fit(X, y)


def test_ctrl_c_returns_the_best_model_so_far(run_chunks):
    left = run_chunks(KeyboardInterrupt, after=1)
    with pytest.warns(UserWarning, match="interrupted: 1 of 1 models are kept"):
        model = linear_regressor(iterations=200).fit(X, y)
    assert model.history_.stop_reason is StopReason.INTERRUPTED
    assert model.n_iter_ == 25
    left[0] = 1
    with pytest.warns(UserWarning, match="interrupted: 1 of 1"):
        model = linear_regressor(iterations=200, prior_weight="auto").fit(X, y)
    assert len(model.trials_) == 1
    assert np.isfinite(model.predict(X)).all()
    # An incomplete member is left out if there are complete ones.
    left[0] = 9
    with pytest.warns(UserWarning, match="interrupted: 1 of 3 models are kept"):
        model = linear_regressor(iterations=200, n_estimators=3).fit(X, y)
    assert (len(model.trials_), len(model.ssms_), model.n_iter_) == (2, 1, 200)
    assert model.history_.stop_reason is StopReason.INTERRUPTED
    assert model.trials_[0][1].stop_reason is StopReason.COMPLETED


# ---------------------------------------------------------------- bad settings and data


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"hidden": 40}, TypeError),
        ({"noise_hidden": (0,)}, ValueError),
        ({"steps": 0}, ValueError),
        ({"activation": "rely"}, ValueError),
        ({"weights": "some"}, ValueError),
        ({"method": "magic"}, ValueError),
        ({"likelihood": "gausian"}, ValueError),
        ({"likelihood": 4}, TypeError),
        ({"recipe": "fast"}, TypeError),
        ({"prior_weight": -1.0}, ValueError),
        ({"prior_weight": "best"}, TypeError),
        ({"batch": 0}, ValueError),
        ({"n_estimators": 0}, ValueError),
        ({"validation": 1.0}, ValueError),
        ({"iterations": 0}, ValueError),
        ({"fine_tune": -1}, ValueError),
        ({"patience": 0}, ValueError),
        ({"learning_rate": -1.0}, ValueError),
        ({"schedule": "linear"}, ValueError),
    ],
    ids=str,
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_settings_are_refused_by_name(wrong, error):
    with pytest.raises(error, match=next(iter(wrong))):
        linear_regressor(**wrong).fit(X, y)


SERIES_ONLY = {
    "warm_up": 0.1,
    "variance_rate": 2.0,
    "objective": "evidence",
    "horizons": (1,),
    "stride": 1,
    "window": 10,
    "validation_horizons": (1,),
    "calibrate": True,
    "linear_start": True,
    "free_run": 0,
    "context": 3,
    "validation_score": "density",
}


@pytest.mark.parametrize("name", SERIES_ONLY)
def test_settings_of_series_are_refused(name):
    assert set(SERIES_ONLY) == set(row_recipe.SERIES_ONLY) <= OF_RECIPE
    with pytest.raises(ValueError, match=f"{name} is a setting of series; a regressor has none, leave it None"):
        linear_regressor(**{name: SERIES_ONLY[name]}).fit(X, y)


def test_bad_data_are_refused(fitted):
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :1])
    with pytest.raises(ValueError, match="y must have 1 targets"):
        fitted.log_prob(X, Y)
    with pytest.raises(ValueError, match="return_std and return_cov"):
        fitted.predict(X, return_std=True, return_cov=True)
    with pytest.raises(FloatingPointError, match="a prediction overflows"):
        fitted.predict(np.full((1, 2), 1e300))
    with pytest.raises(NotFittedError):
        linear_regressor().predict(X)
    with pytest.raises(ValueError, match="NaN"):
        linear_regressor().fit(np.where(X > 0, X, np.nan), y)


def test_a_failed_fit_leaves_no_fitted_model(fitted):
    model = pickle.loads(pickle.dumps(fitted))
    assert same(model.ssms_, fitted.ssms_)
    with pytest.raises(ValueError, match="NaN"):
        model.fit(np.where(X > 0, X, np.nan), y)
    with pytest.raises(NotFittedError):
        model.predict(X)
