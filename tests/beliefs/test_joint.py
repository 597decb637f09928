"""A joint belief about state and global weights is the Gaussian of the stacked vector, whatever the covariance structure."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import (
    SampleMoments,
    array,
    assert_cov_matches,
    assert_mean_matches,
    close,
    random_cov,
    random_joint_cov,
    smallest_eigenvalue,
)

import prodssm as ps

RNG = np.random.default_rng(0)
SHAPES = ((2, 3),)
PRIOR = np.array([0.5, 1.0, 0.2, 0.7, 0.3, 0.9])
MEAN, WEIGHT_MEAN = RNG.normal(size=3), RNG.normal(size=6)
JOINT_COV, FACTOR = random_joint_cov(5, 3, PRIOR, rank=2)
STRUCTURES = ("diagonal", "low rank", "dense")
EVERY_STRUCTURE = pytest.mark.parametrize("structure", STRUCTURES)


def joint_belief(structure):
    """A state that is correlated with six weights."""
    state, cross = ps.Gaussian(array(MEAN), array(JOINT_COV[:3, :3])), array(JOINT_COV[:3, 3:])
    weights = {
        "diagonal": lambda: ps.DiagonalWeights(array(WEIGHT_MEAN), array(PRIOR), SHAPES),
        "low rank": lambda: ps.LowRankWeights(array(WEIGHT_MEAN), array(PRIOR), array(FACTOR), SHAPES),
        "dense": lambda: ps.DenseWeights(array(WEIGHT_MEAN), array(JOINT_COV[3:, 3:]), SHAPES),
    }[structure]()
    return ps.JointGaussian(state, cross, weights)


def random_transition(seed):
    """The channel of a transition, and the same as a channel of the stacked vector, whose weights are static."""
    rng = np.random.default_rng(seed)
    slope, weight_slope, noise = rng.normal(size=(3, 3)), rng.normal(size=(3, 6)), random_cov(rng, 3)
    channel = ps.Channel(array(MEAN), array(slope), array(noise), weight_slope=array(weight_slope))
    whole = np.block([[slope, weight_slope], [np.zeros((6, 3)), np.eye(6)]])
    stacked = ps.Channel(array(np.append(MEAN, WEIGHT_MEAN)), array(whole), array(np.pad(noise, (0, 6))))
    return channel, stacked


@EVERY_STRUCTURE
def test_the_dense_form_stacks_state_and_weights(structure):
    belief = joint_belief(structure)
    whole = belief.dense()
    assert close(whole.mean, np.concatenate([MEAN, WEIGHT_MEAN]))
    assert close(whole.cov[:3, 3:], JOINT_COV[:3, 3:])
    weights = np.diag(PRIOR) if structure == "diagonal" else JOINT_COV[3:, 3:]
    assert close(whole.cov[3:, 3:], weights)
    assert close(belief.mean, MEAN)
    assert close(belief.cov, JOINT_COV[:3, :3])


@EVERY_STRUCTURE
@pytest.mark.parametrize("size", [1, 4])
def test_conditioning_equals_conditioning_the_stacked_vector(structure, size):
    rng = np.random.default_rng(size)
    belief = joint_belief(structure)
    emission, noise = rng.normal(size=(size, 3)), random_cov(rng, size)
    y = rng.normal(size=size)
    if size > 1:
        y[0] = np.nan
    condition = jax.jit(lambda b, c, y: b.condition(c, y))
    after, evidence = condition(belief, ps.Channel(array(emission @ MEAN), array(emission), array(noise)), array(y))
    stacked = ps.Channel(array(emission @ MEAN), array(np.hstack([emission, np.zeros((size, 6))])), array(noise))
    wanted, wanted_evidence = condition(belief.dense(), stacked, array(y))
    assert close(after.dense().mean, wanted.mean)
    assert close(after.dense().cov, wanted.cov)
    assert close(evidence, wanted_evidence)
    if structure == "low rank":
        assert after.weights.factor.shape[1] <= 2 + min(3, size)


@EVERY_STRUCTURE
def test_a_missing_observation_changes_nothing(structure):
    belief = joint_belief(structure)
    emission = ps.Channel(array(MEAN[:2]), array(np.eye(2, 3)), 0.1 * jnp.eye(2))
    after, evidence = belief.condition(emission, jnp.full(2, jnp.nan))
    assert close(after.dense().mean, belief.dense().mean)
    assert close(after.dense().cov, belief.dense().cov)
    assert evidence == 0


@EVERY_STRUCTURE
def test_a_noise_free_observation_leaves_a_psd_joint_covariance(structure):
    belief = joint_belief(structure)
    after, _ = belief.condition(ps.Channel(array(MEAN), jnp.eye(3), jnp.zeros((3, 3))), array(MEAN + 0.3))
    assert close(after.mean, MEAN + 0.3)
    assert close(after.cov, np.zeros((3, 3)), scale=10)
    assert smallest_eigenvalue(after.dense().cov) > -1e-6


@EVERY_STRUCTURE
def test_prediction_keeps_the_weights_and_moves_the_state(structure):
    belief = joint_belief(structure)
    channel, stacked = random_transition(9)
    after = belief.predict(channel).dense()
    whole = np.asarray(stacked.slope, float)
    wanted = whole @ np.asarray(belief.dense().cov, float) @ whole.T + np.asarray(stacked.noise, float)
    assert close(after.cov, wanted)
    assert close(after.mean[3:], WEIGHT_MEAN)
    assert smallest_eigenvalue(after.cov) > -1e-6


@EVERY_STRUCTURE
def test_a_channel_without_weight_slope_acts_on_the_state_alone(structure):
    belief = joint_belief(structure)
    channel = ps.Channel(array(MEAN), array(RNG.normal(size=(3, 3))), array(random_cov(RNG, 3)))
    after = belief.predict(channel)
    assert close(after.cov, belief.state.predict(channel).cov)
    assert close(after.cross, np.asarray(channel.slope @ belief.cross))


@EVERY_STRUCTURE
def test_plus_adds_noise_to_the_state_alone(structure):
    belief = joint_belief(structure)
    after = belief.plus(array([0.1, 0.2, 0.3])).dense()
    assert close(after.cov, np.asarray(belief.dense().cov) + np.diag([0.1, 0.2, 0.3] + [0.0] * 6))
    assert close(after.mean, belief.dense().mean)


@EVERY_STRUCTURE
def test_smoothing_equals_smoothing_the_stacked_vector(structure):
    belief = joint_belief(structure)
    channel, stacked = random_transition(8)
    predicted = belief.predict(channel)
    emission = ps.Channel(predicted.mean[:2], array(np.eye(2, 3)), 0.2 * jnp.eye(2))
    following, _ = predicted.condition(emission, array([0.4, -0.9]))
    smoothed = belief.smooth(channel, following).dense()
    # The weights are static: the process noise of the stacked vector is singular, so its gain is written out in NumPy.
    cov, whole = np.asarray(belief.dense().cov, float), np.asarray(stacked.slope, float)
    predicted_cov = whole @ cov @ whole.T + np.asarray(stacked.noise, float)
    gain = cov @ whole.T @ np.linalg.inv(predicted_cov)
    later = following.dense()
    wanted_mean = np.append(MEAN, WEIGHT_MEAN) + gain @ (np.asarray(later.mean, float) - np.append(MEAN, WEIGHT_MEAN))
    wanted_cov = cov + gain @ (np.asarray(later.cov, float) - predicted_cov) @ gain.T
    assert close(smoothed.mean, wanted_mean, scale=30)
    assert close(smoothed.cov, wanted_cov, scale=30)


def test_independent_state_and_weights_have_zero_cross_covariance():
    weights = ps.DiagonalWeights(array(WEIGHT_MEAN), array(PRIOR), SHAPES)
    belief = ps.JointGaussian.independent(ps.Gaussian(array(MEAN), jnp.eye(3)), weights)
    assert close(belief.cross, np.zeros((3, 6)))
    assert close(belief.dense().cov[3:, 3:], np.diag(PRIOR))


@EVERY_STRUCTURE
def test_draws_have_the_joint_moments_of_state_and_weights(structure):
    belief = joint_belief(structure)
    draw = jax.jit(jax.vmap(lambda key: jnp.concatenate(belief.draw(key=key))))
    samples = np.asarray(draw(jr.split(jr.key(3), 100_000)), float)
    moments = SampleMoments.of(samples, samples)
    assert_mean_matches(belief.dense().mean, moments)
    assert_cov_matches(belief.dense().cov, moments)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda belief: ps.JointGaussian(belief.state, jnp.zeros((2, 6)), belief.weights), "cross"),
        (lambda belief: ps.JointGaussian(belief.state, jnp.zeros((3, 5)), belief.weights), "cross"),
        (lambda belief: ps.JointGaussian(belief.state, jnp.zeros((3, 6)), jnp.zeros(6)), "weights"),
        (lambda belief: ps.JointGaussian(belief, jnp.zeros((3, 6)), belief.weights), "state"),
        (lambda belief: ps.JointGaussian.independent(belief.state, jnp.zeros(6)), "weights"),
        (lambda belief: belief.predict(ps.Channel(jnp.zeros(2), jnp.zeros((2, 4)), jnp.eye(2))), "slope"),
        (lambda belief: belief.smooth(ps.Channel(jnp.zeros(3), jnp.eye(3), jnp.eye(3)), belief), "weight_slope"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build(joint_belief("diagonal"))
