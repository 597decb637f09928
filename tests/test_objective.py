"""The hyper-prior is minus a divergence from N(0, 1), up to a constant per weight."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.batches import Data
from prodssm.inference import Finder
from prodssm.objective import Objective, expected_log_prob, log_hyper_prior, mean_foreseen


def small_model(weights="local"):
    return ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 5, 1), key=jr.key(0), log_var=-3.0),
        process_noise=jnp.array([0.1]),
        measurement_noise=jnp.array([0.2]),
        weights=weights,
    )


def test_the_hyper_prior_is_minus_the_divergence_from_the_standard_normal():
    net = ps.Network.mlp((2, 3, 1), key=jr.key(1), log_var=-1.5)
    m, v = np.asarray(net.weights.mean, float), np.asarray(net.weights.var, float)
    divergence = 0.5 * (v + m**2 - 1 - np.log(v)).sum()
    assert close(log_hyper_prior(net), -divergence - m.size / 2)


def test_certain_weights_have_no_prior():
    assert log_hyper_prior(ps.Network.mlp((2, 3, 1), uncertain=False, key=jr.key(1))) == 0.0


SERIES = ps.Series(array([0.1, 0.5, -0.2, np.nan, 0.3, 0.7]))


def foreseen(objective, weights="local"):
    total, count = objective.foreseen(Finder(small_model(weights), {}, "moments"), SERIES.frames)
    return total / np.maximum(count, 1)


def test_the_first_observation_is_not_scored_and_the_others_have_the_evidence_of_the_filter():
    whole = ps.filter_states(small_model(), SERIES)
    assert close(foreseen(Objective()), np.concatenate([[0.0], np.asarray(whole.log_evidence[1:])]))


@pytest.mark.parametrize("weights", ["local", "global"])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_horizon_scores_what_forecasts_from_that_many_steps_before(weights, steps):
    model, found = small_model(weights), foreseen(Objective(horizons=(steps,)), weights)
    for t in range(len(SERIES)):
        if t < steps or np.isnan(SERIES.y[t, 0]):
            assert found[t] == 0.0
        elif t - steps >= 1:  # a forecast needs two observations
            ahead = ps.forecast(model, SERIES.window(0, t - steps + 1), steps)
            assert close(found[t], ps.Gaussian(ahead.mean[-1], ahead.cov[-1]).log_prob(SERIES.y[t]))


def test_several_horizons_are_averaged_where_they_reach_back():
    one, two, both = (foreseen(Objective(horizons=h)) for h in ((1,), (2,), (1, 2)))
    assert close(both[1], one[1])
    assert close(both[2:], (one[2:] + two[2:]) / 2)


def test_a_stride_scores_only_forecasts_that_start_at_every_so_many_observations():
    finder = Finder(small_model(), {}, "moments")
    (every, count), (all_of, _) = (Objective((2,), stride=s).foreseen(finder, SERIES.frames) for s in (2, 1))
    assert count.tolist() == [0, 0, 1, 0, 1, 0]
    assert close(every, np.asarray(all_of) * count)


def test_the_bound_is_an_expectation_and_lies_below_the_evidence():
    belief, noise, y = ps.Gaussian(array([0.3]), array([[0.9]])), array([0.4]), array([1.0])
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    g = 0.3 + np.sqrt(0.5) * nodes
    wanted = (weights * (-0.5 * np.log(2 * np.pi * 0.4) - (1.0 - g) ** 2 / 0.8)).sum() / weights.sum()
    assert close(expected_log_prob(belief, noise, y), wanted)
    bound, evidence = foreseen(Objective(score="bound", horizons=(1, 2))), foreseen(Objective(horizons=(1, 2)))
    assert (np.asarray(bound[1:]) <= np.asarray(evidence[1:]) + 1e-6).all()
    assert bound[0] == 0.0


def test_padding_and_missing_values_leave_no_trace_in_the_mean_over_values():
    model = small_model()
    series = [SERIES, ps.Series(array([0.4, 0.1]))]
    data = Data.of(series)
    found = mean_foreseen(Objective(), model, data.frames, data.scored, method="moments", options={})
    evidence = sum(ps.filter_states(model, each).log_evidence[1:].sum() for each in series)
    assert data.observed == 5
    assert close(found, evidence / 5)


@pytest.mark.parametrize(
    "objective", [Objective(()), Objective((0,)), Objective((2, 2)), Objective(score="guess"), Objective(stride=0)]
)
def test_bad_objectives_are_refused(objective):
    with pytest.raises(ValueError, match=r"horizons|score|stride"):
        objective.check()
