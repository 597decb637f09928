"""Drawn trajectories have the moments of the forecast where that is exact."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches

import prodssm as ps
from prodssm.models.filtering import Recursion
from prodssm.models.forecasting import future_inputs
from prodssm.models.simulation import sample_futures


def test_simulated_series_have_the_moments_of_the_model(linear_problem):
    problem = linear_problem(2, residual=True)
    model, controls = problem.model, array(problem.u[:3])
    keys = jr.split(jr.key(0), 20_000)
    states, y = jax.jit(jax.vmap(lambda key: ps.simulate(model, 3, key=key, u=controls)))(keys)
    mean, cov = problem.prior()
    for t in range(3):
        at = slice(3 * t, 3 * t + 3)
        drawn = np.asarray(states[:, t], float)
        assert_mean_matches(mean[at], SampleMoments.of(drawn, drawn))
        assert_cov_matches(cov[at, at], SampleMoments.of(drawn, drawn))
        seen = np.asarray(y[:, t], float)
        assert_mean_matches(problem.h @ mean[at] + problem.d, SampleMoments.of(seen, seen))
        assert_cov_matches(problem.h @ cov[at, at] @ problem.h.T + np.diag(problem.r), SampleMoments.of(seen, seen))


@pytest.mark.slow
def test_sampled_futures_have_the_moments_of_a_linear_forecast(drift_model):
    model, series = drift_model(0.6), ps.Series(array([0.1, 0.9, 1.2, 2.5]))
    recursion, ahead = Recursion(model, ps.Moments()), future_inputs(model, series, 4, None, None)
    drawn = np.asarray(sample_futures(recursion, series.record, ahead, key=jr.key(0), samples=20_000), float)
    wanted = ps.forecast(model, series, 4)
    for k in range(4):
        found = SampleMoments.of(drawn[:, k], drawn[:, k])
        assert_mean_matches(wanted.mean[k], found)
        assert_cov_matches(wanted.cov[k], found)


def test_the_last_controls_and_time_steps_may_be_left_out(linear_problem):
    model, u = linear_problem(0, residual=True).model, array(linear_problem(0).u[:4])
    whole = ps.simulate(model, 4, key=jr.key(0), u=u, dt=array([0.5, 0.4, 0.3, 9.0]))
    short = ps.simulate(model, 4, key=jr.key(0), u=u[:3], dt=array([0.5, 0.4, 0.3]))
    assert all((one == two).all() for one, two in zip(whole, short, strict=True))
    assert whole[0].shape == (4, 3)
    assert whole[1].shape == (4, 2)


def test_bad_calls_are_refused_by_name(linear_problem):
    model, u = linear_problem(0).model, array(linear_problem(0).u)
    with pytest.raises(ValueError, match="u must be given: the transition takes 1 controls"):
        ps.simulate(model, 3, key=jr.key(0))
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        ps.simulate(model, 0, key=jr.key(0), u=u)
    with pytest.raises(TypeError, match="key must be a key"):
        ps.simulate(model, 3, key=1.5, u=u)
    with pytest.raises(ValueError, match=r"u must have shape \(19 or more, 1\)"):
        ps.simulate(model, 20, key=jr.key(0), u=u)


def test_a_simulation_that_overflows_says_so():
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([1.0], [[1.0]]),
        transition=ps.Network.from_arrays([jnp.array([[1e30]])], [jnp.array([0.0])]),
        process_noise=[0.1],
        measurement_noise=[0.1],
    )
    with pytest.raises(FloatingPointError, match="the simulation overflowed: the system is unstable; simulate fewer steps"):
        ps.simulate(model, 30, key=jr.key(0))
    with pytest.raises(ValueError, match="u must not be given: the transition takes 0 controls"):
        ps.simulate(model, 3, key=jr.key(0), u=[[1.0]])
