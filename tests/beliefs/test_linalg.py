"""Factorisations accept every covariance, singular ones included, and have finite gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import array, close, random_cov

from prodssm.beliefs.linalg import (
    UNROLLED,
    cholesky,
    eigh,
    frobenius_inner,
    fusion_barrier,
    leading_eigenvectors,
    rounding_error,
    safe_sqrt,
    sandwich,
    solve_lower,
    solve_psd,
    solve_upper,
    symmetrise,
    unwhiten,
)

RNG = np.random.default_rng(0)
REGULAR = random_cov(RNG, 4)
LARGE = random_cov(np.random.default_rng(3), 40) + np.eye(40)


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
def factor_and_gradient(cov, definite):
    """The Cholesky factor, and the gradient of a sum of its entries with weights that all differ."""

    def entries(c):
        chol = cholesky(c, definite=definite)
        return (chol * jnp.arange(1.0, 1.0 + chol.size, dtype=chol.dtype).reshape(chol.shape)).sum(), chol

    return jax.value_and_grad(entries, has_aux=True)(cov)


def test_symmetrise_takes_the_symmetric_part():
    matrix = RNG.normal(size=(3, 3))
    assert close(symmetrise(array(matrix)), (matrix + matrix.T) / 2)


def test_sandwich_is_the_covariance_of_a_linear_function_and_symmetric():
    left = RNG.normal(size=(2, 4))
    found = sandwich(array(left), array(REGULAR))
    assert close(found, left @ REGULAR @ left.T)
    assert jnp.array_equal(found, found.T)


def test_safe_sqrt_is_zero_with_zero_gradient_at_and_below_zero():
    x = array([-1.0, 0.0, 0.25, 4.0])
    assert close(safe_sqrt(x), np.array([0.0, 0.0, 0.5, 2.0]))
    assert close(jax.vmap(jax.grad(safe_sqrt))(x), np.array([0.0, 0.0, 1.0, 0.25]))


@pytest.mark.parametrize("cov", [pytest.param(cov, id=name) for name, cov in covariances()])
@pytest.mark.parametrize("definite", [False, True])
def test_cholesky_is_a_lower_factor_with_finite_gradient(cov, definite):
    (_, chol), grad = factor_and_gradient(array(cov), definite)
    assert close(chol @ chol.T, cov)
    assert jnp.array_equal(chol, jnp.tril(chol))
    assert jnp.isfinite(grad).all()


def test_the_gradient_of_cholesky_is_that_of_lapack_where_the_matrix_is_regular():
    direction = symmetrise(array(RNG.normal(size=(4, 4))))
    weights = array(RNG.normal(size=(4, 4)))

    def along(t):
        return (weights * cholesky(array(REGULAR) + t * direction)).sum()

    def plain(t):
        return (weights * jnp.linalg.cholesky(array(REGULAR) + t * direction)).sum()

    zero = array(0.0)
    assert close(jax.jit(jax.grad(along))(zero), np.asarray(jax.jit(jax.grad(plain))(zero)), scale=10)


def test_definite_factors_have_positive_diagonals():
    for _, cov in covariances():
        (_, chol), _ = factor_and_gradient(array(cov), True)
        assert (jnp.diag(chol) > 0).all()


@pytest.mark.parametrize("size", [UNROLLED, 40])
def test_jitter_is_relative_to_each_variance(size):
    cov = LARGE[:size, :size] * np.geomspace(1e-3, 1e3, size)[:, None] * np.geomspace(1e-3, 1e3, size)
    chol = np.asarray(cholesky(array(cov), jitter=0.1), float)
    std = np.sqrt(np.diag(cov))
    wanted = (cov + 0.1 * np.diag(np.diag(cov))) / np.outer(std, std)
    assert close(array(chol @ chol.T / np.outer(std, std)), wanted)


@pytest.mark.parametrize("cov", [REGULAR, LARGE], ids=["unrolled", "LAPACK"])
def test_triangular_solves_invert_the_factor_and_its_transpose(cov):
    chol = np.linalg.cholesky(cov)
    rows = RNG.normal(size=(len(cov), 3))
    assert close(solve_lower(array(chol), array(rows)), np.linalg.solve(chol, rows), scale=10)
    assert close(solve_upper(array(chol), array(rows)), np.linalg.solve(chol.T, rows), scale=10)


@pytest.mark.parametrize("cov", [REGULAR, LARGE], ids=["unrolled", "LAPACK"])
def test_psd_solve_inverts_the_matrix(cov):
    rows = RNG.normal(size=(len(cov), 3))
    assert close(solve_psd(array(cov), array(rows)), np.linalg.solve(cov, rows), scale=10)


def test_psd_solve_of_a_singular_matrix_solves_a_consistent_system():
    rng = np.random.default_rng(4)
    cov = random_cov(rng, 4, rank=2)
    inside = cov @ rng.normal(size=(4, 3))
    found = solve_psd(array(cov), array(inside))
    assert jnp.isfinite(found).all()
    assert close(array(cov) @ found, inside, scale=10)


def test_unwhiten_recovers_a_slope_from_its_product_with_the_factor():
    slope = RNG.normal(size=(2, 4))
    chol = np.linalg.cholesky(REGULAR)
    assert close(unwhiten(array(slope @ chol), array(chol), array(np.diag(REGULAR))), slope, scale=10)


def test_unwhiten_gives_no_slope_to_directions_that_are_only_jitter():
    cov = array(np.diag([1.0, 0.0, 2.0]))
    chol = cholesky(cov, definite=True)
    found = unwhiten(array(np.ones((2, 3))), chol, jnp.diag(cov))
    assert close(found[:, 1], np.zeros(2))
    assert close(found[:, [0, 2]], np.tile([1.0, 1 / np.sqrt(2)], (2, 1)))


def test_leading_eigenvectors_span_the_largest_eigenvalues_and_are_constant_under_differentiation():
    vectors = leading_eigenvectors(array(REGULAR), 2)
    values, wanted = np.linalg.eigh(REGULAR)
    assert close(vectors @ vectors.T, wanted[:, 2:] @ wanted[:, 2:].T, scale=10)
    assert close(eigh(array(REGULAR))[0], values)
    gradient = jax.grad(lambda gram: leading_eigenvectors(gram, 2).sum())(array(REGULAR))
    assert close(gradient, np.zeros((4, 4)))


@pytest.mark.parametrize("x", [[1.0, -2.0, 0.0], [np.inf, 3.0, -np.inf], [np.nan, 1.0, 0.0]], ids=str)
def test_a_fusion_barrier_changes_no_number(x):
    found = jax.jit(fusion_barrier)(array(x))
    assert np.array_equal(np.asarray(found), np.asarray(array(x)), equal_nan=True)
    assert jnp.array_equal(
        jax.grad(lambda v: (fusion_barrier(v) * array([2.0, 3.0, 4.0])).sum())(array([1.0, 2.0, 0.0])), array([2.0, 3.0, 4.0])
    )
    assert fusion_barrier(jnp.arange(3)).dtype == jnp.arange(3).dtype


def test_the_rounding_error_grows_with_the_size_of_the_matrix():
    eps = float(jnp.finfo(array(0.0).dtype).eps)
    assert rounding_error(array(REGULAR)) == 16 * eps
    assert rounding_error(array(LARGE)) == 160 * eps


def test_the_frobenius_inner_product_is_the_sum_of_all_products():
    a, b = (array(np.random.default_rng(seed).normal(size=(7, 40))) for seed in range(2))
    assert close(frobenius_inner(a, b), (np.asarray(a, float) * np.asarray(b, float)).sum(), scale=30)
