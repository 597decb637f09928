"""The check of the Gaussian approximation allows for sampling error, and names the step and output that fail."""

import numpy as np
import pytest
from scipy import stats

import prodssm as ps
from prodssm.data.scaling import Standardiser
from prodssm.models.components import Components, Group, OutputComponents
from prodssm.scoring.diagnostics import POINTS, cdf_distance, cdf_error, compare_with_samples, with_advice

STEPS, OUTPUTS, SAMPLES = 5, 2, 4000
MEAN = np.linspace(-1.0, 3.0, STEPS * OUTPUTS).reshape(STEPS, OUTPUTS)
STD = np.geomspace(0.1, 30.0, STEPS * OUTPUTS).reshape(STEPS, OUTPUTS)


def futures(samples=SAMPLES, seed=0):
    return MEAN + STD * np.random.default_rng(seed).normal(size=(samples, STEPS, OUTPUTS))


@pytest.mark.parametrize("samples", [10, 400, SAMPLES])
def test_an_exact_forecast_holds_for_any_number_of_samples(samples):
    found = [compare_with_samples(MEAN, STD, futures(samples, seed)) for seed in range(20)]
    assert all(each.holds for each in found)
    assert all(each.trusted == STEPS and each.samples == samples for each in found)
    assert f"agrees with {samples} futures sampled from the same model over all {STEPS} steps" in str(found[0])


def test_gaps_ratios_and_coverage_are_those_of_the_normal_distribution():
    found = compare_with_samples(MEAN + 0.1 * STD, 1.1 * STD, futures())
    assert np.abs(found.mean_gap - 0.1).max() < 5 / np.sqrt(SAMPLES)
    assert np.abs(found.std_ratio / 1.1 - 1).max() < 5 / np.sqrt(2 * SAMPLES)
    exact = compare_with_samples(MEAN, STD, futures()).coverage
    assert np.abs(exact - 0.95).max() < 5 * np.sqrt(0.95 * 0.05 / SAMPLES)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_wrong_width_fails_from_its_step_on_and_is_named(factor):
    std = STD.copy()
    std[3, 1] *= factor
    found = compare_with_samples(MEAN, std, futures())
    assert not found.holds
    assert found.trusted == 3
    assert f"for 3 of {STEPS} steps" in found.verdict
    # The step and the output that are wrong, not the last ones, which are right.
    assert f"At step 4 it is {factor:.2g} times as wide as the samples in output 1" in found.verdict


def test_a_wrong_mean_fails_even_if_the_width_is_right():
    mean = MEAN.copy()
    mean[0, 0] += 0.8 * STD[0, 0]
    found = compare_with_samples(mean, STD, futures())
    assert found.trusted == 0
    assert "At step 1 it is as wide as the samples in output 0, its mean is 0.8 standard deviations away" in found.verdict


def test_the_units_of_an_output_do_not_matter():
    drawn, scale = futures(), np.array([1e6, 1e-6])
    plain, scaled = (
        compare_with_samples(MEAN, 1.4 * STD, drawn),
        compare_with_samples(scale * MEAN, 1.4 * scale * STD, scale * drawn),
    )
    assert plain.verdict == scaled.verdict
    assert np.allclose(plain.std_ratio, scaled.std_ratio)


def test_heavy_tails_of_the_right_width_are_no_failure():
    drawn = [np.random.default_rng(seed).standard_t(5, size=(400, STEPS, OUTPUTS)) for seed in range(20)]
    assert all(compare_with_samples(MEAN, np.sqrt(5 / 3) * STD, MEAN + STD * each).holds for each in drawn)


def test_heavy_tails_from_rare_explosions_do_not_raise_the_tolerance():
    rng = np.random.default_rng(2)
    drawn = futures(400)
    drawn[:, 3:] += STD[3:] * 30 * rng.normal(size=(400, 2, OUTPUTS)) * (rng.random((400, 2, OUTPUTS)) < 0.02)
    assert compare_with_samples(MEAN, STD, drawn).trusted == 3


def test_a_constant_output_agrees_with_itself():
    still = np.broadcast_to(MEAN, (100, STEPS, OUTPUTS))
    found = compare_with_samples(MEAN, np.zeros_like(STD), still)
    assert found.holds
    assert (found.coverage == 1).all()
    assert not compare_with_samples(MEAN, 0.1 * STD, still).holds
    assert not compare_with_samples(MEAN + 0.1, np.zeros_like(STD), still).holds


@pytest.mark.parametrize("size", [1e100, 1e200, np.inf, np.nan])
def test_futures_that_overflow_fail_with_a_plain_sentence(size):
    drawn = futures(100)
    drawn[:, 2:] *= size
    found = compare_with_samples(MEAN, STD, drawn)
    assert found.trusted == 2
    assert "nan" not in found.verdict
    mean = MEAN.copy()
    mean[4] = size
    found = compare_with_samples(mean, STD, futures(100))
    assert found.trusted == 4
    assert "nan" not in found.verdict


def test_the_verdict_says_that_no_data_are_compared():
    for std in (STD, 2 * STD):
        verdict = compare_with_samples(MEAN, std, futures()).verdict
        assert "sampled from the same model" in verdict
        assert "No data were compared" in verdict


# ---------------------------------------------------------------- shape


def two_places(apart):
    """A mixture of two Gaussians around each mean, with the same standard deviations as one."""
    shift = apart * STD
    weights = np.full((2, STEPS), 0.5)
    cov = ((1 - apart**2) * STD**2)[:, :, None] * np.eye(OUTPUTS)
    return Components(weights, np.stack([MEAN - shift, MEAN + shift]), np.stack([cov, cov]))


def drawn_from_two_places(apart, seed=0):
    rng = np.random.default_rng(seed)
    side = np.where(rng.random((SAMPLES, STEPS, OUTPUTS)) < 0.5, -apart, apart)
    return MEAN + STD * (side + np.sqrt(1 - apart**2) * rng.normal(size=side.shape))


def test_two_places_fail_one_gaussian_of_the_right_moments_and_hold_for_their_mixture():
    drawn = drawn_from_two_places(0.95)
    one = compare_with_samples(MEAN, STD, drawn)
    assert (one.trusted, one.components) == (0, None)
    assert one.mean_gap.max() < 0.25
    assert np.abs(np.log(one.std_ratio)).max() < np.log(1.25)
    assert "its probabilities are off by up to 0.18" in one.verdict
    two = compare_with_samples(MEAN, STD, drawn, two_places(0.95), 2)
    assert (two.trusted, two.components, two.tried) == (STEPS, 2, (2,))
    assert two.verdict.startswith("The forecast as a mixture of 2 Gaussians agrees with 4000 futures")
    assert np.abs(two.coverage - 0.95).max() < 5 * np.sqrt(0.95 * 0.05 / SAMPLES)


def test_the_distance_is_the_statistic_of_kolmogorov_and_smirnov():
    for samples, exact in ((POINTS, 1e-9), (SAMPLES, 1 / (POINTS - 1))):
        drawn = futures(samples)
        found = cdf_distance(Components.of_marginals(MEAN + 0.2 * STD, STD), drawn)
        for n, k in np.ndindex(STEPS, OUTPUTS):
            wanted = stats.kstest(drawn[:, n, k], stats.norm(MEAN[n, k] + 0.2 * STD[n, k], STD[n, k]).cdf).statistic
            assert wanted - exact <= found[n, k] <= wanted + 1e-9


def test_the_allowance_bounds_the_distance_of_samples_from_their_own_distribution():
    exact = Components.of_marginals(MEAN, STD)
    for samples in (10, 400):
        found = np.stack([cdf_distance(exact, futures(samples, seed)) for seed in range(100)])
        assert found.max() < cdf_error(samples)
        assert found.max() > 0.5 * cdf_error(samples)


def test_counts_are_compared_at_their_jumps():
    rate = np.array([[0.5], [4.0]])
    g = Components(np.ones((1, 2)), np.log(rate)[None], np.full((1, 2, 1, 1), 1e-12))
    poisson = OutputComponents((Group(g, ps.Poisson(), Standardiser.identity(1)),))
    drawn = np.random.default_rng(0).poisson(rate, size=(1000, 2, 1)).astype(float)
    assert compare_with_samples(rate, np.sqrt(rate), drawn, poisson).holds
    assert cdf_distance(poisson, drawn).max() < cdf_error(1000)
    assert cdf_distance(poisson, np.zeros((10, 2, 1)))[1, 0] == pytest.approx(1 - np.exp(-4.0))


def test_advice_names_the_components_that_hold():
    fails, holds = (compare_with_samples(MEAN, STD, drawn_from_two_places(0.95), *more) for more in ((), (two_places(0.95), 2)))
    found = with_advice({1: fails, 2: holds}, "unused")
    assert (found.components, found.tried, found.trusted) == (2, (1, 2), 0)
    assert found.verdict.endswith("is inaccurate there. Moments(components=2) agrees with them at all steps.")
    assert with_advice({1: fails}, "Do less.").verdict == f"{fails.verdict} Do less."
    assert with_advice({2: holds}, "unused").verdict == holds.verdict
