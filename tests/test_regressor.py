"""A regressor as scikit-learn expects one, in any units, with honest standard deviations."""

import os
import pickle
import subprocess
import sys
from typing import Any

import jax
import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

import prodssm as ps
from prodssm import regressor, training
from prodssm.regression import RowsTask
from prodssm.regressor import PRIOR_WEIGHTS, DeepStochasticRegressor, Scaling, Trial, _best
from prodssm.training import History, Recipe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
Y = np.stack([3 * X[:, 0] - X[:, 1], X[:, 1]], axis=1) + 0.3 * RNG.normal(size=(60, 2))
y = Y[:, 0]


@pytest.fixture(autouse=True)
def standard_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def small(**settings):
    """A linear model that is quickly compiled and learned; most tests share what was compiled for it."""
    usual = {"hidden": (), "noise_hidden": (), "steps": 1, "prior_weight": 0.01, "early_stopping": False, "batch_size": 32}
    return DeepStochasticRegressor(**(usual | {"iterations": 50, "learning_rate": 0.03, "members": 1} | settings))


@pytest.fixture(scope="module")
def fitted():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return small().fit(X, y)


@pytest.fixture(scope="module")
def two_targets():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return small().fit(X, Y)


def same(first, second):
    return all((a == b).all() for a, b in zip(first, second, strict=True))


CHECKED = """
import gc, sys, warnings
gc.set_threshold(200_000, 50, 100)  # as in conftest.py
sys.path.insert(0, {tests!r})
warnings.simplefilter("ignore")  # of checks that scikit-learn itself skips
from sklearn.utils.estimator_checks import check_estimator
from test_regressor import small
check_estimator(small())
"""


@pytest.mark.slow
def test_scikit_learn_finds_nothing_wrong():
    # In a process of its own, because it also hands in settings that our type checks would refuse before `fit` sees them.
    code = CHECKED.format(tests=os.path.dirname(__file__))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_learns_and_knows_how_well():
    # Long enough for the noise to settle: 50 iterations, as elsewhere, find the means and still take them to be less sure.
    rng = np.random.default_rng(1)
    rows = rng.normal(size=(2, 1000, 2))
    targets = rows @ [3.0, -1.0] + 0.3 * rng.normal(size=(2, 1000))
    model = small(iterations=1000).fit(rows[0], targets[0])
    assert model.score(rows[1], targets[1]) > 0.9
    mean, std = model.predict(rows[1], return_std=True)
    assert mean.shape == std.shape == (1000,)
    # A mean of n squared standard normals is 1 with variance 2 / n; so is a variance learned from n rows, as a share of itself.
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
    other = small().fit(X * 1e-12 + 1e-9, 1e6 * y - 1e7)
    found = other.predict(X * 1e-12 + 1e-9, return_std=True)
    slack = 1e-3 if np.finfo(other.ssms_[0].initial_mean.dtype).bits == 32 else 1e-5
    assert np.allclose(found[0], 1e6 * mean - 1e7, atol=slack * 1e6)
    assert np.allclose(found[1], 1e6 * std, rtol=slack)


def test_a_column_of_rounding_errors_counts_as_constant():
    column = np.full(1000, 0.1) + 1e-16 * RNG.normal(size=1000)
    units = Scaling.fit(np.stack([column, 0 * column, 1e-13 * column + np.arange(1000.0)], axis=1))
    assert (units.scale[:2] == 1).all()
    assert units.scale[2] > 100


def test_constant_columns_and_targets_integers_objects_few_rows_and_one_row_are_fine():
    constant = np.stack([X[:, 0], np.full(60, 7.0)], axis=1)
    assert np.isfinite(small(iterations=2).fit(constant, y).predict(constant)).all()
    mean, std = small().fit(X, np.full(60, 5.0)).predict(X, return_std=True)
    assert np.allclose(mean, 5.0, atol=0.3)
    assert np.isfinite(std).all()
    for rows, targets in ((X.round().astype(int), y.round().astype(int)), (X.astype(object), y.astype(object)), (X[:1], y[:1])):
        model = small(iterations=2).fit(rows, targets)
        assert np.isfinite(model.predict(rows)).all()
        assert np.isfinite(model.log_prob(rows, targets)).all()


def test_no_number_of_rows_is_compiled_anew(fitted):
    whole = fitted.predict(np.tile(X, (5, 1)))
    assert np.allclose(whole[:60], whole[240:], rtol=1e-6)
    assert np.allclose(fitted.predict(X[:1]), whole[:1], rtol=1e-6)


def test_it_is_repeatable_and_can_be_cloned_and_pickled(fitted):
    copies: list[Any] = [clone(fitted) for _ in range(2)]
    again, other = copies[0].fit(X, y), copies[1].set_params(random_state=1).fit(X, y)
    wanted = fitted.predict(X, return_std=True)
    assert same(again.predict(X, return_std=True), wanted)
    assert same(pickle.loads(pickle.dumps(fitted)).predict(X, return_std=True), wanted)
    assert not same(other.predict(X, return_std=True), wanted)


def test_scikit_learns_tools_take_it():
    grid = GridSearchCV(small(iterations=25), {"learning_rate": [1e-4, 0.03]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"learning_rate": 0.03}
    assert cross_val_score(small(), X, y, cv=2).shape == (2,)
    assert make_pipeline(PolynomialFeatures(1, include_bias=False), small(iterations=25)).fit(X, y).score(X, y) > 0.5


def test_a_saved_model_comes_back_bit_by_bit(tmp_path):
    model = small(members=2, iterations=5).fit(X, Y)
    model.save(tmp_path / "reg.safetensors")
    back = ps.load(tmp_path / "reg.safetensors")
    assert isinstance(back, DeepStochasticRegressor)
    assert len(back.ssms_) == 2
    assert same(back.predict(X, return_cov=True), model.predict(X, return_cov=True))
    assert same([back.log_prob(X, Y)], [model.log_prob(X, Y)])
    assert back.get_params() == model.get_params()
    assert (back.history_, back.prior_weight_, back.n_iter_) == (model.history_, model.prior_weight_, model.n_iter_)


def test_more_rows_are_shown_for_longer_unless_told_otherwise():
    model = DeepStochasticRegressor()
    assert [(r.iterations, r.patience) for r in map(model._checked_recipe, (500, 40_000))] == [(3000, 600), (62_500, 12_500)]
    told = DeepStochasticRegressor(iterations=7, patience=3)._checked_recipe(40_000)
    assert (told.iterations, told.patience) == (7, 3)
    assert DeepStochasticRegressor(batch_size=None)._checked_recipe(40_000).iterations == 3000
    assert [model._held(rows) for rows in (9, 10, 500, 40_000)] == [0, 2, 100, 1000]


def test_the_prior_weight_is_chosen_on_held_out_rows_and_the_best_parameters_kept():
    settings: dict[str, Any] = {"prior_weight": "auto", "early_stopping": True, "patience": 25, "iterations": 75}
    model = small(**settings).fit(X, y)
    assert [weight for weight, _ in model.trials_] == list(PRIOR_WEIGHTS)
    scores = {weight: max(history.validation) for weight, history in model.trials_}
    assert model.prior_weight_ == max(scores, key=lambda weight: scores[weight])
    assert max(model.history_.validation) == scores[model.prior_weight_]
    # The same held-out rows, predicted by what was kept, score the same: nothing was learned from them later.
    order = np.random.default_rng(model._seed).permutation(60)
    held = order[-12:]
    found = model.log_prob(X[held], y[held]).mean() + np.log(y.std())
    assert found == pytest.approx(scores[model.prior_weight_], rel=1e-5)


def test_every_member_holds_out_rows_of_its_own_and_their_mixture_predicts(monkeypatch):
    held: list[np.ndarray] = []
    original = regressor.Rows.of

    def seen(x, y, count=0):
        held.append(x[len(x) - count :])
        return original(x, y, count)

    monkeypatch.setattr(regressor.Rows, "of", seen)
    model = small(members=5, prior_weight="auto", early_stopping=True, patience=25, iterations=25).fit(X, y)
    rows = np.concatenate(held)
    assert len(model.ssms_) == 5
    assert len(np.unique(rows, axis=0)) == len(rows) == 60
    # The first two choose for all.
    weights = [weight for weight, _ in model.trials_]
    assert weights == [*PRIOR_WEIGHTS, *PRIOR_WEIGHTS, *3 * [model.prior_weight_]]
    scores = [sum(max(model.trials_[n + 3 * m][1].validation) for m in range(2)) for n in range(3)]
    assert model.prior_weight_ == PRIOR_WEIGHTS[int(np.argmax(scores))]
    assert model.n_iter_ == 5 * 25

    alone = []
    for ssm in model.ssms_:
        each = small(members=1, iterations=1).fit(X, y)
        each.ssms_ = (ssm,)
        alone.append(each.predict(X, return_std=True))
    means, stds = (np.stack(part) for part in zip(*alone, strict=True))
    mean, std = model.predict(X, return_std=True)
    assert np.allclose(mean, means.mean(axis=0))
    assert np.allclose(std**2, (stds**2).mean(axis=0) + means.var(axis=0))
    assert np.allclose(np.exp(model.log_prob(X, y)), norm.pdf(y, means, stds).mean(axis=0))


def test_ctrl_c_returns_the_best_model_so_far(monkeypatch):
    original, left = training._run_chunk, [1]

    def interrupted(*args):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return original(*args)

    monkeypatch.setattr(training, "_run_chunk", interrupted)
    model = small(iterations=200).fit(X, y)
    assert model.history_.stopped.startswith("interrupted")
    assert model.n_iter_ == 25
    left[0] = 1
    model = small(iterations=200, prior_weight="auto").fit(X, y)
    assert len(model.trials_) == 1
    assert np.isfinite(model.predict(X)).all()
    # A member that is not done is left out if there are others.
    left[0] = 9
    model = small(iterations=200, members=3).fit(X, y)
    assert (len(model.trials_), len(model.ssms_), model.n_iter_) == (2, 1, 200)
    assert model.history_.stopped.startswith("interrupted")
    assert model.trials_[0][1].stopped == "all iterations done"


def test_prior_weights_are_compared_on_the_rows_that_all_of_them_were_judged_by(fitted):
    def trial(weight, score):
        return [Trial(weight, fitted.ssms_[0], History([25], [0.0], [score], [1.0]))]

    # Ctrl-C came while the second member tried 0.3: its rows, which are hard, must not count against 0.1.
    tried = {0.1: [trial(0.1, 2.0), trial(0.1, -9.0)], 0.3: [trial(0.3, 1.0)], 1.0: [trial(1.0, 0.0)]}
    assert _best(tried) == 0.1
    assert _best(tried | {0.3: [trial(0.3, 1.0), trial(0.3, 1.0)], 1.0: 2 * [trial(1.0, 0.0)]}) == 0.3
    # One that led nowhere is better than one that was not tried.
    assert _best({0.1: [], 0.3: [trial(0.3, np.nan)]}) == 0.3


def test_equal_targets_have_a_density_wherever_they_are_predicted():
    twice = small(noise_floor=1e-6).fit(X, np.stack([y, y], axis=1))
    far = np.concatenate([X, 100 * X])
    found = twice.log_prob(far, twice.predict(far))
    assert np.isfinite(found).all()
    apart = twice.log_prob(X, np.stack([y, y + 3 * y.std()], axis=1))
    assert (apart < twice.log_prob(X, np.stack([y, y], axis=1)) - 10).all()


def test_history_of_members_that_choose_and_members_that_do_not_stays_aligned():
    model = small(prior_weight="auto", members=3).fit(X, y)
    history = model.history_
    assert len(history.validation) == len(history.iterations) == len(history.objective)
    assert np.isnan(history.validation[-1])
    assert np.isfinite(history.validation[0])
    again = pickle.loads(pickle.dumps(model))
    assert np.allclose(again.history_.validation, history.validation, equal_nan=True)


def test_a_killed_fit_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run"
    whole = small(members=2).fit(X, y)
    original, left = training._run_chunk, [3]

    def killed(*args):
        left[0] -= 1
        if left[0] < 0:
            raise SystemExit
        return original(*args)

    monkeypatch.setattr(training, "_run_chunk", killed)
    with pytest.raises(SystemExit):
        small(members=2, checkpoint=path).fit(X, y)
    left[0] = 1  # all that is missing
    resumed = small(members=2, checkpoint=path).fit(X, y)
    assert left[0] == 0
    assert resumed.history_.objective == whole.history_.objective
    assert same(resumed.predict(X, return_std=True), whole.predict(X, return_std=True))
    with pytest.raises(ValueError, match="belongs to another run"):
        small(members=2, checkpoint=path, learning_rate=0.5).fit(X, y)


def test_any_number_of_particles_works():
    model = small(weights="global", method="sampled", samples=3, test_samples=5).fit(X, y)
    assert model.score(X, y) > 0.5
    assert np.allclose(model.predict(X[:3]), model.predict(X)[:3], rtol=1e-6)


def test_layers_with_hidden_units_learn():
    model = small(weights="global", refine=None, hidden=(3,), noise_hidden=(2,), steps=2, order=1).fit(X, y)
    assert model.score(X, y) > 0.5


def test_weights_drawn_once_are_first_learned_as_redrawn_ones_and_then_refined(tmp_path):
    path = tmp_path / "run.safetensors"
    settings = {"weights": "global", "early_stopping": True, "patience": 25, "iterations": 75, "refine": 30}
    model = small(**settings, checkpoint=path).fit(X, y)
    assert model.ssms_[0].weights == "global"
    (first_weight, first), (weight, second) = model.trials_
    assert first_weight == weight == model.prior_weight_
    assert model.n_iter_ == first.iterations[-1] + second.iterations[-1]
    # The first stage is what redrawn weights alone would have learned; the second goes on from there.
    alone = small(**{**settings, "weights": "local"}).fit(X, y)
    assert model.history_.objective[: len(alone.history_.objective)] == alone.history_.objective
    again = small(**settings, checkpoint=path).fit(X, y)
    assert same(again.predict(X, return_std=True), model.predict(X, return_std=True))


def test_training_that_settles_goes_on_calmly_and_loses_nothing(tmp_path):
    settings = {"early_stopping": True, "iterations": 100, "refine": 30, "checkpoint": tmp_path / "run.safetensors"}
    alone = small(**settings).fit(X, y)
    for weights, stages in (("local", 2), ("global", 3)):
        model = small(**settings, weights=weights, settle=125).fit(X, y)
        histories = [history for _, history in model.trials_]
        assert len(histories) == stages
        assert histories[0].objective == alone.history_.objective
        name, (kind, recipe) = model._later([("local", Recipe(learning_rate=0.5)), ("global", Recipe())][: stages - 1])[-1]
        assert (name, kind) == (f"{weights}.settled", weights)
        assert (recipe.iterations, recipe.patience, recipe.schedule) == (125, 25, "constant")
        assert recipe.learning_rate == 0.005
        # By the rows that were held out, the model is at least as good as all that it settled from.
        kept = model.ssms_[0]
        rows, _ = model._member(0, *model._prepare(X, y)[:2], model._held(len(X)))
        task, learned = RowsTask.of(kept, rows, Recipe(batch=32), model._plan, key=model._key(2))
        reached = max(max(history.validation) for history in histories[-2:])
        assert np.isclose(float(task.validation(learned)), reached, atol=1e-5)


def test_point_weights_have_no_prior_to_choose():
    model = small(weights="point", prior_weight="auto").fit(X, y)
    assert not model.ssms_[0].transition.uncertain
    assert not model.ssms_[0].process_network.uncertain
    assert (model.prior_weight_, len(model.trials_)) == (0.0, 1)


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"hidden": 40}, TypeError),
        ({"noise_hidden": (0,)}, ValueError),
        ({"steps": 0}, ValueError),
        ({"activation": "rely"}, ValueError),
        ({"weights": "some"}, ValueError),
        ({"method": "unscented"}, ValueError),
        ({"order": 0}, ValueError),
        ({"samples": 0}, ValueError),
        ({"test_samples": 0}, ValueError),
        ({"prior_weight": -1.0}, ValueError),
        ({"prior_weight": "best"}, TypeError),
        ({"batch_size": 0}, ValueError),
        ({"members": 0}, ValueError),
        ({"validation_fraction": 1.0}, ValueError),
        ({"noise_floor": -1.0}, ValueError),
        ({"iterations": 0}, ValueError),
        ({"early_stopping": "False"}, TypeError),
        ({"refine": 0}, ValueError),
        ({"settle": 0}, ValueError),
        ({"patience": 0}, ValueError),
        ({"learning_rate": -1.0}, ValueError),
        ({"schedule": "linear"}, ValueError),
    ],
)
def test_bad_settings_are_refused_by_name(wrong, error):
    with pytest.raises(error, match=next(iter(wrong))):
        small(**wrong).fit(X, y)


def test_bad_data_are_refused(fitted):
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :1])
    with pytest.raises(ValueError, match="y must have 1 targets"):
        fitted.log_prob(X, Y)
    with pytest.raises(ValueError, match="return_std and return_cov"):
        fitted.predict(X, return_std=True, return_cov=True)
    with pytest.raises(FloatingPointError, match="range of numbers"):
        fitted.predict(np.full((1, 2), 1e300))
    with pytest.raises(NotFittedError):
        small().predict(X)
    with pytest.raises(ValueError, match="NaN"):
        small().fit(np.where(X > 0, X, np.nan), y)
