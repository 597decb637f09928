"""A model starts as the linear model of subspace identification, or with random networks for standardised data."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.training.initialisation import (
    INITIAL_PROCESS_VAR,
    Architecture,
    random_model,
    regression_model,
    scale_output,
    scale_variances,
    transition_network,
    variance_network,
)


def architecture(**changes):
    usual = {"latent_dim": 2, "hidden": (8,), "activation": "relu", "weights": "local", "residual": True}
    return Architecture(**(usual | {"process_noise": "constant", "emission": "linear"} | changes))


def unstarted(series, **changes):
    likelihood = ps.GaussianLikelihood(jnp.full(series.y.shape[1], 0.1, series.y.dtype), learned=True)
    return random_model(architecture(**changes), series.y, 1, likelihood, key=jr.key(0))


def test_a_linear_emission_starts_from_the_principal_axes():
    rng = np.random.default_rng(0)
    y = rng.normal(size=(50, 3)) @ np.diag([3.0, 1.0, 0.1])
    model = unstarted(ps.Series(y))
    second_moment, axes = y.T @ y / 50, np.asarray(model.emission.linears[0].weight, float)
    values, vectors = np.linalg.eigh(second_moment)
    assert close(axes @ axes.T, (vectors[:, 1:] * values[1:]) @ vectors[:, 1:].T, scale=20)
    more = unstarted(ps.Series(y), latent_dim=5).emission.linears[0].weight
    assert close(more[:, :3] @ more[:, :3].T, second_moment, scale=20)
    assert (jnp.abs(more[:, 3:]).sum(axis=0) > 0).all()  # or states that no output shows would have no gradient


def test_parts_of_a_random_model_follow_the_architecture():
    y = ps.Series(np.random.default_rng(0).normal(size=(20, 2)))
    model = unstarted(y, emission=(5,), process_noise=(4,), weights="point", residual=False, activation="tanh")
    assert model.emission.shapes == ((5, 3), (2, 6))
    assert model.transition.shapes == ((8, 4), (2, 9))
    assert model.process_network.shapes == ((4, 4), (2, 5))
    assert not model.process_network.uncertain
    assert not model.emission.uncertain
    assert unstarted(y, emission="identity").emission is None
    assert unstarted(y, process_noise=(4,)).process_network.uncertain
    assert np.allclose(np.exp(unstarted(y).log_process_noise), INITIAL_PROCESS_VAR)


def test_a_regression_model_starts_close_to_a_ridge_regression():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 2))
    y = x @ np.array([[0.8], [-0.5]])
    model = regression_model((4,), (3,), "relu", "global", ps.GaussianLikelihood([0.1]), x, y, key=jr.key(0))
    assert (model.weights, model.residual, model.x_size, model.y_size) == ("global", True, 2, 1)
    assert np.allclose(model.emission.linears[0].weight, [[0.8, -0.5]], atol=0.25)
    variances = eqx.filter_jit(model.process_variances)(ps.Gaussian.certain(array(x[0])), None)
    assert ((INITIAL_PROCESS_VAR / 5 < variances) & (variances < INITIAL_PROCESS_VAR * 5)).all()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"latent_dim": 0}, "latent_dim must be at least 1, got 0"),
        ({"hidden": (4, 0)}, "hidden must have positive sizes"),
        ({"hidden": 5}, "hidden must be a tuple of hidden sizes, got 5"),
        ({"hidden": (True,)}, "hidden must be a tuple of hidden sizes"),
        ({"process_noise": "none"}, "process_noise must be 'constant' or a tuple of hidden sizes, got 'none'"),
        (
            {"emission": "cubic"},
            "emission must be 'identity' or 'linear' or 'feedthrough' or a tuple of hidden sizes, got 'cubic'",
        ),
        ({"emission": "identity"}, "latent_dim must equal the 3 outputs for emission='identity', got 2"),
        ({"weights": "shared"}, "weights must be one of"),
        ({"activation": "magic"}, "activation"),
    ],
)
def test_bad_architectures_are_refused_by_name(changes, said):
    with pytest.raises((ValueError, TypeError), match=said):
        architecture(**changes).check(3)


# Networks


def test_first_units_bend_where_standardised_inputs_are():
    network = transition_network((2, 500, 1), "relu", key=jr.key(0))
    first = network.linears[0]
    # A unit bends on the line w x + b = 0; its point is drawn from N(0, I), so -b / |w| is standard normal.
    distance = -np.asarray(first.bias, float) / np.linalg.norm(np.asarray(first.weight, float), axis=1)
    assert abs(distance.mean()) < 5 / np.sqrt(500)
    assert abs(distance.var() - 1) < 5 * np.sqrt(2 / 500)
    assert transition_network((2, 1), "relu", key=jr.key(0)).shapes == ((1, 3),)


def test_a_variance_network_starts_at_the_initial_variance():
    network = variance_network((2, 3, 2), "relu", True, key=jr.key(0))
    plain = ps.Network.mlp((2, 3, 2), "relu", key=jr.key(0))
    shift = network.linears[-1].bias - plain.linears[-1].bias
    assert np.allclose(np.log1p(np.exp(np.asarray(shift, float))), INITIAL_PROCESS_VAR, rtol=1e-4)


def test_outputs_and_variances_are_scaled():
    network = ps.Network.mlp((2, 3, 1), key=jr.key(0))
    x = array([0.3, -0.7])
    assert close(scale_output(network, 0.1)(x), 0.1 * network(x))
    assert close(scale_output(network, 0.1).weights.var, network.weights.var)
    assert close(scale_variances(network, 0.1).weights.var, 0.1 * network.weights.var)
    assert close(scale_variances(network, 0.1).weights.mean, network.weights.mean)
    certain = ps.Network.mlp((2, 3, 1), uncertain=False, key=jr.key(0))
    assert not scale_variances(certain, 0.1).uncertain
