"""Known physics in an estimator: units, files, refusals; and a pendulum whose friction is not what its engineer believes."""

import runpy
from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from small_models import same, without_training

import prodssm as ps

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "pendulum_physics.py"
TIME = 30


def decay(x, u):
    return -0.2 * (x - 100.0)


def driven(x, u, params):
    return params["rate"] * x + u


def data(controls=False, step=0.5):
    rng = np.random.default_rng(0)
    y = 100 + np.cumsum(rng.normal(size=(TIME, 1)), axis=0)
    return ps.Series(y, rng.normal(3.0, 2.0, size=(TIME, 1)) if controls else None, step * np.arange(TIME))


def fitted(series, **settings):
    with without_training():
        parts = {"hidden": None, "residual": True, "recipe": ps.Recipe(validation=0.0), "progress": False}
        return ps.ProDSSM(**parts | settings).fit(series)


def test_physics_is_about_states_in_the_units_of_the_data_and_a_rate_in_those_of_time():
    model = fitted(data(), physics=decay)
    # One typical time step, half a unit of time.
    assert np.allclose(model.transition([[120.0], [80.0]]).mean[:, 0], [118.0, 82.0], rtol=1e-4)
    model = fitted(data(), physics=lambda x, u: 0.5 * x + 3.0, residual=False)
    assert np.allclose(model.transition([[120.0]]).mean, [[63.0]], rtol=1e-4)


def test_controls_of_physics_are_in_the_units_of_the_data():
    model = fitted(data(controls=True), physics=ps.Known(driven, {"rate": 0.5}, x_size=1, u_size=1), residual=False)
    assert np.allclose(model.transition([[120.0]], [[7.0]]).mean, [[67.0]], rtol=1e-4)


def test_a_known_emission_gives_outputs_in_the_units_of_the_data_and_leaves_the_state_alone():
    matrix = np.array([[2.0, 0.0]])
    for emission in (lambda x, u: 2 * x[:1], matrix):
        model = fitted(data(), physics=lambda x, u: 0 * x, emission=emission, latent_dim=2)
        assert model.choices_.emission == "known"
        found = model.filter(data())
        assert np.allclose(found.outputs.mean[:, 0], 2 * found.mean[:, 0], rtol=1e-4)
        assert abs(found.mean[-1, 0] - data().y[-1, 0] / 2) < 5


def test_a_model_with_physics_comes_back_when_the_function_is_given_again(tmp_path):
    known = ps.Known(driven, {"rate": 0.5}, x_size=1, u_size=1)
    series, path = data(controls=True), tmp_path / "m.safetensors"
    model = fitted(series, physics=known, hidden=(4,), emission=lambda x, u: x, latent_dim=1)
    model.save(path)
    with pytest.raises(ValueError, match=r"was saved with physics=driven, and a file holds no code: give the function again"):
        ps.load(path)
    with pytest.raises(ValueError, match="was saved with emission=<lambda>"):
        ps.load(path, physics=known)
    other = ps.Known(driven, {"rate": 7.0}, x_size=1, u_size=1)
    loaded = ps.load(path, physics=other, emission=lambda x, u: x)
    assert same(model.filter(series), loaded.filter(series))
    assert float(loaded.ssm_.transition.physics.params["rate"]) == 0.5


def test_a_function_that_a_model_does_not_have_is_refused(tmp_path):
    model = fitted(data(), hidden=(), emission="identity")
    model.save(tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="physics must not be given"):
        ps.load(tmp_path / "m.safetensors", physics=decay)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"physics": decay, "residual": "auto"}, ValueError, "residual must be given with physics"),
        ({"physics": 3.0}, TypeError, "physics must be a function"),
        ({"physics": decay, "emission": "known"}, ValueError, "emission must be 'identity' or 'linear' or 'feedthrough'"),
        ({}, ValueError, "hidden must be 'auto' or sizes of hidden layers; None, no network, needs physics"),
        ({"physics": decay, "emission": lambda x, u: x}, ValueError, "latent_dim must be given with a known emission"),
        ({"physics": lambda x, u: x[:0]}, ValueError, "physics: <lambda> must return one vector"),
        ({"physics": lambda x: x}, TypeError, r"physics: <lambda> must be a function of \(x, u\), got \(x\)"),
        ({"physics": lambda x, u: jnp.ones(2)}, ValueError, "physics must map 1 states and 0 controls to 1 states"),
        ({"physics": decay, "emission": np.ones((2, 1)), "latent_dim": 1}, ValueError, "emission must return the 1 outputs"),
    ],
)
def test_settings_that_do_not_fit_physics_are_refused(settings, error, message):
    with pytest.raises(error, match=message):
        fitted(data(), **settings)


@pytest.mark.slow
def test_parameters_of_physics_are_learned(standard_promotion):
    rng = np.random.default_rng(1)
    u, x = rng.normal(size=(150, 1)), np.zeros((150, 1))
    for t in range(149):
        x[t + 1] = 0.8 * x[t] + u[t] + 0.02 * rng.normal()
    known = ps.Known(driven, {"rate": 0.3}, x_size=1, u_size=1)
    model = ps.ProDSSM(physics=known, residual=False, hidden=None, recipe=ps.Recipe(iterations=200), progress=False)
    model.fit(ps.Series(x + 0.02 * rng.normal(size=x.shape), u))
    assert abs(float(model.ssm_.transition.params["rate"]) - 0.8) < 0.02


@pytest.mark.slow
def test_physics_and_network_halve_the_error_of_either_on_a_pendulum(standard_promotion):
    found = runpy.run_path(str(EXAMPLE))["errors"]()
    assert found["physics and network"] <= 0.5 * min(found["network"], found["physics"])


def test_smoothed_paths_are_in_the_units_of_the_data():
    model, series = fitted(data(), physics=decay), data()
    found = model.smooth(series, iterations=5)
    paths = found.sample(500, jr.key(0))
    assert paths.shape == (500, TIME, 1)
    assert (np.abs(paths.mean(axis=0) - found.mean) < 6 * found.std / 500**0.5).all()
    assert found.convergence.converged
