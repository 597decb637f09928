"""Posterior moments of one number by quadrature, where prior and likelihood agree and where they do not."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from likelihood_oracles import NegativeBinomial, tilted_by_grid
from oracles import array, close
from scipy import integrate, special, stats

import prodssm as ps
from prodssm.models.likelihoods.bivariate import threshold_cov


def poisson(y):
    return lambda g: y * g - np.exp(g) - special.gammaln(y + 1)


def student(y, df, scale):
    return lambda g: stats.t.logpdf((y - g) / scale, df) - np.log(scale)


def tilt(likelihood, mean, var, y):
    """Moments of the only output."""
    found = jax.jit(lambda one, *numbers: jax.tree.map(lambda leaf: leaf[0], one).tilt(*numbers))
    return [float(part) for part in found(likelihood, *(array(part) for part in (mean, var, y)))]


# Name: likelihood, observation, prior mean and variance, log density in NumPy.
CASES = {
    "the worked example": (ps.Poisson(), 10.0, 1.0, 1.0, poisson(10.0)),
    "many counts": (ps.Poisson(), 1e5, 1.0, 1.0, poisson(1e5)),
    "many counts, sure prior": (ps.Poisson(), 1e5, 1.0, 1e-2, poisson(1e5)),
    "many counts, vague prior": (ps.Poisson(), 1e5, 1.0, 1e6, poisson(1e5)),
    "no count, vague prior": (ps.Poisson(), 0.0, 1.0, 1e4, poisson(0.0)),
    "no count, 40 deviations away": (ps.Poisson(), 0.0, 20.0, 0.25, poisson(0.0)),
    "tiny prior variance": (ps.Poisson(), 3.0, 1.0, 1e-12, poisson(3.0)),
    "an outlier": (ps.StudentT(4, [0.3]), 20.0, 0.0, 1.0, student(20.0, 4, 0.3)),
    "two modes": (ps.StudentT(4, [0.01]), 6.0, 0.0, 1.0, student(6.0, 4, 0.01)),
    "a narrow likelihood": (ps.StudentT(4, [1e-3]), 3.0, 0.0, 1.0, student(3.0, 4, 1e-3)),
    "no variance at all": (ps.StudentT(1, [0.1]), 5.0, 0.0, 1.0, student(5.0, 1, 0.1)),
    "nearly Gaussian, 20 deviations": (ps.StudentT(1e6, [0.3]), 20.0, 0.0, 1.0, student(20.0, 1e6, 0.3)),
    "an event that was not expected": (ps.Bernoulli(), 1.0, -8.0, 2.0, special.log_ndtr),
    "written by a user": (NegativeBinomial(), 40.0, 0.0, 1.0, lambda g: stats.nbinom.logpmf(40, 3, 3 / (3 + np.exp(g)))),
}


@pytest.mark.parametrize("name", CASES)
def test_moments_and_evidence_are_those_of_a_fine_grid(name):
    likelihood, y, mean, var, log_density = CASES[name]
    found, wanted = tilt(likelihood, mean, var, y), tilted_by_grid(log_density, mean, var)
    slack = 1e-4 if jnp.result_type(float) == jnp.float64 else 5e-3
    assert abs(found[0] - wanted[0]) < slack * (1 + 1e-2 * abs(wanted[0]))
    assert abs(found[1] - wanted[1]) < slack * np.sqrt(wanted[2])
    assert abs(found[2] / wanted[2] - 1) < 5 * slack


def test_the_worked_example_has_the_known_answer():
    found = tilt(ps.Poisson(), 1.0, 1.0, 10.0)
    assert np.allclose(found[1:], [2.13, 0.106], atol=6e-3)


@pytest.mark.float64
def test_a_heavy_tail_agrees_with_adaptive_quadrature():
    density = student(5.0, 1, 0.1)

    def moment(power):
        return integrate.quad(lambda g: g**power * np.exp(density(g)) * stats.norm.pdf(g), -12, 12, points=[0, 5], limit=500)[0]

    total, first, second = (moment(power) for power in range(3))
    found = tilt(ps.StudentT(1, [0.1]), 0.0, 1.0, 5.0)
    assert np.allclose(found, [np.log(total), first / total, second / total - (first / total) ** 2], rtol=5e-4)


@pytest.mark.parametrize("y", [0.0, 1.0])
@pytest.mark.parametrize(("mean", "var"), [(0.3, 0.5), (-3.0, 4.0), (2.0, 100.0)])
def test_the_closed_form_of_an_event_is_the_quadrature(y, mean, var):
    found = ps.Bernoulli().tilt(*map(array, (mean, var, y)))
    wanted = ps.ScalarLikelihood.tilt(ps.Bernoulli(), *map(array, (mean, var, y)))
    for one, other in zip(found, wanted, strict=True):
        assert close(one, other, scale=10 * max(1.0, var))


@pytest.mark.parametrize("likelihood", [ps.Poisson(), ps.Bernoulli(), ps.StudentT(4, [0.3]), NegativeBinomial()], ids=repr)
def test_answers_and_gradients_are_finite_at_any_prior(likelihood):
    one, y = jax.tree.map(lambda leaf: leaf[0], likelihood), array(1.0)
    means, variances = (array(part.ravel()) for part in np.meshgrid([-200.0, 0.5, 200.0], [0.0, 1e-30, 1e-12, 1.0, 1e6]))
    both = jax.vmap(lambda *at: (one.tilt(*at, y), jax.jacobian(lambda *at: one.tilt(*at, y), (0, 1))(*at)))
    found, grads = jax.jit(both)(means, variances)
    assert (found.var >= 0).all()
    for value in (found.mean, found.var, *jax.tree.leaves(grads[1:])):
        assert jnp.isfinite(value).all()
    # The probability of a count of one at the rate e^200 is no number.
    possible = np.asarray((likelihood.support != "counts") | (means < 100) | (variances >= 1))
    for value in (found.log_evidence, *grads[0]):
        assert np.isfinite(np.asarray(value)[possible]).all()


def test_at_zero_variance_the_evidence_is_the_density():
    found = tilt(ps.Poisson(), 0.7, 0.0, 4.0)
    assert np.allclose(found, [stats.poisson.logpmf(4, np.exp(0.7)), 0.7, 0.0], rtol=1e-5)


def test_gradients_of_the_evidence_are_the_derivatives_of_an_integral():
    mean, var, y = 1.0, 0.8, 7.0
    found = tilt(ps.Poisson(), mean, var, y)
    wanted = (found[1] - mean) / var, 0.5 * ((found[2] + (found[1] - mean) ** 2) / var**2 - 1 / var)
    grads = jax.grad(lambda m, v: ps.Poisson().tilt(m, v, array(y)).log_evidence, argnums=(0, 1))(array(mean), array(var))
    assert np.allclose(np.asarray(grads, float), wanted, rtol=1e-3)


@pytest.mark.parametrize("correlation", [-0.99, -0.5, 0.0, 0.3, 0.9, 0.99, 0.999])
def test_the_covariance_of_two_thresholds_is_that_of_the_bivariate_normal(correlation):
    points = np.array([[0.0, 0.0], [1.0, -0.5], [-2.0, -2.1], [0.3, 0.31]])
    law = stats.multivariate_normal([0, 0], [[1, correlation], [correlation, 1]])
    wanted = law.cdf(points) - special.ndtr(points).prod(axis=1)
    found = threshold_cov(array(points[:, 0]), array(points[:, 1]), array(np.full(4, correlation)))
    assert np.allclose(found, wanted, atol=2e-5)
    slope = jax.vmap(jax.grad(threshold_cov, argnums=(0, 1, 2)))(*(array(p) for p in (*points.T, np.full(4, correlation))))
    assert all(jnp.isfinite(part).all() for part in slope)


def test_moments_do_not_depend_on_jit_or_vmap():
    means = jr.normal(jr.key(0), (3,))
    each = [ps.Poisson().tilt(m, array(0.5), array(2.0)) for m in means]
    together = jax.jit(jax.vmap(lambda m: ps.Poisson().tilt(m, array(0.5), array(2.0))))(means)
    for n, one in enumerate(each):
        assert all(close(a[n], b) for a, b in zip(together, one, strict=True))
