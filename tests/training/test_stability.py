"""A linear part beside the network that starts stable stays so."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.training.recipe import SERIES_RECIPE, Recipe
from prodssm.training.series_task import train
from prodssm.training.stability import is_stable, spectral_radius, stabilised


def model_with(step, *, residual=True):
    size = len(step)
    slope = step - np.eye(size) if residual else step
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(size), jnp.eye(size)),
        transition=ps.Network.mlp((size + 1, 4, size), "erf", key=jr.key(0)),
        emission=ps.Network.from_arrays([np.ones((1, size))], [np.zeros(1)]),
        process_noise=jnp.full(size, 0.1),
        measurement_noise=jnp.array([0.1]),
        residual=residual,
        linear=array(np.concatenate([slope, np.ones((size, 1))], axis=1)),
    )


def radius(model):
    step = np.asarray(model.linear, float)[:, : model.x_size] + np.eye(model.x_size) * model.residual
    return np.abs(np.linalg.eigvals(step)).max()


def rotation(size, angle=0.5):
    return size * np.array([[np.cos(angle), 3 * np.sin(angle)], [-np.sin(angle) / 3, np.cos(angle)]])


@pytest.mark.parametrize("size", [0.0, 0.3, 0.99, 1.0, 1.5])
def test_the_bound_of_the_spectral_radius_is_close(size):
    # (condition of the eigenvectors times states)^(1 / 1024), and what squaring adds up in rounding.
    assert size <= float(spectral_radius(array(rotation(size)))) + 1e-6 <= size * (1 + 5e-3) + 1e-3
    for seed in range(5):
        matrix = np.random.default_rng(seed).normal(size=(5, 5))
        ratio = float(spectral_radius(array(matrix))) / np.abs(np.linalg.eigvals(matrix)).max()
        assert 1 - 1e-5 <= ratio <= 1.01


@pytest.mark.parametrize("residual", [True, False])
def test_a_stable_linear_part_is_left_as_it_is(residual):
    model = model_with(rotation(0.99), residual=residual)
    assert is_stable(model)
    assert np.abs(np.asarray(stabilised(model).linear) - np.asarray(model.linear)).max() < 1e-6


@pytest.mark.parametrize("residual", [True, False])
def test_any_other_linear_part_becomes_stable(residual):
    model = model_with(rotation(0.9), residual=residual)
    rng = np.random.default_rng(0)
    for scale in (0.1, 1.0, 10.0):
        other = eqx.tree_at(lambda m: m.linear, model, model.linear + scale * array(rng.normal(size=model.linear.shape)))
        found = stabilised(other)
        assert radius(found) <= 1 + 1e-5
        assert (found.linear[:, 2:] == other.linear[:, 2:]).all()
    learned, fixed = eqx.partition(other, eqx.is_inexact_array)
    gradient = jax.grad(lambda m: stabilised(eqx.combine(m, fixed)).linear.sum())(learned)
    assert np.isfinite(gradient.linear).all()


def test_what_is_unstable_or_not_there_is_not_made_stable():
    assert not is_stable(model_with(rotation(1.2)))
    assert not is_stable(eqx.tree_at(lambda m: m.linear, model_with(rotation(0.5)), None))


@pytest.mark.usefixtures("standard_promotion")
def test_training_on_growing_data_keeps_it_stable():
    y = array(1.1 ** np.arange(40.0)[:, None])
    series = [ps.Series(y / y.std(), array(np.zeros((40, 1))))]
    recipe = Recipe(iterations=60, learning_rate=0.1).filled(SERIES_RECIPE)
    model = model_with(rotation(0.9))
    found, _ = train(model, series, recipe, key=jr.key(0), method=ps.Moments(order=1), progress=False)
    assert (found.linear != model.linear).any()
    assert radius(found) <= 1 + 1e-5
