"""A linear layer knows its mean, its variances and how to draw itself."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import Moments, array, assert_cov_matches, assert_mean_matches, close

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


def test_its_matrices_put_the_bias_in_the_last_column():
    assert close(UNCERTAIN.mean_matrix, np.column_stack([WEIGHT, BIAS]))
    assert close(UNCERTAIN.var_matrix, np.column_stack([WEIGHT_VAR, BIAS_VAR]))
    assert close(POINT.var_matrix, np.zeros((3, 3)))


def test_it_knows_whether_it_is_uncertain():
    assert UNCERTAIN.uncertain
    assert not POINT.uncertain
    assert not UNCERTAIN.at_mean().uncertain
    assert close(UNCERTAIN.at_mean()(X), UNCERTAIN(X))


def test_output_variances_grow_with_the_second_moments_of_the_input():
    moments = np.array([0.3, 2.0])
    assert close(UNCERTAIN.output_var(array(moments)), WEIGHT_VAR @ moments + BIAS_VAR)


def test_drawing_outputs_and_drawing_weights_have_the_same_moments(key):
    keys = jr.split(key, 100_000)
    outputs = jax.jit(jax.vmap(lambda k: UNCERTAIN.sample_output(X, key=k)))(keys)
    through_weights = jax.jit(jax.vmap(lambda k: UNCERTAIN.sample(key=k)(X)))(keys)
    variances = WEIGHT_VAR @ np.asarray(X) ** 2 + BIAS_VAR
    for drawn in (outputs, through_weights):
        drawn = np.asarray(drawn, float)
        moments = Moments.of(drawn, drawn)
        assert_mean_matches(WEIGHT @ np.asarray(X) + BIAS, moments)
        assert_cov_matches(np.diag(variances), moments)


def test_a_known_input_moves_into_the_bias_with_its_share_of_the_variance():
    rest = UNCERTAIN.given(X[1:])
    assert close(rest(X[:1]), UNCERTAIN(X))
    moments = array([0.4])
    assert close(rest.output_var(moments), UNCERTAIN.output_var(jnp.concatenate([moments, X[1:] ** 2])))


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda: ps.Linear(array(WEIGHT), jnp.zeros(2)), "bias"),
        (lambda: ps.Linear(array(WEIGHT), array(BIAS), jnp.zeros((2, 3)), jnp.zeros(3)), "weight_log_var"),
        (lambda: ps.Linear(array(WEIGHT), array(BIAS), jnp.zeros((3, 2)), jnp.zeros(2)), "bias_log_var"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named):
    with pytest.raises((ValueError, TypeError), match=named):
        build()
