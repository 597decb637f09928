"""What every method promises, for every weight mode: one list of methods, one set of claims."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from linear_oracles import (
    linear_state_space,
    random_linear_model,
    random_observations,
    textbook_kalman_filter,
    textbook_smoother,
)
from oracles import array, build_network, close, propagate, random_cov, random_matrices, smallest_eigenvalue

import prodssm as ps
from prodssm.methods.base import find_method

# A new method joins by one line in this list.
METHODS = [
    ps.Moments(),
    ps.Linearised(),
    ps.Unscented(),
    ps.Cubature(),
    ps.Sampled(samples=500, key=jr.key(4)),
]

RNG = np.random.default_rng(14)
X, CONTROL, COV = RNG.normal(size=3), np.array([0.6]), random_cov(RNG, 3)
BELIEF = ps.Gaussian(array(X), array(COV))
MATRICES, VARIANCES = random_matrices(15, (4, 5, 2))
NET = build_network(MATRICES, VARIANCES, ("relu",))
LINEAR = build_network(MATRICES[:1], VARIANCES[:1], ())
RESIDUAL = build_network([MATRICES[0][:3]], [VARIANCES[0][:3]], ())
FIELDS = ("mean", "slope", "noise", "weight_slope")


def name_of(method):
    """The name by which a method is asked for."""
    return type(method).__name__.lower()


EVERY_METHOD = pytest.mark.parametrize("method", METHODS, ids=name_of)
ALL_WEIGHTS = pytest.mark.parametrize("weights", ["local", "global", "point"])
# Point weights are local ones of zero variance (see below), so that what is slow to compile is compiled for these two.
UNCERTAIN_WEIGHTS = pytest.mark.parametrize("weights", ["local", "global"])


def arrays(channel):
    """The arrays of a channel by name."""
    return {name: getattr(channel, name) for name in FIELDS if getattr(channel, name) is not None}


def rounding_scale(method):
    """Regression on samples loses a digit or two to the jitter that lets it divide by zero variances."""
    return 30 if method.random else 1


def test_every_method_of_the_package_is_in_the_list():
    ours = {name for name, kind in ps.Method.registry.items() if kind.__module__.startswith("prodssm.")}
    assert ours == {name_of(method) for method in METHODS}


class PointsOnly(ps.Method):
    """A method of a contributor who has no rule for global weights: the channel at the mean of the state."""

    carries_weights = False

    def channel(self, network, belief, control=None):
        return ps.Linearised().channel(network.at_mean(), belief, control)


@pytest.mark.parametrize(
    "use",
    [
        lambda: ps.channel(NET, BELIEF, PointsOnly(), "global", control=array(CONTROL)),
        lambda: ps.filter_states(linear_state_space(random_linear_model(0), weights="global"), np.zeros((4, 2)), PointsOnly()),
        lambda: ps.ProDSSM(weights="global", method="pointsonly").fit(np.zeros((9, 1))),
        lambda: ps.DeepStochasticRegressor(weights="global", method="pointsonly").fit(np.zeros((9, 1)), np.zeros(9)),
    ],
    ids=["channel", "filter", "ProDSSM", "regressor"],
)
def test_a_method_may_decline_global_weights(use):
    with pytest.raises(ValueError, match="PointsOnly has no rule for weights='global'; use method='moments'"):
        use()


@EVERY_METHOD
class TestEveryMethod:
    """One contract for all."""

    @pytest.fixture(autouse=True)
    def supported(self, request, method):
        if request.node.callspec.params.get("weights") == "global" and not method.carries_weights:
            pytest.skip("the method declines global weights")

    def test_a_method_is_found_by_its_name_and_by_itself(self, method):
        assert type(find_method(name_of(method))) is type(method)
        assert find_method(method) is method

    @ALL_WEIGHTS
    @pytest.mark.default_xla
    def test_a_channel_has_the_sizes_of_network_and_belief_and_psd_noise(self, method, weights):
        c, predicted = propagate(method, NET, BELIEF, weights=weights, control=CONTROL)
        assert c.mean.shape == (2,)
        assert c.slope.shape == (2, 3)
        explained = c.slope @ BELIEF.cov @ c.slope.T
        if weights == "global":
            assert c.weight_slope.shape == (2, NET.weights.mean.size)
            explained = explained + (c.weight_slope * NET.weights.var[None, :]) @ c.weight_slope.T
        else:
            assert c.weight_slope is None
        assert close(predicted.mean, np.asarray(c.mean))
        assert close(predicted.cov, np.asarray(explained + c.noise), scale=10)
        for matrix in (c.noise, predicted.cov):
            assert close(matrix, np.asarray(matrix.T), scale=0.01)
            assert smallest_eigenvalue(matrix) > (-1e-12 if matrix.dtype == jnp.float64 else -1e-6)

    @ALL_WEIGHTS
    def test_the_public_function_returns_the_channel_of_the_method(self, method, weights):
        wanted = arrays(propagate(method, NET, BELIEF, weights=weights, control=CONTROL)[0])
        found = arrays(ps.channel(NET, BELIEF, method, weights, control=array(CONTROL)))
        assert found.keys() == wanted.keys()
        for name, leaf in found.items():
            assert close(leaf, np.asarray(wanted[name]), scale=rounding_scale(method))
        assert close(found["noise"], np.asarray(found["noise"].T), scale=0)

    @pytest.mark.parametrize("dt", [None, 0.25])
    @UNCERTAIN_WEIGHTS
    def test_the_propagated_belief_is_the_one_that_the_channel_predicts(self, method, weights, dt):
        belief = BELIEF if weights == "local" else ps.JointGaussian.independent(BELIEF, RESIDUAL.weights)
        c, predicted = propagate(method, RESIDUAL, belief, control=CONTROL, dt=dt)
        wanted = belief.predict(c)
        assert type(predicted) is type(belief)
        assert close(predicted.mean, np.asarray(wanted.mean))
        assert close(predicted.cov, np.asarray(wanted.cov), scale=10)
        if isinstance(predicted, ps.JointGaussian) and isinstance(wanted, ps.JointGaussian):
            assert close(predicted.cross, np.asarray(wanted.cross), scale=10)

    @pytest.mark.float64  # Nothing in it depends on the precision.
    @UNCERTAIN_WEIGHTS
    def test_jit_changes_nothing(self, method, weights):
        belief = BELIEF if weights == "local" else ps.JointGaussian.independent(BELIEF, NET.weights)
        compiled = arrays(propagate(method, NET, belief, control=CONTROL)[0])
        for name, leaf in arrays(method.channel(NET, belief, array(CONTROL))).items():
            assert close(leaf, np.asarray(compiled[name]), scale=10)

    @pytest.mark.float64  # Nothing in it depends on the precision.
    @UNCERTAIN_WEIGHTS
    def test_vmap_changes_nothing(self, method, weights):
        def run(mean):
            return arrays(propagate(method, NET, ps.Gaussian(mean, BELIEF.cov), weights=weights, control=CONTROL)[0])

        means = array(np.stack([X, X + 0.5]))
        batch = jax.jit(jax.vmap(run))(means)
        for row, mean in enumerate(means):
            for name, leaf in run(mean).items():
                assert close(batch[name][row], np.asarray(leaf), scale=10)

    @UNCERTAIN_WEIGHTS
    def test_certain_inputs_and_weights_have_finite_values_and_gradients(self, method, weights):
        @eqx.filter_jit
        def run(net, mean, cov):
            def total(inputs):
                net, mean, cov = inputs
                c, predicted = propagate(method, net, ps.Gaussian(mean, cov), weights=weights, control=CONTROL)
                return sum(leaf.sum() for leaf in (*arrays(c).values(), predicted.cov)), (c, predicted.cov)

            return eqx.filter_value_and_grad(total, has_aux=True)((net, mean, cov))

        certain = build_network(MATRICES, [0 * v for v in VARIANCES], ("relu",))
        for net, cov in (
            (NET, np.zeros((3, 3))),
            (certain, np.zeros((3, 3))),
            (certain, COV),
            (NET, np.outer(X, X)),
            (NET, np.diag([1.0, 0.0, 0.0])),
        ):
            (_, (c, output_cov)), grads = run(net, array(X), array(cov))
            for leaf in jax.tree.leaves((c, output_cov, grads)):
                assert jnp.isfinite(leaf).all()
            if net is certain and not cov.any():
                assert close(c.mean, np.asarray(NET(array(np.append(X, CONTROL)))))
                assert close(output_cov, np.zeros((2, 2)))

    def test_slopes_stay_bounded_where_inputs_are_certain(self, method):
        net = ps.Network.mlp((6, 10, 2), key=jr.key(0))
        for cov in (jnp.zeros((6, 6)), jnp.diag(array([1.0, 0, 0, 0, 0, 0]))):
            assert jnp.abs(propagate(method, net, ps.Gaussian(jnp.zeros(6), cov))[0].slope).max() < 10

    @ALL_WEIGHTS
    @pytest.mark.default_xla
    def test_the_channel_of_a_linear_network_with_point_weights_is_exact(self, method, weights):
        c, predicted = propagate(method, LINEAR.at_mean(), BELIEF, weights=weights, control=CONTROL)
        matrix = MATRICES[0]
        slope, scale = matrix[:, :3], rounding_scale(method)
        assert close(c.mean, matrix @ np.concatenate([X, CONTROL, [1.0]]), scale=scale)
        assert close(c.slope, slope, scale=scale)
        assert close(c.noise, np.zeros((5, 5)), scale=scale)
        assert close(predicted.cov, slope @ COV @ slope.T, scale=scale)

    @ALL_WEIGHTS
    def test_the_channel_of_a_linear_network_at_a_known_state_is_exact(self, method, weights):
        if method.random:
            pytest.skip("exact up to the number of samples only, see test_sampled.py")
        full = np.concatenate([X, CONTROL, [1.0]])
        c, predicted = propagate(method, LINEAR, ps.Gaussian.certain(array(X)), weights=weights, control=CONTROL)
        assert close(c.mean, MATRICES[0] @ full)
        assert close(predicted.cov, np.diag(VARIANCES[0] @ full**2) * (weights != "point"))
        if weights == "global":
            wanted = np.zeros((5, 5, 5))
            wanted[range(5), range(5)] = full
            assert close(c.weight_slope, wanted.reshape(5, 25))

    def test_a_control_acts_as_a_part_of_the_bias(self, method):
        folded = np.column_stack([MATRICES[0][:, :3], MATRICES[0][:, 3:4] @ CONTROL + MATRICES[0][:, 4]])
        wanted = propagate(method, build_network([folded, MATRICES[1]], None, ("relu",)), BELIEF)[0]
        found = propagate(method, NET, BELIEF, weights="point", control=CONTROL)[0]
        for name, leaf in arrays(found).items():
            assert close(leaf, np.asarray(arrays(wanted)[name]))

    @pytest.mark.float64  # Nothing in it depends on the precision.
    @UNCERTAIN_WEIGHTS
    def test_the_residual_form_adds_the_state(self, method, weights):
        f = propagate(method, RESIDUAL, BELIEF, weights=weights, control=CONTROL)[0]
        step = propagate(method, RESIDUAL, BELIEF, weights=weights, control=CONTROL, dt=0.25)[0]
        assert close(step.mean, np.asarray(BELIEF.mean + 0.25 * f.mean))
        assert close(step.slope, np.asarray(jnp.eye(3) + 0.25 * f.slope))
        assert close(step.noise, np.asarray(0.0625 * f.noise))
        if weights == "global":
            assert close(step.weight_slope, np.asarray(0.25 * f.weight_slope))
        public = ps.channel(RESIDUAL, BELIEF, method, weights, control=array(CONTROL), residual=True, dt=0.25)
        for name, leaf in arrays(public).items():
            assert close(leaf, np.asarray(arrays(step)[name]), scale=rounding_scale(method))

    @pytest.mark.parametrize("weights", ["point", "global"])
    @pytest.mark.default_xla
    def test_filter_and_smoother_of_a_linear_model_equal_the_textbook(self, method, weights):
        linear = random_linear_model(21, x=3, y=2)
        linear = linear._replace(
            process_noise=np.diag(np.diag(linear.process_noise)), measurement_noise=np.diag(np.diag(linear.measurement_noise))
        )
        rng, time = np.random.default_rng(22), 8
        gain, controls = rng.normal(size=(3, 1)), rng.normal(size=(time, 1))
        observations = random_observations(linear, time, seed=23)
        shifts = linear.shift + controls @ gain.T
        # The weights have no variance, so that their mode makes no difference.
        model = linear_state_space(linear, gain, weights=weights)
        series = ps.Series(array(observations), u=array(controls))
        scale = 10 * rounding_scale(method)
        filtered = ps.filter_states(model, series, method=method)
        textbook = textbook_kalman_filter(linear, observations, shifts)
        for found, wanted in zip((filtered.mean, filtered.cov, filtered.log_evidence), textbook, strict=True):
            assert close(found, wanted, scale=scale)
        smoothed = ps.smooth_states(model, series, method=method)
        for found, wanted in zip((smoothed.mean, smoothed.cov), textbook_smoother(linear, observations, shifts), strict=True):
            assert close(found, wanted, scale=scale)
        assert close(smoothed.log_likelihood, textbook[2].sum(), scale=scale)

    def test_randomness_is_a_key_per_time_step_and_use_or_none(self, method):
        again, later, other = method.at(3, 0), method.at(4, 0), method.at(3, 1)
        found = [np.asarray(propagate(m, NET, BELIEF, control=CONTROL)[0].mean) for m in (method.at(3, 0), again, later, other)]
        assert (found[0] == found[1]).all()
        for differently in found[2:]:
            assert (found[0] == differently).all() != method.random
        assert (method.seeded(jr.key(5)) is method) != method.random
