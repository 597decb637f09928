"""ODE2VAE: the density along a path, the bound, and what forecasts and transitions are averages of; linear models are exact."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close
from scipy.linalg import expm
from scipy.stats import multivariate_normal, norm

from prodssm.baselines.ode2vae import DECAY, DECAY_STEPS, INITIAL_LOG_STD, ODE2VAE, LatentODE, PathTask
from prodssm.data.scaling import Standardiser
from prodssm.networks.network import Network
from prodssm.training.recipe import SERIES_RECIPE, Recipe

NOISE = np.array([0.3, 0.5, 0.2])
FORCE, CONSTANT = np.array([[-1.0, 0.3, -0.4, 0.2], [0.1, -0.8, 0.5, -0.7]]), np.array([0.3, -0.2])
pytestmark = pytest.mark.usefixtures("standard_promotion")


def linear(weight, bias, **variances):
    return Network.from_arrays([array(weight)], [array(bias)], **variances)


def second_order(context=2, step=0.05, dynamics=None, seed=0):
    """Two positions and velocities, three outputs; every network is linear."""
    draw = np.random.default_rng(seed)
    return LatentODE(
        dynamics=dynamics or linear(FORCE, CONSTANT),
        position_encoder=linear(draw.normal(size=(4, 3)), draw.normal(size=4)),
        velocity_encoder=linear(draw.normal(size=(4, 3 * context)), draw.normal(size=4)),
        decoder=linear(draw.normal(size=(3, 2)), draw.normal(size=3)),
        noise_logit=array(np.zeros(3)),
        log_noise_bounds=array(np.log([NOISE, NOISE])),
        step=step,
        context=context,
    )


def first_order(dynamics, position_encoder, r=0.4, step=0.5, context=2):
    bounds = array(np.log([[r], [r]]))
    return LatentODE(dynamics, position_encoder, None, None, array([0.0]), bounds, step, context)


def flow(duration):
    """The exact flow of the linear ODE: z -> slope z + shift."""
    whole = np.zeros((5, 5))
    whole[:2, 2:4], whole[2:4, :4], whole[2:4, 4] = np.eye(2), FORCE, CONSTANT
    found = expm(whole * duration)
    return found[:4, :4], found[:4, 4]


def test_the_log_density_falls_by_the_trace_of_the_whole_jacobian(key):
    model = second_order(dynamics=Network.mlp((4, 7, 2), "tanh", uncertain=False, key=key))
    z = array([0.3, -0.5, 0.8, 0.1])
    change, log_change = model.derivative(model.dynamics, z)
    assert close(change, np.concatenate([z[2:], model.dynamics(z)]))
    assert close(log_change, -np.trace(jax.jacfwd(lambda z: model.derivative(model.dynamics, z)[0])(z)))


@pytest.mark.float64
def test_a_gaussian_stays_the_gaussian_that_a_linear_flow_maps_it_to(key):
    model = second_order()
    y = array(np.random.default_rng(1).normal(size=(2, 3)))
    states, log_q = model.draw_path(y, 30, key=key)
    mean, std = (np.asarray(part) for part in model.encode(y))
    for t in (0, 10, 29):
        slope, shift = flow(0.05 * t)
        assert np.allclose(states[t], slope @ states[0] + shift, atol=1e-6)
        mapped = multivariate_normal(slope @ mean + shift, slope @ np.diag(std**2) @ slope.T)
        assert np.isclose(log_q[t], mapped.logpdf(states[t]), atol=1e-5)


@pytest.mark.float64
def test_the_density_of_a_nonlinear_flow_is_that_of_the_change_of_variables(key):
    model = second_order(dynamics=Network.mlp((4, 7, 7, 2), "tanh", uncertain=False, key=key))

    def last(z):
        return jax.tree.map(lambda part: part[-1], model.path(model.dynamics, (z, jnp.zeros(())), 20))

    z = array([0.3, -0.5, 0.8, 0.1])
    determinant = np.linalg.slogdet(jax.jacfwd(lambda z: last(z)[0])(z))[1]
    assert abs(determinant) > 1e-2
    assert np.isclose(last(z)[1], -determinant, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.0, 0.7])
def test_the_bound_of_a_path_is_the_sum_of_its_terms(key, gamma):
    model, y = second_order(), array(np.random.default_rng(1).normal(size=(6, 3)))
    states, log_q = (np.asarray(part) for part in model.draw_path(y[:2], 6, key=key))
    wanted = 0.0
    for t in range(6):
        decoded = np.asarray(model.decoder.linears[0](array(states[t, :2])))
        wanted += norm.logpdf(y[t], decoded, np.sqrt(NOISE)).sum() + norm.logpdf(states[t]).sum() - log_q[t]
        if t <= 4:  # the encoder sees two frames
            mean, std = (np.asarray(part) for part in model.encode(y[t : t + 2]))
            wanted -= gamma * (log_q[t] - norm.logpdf(states[t], mean, std).sum())
    assert close(model.bound(y, array(gamma), key=key), wanted, scale=10)


def test_the_encoder_sees_one_frame_for_the_position_and_all_for_the_velocity():
    model, y = second_order(), array(np.random.default_rng(1).normal(size=(2, 3)))
    mean, std = model.encode(y)
    other_mean, other_std = model.encode(y.at[1, 0].add(1.0))
    assert close(mean[:2], other_mean[:2])
    assert close(std[:2], other_std[:2])
    assert not close(mean[2:], other_mean[2:])
    position = model.position_encoder(y[0])
    assert close(mean[:2], position[:2])
    assert close(std[:2], np.exp(position[2:] + INITIAL_LOG_STD))


@pytest.mark.parametrize("seed", range(3))
def test_with_the_exact_posterior_the_bound_of_a_linear_map_is_the_evidence(seed):
    slope, shift, r, step = -0.8, 0.3, 0.4, 0.5
    seen = np.array([[1.0], [1 + step * slope]])  # y = seen x_0 + offset + noise
    offset = np.array([0.0, step * shift])
    cov = seen @ seen.T + r * np.eye(2)
    gain = seen.T @ np.linalg.inv(cov)
    var = 1 - (gain @ seen).item()
    # The encoder gives y_0 + sqrt(r) (weight y + bias), and a log standard deviation relative to sqrt(r).
    weight = (gain - np.array([[1.0, 0.0]])) / np.sqrt(r)
    bias = -(gain @ offset).item() / np.sqrt(r)
    log_std = 0.5 * np.log(var / r) - INITIAL_LOG_STD
    encoder = linear(np.vstack([weight, np.zeros((1, 2))]), [bias, log_std])
    model = first_order(linear([[slope]], [shift]), encoder, r, step)
    y = np.random.default_rng(seed).normal(size=2)
    bound = model.bound(array(y[:, None]), array(0.0), key=jr.key(seed))
    assert close(bound, multivariate_normal(offset, cov).logpdf(y), scale=10)


def fitted(model, scale, **settings):
    found = ODE2VAE(context=model.context, progress=False, **settings)
    found.model_ = model
    found.scaling_ = Standardiser(np.asarray(array(np.full(len(scale), 0.5))), np.asarray(array(scale)))
    return found


def test_a_transition_averages_over_the_weights(key):
    variances = {"weight_vars": [array([[0.09]])], "bias_vars": [array([0.04])]}
    model = first_order(linear([[-0.8]], [0.3], **variances), linear(np.zeros((2, 2)), [0.0, 0.0]))
    x, samples = np.array([[-1.0], [0.5], [2.0]]), 20_000
    mean, var = fitted(model, [2.0], order=1).transition(x, samples=samples, key=key)
    z = (x - 0.5) / 2
    wanted_mean, wanted_var = 0.5 + 2 * (z + 0.5 * (-0.8 * z + 0.3)), 4 * 0.25 * (0.09 * z**2 + 0.04)
    assert (np.abs(mean - wanted_mean) < 5 * np.sqrt(wanted_var / samples)).all()
    assert (np.abs(var - wanted_var) < 5 * wanted_var * np.sqrt(2 / samples)).all()


def test_a_forecast_has_the_moments_of_the_linear_gaussian_future(key):
    model, scale, samples, steps = second_order(), np.array([1.0, 2.0, 0.5]), 20_000, 4
    past = np.random.default_rng(1).normal(size=(5, 3))
    mean, cov = fitted(model, scale).forecast(past, steps, samples=samples, key=key)
    first, std = (np.asarray(part, float) for part in model.encode(array((past[-2:] - 0.5) / scale)))
    layer = model.decoder.linears[0]
    weight, bias = np.asarray(layer.weight, float) * scale[:, None], np.asarray(layer.bias, float) * scale + 0.5
    for k in range(steps):
        slope, shift = flow(0.05 * (2 + k))  # the path starts at the first of the two frames
        seen = weight @ slope[:2]
        wanted = seen @ np.diag(std**2) @ seen.T
        error = np.sqrt(np.diag(wanted))
        assert (np.abs(mean[k] - weight @ (slope[:2] @ first + shift[:2]) - bias) < 5 * error / np.sqrt(samples)).all()
        found = cov[k] - np.diag(NOISE * scale**2)
        assert (np.abs(found - wanted) < 5 * np.outer(error, error) * np.sqrt(2 / samples)).all()


def test_learned_noise_stays_within_its_bounds_and_known_noise_is_kept():
    model = second_order()
    bounds = array(np.log([[1.0, 1.0, 1.0], [np.e, np.e, np.e]]))
    between = LatentODE(model.dynamics, model.position_encoder, None, None, array([-50.0, 0.0, 50.0]), bounds, 0.1, 1)
    assert close(between.noise, np.exp([0.0, 0.5, 1.0]))
    assert close(model.noise, NOISE)


def test_the_learning_rate_falls_every_200_steps():
    recipe, one = SERIES_RECIPE.filled(SERIES_RECIPE), np.asarray(array(1.0))
    recipe = Recipe(schedule="constant", iterations=10, learning_rate=0.1).filled(recipe)
    arrays = np.asarray(array(np.zeros((1, 2, 1))))
    task = PathTask(None, arrays, None, one, one, jr.key(0), recipe.pace(one.dtype), recipe)
    optimiser, weight = task.optimiser(), array([1.0])
    state, updates = optimiser.init(weight), []
    update = jax.jit(optimiser.update)
    for _ in range(DECAY_STEPS + 1):
        change, state = update(weight, state, weight)
        updates.append(float(change[0]))
    assert np.isclose(updates[-1] / updates[-2], DECAY, rtol=1e-4)
    assert np.isclose(updates[-2], -0.1, rtol=1e-3)


def waves(count, length, seed):
    """Oscillations of random phase and amplitude, of which three outputs see one position; a fourth output is constant."""
    draw = np.random.default_rng(seed)
    phase, size = draw.uniform(0, 2 * np.pi, (count, 1)), draw.uniform(2.0, 4.0, (count, 1))
    angle = 0.3 * np.arange(length) + phase
    y = np.stack([size * np.sin(angle), 5 * np.cos(angle), np.sin(angle) ** 2], axis=2)
    y = y + 0.1 * draw.normal(size=y.shape)
    return np.concatenate([y, np.full((count, length, 1), 1e-5)], axis=2)


def test_oscillations_are_forecast_better_than_by_their_mean(key):
    train, validation, test = waves(12, 40, 0), waves(3, 40, 1), waves(3, 40, 2)
    recipe = Recipe(iterations=400, window=20, batch=12)
    model = ODE2VAE(latent=2, noise=(0.1, 1.0), recipe=recipe, progress=False).fit(train, validation)
    assert max(model.history_.validation) > model.history_.validation[0]
    mean, cov = model.forecast(test[0, :3], 37, samples=64, key=key)
    assert mean.shape == (37, 4)
    assert np.linalg.eigvalsh(cov).min() > 0
    errors = [model.forecast(y[:3], 37, samples=64, key=key)[0] - y[3:] for y in test]
    assert np.mean(np.square(errors)) < 0.5 * np.mean((test[:, 3:] - train.mean(axis=(0, 1))) ** 2)


def test_a_map_is_learned_from_one_noisy_trajectory(key):
    draw, x = np.random.default_rng(0), [0.5]
    for _ in range(149):
        x.append(1.0 - 1.5 * x[-1] ** 2)  # neither increasing nor decreasing
    y = np.array(x)[None, :, None] + 0.05 * draw.normal(size=(1, 150, 1))
    settings = {"latent": 1, "context": 2, "order": 1, "noise": 0.0025, "step": 1.0, "progress": False}
    model = ODE2VAE(hidden=(20,), recipe=Recipe(iterations=1000, window=2, batch=64), **settings).fit(y)
    grid = np.linspace(-0.4, 0.9, 9)[:, None]
    mean, var = model.transition(grid, key=key)
    assert np.mean((mean - (1.0 - 1.5 * grid**2)) ** 2) < 0.1 * np.var(y)
    assert (var > 0).all()


def test_what_does_not_fit_is_refused(key):
    model = fitted(second_order(), [1.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="at least 2 frames"):
        model.forecast(np.zeros((1, 3)), 2, key=key)
    with pytest.raises(ValueError, match="order=1"):
        model.transition(np.zeros((2, 1)), key=key)
    data = np.arange(10.0).reshape(1, 5, 2)
    for settings, words in (({"order": 3}, "order must be"), ({"order": 1}, "with latent=2"), ({"context": 9}, "at least 9")):
        with pytest.raises(ValueError, match=words):
            ODE2VAE(progress=False, **settings).fit(data)
    with pytest.raises(ValueError, match="validation needs sequences and a window of at least 4"):
        ODE2VAE(progress=False).fit(data, data[:, :3])
    with pytest.raises(ValueError, match="finite"):
        ODE2VAE(progress=False).fit(np.full((1, 5, 2), np.nan))
