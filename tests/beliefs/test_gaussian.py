"""Beliefs and channels are linear-Gaussian algebra: they agree with one big joint Gaussian."""

from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from linear_oracles import joint_posterior, random_linear_model, random_observations, textbook_kalman_filter, textbook_smoother
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close, random_cov
from scipy.stats import multivariate_normal

import prodssm as ps

RNG = np.random.default_rng(0)
MEAN, COV = RNG.normal(size=3), random_cov(RNG, 3)
BELIEF = ps.Gaussian(array(MEAN), array(COV))
SLOPE, NOISE, OUT = RNG.normal(size=(2, 3)), random_cov(RNG, 2), RNG.normal(size=2)
CHANNEL = ps.Channel(array(OUT), array(SLOPE), array(NOISE))


# ---------------------------------------------------------------- filtering and smoothing


def transition_channel(model, belief):
    """The transition of a linear model around a belief."""
    slope = array(model.transition)
    return ps.Channel(array(model.shift) + slope @ belief.mean, slope, array(model.process_noise))


def emission_channel(model, belief):
    """The emission of a linear model around a belief, measurement noise included."""
    slope = array(model.emission)
    return ps.Channel(array(model.offset) + slope @ belief.mean, slope, array(model.measurement_noise))


@jax.jit
def filter_and_smooth(model, observations):
    """Filtered beliefs, log evidence of each step, smoothed beliefs, by `condition`, `predict` and `smooth`."""
    belief, filtered, evidence = ps.Gaussian(model.mean, model.cov), [], []
    for y in observations:
        belief, step = belief.condition(emission_channel(model, belief), y)
        filtered.append(belief)
        evidence.append(step)
        belief = belief.predict(transition_channel(model, belief))
    smoothed = [filtered[-1]]
    for belief in filtered[-2::-1]:
        smoothed.insert(0, belief.smooth(transition_channel(model, belief), smoothed[0]))
    stack = lambda beliefs: jax.tree.map(lambda *leaves: jnp.stack(leaves), *beliefs)  # noqa: E731
    return stack(filtered), jnp.stack(evidence), stack(smoothed)


@pytest.mark.parametrize("seed", range(3))
def test_filter_and_smoother_equal_the_joint_gaussian_with_missing_coordinates(seed):
    model = random_linear_model(seed, x=3, y=2)
    observations = random_observations(model, time=7, seed=seed)
    filtered, evidence, smoothed = filter_and_smooth(jax.tree.map(array, model), array(observations))
    means, covs, total = joint_posterior(model, observations)
    assert close(evidence.sum(), total, scale=10)
    assert close(smoothed.mean, means, scale=10)
    assert close(smoothed.cov, covs, scale=10)
    for t in (0, 2, 4):
        past_means, past_covs, _ = joint_posterior(model, observations[: t + 1])
        assert close(filtered.mean[t], past_means[-1], scale=10)
        assert close(filtered.cov[t], past_covs[-1], scale=10)
    textbook = (*textbook_kalman_filter(model, observations), *textbook_smoother(model, observations))
    for found, wanted in zip((filtered.mean, filtered.cov, evidence, smoothed.mean, smoothed.cov), textbook, strict=True):
        assert close(found, wanted, scale=10)


def test_a_missing_observation_changes_nothing_and_has_no_evidence():
    after, evidence = BELIEF.condition(CHANNEL, jnp.full(2, jnp.nan))
    assert close(after.mean, MEAN)
    assert close(after.cov, COV)
    assert evidence == 0


def test_prediction_adds_the_noise_to_the_mapped_covariance():
    after = BELIEF.predict(CHANNEL)
    assert close(after.mean, OUT)
    assert close(after.cov, SLOPE @ COV @ SLOPE.T + NOISE)


def test_evidence_is_the_density_of_the_predicted_observation():
    y = array([0.3, -1.1])
    _, evidence = BELIEF.condition(CHANNEL, y)
    assert close(evidence, BELIEF.predict(CHANNEL).log_prob(y))
    assert close(evidence, multivariate_normal(OUT, SLOPE @ COV @ SLOPE.T + NOISE).logpdf(np.asarray(y)))


def test_log_prob_marginalises_missing_coordinates():
    y = np.array([0.3, np.nan, -1.0])
    kept = [0, 2]
    wanted = multivariate_normal(MEAN[kept], COV[np.ix_(kept, kept)]).logpdf(y[kept])
    assert close(BELIEF.log_prob(array(y)), wanted)
    assert BELIEF.log_prob(jnp.full(3, jnp.nan)) == 0


def test_a_noise_free_observation_of_every_coordinate_leaves_no_variance():
    emission = ps.Channel(BELIEF.mean, jnp.eye(3), jnp.zeros((3, 3)))
    y = array([1.0, 2.0, 3.0])
    after, evidence = BELIEF.condition(emission, y)
    assert close(after.mean, y)
    assert close(after.cov, np.zeros((3, 3)), scale=10)
    assert close(evidence, multivariate_normal(MEAN, COV).logpdf(np.asarray(y)))


def test_a_certain_belief_is_its_own_posterior():
    certain = ps.Gaussian.certain(array(MEAN))
    assert close(certain.cov, np.zeros((3, 3)))
    after, evidence = certain.condition(CHANNEL, array([0.3, -1.1]))
    assert close(after.mean, MEAN)
    assert close(after.cov, np.zeros((3, 3)))
    assert close(evidence, multivariate_normal(OUT, NOISE).logpdf([0.3, -1.1]))


@pytest.mark.parametrize("variances", [[1e4, 1e-3], [1e10, 1e-6], [1e10, 1.0, 1.0, 1.0, 1e-6]], ids=str)
def test_an_update_is_accurate_for_coordinates_of_very_different_units(variances):
    prior = jnp.diag(array(variances))
    n = len(variances)
    belief = ps.Gaussian(jnp.zeros(n), prior)
    y = array(0.1 * np.sqrt(variances))
    found, _ = belief.condition(ps.Channel(jnp.zeros(n), jnp.eye(n), 0.01 * prior), y)
    assert close(found.var / array(variances), np.full(n, 0.01 / 1.01))
    assert close(found.mean / y, np.full(n, 1 / 1.01))


def test_smoothing_with_the_predicted_belief_changes_nothing():
    same = BELIEF.smooth(CHANNEL, BELIEF.predict(CHANNEL))
    assert close(same.mean, MEAN)
    assert close(same.cov, COV)


def test_smoothing_through_a_noise_free_invertible_map_inverts_it():
    matrix = np.linalg.qr(RNG.normal(size=(3, 3)))[0] * 1.3
    transition = ps.Channel(array(matrix @ MEAN), array(matrix), jnp.zeros((3, 3)))
    later_mean, later_cov = RNG.normal(size=3), 0.1 * random_cov(RNG, 3)
    earlier = BELIEF.smooth(transition, ps.Gaussian(array(later_mean), array(later_cov)))
    inverse = np.linalg.inv(matrix)
    assert close(earlier.mean, inverse @ later_mean, scale=20)
    assert close(earlier.cov, inverse @ later_cov @ inverse.T, scale=20)


# ---------------------------------------------------------------- channels


def test_a_channel_holds_nothing_that_depends_on_the_belief_it_was_found_around():
    # A channel with a cached covariance could be applied to another belief, with a wrong answer.
    assert [field.name for field in fields(ps.Channel)] == ["mean", "slope", "noise", "weight_slope", "affine"]
    for name in ("cov", "cross", "advance", "predicted"):
        assert not hasattr(ps.Channel, name)
        assert not hasattr(CHANNEL, name)
    assert not any(hasattr(kind, "advance") for kind in (ps.Belief, ps.Gaussian, ps.JointGaussian))


def test_predict_uses_the_covariance_of_its_own_belief():
    net = ps.Network.from_arrays([[[2.0]]], [[0.0]])
    channel, predicted = ps.Moments().propagate(net, ps.Gaussian([0.0], [[1.0]]))
    assert close(predicted.cov, [[4.0]])
    assert close(ps.Gaussian([0.0], [[100.0]]).predict(channel).cov, [[400.0]])


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


def test_plus_adds_independent_noise_to_a_channel_and_to_a_belief():
    noisy = CHANNEL.plus(array([0.5, 2.0]))
    assert close(noisy.noise, NOISE + np.diag([0.5, 2.0]))
    assert close(noisy.mean, OUT)
    assert close(noisy.slope, SLOPE)
    after = BELIEF.predict(CHANNEL).plus(array([0.5, 2.0]))
    assert close(after.cov, SLOPE @ COV @ SLOPE.T + NOISE + np.diag([0.5, 2.0]))
    assert close(after.cov, BELIEF.predict(noisy).cov)
    assert close(after.mean, OUT)


def test_the_residual_form_adds_the_state_and_scales_by_the_time_step():
    slope, weight_slope = RNG.normal(size=(3, 3)), RNG.normal(size=(3, 5))
    mean = OUT[[0, 1, 0]]
    step = ps.Channel(array(mean), array(slope), array(COV), array(weight_slope)).residual(array(MEAN), 0.3)
    assert close(step.mean, MEAN + 0.3 * mean)
    assert close(step.slope, np.eye(3) + 0.3 * slope)
    assert close(step.noise, 0.09 * COV)
    assert close(step.weight_slope, 0.3 * weight_slope)
    step = ps.Channel(array(mean), array(slope), array(COV)).residual(array(MEAN), 0.3)
    wanted = (np.eye(3) + 0.3 * slope) @ COV @ (np.eye(3) + 0.3 * slope).T + 0.09 * COV
    assert close(BELIEF.predict(step).cov, wanted)
    assert step.weight_slope is None


# ---------------------------------------------------------------- sampling


def test_samples_have_the_mean_and_covariance_of_the_belief(key):
    samples = np.asarray(BELIEF.sample(key=key, shape=(200_000,)), float)
    moments = SampleMoments.of(samples, samples)
    assert_mean_matches(MEAN, moments)
    assert_cov_matches(COV, moments)


def test_samples_of_a_singular_belief_stay_in_its_range(key):
    direction = np.array([1.0, -2.0, 0.5])
    belief = ps.Gaussian(array(MEAN), array(np.outer(direction, direction)))
    samples = np.asarray(belief.sample(key=key, shape=(4, 5)))
    assert samples.shape == (4, 5, 3)
    off = np.cross(samples - MEAN, direction)
    assert close(off.astype(samples.dtype), np.zeros((4, 5, 3)), scale=10)
    assert ps.Gaussian.certain(array(MEAN)).sample(key=key).shape == (3,)


def test_a_draw_is_a_state_without_weights(key):
    state, weights = BELIEF.draw(key=key)
    assert state.shape == (3,)
    assert weights is None
    assert BELIEF.weights is None


# ---------------------------------------------------------------- properties


def test_variances_and_standard_deviations_are_read_off_the_diagonal():
    assert close(BELIEF.var, np.diag(COV))
    assert close(BELIEF.std, np.sqrt(np.diag(COV)))
    assert BELIEF.state is BELIEF


def test_gradients_are_finite_for_certain_and_singular_beliefs():
    @jax.jit
    @partial(jax.grad, argnums=(0, 1, 2))
    def gradients(mean, cov, noise):
        belief = ps.Gaussian(mean, cov)
        c = ps.Channel(array(SLOPE) @ mean, array(SLOPE), noise)
        after, evidence = belief.condition(c, jnp.stack([mean[0] + 1.0, array(jnp.nan)]))
        transition = ps.Channel(after.mean, jnp.eye(3), jnp.eye(3))
        earlier = after.smooth(transition, ps.Gaussian(mean, cov))
        return evidence + after.std.sum() + earlier.cov.sum() + earlier.mean.sum()

    for cov in (np.zeros((3, 3)), np.ones((3, 3)), np.diag([1.0, 0.0, 2.0])):
        for gradient in gradients(array(MEAN), array(cov), array(NOISE)):
            assert jnp.isfinite(gradient).all()


# ---------------------------------------------------------------- bad input


def test_a_channel_of_global_weights_is_refused_by_a_belief_that_does_not_carry_them():
    net = ps.Network.mlp((1, 2, 1), key=jr.key(0), log_var=0.0)
    belief = ps.Gaussian([1.0], [[1.0]])
    c = ps.channel(net, belief, weights="global")
    joint = ps.JointGaussian.independent(belief, net.weights)
    for call in (
        lambda: belief.predict(c),
        lambda: belief.condition(c, array([2.0])),
        lambda: joint.condition(c, array([2.0])),
    ):
        with pytest.raises(ValueError, match="weight_slope"):
            call()
    assert joint.predict(c).cov.shape == (1, 1)


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.Gaussian(jnp.zeros((2, 1)), jnp.eye(2)), "mean"),
        (lambda: ps.Gaussian(jnp.zeros(2), jnp.eye(3)), "cov"),
        (lambda: ps.Gaussian(jnp.zeros(2), jnp.zeros(2)), "cov"),
        (lambda: ps.Gaussian(jnp.zeros(2), jnp.eye(2, dtype=jnp.float16)), "cov"),
        (lambda: ps.Gaussian("ab", jnp.eye(2)), "mean"),
        (lambda: ps.Gaussian(jnp.zeros(2), None), "cov"),
        (lambda: ps.Gaussian.certain(jnp.zeros((2, 2))), "mean"),
        (lambda: BELIEF.condition(CHANNEL, jnp.zeros(3)), "y"),
        (lambda: BELIEF.condition(CHANNEL, array([np.inf, 0.0])), "y must"),
        (lambda: BELIEF.log_prob(jnp.zeros(2)), "y"),
        (lambda: BELIEF.predict(ps.Channel(jnp.zeros(2), jnp.zeros((2, 4)), jnp.eye(2))), "slope|channel"),
        (lambda: BELIEF.plus(jnp.zeros(2)), "variances"),
        (lambda: ps.Channel(jnp.zeros(2), jnp.zeros((3, 4)), jnp.eye(2)), "slope"),
        (lambda: ps.Channel(jnp.zeros(2), jnp.zeros((2, 4)), jnp.eye(3)), "noise"),
        (lambda: CHANNEL.residual(jnp.zeros(2)), "slope|residual|mean"),
        (lambda: CHANNEL.plus(jnp.zeros(3)), "variances"),
        (lambda: CHANNEL.plus(array([1.0, -1.0])), "variances"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()
