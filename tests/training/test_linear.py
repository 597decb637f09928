"""Linear regression for initialisation: least squares, principal axes, and stable transitions."""

import numpy as np

from prodssm.training.linear import clipped_spectral_radius, principal_axes, ridge


def test_a_spectral_radius_is_bounded_and_smaller_ones_are_kept():
    rotation = np.array([[0.8, -0.9], [0.9, 0.8]])  # of spectral radius 1.2
    assert np.allclose(np.abs(np.linalg.eigvals(clipped_spectral_radius(rotation, 0.99))), 0.99)
    assert np.allclose(clipped_spectral_radius(rotation, 0.99) / rotation, 0.99 / np.hypot(0.8, 0.9))
    mixed = np.array([[1.2, 1.0], [0.0, 0.5]])  # only the eigenvalue that is too large is clipped
    assert np.allclose(np.sort(np.linalg.eigvals(clipped_spectral_radius(mixed, 0.99))), [0.5, 0.99])
    assert (clipped_spectral_radius(0.5 * rotation, 0.99) == 0.5 * rotation).all()
    integrator = np.array([[1.0, 1.0], [0.0, 1.0]])  # has one eigenvector only
    assert np.allclose(clipped_spectral_radius(integrator, 0.99), 0.99 * integrator)


def test_ridge_is_least_squares_under_a_tiny_penalty_and_zero_under_a_large_one():
    rng = np.random.default_rng(0)
    x, slope = rng.normal(size=(50, 3)), rng.normal(size=(2, 3))
    found, bias = ridge(x, x @ slope.T + 7.0, 1e-12)
    assert np.allclose(found, slope)
    assert np.allclose(bias, 7.0)
    assert np.abs(ridge(x, x @ slope.T, 1e6)[0]).max() < 1e-5


def test_ridge_regression_without_inputs_is_the_mean():
    outputs = np.random.default_rng(1).normal(size=(20, 2))
    slope, bias = ridge(np.zeros((20, 0)), outputs)
    assert slope.shape == (2, 0)
    assert np.allclose(bias, outputs.mean(axis=0))


def test_principal_axes_are_the_eigenvectors_of_the_second_moments():
    rows = np.random.default_rng(2).normal(size=(60, 4)) * [3.0, 2.0, 1.0, 0.1]
    axes = principal_axes(rows, 2)
    vectors = np.linalg.eigh(rows.T @ rows)[1][:, :1:-1]
    assert np.allclose(axes.T @ axes, vectors @ vectors.T)
