"""The hyper-prior is minus a divergence from N(0, 1); log scores are those of the filter and of forecasts."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.data.batching import SeriesBatch
from prodssm.models.filtering import Recursion
from prodssm.training.objectives import Objective, log_hyper_prior, mean_log_score, model_hyper_prior

SERIES = ps.Series(array([0.1, 0.5, -0.2, np.nan, 0.3, 0.7]))


def small_model(weights="local", **changes):
    parts = {
        "initial": ps.Gaussian([0.0], [[1.0]]),
        "transition": ps.Network.mlp((1, 5, 1), key=jr.key(0), log_var=-3.0),
        "process_noise": jnp.array([0.1]),
        "measurement_noise": jnp.array([0.2]),
        "weights": weights,
    }
    return ps.StateSpaceModel(**(parts | changes))


@eqx.filter_jit
def log_scores(objective, weights="local"):
    """Log scores of each observation, and the number of forecasts of each."""
    return objective.log_scores(Recursion(small_model(weights), ps.Moments()), SERIES.record)


def mean_scores(objective, weights="local"):
    """Log scores of each observation, mean over the forecasts of it."""
    total, count = log_scores(objective, weights)
    return total / np.maximum(count, 1)


def test_the_hyper_prior_is_minus_the_divergence_from_the_standard_normal():
    net = ps.Network.mlp((2, 3, 1), key=jr.key(1), log_var=-1.5)
    m, v = np.asarray(net.weights.mean, float), np.asarray(net.weights.var, float)
    divergence = 0.5 * (v + m**2 - 1 - np.log(v)).sum()
    assert close(log_hyper_prior(net), -divergence - m.size / 2)


def test_point_weights_have_no_hyper_prior():
    assert log_hyper_prior(ps.Network.mlp((2, 3, 1), uncertain=False, key=jr.key(1))) == 0.0
    assert model_hyper_prior(small_model("point")) == 0.0


def test_the_hyper_prior_of_a_model_is_that_of_its_random_networks():
    noise = ps.Network.mlp((1, 2, 1), key=jr.key(2))
    model = small_model(process_noise=noise)
    assert close(model_hyper_prior(model), log_hyper_prior(model.transition) + log_hyper_prior(noise))
    assert close(model_hyper_prior(model.with_weight_mode("point")), log_hyper_prior(noise))


def test_the_first_observation_is_not_scored_and_the_others_have_the_evidence_of_the_filter():
    whole = ps.filter_states(small_model(), SERIES)
    assert close(mean_scores(Objective()), np.concatenate([[0.0], np.asarray(whole.log_evidence[1:])]))


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["local", "global"])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_horizon_scores_the_forecasts_from_that_many_steps_before(weights, steps):
    model, found = small_model(weights), mean_scores(Objective(horizons=(steps,)), weights)
    for t in range(len(SERIES)):
        if t < steps or np.isnan(SERIES.y[t, 0]):
            assert found[t] == 0.0
        elif t - steps >= 1:  # a forecast needs two observations
            ahead = ps.forecast(model, SERIES.window(0, t - steps + 1), steps)
            assert close(found[t], ps.Gaussian(ahead.mean[-1], ahead.cov[-1]).log_prob(array(SERIES.y[t])))


def test_several_horizons_are_averaged_where_they_reach_back():
    one, two, both = (mean_scores(Objective(horizons=h)) for h in ((1,), (2,), (1, 2)))
    assert close(both[1], one[1])
    assert close(both[2:], (one[2:] + two[2:]) / 2)


def test_a_stride_scores_only_forecasts_that_start_at_every_so_many_observations():
    (strided, count), (whole, _) = (log_scores(Objective((2,), stride=s)) for s in (2, 1))
    assert count.tolist() == [0, 0, 1, 0, 1, 0]
    assert close(strided, np.asarray(whole) * count)


def test_the_bound_lies_below_the_evidence():
    bound, evidence = mean_scores(Objective((1, 2), "bound")), mean_scores(Objective((1, 2)))
    assert (np.asarray(bound[1:]) <= np.asarray(evidence[1:]) + 1e-6).all()
    assert (np.asarray(bound)[[1, 2, 4, 5]] < np.asarray(evidence)[[1, 2, 4, 5]]).all()
    assert bound[0] == 0.0


def test_padding_and_missing_values_leave_no_trace_in_the_mean_over_values():
    model = small_model()
    series = [SERIES, ps.Series(array([0.4, 0.1]))]
    data = SeriesBatch.stack(series)
    found = mean_log_score(Objective(), model, data.record, data.scored, method=ps.Moments())
    evidence = sum(ps.filter_states(model, each).log_evidence[1:].sum() for each in series)
    assert data.observed == 5
    assert close(found, evidence / 5)


def test_horizons_that_reach_no_scored_observation_are_found():
    data = SeriesBatch.stack([SERIES, ps.Series(array([0.4, 0.1]))])
    assert Objective((1, 5, 6, 9)).unreached_horizons(data) == (6, 9)
    assert Objective((1, 2, 3)).unreached_horizons(data, window=3) == (3,)
    assert Objective((1, 5)).unreached_horizons(data, window=100) == ()
    # Forecasts from steps 0 and 3: the only one that goes three steps ahead ends where nothing was observed.
    assert Objective((2, 3), stride=3).unreached_horizons(data) == (3,)
    last = SeriesBatch.stack([SERIES], begin=[5])
    assert Objective((1, 2, 5), stride=4).unreached_horizons(last) == (2,)
