"""Factorisations accept every covariance, singular ones included, and have finite gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import array, close, random_cov

from prodssm.linalg import (
    bounded_growth,
    cholesky,
    inner,
    ridge,
    safe_sqrt,
    sandwich,
    solve_lower,
    solve_psd,
    solve_upper,
    symmetrise,
)

RNG = np.random.default_rng(0)
REGULAR = random_cov(RNG, 4)


def covariances():
    """Small and large, regular and singular."""
    rng = np.random.default_rng(1)
    yield "regular", random_cov(rng, 3)
    yield "one number", np.array([[2.0]])
    yield "zero", np.zeros((3, 3))
    yield "rank one", random_cov(rng, 4, rank=1)
    yield "rank two", random_cov(rng, 5, rank=2)
    yield "a certain coordinate first", np.diag([0.0, 1.0, 2.0])
    yield "a certain coordinate last", np.diag([1.0, 2.0, 0.0])
    yield "large", random_cov(rng, 40)
    yield "large and singular", random_cov(rng, 40, rank=7)


@partial(jax.jit, static_argnums=1)
def root_and_gradient(cov, definite):
    """The root, and the gradient of a sum of its entries with weights that all differ."""

    def entries(c):
        root = cholesky(c, definite=definite)
        return (root * jnp.arange(1.0, 1.0 + root.size, dtype=root.dtype).reshape(root.shape)).sum(), root

    return jax.value_and_grad(entries, has_aux=True)(cov)


def test_symmetrise_takes_the_symmetric_part():
    matrix = RNG.normal(size=(3, 3))
    assert close(symmetrise(array(matrix)), (matrix + matrix.T) / 2)


def test_sandwich_is_the_covariance_after_a_linear_map_and_symmetric():
    left = RNG.normal(size=(2, 4))
    found = sandwich(array(left), array(REGULAR))
    assert close(found, left @ REGULAR @ left.T)
    assert jnp.array_equal(found, found.T)


def test_safe_sqrt_is_zero_with_zero_slope_at_and_below_zero():
    x = array([-1.0, 0.0, 0.25, 4.0])
    assert close(safe_sqrt(x), np.array([0.0, 0.0, 0.5, 2.0]))
    assert close(jax.vmap(jax.grad(safe_sqrt))(x), np.array([0.0, 0.0, 1.0, 0.25]))


@pytest.mark.parametrize("cov", [pytest.param(cov, id=name) for name, cov in covariances()])
@pytest.mark.parametrize("definite", [False, True])
def test_cholesky_is_a_lower_root_with_finite_gradient(cov, definite):
    (_, root), grad = root_and_gradient(array(cov), definite)
    assert close(root @ root.T, cov)
    assert jnp.array_equal(root, jnp.tril(root))
    assert jnp.isfinite(grad).all()


def test_cholesky_gradient_is_the_derivative_where_the_matrix_is_regular():
    direction = symmetrise(array(RNG.normal(size=(4, 4))))
    weights = array(RNG.normal(size=(4, 4)))

    def along(t):
        return (weights * cholesky(array(REGULAR) + t * direction)).sum()

    def plain(t):
        return (weights * jnp.linalg.cholesky(array(REGULAR) + t * direction)).sum()

    zero = array(0.0)
    assert close(jax.jit(jax.grad(along))(zero), np.asarray(jax.jit(jax.grad(plain))(zero)), scale=10)


def test_definite_roots_can_be_divided_by():
    for _, cov in covariances():
        (_, root), _ = root_and_gradient(array(cov), True)
        assert (jnp.diag(root) > 0).all()


def test_triangular_solves_undo_the_root_and_its_transpose():
    root = np.linalg.cholesky(REGULAR)
    rows = RNG.normal(size=(4, 3))
    assert close(solve_lower(array(root), array(rows)), np.linalg.solve(root, rows), scale=10)
    assert close(solve_upper(array(root), array(rows)), np.linalg.solve(root.T, rows), scale=10)


def test_psd_solve_undoes_the_matrix():
    rows = RNG.normal(size=(4, 3))
    assert close(solve_psd(array(REGULAR), array(rows)), np.linalg.solve(REGULAR, rows), scale=10)
    large = random_cov(np.random.default_rng(3), 40) + np.eye(40)
    rows = RNG.normal(size=(40, 3))
    assert close(solve_psd(array(large), array(rows)), np.linalg.solve(large, rows), scale=10)


def test_psd_solve_of_a_singular_matrix_solves_what_can_be_solved():
    rng = np.random.default_rng(4)
    cov = random_cov(rng, 4, rank=2)
    inside = cov @ rng.normal(size=(4, 3))
    found = solve_psd(array(cov), array(inside))
    assert jnp.isfinite(found).all()
    assert close(array(cov) @ found, inside, scale=10)


def test_bounded_growth_shrinks_what_grows_and_leaves_the_rest():
    turn = np.array([[0.8, -0.9], [0.9, 0.8]])  # grows by 1.2 a step
    assert np.allclose(np.abs(np.linalg.eigvals(bounded_growth(turn, 0.99))), 0.99)
    assert np.allclose(bounded_growth(turn, 0.99) / turn, 0.99 / np.hypot(0.8, 0.9))
    assert (bounded_growth(0.5 * turn, 0.99) == 0.5 * turn).all()
    integrator = np.array([[1.0, 1.0], [0.0, 1.0]])  # has one eigenvector only
    assert np.allclose(bounded_growth(integrator, 0.99), 0.99 * integrator)


def test_ridge_is_least_squares_when_it_hardly_shrinks_and_forgets_when_it_does():
    rng = np.random.default_rng(0)
    x, slope = rng.normal(size=(50, 3)), rng.normal(size=(2, 3))
    found, bias = ridge(x, x @ slope.T + 7.0, 1e-12)
    assert np.allclose(found, slope)
    assert np.allclose(bias, 7.0)
    assert np.abs(ridge(x, x @ slope.T, 1e6)[0]).max() < 1e-5


def test_inner_is_the_sum_of_all_products():
    a, b = (array(np.random.default_rng(seed).normal(size=(7, 40))) for seed in range(2))
    assert close(inner(a, b), (np.asarray(a, float) * np.asarray(b, float)).sum(), scale=30)
