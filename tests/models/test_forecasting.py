"""Forecasts are exact on linear models; bad questions are refused by name."""

import numpy as np
import pytest
from oracles import array, close
from scipy import stats

import prodssm as ps
from prodssm.beliefs.gaussian import gaussian_log_probs
from prodssm.data.series import first_steps
from prodssm.models.filtering import Recursion
from prodssm.models.forecasting import forecast_from, future_inputs, one_step_ahead


def test_a_linear_model_is_forecast_as_the_joint_gaussian(problem, method):
    _, means, covs = problem.posterior
    time, h = problem.time, problem.h
    found = ps.forecast(problem.model, problem.series, steps=problem.ahead, method=method, u=problem.future_u)
    assert close(found.state_mean, means[time:], scale=50)
    assert close(found.state_cov, covs[time:], scale=50)
    assert close(found.mean, means[time:] @ h.T + problem.d, scale=50)
    assert close(found.cov, np.stack([h @ cov @ h.T + np.diag(problem.r) for cov in covs[time:]]), scale=50)


def test_one_step_ahead_has_the_evidence_of_the_filter_and_the_forecasts_of_every_past(problem, method):
    found = one_step_ahead(problem.model, problem.series, method)
    evidence = ps.filter_states(problem.model, problem.series, method).log_evidence
    assert close(gaussian_log_probs(found.mean, found.cov, problem.series.y), evidence, scale=50)
    assert close(found.state_mean[0], problem.initial_mean)
    for stop in (2, problem.time - 1):
        dt = problem.series.dt[stop - 1 : stop] if problem.residual else None
        later = ps.forecast(problem.model, first_steps(problem.series, stop), 1, method, u=problem.series.u[stop:], dt=dt)
        assert close(found.mean[stop], later.mean[0], scale=50)
        assert close(found.cov[stop], later.cov[0], scale=50)


def test_an_interval_has_its_probability(linear_problem):
    problem = linear_problem(0)
    found = ps.forecast(problem.model, problem.series, 2, u=problem.future_u)
    low, high = (np.asarray(end, float) for end in found.interval(0.9))
    mean, std = np.asarray(found.mean, float), np.asarray(found.std, float)
    assert np.allclose(stats.norm.cdf(high, mean, std) - stats.norm.cdf(low, mean, std), 0.9, atol=1e-5)
    assert np.allclose(low + high, 2 * mean, atol=1e-5)
    with pytest.raises(ValueError, match="probability must lie between 0 and 1"):
        found.interval(1.0)


def test_future_inputs_start_with_the_last_control_and_repeat_the_last_time_step(linear_problem):
    problem = linear_problem(0, residual=True, irregular=True)
    ahead = future_inputs(problem.model, problem.series, 3, problem.future_u, None)
    assert close(ahead.u, problem.u[problem.time - 1 : problem.time + 2])
    assert close(ahead.dt, np.full(3, problem.stamps[-1] - problem.stamps[-2]))
    recursion = Recursion(problem.model, ps.Moments())
    times = forecast_from(lambda recursion, belief, times, ahead: times, recursion, problem.series.record, ahead)
    assert times.tolist() == [11, 12, 13]
    assert close(future_inputs(problem.model, problem.series, 2, problem.future_u, array([0.2, 0.4, 9.0])).dt, [0.2, 0.4])


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"steps": 3}, "u must give the 2 controls that act between the forecasts"),
        ({"steps": 5, "u": np.zeros((2, 1))}, r"u must have shape \(4 or more, 1\), got \(2, 1\)"),
        ({"steps": 3, "u": np.zeros((3, 2))}, r"u must have shape \(2 or more, 1\), got \(3, 2\)"),
        ({"steps": 3, "u": [[1.0], [np.nan]]}, "u must be finite"),
        ({"steps": 0, "u": np.zeros((4, 1))}, "steps must be at least 1, got 0"),
        ({"steps": 2, "u": np.zeros((4, 1)), "dt": [1.0]}, "dt must have at least 2 entries, got 1"),
        ({"steps": 2, "u": np.zeros((4, 1)), "dt": [1.0, 0.0]}, "dt must be positive"),
        ({"steps": 2, "u": np.zeros((4, 1)), "dt": [1.0, 2.0]}, "only a residual transition scales with time"),
    ],
)
def test_bad_calls_are_refused_by_name(how, said, linear_problem):
    problem = linear_problem(4)
    with pytest.raises((ValueError, TypeError), match=said):
        ps.forecast(problem.model, problem.series, **how)


def test_an_unstable_system_overflows_with_the_step_at_which_it_does():
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([1.0], [[1.0]]),
        transition=ps.Network.from_arrays([array([[1e30]])], [array([0.0])]),
        process_noise=[0.1],
        measurement_noise=[0.1],
    )
    with pytest.raises(FloatingPointError, match=r"the forecast overflows at step \d+: the system is unstable"):
        ps.forecast(model, array([1.0, np.nan]), 30)
    with pytest.raises(ValueError, match="u must not be given: the model's transition has no control inputs"):
        ps.forecast(model, array([1.0, 2.0]), 2, u=array([[1.0]]))
