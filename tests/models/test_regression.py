"""A row through stochastic layers: exact where a formula exists, and close to simulation where none does."""

from itertools import pairwise

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.beliefs.gaussian import gaussian_log_probs
from prodssm.beliefs.weights.cross import StepwiseCross
from prodssm.models import regression
from prodssm.models.regression import LayerStack, output_belief, predict_rows, row_log_probs
from prodssm.models.state_space import VARIANCE_FLOOR

X = array(np.random.default_rng(0).normal(size=(3, 2)))
Y = array(np.random.default_rng(1).normal(size=(3, 1)))


def layer_model(weights="local", hidden=(4,), var=0.01, noise_bias=-3.0, residual=True):
    """Two inputs, one target, every weight with the same variance, constant process noise."""
    rng = np.random.default_rng(0)
    sizes = (2, *hidden, 2)
    means = [rng.normal(size=(o, i)) * 0.4 for i, o in pairwise(sizes)]
    biases = [rng.normal(size=o) * 0.2 for o in sizes[1:]]
    variances = {"weight_vars": [np.full_like(w, var) for w in means], "bias_vars": [np.full_like(b, var) for b in biases]}
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.zeros(2)), array(np.eye(2))),
        transition=ps.Network.from_arrays([array(w) for w in means], [array(b) for b in biases], "relu", **variances),
        process_noise=ps.Network.from_arrays([array(np.zeros((2, 2)))], [array([noise_bias, noise_bias])]),
        emission=ps.Network.from_arrays([array([[1.0, -0.5]])], [array([0.3])]),
        measurement_noise=array([0.05]),
        weights=weights,
        residual=residual,
    )


@pytest.mark.default_xla
@pytest.mark.parametrize("steps", [1, 2])
def test_compiled_rows_equal_rows_one_by_one(steps):
    # XLA:CPU once read uninitialised memory in a scan of length one.
    rows = array(np.random.default_rng(2).normal(size=(64, 2)))
    model, stack = layer_model(hidden=(40,)), LayerStack(steps, ps.Moments(order=1))
    _, cov = predict_rows(model, stack, rows, jr.key(0))
    for n in range(0, 64, 8):
        state = ps.Gaussian.certain(rows[n])
        for _ in range(steps):
            state = model.move(stack.method, state, None)[1]
        assert close(cov[n], model.likelihood.predict(model.emit(stack.method, state)[1]).cov, 100)


@eqx.filter_jit
def belief(model, x=X[0], steps=2, method=None):
    """The belief about the output of one row."""
    return output_belief(model, LayerStack(steps, method or ps.Moments()), x, key=jr.key(0), weights_key=jr.key(1))


def test_linear_layers_equal_the_textbook_recursion():
    model = layer_model(hidden=())
    layer = model.transition.linears[0]
    step = np.eye(2) + np.asarray(layer.weight)
    var, noise = 0.01, VARIANCE_FLOOR + np.log1p(np.exp(-3.0))
    mean, cov = np.asarray(X[0], float), np.zeros((2, 2))
    for _ in range(3):
        second = (np.diag(cov) + mean**2).sum() * var + var
        mean, cov = step @ mean + np.asarray(layer.bias), step @ cov @ step.T + (second + noise) * np.eye(2)
    g = np.array([1.0, -0.5])
    found = belief(model, steps=3)
    assert close(found.mean, [g @ mean + 0.3], 10)
    assert close(found.cov, [[g @ cov @ g]], 10)
    mean, cov = predict_rows(model, LayerStack(3, ps.Moments()), X[:1], jr.key(0))
    assert close(mean, found.mean[None])
    assert close(cov, found.cov[None] + 0.05)


@pytest.mark.slow
def test_weights_without_variance_are_point_weights_whoever_draws_them():
    point = belief(layer_model("point"))
    for weights in ("local", "global"):
        found = belief(layer_model(weights, var=0.0))
        assert close(found.mean, point.mean)
        assert close(found.cov, point.cov)


@pytest.mark.slow
def test_local_equals_global_for_one_step():
    local, shared = belief(layer_model("local"), steps=1), belief(layer_model("global"), steps=1)
    assert close(local.mean, shared.mean)
    assert close(local.cov, shared.cov)
    assert belief(layer_model("global"), steps=3).cov > belief(layer_model("local"), steps=3).cov


@pytest.mark.parametrize("weights", ["local", "global", "point"])
def test_moments_are_close_to_simulation(weights):
    model, samples = layer_model(weights), 20_000
    exact, drawn = belief(model, steps=3), belief(model, steps=3, method=ps.Sampled(samples))
    assert jnp.abs(exact.mean - drawn.mean) < 0.01 + 4 * jnp.sqrt(drawn.cov[0] / samples)
    # Recorded gap: hidden units are treated as jointly Gaussian.
    assert jnp.abs(exact.cov / drawn.cov - 1) < 0.03 + 4 * np.sqrt(2 / samples)


def test_particles_that_do_not_differ_leave_the_measurement_noise():
    model = layer_model("point", noise_bias=-100.0)
    _, cov = predict_rows(model, LayerStack(2, ps.Sampled(2)), X, jr.key(0))
    assert np.allclose(cov, 0.05, atol=100 * VARIANCE_FLOOR)


@pytest.mark.parametrize("how", [ps.Linearised(), ps.Unscented()], ids=["linearised", "unscented"])
@pytest.mark.parametrize("weights", ["local", "global", "point"])
def test_every_method_is_exact_after_one_linear_step(weights, how):
    model = layer_model(weights, hidden=())
    found, wanted = belief(model, steps=1, method=how), belief(model, steps=1)
    assert close(found.mean, wanted.mean)
    assert close(found.cov, wanted.cov)
    assert jnp.isfinite(belief(model, steps=3, method=how).cov).all()


@pytest.mark.slow
@pytest.mark.parametrize(("hidden", "residual"), [((4, 3), True), ((5,), False)], ids=str)
def test_a_stepwise_cross_covariance_is_the_dense_one_unmultiplied(hidden, residual):
    model, dt = layer_model("global", hidden, var=0.05, residual=residual), 0.3
    start, weights = ps.Gaussian.certain(X[0]), model.transition.weights

    def moved(joint):
        for _ in range(3):
            joint = model.move(ps.Moments(order=2), joint, None, dt)[1]
        return joint.state

    found = jax.jit(lambda: moved(ps.JointGaussian(start, StepwiseCross.zero(2, weights), weights)))()
    wanted = jax.jit(lambda: moved(ps.JointGaussian.independent(start, weights)))()
    assert close(found.mean, wanted.mean)
    assert close(found.cov, wanted.cov)


def test_many_steps_are_a_scan_and_few_are_unrolled_but_both_are_the_same(monkeypatch):
    model, stack = layer_model("global", hidden=(), var=0.05), LayerStack(3, ps.Moments())

    def compiled():
        return jax.jit(lambda: output_belief(model, stack, X[0], key=jr.key(0), weights_key=jr.key(1)))()

    few = compiled()
    monkeypatch.setattr(regression, "UNROLLED_STEPS", 2)
    many = compiled()
    assert close(few.mean, many.mean)
    assert close(few.cov, many.cov)


@pytest.mark.slow
def test_no_array_of_states_by_weights_appears_for_global_weights():
    model = layer_model("global", hidden=(30,))
    size = model.transition.weights.mean.size
    learned, fixed = eqx.partition(model, eqx.is_inexact_array)

    def variance(p, x):
        return belief(eqx.combine(p, fixed), x, steps=3, method=ps.Moments(order=1)).cov.sum()

    text = jax.jit(jax.grad(variance)).lower(learned, X[0]).compile().as_text()
    for shape in (f"2,{size}", f"{size},2", f"{size},{size}", "2,30,3", "2,2,31"):
        assert f"[{shape}]" not in text


@pytest.mark.slow
@pytest.mark.parametrize("weights", ["local", "global"])
def test_log_densities_of_rows_are_those_of_their_predictions(weights):
    model, stack = layer_model(weights), LayerStack(2, ps.Moments(order=1))
    found = eqx.filter_jit(row_log_probs)(model, stack, X, Y, key=jr.key(0))
    mean, cov = predict_rows(model, stack, X, jr.key(1))
    assert close(found, gaussian_log_probs(mean, cov, Y))
    var = np.asarray(cov, float)[:, 0, 0]
    wanted = -0.5 * (np.log(2 * np.pi * var) + np.asarray(Y - mean, float)[:, 0] ** 2 / var)
    assert close(found, wanted)


@pytest.mark.slow
def test_particles_of_a_prediction_do_not_depend_on_neighbouring_rows():
    model, stack = layer_model("local"), LayerStack(2, ps.Sampled(10))
    whole, alone = predict_rows(model, stack, X, jr.key(0)), predict_rows(model, stack, X[1:2], jr.key(0))
    assert close(whole[0][1], alone[0][0])
    assert close(whole[1][1], alone[1][0])
