"""Each activation's Gaussian-Hermite coefficients and variance agree with one-dimensional quadrature."""

import pickle
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from oracles import (
    FUNCTIONS,
    GAUSS_HERMITE_ERROR,
    array,
    close,
    expectation,
    hermite_coefficients,
    legendre,
    relu_covariance,
    relu_covariance_dvi,
    root_eps,
)
from scipy import special

import prodssm as ps
from prodssm.networks.activations import find_activation, mean_softplus

ORDER = 8
NAMES = list(FUNCTIONS)

# All points at which an activation is examined: they are expanded together, in one compilation per activation.
GRID = [g.reshape(-1) for g in np.meshgrid(np.linspace(-2, 1.9, 8), [0.05, 0.2, 0.6, 1.0, 1.7])]
MEANS, STDS = GRID
GROUPS = {
    "grid": GRID,
    "extreme": [np.array([-40.0, -3.0, 0.0, 1e-3, 2.0, 30.0]), np.array([1e-5, 0.1, 5.0, 100.0, 0.3, 0.01])],
    "certain": [np.array([-1.3, -0.4, 0.7, 2.1]), np.zeros(4)],
    "certain, at the kink": [np.zeros(1), np.zeros(1)],
    "tiny": [np.array([1.0, 1.0, 0.6, 30.0]), np.array([1e-4, 1e-3, 2e-4, 0.01])],
}


@cache
def expanded(name):
    """For each group of points: the expansion of order 8, and the derivatives of its mean by mean and variance."""

    @jax.jit
    def expand_all(mean, var):
        def total(mean, var):
            e = ps.ACTIVATIONS[name].expand(mean, var, ORDER)
            return e.mean.sum(), e

        return jax.grad(total, argnums=(0, 1), has_aux=True)(mean, var)

    mean, std = (np.concatenate(values) for values in zip(*GROUPS.values(), strict=True))
    slopes, expansion = expand_all(array(mean), array(std) ** 2)
    found, first = {}, 0
    for group, (mean, _) in GROUPS.items():
        last = first + len(mean)
        found[group] = jax.tree.map(lambda leaf, a=first, b=last: np.asarray(leaf[..., a:b]), (expansion, *slopes))
        first = last
    return found


@cache
def quadrature(name):
    """c_0..c_8 and the variance on the grid, by quadrature."""
    function, _, kinks = FUNCTIONS[name]
    return hermite_coefficients(function, kinks, MEANS, STDS, ORDER)


def coefficients(expansion, std):
    """c_0..c_K and the variance, from what `expand` returns."""
    first = np.asarray(expansion.slope, float) * std
    c = np.stack([np.asarray(expansion.mean, float), first, *np.asarray(expansion.curved, float)])
    return c, np.asarray(expansion.rest, float) + (c[1:] ** 2).sum(axis=0)


def expand(activation, mean, std, order):
    """The expansion at arrays of means and standard deviations, in one compilation."""
    return jax.jit(lambda m, v: activation.expand(m, v, order))(array(mean), array(std) ** 2)


def test_the_list_of_activations_is_complete():
    assert set(ps.ACTIVATIONS) == set(FUNCTIONS)


@pytest.mark.parametrize("name", NAMES)
def test_an_activation_is_its_function(name):
    x = np.linspace(-4, 4, 41)
    assert close(ps.ACTIVATIONS[name](array(x)), FUNCTIONS[name][0](x))


@pytest.mark.parametrize("name", NAMES)
def test_coefficients_and_variance_equal_quadrature(name):
    found, var = coefficients(expanded(name)["grid"][0], STDS)
    wanted, wanted_var = quadrature(name)
    mean_error, var_error = GAUSS_HERMITE_ERROR.get(name, (0.0, 0.0))
    precision = root_eps(array(0.0)) * np.maximum(1.0, np.abs(wanted).max(axis=0))
    assert (np.abs(found - wanted) - precision).max() <= mean_error
    precision = root_eps(array(0.0)) * np.maximum(1.0, wanted_var)
    assert (np.abs(var - wanted_var) - precision).max() <= var_error


@pytest.mark.float64
@pytest.mark.parametrize("name", [name for name in NAMES if name not in GAUSS_HERMITE_ERROR])
def test_closed_forms_are_right_to_eleven_digits(name):
    found, var = coefficients(expanded(name)["grid"][0], STDS)
    wanted, wanted_var = quadrature(name)
    size = np.maximum(1.0, np.abs(wanted[0]))
    assert (np.abs(found - wanted) / size).max() < 1e-11
    assert (np.abs(var - wanted_var) / size**2).max() < 1e-11


@pytest.mark.parametrize("name", NAMES)
def test_the_remaining_variance_is_never_negative_and_every_value_is_finite(name):
    for group, found in expanded(name).items():
        assert (found[0].rest >= 0).all(), group
        assert found[0].curved.shape == (ORDER - 1, len(GROUPS[group][0]))
        for leaf in jax.tree.leaves(found):
            assert np.isfinite(leaf).all(), group


@pytest.mark.parametrize("name", ["relu", "tanh", "gelu"])
def test_a_lower_order_gives_the_same_coefficients_and_the_same_variance(name):
    high, var = coefficients(expanded(name)["grid"][0], STDS)
    for order in (1, 2):
        low, low_var = coefficients(expand(ps.ACTIVATIONS[name], MEANS, STDS, order), STDS)
        assert close(array(low), high[: order + 1])
        error = GAUSS_HERMITE_ERROR.get(name, (0.0, 0.0))[1]
        assert np.abs(low_var - var).max() < root_eps(array(0.0)) + error


@pytest.mark.parametrize("name", NAMES)
def test_a_certain_input_gives_the_function_its_derivative_and_no_variance(name):
    function, derivative, _ = FUNCTIONS[name]
    m = GROUPS["certain"][0]
    expansion, by_mean, _ = expanded(name)["certain"]
    assert close(expansion.mean, function(m))
    assert close(expansion.slope, derivative(m))
    assert close(expansion.curved, np.zeros((ORDER - 1, len(m))))
    assert close(expansion.rest, np.zeros(len(m)))
    assert close(by_mean, derivative(m))
    assert close(expanded(name)["certain, at the kink"][0].mean, function(np.zeros(1)))


@pytest.mark.parametrize("name", NAMES)
def test_tiny_variances_keep_the_relative_accuracy_of_the_variance(name):
    # Where the function is linear, Var = f'(m)^2 v (1 + O(v)); the textbook difference of squares loses it in float32.
    _, derivative, _ = FUNCTIONS[name]
    m, s = GROUPS["tiny"]
    linear = name in ("relu", "leaky_relu", "identity", "softplus", "silu", "gelu", "elu")
    kept = slice(None) if linear else slice(3)
    expansion = expanded(name)["tiny"][0]
    _, var = coefficients(expansion, s)
    wanted = derivative(m) ** 2 * s**2
    assert (np.abs(var[kept] / wanted[kept] - 1) < 1e-4).all(), var / wanted
    assert (np.abs(expansion.slope[kept] / derivative(m)[kept] - 1) < 1e-4).all()


def test_relu_far_from_its_kink_is_linear_or_zero():
    expansion = expand(ps.ACTIVATIONS["relu"], [30.0, -30.0, 1e4, -1e4], [0.5, 0.5, 2.0, 2.0], 4)
    assert close(expansion.mean, np.array([30.0, 0.0, 1e4, 0.0]))
    assert close(expansion.slope, np.array([1.0, 0.0, 1.0, 0.0]))
    assert close(expansion.rest, np.zeros(4))


@pytest.mark.float64
@pytest.mark.parametrize("name", NAMES)
def test_derivatives_of_the_mean_are_its_first_two_coefficients(name):
    # Section 3: d c_0 / d m = c_1 / s and d c_0 / d v = E[f''] / 2 = sqrt(2) c_2 / (2 v).
    expansion, by_mean, by_var = expanded(name)["grid"]
    broad = STDS > 0.1
    # Differentiating 32 nodes is as good as the nodes, divided by the variance: see the table in 3.3.
    tolerance = 1e-9 + 30 * GAUSS_HERMITE_ERROR.get(name, (0.0,))[0]
    size = np.maximum(1.0, np.abs(expansion.mean))[broad]
    assert (np.abs(by_mean - expansion.slope)[broad] / size).max() < tolerance
    assert (np.abs(by_var - np.sqrt(2) * expansion.curved[0] / (2 * STDS**2))[broad] / size).max() < tolerance


@pytest.mark.float64
@pytest.mark.parametrize("name", ["relu", "gelu", "tanh"])
def test_gradients_of_the_whole_expansion_equal_finite_differences(name):
    activation = ps.ACTIVATIONS[name]

    @jax.jit
    def flat(m, v):
        e = activation.expand(m, v, 3)
        return jnp.concatenate([e.mean, e.slope, e.curved.reshape(-1), e.rest])

    check_grads(flat, (array([-0.6, 0.3, 1.0]), array([0.3, 0.8, 0.5])), order=1, modes=["rev"], rtol=1e-5, atol=1e-7)


@pytest.mark.float64
def test_relu_covariance_at_order_four_is_closer_than_dvi():
    grid = np.linspace(-2.5, 2.5, 41)
    expansion = expand(ps.ACTIVATIONS["relu"], grid, np.ones(41), 12)
    c, _ = coefficients(expansion, np.ones(41))
    a, b = np.meshgrid(grid, grid, indexing="ij")
    # The table of section 3.2: largest error over +-rho.
    recorded = {0.3: 6.4e-6, 0.6: 2.3e-4, 0.9: 2.4e-3, 0.99: 4.8e-3, 0.999: 5.2e-3}
    ours, theirs = [], []
    for size, bound in recorded.items():
        exact = {rho: relu_covariance(a, b, rho) for rho in (size, -size)}
        series = {rho: sum(np.outer(c[k], c[k]) * rho**k for k in range(1, 5)) for rho in exact}
        order_four = np.stack([np.abs(series[rho] - exact[rho]) for rho in exact])
        dvi = np.stack([np.abs(relu_covariance_dvi(a, b, rho) - exact[rho]) for rho in exact])
        assert order_four.max() < dvi.max()
        assert order_four.mean() < dvi.mean()
        assert order_four.max() < 1.05 * bound
        ours.append(order_four.mean())
        theirs.append(dvi.mean())
    assert np.mean(ours) < np.mean(theirs) / 2
    exact = relu_covariance(a, b, 0.3)
    assert np.abs(sum(np.outer(c[k], c[k]) * 0.3**k for k in range(1, 13)) - exact).max() < 1e-10


@pytest.mark.float64
def test_the_quadrature_oracle_and_prices_integral_agree_on_relu():
    # Two oracles that share nothing: both must be right.
    c, var = hermite_coefficients(np.vectorize(lambda x: max(x, 0.0)), (0.0,), [0.4], [1.0], 1)
    assert abs(relu_covariance(0.4, 0.4, 0.999999) - var[0]) < 2e-6
    assert abs(expectation(lambda e: np.maximum(0.4 + e, 0)[None], (-0.4,))[0] - c[0, 0]) < 1e-14


def test_a_function_with_kinks_becomes_an_activation():
    hard = ps.from_function(lambda x: jnp.clip(x, -1.0, 1.0), kinks=(-1.0, 1.0))
    found, var = coefficients(expand(hard, MEANS, STDS, 4), STDS)
    wanted, wanted_var = hermite_coefficients(lambda x: np.clip(x, -1, 1), (-1.0, 1.0), MEANS, STDS, 4)
    assert close(array(found), wanted)
    assert close(array(var), wanted_var)


def test_the_slope_of_a_step_function_needs_no_derivative():
    step = ps.from_function(lambda x: (x > 0).astype(x.dtype), kinks=(0.0,))
    found, var = coefficients(expand(step, MEANS, STDS, 4), STDS)
    wanted, wanted_var = hermite_coefficients(lambda x: (x > 0) * 1.0, (0.0,), MEANS, STDS, 4)
    assert close(array(found), wanted)
    assert close(array(var), wanted_var)


def test_a_smooth_function_becomes_an_activation():
    smooth = ps.from_function(lambda x: x**3, name="cube")
    assert smooth.name == "cube"
    m, s = MEANS, STDS
    expansion = expand(smooth, m, s, 4)
    found, var = coefficients(expansion, s)
    # The last row of the table in 3.1.
    wanted = [m**3 + 3 * m * s**2, 3 * s * (m**2 + s**2), 6 * m * s**2 / np.sqrt(2), 6 * s**3 / np.sqrt(6), 0 * m]
    assert close(array(found), np.stack(wanted))
    assert close(array(var), 9 * m**4 * s**2 + 36 * m**2 * s**4 + 15 * s**6)


def test_exp_saturates_instead_of_overflowing():
    limit = 120.0 if array(0.0).dtype == jnp.float64 else 15.0
    exp = ps.ACTIVATIONS["exp"]
    assert close(exp(array([limit - 1.0])) / np.exp(limit - 1), np.ones(1), scale=10)
    expansion = expand(exp, [limit + 50.0, 3.0], [2.0, 30.0], 4)
    for leaf in jax.tree.leaves(expansion):
        assert jnp.isfinite(leaf).all()


@pytest.mark.parametrize("name", ["silu", "softplus"])
@pytest.mark.parametrize(("mean", "std"), [(12.0, 2.1), (16.0, 2.1), (25.0, 2.1), (25.0, 4.0), (40.0, 4.0)])
def test_a_smooth_activation_far_from_its_bend_is_linear(name, mean, std):
    eps = float(jnp.finfo(array(0.0).dtype).eps)
    found = expand(ps.ACTIVATIONS[name], [mean], [std], 4)
    total = (found.slope * std) ** 2 + (found.curved**2).sum(axis=0) + found.rest
    e = np.linspace(-10, 10, 100_001)
    values = FUNCTIONS[name][0](mean + std * e)
    density = np.exp(-(e**2) / 2) / np.sqrt(2 * np.pi)
    centre = np.trapezoid(values * density, e)
    assert abs(float(found.mean[0]) - centre) < 1e-6 * std + 40 * eps * mean
    assert abs(float(total[0]) / np.trapezoid((values - centre) ** 2 * density, e) - 1) < 1e-6 + 1e3 * eps


def test_exp_is_exact_as_long_as_its_moments_fit_the_dtype():
    found = expand(ps.ACTIVATIONS["exp"], [0.0], [3.5], 3)
    assert close(found.mean / np.exp(3.5**2 / 2), [1.0])


def test_elu_has_accurate_gradients_close_to_its_kink():
    def mean(var):
        return ps.ACTIVATIONS["elu"].expand(array([-1e-6]), var[None], order=2).mean[0]

    assert abs(float(jax.jit(jax.grad(mean))(array(1e-12))) - 0.42067) < 1e-3


def test_known_functions_get_the_rule_of_their_name():
    for function, name in ((jax.nn.relu, "relu"), (jnp.tanh, "tanh"), (jax.nn.softplus, "softplus")):
        assert find_activation(function) is ps.ACTIVATIONS[name]
        assert find_activation(name) is find_activation(ps.ACTIVATIONS[name]) is ps.ACTIVATIONS[name]


def test_an_unknown_function_is_one_activation_however_often_it_is_looked_up():
    def cube(x):
        return x**3

    assert find_activation(cube) is find_activation(cube)
    assert find_activation(cube).name == "cube"


@pytest.mark.parametrize("name", NAMES)
def test_activations_can_be_pickled(name):
    assert pickle.loads(pickle.dumps(ps.ACTIVATIONS[name])) is ps.ACTIVATIONS[name]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.from_function("relu"), "function"),
        (lambda: ps.from_function(jnp.tanh, nodes=0), "nodes"),
        (lambda: ps.from_function(jnp.tanh, kinks=(jnp.nan,)), "kinks"),
        (lambda: ps.ACTIVATIONS["relu"].expand(jnp.zeros(2), jnp.ones(2), 0), "order"),
        (lambda: ps.ACTIVATIONS["tanh"].expand(jnp.zeros(2), jnp.ones(2), 0), "order"),
        (lambda: ps.from_function(jnp.tanh, nodes=4).expand(jnp.zeros(2), jnp.ones(2), 4), "order"),
        (lambda: find_activation("rely"), "activation"),
        (lambda: find_activation(3), "activation"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()


@pytest.mark.parametrize("std", [0.0, 1e-3, 0.5, 2.0, 8.0])
def test_the_mean_of_softplus_is_that_of_quadrature(std):
    mean = np.linspace(-12.0, 12.0, 49)
    nodes, weights = legendre(2000)
    nodes, weights = 10 * nodes, 10 * weights * np.exp(-50 * nodes**2) / np.sqrt(2 * np.pi)  # in this order: both of [-1, 1]
    wanted = np.logaddexp(0.0, mean[:, None] + std * nodes) @ weights

    @jax.jit
    def mean_and_slope(m, v):
        return mean_softplus(m, v), jax.grad(lambda at: mean_softplus(at, v).sum())(m)

    found, slope = mean_and_slope(array(mean), array(np.full_like(mean, std**2)))
    assert np.allclose(found, wanted, rtol=2e-5, atol=1e-6)
    assert np.allclose(slope, special.expit(mean[:, None] + std * nodes) @ weights, rtol=1e-3, atol=1e-6)
