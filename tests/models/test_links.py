"""A linear part beside the network, and controls that act on the observation at once: the exact answers of a Kalman filter."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close

import prodssm as ps
from prodssm.methods.base import Method
from prodssm.models.decomposition import decompose
from prodssm.models.filtering import Recursion
from prodssm.models.forecasting import future_inputs

A, B = np.array([[-0.2, 0.3], [-0.4, -0.1]]), np.array([[0.5], [-0.3]])
C, D = np.array([[1.0, -0.5]]), np.array([[0.7]])
RNG = np.random.default_rng(0)
SERIES = ps.Series(array(RNG.normal(size=(12, 1))), array(RNG.normal(size=(12, 1))))
AHEAD = array(RNG.normal(size=(5, 1)))


def zero_network(var=None):
    """A network of two hidden units whose output is always zero."""
    weights, biases = [np.ones((2, 3)), np.zeros((2, 2))], [np.zeros(2), np.zeros(2)]
    parts = [[array(part) for part in each] for each in (weights, biases)]
    if var is None:
        return ps.Network.from_arrays(*parts)
    return ps.Network.from_arrays(*parts, "relu", *([array(np.full(part.shape, var)) for part in each] for each in parts))


def build(transition, linear=None, emission=None, *, residual=True, weights="point"):
    emission = np.hstack([C, D]) if emission is None else emission
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.1, -0.2]), array(np.eye(2))),
        transition=transition,
        linear=None if linear is None else array(linear),
        emission=ps.Network.from_arrays([array(emission)], [array([0.2])]),
        process_noise=array([0.1, 0.2]),
        measurement_noise=array([0.3]),
        residual=residual,
        weights=weights,
    )


def affine(residual):
    """The linear model as a network of one layer."""
    matrix = np.hstack([A, B]) + (0 if residual else np.eye(2, 3))
    return ps.Network.from_arrays([array(matrix)], [array(np.zeros(2))])


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("method", ["moments", "linearised", "unscented"])
def test_a_linear_part_beside_a_network_of_zeros_is_the_linear_model(residual, method):
    linear = np.hstack([A, B]) + (0 if residual else np.eye(2, 3))
    wanted, found = build(affine(residual), residual=residual), build(zero_network(), linear, residual=residual)
    for answer in (ps.filter_states, ps.smooth_states):
        one, two = answer(wanted, SERIES, method), answer(found, SERIES, method)
        assert close(one.mean, np.asarray(two.mean), scale=10)
        assert close(one.cov, np.asarray(two.cov), scale=10)
    one, two = (ps.forecast(model, SERIES, 5, method, u=AHEAD) for model in (wanted, found))
    assert close(one.mean, np.asarray(two.mean), scale=10)
    assert close(one.cov, np.asarray(two.cov), scale=10)


def test_a_control_that_acts_at_once_shifts_the_observation():
    through, without = build(affine(residual=True)), build(affine(residual=True), emission=C)
    shifted = ps.Series(SERIES.y - np.asarray(SERIES.u) @ array(D), SERIES.u)
    one, two = ps.filter_states(through, SERIES), ps.filter_states(without, shifted)
    assert close(one.mean, np.asarray(two.mean))
    assert close(one.log_evidence, np.asarray(two.log_evidence))
    one, two = ps.forecast(through, SERIES, 5, u=AHEAD), ps.forecast(without, shifted, 5, u=AHEAD)
    assert close(one.mean, np.asarray(two.mean) + np.asarray(AHEAD) @ array(D))
    with pytest.raises(ValueError, match=r"5 or more, 1.*acts on it at once"):
        ps.forecast(through, SERIES, 5, u=AHEAD[:4])


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["local", "global"])
def test_sampled_paths_have_the_moments_of_the_channel(weights):
    model = build(zero_network(0.05), np.hstack([A, B]), weights=weights)
    u = np.asarray(AHEAD)
    draw = jax.jit(jax.vmap(lambda key: ps.simulate(model, 2, key=key, u=u[:2])[0]))
    states = np.asarray(draw(jr.split(jr.key(0), 40_000)), float)
    _, wanted = model.move(ps.Moments(), model.initial_belief(), jnp.asarray(u[0]))
    found = SampleMoments.of(states[:, 1], states[:, 1])
    assert_mean_matches(wanted.state.mean, found)
    assert_cov_matches(wanted.state.cov, found)


def test_the_parts_of_a_variance_add_up_beside_a_linear_part():
    model = build(zero_network(0.05), np.hstack([A, B]), weights="global")
    recursion = Recursion(model, ps.Moments())
    parts = decompose(recursion, SERIES.record, future_inputs(model, SERIES, 5, AHEAD, None))
    total = ps.forecast(model, SERIES, 5, u=AHEAD).std ** 2
    assert close(parts.epistemic + parts.aleatoric + parts.measurement, np.asarray(total), scale=10)
    assert (parts.epistemic > 0).all()


def test_a_free_run_scores_what_a_forecast_predicts():
    model, known = build(zero_network(0.05), np.hstack([A, B])), np.arange(12) < 7
    scores = Recursion(model, ps.Moments()).scan(SERIES.record, given=known)[1][2]
    past = ps.Series(SERIES.y[:7], SERIES.u[:7])
    ahead = ps.forecast(model, past, 5, u=SERIES.u[7:])
    wanted = [ps.Gaussian(m, c).log_prob(array(y)) for m, c, y in zip(ahead.mean, ahead.cov, SERIES.y[7:], strict=True)]
    assert close(scores[7:], np.asarray(wanted), scale=10)
    assert close(scores[:7], np.asarray(ps.filter_states(model, past).log_evidence), scale=10)


def test_linear_parts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"linear must have shape \(2, 3\)"):
        build(zero_network(), A)
    assert issubclass(ps.Moments, Method)
