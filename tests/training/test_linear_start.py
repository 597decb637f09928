"""A model starts as the linear model of subspace identification."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.training.initialisation import Architecture, random_model
from prodssm.training.linear_start import NOISE_SHARE, linear_start
from prodssm.training.subspace import identify


def unstarted(series, **changes):
    usual = {"latent_dim": 2, "hidden": (8,), "activation": "relu", "weights": "local", "residual": True, "linear": True}
    architecture = Architecture(**(usual | {"process_noise": "constant", "emission": "linear"} | changes))
    likelihood = ps.GaussianLikelihood(jnp.full(series.y.shape[1], 0.1, series.y.dtype), learned=True)
    return random_model(architecture, series.y, 1, likelihood, key=jr.key(0))


def started(series, **changes):
    return linear_start(unstarted(series, **changes), [series])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "activation", "residual", "emission"),
    [((), "relu", True, "linear"), ((8,), "relu", False, "linear"), ((8,), "erf", True, "feedthrough")],
)
def test_a_network_starts_as_the_linear_model_and_forecasts_without_training(
    hidden, activation, residual, emission, linear_system
):
    series = linear_system(400)
    shape = {"hidden": hidden, "activation": activation, "residual": residual, "emission": emission}
    model = started(series, **shape, linear=bool(hidden))
    found = ps.forecast(model, series.window(0, 50), 20, u=series.u[50:70])
    assert np.abs(np.asarray(found.mean) - np.asarray(series.y[50:70])).max() < 0.1 * float(series.y.std())


@pytest.mark.slow
def test_a_slow_system_starts_slow():
    rng = np.random.default_rng(0)
    u, x = rng.normal(size=(1000, 1)), np.zeros((1000, 1))
    for t in range(999):
        x[t + 1] = 0.998 * x[t] + 0.05 * u[t]
    series = ps.Series(x / x.std(), u)
    found = ps.forecast(started(series, latent_dim=1), series.window(0, 100), 900, u=series.u[100:])
    assert np.sqrt(np.mean((np.asarray(found.mean) - np.asarray(series.y[100:])) ** 2)) < 0.1


def test_a_start_has_the_noise_of_the_linear_model(linear_system):
    series = linear_system(400, noise=0.5)
    found, model = identify([series], 2), started(series)
    assert found is not None
    wanted = NOISE_SHARE * np.diag(found.gain @ found.innovation_cov @ found.gain.T)
    noise = jax.jit(lambda at: jnp.diag(ps.Moments().channel(model.transition, ps.Gaussian.certain(at)).noise))
    from_weights = np.mean([noise(array(at)) for at in found.points[::10]], axis=0)
    assert (from_weights < 1.1 * wanted).all()
    assert np.allclose(np.exp(model.log_process_noise), wanted, rtol=1e-3)
    assert np.allclose(model.likelihood.variance, NOISE_SHARE * np.diag(found.innovation_cov), rtol=1e-3)
    assert close(model.linear, found.slope, scale=10)
    known = eqx.tree_at(lambda m: m.likelihood, unstarted(series), ps.GaussianLikelihood(jnp.full(1, 0.3)))
    assert np.allclose(linear_start(known, [series]).likelihood.variance, 0.3)


def test_outputs_that_are_never_observed_together_or_never_change_give_a_finite_start(linear_system):
    series = linear_system(400)
    y = np.asarray(series.y)
    apart = np.concatenate([y, y, np.zeros_like(y)], axis=1)
    apart[::2, 0], apart[1::2, 1] = np.nan, np.nan
    model = started(ps.Series(apart, series.u))
    assert all(np.isfinite(np.asarray(part)).all() for part in (model.transition.weights.mean, model.emission.weights.mean))


def test_a_model_without_room_for_it_stays_as_it_was(linear_system):
    short = linear_system(12)
    for model, series in ((unstarted(short), short), (unstarted(short, linear=False), linear_system(400))):
        assert linear_start(model, [series]) is model
