"""A network is its layers in order; its flat view of the weights is one vector, layer after layer."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import (
    FUNCTIONS,
    SampleMoments,
    array,
    as_arrays,
    assert_cov_matches,
    assert_mean_matches,
    close,
    random_matrices,
    run_layers,
    run_layers_sampling_outputs,
)

import prodssm as ps

SIZES = (3, 5, 4, 2)
MATRICES, VARIANCES = random_matrices(3, SIZES, var=0.2)
NET = ps.Network.from_arrays(**as_arrays(MATRICES, VARIANCES), activation="tanh")
X = np.array([0.5, -1.0, 0.3])
FLAT = np.concatenate([m.reshape(-1) for m in MATRICES])


def test_a_network_at_its_mean_weights_is_the_plain_network():
    assert close(NET(array(X)), run_layers(X, MATRICES, [np.tanh, np.tanh]))
    assert close(NET.at_mean()(array(X)), NET(array(X)))


def test_there_is_no_activation_after_the_last_layer():
    single = ps.Network.from_arrays([array(MATRICES[0][:, :-1])], [array(MATRICES[0][:, -1])], activation="relu")
    assert close(single(array(X)), MATRICES[0][:, :-1] @ X + MATRICES[0][:, -1])
    assert len(single.layers) == 1


def test_the_flat_view_is_each_layer_with_its_bias_row_by_row():
    assert NET.shapes == ((5, 4), (4, 6), (2, 5))
    assert close(NET.weights.mean, FLAT)
    assert close(NET.weights.var, np.concatenate([v.reshape(-1) for v in VARIANCES]))
    assert isinstance(NET.weights, ps.DiagonalWeights)


def test_flat_weights_replace_those_of_the_network():
    replaced = NET.with_weights(array(FLAT + 0.1))
    assert not replaced.uncertain
    assert close(replaced(array(X)), run_layers(X, [m + 0.1 for m in MATRICES], [np.tanh, np.tanh]))
    assert close(NET.with_weights(NET.weights)(array(X)), NET(array(X)))


def test_sizes_and_uncertainty_are_read_off_the_layers():
    assert (NET.in_size, NET.out_size) == (3, 2)
    assert NET.uncertain
    assert not NET.at_mean().uncertain
    assert len(NET.linears) == 3
    assert close(NET.linears[1].mean_matrix, MATRICES[1])
    assert close(NET.linears[1].var_matrix, VARIANCES[1])


def test_variances_of_weights_or_biases_alone_leave_the_others_certain():
    parts = as_arrays(MATRICES, VARIANCES)
    only_weights = ps.Network.from_arrays(parts["weights"], parts["biases"], weight_vars=parts["weight_vars"])
    only_biases = ps.Network.from_arrays(parts["weights"], parts["biases"], bias_vars=parts["bias_vars"])
    for layer, var in enumerate(VARIANCES):
        of_weights, of_biases = only_weights.linears[layer].var_matrix, only_biases.linears[layer].var_matrix
        assert close(of_weights, np.column_stack([var[:, :-1], 0 * var[:, -1]]))
        assert close(of_biases, np.column_stack([0 * var[:, :-1], var[:, -1]]))


def test_a_known_control_leaves_a_network_of_the_state_alone():
    control = array(X[1:])
    rest = NET.given(control)
    assert rest.in_size == 1
    assert close(rest(array(X[:1])), NET(array(X)))
    assert close(NET.given(None)(array(X)), NET(array(X)))


def test_sampled_networks_have_point_weights_with_the_moments_of_the_prior(key):
    assert not NET.sample(key).uncertain
    flat = jax.jit(jax.vmap(lambda k: NET.sample(k).weights.mean))(jr.split(key, 50_000))
    flat = np.asarray(flat, float)
    moments = SampleMoments.of(flat, flat)
    assert_mean_matches(FLAT, moments)
    assert_cov_matches(np.diag(np.concatenate([v.reshape(-1) for v in VARIANCES])), moments, sigmas=5.5)


def test_a_network_with_point_weights_is_its_own_sample(key):
    point = NET.at_mean()
    assert close(point.sample(key)(array(X)), NET(array(X)))
    assert close(point.sample_output(array(X), key=key), NET(array(X)))


def test_sampled_outputs_have_the_moments_of_local_weights(key):
    outputs = jax.jit(jax.vmap(lambda k: NET.sample_output(array(X), key=k)))(jr.split(key, 100_000))
    found = SampleMoments.of(np.asarray(outputs, float), np.asarray(outputs, float))
    rng = np.random.default_rng(0)
    noises = [rng.standard_normal((400_000, len(m))) for m in MATRICES]
    wanted = run_layers_sampling_outputs(np.tile(X, (400_000, 1)), MATRICES, VARIANCES, [np.tanh] * 2, noises)
    wanted = SampleMoments.of(wanted, wanted)
    for a, b, error, other in (
        (found.mean, wanted.mean, found.mean_error, wanted.mean_error),
        (found.cov, wanted.cov, found.cov_error, wanted.cov_error),
    ):
        assert (np.abs(a - b) < 5 * np.hypot(error, other)).all()


def test_mlp_has_the_sizes_activation_and_variances_asked_for(key):
    net = ps.Network.mlp(SIZES, activation="gelu", key=key, log_var=-4.0)
    assert (net.in_size, net.out_size) == (3, 2)
    assert net.shapes == NET.shapes
    assert close(net.weights.var, np.full(54, np.exp(-4.0)))
    means = [np.asarray(linear.mean_matrix, float) for linear in net.linears]
    assert close(net(array(X)), run_layers(X, means, [FUNCTIONS["gelu"][0]] * 2))
    assert not ps.Network.mlp(SIZES, uncertain=False, key=key).uncertain


def test_mlp_weights_have_he_scale(key):
    net = ps.Network.mlp((200, 300, 1), key=key)
    assert abs(np.asarray(net.linears[0].weight).var() * 200 / 2 - 1) < 0.05


def test_an_activation_may_be_a_name_an_activation_or_a_function(key):
    by_name = ps.Network.mlp(SIZES, activation="tanh", key=key)
    by_object = ps.Network.mlp(SIZES, activation=ps.ACTIVATIONS["tanh"], key=key)
    by_function = ps.Network.mlp(SIZES, activation=jnp.tanh, key=key)
    assert close(by_object(array(X)), by_name(array(X)))
    assert close(by_function(array(X)), by_name(array(X)))


W, B = [[[1.0, 2.0], [0.5, 1.0]], [[1.0, -1.0]]], [[0.0, 0.0], [0.0]]


@pytest.mark.parametrize(
    ("build", "named"),
    [
        (lambda k: ps.Network.mlp((3,), key=k), "sizes"),
        (lambda k: ps.Network.mlp((), key=k), "sizes"),
        (lambda k: ps.Network.mlp((3, 0, 2), key=k), "sizes"),
        (lambda k: ps.Network.mlp((3, 2.5), key=k), "sizes"),
        (lambda k: ps.Network.mlp(SIZES, activation="rely", key=k), "activation"),
        (lambda k: ps.Network.mlp(SIZES, activation=3, key=k), "activation"),
        (lambda k: ps.Network.mlp(SIZES, log_var=jnp.nan, key=k), "log_var"),
        (lambda k: ps.Network.from_arrays([], []), "weights"),
        (lambda k: ps.Network.from_arrays(W, B[:1]), "biases"),
        (lambda k: ps.Network.from_arrays(W[::-1], B[::-1]), "weights"),
        (lambda k: ps.Network.from_arrays([[1.0, 2.0]], [[0.0]]), "weights"),
        (lambda k: ps.Network.from_arrays(W, [[0.0], [0.0]]), "biases"),
        (lambda k: ps.Network.from_arrays([[["a", "b"]]], [[0.0]]), "weights"),
        (lambda k: ps.Network.from_arrays([[[np.nan, 2.0]]], [[0.0]]), "weights"),
        (lambda k: ps.Network.from_arrays([[[1.0, 2.0]]], [[np.inf]]), "biases"),
        (lambda k: ps.Network.from_arrays(W, B, activation="rely"), "activation"),
        (lambda k: ps.Network.from_arrays([[[1.0]]], [[0.0]], weight_vars=[[[-1.0]]]), "weight_vars"),
        (lambda k: ps.Network.from_arrays([[[1.0]]], [[0.0]], weight_vars=[[[np.nan]]]), "weight_vars"),
        (lambda k: ps.Network.from_arrays([[[1.0]]], [[0.0]], weight_vars=[[[1.0, 1.0]]]), "weight_vars"),
        (lambda k: ps.Network.from_arrays([[[1.0]]], [[0.0]], weight_vars=[]), "weight_vars"),
        (lambda k: ps.Network.from_arrays([[[1.0]]], [[0.0]], bias_vars=[[-1.0]]), "bias_vars"),
        (lambda k: ps.Network.from_arrays([[[1.0]]], [[0.0]], bias_vars=[[np.inf]]), "bias_vars"),
        (lambda k: NET(jnp.zeros(2)), "x"),
        (lambda k: NET(jnp.zeros((4, 3))), "x"),
        (lambda k: NET.given(jnp.zeros(3)), "control"),
        (lambda k: NET.given(jnp.zeros((1, 1))), "control"),
        (lambda k: NET.with_weights(jnp.zeros(53)), "flat|weights"),
    ],
)
def test_a_mistake_is_refused_by_name(build, named, key):
    with pytest.raises((ValueError, TypeError), match=rf"\b({named})\b"):
        build(key)
