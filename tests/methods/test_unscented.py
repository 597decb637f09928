"""The unscented transform: exact for affine functions and for the mean and slope of quadratic ones."""

import numpy as np
import pytest
from oracles import (
    array,
    build_network,
    close,
    dense_channel,
    flatten,
    propagate,
    random_cov,
    random_joint_cov,
    random_matrices,
)

import prodssm as ps

RNG = np.random.default_rng(12)
X, COV = np.array([0.4, -0.8]), random_cov(RNG, 2)
BELIEF = ps.Gaussian(array(X), array(COV))


def sigma_points(f, mean, cov, alpha, beta, kappa):
    """The textbook transform in NumPy: mean, slope, noise."""
    n = len(mean)
    lam = alpha**2 * (n + kappa) - n
    chol = np.linalg.cholesky((n + lam) * cov)
    points = np.vstack([mean, mean + chol.T, mean - chol.T])
    weight = np.full(2 * n + 1, 1 / (2 * (n + lam)))
    for_mean, for_cov = weight.copy(), weight.copy()
    for_mean[0] = lam / (n + lam)
    for_cov[0] = for_mean[0] + 1 - alpha**2 + beta
    values = np.stack([f(p) for p in points])
    centre = for_mean @ values
    cross = (for_cov[:, None] * (points - mean)).T @ (values - centre)
    slope = np.linalg.solve(cov, cross).T
    total = (for_cov[:, None] * (values - centre)).T @ (values - centre)
    return centre, slope, total - slope @ cov @ slope.T


@pytest.mark.parametrize(
    ("method", "parameters"),
    [
        (ps.Unscented(), (1.0, 2.0, 0.0)),
        (ps.Unscented(alpha=1.0, beta=0.0, kappa=1.0), (1.0, 0.0, 1.0)),
        (ps.Unscented(alpha=0.5), (0.5, 2.0, 0.0)),
        (ps.Cubature(), (1.0, 0.0, 0.0)),
    ],
    ids=str,
)
def test_point_weights_give_the_textbook_transform(method, parameters):
    matrices, _ = random_matrices(9, (2, 5, 3))
    net = build_network(matrices, None, ("tanh",))

    def f(x):
        return matrices[1][:, :-1] @ np.tanh(matrices[0][:, :-1] @ x + matrices[0][:, -1]) + matrices[1][:, -1]

    c, predicted = propagate(method, net, BELIEF, weights="point")
    mean, slope, noise = sigma_points(f, X, COV, *parameters)
    assert close(c.mean, mean, scale=5)
    assert close(c.slope, slope, scale=5)
    assert close(c.noise, noise, scale=5)
    assert close(predicted.cov, slope @ COV @ slope.T + noise, scale=5)


@pytest.mark.parametrize("method", [ps.Unscented(), ps.Cubature()], ids=str)
def test_mean_and_slope_of_a_quadratic_are_exact(method):
    matrices, _ = random_matrices(10, (2, 4, 3))
    net = build_network(matrices, None, ("square",))
    wanted = dense_channel(matrices, ("square",), X, COV, order=2)
    c, _ = propagate(method, net, BELIEF, weights="point")
    assert close(c.mean, wanted.mean)
    assert close(c.slope, wanted.slope)


def test_a_bilinear_layer_has_the_exact_mean_and_slopes_when_weights_are_carried():
    # y = A x + b is quadratic in (x, A): its mean depends on the cross-covariance of the two.
    matrices, _ = random_matrices(1, (2, 3))
    prior = RNG.uniform(0.1, 0.5, size=9)
    cov, factor = random_joint_cov(4, 2, prior, rank=3)
    net = build_network(matrices, None, ())
    state = ps.Gaussian(array(X), array(cov[:2, :2]))
    wanted = dense_channel(matrices, (), X, cov, order=1)
    structures = [
        ps.LowRankWeights(array(flatten(matrices)), array(prior), array(factor), net.shapes),
        ps.DenseWeights(array(flatten(matrices)), array(cov[2:, 2:]), net.shapes),
    ]
    for weights in structures:
        c, _ = propagate(ps.Unscented(), net, ps.JointGaussian(state, array(cov[:2, 2:]), weights))
        assert close(c.mean, wanted.mean, scale=5)
        assert close(c.slope, wanted.slope[:, :2], scale=20)
        assert close(c.weight_slope, wanted.slope[:, 2:], scale=20)


@pytest.mark.parametrize("options", [{"alpha": 0.0}, {"alpha": np.nan}, {"kappa": -2.0}, {"beta": "big"}], ids=str)
def test_impossible_parameters_are_refused_by_name(options):
    net = build_network(random_matrices(1, (2, 3))[0], None, ())
    with pytest.raises((ValueError, TypeError), match="|".join(options)):
        ps.channel(net, BELIEF, ps.Unscented(**options), "point")
