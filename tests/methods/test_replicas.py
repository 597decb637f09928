"""Covariances between replicas: two trajectories that share their global weights and nothing else."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import (
    FUNCTIONS,
    SampleMoments,
    array,
    assert_cov_matches,
    build_network,
    close,
    flatten,
    propagate,
    random_cov,
    random_joint_cov,
    random_matrices,
    run_layers,
    run_layers_at,
    smallest_eigenvalue,
)

import prodssm as ps
from prodssm.beliefs.channel import Link
from prodssm.methods.replicas import initial_replica_cov, output_replica_cov, propagate_replicas

STATE = np.array([0.4, -0.7])
MATRICES, VARIANCES = random_matrices(3, (3, 5, 2), scale=0.8)
NET = build_network(MATRICES, VARIANCES, ("relu",))
CONTROL = array([0.5])
MOMENTS = ps.Moments(order=4)

move = eqx.filter_jit(propagate_replicas)
emit = eqx.filter_jit(output_replica_cov)


def joint_belief(structure):
    """A state that is correlated with the weights of the network, and the covariance of both."""
    prior = flatten(VARIANCES)
    cov, factor = random_joint_cov(5, 2, prior, rank=0 if structure == "diagonal" else 2)
    weights = {
        "diagonal": lambda: NET.weights,
        "low rank": lambda: ps.LowRankWeights(NET.weights.mean, array(prior), array(factor), NET.shapes),
        "dense": lambda: ps.DenseWeights(NET.weights.mean, array(cov[2:, 2:]), NET.shapes),
    }[structure]()
    return ps.JointGaussian(ps.Gaussian(array(STATE), array(cov[:2, :2])), array(cov[:2, 2:]), weights), cov


@pytest.mark.parametrize("structure", ["diagonal", "low rank", "dense"])
def test_replicas_start_with_the_variance_that_the_weights_explain(structure):
    belief, cov = joint_belief(structure)
    wanted = cov[:2, 2:] @ np.linalg.inv(cov[2:, 2:]) @ cov[2:, :2]
    assert close(initial_replica_cov(belief), wanted, scale=10)


def test_a_state_that_is_independent_of_the_weights_shares_nothing():
    belief = ps.JointGaussian.independent(ps.Gaussian(array(STATE), jnp.eye(2)), NET.weights)
    assert close(initial_replica_cov(belief), np.zeros((2, 2)))


@pytest.mark.parametrize("structure", ["diagonal", "low rank", "dense"])
@pytest.mark.parametrize("dt", [None, 0.3])
def test_channel_and_predicted_belief_are_those_of_moment_matching(structure, dt):
    belief, _ = joint_belief(structure)
    link = None if dt is None else Link.residual(belief.mean, array(dt))
    channel, predicted, between = move(MOMENTS, NET, belief, initial_replica_cov(belief), CONTROL, link)
    wanted, wanted_predicted = propagate(MOMENTS, NET, belief, control=CONTROL, dt=dt)
    for field in ("mean", "slope", "noise", "weight_slope"):
        assert close(getattr(channel, field), np.asarray(getattr(wanted, field)))
    assert close(predicted.cov, np.asarray(wanted_predicted.cov))
    assert close(predicted.cross, np.asarray(wanted_predicted.cross))
    # The law of total covariance: what replicas share is a part of the covariance, and so is the rest.
    assert close(between, np.asarray(between.T))
    assert smallest_eigenvalue(between) > -1e-6
    assert smallest_eigenvalue(predicted.cov - between) > -1e-6


def test_weights_without_variance_share_nothing():
    certain = build_network(MATRICES, [0 * v for v in VARIANCES], ("relu",))
    belief = ps.JointGaussian.independent(ps.Gaussian(array(STATE), jnp.eye(2)), certain.weights)
    _, predicted, between = move(MOMENTS, certain, belief, jnp.zeros((2, 2)), CONTROL, None)
    assert close(between, np.zeros((2, 2)))
    assert smallest_eigenvalue(predicted.cov) > 0


def test_at_a_known_state_replicas_share_all_variance_but_that_beyond_the_order():
    belief = ps.JointGaussian.independent(ps.Gaussian.certain(array(STATE)), NET.weights)
    gaps = []
    for order in (1, 2, 4, 10):
        _, predicted, between = move(ps.Moments(order=order), NET, belief, jnp.zeros((2, 2)), CONTROL, None)
        gaps.append(float(jnp.trace(predicted.cov - between) / jnp.trace(predicted.cov)))
    assert gaps[0] > gaps[1] >= gaps[2] > gaps[3] > -1e-6
    assert gaps[-1] < 0.003


@pytest.mark.parametrize("dt", [None, 0.5])
def test_a_linear_layer_is_exact_against_sampling(dt):
    matrices, variances = random_matrices(8, (2, 2), var=0.3)
    cov, factor = random_joint_cov(9, 2, flatten(variances), rank=1)
    net = build_network(matrices, None, ())
    weights = ps.LowRankWeights(array(flatten(matrices)), array(flatten(variances)), array(factor), net.shapes)
    belief = ps.JointGaussian(ps.Gaussian(array(STATE), array(cov[:2, :2])), array(cov[:2, 2:]), weights)
    link = None if dt is None else Link.residual(belief.mean, array(dt))
    _, _, between = move(MOMENTS, net, belief, initial_replica_cov(belief), None, link)
    # Weights from their marginal; given them, two independent states.
    rng, samples = np.random.default_rng(0), 500_000
    w = rng.multivariate_normal(flatten(matrices), cov[2:, 2:], size=samples)
    regression = np.linalg.solve(cov[2:, 2:], cov[2:, :2]).T
    own = np.linalg.cholesky(cov[:2, :2] - regression @ cov[2:, :2])
    replicas = []
    for _ in range(2):
        x = STATE + (w - flatten(matrices)) @ regression.T + rng.standard_normal((samples, 2)) @ own.T
        f = run_layers_at(x, w, net.shapes, ())
        replicas.append(f if dt is None else x + dt * f)
    assert_cov_matches(between, SampleMoments.of(*replicas))


def test_outputs_of_a_linear_emission_share_what_the_states_share():
    matrix = random_matrices(4, (2, 3))[0][0]
    cov = random_cov(np.random.default_rng(1), 2)
    found = emit(MOMENTS, build_network([matrix], None, ()), ps.Gaussian(array(STATE), array(cov)), array(0.4 * cov))
    assert close(found, 0.4 * matrix[:, :-1] @ cov @ matrix[:, :-1].T)


def test_outputs_share_nothing_if_the_states_share_nothing():
    emission = build_network(random_matrices(4, (2, 6, 3))[0], None, ("tanh",))
    found = emit(MOMENTS, emission, ps.Gaussian(array(STATE), jnp.eye(2)), jnp.zeros((2, 2)))
    assert close(found, np.zeros((3, 3)))


@pytest.mark.float64
@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "sin", "relu"])
def test_outputs_of_one_hidden_layer_converge_to_sampling_with_the_order(name):
    matrices = random_matrices(4, (2, 6, 3))[0]
    emission, function = build_network(matrices, None, (name,)), FUNCTIONS[name][0]
    cov = random_cov(np.random.default_rng(1), 2)
    found = emit(ps.Moments(order=12), emission, ps.Gaussian(array(STATE), array(cov)), array(0.5 * cov))
    rng, samples, chol = np.random.default_rng(2), 1_000_000, np.linalg.cholesky(0.5 * cov)
    shared = rng.standard_normal((samples, 2))
    replicas = []
    for _ in range(2):
        x = STATE + (shared + rng.standard_normal((samples, 2))) @ chol.T
        replicas.append(run_layers(x, matrices, [function]))
    assert_cov_matches(found, SampleMoments.of(*replicas))
