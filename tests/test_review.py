"""Mistakes that a reviewer found once and nobody shall find again."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.series import Standardiser

EPS = float(jnp.finfo(array(0.0).dtype).eps)


@pytest.fixture
def usual_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


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


def test_single_precision_does_not_swallow_data_without_a_word():
    northing = 5.3e6 + 0.05 * np.random.default_rng(0).normal(size=24)
    if EPS > 1e-10:
        with pytest.warns(UserWarning, match=r"y\[:, 0\] varies by less than single precision"):
            ps.Series(northing)
        with pytest.warns(UserWarning, match=r"u\[:, 1\] varies"):
            ps.Series(np.arange(24.0), u=np.stack([np.arange(24.0), northing], axis=1))
    else:
        assert len(np.unique(ps.Series(northing).y)) == 24
    stamps = 1.7e9 + 60 * np.arange(24)
    for time in (stamps, stamps.astype(int), stamps.astype(np.uint64), stamps.tolist()):
        assert np.allclose(ps.Series(np.zeros(24), time=time).dt, 60, rtol=10 * EPS)


@pytest.mark.parametrize("kind", [float, np.int64, np.uint32])
def test_time_that_goes_back_is_refused_in_the_numbers_that_were_given(kind):
    with pytest.raises(ValueError, match=r"got 9(\.0)? followed by 7(\.0)? at index 1"):
        ps.Series(np.zeros(3), time=np.array([5, 9, 7]).astype(kind))


def test_small_units_are_units():
    current = 1e-11 * np.random.default_rng(0).normal(size=(500, 1))
    assert np.isclose(Standardiser.fit(array(current)).scale[0], current.std(), rtol=1e-4)
    assert Standardiser.fit(array(np.full((5, 1), 1e-11))).scale[0] == 1
    assert Standardiser.fit(array(np.zeros((5, 1)))).scale[0] == 1


@pytest.mark.usefixtures("usual_promotion")
def test_time_steps_are_taken_before_stamps_are_rounded():
    y, stamps = np.sin(0.3 * np.arange(40)), np.r_[0, 1e5 + 0.01 * np.arange(39)]
    series = ps.Series(y, time=stamps)
    assert close(series.dt[1:] / 0.01, np.ones(39), scale=1e4)
    assert close(series.window(5, 20).dt / 0.01, np.ones(20), scale=1e4)
    model = ps.ProDSSM(hidden=(), residual=True, iterations=1, progress=False).fit(series)
    assert close(model.units_.series(series).dt[1:], np.ones(39), scale=1e4)
    assert ps.Series(y, time=np.r_[0, 3600 * 24 * 365 + np.arange(39)]).dt[5] == 1.0  # whole seconds, a year later


def unstable():
    net = ps.Network.from_arrays([array([[30.0]])], [array([0.0])])
    noise = {"process_noise": array([0.1]), "measurement_noise": array([0.1])}
    return ps.StateSpaceModel(initial=ps.Gaussian(array([0.0]), array([[1.0]])), transition=net, weights="point", **noise)


@pytest.mark.parametrize(
    "ask",
    [
        lambda model, y: ps.forecast(model, y, 400),
        lambda model, y: ps.simulate(model, 400, key=jr.key(0)),
        lambda model, y: ps.filter_states(model, y),
        lambda model, y: ps.smooth_states(model, y),
    ],
)
def test_answers_that_leave_the_range_of_numbers_are_errors(ask):
    unseen = np.full((400, 1), np.nan)
    unseen[0] = 1.0
    with pytest.raises(FloatingPointError, match="left the range of numbers"):
        ask(unstable(), unseen)


@pytest.mark.usefixtures("usual_promotion")
def test_a_stream_that_leaves_the_range_of_numbers_is_an_error():
    model = ps.ProDSSM(hidden=(), iterations=1, progress=False).fit(np.sin(0.3 * np.arange(20)))
    model.ssm_ = unstable()
    state = model.start()

    def run():
        now = state
        for _ in range(400):
            now, _ = model.step(now, [np.nan])

    with pytest.raises(FloatingPointError, match="the stream left"):
        run()


@pytest.mark.usefixtures("usual_promotion")
def test_deviations_whose_squares_are_no_numbers_are_refused():
    y = np.sin(0.3 * np.arange(20)) * (1e-20 if EPS > 1e-10 else 1e-160)
    with pytest.raises(ValueError, match="data must be in units in which float"):
        ps.ProDSSM(hidden=(), iterations=1, progress=False).fit(y)


@pytest.mark.usefixtures("usual_promotion")
def test_given_noise_in_small_units_is_kept():
    y, small = np.sin(0.3 * np.arange(20)), 1e-12 if EPS > 1e-10 else 1e-100
    found = [
        ps.ProDSSM(hidden=(), iterations=1, progress=False, measurement_noise=0.1 * unit**2).fit(unit * y)
        for unit in (small, 1.0)
    ]
    assert close(found[0].ssm_.measurement_noise, found[1].ssm_.measurement_noise, scale=100)


@pytest.mark.parametrize(("method", "size"), [("moments", 2), ("moments", 5), ("sampled", 5)])
def test_gradients_are_finite_where_nothing_is_uncertain(method, size):
    series = ps.Series(np.random.default_rng(0).normal(size=(6, size)))
    model = ps.StateSpaceModel(
        initial=ps.Gaussian.certain(jnp.zeros(size)),
        transition=ps.Network.mlp((size, 4, size), key=jr.key(0)),
        process_noise=np.zeros(size),
        measurement_noise=np.full(size, 0.1),
        weights="point" if method == "moments" else "local",
    )
    options = {"key": jr.key(0), "samples": 100} if method == "sampled" else {}

    def total(model):
        found = ps.smooth_states(model, series, method=method, **options)
        return found.mean.sum() + found.log_likelihood

    grads = eqx.filter_grad(total)(model)
    grads = eqx.tree_at(lambda m: m.log_process_noise, grads, jnp.zeros(size))  # of the logarithm of zero
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_what_does_not_vary_is_not_warned_of(recwarn):
    y = np.sin(0.3 * np.arange(20))
    ps.Series(np.column_stack([y, np.full(20, 0.1)]), u=np.full(20, 0.1))
    assert not recwarn.list


def test_a_model_runs_in_its_own_precision():
    single = ps.StateSpaceModel(
        initial=ps.Gaussian(np.zeros(1, np.float32), np.eye(1, dtype=np.float32)),
        transition=ps.Network.from_arrays([np.full((1, 1), 0.1, np.float32)], [np.zeros(1, np.float32)]),
        process_noise=np.ones(1, np.float32),
        measurement_noise=np.ones(1, np.float32),
        weights="point",
        residual=True,
    )
    y = np.sin(0.3 * np.arange(20))
    assert ps.filter_states(single, y).mean.dtype == ps.forecast(single, y, 3).mean.dtype == jnp.float32
