"""Every belief about weights is a Gaussian with a covariance that it can write out; structure changes nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import Moments, array, assert_cov_matches, assert_mean_matches, close, random_joint_cov, smallest_eigenvalue

import prodssm as ps
from prodssm.links import Link, SteppedLink

SHAPES = ((3, 2), (2, 4))
RNG = np.random.default_rng(1)
MEAN = RNG.normal(size=14)
PRIOR = RNG.uniform(0.2, 1.0, size=14)
FACTOR = random_joint_cov(2, 2, PRIOR, rank=3)[1]
COV = np.diag(PRIOR) - FACTOR @ FACTOR.T

BELIEFS = {
    "diagonal": (ps.DiagonalWeights(array(MEAN), array(PRIOR), SHAPES), np.diag(PRIOR)),
    "dense": (ps.DenseWeights(array(MEAN), array(COV), SHAPES), COV),
    "low rank": (ps.LowRankWeights(array(MEAN), array(PRIOR), array(FACTOR), SHAPES), COV),
}


@pytest.fixture(params=list(BELIEFS))
def belief(request):
    """A belief and its covariance."""
    return BELIEFS[request.param]


def test_covariance_and_variances_are_those_of_the_formula(belief):
    weights, cov = belief
    assert close(weights.cov(), cov)
    assert close(weights.var, np.diag(cov))


def test_times_multiplies_rows_by_the_covariance(belief):
    weights, cov = belief
    rows = RNG.normal(size=(3, 14))
    assert close(weights.times(array(rows)), rows @ cov)


def test_a_layer_is_its_matrix_of_weights_and_biases_row_by_row(belief):
    weights, _ = belief
    assert close(weights.layer(0), MEAN[:6].reshape(3, 2))
    assert close(weights.layer(1), MEAN[6:].reshape(2, 4))


def test_learning_moves_the_mean_and_takes_covariance_away(belief):
    weights, cov = belief
    shift, removed = RNG.normal(size=14), 0.2 * np.sqrt(PRIOR)[:, None] * np.linalg.qr(RNG.normal(size=(14, 2)))[0]
    after = weights.learn(array(shift), array(removed))
    assert close(after.mean, MEAN + shift)
    assert close(after.cov(), cov - removed @ removed.T)
    assert close(after.var, np.diag(cov - removed @ removed.T))
    assert (np.asarray(after.var) <= np.asarray(weights.var)).all()
    assert smallest_eigenvalue(after.cov()) > -1e-6
    assert after.shapes == SHAPES


def test_learning_twice_equals_learning_both_at_once(belief):
    weights, _ = belief
    removed = 0.2 * np.sqrt(PRIOR)[:, None] * np.linalg.qr(RNG.normal(size=(14, 3)))[0]
    none = jnp.zeros(14)
    twice = weights.learn(none, array(removed[:, :1])).learn(none, array(removed[:, 1:]))
    assert close(twice.cov(), weights.learn(none, array(removed)).cov())


def test_beliefs_pass_through_jit_and_gradients(belief):
    weights, cov = belief

    @jax.jit
    def total(b):
        return b.times(jnp.ones((1, 14))).sum() + b.var.sum()

    assert close(total(weights), cov.sum() + np.trace(cov))
    for leaf in jax.tree.leaves(jax.grad(total)(weights)):
        assert jnp.isfinite(leaf).all()


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.DiagonalWeights(jnp.zeros(14), jnp.zeros(13), SHAPES), "var"),
        (lambda: ps.DiagonalWeights(jnp.zeros(13), jnp.zeros(13), SHAPES), "mean|shapes"),
        (lambda: ps.DenseWeights(jnp.zeros(14), jnp.zeros((14, 13)), SHAPES), "cov"),
        (lambda: ps.DenseWeights(jnp.zeros(14), jnp.zeros(14), SHAPES), "cov"),
        (lambda: ps.LowRankWeights(jnp.zeros(14), jnp.zeros(13), jnp.zeros((14, 1)), SHAPES), "prior_var"),
        (lambda: ps.LowRankWeights(jnp.zeros(14), jnp.zeros(14), jnp.zeros((13, 1)), SHAPES), "factor"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()


# ---------------------------------------------------------------- bounded rank


def bounded(rank, room):
    return ps.LowRankWeights.bounded(ps.DiagonalWeights(array(MEAN), array(PRIOR), SHAPES), rank, room)


def lessons(count):
    """What some observations take away: columns that together leave the covariance positive definite."""
    white = np.linalg.qr(RNG.normal(size=(14, count)))[0] * np.geomspace(0.9, 0.01, count)
    return np.sqrt(PRIOR)[:, None] * white


def test_a_bounded_belief_is_exact_while_its_columns_fit():
    belief, removed = bounded(4, 2), lessons(6)
    for n in range(3):
        belief = belief.learn(jnp.ones(14), array(removed[:, 2 * n : 2 * n + 2]))
    assert close(belief.mean, MEAN + 3)
    assert close(belief.cov(), np.diag(PRIOR) - removed @ removed.T)
    assert belief.factor.shape == (14, 6)


def test_a_full_belief_keeps_the_directions_in_which_the_variance_fell_most_and_forgets_to_the_safe_side():
    belief, removed = bounded(4, 2), lessons(8)[:, ::-1]
    for n in range(4):
        belief = belief.learn(jnp.zeros(14), array(removed[:, 2 * n : 2 * n + 2]))
    # The first six, the weakest, were compressed to four of them: the two weakest of all are forgotten.
    kept = np.diag(PRIOR) - removed[:, 2:] @ removed[:, 2:].T
    assert close(belief.cov(), kept)
    forgotten = np.asarray(belief.cov(), float) - (np.diag(PRIOR) - removed @ removed.T)
    assert np.linalg.eigvalsh(forgotten).min() > -1e-6
    assert belief.factor.shape == (14, 6)
    assert int(belief.used) == 6


def test_weights_without_variance_do_not_disturb_a_compression():
    prior = np.where(np.arange(14) < 3, 0.0, PRIOR)
    belief = ps.LowRankWeights.bounded(ps.DiagonalWeights(array(MEAN), array(prior), SHAPES), 2, 1)
    removed = np.sqrt(prior / PRIOR)[:, None] * lessons(5)
    for n in range(5):
        belief = belief.learn(jnp.zeros(14), array(removed[:, n : n + 1]))
    assert jnp.isfinite(belief.factor).all()
    assert smallest_eigenvalue(belief.cov()) > -1e-6


def test_weights_are_drawn_from_a_low_rank_belief_without_its_matrix():
    weights = BELIEFS["low rank"][0]
    drawn = jax.vmap(lambda key: weights.sample(key=key))(jax.random.split(jax.random.key(0), 200_000))
    moments = Moments.of(np.asarray(drawn, float), np.asarray(drawn, float))
    assert_mean_matches(MEAN, moments)
    assert_cov_matches(COV, moments, sigmas=5.5)


@pytest.mark.parametrize("steps", [0, 1, 3, 7])  # few and many: two forms
@pytest.mark.parametrize("hidden", [False, True])
def test_a_link_over_steps_is_the_link_of_the_array_that_it_stands_for(steps, hidden):
    rng = np.random.default_rng(steps)
    left, right, var = rng.normal(size=(steps, 4, 3)), rng.normal(size=(steps, 6)), rng.uniform(size=(4, 6))
    size = 5 if hidden else 3
    reach = array(rng.normal(size=(size, 3))) if hidden else None
    stepped = SteppedLink(reach, array(left), array(right), array(var))
    written_out = Link(reach, array(np.einsum("tor,ti,oi->roi", left, right, var)))
    inputs = array(rng.normal(size=6))
    assert close(stepped.seen(inputs), written_out.seen(inputs))
    for found, wanted in zip(stepped.crossed(size), written_out.crossed(size), strict=True):
        assert close(found, wanted)
