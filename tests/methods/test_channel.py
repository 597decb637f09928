"""The public function `channel`: weight modes, joint beliefs, time steps, and what it refuses."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, build_network, close, propagate, random_cov, random_matrices

import prodssm as ps

SAMPLED = ps.Sampled(samples=500, key=jr.key(4))
RNG = np.random.default_rng(14)
X, CONTROL, COV = RNG.normal(size=3), np.array([0.6]), random_cov(RNG, 3)
BELIEF = ps.Gaussian(array(X), array(COV))
MATRICES, VARIANCES = random_matrices(15, (4, 5, 2))
NET = build_network(MATRICES, VARIANCES, ("relu",))
LINEAR = build_network(MATRICES[:1], VARIANCES[:1], ())
RESIDUAL = build_network([MATRICES[0][:3]], [VARIANCES[0][:3]], ())
FIELDS = ("mean", "slope", "noise", "weight_slope")
DETERMINISTIC = pytest.mark.parametrize("method", ["moments", "linearised", "unscented", "cubature"])
CALL = partial(ps.channel, control=array(CONTROL))


def arrays(c):
    """The arrays of a channel by name."""
    return {name: getattr(c, name) for name in FIELDS if getattr(c, name) is not None}


@DETERMINISTIC
def test_point_weights_ignore_their_variances(method):
    found = CALL(NET, BELIEF, method, "point")
    wanted = CALL(NET.at_mean(), BELIEF, method, "local")
    for name, leaf in arrays(found).items():
        assert close(leaf, np.asarray(arrays(wanted)[name]))


@DETERMINISTIC
def test_local_equals_global_at_a_known_state(method):
    known, joint = ps.Gaussian.certain(array(X)), ps.JointGaussian.independent(ps.Gaussian.certain(array(X)), NET.weights)
    local, shared = CALL(NET, known, method, "local"), CALL(NET, known, method, "global")
    assert close(shared.mean, np.asarray(local.mean))
    assert close(joint.predict(shared).cov, np.asarray(known.predict(local).cov))


@pytest.mark.parametrize("method", ["moments", "linearised", "unscented", "cubature", pytest.param(SAMPLED, id="sampled")])
def test_a_belief_that_is_already_joint_equals_one_that_is_made_so(method):
    joint = ps.JointGaussian.independent(BELIEF, NET.weights)
    dense = ps.JointGaussian.independent(BELIEF, ps.DenseWeights(NET.weights.mean, jnp.diag(NET.weights.var), NET.shapes))
    found = arrays(CALL(NET, BELIEF, method, "global"))
    for belief in (joint, dense) if method is not SAMPLED else (joint,):
        for name, leaf in arrays(CALL(NET, belief, method, "global")).items():
            assert close(leaf, np.asarray(found[name]), scale=10)


def test_a_name_stands_for_the_method_with_its_default_parameters():
    for name, method in (("moments", ps.Moments()), ("unscented", ps.Unscented()), ("cubature", ps.Unscented(1.0, 0.0, 0.0))):
        wanted = arrays(CALL(NET, BELIEF, method))
        for part, leaf in arrays(CALL(NET, BELIEF, name)).items():
            assert close(leaf, np.asarray(wanted[part]))


def test_numpy_scalars_are_numbers():
    net, belief = ps.Network.mlp((1, 2, 1), key=jr.key(0)), ps.Gaussian([0.0], [[1.0]])
    for given, plain in (
        (ps.Moments(order=np.int64(3)), ps.Moments(order=3)),
        (ps.Unscented(alpha=np.float64(1.0), beta=2, kappa=jnp.array(0.0)), ps.Unscented()),
        (ps.Sampled(np.int64(50), jr.key(0)), ps.Sampled(50, jr.key(0))),
    ):
        found, wanted = (propagate(method, net, belief)[1].cov for method in (given, plain))
        assert close(found, np.asarray(wanted))


def test_a_covariance_with_rounding_errors_is_accepted():
    # Arithmetic leaves a covariance a little asymmetric and a little indefinite.
    eps = float(jnp.finfo(array(0.0).dtype).eps)
    cov = array(np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])) - 4 * eps * jnp.eye(3)
    cov = cov.at[0, 1].add(4 * eps)
    belief = ps.Gaussian(array(X), cov)
    assert jnp.isfinite(belief.predict(CALL(NET, belief)).cov).all()


def test_moments_that_overflow_are_an_error():
    huge = ps.Network.from_arrays([[[1e30]], [[1e30]]], [[0.0], [0.0]], activation="square")
    var = 1e200 if array(0.0).dtype == jnp.float64 else 1.0
    with pytest.raises(FloatingPointError, match="overflow"):
        ps.channel(huge, ps.Gaussian(array([0.0]), array([[var]])))


def test_another_time_step_needs_no_recompilation():
    traces = []

    class Counting(ps.Linearised):
        """Counts how often it is traced."""

        def channel(self, network, belief, control=None):
            traces.append(1)
            return ps.Linearised().channel(network, belief, control)

    for dt in (0.1, 0.2, np.float64(0.3), array(0.4)):
        CALL(RESIDUAL, BELIEF, Counting(), residual=True, dt=dt)
    assert len(traces) == 1


# ---------------------------------------------------------------- bad input


NAN, INF = float("nan"), float("inf")
ASYMMETRIC = array([[1.0, 0.5, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]])
INDEFINITE = array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])


def broken(net, value):
    """The same network with one weight replaced after construction."""
    return eqx.tree_at(lambda n: n.linears[0].weight, net, net.linears[0].weight.at[0, 0].set(value))


def joint_with(mean=NET.weights.mean, var=NET.weights.var, shapes=NET.shapes, cross=0.0):
    """A joint belief with these weights and a constant cross-covariance."""
    return ps.JointGaussian(BELIEF, jnp.full((3, mean.size), cross, BELIEF.mean.dtype), ps.DiagonalWeights(mean, var, shapes))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        # Beliefs.
        (lambda: CALL(NET, ps.Gaussian(array([NAN, 0.0, 0.0]), jnp.eye(3))), "mean"),
        (lambda: CALL(NET, ps.Gaussian(array([INF, 0.0, 0.0]), jnp.eye(3))), "mean"),
        (lambda: CALL(NET, ps.Gaussian(jnp.zeros(3), jnp.diag(array([1.0, NAN, 1.0])))), "cov"),
        (lambda: CALL(NET, ps.Gaussian(jnp.zeros(3), jnp.diag(array([1.0, INF, 1.0])))), "cov"),
        (lambda: CALL(NET, ps.Gaussian(jnp.zeros(3), ASYMMETRIC)), "cov"),
        (lambda: CALL(NET, ps.Gaussian(jnp.zeros(3), INDEFINITE)), "cov"),
        (lambda: CALL(NET, ps.Gaussian(jnp.zeros(3), -jnp.eye(3))), "cov"),
        (lambda: CALL(NET, ps.Gaussian(jnp.zeros(2), jnp.eye(2))), "belief|control|network"),
        (lambda: CALL(NET, jnp.zeros(3)), "belief"),
        (lambda: CALL(NET, None), "belief"),
        # Networks.
        (lambda: CALL(jnp.tanh, BELIEF), "network"),
        (lambda: CALL(broken(NET, NAN), BELIEF), "network|weight"),
        (lambda: CALL(broken(NET, INF), BELIEF), "network|weight"),
        # Controls.
        (lambda: ps.channel(NET, BELIEF), "control"),
        (lambda: ps.channel(NET, BELIEF, control=jnp.zeros(2)), "control"),
        (lambda: ps.channel(NET, BELIEF, control=jnp.zeros((1, 1))), "control"),
        (lambda: ps.channel(NET, BELIEF, control=array([NAN])), "control"),
        (lambda: ps.channel(NET, BELIEF, control="up"), "control"),
        # Choices.
        (lambda: CALL(NET, BELIEF, method="momentum"), "method"),
        (lambda: CALL(NET, BELIEF, method=None), "method"),
        (lambda: CALL(NET, BELIEF, method=ps.Moments), "method"),
        (lambda: CALL(NET, BELIEF, weights="glocal"), "weights"),
        (lambda: CALL(NET, BELIEF, weights=True), "weights"),
        (lambda: CALL(NET, BELIEF, ordre=4), "ordre"),
        (lambda: CALL(NET, BELIEF, samples=4), "samples"),
        # Time steps.
        (lambda: CALL(NET, BELIEF, residual=True), "residual"),
        (lambda: CALL(RESIDUAL, BELIEF, residual=True, dt=NAN), "dt"),
        (lambda: CALL(RESIDUAL, BELIEF, residual=True, dt="fast"), "dt"),
        (lambda: CALL(RESIDUAL, BELIEF, dt=0.1), "dt"),
        (lambda: CALL(RESIDUAL, BELIEF, residual=True, dt=-0.1), "dt"),
        (lambda: CALL(RESIDUAL, BELIEF, residual=True, dt=array([0.1, 0.2])), "dt"),
        # Joint beliefs.
        (lambda: CALL(NET, joint_with(), weights="local"), "weights|belief"),
        (lambda: CALL(NET, joint_with(), weights="point"), "weights|belief"),
        (
            lambda: CALL(NET, joint_with(LINEAR.weights.mean, LINEAR.weights.var, LINEAR.shapes), weights="global"),
            "weights|shapes",
        ),
        (lambda: CALL(NET, joint_with(var=-NET.weights.var), weights="global"), "var"),
        (lambda: CALL(NET, joint_with(mean=NET.weights.mean * NAN), weights="global"), "mean|weights"),
        (lambda: CALL(NET, joint_with(cross=NAN), weights="global"), "cross"),
    ],
)
def test_a_mistake_is_refused_by_name(call, named):
    with pytest.raises((ValueError, TypeError), match=rf"\b({named})"):
        call()


def test_shapes_are_checked_while_tracing():
    with pytest.raises(ValueError, match="network takes 4 inputs"):
        jax.jit(lambda mean: ps.channel(NET, ps.Gaussian(mean, jnp.eye(3))).mean)(array(X))
