"""The check of the Gaussian approximation allows for sampling error, and names the step and output that fail."""

import numpy as np
import pytest

from prodssm.scoring.diagnostics import compare_with_samples

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
