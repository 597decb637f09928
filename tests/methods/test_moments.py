"""Moment matching equals the formulas written out densely, and sampling where the formulas are exact."""

import math
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import (
    FUNCTIONS,
    GAUSS_HERMITE_ERROR,
    array,
    assert_cov_matches,
    assert_mean_matches,
    build_network,
    close,
    dense_channel,
    hermite_coefficients,
    propagate,
    random_cov,
    random_matrices,
    sample_networks,
    smallest_eigenvalue,
)

import prodssm as ps

RNG = np.random.default_rng(7)
MOMENTS = ps.Moments()


def assert_is_reference(found, reference, belief):
    """A channel and a predicted covariance are those of the dense formulas, each on its own."""
    c, predicted = found
    assert close(c.mean, reference.mean)
    assert close(c.slope, reference.slope)
    assert close(c.noise, reference.noise)
    assert close(predicted.cov, reference.cov)
    assert close(belief.predict(c).cov, reference.cov)


# ---------------------------------------------------------------- against the dense formulas


@pytest.mark.parametrize(
    ("sizes", "names", "order"),
    [
        ((1, 40, 2), ("relu",), 8),
        ((2, 30, 3), ("relu",), 4),
        ((3, 40, 2), ("gelu",), 4),
        ((3, 40, 2), ("relu",), 1),
        ((4, 9, 2), ("sin",), 3),
        ((3, 7, 5, 2), ("erf", "relu"), 4),
        ((2, 6, 5, 4, 3), ("relu", "square", "cos"), 2),
    ],
    ids=str,
)
def test_local_and_point_channels_equal_the_dense_formulas(sizes, names, order):
    matrices, variances = random_matrices(sum(sizes), sizes, scale=0.8)
    belief = ps.Gaussian(array(RNG.normal(size=sizes[0])), array(random_cov(RNG, sizes[0])))
    nothing = [0 * v for v in variances]
    for vs in (variances, nothing):
        found = propagate(ps.Moments(order=order), build_network(matrices, vs, names), belief)
        wanted = dense_channel(matrices, names, belief.mean, belief.cov, order=order, local_vars=vs)
        assert_is_reference(found, wanted, belief)


def test_local_equals_global_for_one_step():
    sizes, names = (2, 6, 5, 3), ("relu", "tanh")
    net = build_network(*random_matrices(5, sizes), names)
    variances = np.asarray(net.weights.var, float)
    for cov in (np.zeros((2, 2)), random_cov(RNG, 2)):
        belief = ps.Gaussian(array([0.3, -0.6]), array(cov))
        local, local_predicted = propagate(ps.Moments(order=4), net, belief)
        shared, predicted = propagate(ps.Moments(order=4), net, belief, weights="global")
        assert close(shared.mean, local.mean)
        assert close(predicted.cov, local_predicted.cov)
        assert close(shared.slope, local.slope)
        explained = np.asarray(shared.weight_slope, float) * variances @ np.asarray(shared.weight_slope, float).T
        assert close(shared.noise + array(explained), local.noise)


def test_weights_without_variance_are_point_weights():
    sizes, names = (2, 6, 5, 3), ("relu", "tanh")
    matrices, variances = random_matrices(5, sizes)
    belief = ps.Gaussian(array([0.3, -0.6]), array(random_cov(RNG, 2)))
    point, point_predicted = propagate(MOMENTS, build_network(matrices, variances, names), belief, weights="point")
    certain = build_network(matrices, [0 * v for v in variances], names)
    for net, weights in ((certain, "local"), (certain, "global"), (build_network(matrices, None, names), "local")):
        c, predicted = propagate(MOMENTS, net, belief, weights=weights)
        for field in ("mean", "slope", "noise"):
            assert close(getattr(c, field), np.asarray(getattr(point, field)))
        assert close(predicted.cov, np.asarray(point_predicted.cov))


@pytest.mark.parametrize("name", ["relu", "sin"])
def test_one_hidden_layer_at_a_known_input_is_exact(name):
    matrices, variances = random_matrices(8, (3, 10, 2), var=0.3)
    net = build_network(matrices, variances, (name,))
    function, _, kinks = FUNCTIONS[name]
    for x in ([0.2, -1.0, 0.5], [0.0, 0.0, 0.0], [3.0, 2.0, -4.0]):
        full = np.append(x, 1.0)
        c, var = hermite_coefficients(function, kinks, matrices[0] @ full, np.sqrt(variances[0] @ full**2), 1)
        mean = matrices[1] @ np.append(c[0], 1.0)
        # Section 8: variances of the hidden units, then of the outgoing weights.
        out = matrices[1][:, :-1] ** 2 @ var + variances[1] @ np.append(var + c[0] ** 2, 1.0)
        for mode in ("local", "global"):
            found, predicted = propagate(MOMENTS, net, ps.Gaussian.certain(array(x)), weights=mode)
            assert close(found.mean, mean)
            assert close(jnp.diag(predicted.cov), out)


def test_a_local_residual_with_time_step_and_control_equals_the_dense_formulas():
    matrices, variances = random_matrices(6, (3, 8, 2))
    net = build_network(matrices, variances, ("relu",))
    belief = ps.Gaussian(array([0.3, -0.4]), array(random_cov(RNG, 2)))
    c, predicted = propagate(ps.Moments(order=4), net, belief, control=[1.7], dt=0.3)
    f = dense_channel(matrices, ("relu",), belief.mean, belief.cov, order=4, local_vars=variances, control=[1.7])
    slope = np.eye(2) + 0.3 * f.slope
    assert close(c.mean, np.asarray(belief.mean) + 0.3 * f.mean)
    assert close(c.slope, slope)
    assert close(c.noise, 0.09 * f.noise)
    assert close(predicted.cov, slope @ np.asarray(belief.cov) @ slope.T + 0.09 * f.noise)


# ---------------------------------------------------------------- against sampling

STATE, STATE_COV = np.array([0.4, -0.3]), np.array([[0.5, 0.15], [0.15, 0.3]])
BELIEF = ps.Gaussian(array(STATE), array(STATE_COV))
DEPTHS = {
    1: [(name,) for name in FUNCTIONS],
    2: [
        ("relu", "tanh"),
        ("leaky_relu", "sigmoid"),
        ("elu", "erf"),
        ("gelu", "silu"),
        ("softplus", "sin"),
        ("cos", "exp"),
        ("square", "identity"),
    ],
    3: [
        ("relu", "gelu", "tanh"),
        ("leaky_relu", "silu", "sigmoid"),
        ("elu", "softplus", "erf"),
        ("sin", "square", "cos"),
        ("tanh", "exp", "identity"),
    ],
}
SAMPLES = 1_000_000
SIZES = {1: (2, 6, 3), 2: (2, 6, 5, 3), 3: (2, 6, 5, 4, 3)}


@cache
def sampled_networks(depth):
    """For each choice of activations at this depth: moments with point and with local weights."""
    matrices, variances = random_matrices(depth, SIZES[depth], scale=0.8)
    found = sample_networks(matrices, variances, DEPTHS[depth], STATE, STATE_COV, seed=depth, samples=SAMPLES)
    return matrices, variances, dict(zip(DEPTHS[depth], found, strict=True))


@pytest.mark.float64
@pytest.mark.slow
def test_mean_and_slope_of_one_hidden_layer_do_not_depend_on_the_order():
    matrices, _, samples = sampled_networks(1)
    net = build_network(matrices, None, ("relu",))
    found = [propagate(ps.Moments(order=k), net, BELIEF) for k in (1, 2, 5)]
    point, _ = samples[("relu",)]
    for c, _ in found:
        assert_mean_matches(c.mean, point)
        assert close(c.mean, found[0][0].mean)
        assert close(c.slope, found[0][0].slope)
    errors = [np.abs(np.asarray(predicted.cov) - point.cov[:, :3]).max() for _, predicted in found]
    assert errors[0] > errors[1] > errors[2]


def gap(c, cov, moments):
    """Largest error of mean, covariance and cross-covariance, in units of the outputs' (and the state's) deviations."""
    std = np.sqrt(np.diag(moments.cov[:, :3]))
    x_std = np.sqrt(np.diag(STATE_COV))
    return (
        (np.abs(np.asarray(c.mean) - moments.mean) / std).max(),
        (np.abs(np.asarray(cov) - moments.cov[:, :3]) / np.outer(std, std)).max(),
        (np.abs(np.asarray(c.slope) @ STATE_COV - moments.cov[:, 3:]) / np.outer(std, x_std)).max(),
    )


# Measured with order 12 (one hidden layer) or the default order: (mean, covariance, cross-covariance) with point weights
# and with local ones, plus the noise of the samples. Small networks without weight noise are far from Gaussian after two
# hidden layers (docs/math.md, section 10).
GAPS = {
    "identity": ((0.005, 0.004, 0.005), (0.005, 0.006, 0.005)),
    "relu": ((0.004, 0.021, 0.006), (0.011, 0.019, 0.015)),
    "leaky_relu": ((0.004, 0.020, 0.006), (0.010, 0.019, 0.015)),
    "elu": ((0.005, 0.005, 0.005), (0.007, 0.023, 0.010)),
    "tanh": ((0.004, 0.005, 0.005), (0.011, 0.029, 0.015)),
    "sigmoid": ((0.005, 0.004, 0.005), (0.006, 0.008, 0.006)),
    "erf": ((0.004, 0.005, 0.005), (0.012, 0.033, 0.016)),
    "gelu": ((0.005, 0.007, 0.006), (0.006, 0.019, 0.013)),
    "silu": ((0.005, 0.006, 0.005), (0.005, 0.016, 0.011)),
    "softplus": ((0.005, 0.005, 0.005), (0.005, 0.009, 0.007)),
    "sin": ((0.005, 0.005, 0.005), (0.011, 0.034, 0.016)),
    "cos": ((0.004, 0.008, 0.007), (0.007, 0.021, 0.012)),
    "exp": ((0.005, 0.007, 0.005), (0.006, 0.067, 0.018)),
    "square": ((0.004, 0.009, 0.007), (0.006, 0.181, 0.028)),
    "relu-tanh": ((0.034, 0.144, 0.053), (0.030, 0.056, 0.021)),
    "leaky_relu-sigmoid": ((0.014, 0.046, 0.018), (0.010, 0.012, 0.010)),
    "elu-erf": ((0.029, 0.155, 0.056), (0.031, 0.040, 0.014)),
    "gelu-silu": ((0.007, 0.494, 0.166), (0.011, 0.112, 0.071)),
    "softplus-sin": ((0.015, 0.049, 0.023), (0.016, 0.039, 0.019)),
    "cos-exp": ((0.018, 0.521, 0.061), (0.015, 0.051, 0.023)),
    "square-identity": ((0.008, 0.012, 0.008), (0.008, 0.142, 0.038)),
    "relu-gelu-tanh": ((0.086, 0.301, 0.183), (0.149, 0.154, 0.034)),
    "leaky_relu-silu-sigmoid": ((0.037, 0.202, 0.111), (0.045, 0.014, 0.013)),
    "elu-softplus-erf": ((0.049, 0.206, 0.098), (0.060, 0.098, 0.066)),
    "tanh-exp-identity": ((0.032, 0.538, 0.156), (0.007, 0.052, 0.048)),
    "sin-square-cos": ((0.598, 2.337, 0.432), (0.099, 0.108, 0.058)),
}
# Of one hidden layer, for an activation whose own gap has not been recorded.
LARGEST_GAPS = np.max([bounds for names, bounds in GAPS.items() if "-" not in names], axis=0)


@pytest.mark.float64
@pytest.mark.slow
@pytest.mark.parametrize("names", [names for depth in DEPTHS.values() for names in depth], ids="-".join)
def test_the_gap_to_sampling_stays_below_the_recorded_one_and_is_zero_where_the_rule_is_exact(names):
    depth = len(names)
    matrices, variances, samples = sampled_networks(depth)
    # Local and global weights are the same in one step (see above): even depths take one rule, odd depths the other.
    method, weights = ps.Moments(order=12 if depth == 1 else None), "global" if depth == 2 else "local"
    for scale, moments, bounds in zip((0.0, 1.0), samples[names], GAPS.get("-".join(names), LARGEST_GAPS), strict=True):
        net = build_network(matrices, [scale * v for v in variances], names)
        c, predicted = propagate(method, net, BELIEF, weights=weights)
        found = gap(c, predicted.cov, moments)
        assert all(g < bound for g, bound in zip(found, bounds, strict=True)), found
        if depth == 1 and scale == 0.0:
            assert_mean_matches(c.mean, moments)
            assert_cov_matches(np.hstack([predicted.cov, c.slope @ STATE_COV]), moments)


# ---------------------------------------------------------------- properties


def test_a_permutation_of_hidden_units_changes_nothing():
    matrices, variances = random_matrices(5, (2, 6, 5, 3))
    order = RNG.permutation(6)
    permuted = [matrices[0][order], matrices[1][:, [*order, 6]], matrices[2]]
    permuted_vars = [variances[0][order], variances[1][:, [*order, 6]], variances[2]]
    before, predicted_before = propagate(MOMENTS, build_network(matrices, variances, ("relu", "tanh")), BELIEF)
    after, predicted = propagate(MOMENTS, build_network(permuted, permuted_vars, ("relu", "tanh")), BELIEF)
    for field in ("mean", "slope", "noise"):
        assert close(getattr(after, field), np.asarray(getattr(before, field)))
    assert close(predicted.cov, np.asarray(predicted_before.cov))


def test_tiny_state_variances_keep_their_relative_accuracy():
    # One active and one inactive path: f(x) = 2 x and its variance is 4 v, also where float32 squares would lose it.
    net = ps.Network.from_arrays([[[1.0], [-1.0]], [[2.0, 5.0]]], [[0.0, 0.0], [0.0]], activation="relu")
    for m, s in ((1.0, 1e-4), (30.0, 0.01)):
        c, predicted = propagate(MOMENTS, net, ps.Gaussian(array([m]), array([[s**2]])))
        assert abs(predicted.cov.item() / (4 * s**2) - 1) < 1e-4
        assert abs(c.slope.item() - 2) < 1e-5


COMBINATIONS = [
    (("relu",), (2, 5, 3), 4, "local"),
    (("gelu", "relu"), (2, 4, 3, 3), 3, "global"),
    (("tanh", "leaky_relu"), (2, 4, 3, 3), 2, "local"),
    (("sigmoid", "elu"), (2, 4, 3, 3), 1, "local"),
    (("silu", "erf"), (2, 4, 3, 3), 4, "local"),
    (("softplus", "sin"), (2, 4, 3, 3), 2, "global"),
    (("cos", "exp"), (2, 4, 3, 3), 3, "local"),
    (("identity", "square"), (2, 4, 3, 3), 2, "local"),
]


@cache
def channel_and_gradient(names, order, mode):
    """A compiled function: the channel, the joint covariance of all carried and the output, gradients by all inputs."""

    @eqx.filter_jit
    def run(net, mean, cov):
        def total(inputs):
            net, mean, cov = inputs
            c, predicted = propagate(ps.Moments(order=order), net, ps.Gaussian(mean, cov), weights=mode)
            slope, carried = c.slope, cov
            if mode == "global":
                slope = jnp.concatenate([c.slope, c.weight_slope], axis=1)
                carried = jax.scipy.linalg.block_diag(cov, jnp.diag(net.weights.var))
            cross = slope @ carried
            joint = jnp.block([[carried, cross.T], [cross, predicted.cov]])
            return c.mean.sum() + predicted.cov.sum() + c.slope.sum() + c.noise.sum(), (c, predicted.cov, joint)

        (_, found), grads = eqx.filter_value_and_grad(total, has_aux=True)((net, mean, cov))
        return found, grads

    return run


@pytest.mark.slow
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    combination=st.sampled_from(COMBINATIONS),
    seed=st.integers(0, 2**16),
    exponent=st.floats(-6, 3),
    rank=st.integers(0, 2),
    weight_var=st.sampled_from([0.0, 1e-6, 0.05, 1.0]),
)
def test_any_belief_gives_a_finite_psd_channel_with_finite_gradients(combination, seed, exponent, rank, weight_var):
    names, sizes, order, mode = combination
    rng, scale = np.random.default_rng(seed), 10.0**exponent
    matrices, variances = random_matrices(seed, sizes, var=weight_var)
    root = rng.normal(size=(2, max(rank, 1))) * (rank > 0)
    net = build_network(matrices, variances, names)
    run = channel_and_gradient(names, order, mode)
    (c, cov, joint), grads = run(net, array(scale * rng.normal(size=2)), array(scale**2 * root @ root.T))
    for leaf in jax.tree.leaves((c, cov, joint, grads)):
        assert jnp.isfinite(leaf).all()
    floor = -1e-12 if joint.dtype == jnp.float64 else -1e-6
    for matrix in (joint, c.noise, cov):
        assert close(matrix.T, np.asarray(matrix))
        assert smallest_eigenvalue(matrix) >= floor


@pytest.mark.parametrize("order", [0, -1, 2.5, "high"])
def test_an_impossible_order_is_refused_by_name(order):
    with pytest.raises((ValueError, TypeError), match="order"):
        ps.Moments(order=order)


def test_gauss_hermite_activations_are_as_close_as_their_table():
    # The dense reference integrates tanh to rounding; 32 nodes are what the channel uses.
    matrices, variances = random_matrices(3, (2, 5, 2))
    c, predicted = propagate(ps.Moments(order=4), build_network(matrices, variances, ("tanh",)), BELIEF)
    wanted = dense_channel(matrices, ("tanh",), STATE, STATE_COV, order=4, local_vars=variances)
    mean_error, var_error = GAUSS_HERMITE_ERROR["tanh"]
    size = np.abs(matrices[1]).sum(axis=1).max()
    slack = math.sqrt(jnp.finfo(c.mean.dtype).eps)
    assert np.abs(np.asarray(c.mean) - wanted.mean).max() < size * mean_error + slack
    assert np.abs(np.asarray(predicted.cov) - wanted.cov).max() < size**2 * var_error + slack


@pytest.mark.float64
def test_gradients_are_right_where_a_coordinate_is_certain():
    net = ps.Network.mlp((2, 30, 2), key=jr.key(0))

    @jax.jit
    def covariance(t):
        cov = jnp.diag(jnp.stack([1.0, t]))
        return propagate(ps.Moments(order=4), net, ps.Gaussian(jnp.zeros(2), cov))[1].cov[0, 1]

    step = 1e-5
    forward = (-3 * covariance(0.0) + 4 * covariance(step) - covariance(2 * step)) / (2 * step)
    assert abs(jax.grad(covariance)(0.0) - forward) < 1e-4 * abs(forward)


def test_the_default_order_is_higher_for_a_scalar_state_without_carried_weights():
    scalar, weights = ps.Gaussian([0.0], [[1.0]]), ps.Network.mlp((1, 2, 1), key=jr.key(0)).weights
    assert MOMENTS.order_for(scalar) == 8
    assert MOMENTS.order_for(BELIEF) == 4
    assert MOMENTS.order_for(ps.JointGaussian.independent(scalar, weights)) == 4
    assert ps.Moments(order=3).order_for(scalar) == 3
