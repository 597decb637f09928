"""Sampling and regression: consistent with the moments of many independent samples."""

import jax.random as jr
import numpy as np
import pytest
from oracles import array, build_network, close, flatten, random_matrices, sample_joint, sample_networks

import prodssm as ps

X, COV = np.array([0.4, -0.8]), np.array([[0.5, 0.15], [0.15, 0.3]])
BELIEF = ps.Gaussian(array(X), array(COV))
MATRICES, VARIANCES = random_matrices(13, (2, 4, 3), var=0.1)
NET = build_network(MATRICES, VARIANCES, ("tanh",))
SAMPLES, REPEATS = 4000, 24


def repeat(weights, **options):
    """Mean, covariance and slope of many independent runs, and how much one run varies."""
    runs = [ps.channel(NET, BELIEF, "sampled", weights, key=jr.key(k), samples=SAMPLES, **options) for k in range(REPEATS)]
    stacks = [np.stack([np.asarray(getattr(c, field), float) for c in runs]) for field in ("mean", "cov", "slope")]
    return [(s.mean(axis=0), s.std(axis=0, ddof=1) / np.sqrt(REPEATS)) for s in stacks], runs


@pytest.mark.float64
@pytest.mark.slow
@pytest.mark.parametrize("draw", ["outputs", "weights"])
def test_redrawn_weights_have_the_moments_of_independent_samples(draw):
    found, _ = repeat("local", draw=draw)
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
    runs = repeat("global")[1]
    prior = flatten(VARIANCES)
    slope = np.mean([np.hstack([c.slope, c.weight_slope]) for c in runs], axis=0)
    error = np.std([np.hstack([c.slope, c.weight_slope]) for c in runs], axis=0, ddof=1) / np.sqrt(REPEATS)
    carried = np.zeros((2 + len(prior),) * 2)
    carried[:2, :2], carried[2:, 2:] = COV, np.diag(prior)
    mean = np.concatenate([X, flatten(MATRICES)])
    wanted = sample_joint(mean, carried, NET.shapes, ("tanh",), 2, seed=2, samples=1_000_000)
    inverse = np.linalg.inv(carried)
    other, other_error = wanted.cov[:, 3:] @ inverse, wanted.cov_error[:, 3:] @ np.abs(inverse)
    assert (np.abs(slope - other) < 5 * np.hypot(error, other_error) + 0.02 * np.abs(other)).all()
    for c in runs[:3]:
        total = np.hstack([c.slope, c.weight_slope])
        assert close(c.cov, total @ carried @ total.T + np.asarray(c.noise), scale=10)


def test_the_same_key_gives_the_same_channel_and_another_key_another():
    a, b = (ps.channel(NET, BELIEF, "sampled", key=jr.key(0), samples=SAMPLES) for _ in range(2))
    other = ps.channel(NET, BELIEF, "sampled", key=jr.key(1), samples=SAMPLES)
    assert (a.mean == b.mean).all()
    assert not (a.mean == other.mean).any()


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
def test_impossible_options_are_refused_by_name(options, named):
    with pytest.raises((ValueError, TypeError), match=named):
        ps.channel(NET, BELIEF, "sampled", **options)
