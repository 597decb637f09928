"""Mistakes that a reviewer found once and nobody shall find again."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps

EPS = float(jnp.finfo(array(0.0).dtype).eps)


@pytest.mark.parametrize("variances", [[1e4, 1e-3], [1e10, 1e-6], [1e10, 1.0, 1.0, 1.0, 1e-6]])
def test_channels_of_very_different_units_do_not_drown_each_other(variances):
    prior = jnp.diag(array(variances))
    n = len(variances)
    belief = ps.Gaussian(jnp.zeros(n), prior)
    y = array(0.1 * np.sqrt(variances))
    found, _ = belief.condition(ps.Channel(jnp.zeros(n), jnp.eye(n), 0.01 * prior), y)
    assert close(found.var / array(variances), np.full(n, 0.01 / 1.01))
    assert close(found.mean / y, np.full(n, 1 / 1.01))


@pytest.mark.parametrize("name", ["silu", "softplus"])
@pytest.mark.parametrize(("mean", "std"), [(12.0, 2.1), (16.0, 2.1), (25.0, 2.1), (25.0, 4.0), (40.0, 4.0)])
def test_a_bend_far_away_leaves_a_straight_line(name, mean, std):
    found = ps.ACTIVATIONS[name].expand(array([mean]), array([std**2]), order=4)
    total = (found.slope * std) ** 2 + (found.curved**2).sum(axis=0) + found.rest
    e = np.linspace(-10, 10, 100_001)
    values = np.logaddexp(0, mean + std * e) if name == "softplus" else (mean + std * e) / (1 + np.exp(-mean - std * e))
    density = np.exp(-(e**2) / 2) / np.sqrt(2 * np.pi)
    centre = np.trapezoid(values * density, e)
    assert abs(float(found.mean[0]) - centre) < 1e-6 * std + 40 * EPS * mean
    assert abs(float(total[0]) / np.trapezoid((values - centre) ** 2 * density, e) - 1) < 1e-6 + 1e3 * EPS


def test_exp_is_exact_until_its_moments_leave_the_type():
    found = ps.ACTIVATIONS["exp"].expand(array([0.0]), array([3.5**2]), order=3)
    assert close(found.mean / np.exp(3.5**2 / 2), [1.0])


def test_a_channel_of_global_weights_is_refused_by_a_belief_that_does_not_carry_them():
    net = ps.Network.mlp((1, 2, 1), key=jr.key(0), log_var=0.0)
    belief = ps.Gaussian([1.0], [[1.0]])
    c = ps.channel(net, belief, weights="global")
    joint = ps.JointGaussian.independent(belief, net.weights)
    for call in (
        lambda: belief.predict(c),
        lambda: belief.condition(c, array([2.0])),
        lambda: joint.condition(c, array([2.0])),
    ):
        with pytest.raises(ValueError, match="weight_slope"):
            call()
    assert joint.predict(c).cov.shape == (1, 1)


def test_predict_does_not_trust_the_covariance_of_another_belief():
    net = ps.Network.from_arrays([[[2.0]]], [[0.0]])
    c = ps.channel(net, ps.Gaussian([0.0], [[1.0]]))
    assert close(ps.Gaussian([0.0], [[100.0]]).predict(c).cov, [[400.0]])


@pytest.mark.float64
def test_gradients_are_right_where_a_coordinate_is_certain():
    net = ps.Network.mlp((2, 30, 2), key=jr.key(0))

    def cross(t):
        cov = jnp.array([[1.0, 0.0], [0.0, 0.0]]) + t * jnp.array([[0.0, 0.0], [0.0, 1.0]])
        return ps.channel(net, ps.Gaussian(jnp.zeros(2), cov), order=4).cov[0, 1]

    step = 1e-5
    forward = (-3 * cross(0.0) + 4 * cross(step) - cross(2 * step)) / (2 * step)
    assert abs(jax.grad(cross)(0.0) - forward) < 1e-4 * abs(forward)


def test_functions_that_we_know_get_their_own_rule():
    belief = ps.Gaussian([0.0], [[1.0]])
    for function, name in ((jax.nn.relu, "relu"), (jnp.tanh, "tanh"), (jax.nn.softplus, "softplus")):
        nets = [ps.Network.from_arrays([[[1.0]], [[1.0]]], [[0.0], [0.0]], act) for act in (function, name)]
        assert close(*(ps.channel(net, belief).cov for net in nets))


def test_sampling_is_exact_on_linear_networks_and_tame_on_certain_inputs():
    linear = ps.Network.from_arrays([[[2.0, 1.0]]], [[0.5]])
    c = ps.channel(linear, ps.Gaussian([1.0, 2.0], [[1.0, 0.5], [0.5, 2.0]]), "sampled", key=jr.key(0), samples=50)
    assert close(c.mean, [4.5], scale=10)
    assert close(c.cov, [[8.0]], scale=30)
    net = ps.Network.mlp((6, 10, 2), key=jr.key(0))
    for cov in (jnp.zeros((6, 6)), jnp.diag(array([1.0, 0, 0, 0, 0, 0]))):
        for method, options in (("sampled", {"key": jr.key(1)}), ("unscented", {})):
            assert jnp.abs(ps.channel(net, ps.Gaussian(jnp.zeros(6), cov), method, **options).slope).max() < 10


def test_a_time_step_needs_a_residual_link_and_is_one_positive_number():
    net, belief = ps.Network.mlp((1, 2, 1), key=jr.key(0)), ps.Gaussian([0.0], [[1.0]])
    for options in ({"dt": 0.1}, {"dt": -0.1, "residual": True}, {"dt": array([0.1, 0.2]), "residual": True}):
        with pytest.raises((ValueError, TypeError), match="dt"):
            ps.channel(net, belief, **options)


def test_numpy_scalars_are_numbers():
    net, belief = ps.Network.mlp((1, 2, 1), key=jr.key(0)), ps.Gaussian([0.0], [[1.0]])
    assert close(ps.channel(net, belief, order=np.int64(3)).cov, ps.channel(net, belief, order=3).cov)
    found = ps.channel(net, belief, "unscented", alpha=np.float64(1.0), kappa=jnp.array(0.0))
    assert close(found.cov, ps.channel(net, belief, "unscented").cov)


def test_drawing_weights_without_variance_has_finite_gradients():
    net = ps.Network.from_arrays([[[1.0]]], [[0.0]], weight_vars=[[[0.5]]])
    grads = jax.grad(lambda n: n.sample(jr.key(0))(jnp.ones(1)).sum())(net)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_elu_differentiates_well_close_to_its_kink():
    def mean(var):
        return ps.ACTIVATIONS["elu"].expand(array([-1e-6]), var[None], order=2).mean[0]

    assert abs(float(jax.grad(mean)(array(1e-12))) - 0.42067) < 1e-3


def test_infinite_observations_and_negative_variances_are_refused():
    belief = ps.Gaussian([0.0], [[1.0]])
    c = ps.Channel([0.0], [[1.0]], [[0.1]])
    with pytest.raises(ValueError, match="y must"):
        belief.condition(c, array([np.inf]))
    with pytest.raises(ValueError, match="variances"):
        c.plus(array([-1.0]))
