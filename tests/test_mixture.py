"""Several models as one: the moments and densities of a mixture, and what its members disagree on."""

import pickle
import warnings
from copy import copy

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm

import prodssm as ps
from prodssm import mixture


@pytest.fixture(autouse=True, scope="module")
def standard_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def test_a_mixture_has_the_moments_of_its_draws():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 2))
    roots = rng.normal(size=(3, 2, 2))
    mean, cov = (part[0] for part in mixture.matched(means[:, None], (roots @ roots.transpose(0, 2, 1))[:, None]))
    draws = np.concatenate([m + rng.normal(size=(200_000, 2)) @ root.T for m, root in zip(means, roots, strict=True)])
    error = np.sqrt(np.diag(cov) / len(draws))
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * error).all()
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    assert (np.abs(products.mean(axis=0) - cov) < 4 * products.std(axis=0) / len(draws) ** 0.5).all()


def test_a_mixture_has_the_density_of_its_parts():
    each = np.log(
        [[0.5, 0.0, 1e-300], [0.25, 0.5, 3e-300]], where=[[True, False, True], [True] * 3], out=np.full((2, 3), -np.inf)
    )
    assert np.allclose(mixture.log_density(each), np.log([0.375, 0.25, 2e-300]))


def test_quantiles_of_a_mixture_by_its_draws():
    rng = np.random.default_rng(1)
    means, stds = rng.normal(size=(4, 1, 2)), rng.uniform(0.1, 2.0, size=(4, 1, 2))
    draws = np.concatenate([m + s * rng.normal(size=(100_000, 2)) for m, s in zip(means, stds, strict=True)])
    for share in (0.01, 0.3, 0.975):
        below = (draws < mixture.quantile(share, means, stds)).mean(axis=0)
        assert (np.abs(below - share) < 4 * np.sqrt(share * (1 - share) / len(draws))).all()


def test_shares_are_the_same_as_so_many_equal_parts():
    rng = np.random.default_rng(2)
    means, stds, y = rng.normal(size=(2, 5, 3)), rng.uniform(0.1, 2.0, size=(2, 5, 3)), rng.normal(size=(5, 3))
    each = norm.logpdf(y, means, stds).sum(axis=2)
    parts, shares = [0, 1, 1, 1], np.array([0.25, 0.75])
    assert np.allclose(mixture.log_density(each, shares), mixture.log_density(each[parts]))
    assert np.allclose(mixture.quantile(0.1, means, stds, shares), mixture.quantile(0.1, means[parts], stds[parts]))
    assert np.allclose(mixture.crps(y, means, stds, shares), mixture.crps(y, means[parts], stds[parts]))
    rows = np.repeat(shares[:, None], 5, axis=1)
    rows[:, 2] = [1.0, 0.0]  # row by row
    assert np.allclose(mixture.log_density(each, rows)[2], each[0, 2])
    assert np.allclose(mixture.quantile(0.1, means, stds, rows)[2], means[0, 2] + norm.ppf(0.1) * stds[0, 2])
    assert np.allclose(mixture.crps(y, means, stds, rows)[3], mixture.crps(y, means[parts], stds[parts])[3])
    lost = np.concatenate([means, np.full((1, 5, 3), 1e30)]), np.concatenate([stds, np.ones((1, 5, 3))])
    none = np.array([0.25, 0.75, 0.0])  # a part without a share is not there
    assert np.allclose(mixture.quantile(0.1, *lost, none), mixture.quantile(0.1, means, stds, shares))
    assert np.allclose(mixture.crps(y, *lost, none), mixture.crps(y, means, stds, shares))


def test_the_ranked_score_of_a_mixture_is_the_integral_over_its_distribution():
    rng = np.random.default_rng(3)
    means, stds, shares = rng.normal(size=(3, 1, 1)), np.array([0.3, 1.0, 0.0])[:, None, None], np.array([0.2, 0.5, 0.3])
    at = np.linspace(-12, 12, 240_001)
    with np.errstate(divide="ignore"):
        below = np.tensordot(shares, norm.cdf((at - means[:, 0]) / stds[:, 0]), axes=1)
    for y in (-2.0, 0.4):
        step = at[1] - at[0]
        area = np.sum((below - (at >= y)) ** 2) * step
        # A sum of steps is off by no more than a step times all that the square rises and falls: at most one, either way.
        assert abs(mixture.crps(np.array([[y]]), means, stds, shares).item() - area) < 2 * step


def test_the_ranked_score_of_one_part_is_that_of_the_metrics():
    rng = np.random.default_rng(4)
    y, mean, std = rng.normal(size=(6, 2)), rng.normal(size=(6, 2)), rng.uniform(0.1, 2.0, size=(6, 2))
    std[0, 0] = 0.0
    assert np.allclose(mixture.crps(y, mean[None], std[None]).mean(), ps.metrics.crps(y, mean, std))
    assert mixture.crps(mean, mean[None], 0 * std[None]).max() == 0.0  # certain and right


@pytest.mark.parametrize("shares", [[0.5], [0.7, 0.7], [1.5, -0.5], [np.nan, 1.0], np.full((2, 3), 0.5)])
def test_shares_that_are_none(shares):
    with pytest.raises(ValueError, match="shares must be 2 numbers"):
        mixture.quantile(0.5, np.zeros((2, 1, 1)), np.ones((2, 1, 1)), shares)


def test_truth_of_another_shape_has_no_ranked_score():
    with pytest.raises(ValueError, match=r"y must have the shape of one part, \(3, 1\); got \(3,\)"):
        mixture.crps(np.zeros(3), np.zeros((2, 3, 1)), np.ones((2, 3, 1)))


def test_quantiles_of_certain_parts_lie_where_these_are():
    means = np.array([1.0, 2.0, 3.0])[:, None, None]
    for share, expected in ((0.2, 1.0), (0.5, 2.0), (0.9, 3.0)):
        assert np.allclose(mixture.quantile(share, means, np.zeros((3, 1, 1))), expected)


def test_the_median_is_as_good_whatever_is_lost():
    means = np.array([0.0, 0.1, 0.0])[:, None, None]
    for lost in (1e6, 1e18, 1e30, 1e38):
        means[2] = lost
        share = norm.cdf(mixture.quantile(0.5, means, np.ones((3, 1, 1))) - means[:2]).sum() / 3
        assert abs(share - 0.5) < 1e-12


def test_the_forecast_of_several_models_can_be_pickled(several):
    ahead = mixture.forecast(several, Y, 5)
    back = pickle.loads(pickle.dumps(ahead))
    assert np.array_equal(back.quantile(0.1), ahead.quantile(0.1))
    assert np.array_equal(back.decompose().epistemic, ahead.decompose().epistemic)


def test_what_came_true_may_be_a_frame_with_its_columns_in_any_order():
    values = np.stack([Y[:, 0], 10 + Y[:, 0] ** 2], axis=1)
    frame = pd.DataFrame(values, columns=["a", "b"])
    model = learned_from(frame, 0)
    ahead, truth = mixture.forecast([model], frame, 5), frame[:5]
    for answer in (ahead, ahead.members[0]):
        assert np.array_equal(answer.log_prob(truth), answer.log_prob(values[:5]))
        assert np.array_equal(answer.log_prob(truth[["b", "a"]]), answer.log_prob(values[:5]))


def test_one_model_alone_is_its_own_mixture(several):
    alone, ahead = several[0].forecast(Y, 5), mixture.forecast(several[:1], Y, 5)
    for own, mixed in zip(alone.interval(0.8), ahead.interval(0.8), strict=True):
        assert np.allclose(own, mixed, atol=1e-6)
    truth = Y[:5]
    assert np.allclose(alone.log_prob(truth), ahead.log_prob(truth), atol=1e-6)
    assert np.allclose(-np.mean(alone.log_prob(truth)), ps.metrics.nll(truth, alone.mean, alone.cov), atol=1e-5)
    with pytest.raises(ValueError, match="y must have shape"):
        ahead.log_prob(truth[:3])
    with pytest.raises(ValueError, match="infinite"):
        ahead.log_prob(np.full((5, 1), np.inf))
    for wrong in (0.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="probability"):
            ahead.quantile(wrong)


Y = np.sin(np.arange(40.0))[:, None] + 0.1 * np.random.default_rng(0).normal(size=(40, 1))


def learned(seed, **settings):
    return learned_from(Y, seed, **settings)


def learned_from(data, seed, **settings):
    usual = {"hidden": (), "iterations": 3, "progress": False, "validation": 0.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three iterations make no good model
        return ps.ProDSSM(**(usual | {"seed": seed} | settings)).fit(data)


@pytest.fixture(scope="module")
def several():
    return [learned(seed) for seed in range(3)]


def test_a_forecast_of_several_models_is_their_mixture(several):
    ahead = mixture.forecast(several, Y, 5)
    alone = [model.forecast(Y, 5) for model in several]
    means, stds = (np.stack([np.asarray(getattr(each, part)) for each in alone]) for part in ("mean", "std"))
    assert np.allclose(ahead.mean, means.mean(axis=0))
    assert np.allclose(ahead.std**2, (stds**2).mean(axis=0) + means.var(axis=0))
    lower, upper = ahead.interval(0.95)
    for end, share in ((lower, 0.025), (ahead.quantile(0.5), 0.5), (upper, 0.975)):
        assert np.allclose(norm.cdf((np.asarray(end) - means) / stds).mean(axis=0), share, atol=1e-6)
    truth = np.where(np.arange(5)[:, None] == 3, np.nan, 0.3)
    expected = np.log(norm.pdf(truth, means, stds).mean(axis=0))[:, 0]
    assert np.allclose(ahead.log_prob(truth), np.where(np.isnan(expected), 0.0, expected), atol=1e-6)
    assert ahead.state_mean.shape == (5, 0)


def test_what_models_disagree_on_is_epistemic(several):
    parts = mixture.forecast(several, Y, 5).decompose()
    means = np.stack([np.asarray(model.forecast(Y, 5).mean) for model in several])
    assert np.allclose(parts.epistemic, means.var(axis=0))
    whole = parts.epistemic + parts.aleatoric + parts.measurement
    assert np.allclose(whole, np.asarray(mixture.forecast(several, Y, 5).std) ** 2)
    assert (parts.aleatoric > 0).all()
    # One model alone disagrees with nobody, but does not know weights that are drawn once.
    once = learned(0, weights="global", refine=None)
    assert np.allclose(mixture.forecast([once], Y, 5).decompose().epistemic, once.forecast(Y, 5).decompose().epistemic)
    assert (mixture.forecast(several[:1], Y, 5).decompose().epistemic == 0).all()


def test_the_parts_of_a_forecast_belong_to_it_whatever_is_fitted_later(several):
    model = copy(several[0])
    ahead = mixture.forecast([model, several[1]], Y, 5)
    wanted = ahead.decompose()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(100 * Y)
    assert np.allclose(ahead.decompose().measurement, wanted.measurement)
    assert np.allclose(ahead.decompose().aleatoric, wanted.aleatoric)


def test_models_that_cannot_be_mixed_are_refused(several):
    with pytest.raises(ValueError, match="models must be at least one"):
        mixture.forecast([], Y, 5)
    with pytest.raises(ValueError, match=r"not fitted|call fit"):
        mixture.forecast([ps.ProDSSM()], Y, 5)
    pandas = pytest.importorskip("pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        named = [copy(several[0]).fit(pandas.DataFrame({name: Y[:, 0]})) for name in ("level", "flow")]
    with pytest.raises(ValueError, match="models must have the same channels"):
        mixture.forecast(named, Y[:, :1], 5)
