"""A linear layer: means, variances, and samples of its weights and outputs."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close

import prodssm as ps

RNG = np.random.default_rng(2)
WEIGHT, BIAS = RNG.normal(size=(3, 2)), RNG.normal(size=3)
WEIGHT_VAR, BIAS_VAR = RNG.uniform(0.1, 0.5, size=(3, 2)), RNG.uniform(0.1, 0.5, size=3)
UNCERTAIN = ps.Linear(array(WEIGHT), array(BIAS), jnp.log(array(WEIGHT_VAR)), jnp.log(array(BIAS_VAR)))
POINT = ps.Linear(array(WEIGHT), array(BIAS))
X = array([0.7, -1.3])


def test_a_layer_is_linear_in_its_input():
    assert close(POINT(X), WEIGHT @ np.asarray(X) + BIAS)
    assert close(UNCERTAIN(X), WEIGHT @ np.asarray(X) + BIAS)


def test_matrices_have_the_bias_in_the_last_column():
    assert close(UNCERTAIN.mean_matrix, np.column_stack([WEIGHT, BIAS]))
    assert close(UNCERTAIN.var_matrix, np.column_stack([WEIGHT_VAR, BIAS_VAR]))
    assert close(POINT.var_matrix, np.zeros((3, 3)))


def test_a_layer_is_uncertain_if_it_has_variances():
    assert UNCERTAIN.uncertain
    assert not POINT.uncertain
    assert not UNCERTAIN.at_mean().uncertain
    assert close(UNCERTAIN.at_mean()(X), UNCERTAIN(X))


def test_output_variances_are_weight_variances_times_second_moments_of_the_input():
    moments = np.array([0.3, 2.0])
    assert close(UNCERTAIN.output_var(array(moments)), WEIGHT_VAR @ moments + BIAS_VAR)


def test_sampled_outputs_and_sampled_weights_have_the_same_moments(key):
    keys = jr.split(key, 100_000)
    outputs = jax.jit(jax.vmap(lambda k: UNCERTAIN.sample_output(X, key=k)))(keys)
    through_weights = jax.jit(jax.vmap(lambda k: UNCERTAIN.sample(key=k)(X)))(keys)
    variances = WEIGHT_VAR @ np.asarray(X) ** 2 + BIAS_VAR
    for drawn in (outputs, through_weights):
        drawn = np.asarray(drawn, float)
        moments = SampleMoments.of(drawn, drawn)
        assert_mean_matches(WEIGHT @ np.asarray(X) + BIAS, moments)
        assert_cov_matches(np.diag(variances), moments)


def test_a_known_input_is_folded_into_the_bias_with_its_variance():
    rest = UNCERTAIN.given(X[1:])
    assert close(rest(X[:1]), UNCERTAIN(X))
    moments = array([0.4])
    assert close(rest.output_var(moments), UNCERTAIN.output_var(jnp.concatenate([moments, X[1:] ** 2])))


def test_weight_samples_have_finite_gradients_where_a_variance_is_zero(key):
    net = ps.Network.from_arrays([[[1.0]]], [[0.0]], weight_vars=[[[0.5]]])
    grads = jax.grad(lambda n: n.sample(key)(jnp.ones(1)).sum())(net)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_point_weights_are_their_own_sample(key):
    assert POINT.sample(key=key) is POINT
    assert close(POINT.sample_output(X, key=key), POINT(X))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.Linear(jnp.zeros(3), array(BIAS)), "weight"),
        (lambda: ps.Linear(array(WEIGHT), jnp.zeros(2)), "bias"),
        (lambda: ps.Linear(array(WEIGHT), array(BIAS), jnp.zeros((3, 2))), "bias_log_var"),
        (lambda: ps.Linear(array(WEIGHT), array(BIAS), jnp.zeros((2, 3)), jnp.zeros(3)), "weight_log_var"),
        (lambda: ps.Linear(array(WEIGHT), array(BIAS), jnp.zeros((3, 2)), jnp.zeros(2)), "bias_log_var"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()
