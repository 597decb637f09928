"""Mistakes that a reviewer found once and nobody shall find again."""

import pickle

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm import estimators
from prodssm.series import Standardiser
from prodssm.training import Data, History, later_is_better

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
@pytest.mark.parametrize("settings", [{"horizons": (30,)}, {"horizons": (15,), "window": 10}])
def test_horizons_that_training_never_reaches_are_refused(settings):
    with pytest.raises(ValueError, match="horizons must reach observations to learn from"):
        ps.ProDSSM(hidden=(), iterations=1, progress=False, **settings).fit(np.sin(np.arange(24.0)))


def softsign(x):
    return x / (1 + jnp.abs(x))


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize("activation", ["relu", softsign])
def test_a_fitted_model_can_be_pickled(activation):
    y = np.sin(np.arange(24.0))
    model = ps.ProDSSM(hidden=(3,), activation=activation, iterations=1, progress=False).fit(y)
    again = pickle.loads(pickle.dumps(model))
    assert (again.forecast(y, 3).mean == model.forecast(y, 3).mean).all()


def test_what_only_some_windows_can_judge_is_not_compared_with_what_other_windows_saw():
    data = Data.of([ps.Series(np.sin(np.arange(24.0))), ps.Series(np.cos(np.arange(20.0)))])
    assert data.drawn_whole(None, None)
    assert data.drawn_whole(2, 24)
    assert not data.drawn_whole(1, None)
    assert not data.drawn_whole(None, 10)
    assert later_is_better(array(3.0), jnp.asarray(25)) == 25
    assert later_is_better(array(jnp.nan), jnp.asarray(25)) == -jnp.inf


@pytest.mark.usefixtures("usual_promotion")
def test_ctrl_c_in_an_early_stage_of_a_later_restart_keeps_the_finished_one(monkeypatch):
    left = [3]

    def train(start, series, recipe, **_):
        left[0] -= 1
        stopped = "all iterations done" if left[0] else "interrupted; the best model so far is returned"
        # The last call is the first stage of the second restart, and seems the best.
        return start, History([25], [0.0 if left[0] else 9.0], [], [1.0], stopped)

    monkeypatch.setattr(estimators, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
    model = ps.ProDSSM(hidden=(3,), weights="global", refine=5, restarts=2, progress=False).fit(np.sin(np.arange(24.0)))
    assert left == [0]
    assert model.history_.objective == [0.0, 0.0]


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (np.ones((24, 2)), "held_out: data must have 1 channels"),
        (np.full(24, np.inf), "held_out: y must be finite"),
        ([], "held_out: "),
    ],
)
def test_errors_about_held_out_series_say_so(held_out, said):
    with pytest.raises(ValueError, match=said):
        ps.ProDSSM(hidden=(), iterations=1, progress=False).fit(np.sin(np.arange(24.0)), held_out=held_out)
