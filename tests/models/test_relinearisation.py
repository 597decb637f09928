"""Iterated posterior linearisation: exact on linear models, one fixed point on the kink; and posterior paths."""

from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm._storage import read, restore
from prodssm.datasets import kink
from prodssm.methods.base import find_method
from prodssm.models.backward import Marginals
from prodssm.models.filtering import Recursion
from prodssm.models.panels import smooth_panel
from prodssm.models.relinearisation import iterate

FILE = Path(__file__).parent.parent / "fixtures" / "kink_models.safetensors"
LEVEL, RUNS = 0.08, 10


@pytest.fixture(scope="module")
def kinks():
    """Models (1-50-1, local weights) trained as in experiments/kink.py on its ten trajectories at r = 0.08, and these."""
    arrays = {name: values.astype(float) for name, values in read(FILE).arrays.items()}
    scaling = arrays.pop("scaling")
    template = ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 50, 1), key=jr.key(0)),
        process_noise=[0.1],
        likelihood=ps.GaussianLikelihood(np.ones(1)),
    )
    found = []
    for run in range(RUNS):
        mean, scale = scaling[run]
        y = (kink.simulate(LEVEL, seed=1100 + run).y - mean) / scale
        found.append((restore(template, {name: values[run] for name, values in arrays.items()}), ps.Series(array(y))))
    return found


def test_the_smoother_of_a_linear_model_is_a_fixed_point(problem, method):
    once, often = (ps.smooth_states(problem.model, problem.series, method, iterations=most) for most in (1, 200))
    assert (often.convergence.passes, often.convergence.converged) == (2, True)
    assert close(often.mean, once.mean, scale=10)
    assert close(often.cov, once.cov, scale=10)
    assert close(often.log_evidence, once.log_evidence)
    assert once.convergence == (1, None, None)


@pytest.mark.float64
def test_a_cubic_sensor_converges_to_the_posterior_where_the_filter_does_not():
    # docs/math.md 7.3: y = x + x^3/3 + e, x ~ N(0, 1), y = 3, var e = 0.05; the posterior has mean 1.598 and variance 0.0040.
    cubic = ps.from_function(lambda x: x + x**3 / 3)
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.from_arrays([[[1.0]]], [[0.0]]),
        emission=ps.Network.from_arrays([[[1.0]], [[1.0]]], [[0.0], [0.0]], cubic),
        process_noise=[1.0],
        measurement_noise=[0.05],
    )
    y = np.array([[3.0], [np.nan]])
    once, often = (ps.smooth_states(model, y, iterations=most) for most in (1, 50))
    assert np.isclose(once.mean[0, 0], 1.27, atol=0.01)
    assert np.allclose((often.mean[0, 0], often.cov[0, 0, 0]), (1.598, 0.0040), atol=0.005)
    assert often.convergence.converged


@pytest.mark.slow
@pytest.mark.float64
def test_the_kink_has_one_fixed_point_that_damped_passes_reach_and_others_need_not(kinks):
    for model, series in kinks:
        found = ps.smooth_states(model, series, iterations=200)
        assert found.convergence.converged
        halved = ps.smooth_states(model, series, iterations=200, damping=0.5)
        assert halved.convergence.converged
        recursion = Recursion(model, find_method("moments"))
        prior = jax.jit(lambda r, s: r.scan(s, given=jnp.zeros(s.dt.size, bool))[1][0])(recursion, series.record)
        start = Marginals(prior.mean, prior.cov)
        last = jax.jit(iterate)(recursion, series.record, start, 200, jnp.asarray(0.5))
        assert last.move <= 1e-6
        std = np.asarray(found.std)
        for other in (halved.mean, last.found.mean):
            assert np.abs((np.asarray(other) - found.mean) / std).max() < 1e-4
    plain = [ps.smooth_states(*each, iterations=200, damping=0.0).convergence for each in kinks]
    assert sum(each.converged for each in plain) < RUNS


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("how", ["linearised", "unscented", "cubature", ps.Sampled(200, jr.key(0))])
def test_every_method_can_be_iterated(kinks, how):
    model, series = kinks[0]
    found = ps.smooth_states(model, series.window(0, 40), how, iterations=300, damping=0.5)
    assert np.isfinite(found.mean).all()
    assert found.convergence.passes > 2
    # The slope of a ReLU network at one point jumps, so that passes of the extended smoother go back and forth.
    assert found.convergence.converged == (how != "linearised")


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("how", ["moments", "linearised", "unscented", "cubature", ps.Sampled(200, jr.key(0))])
def test_every_method_converges_on_a_smooth_network(how):
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 8, 1), "erf", key=jr.key(0)),
        process_noise=[0.1],
        measurement_noise=[0.3],
    )
    found = ps.smooth_states(model, 2 * np.sin(np.arange(40.0))[:, None], how, iterations=200)
    assert found.convergence.converged
    assert found.convergence.passes > 2


@pytest.mark.slow
def test_point_weights_and_a_nonlinear_emission_converge_for_many_series_as_for_one():
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(2), 0.5 * jnp.eye(2)),
        transition=ps.Network.mlp((3, 4, 2), "erf", uncertain=False, key=jr.key(0)),
        emission=ps.Network.mlp((2, 3, 2), "erf", uncertain=False, key=jr.key(1)),
        process_noise=[0.1, 0.2],
        measurement_noise=[0.01, 0.02],
        weights="point",
    )
    rng, series = np.random.default_rng(3), []
    for length in (9, 10, 17):
        u = array(rng.normal(size=(length, 1)))
        series.append(ps.Series(ps.simulate(model, length, key=jr.key(length), u=u)[1], u))
    many = smooth_panel(model, series, iterations=100)
    for each, one in zip(series, many, strict=True):
        alone = ps.smooth_states(model, each, iterations=100)
        assert alone.convergence.converged
        assert one.convergence.passes == alone.convergence.passes
        assert close(one.mean, alone.mean, scale=10)
        assert close(one.sample(3, jr.key(0)), alone.sample(3, jr.key(0)), scale=100)


def test_wrong_settings_are_refused(problem, global_problem):
    model, y = global_problem(rank=32)
    for settings, message in [
        ({"iterations": 0}, "iterations must be"),
        ({"damping": 1.0}, "damping must be at least 0 and below 1, got 1.0"),
    ]:
        with pytest.raises((TypeError, ValueError), match=message):
            ps.smooth_states(problem.model, problem.series, **settings)
    with pytest.raises(ValueError, match="iterations must be 1 for weights='global'"):
        ps.smooth_states(model, y, iterations=2)
    with pytest.raises(TypeError, match="key must be a key"):
        ps.smooth_states(problem.model, problem.series).sample(2, None)


# ---------------------------------------------------------------- paths


def moments_within(paths, mean, cov, lag, errors=5.0):
    """Whether sampled paths have these moments within so many standard errors."""
    count, off = len(paths), paths - mean
    std = np.sqrt(np.einsum("tii->ti", cov))
    assert (np.abs(off.mean(axis=0)) <= errors * std / count**0.5).all()
    for shift, wanted in ((0, cov), (1, lag)):
        a, b = off[:, shift:], off[:, : off.shape[1] - shift]
        found = np.einsum("sti,stj->tij", a, b) / count
        noise = np.sqrt((std[shift:, :, None] * std[: len(std) - shift, None, :]) ** 2 + wanted**2)
        assert (np.abs(found - wanted) <= errors * noise / count**0.5).all()


def lag_one(cov, channels, filtered):
    """Cov[x[t + 1], x[t]] given all data, from covariances of the smoother and the gains of its backward pass."""
    found = []
    for t in range(len(cov) - 1):
        slope, noise, own = (np.asarray(part[t], float) for part in (channels.slope, channels.noise, filtered.cov))
        gain = np.linalg.solve(slope @ own @ slope.T + noise, slope @ own).T
        found.append(cov[t + 1] @ gain.T)
    return np.stack(found)


def test_paths_have_the_moments_of_the_smoother_and_its_lag_one_covariance(problem):
    found = ps.smooth_states(problem.model, problem.series)
    recursion = Recursion(problem.model, find_method("moments"))
    kept = jax.jit(lambda r, s: r.scan(s, keep_channels=True))(recursion, problem.series.record)[1]
    mean, cov = np.asarray(found.mean, float), np.asarray(found.cov, float)
    paths = np.asarray(found.sample(4000, jr.key(1)), float)
    assert paths.shape == (4000, problem.time, 3)
    moments_within(paths, mean, cov, lag_one(cov, kept[1], kept[0]))


@pytest.mark.slow
@pytest.mark.float64
def test_paths_of_an_iterated_smoother_have_its_moments(kinks):
    model, series = kinks[0]
    found = ps.smooth_states(model, series, iterations=200)
    paths = np.asarray(found.sample(4000, jr.key(2)))
    assert (np.abs(paths.mean(axis=0) - found.mean) <= 5 * found.std / 4000**0.5).all()
    var = found.cov[:, :, 0]  # the first state of a trained model is certain up to rounding
    assert (np.abs(paths.var(axis=0) - var) <= 5 * (2 / 4000) ** 0.5 * var + 1e-30).all()


@pytest.mark.slow
def test_paths_with_global_weights_have_the_moments_of_the_smoother(global_problem):
    model, y = global_problem(rank=32)
    found = ps.smooth_states(model, y)
    paths = np.asarray(found.sample(2000, jr.key(3)), float)
    assert (np.abs(paths.mean(axis=0) - found.mean) <= 5 * found.std / 2000**0.5).all()
    assert (np.abs(paths.var(axis=0) / np.einsum("tii->ti", found.cov) - 1) <= 5 * (2 / 2000) ** 0.5).all()
