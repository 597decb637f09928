"""The weight of the hyper-prior is chosen on validation rows, of which every member has its own."""

import pickle
from copy import copy

import numpy as np
import pytest
from scipy.stats import norm
from small_models import fit_untrained_regressor, linear_regressor

from prodssm.estimators import regressor
from prodssm.estimators.selection import DEFAULT_PRIOR_WEIGHT, PRIOR_WEIGHTS, Trial, best_prior_weight
from prodssm.training.history import History

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))
y = 3 * X[:, 0] - X[:, 1] + 0.3 * RNG.normal(size=60)


def choosing(**settings):
    return linear_regressor(**({"prior_weight": "auto", "validation": 0.2, "patience": 25, "iterations": 75} | settings))


def test_the_prior_weight_is_chosen_on_validation_rows_and_the_best_parameters_kept():
    model = choosing().fit(X, y)
    assert [weight for weight, _ in model.trials_] == list(PRIOR_WEIGHTS)
    scores = {weight: max(history.validation) for weight, history in model.trials_}
    assert model.prior_weight_ == max(scores, key=lambda weight: scores[weight])
    assert max(model.history_.validation) == scores[model.prior_weight_]
    # The same validation rows, predicted by the final model, have the same score: nothing was learned from them later.
    held_out = np.random.default_rng(model._seed).permutation(60)[-12:]
    found = model.log_prob(X[held_out], y[held_out]).mean() + np.log(y.std())
    assert found == pytest.approx(scores[model.prior_weight_], rel=1e-5)


def test_without_validation_rows_there_is_no_choice():
    model = fit_untrained_regressor(X, y, prior_weight="auto")
    assert model.prior_weight_ == DEFAULT_PRIOR_WEIGHT
    assert fit_untrained_regressor(X, y, prior_weight=0.7, validation=0.2).prior_weight_ == 0.7


def test_every_member_has_validation_rows_of_its_own_and_their_mixture_predicts(monkeypatch):
    held_out: list[np.ndarray] = []
    original = regressor.Rows.padded

    def seen(x, y, validation=0):
        held_out.append(x[len(x) - validation :])
        return original(x, y, validation)

    monkeypatch.setattr(regressor.Rows, "padded", seen)
    model = choosing(n_estimators=5, iterations=25).fit(X, y)
    rows = np.concatenate(held_out)
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
        each = copy(model)
        each.ssms_ = (ssm,)
        alone.append(each.predict(X, return_std=True))
    means, stds = (np.stack(part) for part in zip(*alone, strict=True))
    mean, std = model.predict(X, return_std=True)
    assert np.allclose(mean, means.mean(axis=0))
    assert np.allclose(std**2, (stds**2).mean(axis=0) + means.var(axis=0))
    assert np.allclose(np.exp(model.log_prob(X, y)), norm.pdf(y, means, stds).mean(axis=0))


def test_prior_weights_are_compared_on_validation_rows_that_they_have_in_common():
    model = fit_untrained_regressor(X, y).ssms_[0]

    def trial(weight, score):
        return [Trial(weight, model, History([25], [0.0], [score], [1.0]))]

    # Ctrl-C came while the second member tried 0.3: its rows, which are hard, must not count against 0.1.
    tried = {0.1: {0: trial(0.1, 2.0), 1: trial(0.1, -9.0)}, 0.3: {0: trial(0.3, 1.0)}, 1.0: {0: trial(1.0, 0.0)}}
    assert best_prior_weight(tried) == 0.1
    both = {0: trial(0.3, 1.0), 1: trial(0.3, 1.0)}, {0: trial(1.0, 0.0), 1: trial(1.0, 0.0)}
    assert best_prior_weight(tried | {0.3: both[0], 1.0: both[1]}) == 0.3
    # Workers may have tried them in any order.
    assert best_prior_weight({0.1: {1: trial(0.1, -9.0)}, 0.3: {0: trial(0.3, 1.0), 1: trial(0.3, -8.0)}}) == 0.3
    # One that diverged is better than one that was not tried.
    assert best_prior_weight({0.1: {}, 0.3: {0: trial(0.3, np.nan)}}) == 0.3


def test_the_history_of_members_that_choose_and_members_that_do_not_stays_aligned():
    model = choosing(validation=0.0, n_estimators=3, iterations=25).fit(X, y)
    assert model.history_.validation == []
    model = choosing(n_estimators=3, iterations=25).fit(X, y)
    history = model.history_
    assert len(history.validation) == len(history.iterations) == len(history.objective) == 3
    assert np.isfinite(history.validation).all()
    again = pickle.loads(pickle.dumps(model))
    assert again.history_ == history
