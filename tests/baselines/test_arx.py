"""ARX recovers a linear recursion, forecasts it with the variance of its innovations, and chooses enough lags."""

import numpy as np
import pytest

import prodssm as ps
from prodssm.baselines.arx import ARX, LARGEST_VARIANCE

PAST = np.array([[[0.6, 0.1], [0.0, 0.5]], [[-0.3, 0.0], [0.2, -0.2]]])
CONTROLS = np.array([[[0.4], [0.0]], [[1.0], [0.5]], [[0.0], [0.3]]])
CONSTANT, STD = np.array([0.3, -0.2]), 0.1


def simulate(length, seed=0, std=STD):
    draw = np.random.default_rng(seed)
    u, y = draw.normal(size=(length, 1)), np.zeros((length, 2))
    for t in range(2, length):
        y[t] = CONSTANT + sum(PAST[k] @ y[t - 1 - k] for k in range(2)) + sum(CONTROLS[k] @ u[t - k] for k in range(3))
        y[t] += std * draw.normal(size=2)
    return y, u


def test_a_linear_recursion_is_recovered_with_its_lags():
    y, u = simulate(4000)
    found = ARX.fit([ps.Series(y, u)])
    assert len(found.past) in (2, 3)
    lagged = np.column_stack([y[2:-1], y[1:-2], u[3:], u[2:-1], u[1:-2], np.ones(len(y) - 3)])
    assert len(lagged) == 3997
    two = ARX.fit([ps.Series(y, u)], most_lags=2)
    errors = STD * np.sqrt(np.diag(np.linalg.inv(lagged.T @ lagged)))[:, None]
    wanted = np.concatenate([*PAST.swapaxes(1, 2), *CONTROLS.swapaxes(1, 2), CONSTANT[None]])
    fitted = np.concatenate([*two.past.swapaxes(1, 2), *two.controls.swapaxes(1, 2), two.constant[None]])
    assert (np.abs(fitted - wanted) < 5 * errors).all()
    assert np.allclose(found.innovation_cov, STD**2 * np.eye(2), atol=6 * STD**2 * np.sqrt(2 / 4000))


def test_a_noise_free_future_is_forecast_exactly_from_a_past_with_gaps():
    y, u = simulate(400, std=0.0)
    found = ARX.fit([ps.Series(y[:300], u[:300]), ps.Series(y[200:300], u[200:300])], most_lags=2)
    gappy = y[300:340].copy()
    gappy[20, 0] = np.nan
    mean, _ = found.forecast(ps.Series(gappy, u[300:340]), 60, u[340:])
    assert np.allclose(mean, y[340:], atol=1e-5)


def test_the_variance_is_that_of_sampled_futures():
    y, u = simulate(2000)
    found = ARX.fit([ps.Series(y, u)], most_lags=2)
    _, cov = found.forecast(ps.Series(y[-20:], u[-20:]), 5, np.zeros((5, 1)))
    draw, paths = np.random.default_rng(1), np.zeros((20_000, 7, 2))
    for t in range(2, 7):
        noise = draw.multivariate_normal(np.zeros(2), found.innovation_cov, size=len(paths))
        paths[:, t] = paths[:, t - 1] @ found.past[0].T + paths[:, t - 2] @ found.past[1].T + noise
    for k in range(5):
        assert np.allclose(cov[k], np.cov(paths[:, k + 2].T), atol=6 * cov[k].max() * np.sqrt(2 / len(paths)))


def test_an_unstable_recursion_has_a_capped_variance():
    y = np.cumprod(np.full(60, 1.2))[:, None] * np.random.default_rng(0).normal(1.0, 0.01, size=(60, 1))
    found = ARX.fit([ps.Series(y)])
    mean, cov = found.forecast(ps.Series(y), 2000)
    assert np.isfinite(mean).all()
    assert cov.max() <= LARGEST_VARIANCE * y.var() * (1 + 1e-12)


@pytest.mark.parametrize("length", [3, 5, 12])
def test_short_series_have_fewer_lags(length):
    y = np.random.default_rng(0).normal(size=(length, 1))
    mean, cov = ARX.fit([ps.Series(y)]).forecast(ps.Series(y), 4)
    assert np.isfinite(mean).all()
    assert np.isfinite(cov).all()
