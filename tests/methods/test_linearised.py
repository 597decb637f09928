"""The first-order expansion: the function and its Jacobians at the mean, and nothing beyond."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from oracles import array, build_network, close, flatten, propagate, random_cov, random_joint_cov, random_matrices

import prodssm as ps

RNG = np.random.default_rng(11)
MATRICES, VARIANCES = random_matrices(9, (3, 5, 4, 2))
NET = build_network(MATRICES, VARIANCES, ("tanh", "gelu"))
X, CONTROL = np.array([0.4, -0.8]), np.array([0.6])
BELIEF = ps.Gaussian(array(X), array(random_cov(RNG, 2)))
LINEARISED = ps.Linearised()


@cache
def jacobians():
    """Of the plain network at the mean: by state and by flat weights."""
    by_both = jax.jit(jax.jacfwd(lambda x, flat: NET.with_weights(flat)(x), argnums=(0, 1)))
    by_input, by_weights = by_both(array(np.append(X, CONTROL)), NET.weights.mean)
    return np.asarray(by_input, float)[:, :2], np.asarray(by_weights, float)


def test_point_weights_give_the_jacobian_and_no_noise():
    c, predicted = propagate(LINEARISED, NET, BELIEF, weights="point", control=CONTROL)
    by_input, _ = jacobians()
    assert close(c.mean, np.asarray(NET(array(np.append(X, CONTROL)))))
    assert close(c.slope, by_input)
    assert close(c.noise, np.zeros((2, 2)))
    assert close(predicted.cov, by_input @ np.asarray(BELIEF.cov) @ by_input.T)


def test_local_weights_are_noise_through_their_own_jacobian():
    c, predicted = propagate(LINEARISED, NET, BELIEF, control=CONTROL)
    by_input, by_weights = jacobians()
    noise = by_weights * flatten(VARIANCES) @ by_weights.T
    assert close(c.slope, by_input)
    assert close(c.noise, noise)
    assert close(predicted.cov, by_input @ np.asarray(BELIEF.cov) @ by_input.T + noise)


def test_carried_weights_have_a_slope_instead():
    cov, factor = random_joint_cov(3, 2, flatten(VARIANCES), rank=2)
    weights = ps.LowRankWeights(NET.weights.mean, NET.weights.var, array(factor), NET.shapes)
    belief = ps.JointGaussian(ps.Gaussian(array(X), array(cov[:2, :2])), array(cov[:2, 2:]), weights)
    c, predicted = propagate(LINEARISED, NET, belief, control=CONTROL, dt=0.5)
    slope = 0.5 * np.hstack(jacobians())
    slope[:, :2] += np.eye(2)
    assert close(c.slope, slope[:, :2])
    assert close(c.weight_slope, slope[:, 2:])
    assert close(c.noise, np.zeros((2, 2)))
    assert close(predicted.cov, slope @ cov @ slope.T)


def test_the_expansion_is_at_the_mean_of_the_carried_weights_and_not_at_the_prior_one():
    moved = ps.DiagonalWeights(NET.weights.mean + 0.2, NET.weights.var, NET.shapes)
    belief = ps.JointGaussian.independent(BELIEF, moved)
    c, _ = propagate(LINEARISED, NET, belief, control=CONTROL)
    there = NET.with_weights(NET.weights.mean + 0.2)
    assert close(c.mean, np.asarray(there(jnp.concatenate([array(X), array(CONTROL)]))))


def test_moments_with_tiny_variances_approach_it():
    belief = ps.Gaussian(array(X), 1e-4 * BELIEF.cov)
    (linear, linear_predicted), (matched, predicted) = (
        propagate(method, NET, belief, weights="point", control=CONTROL) for method in (LINEARISED, ps.Moments())
    )
    assert np.abs(linear.mean - matched.mean).max() < 1e-3
    assert np.abs(linear.slope - matched.slope).max() < 1e-3
    assert np.abs(linear_predicted.cov / predicted.cov - 1).max() < 1e-2
