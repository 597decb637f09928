"""The simulated kink has the dynamics, the noise and the range that the experiments count on."""

import numpy as np
import pytest

from prodssm.datasets import kink


def test_the_function_is_the_formula_of_the_paper():
    x = np.linspace(-4.0, 2.0, 101)
    expected = 0.8 + (x + 0.2) * (1 - 5 / (1 + np.exp(-2 * x)))
    np.testing.assert_allclose(kink.kink(x), expected, rtol=0, atol=1e-14)
    assert np.isfinite(kink.kink(np.array([-1e4, 1e4]))).all()


def test_a_run_has_the_shape_and_start_of_the_protocol():
    run = kink.simulate(0.08, seed=0)
    assert run.x.shape == (120,)
    assert run.y.shape == (120, 1)
    assert run.x.dtype == run.y.dtype == np.float64
    assert run.x[0] == 0.5
    assert run.r == 0.08


def test_without_noise_the_run_iterates_the_function():
    run = kink.simulate(0.0, seed=0, steps=30, process_std=0.0, start=-1.0)
    np.testing.assert_array_equal(run.x[1:], kink.kink(run.x[:-1]))
    np.testing.assert_array_equal(run.y[:, 0], run.x)


@pytest.mark.parametrize("r", kink.NOISE_LEVELS)
def test_r_is_a_variance_and_the_process_noise_a_standard_deviation(r):
    run = kink.simulate(r, seed=1, steps=20_000)
    for noise, variance in ((run.y[:, 0] - run.x, r), (run.x[1:] - kink.kink(run.x[:-1]), 0.05**2)):
        ratio = noise / np.sqrt(variance)
        standard_error = 1 / np.sqrt(len(noise))
        assert abs(ratio.mean()) < 5 * standard_error
        assert abs((ratio**2).mean() - 1) < 5 * np.sqrt(2) * standard_error


def test_the_latent_range_is_the_one_measured_for_the_protocol():
    x = np.concatenate([kink.simulate(0.008, seed=seed).x for seed in range(10)])
    assert -3.6 < x.min() < -3.0
    assert 0.8 < x.max() < 1.2
    assert x.mean() == pytest.approx(-0.67, abs=0.1)
    assert x.std() == pytest.approx(1.2, abs=0.1)


def test_a_seed_fixes_the_trajectory_for_every_noise_level_and_length():
    short, long = kink.simulate(0.008, seed=3, steps=50), kink.simulate(0.8, seed=3, steps=120)
    np.testing.assert_array_equal(short.x, long.x[:50])
    np.testing.assert_allclose(10 * (short.y[:, 0] - short.x), long.y[:50, 0] - long.x[:50], atol=1e-12)
    assert not np.array_equal(kink.simulate(0.8, seed=4).x, long.x)


def test_the_grid_spans_the_true_trajectory_not_the_observations():
    run = kink.simulate(0.8, seed=0)
    points = kink.grid(run)
    assert len(points) == 70
    assert (points[0], points[-1]) == (run.x.min(), run.x.max())
    np.testing.assert_allclose(np.diff(points), (run.x.max() - run.x.min()) / 69, rtol=1e-12)


@pytest.mark.parametrize("wrong", [{"r": -0.1}, {"r": float("nan")}, {"process_std": -1.0}, {"steps": 1}, {"seed": -1}])
def test_a_wrong_argument_is_named(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        kink.simulate(**{"r": 0.08, "seed": 0} | wrong)
