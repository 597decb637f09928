"""A regressor on few rows starts at the Gaussian process of largest evidence."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.models.regression import LayerStack, predict_rows
from prodssm.training.fourier_start import LEAST_SLOPE, fit_features, fit_scales, low_discrepancy, with_features
from prodssm.training.initialisation import regression_model

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2))


def kernel(x, length):
    return np.exp(-0.5 * ((x[:, None] - x[None]) ** 2).sum(axis=2) / length**2)


def standardised(columns):
    return (columns - columns.mean(axis=0)) / columns.std(axis=0)


def test_evidence_finds_length_scale_and_noise_of_a_gaussian_process():
    x = RNG.normal(size=(150, 1))
    draw = np.linalg.cholesky(kernel(x, 0.7) + 1e-9 * np.eye(150)) @ RNG.normal(size=(150, 1))
    found = fit_scales(x, draw + 0.1 * RNG.normal(size=(150, 1)))
    # Neighbours on the grid of length scales differ by a factor of 1.5.
    assert 0.7 / 1.6 < found.length < 0.7 * 1.6
    # A variance that is estimated from n residuals has relative error sqrt(2 / n).
    assert abs(found.noise_var[0] / 0.01 - 1) < 4 * np.sqrt(2 / 150)


def test_a_linear_function_leaves_little_variance_to_the_rest():
    y = standardised(X @ [[2.0], [-1.0]] + 0.3 * RNG.normal(size=(60, 1)))
    scales = fit_scales(X, y)
    found = fit_features(scales, X, y, 40, RNG)
    wiggle = np.sin(X @ found.weight.T + found.bias) @ found.coefficients.T
    assert found.slope[0] @ [2.0, -1.0] > 0
    assert (X @ found.slope.T + wiggle - y).var() < 1.5 * scales.noise_var[0]
    assert scales.function_var[0] < scales.noise_var[0]


def test_features_have_the_kernel_of_the_process():
    scales = fit_scales(X, np.sin(X[:, :1]))._replace(length=1.3)
    found = fit_features(scales, X, np.sin(X[:, :1]), 1000, RNG)
    waves = np.sin(X @ found.weight.T + found.bias)
    assert np.abs(2 / 1000 * waves @ waves.T - kernel(X, 1.3)).max() < 4 / np.sqrt(500)
    assert (np.abs(found.bias) <= np.pi).all()


def test_no_direction_of_the_emission_vanishes():
    y = standardised(np.stack([np.cos(3 * X[:, 0]), X[:, 1] ** 2], axis=1))
    found = fit_features(fit_scales(X, y), X, y, 40, RNG)
    assert (np.linalg.svd(found.slope)[1] >= LEAST_SLOPE - 1e-9).all()


@pytest.mark.parametrize("dimensions", [1, 3])
def test_points_of_low_discrepancy_fill_the_cube_evenly(dimensions):
    points = low_discrepancy(256, dimensions, RNG)
    assert points.shape == (256, dimensions)
    counts = np.stack([np.histogram(column, bins=16, range=(0, 1))[0] for column in points.T])
    assert (counts.var(axis=1) < 8).all()  # of random points it would be 15 on average


@pytest.mark.parametrize("weights", ["local", "point"])
def test_the_model_starts_at_the_process(weights, standard_promotion):
    y = standardised(np.sin(2 * X[:, :1]) + X[:, 1:] + 0.1 * RNG.normal(size=(60, 1)))
    likelihood = ps.GaussianLikelihood(jnp.full(1, 0.1), learned=True)
    model = regression_model((40,), (3,), "sin", weights, likelihood, X, y, key=jr.key(0))
    started = with_features(model, X, y, seed=1)
    scales = fit_scales(X, y)
    features = fit_features(scales, X, y, 40, np.random.default_rng(1))
    mean, cov = predict_rows(started, LayerStack(1, ps.Moments(order=1)), array(X), jr.key(0))
    wanted = X @ features.slope.T + np.sin(X @ features.weight.T + features.bias) @ features.coefficients.T
    assert np.abs(np.asarray(mean) - wanted).max() < 0.02  # frequencies are slightly uncertain
    var = scales.noise_var[0] + (scales.function_var[0] if weights == "local" else 0.0)
    assert 0.7 < np.asarray(cov).mean() / var < 1.5
