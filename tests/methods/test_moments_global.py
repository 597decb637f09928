"""The rule for global weights: one formula, the same for every structure of the weight covariance."""

import itertools

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import (
    array,
    assert_cov_matches,
    assert_mean_matches,
    build_network,
    close,
    dense_channel,
    flatten,
    propagate,
    random_joint_cov,
    random_matrices,
    sample_joint,
    smallest_eigenvalue,
)

import prodssm as ps
from prodssm.beliefs.weights.cross import StepwiseCross
from prodssm.methods.moments_global import forward, reference, written_out

RNG = np.random.default_rng(7)
STATE = np.array([0.4, -0.7, 0.2])
NAMES = ("relu", "sin")
MOMENTS = ps.Moments(order=3)
EVERY_STRUCTURE = pytest.mark.parametrize("structure", ["diagonal", "low rank", "dense"])


class Problem:
    """A network and a joint belief of one structure, whose covariance is also written out."""

    def __init__(self, structure, sizes, *, x, rank=3, controls=0):
        self.sizes, self.names = (x + controls, *sizes), NAMES[: len(sizes) - 1]
        self.matrices, _ = random_matrices(rank, self.sizes, scale=0.7)
        self.mean = flatten(self.matrices)
        prior = np.random.default_rng(len(self.mean)).uniform(0.02, 0.2, size=len(self.mean))
        rank = 0 if structure == "diagonal" else min(rank, len(prior) - x)
        self.cov, factor = random_joint_cov(rank, x, prior, rank=rank)
        self.network = build_network(self.matrices, None, self.names)
        weights = {
            "diagonal": lambda: ps.DiagonalWeights(array(self.mean), array(prior), self.network.shapes),
            "low rank": lambda: ps.LowRankWeights(array(self.mean), array(prior), array(factor), self.network.shapes),
            "dense": lambda: ps.DenseWeights(array(self.mean), array(self.cov[x:, x:]), self.network.shapes),
        }[structure]()
        state = ps.Gaussian(array(STATE[:x]), array(self.cov[:x, :x]))
        self.belief = ps.JointGaussian(state, array(self.cov[:x, x:]), weights)
        self.control = np.array([0.8, -0.3])[:controls] if controls else None


# ---------------------------------------------------------------- structured equals dense


def assert_same(found, wanted):
    """Equal to ten digits in double precision, and as `close` says in single precision."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.dtype != np.float64:
        assert close(found, wanted, scale=3)
        return
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-10 * max(1.0, np.abs(wanted).max())


@EVERY_STRUCTURE
@pytest.mark.parametrize("controls", [0, 2])
@pytest.mark.parametrize("outputs", [1, 3])
@pytest.mark.parametrize("hidden", [(), (5, 4)], ids=str)
def test_every_structure_equals_the_dense_reference(structure, controls, outputs, hidden):
    problem = Problem(structure, (*hidden, outputs), x=2, controls=controls)
    control = None if problem.control is None else array(problem.control)
    found, predicted = propagate(MOMENTS, problem.network, problem.belief, control=control)
    wanted = eqx.filter_jit(reference)(problem.network, problem.belief, control, 3)
    for field in ("mean", "slope", "noise", "weight_slope"):
        assert_same(getattr(found, field), getattr(wanted, field))
    after = problem.belief.predict(wanted)
    assert_same(predicted.cov, after.cov)
    assert_same(predicted.cross, after.cross)


@pytest.mark.parametrize(
    ("structure", "sizes", "rank"),
    [
        ("diagonal", (7, 6, 2), 0),
        ("dense", (7, 6, 2), 3),
        ("low rank", (7, 6, 2), 3),
        ("low rank", (4, 2), 9),
        ("diagonal", (5, 2), 0),
        ("dense", (6, 7, 1), 3),
        ("dense", (1,), 2),
        ("low rank", (6, 1), 3),
    ],
    ids=str,
)
def test_the_rule_equals_the_dense_formulas_with_control_and_residual(structure, sizes, rank):
    x, dt = sizes[-1], 0.3
    problem = Problem(structure, sizes, x=x, rank=rank, controls=1)
    state, cov, belief = STATE[:x], problem.cov, problem.belief
    plain = dense_channel(problem.matrices, problem.names, state, cov, order=3, control=problem.control)
    _, predicted = propagate(MOMENTS, problem.network, belief, control=problem.control)
    assert close(predicted.cov, plain.slope @ cov @ plain.slope.T + plain.noise)

    c, predicted = propagate(MOMENTS, problem.network, belief, control=problem.control, dt=dt)
    slope = dt * plain.slope
    slope[:, :x] += np.eye(x)
    noise = dt**2 * plain.noise
    assert close(c.mean, state + dt * plain.mean)
    assert close(c.slope, slope[:, :x])
    assert close(c.weight_slope, slope[:, x:])
    assert close(c.noise, noise)
    step = np.vstack([slope, np.eye(len(cov))[x:]])
    for after in (predicted.dense(), belief.predict(c).dense()):
        assert close(after.cov, step @ cov @ step.T + np.pad(noise, (0, len(problem.mean))))
        assert close(after.mean, np.concatenate([state + dt * plain.mean, problem.mean]))


@EVERY_STRUCTURE
def test_the_weight_slope_is_the_product_of_its_kronecker_factors(structure):
    problem = Problem(structure, (5, 4, 2), x=2)
    passed = eqx.filter_jit(forward)(problem.network, problem.belief, None, 3)
    factors = passed.factors()
    blocks = [np.kron(np.asarray(behind, float), np.asarray(inputs, float)) for behind, inputs in factors]
    assert close(written_out(factors), np.hstack(blocks))
    assert close(written_out(factors), np.asarray(propagate(MOMENTS, problem.network, problem.belief)[0].weight_slope))
    assert close(passed.mixed, np.asarray(written_out(factors) @ problem.belief.cross.T), scale=3)


@pytest.mark.parametrize("residual", [False, True])
def test_a_stepwise_cross_covariance_predicts_as_the_array_that_it_stands_for(residual):
    net = ps.Network.mlp((2, 5, 2), activation="tanh", key=jr.key(0), log_var=-3.0)
    state, dt = ps.Gaussian(array([0.4, -0.7]), array(0.3 * np.eye(2))), 0.5 if residual else None
    stepwise = ps.JointGaussian(state, StepwiseCross.zero(2, net.weights), net.weights)
    dense = ps.JointGaussian.independent(state, net.weights)
    for _ in range(3):
        # The weight slope of a stepwise belief does not multiply its cross-covariance: only `propagate` may predict.
        _, stepwise = propagate(MOMENTS, net, stepwise, dt=dt)
        _, dense = propagate(MOMENTS, net, dense, dt=dt)
        assert close(stepwise.mean, np.asarray(dense.mean), scale=3)
        assert close(stepwise.cov, np.asarray(dense.cov), scale=3)
        assert stepwise.cross.shape == dense.cross.shape


@pytest.mark.slow
def test_filters_of_every_structure_equal_one_in_numpy():
    matrices, variances = random_matrices(2, (2, 5, 2), scale=0.8)
    net = build_network(matrices, variances, ("relu",))
    emission, noise, process_noise = np.array([[1.0, 0.4]]), np.array([[0.1]]), np.array([0.02, 0.05])
    initial = ps.Gaussian(array([0.3, -0.5]), 0.4 * jnp.eye(2))
    prior = flatten(variances)
    weights = {
        "diagonal": net.weights,  # low rank from the first observation on
        "bounded": ps.LowRankWeights.bounded(net.weights, 3, room=1),
        "dense": ps.DenseWeights(net.weights.mean, jnp.diag(net.weights.var), net.shapes),
    }
    beliefs = {kind: ps.JointGaussian.independent(initial, w) for kind, w in weights.items()}
    mean = np.concatenate([[0.3, -0.5], flatten(matrices)])
    cov = np.diag(np.concatenate([[0.4, 0.4], prior]))
    total_variance = [prior.sum()]

    @eqx.filter_jit
    def filter_step(belief, y):
        channel = ps.Channel(array(emission) @ belief.mean, array(emission), array(noise))
        filtered, evidence = belief.condition(channel, y)
        return propagate(MOMENTS, net, filtered, dt=0.5)[1].plus(array(process_noise)), evidence

    for y in ([0.7], [-0.2], [0.4]):
        evidences = {}
        for kind, belief in beliefs.items():
            beliefs[kind], evidences[kind] = filter_step(belief, array(y))
        # The same step on the stacked vector, in NumPy.
        padded = np.hstack([emission, np.zeros((1, len(prior)))])
        innovation_cov = padded @ cov @ padded.T + noise
        gain = cov @ padded.T / innovation_cov
        innovation = np.array(y) - padded @ mean
        evidence = -0.5 * (innovation**2 / innovation_cov[0] + np.log(2 * np.pi * innovation_cov[0])).item()
        mean, cov = mean + gain @ innovation, cov - gain @ innovation_cov @ gain.T
        layers = [m.reshape(s) for m, s in zip(np.split(mean[2:], [15]), net.shapes, strict=True)]
        f = dense_channel(layers, ("relu",), mean[:2], cov, order=3)
        step = np.eye(len(cov))
        step[:2] += 0.5 * f.slope
        mean[:2] += 0.5 * f.mean
        cov = step @ cov @ step.T + np.pad(0.25 * f.noise + np.diag(process_noise), (0, len(prior)))
        for kind, belief in beliefs.items():
            assert close(evidences[kind], evidence)
            assert close(belief.dense().mean, mean)
            assert close(belief.dense().cov, cov)
            assert smallest_eigenvalue(belief.dense().cov) > -1e-6
        total_variance.append(float(beliefs["diagonal"].weights.var.sum()))
    assert all(later < earlier for earlier, later in itertools.pairwise(total_variance))


# ---------------------------------------------------------------- against sampling


@pytest.mark.float64
@pytest.mark.slow
def test_a_linear_layer_with_correlated_weights_is_exact_against_sampling():
    matrices, _ = random_matrices(1, (2, 3))
    mean = flatten(matrices)
    prior = RNG.uniform(0.1, 0.5, size=9)
    cov, factor = random_joint_cov(4, 2, prior, correlation=0.55, rank=3)
    net = build_network(matrices, None, ())
    weights = ps.LowRankWeights(array(mean), array(prior), array(factor), net.shapes)
    belief = ps.JointGaussian(ps.Gaussian(array(STATE[:2]), array(cov[:2, :2])), array(cov[:2, 2:]), weights)
    c, predicted = propagate(ps.Moments(), net, belief)
    moments = sample_joint(np.concatenate([STATE[:2], mean]), cov, ((3, 3),), (), 2, seed=0)
    assert_mean_matches(c.mean, moments)
    slope = np.hstack([c.slope, c.weight_slope])
    assert_cov_matches(np.hstack([predicted.cov, slope @ cov]), moments)
    assert_cov_matches(np.hstack([slope @ cov @ slope.T + c.noise, slope @ cov]), moments)


@pytest.mark.float64
@pytest.mark.slow
def test_one_hidden_layer_at_a_known_state_is_exact_against_sampling():
    matrices, variances = random_matrices(4, (2, 4, 3), var=0.2)
    net, state = build_network(matrices, variances, ("relu",)), np.array([0.4, -0.3])
    c, predicted = propagate(ps.Moments(), net, ps.Gaussian.certain(array(state)), weights="global")
    prior = flatten(variances)
    mean, cov = np.concatenate([state, flatten(matrices)]), np.diag(np.concatenate([[0.0, 0.0], prior]))
    moments = sample_joint(mean, cov, net.shapes, ("relu",), 2, seed=3)
    assert_mean_matches(c.mean, moments)
    assert_cov_matches(np.hstack([predicted.cov, np.zeros((3, 2)), np.asarray(c.weight_slope) * prior]), moments)


@pytest.mark.float64
@pytest.mark.slow
def test_a_state_that_is_correlated_with_the_weights_stays_close_to_sampling():
    state = np.array([0.4, -0.3])
    matrices, _ = random_matrices(4, (2, 5, 2), scale=0.8)
    prior = np.full(len(flatten(matrices)), 0.05)
    cov, factor = random_joint_cov(6, 2, prior, correlation=0.4, rank=2)
    cov[:2] *= 0.5
    cov[:, :2] *= 0.5
    net = build_network(matrices, None, ("relu",))
    weights = ps.LowRankWeights(array(flatten(matrices)), array(prior), array(factor), net.shapes)
    belief = ps.JointGaussian(ps.Gaussian(array(state), array(cov[:2, :2])), array(cov[:2, 2:]), weights)
    c, _ = propagate(ps.Moments(), net, belief, dt=1.0)
    moments = sample_joint(np.concatenate([state, flatten(matrices)]), cov, net.shapes, ("relu",), 2, seed=5)
    # What was sampled is f alone: subtract the identity of the residual form.
    slope = np.hstack([np.asarray(c.slope) - np.eye(2), c.weight_slope])
    std = np.sqrt(np.diag(moments.cov[:, :2]))
    mean_gap = (np.abs(np.asarray(c.mean) - state - moments.mean) / std).max()
    covs = slope @ cov @ slope.T + np.asarray(c.noise)
    cov_gap = (np.abs(covs - moments.cov[:, :2]) / np.outer(std, std)).max()
    carried = np.sqrt(np.diag(cov))
    cross_gap = (np.abs(slope @ cov - moments.cov[:, 2:]) / np.outer(std, carried)).max()
    # Recorded, plus the noise of the samples.
    assert mean_gap < 0.018
    assert cov_gap < 0.028
    assert cross_gap < 0.043
