"""States guessed by linear algebra are those of a linear system, and a model starts from them."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import prodssm as ps
from prodssm.assembly import Settings, acquainted, assemble
from prodssm.subspace import LAGS, guess_states

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


def test_a_start_is_no_noisier_than_what_the_linear_model_leaves_unexplained():
    loud, quiet = (started(simulated(400, noise=noise)) for noise in (0.5, 0.01))
    assert (quiet.log_process_noise < loud.log_process_noise).all()
    assert quiet.transition.weights.var.max() < loud.transition.weights.var.min()


def test_missing_values_are_interpolated_and_short_series_leave_a_model_as_it_was():
    series = simulated(400)
    gaps = ps.Series(jnp.asarray(series.y).at[100:110].set(jnp.nan), series.u)
    assert np.isfinite(np.asarray(started(gaps).transition.weights.mean)).all()
    # Two channels that are never seen together, and one that never changes.
    y = jnp.concatenate([series.y, series.y, jnp.zeros_like(series.y)], axis=1)
    apart = ps.Series(y.at[::2, 0].set(jnp.nan).at[1::2, 1].set(jnp.nan), series.u)
    assert np.isfinite(np.asarray(started(apart).transition.weights.mean)).all()
    assert guess_states([simulated(3 * LAGS)], 2) is None
    assert guess_states([simulated(40)], 2) is None
