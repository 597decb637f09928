"""Beliefs and channels are linear-Gaussian algebra: they agree with one big joint Gaussian."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import (
    Moments,
    array,
    assert_cov_matches,
    assert_mean_matches,
    close,
    condition_everything,
    random_cov,
    random_joint_cov,
    random_linear_model,
    random_observations,
    smallest_eigenvalue,
    textbook_kalman_filter,
)
from scipy.stats import multivariate_normal

import prodssm as ps

RNG = np.random.default_rng(0)
MEAN, COV = RNG.normal(size=3), random_cov(RNG, 3)
BELIEF = ps.Gaussian(array(MEAN), array(COV))
SLOPE, NOISE, OUT = RNG.normal(size=(2, 3)), random_cov(RNG, 2), RNG.normal(size=2)
CHANNEL = ps.Channel(array(OUT), array(SLOPE), array(NOISE))


def move_channel(model, belief):
    """The transition of a linear model around a belief."""
    return ps.Channel(array(model.shift) + array(model.move) @ belief.mean, array(model.move), array(model.move_noise))


def see_channel(model, belief):
    """The emission of a linear model around a belief."""
    return ps.Channel(array(model.offset) + array(model.see) @ belief.mean, array(model.see), array(model.see_noise))


@jax.jit
def filter_and_smooth(model, seen):
    """Filtered beliefs, log evidence of each step, smoothed beliefs: what a user writes with the three verbs."""
    belief, filtered, evidence = ps.Gaussian(model.mean, model.cov), [], []
    for y in seen:
        belief, step = belief.condition(see_channel(model, belief), y)
        filtered.append(belief)
        evidence.append(step)
        belief = belief.predict(move_channel(model, belief))
    smoothed = [filtered[-1]]
    for belief in filtered[-2::-1]:
        smoothed.insert(0, belief.smooth(move_channel(model, belief), smoothed[0]))
    stack = lambda beliefs: jax.tree.map(lambda *leaves: jnp.stack(leaves), *beliefs)  # noqa: E731
    return stack(filtered), jnp.stack(evidence), stack(smoothed)


@pytest.mark.parametrize("seed", range(3))
def test_filter_and_smoother_equal_the_joint_gaussian_with_missing_coordinates(seed):
    model = random_linear_model(seed, x=3, y=2)
    seen = random_observations(model, time=7, seed=seed)
    filtered, evidence, smoothed = filter_and_smooth(jax.tree.map(array, model), array(seen))
    means, covs, total = condition_everything(model, seen)
    assert close(evidence.sum(), total, scale=10)
    assert close(smoothed.mean, means, scale=10)
    assert close(smoothed.cov, covs, scale=10)
    for t in (0, 2, 4):
        past_means, past_covs, _ = condition_everything(model, seen[: t + 1])
        assert close(filtered.mean[t], past_means[-1], scale=10)
        assert close(filtered.cov[t], past_covs[-1], scale=10)
    textbook = textbook_kalman_filter(model, seen)
    for found, wanted in zip((filtered.mean, filtered.cov, evidence), textbook, strict=True):
        assert close(found, wanted, scale=10)


def test_a_frame_in_which_nothing_was_seen_changes_nothing_and_costs_no_evidence():
    after, evidence = BELIEF.condition(CHANNEL, jnp.full(2, jnp.nan))
    assert close(after.mean, MEAN)
    assert close(after.cov, COV)
    assert evidence == 0


def test_prediction_adds_the_noise_to_the_moved_covariance():
    after = BELIEF.predict(CHANNEL)
    assert close(after.mean, OUT)
    assert close(after.cov, SLOPE @ COV @ SLOPE.T + NOISE)


def test_evidence_is_the_density_of_the_predicted_observation():
    y = array([0.3, -1.1])
    _, evidence = BELIEF.condition(CHANNEL, y)
    assert close(evidence, BELIEF.predict(CHANNEL).log_prob(y))
    assert close(evidence, multivariate_normal(OUT, SLOPE @ COV @ SLOPE.T + NOISE).logpdf(np.asarray(y)))


def test_log_prob_leaves_out_missing_coordinates():
    y = np.array([0.3, np.nan, -1.0])
    kept = [0, 2]
    wanted = multivariate_normal(MEAN[kept], COV[np.ix_(kept, kept)]).logpdf(y[kept])
    assert close(BELIEF.log_prob(array(y)), wanted)
    assert BELIEF.log_prob(jnp.full(3, jnp.nan)) == 0


def test_an_exact_observation_of_everything_leaves_no_doubt():
    see = ps.Channel(BELIEF.mean, jnp.eye(3), jnp.zeros((3, 3)))
    y = array([1.0, 2.0, 3.0])
    after, evidence = BELIEF.condition(see, y)
    assert close(after.mean, y)
    assert close(after.cov, np.zeros((3, 3)), scale=10)
    assert close(evidence, multivariate_normal(MEAN, COV).logpdf(np.asarray(y)))


def test_a_certain_belief_learns_nothing():
    certain = ps.Gaussian.certain(array(MEAN))
    assert close(certain.cov, np.zeros((3, 3)))
    after, evidence = certain.condition(CHANNEL, array([0.3, -1.1]))
    assert close(after.mean, MEAN)
    assert close(after.cov, np.zeros((3, 3)))
    assert close(evidence, multivariate_normal(OUT, NOISE).logpdf([0.3, -1.1]))


def test_smoothing_with_nothing_new_changes_nothing():
    move = ps.Channel(array(OUT), array(SLOPE), array(NOISE))
    same = BELIEF.smooth(move, BELIEF.predict(move))
    assert close(same.mean, MEAN)
    assert close(same.cov, COV)


def test_smoothing_through_a_noiseless_invertible_map_inverts_it():
    turn = np.linalg.qr(RNG.normal(size=(3, 3)))[0] * 1.3
    move = ps.Channel(array(turn @ MEAN), array(turn), jnp.zeros((3, 3)))
    later_mean, later_cov = RNG.normal(size=3), 0.1 * random_cov(RNG, 3)
    earlier = BELIEF.smooth(move, ps.Gaussian(array(later_mean), array(later_cov)))
    inverse = np.linalg.inv(turn)
    assert close(earlier.mean, inverse @ later_mean, scale=20)
    assert close(earlier.cov, inverse @ later_cov @ inverse.T, scale=20)


def test_composition_of_channels_is_prediction_after_prediction():
    then = ps.Channel(array(RNG.normal(size=4)), array(RNG.normal(size=(4, 2))), array(random_cov(RNG, 4)))
    whole = ps.compose(CHANNEL, then)
    once, twice = BELIEF.predict(whole), BELIEF.predict(CHANNEL).predict(then)
    assert whole.slope.shape == (4, 3)
    assert close(once.mean, twice.mean)
    assert close(once.cov, twice.cov)


def test_composition_is_associative():
    second = ps.Channel(array(RNG.normal(size=4)), array(RNG.normal(size=(4, 2))), array(random_cov(RNG, 4)))
    third = ps.Channel(array(RNG.normal(size=1)), array(RNG.normal(size=(1, 4))), array(random_cov(RNG, 1)))
    left = ps.compose(ps.compose(CHANNEL, second), third)
    right = ps.compose(CHANNEL, ps.compose(second, third))
    assert close(left.slope, right.slope)
    assert close(left.noise, right.noise)


def test_plus_adds_independent_noise_to_the_output():
    noisy = CHANNEL.plus(array([0.5, 2.0]))
    assert close(noisy.noise, NOISE + np.diag([0.5, 2.0]))
    assert close(noisy.mean, OUT)
    assert close(noisy.slope, SLOPE)
    known = ps.Channel(array(OUT), array(SLOPE), array(NOISE), BELIEF.predict(CHANNEL).cov)
    assert close(known.plus(array([0.5, 2.0])).cov, SLOPE @ COV @ SLOPE.T + NOISE + np.diag([0.5, 2.0]))


def test_residual_adds_the_state_and_scales_by_the_time_step():
    slope = RNG.normal(size=(3, 3))
    c = ps.Channel(array(OUT[[0, 1, 0]]), array(slope), array(COV))
    step = c.residual(array(MEAN), 0.3)
    assert close(step.mean, MEAN + 0.3 * OUT[[0, 1, 0]])
    assert close(step.slope, np.eye(3) + 0.3 * slope)
    assert close(step.noise, 0.09 * COV)
    moved = (np.eye(3) + 0.3 * slope) @ COV @ (np.eye(3) + 0.3 * slope).T + 0.09 * COV
    assert close(BELIEF.predict(step).cov, moved)


def test_samples_have_the_mean_and_covariance_of_the_belief(key):
    samples = np.asarray(BELIEF.sample(key=key, shape=(200_000,)), float)
    moments = Moments.of(samples, samples)
    assert_mean_matches(MEAN, moments)
    assert_cov_matches(COV, moments)


def test_samples_of_a_singular_belief_stay_where_it_lives(key):
    direction = np.array([1.0, -2.0, 0.5])
    belief = ps.Gaussian(array(MEAN), array(np.outer(direction, direction)))
    samples = np.asarray(belief.sample(key=key, shape=(4, 5)))
    assert samples.shape == (4, 5, 3)
    off = np.cross(samples - MEAN, direction)
    assert close(off.astype(samples.dtype), np.zeros((4, 5, 3)), scale=10)
    assert ps.Gaussian.certain(array(MEAN)).sample(key=key).shape == (3,)


def test_variances_and_deviations_are_the_diagonal():
    assert close(BELIEF.var, np.diag(COV))
    assert close(BELIEF.std, np.sqrt(np.diag(COV)))
    assert BELIEF.state is BELIEF


def test_gradients_are_finite_for_certain_and_singular_beliefs():
    @jax.jit
    @partial(jax.grad, argnums=(0, 1, 2))
    def slopes(mean, cov, noise):
        belief = ps.Gaussian(mean, cov)
        c = ps.Channel(array(SLOPE) @ mean, array(SLOPE), noise)
        after, evidence = belief.condition(c, jnp.stack([mean[0] + 1.0, array(jnp.nan)]))
        move = ps.Channel(after.mean, jnp.eye(3), jnp.eye(3))
        earlier = after.smooth(move, ps.Gaussian(mean, cov))
        return evidence + after.std.sum() + earlier.cov.sum() + earlier.mean.sum()

    for cov in (np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 0.0, 2.0])):
        for slope in slopes(array(MEAN), array(cov), array(NOISE)):
            assert jnp.isfinite(slope).all()


# ---------------------------------------------------------------- joint with weights


SHAPES = ((2, 3),)
PRIOR = np.array([0.5, 1.0, 0.2, 0.7, 0.3, 0.9])
WEIGHT_MEAN = RNG.normal(size=6)
JOINT_COV, FACTOR = random_joint_cov(5, 3, PRIOR, rank=2)


def joint_belief(kind):
    """A state that is correlated with six weights."""
    state, cross = ps.Gaussian(array(MEAN), array(JOINT_COV[:3, :3])), array(JOINT_COV[:3, 3:])
    weights = {
        "diagonal": ps.DiagonalWeights(array(WEIGHT_MEAN), array(np.diag(JOINT_COV)[3:]), SHAPES),
        "dense": ps.DenseWeights(array(WEIGHT_MEAN), array(JOINT_COV[3:, 3:]), SHAPES),
        "low rank": ps.LowRankWeights(array(WEIGHT_MEAN), array(PRIOR), array(FACTOR), SHAPES),
    }[kind]
    return ps.JointGaussian(state, cross, weights)


@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
def test_a_joint_belief_is_the_gaussian_that_it_writes_out(kind):
    belief = joint_belief(kind)
    whole = belief.dense()
    assert close(whole.mean, np.concatenate([MEAN, WEIGHT_MEAN]))
    assert close(whole.cov[:3, 3:], JOINT_COV[:3, 3:])
    weights = np.diag(np.diag(JOINT_COV)[3:]) if kind == "diagonal" else JOINT_COV[3:, 3:]
    assert close(whole.cov[3:, 3:], weights)
    assert close(belief.mean, MEAN)
    assert close(belief.cov, JOINT_COV[:3, :3])


@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
@pytest.mark.parametrize("size", [1, 4])
def test_conditioning_a_joint_belief_equals_conditioning_the_stacked_vector(kind, size):
    rng = np.random.default_rng(size)
    belief = joint_belief(kind)
    see, noise = rng.normal(size=(size, 3)), random_cov(rng, size)
    y = rng.normal(size=size)
    if size > 1:
        y[0] = np.nan
    condition = jax.jit(lambda b, c, y: b.condition(c, y))
    after, evidence = condition(belief, ps.Channel(array(see @ MEAN), array(see), array(noise)), array(y))
    stacked = ps.Channel(array(see @ MEAN), array(np.hstack([see, np.zeros((size, 6))])), array(noise))
    wanted, wanted_evidence = condition(belief.dense(), stacked, array(y))
    assert close(after.dense().mean, wanted.mean)
    assert close(after.dense().cov, wanted.cov)
    assert close(evidence, wanted_evidence)
    if kind == "low rank":
        assert after.weights.factor.shape[1] <= 2 + min(3, size)


@pytest.mark.parametrize("kind", ["diagonal", "dense", "low rank"])
def test_predicting_a_joint_belief_keeps_the_weights_and_moves_the_state(kind):
    rng = np.random.default_rng(9)
    belief = joint_belief(kind)
    slope, weight_slope, noise = rng.normal(size=(3, 3)), rng.normal(size=(3, 6)), random_cov(rng, 3)
    c = ps.Channel(array(MEAN), array(slope), array(noise), weight_slope=array(weight_slope))
    after = belief.predict(c).dense()
    move = np.block([[slope, weight_slope], [np.zeros((6, 3)), np.eye(6)]])
    before = np.asarray(belief.dense().cov, float)
    wanted = move @ before @ move.T + np.pad(noise, (0, 6))
    assert close(after.cov, wanted)
    assert close(after.mean[3:], WEIGHT_MEAN)
    assert smallest_eigenvalue(after.cov) > -1e-6


def test_independent_state_and_weights_have_no_covariance():
    weights = ps.DiagonalWeights(array(WEIGHT_MEAN), array(PRIOR), SHAPES)
    belief = ps.JointGaussian.independent(BELIEF, weights)
    assert close(belief.cross, np.zeros((3, 6)))
    assert close(belief.dense().cov[3:, 3:], np.diag(PRIOR))


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.Gaussian(jnp.zeros((2, 1)), jnp.eye(2)), "mean"),
        (lambda: ps.Gaussian(jnp.zeros(2), jnp.eye(3)), "cov"),
        (lambda: ps.Gaussian(jnp.zeros(2), jnp.zeros(2)), "cov"),
        (lambda: ps.Gaussian("ab", jnp.eye(2)), "mean"),
        (lambda: ps.Gaussian(jnp.zeros(2), None), "cov"),
        (lambda: ps.Gaussian.certain(jnp.zeros((2, 2))), "mean"),
        (lambda: BELIEF.condition(CHANNEL, jnp.zeros(3)), "y"),
        (lambda: BELIEF.log_prob(jnp.zeros(2)), "y"),
        (lambda: BELIEF.predict(ps.Channel(jnp.zeros(2), jnp.zeros((2, 4)), jnp.eye(2))), "slope|channel"),
        (lambda: ps.Channel(jnp.zeros(2), jnp.zeros((3, 4)), jnp.eye(2)), "slope"),
        (lambda: ps.Channel(jnp.zeros(2), jnp.zeros((2, 4)), jnp.eye(3)), "noise"),
        (lambda: ps.JointGaussian(BELIEF, jnp.zeros((2, 6)), joint_belief("diagonal").weights), "cross"),
        (lambda: ps.JointGaussian(BELIEF, jnp.zeros((3, 5)), joint_belief("diagonal").weights), "cross"),
        (lambda: ps.JointGaussian(BELIEF, jnp.zeros((3, 6)), jnp.zeros(6)), "weights"),
        (lambda: CHANNEL.residual(jnp.zeros(2)), "slope|residual|mean"),
        (lambda: CHANNEL.plus(jnp.zeros(3)), "variances"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()
