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
from prodssm import regression
from prodssm.links import SteppedCross
from prodssm.model import VARIANCE_FLOOR
from prodssm.objective import model_prior
from prodssm.regression import Plan, Rows, RowsTask, log_probs, padded, target_belief
from prodssm.training import Recipe

RNG = np.random.default_rng(0)
X = array(RNG.normal(size=(3, 2)))


def layers(weights="local", hidden=(4,), var=0.01, noise_bias=-3.0, seed=0, residual=True):
    """Two inputs, one target, every weight with the same variance, constant process noise."""
    rng = np.random.default_rng(seed)
    sizes = (2, *hidden, 2)
    means = [rng.normal(size=(o, i)) * 0.4 for i, o in pairwise(sizes)]
    biases = [rng.normal(size=o) * 0.2 for o in sizes[1:]]
    parts = {"weight_vars": [np.full_like(w, var) for w in means], "bias_vars": [np.full_like(b, var) for b in biases]}
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.zeros(2)), array(np.eye(2))),
        transition=ps.Network.from_arrays([array(w) for w in means], [array(b) for b in biases], "relu", **parts),
        process_noise=ps.Network.from_arrays([array(np.zeros((2, 2)))], [array([noise_bias, noise_bias])]),
        emission=ps.Network.from_arrays([array([[1.0, -0.5]])], [array([0.3])]),
        measurement_noise=array([0.05]),
        weights=weights,
        residual=residual,
    )


def belief(model, x=X[0], steps=2, samples=1, **more):
    return target_belief(model, Plan(steps, **more), x, key=jr.key(0), weights_key=jr.key(1), samples=samples)


def test_linear_layers_equal_the_textbook_recursion():
    model = layers(hidden=())
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
    assert close(found.cov, [[g @ cov @ g + 0.05]], 10)


def test_weights_without_variance_are_point_weights_whoever_draws_them():
    point = belief(layers("point"))
    for weights in ("local", "global"):
        found = belief(layers(weights, var=0.0))
        assert close(found.mean, point.mean)
        assert close(found.cov, point.cov)


def test_local_equals_global_for_one_step():
    local, shared = belief(layers("local"), steps=1), belief(layers("global"), steps=1)
    assert close(local.mean, shared.mean)
    assert close(local.cov, shared.cov)
    assert belief(layers("global"), steps=3).cov > belief(layers("local"), steps=3).cov


@pytest.mark.parametrize("weights", ["local", "global", "point"])
def test_moments_are_close_to_simulation(weights):
    model, samples = layers(weights), 20_000
    exact, drawn = belief(model, steps=3), belief(model, steps=3, method="sampled", samples=samples)
    assert jnp.abs(exact.mean - drawn.mean) < 0.01 + 4 * jnp.sqrt(drawn.cov[0] / samples)
    # Recorded gap: hidden units are treated as jointly Gaussian.
    assert jnp.abs(exact.cov / drawn.cov - 1) < 0.03 + 4 * np.sqrt(2 / samples)


def test_one_particle_leaves_the_measurement_noise():
    assert close(belief(layers(), method="sampled", samples=1).cov, [[0.05]])


@pytest.mark.parametrize(("hidden", "residual"), [((4, 3), True), ((5,), False)], ids=str)
def test_a_sum_over_steps_is_the_covariance_with_the_weights_unmultiplied(hidden, residual):
    model, dt = layers("global", hidden, var=0.05, residual=residual), 0.3
    start, weights = ps.Gaussian.certain(X[0]), model.transition.weights

    def moved(joint):
        for _ in range(3):
            joint = joint.advance(model.transition_channel(joint, None, dt, order=2))
        return joint.state

    found = jax.jit(lambda: moved(ps.JointGaussian(start, SteppedCross.none(2, weights), weights)))()
    wanted = jax.jit(lambda: moved(ps.JointGaussian.independent(start, weights)))()
    assert close(found.mean, wanted.mean)
    assert close(found.cov, wanted.cov)


def test_many_steps_are_a_loop_and_few_are_not_but_both_are_the_same(monkeypatch):
    model = layers("global", hidden=(), var=0.05)
    few = belief(model, steps=3)
    monkeypatch.setattr(regression, "WRITTEN_OUT", 2)
    many = belief(model, steps=3)
    assert close(few.mean, many.mean)
    assert close(few.cov, many.cov)


def test_a_covariance_kept_step_by_step_asks_for_moment_matching():
    model = layers("global")
    weights = model.transition.weights
    joint = ps.JointGaussian(ps.Gaussian.certain(X[0]), SteppedCross.none(2, weights), weights)
    other = ps.Channel(X[0], array(np.eye(2)), array(np.eye(2)))
    with pytest.raises(ValueError, match="needs a channel by moment matching"):
        joint.advance(other)


def test_no_array_of_states_by_weights_appears_for_global_weights():
    model = layers("global", hidden=(30,))
    size = model.transition.weights.mean.size
    learned, fixed = eqx.partition(model, eqx.is_inexact_array)

    def variance(p, x):
        return belief(eqx.combine(p, fixed), x, steps=3, order=1).cov.sum()

    text = jax.jit(jax.grad(variance)).lower(learned, X[0]).compile().as_text()
    for shape in (f"2,{size}", f"{size},2", f"{size},{size}", "2,30,3", "2,2,31"):
        assert f"[{shape}]" not in text


def test_padding_leaves_no_trace_and_held_out_rows_are_only_scored():
    model = layers()
    y = RNG.normal(size=(3, 1))

    def task(rows):
        return RowsTask.of(model, rows, Recipe(prior_weight=0.3), Plan(2, order=1), key=jr.key(0))

    @eqx.filter_jit
    def values(task, learned):
        objective = task.objective(learned, jr.key(1))
        return objective, task.worth(learned, objective, jnp.int32(7))[1]

    rows, prior = np.asarray(X, float), 0.3 * model_prior(model)
    scores = log_probs(model, Plan(2, order=1), X, array(y), key=jr.key(0), samples=1)
    assert len(rows) < padded(len(rows))
    objective, worth = values(*task(Rows.of(rows, y)))
    assert close(objective, scores.mean() + prior / 3)
    assert worth == 7
    objective, worth = values(*task(Rows.of(rows, y, held=1)))
    assert close(objective, scores[:2].mean() + prior / 2)
    assert close(worth, scores[2])


def test_a_batch_has_no_row_twice_and_none_that_is_held_out():
    rows = Rows.of(np.zeros((40, 1)), np.zeros((40, 1)), held=10)
    for n in range(20):
        members, counts = rows.draw(16, key=jr.key(n))
        assert counts.all()
        assert len(set(members.tolist())) == 16
        assert members.max() < 30
    members, counts = rows.draw(50, key=jr.key(0))
    assert counts.sum() == 30
