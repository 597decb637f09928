"""States guessed by linear algebra are those of a linear system, and a model starts from them."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.activations import ACTIVATIONS
from prodssm.assembly import Settings, acquainted, assemble
from prodssm.linalg import ridge
from prodssm.methods.moments import moments
from prodssm.subspace import LAGS, _filled, guess_states

A = np.array([[0.9, 0.2], [-0.2, 0.8]])
B = np.array([[0.5], [1.0]])
C = np.array([[1.0, -0.5]])


def simulated(steps, seed=0, noise=0.0):
    """A linear system that is driven by random controls."""
    rng = np.random.default_rng(seed)
    u, x = rng.normal(size=(steps, 1)), np.zeros((steps, 2))
    for t in range(steps - 1):
        x[t + 1] = A @ x[t] + B @ u[t] + noise * rng.normal(size=2)
    return ps.Series(x @ C.T + noise * rng.normal(size=(steps, 1)), u)


def settings(**changes):
    usual = {"latent_dim": 2, "hidden": (8,), "activation": "relu", "weights": "local", "residual": True}
    usual |= {"process_noise": "constant", "emission": "linear", "noise_floor": 1e-6}
    return Settings(**(usual | changes))


def started(series, **changes):
    model = assemble(settings(**changes), series.y, 1, None, key=jr.key(0))
    return acquainted(model, [series])


def test_the_states_of_a_linear_system_move_and_show_linearly():
    found = guess_states([simulated(400), simulated(100, seed=1)], 2)
    assert found is not None
    for inputs, outputs in (found.seen, found.moves):
        design = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        rest = outputs - design @ np.linalg.lstsq(design, outputs, rcond=None)[0]
        assert (rest.std(axis=0) < 0.02 * outputs.std(axis=0)).all()
    assert len(found.seen[0]) == (400 - 2 * LAGS + 1) + (100 - 2 * LAGS + 1)


@pytest.mark.parametrize(
    ("hidden", "activation", "residual"), [((), "relu", True), ((8,), "relu", False), ((8,), "gelu", True)]
)
def test_a_network_starts_as_the_linear_model_and_foresees_without_training(hidden, activation, residual):
    series = simulated(400)
    model = started(series, hidden=hidden, activation=activation, residual=residual)
    foreseen = ps.forecast(model, series.window(0, 50), 20, u=series.u[50:70])
    assert np.abs(np.asarray(foreseen.mean) - np.asarray(series.y[50:70])).max() < 0.1 * float(series.y.std())


def test_a_slow_system_starts_slow():
    rng = np.random.default_rng(0)
    u, x = rng.normal(size=(1000, 1)), np.zeros((1000, 1))
    for t in range(999):
        x[t + 1] = 0.998 * x[t] + 0.05 * u[t]
    series = ps.Series(x / x.std(), u)
    model = started(series, latent_dim=1)
    foreseen = ps.forecast(model, series.window(0, 100), 900, u=series.u[100:])
    assert np.sqrt(np.mean((np.asarray(foreseen.mean) - np.asarray(series.y[100:])) ** 2)) < 0.1


def test_a_start_is_no_noisier_than_what_the_linear_model_leaves_unexplained():
    series = simulated(400, noise=0.5)
    found, model = guess_states([series], 2), started(series)
    assert found is not None
    inputs, following = found.moves
    slope, bias = ridge(inputs, following)
    rest = (following - inputs @ slope.T - bias).var(axis=0)
    noise = jax.jit(lambda at: jnp.diag(moments(model.transition, ps.Gaussian.certain(at)).noise))
    spread = np.mean([noise(array(at)) for at in inputs[::10]], axis=0)
    assert (spread < 0.6 * rest).all()
    assert np.allclose(np.exp(model.log_process_noise), 0.5 * rest, rtol=0.05)


def test_gaps_are_interpolated_but_long_ones_tell_nothing():
    series = simulated(400)
    y = np.asarray(series.y)
    assert np.allclose(_filled(np.array([[1.0], [np.nan], [3.0], [np.nan]]))[:, 0], [1, 2, 3, 3])
    short, long = (guess_states([ps.Series(gap(y, 100, size), series.u)], 2) for size in (3, 100))
    assert short is not None
    assert long is not None
    assert len(short.seen[0]) == 400 - 2 * LAGS + 1
    assert len(long.seen[0]) < 400 - 2 * LAGS + 1 - 90
    # Two channels that are never seen together, and one that never changes.
    apart = np.concatenate([y, y, np.zeros_like(y)], axis=1)
    apart[::2, 0], apart[1::2, 1] = np.nan, np.nan
    model = started(ps.Series(apart, series.u))
    assert all(np.isfinite(np.asarray(part)).all() for part in (model.transition.weights.mean, model.emission.weights.mean))


def gap(y, begin, size):
    """Without a stretch."""
    return np.where((np.arange(len(y)) - begin) // size == 0, np.nan, y[:, 0])


def test_series_that_are_too_short_leave_a_model_as_it_was():
    series = simulated(40)
    assert guess_states([simulated(3 * LAGS)], 2) is None
    model = assemble(settings(), series.y, 1, None, key=jr.key(0))
    assert acquainted(model, [series]) is model


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_no_hidden_unit_is_a_copy_of_another(activation):
    network = ps.Network.mlp((2, 8, 1), activation, key=jr.key(0), spread=1.0).mirrored()
    x = array(np.random.default_rng(0).normal(size=(20, 2)))
    hidden = np.asarray(jax.vmap(ps.Network(network.layers[:-1]))(x))
    if activation == "identity":
        return  # has nothing but copies anyway
    for n in range(8):
        for other in range(n):
            assert not np.allclose(np.abs(hidden[:, n]), np.abs(hidden[:, other]))
