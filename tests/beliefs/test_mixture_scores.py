"""Equally weighted mixtures have the moments, densities, quantiles and ranked scores of their draws."""

import numpy as np
import pytest
from scipy.stats import norm

from prodssm.beliefs.mixture_scores import mixture_cdf, mixture_crps, mixture_log_prob, mixture_moments, mixture_quantile
from prodssm.scoring import metrics


def test_a_mixture_has_the_moments_of_its_draws():
    rng = np.random.default_rng(0)
    means = rng.normal(size=(3, 2))
    roots = rng.normal(size=(3, 2, 2))
    mean, cov = (part[0] for part in mixture_moments(means[:, None], (roots @ roots.transpose(0, 2, 1))[:, None]))
    draws = np.concatenate([m + rng.normal(size=(200_000, 2)) @ root.T for m, root in zip(means, roots, strict=True)])
    error = np.sqrt(np.diag(cov) / len(draws))
    assert (np.abs(draws.mean(axis=0) - mean) < 4 * error).all()
    centred = draws - mean
    products = centred[:, :, None] * centred[:, None, :]
    assert (np.abs(products.mean(axis=0) - cov) < 4 * products.std(axis=0) / len(draws) ** 0.5).all()


def test_a_mixture_has_the_mean_density_of_its_components():
    each = np.log(
        [[0.5, 0.0, 1e-300], [0.25, 0.5, 3e-300]], where=[[True, False, True], [True] * 3], out=np.full((2, 3), -np.inf)
    )
    assert np.allclose(mixture_log_prob(each), np.log([0.375, 0.25, 2e-300]))


def test_the_distribution_function_is_the_mean_of_those_of_components_at_any_number_of_values():
    mean, std = np.array([[[0.0, 1.0]], [[2.0, -1.0]]]), np.array([[[1.0, 0.0]], [[0.5, 3.0]]])
    weights = np.array([[0.25], [0.75]])
    y = np.linspace(-4, 4, 33)[:, None, None] * np.ones((1, 2))
    found = mixture_cdf(y, mean, std, weights)
    assert np.allclose(found[:, 0, 0], 0.25 * norm.cdf(y[:, 0, 0]) + 0.75 * norm.cdf(y[:, 0, 0], 2, 0.5))
    assert np.allclose(found[:, 0, 1], 0.25 * (y[:, 0, 1] >= 1) + 0.75 * norm.cdf(y[:, 0, 1], -1, 3))
    assert np.allclose(mixture_cdf(y[3], mean, std), mixture_cdf(y, mean, std, np.full((2, 1), 0.5))[3])
    for probability in (0.1, 0.5, 0.9):
        at = mixture_quantile(probability, mean, std, weights)
        assert mixture_cdf(at, mean, std, weights)[0, 0] == pytest.approx(probability)


def test_one_component_is_its_own_mixture():
    rng = np.random.default_rng(5)
    mean, root, std = rng.normal(size=(1, 4, 2)), rng.normal(size=(1, 4, 2, 2)), rng.uniform(0.1, 2.0, size=(1, 4, 2))
    cov = root @ root.swapaxes(2, 3)
    assert all(np.array_equal(found, given[0]) for found, given in zip(mixture_moments(mean, cov), (mean, cov), strict=True))
    assert np.array_equal(mixture_log_prob(std[..., 0]), std[0, :, 0])
    assert np.allclose(mixture_quantile(0.1, mean, std), mean[0] + norm.ppf(0.1) * std[0])


def test_quantiles_are_those_of_draws():
    rng = np.random.default_rng(1)
    means, stds = rng.normal(size=(4, 1, 2)), rng.uniform(0.1, 2.0, size=(4, 1, 2))
    draws = np.concatenate([m + s * rng.normal(size=(100_000, 2)) for m, s in zip(means, stds, strict=True)])
    for probability in (0.01, 0.3, 0.975):
        below = (draws < mixture_quantile(probability, means, stds)).mean(axis=0)
        assert (np.abs(below - probability) < 4 * np.sqrt(probability * (1 - probability) / len(draws))).all()


def test_quantiles_of_components_without_variance_are_their_means():
    means = np.array([1.0, 2.0, 3.0])[:, None, None]
    for probability, expected in ((0.2, 1.0), (0.5, 2.0), (0.9, 3.0)):
        assert np.allclose(mixture_quantile(probability, means, np.zeros((3, 1, 1))), expected)


def test_the_median_is_exact_however_far_a_component_diverges():
    means = np.array([0.0, 0.1, 0.0])[:, None, None]
    for diverged in (1e6, 1e18, 1e30, 1e38):
        means[2] = diverged
        probability = norm.cdf(mixture_quantile(0.5, means, np.ones((3, 1, 1))) - means[:2]).sum() / 3
        assert abs(probability - 0.5) < 1e-12


@pytest.mark.parametrize("probability", [0.0, 1.0, 1.5, np.nan])
def test_a_probability_lies_between_zero_and_one(probability):
    with pytest.raises(ValueError, match="probability"):
        mixture_quantile(probability, np.zeros((2, 1, 1)), np.ones((2, 1, 1)))


def test_the_ranked_score_is_the_integral_over_the_distribution():
    rng = np.random.default_rng(3)
    means, stds = rng.normal(size=(3, 1, 1)), np.array([0.3, 1.0, 0.0])[:, None, None]
    at = np.linspace(-12, 12, 240_001)
    with np.errstate(divide="ignore"):
        below = norm.cdf((at - means[:, 0]) / stds[:, 0]).mean(axis=0)
    for y in (-2.0, 0.4):
        step = at[1] - at[0]
        area = np.sum((below - (at >= y)) ** 2) * step
        # The error of a Riemann sum is at most a step times the total variation of the square, which is at most two.
        assert abs(mixture_crps(np.array([[y]]), means, stds).item() - area) < 2 * step


def test_the_ranked_score_of_one_component_is_that_of_the_metrics():
    rng = np.random.default_rng(4)
    y, mean, std = rng.normal(size=(6, 2)), rng.normal(size=(6, 2)), rng.uniform(0.1, 2.0, size=(6, 2))
    std[0, 0] = 0.0
    assert np.allclose(mixture_crps(y, mean[None], std[None]).mean(), metrics.crps(y, mean, std))
    assert mixture_crps(mean, mean[None], 0 * std[None]).max() == 0.0  # certain and right


def test_outcomes_of_another_shape_have_no_ranked_score():
    with pytest.raises(ValueError, match=r"y must have the shape of one component, \(3, 1\); got \(3,\)"):
        mixture_crps(np.zeros(3), np.zeros((2, 3, 1)), np.ones((2, 3, 1)))
