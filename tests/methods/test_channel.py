"""What every way to find a channel promises, for every kind of weights; and what none of them accepts."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, build_network, close, random_cov, random_matrices, smallest_eigenvalue

import prodssm as ps

METHODS = {
    "moments": {},
    "linearised": {},
    "unscented": {},
    "sampled": {"key": jr.key(4), "samples": 500},
}
RNG = np.random.default_rng(14)
X, CONTROL, COV = RNG.normal(size=3), np.array([0.6]), random_cov(RNG, 3)
BELIEF = ps.Gaussian(array(X), array(COV))
MATRICES, VARIANCES = random_matrices(15, (4, 5, 2))
NET = build_network(MATRICES, VARIANCES, ("relu",))
LINEAR = build_network(MATRICES[:1], VARIANCES[:1], ())
RESIDUAL = build_network([MATRICES[0][:3]], [VARIANCES[0][:3]], ())
FIELDS = ("mean", "slope", "noise", "cov", "weight_slope")


def find(method, weights, **more):
    """A function of (network, belief) with everything else fixed."""
    return partial(ps.channel, method=method, weights=weights, control=array(CONTROL), **METHODS[method], **more)


def fields(c):
    """The arrays of a channel by name."""
    return {name: getattr(c, name) for name in FIELDS if getattr(c, name) is not None}


EVERY_METHOD = pytest.mark.parametrize("method", METHODS)
ALL_WEIGHTS = pytest.mark.parametrize("weights", ["local", "global", "point"])
# Point weights are certain local ones (see below), so that what is slow to compile is compiled for these two.
UNCERTAIN_WEIGHTS = pytest.mark.parametrize("weights", ["local", "global"])


@EVERY_METHOD
class TestEveryMethod:
    """One contract for all."""

    @ALL_WEIGHTS
    def test_a_channel_is_symmetric_positive_and_adds_up(self, method, weights):
        c = find(method, weights)(NET, BELIEF)
        assert c.mean.shape == (2,)
        assert c.slope.shape == (2, 3)
        explained = c.slope @ BELIEF.cov @ c.slope.T
        if weights == "global":
            assert c.weight_slope.shape == (2, NET.weights.mean.size)
            explained = explained + (c.weight_slope * NET.weights.var[None, :]) @ c.weight_slope.T
        else:
            assert c.weight_slope is None
        assert close(c.cov, np.asarray(explained + c.noise), scale=10)
        for matrix in (c.noise, c.cov):
            assert close(matrix, np.asarray(matrix.T), scale=0.01)
            assert smallest_eigenvalue(matrix) > (-1e-12 if matrix.dtype == jnp.float64 else -1e-6)

    @pytest.mark.float64  # Nothing in it depends on the precision.
    @UNCERTAIN_WEIGHTS
    def test_jit_and_vmap_change_nothing(self, method, weights):
        f = find(method, weights)
        means = array(np.stack([X, X + 0.5]))
        batch = eqx.filter_jit(jax.vmap(lambda mean: fields(f(NET, ps.Gaussian(mean, BELIEF.cov)))))(means)
        for row, mean in enumerate(means):
            for name, leaf in fields(f(NET, ps.Gaussian(mean, BELIEF.cov))).items():
                assert close(batch[name][row], np.asarray(leaf), scale=10)

    @UNCERTAIN_WEIGHTS
    def test_certain_inputs_and_weights_have_finite_values_and_gradients(self, method, weights):
        f = find(method, weights)

        @eqx.filter_jit
        def run(net, mean, cov):
            def total(inputs):
                net, mean, cov = inputs
                c = f(net, ps.Gaussian(mean, cov))
                return sum(leaf.sum() for leaf in fields(c).values()), c

            return eqx.filter_value_and_grad(total, has_aux=True)((net, mean, cov))

        certain = build_network(MATRICES, [0 * v for v in VARIANCES], ("relu",))
        for net, cov in (
            (NET, np.zeros((3, 3))),
            (certain, np.zeros((3, 3))),
            (certain, COV),
            (NET, np.outer(X, X)),
            (NET, np.diag([1.0, 0.0, 0.0])),
        ):
            (_, c), grads = run(net, array(X), array(cov))
            for leaf in jax.tree.leaves((c, grads)):
                assert jnp.isfinite(leaf).all()
            if net is certain and not cov.any():
                assert close(c.mean, np.asarray(NET(array(np.append(X, CONTROL)))))
                assert close(c.cov, np.zeros((2, 2)))

    @ALL_WEIGHTS
    def test_a_linear_network_is_exact(self, method, weights):
        matrix, var = MATRICES[0], VARIANCES[0]
        full = np.concatenate([X, CONTROL, [1.0]])
        # Point weights, whatever the state.
        point = LINEAR.at_mean()
        c = find(method, weights)(point, BELIEF)
        if method != "sampled":
            assert close(c.mean, matrix @ full)
        else:
            spread = np.sqrt(np.diag(matrix[:, :3] @ COV @ matrix[:, :3].T) / 500)
            assert (np.abs(np.asarray(c.mean) - matrix @ full) < 5 * spread).all()
        # Regression on samples loses a digit or two to the jitter that lets it divide by certain weights.
        scale = 30 if method == "sampled" else 1
        assert close(c.slope, matrix[:, :3], scale=scale)
        assert close(c.noise, np.zeros((5, 5)), scale=scale)
        # A known state, whatever the weights.
        if method != "sampled":
            c = find(method, weights)(LINEAR, ps.Gaussian.certain(array(X)))
            assert close(c.mean, matrix @ full)
            assert close(c.cov, np.diag(var @ full**2) * (weights != "point"))
            if weights == "global":
                wanted = np.zeros((5, 5, 5))
                wanted[range(5), range(5)] = full
                assert close(c.weight_slope, wanted.reshape(5, 25))

    @pytest.mark.float64  # Nothing in it depends on the precision.
    @ALL_WEIGHTS
    def test_the_residual_form_adds_the_state(self, method, weights):
        if method == "sampled" and weights != "global":
            pytest.skip("the link is the same for all; one sampler is enough to wait for")
        f = find(method, weights)(RESIDUAL, BELIEF)
        step = find(method, weights, residual=True, dt=0.25)(RESIDUAL, BELIEF)
        assert close(step.mean, np.asarray(BELIEF.mean + 0.25 * f.mean))
        assert close(step.slope, np.asarray(jnp.eye(3) + 0.25 * f.slope))
        assert close(step.noise, np.asarray(0.0625 * f.noise))
        if weights == "global":
            assert close(step.weight_slope, np.asarray(0.25 * f.weight_slope))
        wanted = step.slope @ BELIEF.cov @ step.slope.T + step.noise
        if weights == "global":
            wanted = wanted + (step.weight_slope * RESIDUAL.weights.var[None, :]) @ step.weight_slope.T
        assert close(step.cov, np.asarray(wanted), scale=10)


def test_point_ignores_the_variances_of_the_weights():
    for method in ("moments", "linearised", "unscented"):
        found = find(method, "point")(NET, BELIEF)
        wanted = find(method, "local")(NET.at_mean(), BELIEF)
        for name, leaf in fields(found).items():
            assert close(leaf, np.asarray(fields(wanted)[name]))


def test_local_equals_global_from_a_known_state_for_the_methods_without_sampling():
    known = ps.Gaussian.certain(array(X))
    for method in ("moments", "linearised", "unscented"):
        local, shared = find(method, "local")(NET, known), find(method, "global")(NET, known)
        assert close(shared.mean, np.asarray(local.mean))
        assert close(shared.cov, np.asarray(local.cov))


def test_a_belief_that_is_already_joint_equals_one_that_is_made_so():
    joint = ps.JointGaussian.independent(BELIEF, NET.weights)
    dense = ps.JointGaussian.independent(BELIEF, ps.DenseWeights(NET.weights.mean, jnp.diag(NET.weights.var), NET.shapes))
    for method in METHODS:
        found = fields(find(method, "global")(NET, BELIEF))
        for belief in (joint, dense) if method != "sampled" else (joint,):
            for name, leaf in fields(find(method, "global")(NET, belief)).items():
                assert close(leaf, np.asarray(found[name]), scale=10)


# ---------------------------------------------------------------- bad input


NAN, INF = float("nan"), float("inf")
ASYMMETRIC = array([[1.0, 0.5, 0.0], [0.1, 1.0, 0.0], [0.0, 0.0, 1.0]])
INDEFINITE = array([[1.0, 2.0, 0.0], [2.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
CALL = find("moments", "local")


def broken(net, value):
    """The same network with one weight replaced behind the constructor's back."""
    return eqx.tree_at(lambda n: n.linears[0].weight, net, net.linears[0].weight.at[0, 0].set(value))


def joint_with(weights=None, cross=None):
    weights = NET.weights if weights is None else weights
    cross = jnp.zeros((3, weights.mean.size)) if cross is None else cross
    return ps.JointGaussian(BELIEF, cross, weights)


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
        (lambda: CALL(NET, BELIEF, weights="glocal"), "weights"),
        (lambda: CALL(NET, BELIEF, weights=True), "weights"),
        (lambda: CALL(NET, BELIEF, ordre=4), "ordre"),
        (lambda: CALL(NET, BELIEF, samples=4), "samples"),
        # Residuals.
        (lambda: CALL(NET, BELIEF, residual=True), "residual"),
        (lambda: CALL(RESIDUAL, BELIEF, residual=True, dt=NAN), "dt"),
        (lambda: CALL(RESIDUAL, BELIEF, residual=True, dt="fast"), "dt"),
        # Joint beliefs.
        (lambda: CALL(NET, joint_with(), weights="local"), "weights|belief"),
        (lambda: CALL(NET, joint_with(), weights="point"), "weights|belief"),
        (lambda: CALL(NET, joint_with(LINEAR.weights), weights="global"), "weights|shapes"),
        (
            lambda: CALL(
                NET,
                joint_with(ps.DiagonalWeights(NET.weights.mean, -NET.weights.var, NET.shapes)),
                weights="global",
            ),
            "var",
        ),
        (
            lambda: CALL(
                NET,
                joint_with(ps.DiagonalWeights(NET.weights.mean * NAN, NET.weights.var, NET.shapes)),
                weights="global",
            ),
            "mean|weights",
        ),
        (
            lambda: CALL(NET, joint_with(cross=jnp.full((3, NET.weights.mean.size), NAN)), weights="global"),
            "cross",
        ),
    ],
)
def test_a_mistake_is_refused_by_name(call, named):
    with pytest.raises((ValueError, TypeError), match=rf"\b({named})"):
        call()


def test_rounding_is_not_a_mistake():
    # A covariance that arithmetic has left a little asymmetric and a little indefinite is still a covariance.
    eps = float(jnp.finfo(array(0.0).dtype).eps)
    cov = array(np.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])) - 4 * eps * jnp.eye(3)
    cov = cov.at[0, 1].add(4 * eps)
    assert jnp.isfinite(CALL(NET, ps.Gaussian(array(X), cov)).cov).all()
