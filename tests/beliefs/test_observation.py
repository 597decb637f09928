"""Bayes' rule in the smaller of two spaces is the same rule."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close, random_cov, smallest_eigenvalue
from scipy import stats

import prodssm as ps
from prodssm.beliefs import gaussian
from prodssm.beliefs.observation import observe_in_output_space, observe_in_state_space

RNG = np.random.default_rng(3)
X, Y = 3, 7
MEAN, COV = RNG.normal(size=X), random_cov(RNG, X)
SLOPE, EXPECTED, VARIANCE = RNG.normal(size=(Y, X)), RNG.normal(size=Y), RNG.uniform(0.1, 2.0, size=Y)
OBSERVATION = EXPECTED + SLOPE @ RNG.normal(size=X) + RNG.normal(size=Y)
PARTS = ("mean", "cov", "innovation", "log_evidence")


def both(cov, y, slope=SLOPE, variance=VARIANCE):
    """The observation in output space and in state space."""
    front = [array(part) for part in (MEAN, cov, EXPECTED, slope)]
    dense = observe_in_output_space(*front, array(np.diag(variance)), array(y))
    return dense, observe_in_state_space(*front, array(variance), array(y))


def with_missing(y, *missing):
    y = np.array(y)
    y[list(missing)] = np.nan
    return y


@pytest.mark.parametrize("missing", [(), (0,), (1, 4, 5), tuple(range(Y))], ids=str)
@pytest.mark.parametrize(
    "cov",
    [COV, np.diag([1.0, 0.0, 2.0]), np.zeros((X, X)), np.outer(MEAN, MEAN)],
    ids=["full", "partial", "certain", "rank one"],
)
def test_both_spaces_agree(cov, missing):
    dense, small = both(cov, with_missing(OBSERVATION, *missing))
    for part in PARTS:
        assert close(getattr(small, part), np.asarray(getattr(dense, part)), scale=10)
    products = [np.asarray(found.factor @ found.factor.T) for found in (dense, small)]
    assert close(products[1], products[0], scale=10)


@pytest.mark.float64
def test_the_update_is_that_of_the_textbook():
    _, small = both(COV, with_missing(OBSERVATION, 2))
    seen = np.arange(Y) != 2
    h, innovation_cov = SLOPE[seen], SLOPE[seen] @ COV @ SLOPE[seen].T + np.diag(VARIANCE[seen])
    inverse, nu = np.linalg.inv(innovation_cov), (OBSERVATION - EXPECTED)[seen]
    assert close(small.mean, MEAN + COV @ h.T @ inverse @ nu)
    assert close(small.cov, COV - COV @ h.T @ inverse @ h @ COV)
    assert close(small.innovation, h.T @ inverse @ nu)
    assert close(small.factor @ small.factor.T, h.T @ inverse @ h)
    assert close(small.log_evidence, stats.multivariate_normal(np.zeros(Y - 1), innovation_cov).logpdf(nu))


def test_small_noise_keeps_its_digits_and_the_posterior_is_positive_semi_definite():
    # The textbook's quadratic form would lose all digits of single precision here.
    variance = np.full(Y, 1e-6)
    y = EXPECTED + SLOPE @ RNG.normal(size=X) + 1e-3 * RNG.normal(size=Y)
    _, small = both(COV, y, variance=variance)
    nu, innovation_cov = y - EXPECTED, SLOPE @ COV @ SLOPE.T + np.diag(variance)
    wanted = stats.multivariate_normal(np.zeros(Y), innovation_cov).logpdf(nu)
    rounding = 1e-6 if small.cov.dtype == jnp.float64 else 0.5  # the data themselves are rounded to 1e-7
    assert abs(float(small.log_evidence) - wanted) < rounding
    assert smallest_eigenvalue(small.cov) >= 0
    unseen = np.concatenate([SLOPE[:, :2], np.zeros((Y, 1))], axis=1)
    _, small = both(COV, y, slope=unseen, variance=variance)
    assert smallest_eigenvalue(small.cov) >= 0
    assert np.isfinite(small.log_evidence)


@pytest.fixture
def spaces(monkeypatch):
    """The spaces in which observations were made."""
    used = []
    for name in ("observe_in_state_space", "observe_in_output_space"):
        original = getattr(gaussian, name)
        monkeypatch.setattr(gaussian, name, lambda *args, name=name, original=original: used.append(name) or original(*args))
    return used


def model_of(outputs, states=2, noise=0.1, emission=None):
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(states), jnp.eye(states)),
        transition=ps.Network.mlp((states, 3, states), key=jr.key(0)),
        emission=emission or ps.Network.mlp((states, outputs), uncertain=False, key=jr.key(1)),
        process_noise=np.full(states, 0.1),
        measurement_noise=np.full(outputs, noise),
    )


@pytest.mark.parametrize(
    ("model", "space"),
    [
        (lambda: model_of(5), "state"),
        (lambda: model_of(2), "output"),
        (lambda: model_of(5, noise=0.0), "output"),
        (lambda: model_of(5, emission=ps.Network.mlp((2, 4, 5), uncertain=False, key=jr.key(2))), "output"),
    ],
    ids=["more outputs than states", "as many", "without noise", "nonlinear"],
)
def test_the_space_of_the_state_is_used_where_it_is_smaller_and_noise_is_independent_and_positive(model, space, spaces):
    built = model()
    channel, _ = built.emit(ps.Moments(), built.initial)
    built.likelihood.condition(built.initial, channel, array(np.ones(built.y_size)))
    assert spaces == [f"observe_in_{space}_space"]


@pytest.mark.float64
@pytest.mark.parametrize("method", [ps.Moments(), ps.Linearised(), ps.Unscented()], ids=lambda m: type(m).__name__)
def test_a_joint_belief_is_updated_alike_in_both_spaces(method):
    network = ps.Network.mlp((2, 3, 2), key=jr.key(0), log_var=-2.0)
    belief = ps.JointGaussian.independent(ps.Gaussian([0.3, -0.4], [[0.5, 0.1], [0.1, 0.4]]), network.weights)
    belief = belief.predict(ps.channel(network, belief, method, weights="global"))
    slope, variance, y = array(SLOPE[:, :2]), array(VARIANCE), array(with_missing(OBSERVATION, 3))
    channel = ps.Channel.of_affine(slope @ belief.mean, slope)
    found, evidence = belief.condition(channel, y, variance)
    wanted, wanted_evidence = belief.condition(channel.plus(variance), y)
    assert close(evidence, np.asarray(wanted_evidence))
    assert close(found.dense().mean, np.asarray(wanted.dense().mean))
    assert close(found.dense().cov, np.asarray(wanted.dense().cov))


@pytest.mark.parametrize("cov", [COV, np.zeros((X, X)), np.outer(MEAN, MEAN)], ids=["full", "certain", "rank one"])
def test_gradients_are_finite(cov):
    def total(mean, cov, slope, variance):
        seen = observe_in_state_space(mean, cov, array(EXPECTED), slope, variance, array(with_missing(OBSERVATION, 1)))
        return sum(leaf.sum() for leaf in jax.tree.leaves(seen))

    grads = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(array(MEAN), array(cov), array(SLOPE), array(VARIANCE))
    assert all(np.isfinite(leaf).all() for leaf in grads)
