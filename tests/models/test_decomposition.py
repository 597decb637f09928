"""Epistemic variance is what pairs of futures with the same weights share; all parts add up to that of the forecast."""

import jax.numpy as jnp
import numpy as np
import pytest
from oracles import FUNCTIONS, SampleMoments, array, build_network, close, random_matrices, run_layers, run_layers_at

import prodssm as ps
from prodssm.models.decomposition import decompose
from prodssm.models.filtering import Recursion, last_filtered
from prodssm.models.forecasting import future_inputs


def relu_model(sizes, *, scale, var=0.02, emission=None, residual=False, weights="global", seed=0):
    """A model with small random weights."""
    matrices, variances = random_matrices(seed, sizes, scale, var)
    x = sizes[-1]
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.zeros(x)), array(0.5 * np.eye(x))),
        transition=build_network(matrices, variances, ["relu"] * (len(sizes) - 2)),
        emission=emission,
        process_noise=array(np.full(x, 0.02)),
        measurement_noise=array(np.full(x if emission is None else emission.out_size, 0.05)),
        weights=weights,
        residual=residual,
    )


def parts_ahead(model, series, steps, u=None, dt=None, method=None):
    """The parts of the variance of a forecast."""
    return decompose(Recursion(model, method or ps.Moments()), series.record, future_inputs(model, series, steps, u, dt))


def conditional(belief, size):
    """A joint belief in NumPy: mean, slope of the state in the weights, roots of its remaining covariance and the weights'."""
    mean, cov = np.asarray(belief.mean, float), np.asarray(belief.cov, float)
    slope = cov[:size, size:] @ np.linalg.pinv(cov[size:, size:], rcond=1e-10, hermitian=True)
    left = cov[:size, :size] - slope @ cov[size:, :size]
    roots = []
    for matrix in (left, cov[size:, size:]):
        values, vectors = np.linalg.eigh(matrix)
        roots.append(vectors * np.sqrt(np.maximum(values, 0.0)))
    return mean, slope, *roots


def sample_replicas(model, belief, controls, steps, emit, samples, seed=0):
    """Futures in pairs (samples, steps, y) that share their weights and nothing else, step by step in NumPy."""
    rng, size = np.random.default_rng(seed), model.x_size
    mean, slope, left, root = conditional(belief.dense(), size)
    weights = rng.normal(size=(samples, len(root))) @ root.T
    var = np.exp(np.asarray(model.log_process_noise, float))
    functions = [FUNCTIONS["relu"][0]] * (len(model.transition.shapes) - 1)
    replicas = []
    for _ in range(2):
        x, path = mean[:size] + weights @ slope.T + rng.normal(size=(samples, size)) @ left.T, []
        for k, dt in enumerate(np.asarray(steps, float)):
            known = np.zeros((samples, 0)) if controls is None else np.tile(np.asarray(controls[k], float), (samples, 1))
            moved = run_layers_at(np.hstack([x, known]), mean[size:] + weights, model.transition.shapes, functions)
            noise = np.sqrt(var) * rng.normal(size=x.shape)
            x = x + dt * moved + np.sqrt(dt) * noise if model.residual else moved + noise
            path.append(emit(x))
        replicas.append(np.stack(path, axis=1))
    return replicas


def assert_parts_match_replicas(model, series, steps, *, gap, emit=lambda x: x, u=None, dt=None):
    """Epistemic and total variances lie within sampling error plus a recorded gap of those of sampled replicas."""
    parts, ahead = parts_ahead(model, series, steps, u, dt), future_inputs(model, series, steps, u, dt)
    assert (parts.aleatoric > 0).all()
    assert close(parts.measurement, np.full(parts.measurement.shape, 0.05))
    last = last_filtered(Recursion(model, ps.Moments()), series.record)
    first, second = sample_replicas(model, last, ahead.u, ahead.dt, emit, 100_000)
    for k in range(steps):
        for found, pair in ((parts.epistemic, second), (parts.epistemic + parts.aleatoric, first)):
            wanted = SampleMoments.of(first[:, k], pair[:, k])
            value, error = np.diag(wanted.cov), np.diag(wanted.cov_error)
            worst = (np.abs(np.asarray(found[k], float) - value) - 5 * error) / value
            # The first step is exact but for the order of the expansion; later ones take the state to be Gaussian.
            assert (worst < (gap if k else 0.01)).all(), (k, worst)


@pytest.mark.slow
def test_epistemic_variance_is_the_covariance_of_replicas():
    rng = np.random.default_rng(1)
    matrices, _ = random_matrices(9, (2, 4, 3), 0.8)
    functions = [FUNCTIONS["relu"][0]]
    model = relu_model((2, 6, 2), scale=0.6, emission=build_network(matrices, None, ["relu"]))
    series = ps.Series(array(0.5 * rng.normal(size=(6, 3))))
    assert_parts_match_replicas(model, series, 4, gap=0.08, emit=lambda x: run_layers(x, matrices, functions))


@pytest.mark.slow
def test_epistemic_variance_of_a_residual_model_scales_with_time():
    rng = np.random.default_rng(2)
    model = relu_model((2, 6, 1), scale=0.5, residual=True)
    time, u = np.cumsum(rng.uniform(0.2, 0.6, 6)), rng.normal(size=(11, 1))
    series = ps.Series(array(0.5 * rng.normal(size=(6, 1))), array(u[:6]), array(time))
    assert_parts_match_replicas(model, series, 4, gap=0.05, u=array(u[6:]), dt=array([0.3, 0.5, 0.2, 0.4]))


def test_a_model_linear_in_its_weights_is_decomposed_exactly(drift_model):
    y, steps = np.array([0.1, 0.9, 1.2, np.nan, 2.5]), np.array([0.5, 1.0, 0.7, 2.0])
    time = np.concatenate([[0.0], np.cumsum(steps)])
    # (x, b) as a linear system: condition, then move.
    mean, cov = np.array([0.0, 0.2]), np.diag([1.0, 0.6])
    for t, value in enumerate(y):
        if np.isfinite(value):
            gain = cov[:, 0] / (cov[0, 0] + 0.3)
            mean, cov = mean + gain * (value - mean[0]), cov - np.outer(gain, cov[0])
        if t < len(steps):
            move = np.array([[1.0, steps[t]], [0.0, 1.0]])
            mean, cov = move @ mean, move @ cov @ move.T + np.diag([0.1 * steps[t], 0.0])
    ahead = np.array([0.4, 1.0, 3.0])
    reach = np.cumsum(ahead)
    series = ps.Series(array(y), time=array(time))
    found = parts_ahead(drift_model(0.6), series, 3, dt=array(ahead))
    assert close(found.epistemic[:, 0], (cov[0, 1] + reach * cov[1, 1]) ** 2 / cov[1, 1])
    assert close(found.aleatoric[:, 0], cov[0, 0] - cov[0, 1] ** 2 / cov[1, 1] + 0.1 * reach)
    assert close(found.measurement[:, 0], np.full(3, 0.3))
    certain = parts_ahead(drift_model(0.0), series, 3, dt=array(ahead))
    assert (certain.aleatoric > 0).all()
    assert (certain.epistemic == 0).all()


SERIES = ps.Series(array([0.3, 0.1, -0.2, 0.4]))


@pytest.mark.slow
def test_the_parts_add_up_to_the_variance_of_the_forecast():
    model = relu_model((1, 3, 1), scale=0.5)
    found, wanted = parts_ahead(model, SERIES, 3), ps.forecast(model, SERIES, 3)
    assert close(found.epistemic + found.aleatoric + found.measurement, wanted.std**2)
    assert (found.epistemic > 0).all()


@pytest.mark.parametrize("how", [ps.Linearised(), ps.Unscented()], ids=["linearised", "unscented"])
def test_point_weights_have_no_epistemic_variance_whatever_the_method(how):
    model = relu_model((1, 3, 1), scale=0.5, weights="point")
    found, wanted = parts_ahead(model, SERIES, 3, method=how), ps.forecast(model, SERIES, 3, how)
    assert (found.epistemic == jnp.zeros((3, 1))).all()
    assert close(found.aleatoric + found.measurement, wanted.std**2)


def test_what_cannot_be_told_apart_says_what_to_use_instead():
    with pytest.raises(ValueError, match=r"local.*Use weights='global', or compare transition"):
        parts_ahead(relu_model((1, 3, 1), scale=0.5, weights="local"), SERIES, 3)
    with pytest.raises(ValueError, match="decompose needs method='moments', got Linearised"):
        parts_ahead(relu_model((1, 3, 1), scale=0.5), SERIES, 3, method=ps.Linearised())
