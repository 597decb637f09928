"""The filter is exact on linear models and on linear regression, and its recursion knows no member of the families it uses."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.data.series import stack_records
from prodssm.methods.base import find_method
from prodssm.models import filtering
from prodssm.models.filtering import Recursion, last_filtered

TIME = 12


@pytest.mark.default_xla
def test_a_linear_model_is_filtered_as_the_joint_gaussian(problem, method):
    evidence, means, covs = problem.posterior
    found = ps.filter_states(problem.model, problem.series, method)
    assert close(found.log_likelihood, evidence, scale=5)
    assert close(found.mean[-1], means[problem.time - 1], scale=5)
    assert close(found.cov[-1], covs[problem.time - 1], scale=5)
    assert close(found.std**2, jnp.diagonal(found.cov, axis1=1, axis2=2))


def test_the_last_filtered_belief_is_that_of_the_filter(problem):
    recursion = Recursion(problem.model, find_method("moments"))
    found, filtered = last_filtered(recursion, problem.series.record), ps.filter_states(problem.model, problem.series)
    assert close(found.mean, filtered.mean[-1])
    assert close(found.cov, filtered.cov[-1])


def bayesian_regression(mean, var, noise, rows, targets):
    """Log evidence of each target, and mean and covariance of the weights of one output, which are independent before."""
    cov, evidence = np.diag(var), []
    for row, target in zip(rows, targets, strict=True):
        spread, innovation = row @ cov @ row + noise, target - row @ mean
        evidence.append(-0.5 * (np.log(2 * np.pi * spread) + innovation**2 / spread))
        gain = cov @ row / spread
        mean, cov = mean + gain * innovation, cov - np.outer(gain, row @ cov)
    precision = np.diag(1 / var) + rows.T @ rows / noise  # the batch form of what was updated step by step
    assert np.allclose(cov, np.linalg.inv(precision))
    return np.array(evidence), mean, cov


@pytest.mark.parametrize(
    "how",
    ["moments", "linearised", "unscented", ps.Sampled(key=jr.key(0))],
    ids=["moments", "linearised", "unscented", "sampled"],
)
def test_one_layer_of_global_weights_and_observed_states_is_bayesian_linear_regression(how):
    rng = np.random.default_rng(5)
    weights, variances = 0.5 * rng.normal(size=(2, 4)), rng.uniform(0.02, 0.1, size=(2, 4))
    weight, weight_var = ([array(part[:, :3])] for part in (weights, variances))
    bias, bias_var = ([array(part[:, 3])] for part in (weights, variances))
    noise = np.array([0.09, 0.05])
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.zeros(2)), array(np.eye(2))),
        transition=ps.Network.from_arrays(weight, bias, "relu", weight_var, bias_var),
        process_noise=array(noise),
        measurement_noise=array(np.zeros(2)),  # states are observed without noise
        weights="global",
    )
    y, u = rng.normal(size=(TIME, 2)), rng.normal(size=(TIME, 1))
    found = ps.filter_states(model, ps.Series(array(y), array(u)), how)
    rows = np.hstack([y, u, np.ones((TIME, 1))])[:-1]
    wanted = [bayesian_regression(weights[o], variances[o], noise[o], rows, y[1:, o]) for o in range(2)]
    # 1e-8 in double precision. In single precision rounding accumulates in roots of a covariance that keeps losing variance.
    scale = 0.5 if found.mean.dtype == np.float64 else 20.0
    assert close(found.log_evidence[1:], sum(evidence for evidence, _, _ in wanted), scale=scale)
    assert close(found.weights.mean, np.concatenate([mean for _, mean, _ in wanted]), scale=scale)
    cov = found.weights.cov()
    assert close(cov[:4, :4], wanted[0][2], scale=scale)
    assert close(cov[4:, 4:], wanted[1][2], scale=scale)
    assert close(cov[:4, 4:], np.zeros((4, 4)), scale=scale)
    assert close(found.mean, y, scale=scale)
    assert close(found.cov, np.zeros((TIME, 2, 2)), scale=scale)


def test_padding_a_short_series_leaves_no_trace(linear_problem):
    problem = linear_problem(1, missing=True)
    model, y, u = problem.model, problem.y, problem.u
    long, short = ps.Series(array(y), array(u[: problem.time])), ps.Series(array(y[:7]), array(u[:7]))
    recursion = Recursion(model, ps.Moments())
    evidence = jax.vmap(lambda record: recursion.scan(record)[1][2].sum())(stack_records([long, short]))
    assert close(evidence[0], ps.filter_states(model, long).log_likelihood)
    assert close(evidence[1], ps.filter_states(model, short).log_likelihood)


@pytest.mark.slow
def test_gradients_pass_through_a_compression_and_a_batch_compresses_too(global_problem):
    model, y = global_problem(rank=4)

    def evidence(log_noise, y):
        return ps.filter_states(eqx.tree_at(lambda m: m.log_process_noise, model, log_noise), y).log_likelihood

    batch = array(np.stack([y, y[::-1]]))
    values, grads = jax.vmap(jax.value_and_grad(evidence), (None, 0))(model.log_process_noise, batch)
    assert np.isclose(values[0], evidence(model.log_process_noise, batch[0]), rtol=1e-3)
    assert jnp.isfinite(grads).all()


def test_bad_calls_are_refused_by_name(linear_problem):
    problem = linear_problem(4)
    model, y, u = problem.model, array(problem.y), array(problem.u[: problem.time])
    with pytest.raises(ValueError, match=r"method must be one of .*moments, .*; got 'magic'"):
        ps.filter_states(model, ps.Series(y, u), "magic")
    with pytest.raises(ValueError, match=r"series\.y must have 2 outputs, got 1"):
        ps.filter_states(model, ps.Series(y[:, :1], u))
    with pytest.raises(ValueError, match=r"series\.u must have 1 columns for this model's transition, got 0"):
        ps.filter_states(model, ps.Series(y))
    with pytest.raises(ValueError, match="time must have steps of"):
        ps.filter_states(model, ps.Series(y, u, array(np.cumsum(np.arange(1.0, problem.time + 1)))))


@pytest.mark.parametrize("part", [Recursion, filtering._filter, filtering.last_filtered], ids=lambda part: part.__name__)
def test_the_recursion_knows_no_member_of_belief_method_or_likelihood(part):
    source = inspect.getsource(part)
    assert "isinstance" not in source
    assert "global" not in source
