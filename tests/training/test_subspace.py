"""Linear models that are identified by linear algebra are those that made the data."""

import numpy as np
import pytest

import prodssm as ps
from prodssm.training.subspace import _interpolated, identify

SLOPE = np.array([[0.9, 0.2], [-0.2, 0.8]])


def test_a_linear_system_is_found_up_to_the_choice_of_its_states(linear_system):
    found = identify([linear_system(400), linear_system(100, seed=1)], 2)
    assert found is not None
    eigenvalues = np.sort_complex(np.linalg.eigvals(found.slope[:, :2] + np.eye(2)))
    assert np.allclose(eigenvalues, np.sort_complex(np.linalg.eigvals(SLOPE)), atol=1e-3)
    assert np.allclose(found.points[:, :2].std(axis=0), 1.0, atol=0.1)
    assert (np.abs(found.innovation_cov) < 1e-4).all()
    later = linear_system(100, seed=2)
    mean, var = found.forecast(later, 40)
    assert np.allclose(mean, later.y[40:], atol=0.02)
    assert mean.shape == var.shape == (60, 1)


def test_the_free_run_of_a_noisy_system_is_as_wide_as_its_errors(linear_system):
    found = identify([linear_system(2000, noise=0.3)], 2)
    assert found is not None
    errors = []
    for seed in range(1, 200):
        series = linear_system(50, seed=seed, noise=0.3)
        mean, var = found.forecast(series, 30)
        errors.append((np.asarray(series.y[30:], float) - mean) / np.sqrt(var))
    # 199 runs, whose errors are correlated within: the standard deviation has a standard error of at most 5 %.
    assert np.abs(np.std(errors, axis=0) - 1).max() < 0.25
    assert np.abs(np.std(errors) - 1) < 0.05


@pytest.mark.parametrize("direct", [0.0, 0.7])
def test_a_control_that_acts_at_once_is_seen(direct, linear_system):
    series = linear_system(400, noise=0.1)
    found = identify([ps.Series(np.asarray(series.y) + direct * np.asarray(series.u), series.u)], 2, feedthrough=True)
    assert found is not None
    assert np.allclose(found.emission[:, 2:], direct, atol=0.05)
    assert (identify([series], 2).emission[:, 2:] == 0).all()  # type: ignore[union-attr]


def test_irregular_time_steps_scale_the_moves():
    rng = np.random.default_rng(0)
    dt, x = rng.uniform(0.5, 1.5, 2000), np.zeros(2000)
    for t in range(1999):
        x[t + 1] = x[t] + dt[t] * (-0.1 * x[t]) + np.sqrt(dt[t]) * rng.normal()
    found = identify([ps.Series(x / x.std(), None, np.append(0.0, np.cumsum(dt[:-1])))], 1)
    assert found is not None
    assert np.allclose(found.slope, -0.1, atol=0.03)


def test_an_unstable_fit_is_made_stable():
    found = identify([ps.Series(np.exp(0.05 * np.arange(60)))], 1)
    assert found is not None
    assert np.abs(np.linalg.eigvals(found.slope + np.eye(1))).max() <= 1 + 1e-9


def test_gaps_are_interpolated_and_long_ones_are_left_out(linear_system):
    assert np.allclose(_interpolated(np.array([[1.0], [np.nan], [3.0], [np.nan]]))[:, 0], [1, 2, 3, 3])
    assert np.allclose(_interpolated(np.full((3, 1), np.nan)), 0)
    series = linear_system(600)
    y = np.where(np.abs(np.arange(600) - 300) < 50, np.nan, np.asarray(series.y)[:, 0])
    found = identify([ps.Series(y, series.u)], 2)
    assert found is not None
    assert len(found.points) < 510
    eigenvalues = np.sort_complex(np.linalg.eigvals(found.slope[:, :2] + np.eye(2)))
    assert np.allclose(eigenvalues, np.sort_complex(np.linalg.eigvals(SLOPE)), atol=0.05)


def test_series_that_are_too_short_have_no_linear_model(linear_system):
    assert identify([linear_system(12)], 2) is None
    assert identify([linear_system(2)], 1) is None
    assert identify([linear_system(100)], 30) is None
