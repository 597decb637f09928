from functools import cache

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close, random_cov
from scipy.stats import norm

from prodssm.beliefs import splitting
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.mixture import GaussianMixture
from prodssm.methods.moments import Moments
from prodssm.networks.network import Network

SIZES = (1, 3)


def mixture(seed, x, count=4, splits=9):
    rng = np.random.default_rng(seed)
    covs = np.stack([0.2 * random_cov(rng, x) for _ in range(count)])
    return GaussianMixture.of(rng.uniform(0.1, 1, count), rng.normal(size=(count, x)), covs, splits)


SPLIT = jax.jit(lambda whole, rule: whole.split(rule), static_argnums=1)
MERGE = jax.jit(lambda whole, slots: whole.merge(slots), static_argnums=1)


@cache
def bending(x):
    """The rule of a network that bends, with some noise."""
    net = Network.mlp((x, 15, x), activation="erf", uncertain=False, key=jr.key(x))
    net = jax.tree.map(lambda leaf: leaf * 2, net)
    noise = jnp.full(x, 0.01)

    def rule(belief):
        channel, predicted = Moments(order=2).propagate(net, belief)
        return channel.plus(noise), predicted.plus(noise)

    return rule


def linear(matrix):
    def rule(belief):
        channel = Channel.of_affine(matrix @ belief.mean, matrix)
        return channel, belief.predict(channel)

    return rule


def density(found, points):
    return np.exp(jax.vmap(found.log_prob)(array(points)))


@pytest.mark.parametrize("level", range(1, len(splitting.COUNTS)))
def test_children_are_nearly_the_normal_that_was_split_with_its_variance(level):
    count = splitting.COUNTS[level]
    weights = np.exp(splitting.LOG_WEIGHTS[level, :count])
    offsets, var = splitting.OFFSETS[level, :count], splitting.VARIANCES[level]
    assert abs(weights.sum() - 1) < 1e-12
    assert abs(weights @ offsets**2 + var - 1) < 1e-12
    points = np.linspace(-5, 5, 501)
    found = (weights * norm.cdf((points[:, None] - offsets) / var**0.5)).sum(axis=1)
    assert np.abs(found - norm.cdf(points)).max() < 0.005
    assert var < splitting.VARIANCES[level - 1]


@pytest.mark.parametrize("x", SIZES)
def test_splitting_keeps_mean_and_covariance(x):
    whole = mixture(0, x)
    finer = SPLIT(whole, bending(x))
    assert finer.log_weights.size == 4 * 9
    assert int((finer.log_weights > -jnp.inf).sum()) > 4
    assert close(jnp.exp(finer.log_weights).sum(), 1.0)
    assert close(finer.mean, np.asarray(whole.mean))
    assert close(finer.cov, np.asarray(whole.cov))


def test_a_single_gaussian_takes_the_room_of_empty_slots():
    finer = SPLIT(GaussianMixture.single(Gaussian([0.1], [[1.0]]), 8, 9), bending(1))
    alive = finer.log_weights > -jnp.inf
    assert int(alive.sum()) in splitting.COUNTS
    assert int(alive.sum()) > 9
    assert close(jnp.exp(finer.log_weights).sum(), 1.0)


def test_what_does_not_bend_is_not_split():
    matrix = array([[0.9, 0.3], [-0.2, 0.8]])
    whole = mixture(1, 2)
    finer = SPLIT(whole, linear(matrix))
    assert int((finer.log_weights > -jnp.inf).sum()) == 4
    moved = jax.jit(lambda belief: belief.moved(linear(matrix))[1])(whole)
    at = np.random.default_rng(0).normal(size=(20, 2))
    each = [Gaussian(matrix @ m, matrix @ c @ matrix.T) for m, c in zip(whole.means, whole.covs, strict=True)]
    wanted = sum(w * np.exp([g.log_prob(array(p)) for p in at]) for w, g in zip(np.exp(whole.log_weights), each, strict=True))
    assert close(density(moved, at), wanted)


def test_the_direction_of_a_split_is_the_one_in_which_the_function_bends():
    """f(x) = (x1 - x2)^2 bends along (1, -1) only."""

    def rule(belief):
        along = jnp.array([1.0, -1.0], belief.mean.dtype)
        m, v = along @ belief.mean, along @ belief.cov @ along
        channel = Channel(
            jnp.array([m**2 + v, 0 * m]), jnp.stack([2 * m * along, 0 * along]), jnp.diag(jnp.array([2 * v**2, v]))
        )
        return channel, belief.predict(channel)

    belief = Gaussian([0.3, -0.2], [[1.0, 0.3], [0.3, 2.0]])
    changes, directions = splitting.principal_changes(belief, rule)
    best = np.linalg.cholesky(np.asarray(belief.cov)) @ np.asarray(directions)[:, int(jnp.argmax(changes))]
    # A step S d changes the function only if its own part along (1, -1) is large: with d = S'(1, -1) normalised.
    wanted = np.asarray(belief.cov) @ np.array([1.0, -1.0])
    assert abs(best @ wanted / np.linalg.norm(best) / np.linalg.norm(wanted)) > 1 - 1e-4
    assert float(jnp.sort(changes)[0]) < 1e-3 * float(jnp.sort(changes)[1])


@pytest.mark.parametrize("x", SIZES)
@pytest.mark.parametrize("slots", [1, 8])
def test_merging_keeps_mean_and_covariance(x, slots):
    finer = SPLIT(mixture(2, x, 7, 27), bending(x))
    few = MERGE(finer, slots)
    assert few.log_weights.shape == (slots,)
    assert close(jnp.exp(few.log_weights).sum(), 1.0)
    assert close(few.mean, np.asarray(finer.mean))
    assert close(few.cov, np.asarray(finer.cov))


@pytest.mark.float64
@pytest.mark.parametrize("x", [1, 2, 4, 6])
def test_skewed_weights_and_empty_slots_change_neither_mean_nor_covariance_nor_total_weight(x):
    whole = mixture(8, x, 6)
    shares = np.array([1.0, 0.0, 1e-3, 1e-9, 0.0, 1e-30])
    whole = GaussianMixture.of(shares, whole.means, whole.covs, 9)
    finer = SPLIT(whole, bending(x))
    assert int((finer.log_weights > -jnp.inf).sum()) > 4
    for found in (finer, *(MERGE(finer, slots) for slots in (1, 3, 8))):
        assert abs(jnp.exp(found.log_weights).sum() - 1) < 1e-13
        assert np.allclose(found.mean, whole.mean, rtol=1e-12, atol=1e-12)
        assert np.allclose(found.cov, whole.cov, rtol=0, atol=1e-13 * float(jnp.trace(whole.cov)))


def test_merging_few_that_are_alive_changes_nothing():
    whole = mixture(3, 2)
    empty = jnp.full(20, -jnp.inf, whole.means.dtype)
    padded = GaussianMixture(
        jnp.concatenate([empty, whole.log_weights]),
        jnp.concatenate([jnp.zeros((20, 2), whole.means.dtype), whole.means]),
        jnp.concatenate([jnp.tile(jnp.eye(2, dtype=whole.means.dtype), (20, 1, 1)), whole.covs]),
    )
    at = np.random.default_rng(1).normal(size=(20, 2))
    assert close(density(MERGE(padded, 4), at), density(whole, at))
    assert close(density(MERGE(padded, 6), at), density(whole, at))


def test_two_places_stay_two_places():
    ends = GaussianMixture.of(
        np.ones(60), np.repeat([-3.0, 3.0], 30)[:, None] + 0.01 * np.arange(60)[:, None], np.ones((60, 1, 1))
    )
    few = MERGE(ends, 2)
    assert np.allclose(np.sort(np.asarray(few.means)[:, 0]), [-3 + 0.145, 3 + 0.445], atol=1e-4)


@pytest.mark.float64
def test_conditioning_is_bayes_rule_on_a_grid():
    whole = mixture(4, 1)
    channel = Channel([0.2], [[1.5]], [[0.3]])
    points = np.linspace(-12, 12, 8001)
    prior = density(whole, points[:, None])
    y = 1.1
    likelihood = norm.pdf(y, 0.2 + 1.5 * (points - whole.mean.item()), 0.3**0.5)
    evidence = (prior * likelihood).sum() * (points[1] - points[0])
    after, log_evidence = whole.condition(channel, jnp.array([y]))
    assert np.isclose(log_evidence, np.log(evidence), atol=1e-9)
    assert np.allclose(density(after, points[:, None]), prior * likelihood / evidence, atol=1e-8)


def test_a_missing_observation_changes_nothing():
    whole = mixture(5, 2)
    after, log_evidence = whole.condition(Channel([0.0], [[1.0, 0.0]], [[0.1]]), jnp.array([jnp.nan]))
    assert log_evidence == 0
    assert close(after.log_weights, np.asarray(whole.log_weights))
    assert close(after.covs, np.asarray(whole.covs))


def test_draws_have_the_moments_of_the_mixture():
    whole = mixture(6, 2)
    draws = np.asarray(jax.vmap(lambda key: whole.draw(key=key)[0])(jr.split(jr.key(0), 20_000)))
    error = draws.std(axis=0) / len(draws) ** 0.5
    assert (np.abs(draws.mean(axis=0) - np.asarray(whole.mean)) < 5 * error).all()
    assert np.allclose(np.cov(draws.T), whole.cov, rtol=0.1, atol=0.05)


def test_predict_and_plus_are_those_of_one_gaussian_in_moments():
    whole = mixture(7, 2)
    channel = Channel([1.0, 2.0, 3.0], np.arange(6.0).reshape(3, 2), np.eye(3))
    assert close(whole.predict(channel).cov, np.asarray(whole.gaussian.predict(channel).cov))
    assert close(whole.predict(channel).mean, np.asarray(channel.mean))
    assert close(whole.plus(jnp.array([1.0, 2.0])).cov, np.asarray(whole.gaussian.plus(jnp.array([1.0, 2.0])).cov))


@pytest.mark.parametrize("x", [1, 2])
def test_gradients_are_finite_also_with_empty_slots(x):
    rule = bending(x)

    def score(mean):
        belief = GaussianMixture.single(Gaussian(mean, jnp.eye(x, dtype=mean.dtype)), 4, 9)
        log_evidence = jnp.zeros((), mean.dtype)
        for _ in range(2):
            belief = belief.moved(rule)[1]
            belief, log_evidence = belief.condition(
                Channel.of_affine(belief.mean, jnp.eye(x, dtype=mean.dtype)).plus(jnp.ones(x)), mean
            )
        return log_evidence + belief.log_prob(mean)

    value, gradient = jax.jit(jax.value_and_grad(score))(array(np.full(x, 0.3)))
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"must have shapes \(k,\), \(k, x\) and \(k, x, x\), got \(2,\)"):
        GaussianMixture.of([0.5, 0.5], [[1.0]], [[[1.0]]])


@pytest.mark.parametrize(
    ("weights", "mean", "said"),
    [
        ([1.0, -0.5], 0.0, "weights must not be negative, got -0.5"),
        ([0.0, 0.0], 0.0, "weights must have a positive sum"),
        ([1.0, np.inf], 0.0, "weights must be finite"),
        ([0.5, 0.5], np.nan, "means must be finite"),
    ],
)
def test_weights_and_means_that_are_none_are_refused(weights, mean, said):
    with pytest.raises(ValueError, match=said):
        GaussianMixture.of(weights, [[1.0], [mean]], np.ones((2, 1, 1)))


def test_a_mixture_has_no_smoother():
    with pytest.raises(ValueError, match="smooth with one Gaussian"):
        mixture(0, 1).smooth(Channel([0.0], [[1.0]], [[1.0]]), None)
