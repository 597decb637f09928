"""Deterministic variational inference: each closed form against quadrature, sampling or numerical optimisation, and a fit."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close
from scipy import integrate, optimize, stats

import prodssm as ps
from prodssm.baselines.dvi import (
    BoundTask,
    DVIRegressor,
    Learned,
    best_prior_variance,
    expected_log_likelihood,
    network_prior_term,
    output_belief,
    predictive_log_prob,
    prior_term,
)
from prodssm.data.rows import Rows

RNG = np.random.default_rng(0)
OUTPUTS = [
    ps.Gaussian(array([0.4, -0.7]), array([[0.3, 0.1], [0.1, 0.2]])),
    ps.Gaussian(array([-1.0, 0.5]), array([[0.5, -0.35], [-0.35, 0.6]])),
    ps.Gaussian(array([0.0, -3.0]), array([[0.01, 0.0], [0.0, 0.02]])),
]


@pytest.fixture(scope="module")
def network():
    return ps.Network.mlp((3, 6, 2), key=jr.key(2), log_var=-1.5)


def over_outputs(function, output, nodes=60):
    """E[function(m, l)] by quadrature over both outputs."""
    unit, weights = np.polynomial.hermite_e.hermegauss(nodes)
    root = np.linalg.cholesky(np.asarray(output.cov, float))
    first, second = np.meshgrid(unit, unit, indexing="ij")
    m = float(output.mean[0]) + root[0, 0] * first
    l = float(output.mean[1]) + root[1, 0] * first + root[1, 1] * second
    return (np.outer(weights, weights) / (2 * math.pi) * function(m, l)).sum()


def task_of(x, y, **settings):
    return DVIRegressor(**{"iterations": 100, "warm_up": 0.2, "batch": 8, "alpha": 3.0, "beta": 2.0} | settings)._task(
        Rows.padded(x, y)
    )


def test_moments_of_one_hidden_layer_are_exact(network):
    x = RNG.normal(size=3)
    draw = jax.jit(jax.vmap(lambda key: network.sample(key)(array(x))))
    drawn = np.asarray(draw(jr.split(jr.key(0), 100_000)), float)
    found, moments = output_belief(network, array(x)), SampleMoments.of(drawn, drawn)
    assert_mean_matches(found.mean, moments)
    assert_cov_matches(found.cov, moments)


@pytest.mark.parametrize("inputs", [1, 3])
def test_known_inputs_are_a_certain_state(inputs):
    network = ps.Network.mlp((inputs, 6, 2), key=jr.key(3), log_var=-2.0)
    x = array(RNG.normal(size=inputs))
    found, wanted = output_belief(network, x), ps.Moments(order=6).propagate(network, ps.Gaussian.certain(x))[1]
    assert close(found.mean, wanted.mean)
    assert close(found.cov, wanted.cov)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("y", [0.3, -2.0])
def test_the_expected_log_likelihood_is_the_integral(output, y):
    wanted = over_outputs(lambda m, l: stats.norm.logpdf(y, m, np.exp(l / 2)), output)
    assert close(expected_log_likelihood(output, array(y)), wanted, scale=10)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("y", [0.3, -2.0])
def test_the_predictive_density_is_the_integral(output, y):
    wanted = math.log(over_outputs(lambda m, l: stats.norm.pdf(y, m, np.exp(l / 2)), output))
    # The quadrature of the oracle is also over the mean, and less exact in the tails.
    assert float(predictive_log_prob(output, array(y))) == pytest.approx(wanted, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("output", OUTPUTS)
def test_the_predictive_density_integrates_to_one(output):
    y = np.linspace(-40, 40, 40_001)
    density = np.exp(jax.vmap(lambda y: predictive_log_prob(output, y))(array(y)))
    assert integrate.trapezoid(density, y) == pytest.approx(1.0, abs=1e-5)


def test_certain_outputs_leave_a_gaussian():
    output, y = ps.Gaussian.certain([0.5, -1.0]), 0.1
    wanted = stats.norm.logpdf(y, 0.5, math.exp(-0.5))
    assert close(predictive_log_prob(output, array(y)), wanted)
    assert close(expected_log_likelihood(output, array(y)), wanted)


def test_the_density_is_above_the_expected_log_likelihood():
    for output in OUTPUTS:
        assert predictive_log_prob(output, array(0.7)) > expected_log_likelihood(output, array(0.7))


def prior_by_scipy(mean, log_var, s, alpha, beta):
    """-KL + log p(s), with the divergence of each weight as an expectation under the posterior."""
    unit, weights = np.polynomial.hermite_e.hermegauss(20)
    drawn = mean[..., None] + np.exp(log_var / 2)[..., None] * unit
    ratio = stats.norm.logpdf(drawn, mean[..., None], np.exp(log_var / 2)[..., None]) - stats.norm.logpdf(drawn, 0, s**0.5)
    return stats.invgamma.logpdf(s, alpha, scale=beta) - (ratio @ weights).sum() / math.sqrt(2 * math.pi)


@pytest.mark.parametrize(("alpha", "beta"), [(4.4798, 10.0), (1.5, 0.3)])
@pytest.mark.parametrize("shape", [(5,), (4, 3)])
def test_the_prior_variance_is_the_numerical_optimum(alpha, beta, shape):
    mean, log_var = RNG.normal(size=shape), RNG.normal(size=shape) - 2
    found = optimize.minimize_scalar(
        lambda log_s: -prior_by_scipy(mean, log_var, math.exp(log_s), alpha, beta), bounds=(-6, 6), options={"xatol": 1e-10}
    )
    squares = array((mean**2 + np.exp(log_var)).sum())
    assert float(best_prior_variance(squares, mean.size, alpha, beta)) == pytest.approx(math.exp(found.x), rel=1e-5)
    assert float(prior_term(array(mean), array(log_var), alpha, beta)) == pytest.approx(-found.fun, rel=1e-5)


def test_the_gradient_of_the_prior_term_is_that_at_a_fixed_prior_variance():
    mean, log_var = array(RNG.normal(size=7)), array(RNG.normal(size=7))
    s = best_prior_variance((mean**2 + jnp.exp(log_var)).sum(), 7, 4.0, 10.0)
    found = jax.grad(prior_term, argnums=(0, 1))(mean, log_var, 4.0, 10.0)
    assert close(found[0], -mean / s)
    assert close(found[1], 0.5 - jnp.exp(log_var) / (2 * s))


def test_every_matrix_and_vector_has_its_own_prior(network):
    parts = [(layer.weight, layer.weight_log_var) for layer in network.linears]
    parts += [(layer.bias, layer.bias_log_var) for layer in network.linears]
    assert close(network_prior_term(network, 3.0, 2.0), sum(prior_term(*part, 3.0, 2.0) for part in parts))


def test_the_objective_is_the_bound_per_row_with_a_warm_up(network):
    x, y = np.repeat(RNG.normal(size=(1, 3)), 5, axis=0), np.full((5, 1), 0.4)  # five equal rows, padded to 64
    task = task_of(x, y)
    fit = expected_log_likelihood(output_belief(network, array(x[0])), array(0.4))
    prior = network_prior_term(network, 3.0, 2.0) / 5
    for share, wanted in ((0.0, 0.0), (0.5, 0.5), (3.0, 1.0)):
        assert close(task.objective(Learned(network, array(share)), jr.key(0)), fit + wanted * prior)


@pytest.mark.usefixtures("standard_promotion")
def test_the_optimiser_raises_the_weight_of_the_prior_over_the_warm_up(network):
    task = task_of(RNG.normal(size=(4, 3)), RNG.normal(size=(4, 1)))
    learned, optimiser = Learned(network, array(0.0)), task.optimiser()
    state = optimiser.init(learned)
    for _ in range(20):
        updates, state = optimiser.update(jax.tree.map(jnp.zeros_like, learned), state, learned)
        learned = eqx.apply_updates(learned, updates)
    assert close(learned.prior_share, 1.0)
    assert close(learned.network.linears[0].weight, network.linears[0].weight)


@pytest.mark.parametrize(("rows", "batch"), [(2_000, 32), (2_001, 256)])
def test_large_sets_have_larger_minibatches(rows, batch):
    task = task_of(np.zeros((rows, 1)), np.zeros((rows, 1)), batch=None)
    assert isinstance(task, BoundTask)
    assert task.recipe.batch_size == batch


@pytest.mark.usefixtures("standard_promotion")
def test_noise_that_depends_on_the_input_is_learned_in_any_units():
    draw = np.random.default_rng(1)
    x = draw.uniform(-1, 1, size=(600, 2))
    mean, std = 2 * np.abs(x[:, 0]) - x[:, 1], np.exp(x[:, 0] - 1.5)
    y = mean + std * draw.normal(size=600)
    settings = {"hidden": 20, "iterations": 2000, "progress": False}
    model = DVIRegressor(**settings).fit(x[:400], y[:400])
    truth = stats.norm.logpdf(y[400:], mean[400:], std[400:])
    lost = truth - model.log_prob(x[400:], y[400:])
    plain = truth - stats.norm.logpdf(y[400:], mean[400:], std.mean())
    assert lost.mean() < 0.1 < plain.mean()  # better than the true function with constant noise
    assert ((model.predict(x[400:]) - mean[400:]) ** 2).mean() < 0.1**2
    assert close(model.predict(x[400:403]), model.predict(x[400:])[:3], scale=10)
    other = DVIRegressor(**settings).fit(10 * x[:400] + 3, 100 * y[:400] - 5)
    assert np.allclose(
        other.log_prob(10 * x[400:] + 3, 100 * y[400:] - 5), model.log_prob(x[400:], y[400:]) - math.log(100), atol=0.05
    )
