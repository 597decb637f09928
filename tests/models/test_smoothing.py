"""The smoother is exact on linear models, and on the joint belief about state and weights equals the dense recursion."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.methods.base import find_method
from prodssm.models.filtering import Recursion


def test_a_linear_model_is_smoothed_as_the_joint_gaussian(problem, method):
    evidence, means, covs = problem.posterior
    found = ps.smooth_states(problem.model, problem.series, method)
    assert close(found.mean, means[: problem.time], scale=10)
    assert close(found.cov, covs[: problem.time], scale=10)
    assert close(found.log_likelihood, evidence, scale=5)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["moments", "linearised"])
def test_the_joint_smoother_equals_a_dense_one(how):
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(2), 0.5 * jnp.eye(2)),
        transition=ps.Network.mlp((3, 4, 2), "tanh", key=jr.key(0), log_var=-2.0),
        emission=ps.Network.mlp((2, 3, 2), "tanh", uncertain=False, key=jr.key(1)),
        process_noise=jnp.array([0.1, 0.2]),
        measurement_noise=jnp.array([0.1, 0.2]),
        weights="global",
        residual=True,
    )
    rng = np.random.default_rng(3)
    series = ps.Series(array(rng.normal(size=(6, 2))), array(rng.normal(size=(6, 1))))
    smoothed = ps.smooth_states(model, series, how)
    recursion = Recursion(model, find_method(how))
    _, (beliefs, channels, _) = eqx.filter_jit(recursion.scan)(series.record, keep_channels=True)

    def at(tree, t):
        return jax.tree.map(lambda leaf: leaf[t], tree)

    last = at(beliefs, 5).dense()
    mean, cov = np.asarray(last.mean, float), np.asarray(last.cov, float)
    size = mean.size
    for t in range(4, -1, -1):
        belief, channel = at(beliefs, t).dense(), at(channels, t)
        f, q = np.eye(size), np.zeros((size, size))
        f[:2, :2], f[:2, 2:], q[:2, :2] = channel.slope, channel.weight_slope, channel.noise
        p = np.asarray(belief.cov, float)
        predicted = f @ p @ f.T + q
        gain = np.linalg.solve(predicted, f @ p).T
        mean = np.asarray(belief.mean, float) + gain @ (mean - np.concatenate([channel.mean, belief.mean[2:]]))
        cov = p + gain @ (cov - predicted) @ gain.T
        assert close(smoothed.mean[t], mean[:2], scale=20)
        assert close(smoothed.cov[t], cov[:2, :2], scale=20)
    assert close(smoothed.weights.mean, mean[2:], scale=20)


@pytest.mark.slow
@pytest.mark.parametrize("run", [ps.filter_states, ps.smooth_states])
def test_a_filter_and_a_smoother_of_high_rank_equal_dense_ones_and_of_low_rank_come_close(run, global_problem):
    (dense, y), (high, _), (low, _) = (global_problem(rank) for rank in (32, 31, 10))
    exact, near, far = run(dense, y), run(high, y), run(low, y)
    assert np.allclose(near.mean, exact.mean, atol=1e-3)
    assert np.isclose(near.log_likelihood, exact.log_likelihood, rtol=1e-4)
    assert np.isclose(far.log_likelihood, exact.log_likelihood, rtol=0.01)
    assert np.linalg.eigvalsh(np.asarray(far.weights.cov())).min() > -1e-6
    assert np.linalg.eigvalsh(np.asarray(far.cov)).min() > 0


def test_a_smoother_that_would_exceed_memory_is_refused(global_problem, monkeypatch):
    model, y = global_problem(rank=32)
    monkeypatch.setattr("os.sysconf", lambda name: 1)
    with pytest.raises(ValueError, match="weights='global' would keep 30 covariances of 32 weights"):
        ps.smooth_states(model, y)
