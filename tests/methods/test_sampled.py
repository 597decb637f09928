"""Sampling and regression: consistent with the moments of many independent samples."""

import jax.random as jr
import numpy as np
import pytest
from oracles import array, build_network, close, flatten, propagate, random_matrices, sample_joint, sample_networks

import prodssm as ps

X, COV = np.array([0.4, -0.8]), np.array([[0.5, 0.15], [0.15, 0.3]])
BELIEF = ps.Gaussian(array(X), array(COV))
MATRICES, VARIANCES = random_matrices(13, (2, 4, 3), var=0.1)
NET = build_network(MATRICES, VARIANCES, ("tanh",))
SAMPLES, REPEATS = 4000, 24


def repeat(weights, **options):
    """Channel and output covariance of many independent runs."""
    methods = (ps.Sampled(SAMPLES, jr.key(k), **options) for k in range(REPEATS))
    runs = [propagate(method, NET, BELIEF, weights=weights) for method in methods]
    return [c for c, _ in runs], [predicted.cov for _, predicted in runs]


def mean_and_error(runs):
    """Mean of independent runs and its standard error."""
    stack = np.stack([np.asarray(run, float) for run in runs])
    return stack.mean(axis=0), stack.std(axis=0, ddof=1) / np.sqrt(len(stack))


@pytest.mark.float64
@pytest.mark.slow
@pytest.mark.parametrize("draw", ["outputs", "weights"])
def test_local_weights_have_the_moments_of_independent_samples(draw):
    channels, covs = repeat("local", draw=draw)
    found = [mean_and_error(runs) for runs in ([c.mean for c in channels], covs, [c.slope for c in channels])]
    ((_, wanted),) = sample_networks(MATRICES, VARIANCES, [("tanh",)], X, COV, seed=1, samples=1_000_000)
    cross = wanted.cov[:, 3:]
    slopes = cross @ np.linalg.inv(COV)
    slope_error = np.abs(wanted.cov_error[:, 3:]) @ np.abs(np.linalg.inv(COV))
    pairs = [(wanted.mean, wanted.mean_error), (wanted.cov[:, :3], wanted.cov_error[:, :3]), (slopes, slope_error)]
    for (value, error), (other, other_error) in zip(found, pairs, strict=True):
        # Covariance and slope of finite samples are biased by one part in the number of samples.
        slack = 3 * np.abs(other) / SAMPLES
        assert (np.abs(value - other) < 5 * np.hypot(error, other_error) + slack).all()


@pytest.mark.float64
@pytest.mark.slow
def test_carried_weights_have_the_slope_of_independent_samples():
    channels, covs = repeat("global")
    prior = flatten(VARIANCES)
    slope, error = mean_and_error([np.hstack([c.slope, c.weight_slope]) for c in channels])
    carried = np.zeros((2 + len(prior),) * 2)
    carried[:2, :2], carried[2:, 2:] = COV, np.diag(prior)
    mean = np.concatenate([X, flatten(MATRICES)])
    wanted = sample_joint(mean, carried, NET.shapes, ("tanh",), 2, seed=2, samples=1_000_000)
    inverse = np.linalg.inv(carried)
    other, other_error = wanted.cov[:, 3:] @ inverse, wanted.cov_error[:, 3:] @ np.abs(inverse)
    assert (np.abs(slope - other) < 5 * np.hypot(error, other_error) + 0.02 * np.abs(other)).all()
    for c, cov in zip(channels[:3], covs[:3], strict=True):
        total = np.hstack([c.slope, c.weight_slope])
        assert close(cov, total @ carried @ total.T + np.asarray(c.noise), scale=10)


def test_a_linear_network_is_exact_whatever_the_samples():
    linear = ps.Network.from_arrays([[[2.0, 1.0]]], [[0.5]])
    belief = ps.Gaussian([1.0, 2.0], [[1.0, 0.5], [0.5, 2.0]])
    c, predicted = propagate(ps.Sampled(50, jr.key(0)), linear, belief)
    assert close(c.mean, [4.5], scale=10)
    assert close(predicted.cov, [[8.0]], scale=30)


def test_the_same_key_gives_the_same_channel_and_another_key_another():
    a, b, other = (propagate(ps.Sampled(SAMPLES, jr.key(k)), NET, BELIEF)[0] for k in (0, 0, 1))
    assert (a.mean == b.mean).all()
    assert not (a.mean == other.mean).any()


def test_a_new_seed_keeps_the_other_parameters():
    method = ps.Sampled(77, draw="weights").seeded(jr.key(3))
    assert (method.samples, method.draw) == (77, "weights")
    assert (jr.key_data(method.key) == jr.key_data(jr.key(3))).all()
    assert method.random


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "key"),
        ({"key": 3}, "key"),
        ({"key": jr.key(0), "samples": 0}, "samples"),
        ({"key": jr.key(0), "samples": 2}, "samples"),
        ({"key": jr.key(0), "samples": 10.5}, "samples"),
        ({"key": jr.key(0), "draw": "neurons"}, "draw"),
    ],
    ids=str,
)
def test_impossible_parameters_are_refused_by_name(options, named):
    with pytest.raises((ValueError, TypeError), match=named):
        ps.channel(NET, BELIEF, ps.Sampled(**options))


def test_a_time_step_needs_a_key():
    with pytest.raises((ValueError, TypeError), match="key"):
        ps.Sampled().at(0, 0)
