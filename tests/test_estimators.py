"""The friendly face: conventions, bad input, units, streams, parts of a variance, files, and training as users call it.

Compiling is what costs time here. So most models below went through all of `fit` but training, which has tests of its own.
"""

import itertools
import json
import logging
from contextlib import contextmanager
from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import FUNCTIONS, Moments, array, build_network, close, random_matrices, root_eps, run_layers, run_layers_at
from scipy import stats
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import prodssm as ps
from prodssm import estimators, training
from prodssm.batches import Data
from prodssm.inference import Finder, future, latest, require_memory, sample_futures, split_variances
from prodssm.persistence import FileError, read, write
from prodssm.training import History

FIXTURES = Path(__file__).parent / "fixtures"
CHEAP = {"hidden": (5,), "order": 1, "iterations": 50, "progress": False}
TIME, AHEAD = 24, 12


@pytest.fixture(autouse=True, scope="module")
def standard_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


# ---------------------------------------------------------------- data and models


def wave(length=TIME, seed=0):
    """One channel that swings, with noise."""
    return np.sin(0.4 * np.arange(length))[:, None] + 0.1 * np.random.default_rng(seed).normal(size=(length, 1))


def rich_parts(seed, length):
    """Two channels with a missing stretch, a control, irregular time."""
    rng = np.random.default_rng(seed)
    y = np.cumsum(rng.normal(size=(length, 2)), axis=0)
    y[length // 2 : length // 2 + 4], y[1, 0] = np.nan, np.nan
    return y, rng.normal(size=(length, 1)), np.cumsum(rng.uniform(0.2, 1.0, length))


def rich(seed, length):
    return ps.Series(*(array(part) for part in rich_parts(seed, length)))


@contextmanager
def without_training(*, found=None, check=False):
    """Training finds at once where it starts, or the model that it is told to; the check after it is left out."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(estimators, "train", lambda start, *_, **__: (start if found is None else found, History([1], [0.0])))
        if not check:
            patch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
        yield patch


def fit_untrained(data, **settings):
    """A model that went through all of `fit` but training and the check."""
    with without_training():
        return ps.ProDSSM(**(CHEAP | settings)).fit(data)


@pytest.fixture(scope="module")
def local():
    return fit_untrained(wave())


@pytest.fixture(scope="module")
def drawn_once():
    return fit_untrained(wave(), weights="global")


@pytest.fixture(scope="module")
def with_everything():
    """Two series of unequal length with controls, missing values and irregular time."""
    return fit_untrained([rich(0, 14), rich(1, 10)], residual=True, measurement_noise=(0.04, 0.01))


def trained(data=None, **settings):
    """A model that was really trained, without the check at the end."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
        return ps.ProDSSM(**(CHEAP | {"hidden": (3,)} | settings)).fit(wave() if data is None else data)


def same(first, second):
    leaves = [jax.tree.leaves(tree) for tree in (first, second)]
    return all(a.dtype == b.dtype and (np.asarray(a) == np.asarray(b)).all() for a, b in zip(*leaves, strict=True))


# ---------------------------------------------------------------- conventions of scikit-learn


def test_settings_are_stored_as_they_are_and_survive_cloning():
    given = {"hidden": [7, 7], "weights": "global", "measurement_noise": np.ones(2), "seed": 5}
    model = ps.ProDSSM(**given)
    assert all(model.get_params()[name] is value for name, value in given.items())
    copied: Any = clone(model)
    assert copied.hidden == [7, 7]
    assert (copied.measurement_noise == 1).all()
    assert copied.set_params(seed=6).seed == 6
    assert model.seed == 5
    with pytest.raises(ValueError, match="Invalid parameter"):
        model.set_params(hiden=(3,))


def test_a_clone_of_a_fitted_model_has_learned_nothing(local):
    fresh: Any = clone(local)
    with pytest.raises(NotFittedError, match="fit"):
        fresh.filter(wave())


@pytest.mark.parametrize(
    "use",
    [
        lambda m: m.filter(wave()),
        lambda m: m.smooth(wave()),
        lambda m: m.forecast(wave(), 2),
        lambda m: m.score(wave()),
        lambda m: m.check(wave()),
        lambda m: m.transition([[0.0]]),
        lambda m: m.simulate(3, jr.key(0)),
        lambda m: m.start(),
        lambda m: m.step(estimators.Stream(None, jnp.zeros(())), [0.0]),
        lambda m: m.save("nowhere.safetensors"),
    ],
)
def test_nothing_can_be_asked_before_fit(use):
    with pytest.raises(NotFittedError, match=r"call fit\(data\) first"):
        use(ps.ProDSSM())


def test_settings_may_come_from_numpy_as_a_random_search_gives_them(tmp_path):
    settings = {"hidden": np.array([5]), "seed": np.int64(3), "iterations": np.int64(7), "horizons": np.array([1, 2])}
    model = ps.ProDSSM(**CHEAP).set_params(**settings, learning_rate=np.float32(0.01), validation=np.float64(0.0))
    assert model._recipe().check().iterations == 7
    json.dumps(model._recipe().objective)  # as the fingerprint of a checkpoint does
    with without_training():
        model.fit(wave()).save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert (loaded.hidden, loaded.seed, loaded.horizons) == ((5,), 3, (1, 2))


# ---------------------------------------------------------------- bad input


def irregular(length=TIME):
    return ps.Series(array(wave(length)), time=array(np.cumsum(np.random.default_rng(0).uniform(0.2, 1.0, length))))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.zeros((0, 1)), "y must not be empty"),
        ([], "y must not be empty"),
        ([1.0], "y must have at least two time steps"),
        (np.stack([wave()[:, 0], np.full(TIME, np.nan)], axis=1), "channel 1 has none"),
        (np.array([[0.0], [np.inf]]), "y must be finite or NaN"),
        ([wave(), np.hstack([wave(), wave()])], "series 1 must have 1 channels"),
        ([ps.Series(wave(), u=wave()), ps.Series(wave())], "u of series 1"),
        ([irregular(), ps.Series(wave())], "time must be given for all"),
        (irregular(), "residual=True"),
        ([1.0, np.nan, np.nan], "observations after the first"),
        ("abc", "y must be an array of numbers"),
        ([wave(), wave()[:1]], "series 1: y must have at least two time steps"),
    ],
)
def test_bad_data_are_refused_before_any_work(data, said, monkeypatch):
    monkeypatch.setattr(estimators, "assemble", None)  # would fail if it were reached
    with pytest.raises((ValueError, TypeError), match=said):
        ps.ProDSSM(**CHEAP).fit(data)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ps.Series(wave(), u=np.zeros((TIME - 1, 1))), f"u must have {TIME} rows"),
        (lambda: ps.Series(wave(), time=np.zeros(TIME)), "time must increase"),
        (lambda: ps.Series(wave(), time=np.arange(TIME)[::-1]), "time must increase"),
        (lambda: ps.Series(wave(), time=np.datetime64("2026-01-01") + np.arange(TIME)), "time must be numbers, got dates"),
    ],
)
def test_series_that_do_not_fit_together_are_refused(make, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights": "loca"}, "weights must be one of local, global, point"),
        ({"method": "magic"}, "method must be one of"),
        ({"activation": "rleu"}, "activation must be one of"),
        ({"emission": "identiy"}, "emission must be 'identity' or 'linear' or a tuple"),
        ({"emission": None}, "emission must be 'identity' or 'linear' or a tuple"),
        ({"process_noise": "none"}, "process_noise must be 'constant' or a tuple"),
        ({"hidden": 50}, "hidden must be a tuple of hidden sizes, got 50"),
        ({"hidden": (5, 0)}, "hidden must have positive sizes"),
        ({"hidden": (5, 2.5)}, "hidden must be a tuple"),
        ({"latent_dim": 2}, "latent_dim must equal the 1 observed channels"),
        ({"latent_dim": 0}, "latent_dim must be at least 1"),
        ({"measurement_noise": -0.1}, "measurement_noise must not be negative"),
        ({"measurement_noise": np.nan}, "measurement_noise must be finite"),
        ({"measurement_noise": (0.1, 0.1)}, "measurement_noise must be one variance or 1"),
        ({"measurement_noise": "small"}, "measurement_noise must be an array of numbers"),
        ({"noise_floor": -1e-3}, "noise_floor must not be negative"),
        ({"horizons": 5}, "horizons must be a tuple"),
        ({"horizons": ()}, "horizons must be"),
        ({"objective": "elbo"}, "objective must be one of evidence, bound"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"prior_weight": -1.0}, "prior_weight must not be negative"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"window": 1}, "window must be at least 2"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"restarts": 0}, "restarts must be at least 1"),
        ({"validation_horizons": ()}, "validation_horizons must be one or more"),
        ({"calibrate": "no"}, "calibrate must be True or False"),
        ({"residual": "no"}, "residual must be True or False"),
        ({"warm_up": 2.0}, "warm_up must be a share"),
        ({"give_back": 0}, "give_back must be at least 1"),
        ({"linear_start": 2}, "linear_start must be True or False"),
        ({"refine": 0}, "refine must be at least 1"),
        ({"rank": 0}, "rank must be at least 1"),
        ({"validation": 1.0}, "validation must be a share"),
        ({"validation": -0.1}, "validation must be a share"),
        ({"seed": None}, "seed must be an integer"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"order": 0}, "order must be at least 1"),
        ({"method": "sampled", "samples": 1}, "samples must be at least 2"),
    ],
)
def test_bad_settings_are_refused_by_name_before_any_work(settings, said, monkeypatch):
    monkeypatch.setattr(training, "_keep", None)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", None)
    with pytest.raises((ValueError, TypeError), match=said):
        ps.ProDSSM(**CHEAP).set_params(**settings).fit(wave())


def test_weights_drawn_once_are_refused_where_memory_cannot_hold_them(drawn_once):
    with pytest.raises(ValueError, match=r"weights='global' would keep .* smaller network or rank.*weights='local'"):
        ps.ProDSSM(**(CHEAP | {"hidden": (30_000,)}), weights="global", rank=10**6).fit(wave())
    require_memory(drawn_once.ssm_, TIME)
    # A gradient or a smoother keeps one covariance of all weights for every step.
    with pytest.raises(ValueError, match=r"weights='global' would keep .* GB; .*weights='local'"):
        require_memory(drawn_once.ssm_, 10**12)


def test_controls_are_not_mistaken_for_a_target():
    with pytest.raises(ValueError, match=r"y must be None.*Series\(y, u\)"):
        ps.ProDSSM(**CHEAP).fit(wave(), np.ones((TIME, 1)))


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda m: m.filter([wave(), wave()]), "data must be one series here, got 2"),
        (lambda m: m.filter(np.hstack([wave(), wave()])), "data must have 1 channels like those of fit, got 2"),
        (lambda m: m.filter(ps.Series(wave(), u=wave())), "u must not be given, as in fit"),
        (lambda m: m.filter(irregular()), "time must have steps of 1 throughout for residual=False"),
        (lambda m: m.filter(ps.Series(wave(), time=0.1 * np.arange(TIME))), "time must have steps of 1"),
        (lambda m: m.forecast(wave(), 0), "steps must be at least 1"),
        (lambda m: m.forecast(wave(), 2, u=np.ones((2, 1))), "u must not be given, as in fit"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0]), "dt must have at least 2 entries"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0, -1.0]), "dt must be positive"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0, np.nan]), "dt must be finite"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0, 0.5]), "dt must be 1.0 throughout for residual=False"),
        (lambda m: m.forecast(wave(), 2).interval(95.0), "probability must lie between 0 and 1"),
        (lambda m: m.transition([0.0]), "x must have 2 axes"),
        (lambda m: m.transition([[0.0, 0.0]]), "x must have 1 columns"),
        (lambda m: m.transition([[np.nan]]), "x must be finite"),
        (lambda m: m.transition([[0.0]], u=[[0.0]]), "u must not be given, as in fit"),
        (lambda m: m.simulate(0, jr.key(0)), "steps must be at least 1"),
        (lambda m: m.simulate(3, 0), r"key must be a key such as jax.random.key\(0\), got 0"),
        (lambda m: m.step(None, [0.0]), r"state must be what start\(\) or the last step has returned"),
        (lambda m: m.simulate(3, jr.key(0), u=np.ones((3, 1))), "u must not be given, as in fit"),
        (lambda m: m.simulate(4, jr.key(0), dt=[1.0, 1.0]), "dt must have at least 3 entries"),
        (lambda m: m.step(m.start(), 0.0), r"y must have shape \(1,\)"),
        (lambda m: m.step(m.start(), [0.0, 0.0]), r"y must have shape \(1,\)"),
        (lambda m: m.step(m.start(), [np.inf]), "y must be finite"),
        (lambda m: m.step(m.start(), [0.0], u=[0.0]), "u must not be given, as in fit"),
        (lambda m: m.step(m.start(), [0.0], dt=0.0), "dt must be positive"),
        (lambda m: m.step(m.start(), [0.0], dt=np.nan), "dt must be finite"),
        (lambda m: m.step(m.start(), [0.0], dt=2.0), "needs residual=True"),
        (lambda m: m.check(wave(), steps=TIME), f"data must have at least {TIME + 2} observations"),
        (lambda m: m.check(wave(), steps=5, samples=1), "samples must be at least 10"),
    ],
)
def test_bad_questions_are_refused_by_name(use, said, local):
    with pytest.raises((ValueError, TypeError), match=said):
        use(local)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda m, s: m.filter(ps.Series(s.y, time=s.time)), "u must be given, as in fit"),
        (lambda m, s: m.filter(ps.Series(s.y, jnp.hstack([s.u, s.u]), s.time)), "u must have 1 columns"),
        (lambda m, s: m.forecast(s, 3), "u must give the 2 controls"),
        (lambda m, s: m.forecast(s, 4, u=np.ones((2, 1))), r"u must have shape \(3 or more, 1\)"),
        (lambda m, s: m.forecast(s, 3, u=np.ones((3, 2))), "u must have 1 columns"),
        (lambda m, s: m.forecast(s, 3, u=[[0.0], [np.nan]]), "u must be finite"),
        (lambda m, s: m.transition(np.zeros((3, 2))), "u must be given, as in fit"),
        (lambda m, s: m.transition(np.zeros((3, 2)), u=np.zeros((2, 1))), "u must have 3 rows like x"),
        (lambda m, s: m.forecast(s, 3, u=np.ones((2, 1)), dt=[1.0, -2.5, 1.0]), "dt must be positive, got -2.5"),
        (lambda m, s: m.simulate(3, jr.key(0)), "u must be given"),
        (lambda m, s: m.simulate(3, jr.key(0), u=np.zeros((1, 1))), "u must have shape"),
        (lambda m, s: m.step(m.start(), s.y[0]), "u must be given, as in fit"),
        (lambda m, s: m.step(m.start(), s.y[0], u=[np.nan]), "u must be 1 finite numbers"),
    ],
)
def test_bad_controls_are_refused_by_name(use, said, with_everything):
    with pytest.raises((ValueError, TypeError), match=said):
        use(with_everything, rich(0, 14))


def test_a_fit_that_fails_leaves_no_mixture_of_two_models(local):
    model = copy(local).set_params(validation=7.0)
    with pytest.raises(ValueError, match="validation"):
        model.fit(1000 * wave())
    with pytest.raises(NotFittedError):
        model.filter(wave())


# ---------------------------------------------------------------- what just works

SCALE, SHIFT = np.array([1e6, 1.0]), np.array([-3e6, 5.0])


def other_units(series):
    """The same series with channels, controls and time in other units; the scales of the channels are 1e6 apart."""
    assert series.u is not None
    assert series.time is not None
    return ps.Series(series.y * SCALE + SHIFT, 1e-3 * series.u - 7.0, 60.0 * series.time + 100.0)


@pytest.fixture(scope="module")
def elsewhere():
    """As `with_everything`, from the same data in other units."""
    data = [other_units(rich(0, 14)), other_units(rich(1, 10))]
    return fit_untrained(data, residual=True, measurement_noise=np.array([0.04, 0.01]) * SCALE**2)


def test_training_sees_the_same_numbers_in_any_units(with_everything, elsewhere):
    for n in range(2):
        one = with_everything.units_.series(rich(n, 14 - 4 * n))
        two = elsewhere.units_.series(other_units(rich(n, 14 - 4 * n)))
        for name in ("y", "u", "time"):
            a, b = (np.nan_to_num(np.asarray(getattr(each, name))) for each in (one, two))
            assert close(a, b), name
    assert close(with_everything.ssm_.measurement_noise, elsewhere.ssm_.measurement_noise)


def assert_same_belief(plain, mean, cov):
    """A mean and a covariance in other units say the same as the plain ones."""
    assert close((np.asarray(mean, float) - SHIFT).astype(mean.dtype) / SCALE.astype(mean.dtype), plain[0], scale=3)
    assert close(cov / np.outer(SCALE, SCALE).astype(cov.dtype), plain[1], scale=3)


def test_filter_smoother_and_score_do_not_depend_on_units(with_everything, elsewhere):
    series = rich(0, 14)
    observed = np.isfinite(np.asarray(series.y))
    for name in ("filter", "smooth"):
        plain, other = getattr(with_everything, name)(series), getattr(elsewhere, name)(other_units(series))
        assert_same_belief((plain.mean, plain.cov), other.mean, other.cov)
        lost = (observed * np.log(SCALE)).sum(axis=1)
        assert close(other.log_evidence, np.asarray(plain.log_evidence) - lost, scale=3)
        assert np.isclose(other.log_likelihood, plain.log_likelihood - lost.sum(), rtol=root_eps(plain.mean))
    lost = (observed[1:] * np.log(SCALE)).sum() / observed[1:].sum()
    scores = with_everything.score(series), elsewhere.score(other_units(series))
    assert np.isclose(scores[1], scores[0] - lost, rtol=root_eps(series.y))


def test_forecast_transition_and_stream_do_not_depend_on_units(with_everything, elsewhere):
    series, u, dt = rich(0, 14), np.linspace(-1, 1, 5)[:, None], np.array([0.3, 0.8, 0.2, 0.5, 1.0])
    plain = with_everything.forecast(series, 5, u=u, dt=dt)
    other = elsewhere.forecast(other_units(series), 5, u=1e-3 * u - 7.0, dt=60 * dt)
    assert_same_belief((plain.mean, plain.cov), other.mean, other.cov)
    assert_same_belief((plain.state_mean, plain.state_cov), other.state_mean, other.state_cov)
    assert_same_belief((plain.interval(0.9)[1], plain.cov), other.interval(0.9)[1], other.cov)
    states = np.array([[0.5, -1.0], [2.0, 0.3], [-1.0, 0.0]])
    plain, other = with_everything.transition(states, u[:3]), elsewhere.transition(states * SCALE + SHIFT, 1e-3 * u[:3] - 7.0)
    assert_same_belief((plain.mean, jax.vmap(jnp.diag)(plain.var)), other.mean, jax.vmap(jnp.diag)(other.var))
    plain = with_everything.step(with_everything.start(), series.y[0], u[0], dt=0.7)[1]
    other = elsewhere.step(elsewhere.start(), other_units(series).y[0], 1e-3 * u[0] - 7.0, dt=42.0)[1]
    assert_same_belief((plain.mean, plain.cov), other.mean, other.cov)


def test_simulation_asks_in_standard_units_and_answers_in_those_of_the_data(elsewhere, monkeypatch):
    def simulate(model, steps, *, key, u, dt):
        assert np.allclose(u, (np.array([[-7.001], [-6.999]]) - elsewhere.units_.u.mean) / elsewhere.units_.u.scale)
        assert np.allclose(dt, np.array([30.0, 60.0]) / elsewhere.units_.time)
        return jnp.zeros((steps, 2)), jnp.ones((steps, 2))

    monkeypatch.setattr(estimators, "simulate", simulate)
    states, y = elsewhere.simulate(3, jr.key(0), u=[[-7.001], [-6.999]], dt=[30.0, 60.0])
    assert close(states, np.tile(elsewhere.units_.y.mean, (3, 1)))
    assert close(y, np.tile(elsewhere.units_.y.mean + elsewhere.units_.y.scale, (3, 1)))


def no_futures(finder, frames, u, gaps, *, key, samples):
    """Stands in for sampled futures where only the way there is of interest."""
    return jnp.zeros((samples, gaps.size, finder.model.y_size))


@pytest.mark.filterwarnings("ignore:The Gaussian forecast")
def test_constant_channels_and_long_gaps_give_finite_beliefs():
    y = np.hstack([wave(), np.full((TIME, 1), 0.1)])
    y[:16, 0] = np.nan  # longer than half, so that what comes before the forecast of the check has no observation at all
    model = ps.ProDSSM(**(CHEAP | {"hidden": (), "order": None}), validation=0.4)
    with without_training(check=True) as patch:
        patch.setattr(estimators, "sample_futures", no_futures)
        model.fit(y)
    assert model.check_.mean_gap.shape == (12, 2)
    found = model.filter(y)
    assert np.isfinite(found.mean).all()
    assert (np.linalg.eigvalsh(np.asarray(found.cov, float)) > 0).all()
    # While nothing is seen of it the swinging channel is less certain than afterwards.
    assert found.std[15, 0] > found.std[-1, 0]


@pytest.mark.filterwarnings("ignore:The Gaussian forecast")
def test_two_steps_with_controls_are_enough():
    series = ps.Series([[0.0], [1.0]], u=[[1.0], [2.0]])
    model = ps.ProDSSM(**(CHEAP | {"hidden": (), "order": None}))
    with without_training(check=True) as patch:
        patch.setattr(estimators, "sample_futures", no_futures)
        model.fit(series)
    assert model.check_.mean_gap.shape == (1, 1)
    assert same(model.forecast(series, 1).mean, model.forecast(series, 1, u=np.zeros((0, 1))).mean)


def test_single_precision_data_are_welcome_in_either_precision(local):
    series = wave().astype(np.float32)
    found = fit_untrained(series).filter(series)
    assert found.mean.dtype == jnp.result_type(float)
    assert np.allclose(found.mean, local.filter(wave()).mean, atol=1e-4)
    assert np.allclose(local.filter(series).mean, local.filter(wave()).mean, atol=1e-4)


def test_the_first_future_step_in_time_can_be_chosen(with_everything):
    series = rich(0, 14)
    late, early = (with_everything.forecast(series, 1, dt=[dt]) for dt in (5.0, 1e-6))
    filtered = with_everything.filter(series)
    # Right after the last observation nothing has moved yet; later the state is less certain.
    assert np.allclose(early.state_mean[0], filtered.mean[-1], atol=1e-3)
    assert np.allclose(early.state_cov[0], filtered.cov[-1], atol=1e-3)
    assert (jnp.diag(late.state_cov[0]) > jnp.diag(early.state_cov[0])).all()


def test_the_method_may_be_changed_after_fit(local):
    other = copy(local).set_params(method="linearised")
    plain, changed = local.forecast(wave(), AHEAD), other.forecast(wave(), AHEAD)
    assert not np.allclose(plain.mean, changed.mean, atol=1e-6)
    direct = ps.forecast(local.ssm_, local.units_.series(ps.Series(array(wave()))), AHEAD, "linearised")
    assert close(changed.mean, local.units_.y.undo(direct.mean))


# ---------------------------------------------------------------- streams


def assert_stream_is_filter(model, series):
    """Every state of a stream is that of the filter, and what it expects next has the filter's evidence."""
    found = model.filter(series)
    state = model.start()
    for t in range(len(series)):
        control = None if series.u is None else series.u[t]
        state, now = model.step(state, series.y[t], control, float(series.dt[t]))
        assert close(now.state_mean, found.mean[t], scale=3)
        assert close(now.state_cov, found.cov[t], scale=3)
        if t + 1 == len(series):
            break
        y, mean, cov = (np.asarray(part, float) for part in (series.y[t + 1], now.mean, now.cov))
        seen = np.isfinite(y)
        log_prob = stats.multivariate_normal(mean[seen], cov[np.ix_(seen, seen)]).logpdf(y[seen]) if seen.any() else 0.0
        assert np.isclose(log_prob, found.log_evidence[t + 1], rtol=1e-3, atol=1e-3)
    assert int(state.count) == len(series)


def test_a_stream_equals_the_filter_with_missing_values_controls_and_irregular_time(with_everything):
    assert_stream_is_filter(with_everything, rich(0, 14))


def test_a_stream_with_weights_drawn_once_equals_the_filter_and_learns_them(drawn_once):
    assert_stream_is_filter(drawn_once, ps.Series(array(wave())))
    state = drawn_once.start()
    before = state.belief.weights.var.sum()
    for y in wave():
        state, _ = drawn_once.step(state, y)
    assert state.belief.weights.var.sum() < before


def test_a_long_stream_compiles_once_and_keeps_its_memory(with_everything, caplog):
    rng = np.random.default_rng(0)
    y, u, dt = rng.normal(size=(2000, 2)), rng.normal(size=(2000, 1)), rng.uniform(0.1, 1.0, 2000)
    y[rng.random(y.shape) < 0.3] = np.nan
    with_everything.step(with_everything.start(), y[0], u[0])  # compiled here, if not before
    state, now, sizes = with_everything.start(), None, []
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        for t in range(2000):
            state, now = with_everything.step(state, y[t], u[t], dt[t])
            if t in (300, 1999):
                sizes.append(sum(live.nbytes for live in jax.live_arrays()))
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
    assert sizes[1] <= sizes[0]
    assert np.isfinite(now.mean).all()


# ---------------------------------------------------------------- parts of a variance


def hand_made(sizes, *, scale, var, emission=None, residual=False, weights="global", seed=0):
    """A model with small random weights."""
    matrices, variances = random_matrices(seed, sizes, scale, var)
    x = sizes[-1]
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.zeros(x)), array(0.5 * np.eye(x))),
        transition=build_network(matrices, variances, ["relu"] * (len(sizes) - 2)),
        emission=emission,
        process_noise=array(np.full(x, 0.02)),
        measurement_noise=array(np.full(x if emission is None else emission.out_size, 0.05)),
        weights=weights,
        residual=residual,
    )


def conditional(belief, size):
    """A joint belief as numbers: mean, slope of the state in the weights, and roots of what is left and of the weights."""
    mean, cov = np.asarray(belief.mean, float), np.asarray(belief.cov, float)
    slope = cov[:size, size:] @ np.linalg.pinv(cov[size:, size:], rcond=1e-10, hermitian=True)
    left = cov[:size, :size] - slope @ cov[size:, :size]
    roots = []
    for matrix in (left, cov[size:, size:]):
        values, vectors = np.linalg.eigh(matrix)
        roots.append(vectors * np.sqrt(np.maximum(values, 0.0)))
    return mean, slope, *roots


def outputs_of_twins(model, belief, controls, gaps, emit, samples, seed=0):
    """Futures in pairs (samples, steps, y) that share their weights and nothing else, step by step in NumPy."""
    rng, size = np.random.default_rng(seed), model.x_size
    mean, slope, left, root = conditional(belief.dense(), size)
    weights = rng.normal(size=(samples, len(root))) @ root.T
    var, functions = (
        np.exp(np.asarray(model.log_process_noise, float)),
        [FUNCTIONS["relu"][0]] * (len(model.transition.shapes) - 1),
    )
    twins = []
    for _ in range(2):
        x, path = mean[:size] + weights @ slope.T + rng.normal(size=(samples, size)) @ left.T, []
        for k, dt in enumerate(np.asarray(gaps, float)):
            known = np.zeros((samples, 0)) if controls is None else np.tile(np.asarray(controls[k], float), (samples, 1))
            moved = run_layers_at(np.hstack([x, known]), mean[size:] + weights, model.transition.shapes, functions)
            noise = np.sqrt(var) * rng.normal(size=x.shape)
            x = x + dt * moved + np.sqrt(dt) * noise if model.residual else moved + noise
            path.append(emit(x))
        twins.append(np.stack(path, axis=1))
    return twins


def assert_parts_match_twins(model, series, steps, *, gap, emit=lambda x: x, u=None, dt=None):
    """Epistemic and total variances lie within sampling error plus a recorded gap of what pairs of futures show."""
    finder = Finder(model, {}, "moments")
    controls, gaps = future(model, series, steps, u, dt)
    total, shared = split_variances(finder, series.frames, controls, gaps)
    assert (shared < total).all()
    first, second = outputs_of_twins(model, latest(finder, series.frames), controls, gaps, emit, 100_000)
    for k in range(steps):
        for found, pair in ((shared, second), (total, first)):
            wanted = Moments.of(first[:, k], pair[:, k])
            value, error = np.diag(wanted.cov), np.diag(wanted.cov_error)
            worst = (np.abs(np.asarray(found[k], float) - value) - 5 * error) / value
            # The first step is exact but for the order of the expansion; later ones take the state to be Gaussian.
            assert (worst < (gap if k else 0.01)).all(), (k, worst)


def test_epistemic_variance_is_what_pairs_of_futures_with_the_same_weights_share():
    rng = np.random.default_rng(1)
    matrices, _ = random_matrices(9, (2, 4, 3), 0.8)
    functions = [FUNCTIONS["relu"][0]]
    model = hand_made((2, 6, 2), scale=0.6, var=0.02, emission=build_network(matrices, None, ["relu"]))
    series = ps.Series(array(0.5 * rng.normal(size=(6, 3))))
    assert_parts_match_twins(model, series, 4, gap=0.08, emit=lambda x: run_layers(x, matrices, functions))


def test_epistemic_variance_of_a_residual_model_scales_with_time():
    rng = np.random.default_rng(2)
    model = hand_made((2, 6, 1), scale=0.5, var=0.02, residual=True)
    time, u = np.cumsum(rng.uniform(0.2, 0.6, 6)), rng.normal(size=(11, 1))
    series = ps.Series(array(0.5 * rng.normal(size=(6, 1))), array(u[:6]), array(time))
    assert_parts_match_twins(model, series, 4, gap=0.05, u=array(u[6:]), dt=array([0.3, 0.5, 0.2, 0.4]))


def drift(bias_var):
    """x' = x + dt b with b drawn once: all is linear and Gaussian."""
    network = ps.Network.from_arrays([[[0.0]]], [[0.2]], weight_vars=[[[0.0]]], bias_vars=[[bias_var]])
    return ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]), transition=network, process_noise=[0.1], measurement_noise=[0.3],
        weights="global", residual=True,
    )  # fmt: skip


def test_a_model_linear_in_its_weights_is_split_exactly():
    y, gaps = np.array([0.1, 0.9, 1.2, np.nan, 2.5]), np.array([0.5, 1.0, 0.7, 2.0])
    time = np.concatenate([[0.0], np.cumsum(gaps)])
    # (x, b) as a linear system: condition, then move.
    mean, cov = np.array([0.0, 0.2]), np.diag([1.0, 0.6])
    for t, value in enumerate(y):
        if np.isfinite(value):
            gain = cov[:, 0] / (cov[0, 0] + 0.3)
            mean, cov = mean + gain * (value - mean[0]), cov - np.outer(gain, cov[0])
        if t < len(gaps):
            move = np.array([[1.0, gaps[t]], [0.0, 1.0]])
            mean, cov = move @ mean, move @ cov @ move.T + np.diag([0.1 * gaps[t], 0.0])
    ahead = np.array([0.4, 1.0, 3.0])
    reach = np.cumsum(ahead)
    epistemic = (cov[0, 1] + reach * cov[1, 1]) ** 2 / cov[1, 1]
    aleatoric = cov[0, 0] - cov[0, 1] ** 2 / cov[1, 1] + 0.1 * reach
    model, series = drift(0.6), ps.Series(array(y), time=array(time))
    total, shared = split_variances(Finder(model, {}, "moments"), series.frames, *future(model, series, 3, None, array(ahead)))
    assert close(shared[:, 0], epistemic)
    assert close(total[:, 0], epistemic + aleatoric)
    none, nothing = split_variances(
        Finder(drift(0.0), {}, "moments"), series.frames, *future(model, series, 3, None, array(ahead))
    )
    assert (none > 0).all()
    assert (nothing == 0).all()


def test_sampled_futures_have_the_moments_of_a_linear_forecast():
    model, series = drift(0.6), ps.Series(array([0.1, 0.9, 1.2, 2.5]))
    drawn = sample_futures(
        Finder(model, {}, "moments"), series.frames, *future(model, series, 4, None, None), key=jr.key(0), samples=20_000
    )
    wanted = ps.forecast(model, series, 4)
    for k in range(4):
        found = Moments.of(np.asarray(drawn[:, k], float), np.asarray(drawn[:, k], float))
        assert (np.abs(found.mean - np.asarray(wanted.mean[k], float)) < 5 * found.mean_error).all()
        assert (np.abs(found.cov - np.asarray(wanted.state_cov[k], float)) < 5 * found.cov_error).all()


def test_parts_of_a_forecast_add_up_to_its_variance_and_belong_to_it(drawn_once):
    model = copy(drawn_once)
    ahead = model.forecast(10 * wave(), AHEAD)
    model.ssm_, model.units_ = None, None  # whatever becomes of the model afterwards
    parts = ahead.decompose()
    total = parts.epistemic + parts.aleatoric + parts.measurement
    assert close(np.asarray(total, ahead.cov.dtype), ahead.std**2)
    assert (parts.epistemic > 0).all()
    assert (parts.aleatoric > 0).all()
    noise = drawn_once.ssm_.measurement_noise * drawn_once.units_.y.scale**2
    assert np.allclose(parts.measurement, noise)


def test_certain_weights_leave_nothing_to_learn():
    model = fit_untrained(wave(), weights="point", method="linearised")
    ahead = model.forecast(wave(), 4)
    parts = ahead.decompose()
    assert (parts.epistemic == 0).all()
    assert close(np.asarray(parts.aleatoric + parts.measurement, ahead.cov.dtype), ahead.std**2)
    assert (model.transition([[0.3]]).var == 0).all()


def test_what_cannot_be_told_apart_says_what_to_use_instead(local, drawn_once):
    with pytest.raises(ValueError, match=r"local.*Use weights='global', or compare transition"):
        local.forecast(wave(), AHEAD).decompose()
    other = copy(drawn_once).set_params(method="linearised")
    with pytest.raises(ValueError, match="decompose needs method='moments', got 'linearised'"):
        other._decompose(other.units_.series(ps.Series(wave())), AHEAD, None, None)
    # By the weights of the model, not by settings that came after it.
    changed = copy(local).set_params(weights="global")
    with pytest.raises(ValueError, match="local"):
        changed._decompose(changed.units_.series(ps.Series(wave())), AHEAD, None, None)


def test_weights_drawn_once_are_first_learned_as_redrawn_ones_and_then_refined():
    plain = ps.ProDSSM(**CHEAP).fit(wave())
    refined = ps.ProDSSM(**CHEAP, weights="global", refine=1).fit(wave())
    assert refined.ssm_.weights == "global"
    assert refined.history_.iterations == [*plain.history_.iterations, CHEAP["iterations"] + 1]
    assert refined.history_.objective[:-1] == plain.history_.objective
    moved = np.abs(refined.ssm_.transition.weights.mean - plain.ssm_.transition.weights.mean).max()
    assert 0 < moved < 0.01
    stages = [len(fit_untrained(wave(), weights="global", refine=refine).history_.iterations) for refine in (1, None)]
    assert stages == [2, 1]


def test_the_best_of_restarts_is_the_one_whose_last_stage_went_best(monkeypatch):
    reached = iter([-0.5, -1.5, -0.6, -0.6])

    def train(start, *_, checkpoint, **__):
        return start, History([25], [next(reached)])

    monkeypatch.setattr(estimators, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
    model = ps.ProDSSM(**CHEAP, weights="global", restarts=2).fit(wave())
    assert model.history_.objective == [-0.6, -0.6]


@pytest.mark.parametrize(
    "change", [{"weights": "global", "refine": None}, {"activation": "tanh"}, {"order": 2}, {"noise_floor": 0.1}]
)
def test_a_checkpoint_of_another_kind_of_model_is_refused(tmp_path, change):
    ps.ProDSSM(**CHEAP, checkpoint=tmp_path / "run").fit(wave())
    with pytest.raises(ValueError, match="belongs to another run"):
        ps.ProDSSM(**(CHEAP | {"checkpoint": tmp_path / "run"} | change)).fit(wave())


def test_carried_weights_of_bounded_rank_look_ahead_are_checked_and_saved_as_they_are(tmp_path):
    model = ps.ProDSSM(**CHEAP, weights="global", rank=3, refine=1, horizons=(1, 2)).fit(wave())
    assert np.isfinite(model.history_.objective).all()
    assert model.check_.mean_gap.shape[1] == 1
    model.save(tmp_path / "model")
    assert ps.load(tmp_path / "model").ssm_.rank == 3
    with pytest.raises(ValueError, match="changed"):
        model.set_params(rank=9).save(tmp_path / "other")


# ---------------------------------------------------------------- the check


def with_gain(model, gain, var=0.02):
    """The same model with the network max(0, gain x) gain - max(0, -gain x) gain, whose slope is the gain squared."""
    weights = [gain * np.array([[1.0], [-1.0], [0.0], [0.0], [0.0]]), gain * np.array([[1.0, -1.0, 0.0, 0.0, 0.0]])]
    network = ps.Network.from_arrays(
        [array(w) for w in weights],
        [array(np.zeros(5)), array(np.zeros(1))],
        "relu",
        [array(np.full_like(w, var)) for w in weights],
        [array(np.full(5, var)), array(np.full(1, var))],
    )
    return eqx.tree_at(lambda m: m.transition, model.ssm_, network)


def test_the_check_holds_on_a_contractive_model_and_fails_on_an_expanding_one(drawn_once):
    model = copy(drawn_once)
    model.ssm_ = with_gain(drawn_once, 0.6)
    calm = model.check(wave(), steps=AHEAD, samples=400)
    assert calm.holds, calm
    assert calm.mean_gap.shape == (AHEAD, 1)
    model.ssm_ = with_gain(drawn_once, 1.7, var=0.2)
    wild = model.check(wave(), steps=AHEAD, samples=400)
    assert 0 < wild.trusted < AHEAD
    assert "Forecast fewer steps" in wild.verdict


def test_fit_warns_when_its_own_check_fails(drawn_once):
    model = ps.ProDSSM(**CHEAP, weights="global")
    expected = pytest.warns(UserWarning, match="The Gaussian forecast agrees with 400 sampled futures for . of 12 steps")
    with without_training(found=with_gain(drawn_once, 1.7, var=0.2), check=True), expected:
        model.fit(wave())
    assert not model.check_.holds
    with without_training(found=with_gain(drawn_once, 0.6), check=True):
        assert model.fit(wave()).check_.holds


def test_the_check_forecasts_over_the_time_steps_and_controls_that_were(with_everything, monkeypatch):
    given = {}
    monkeypatch.setattr(estimators, "sample_futures", lambda finder, frames, u, gaps, **_: given.update(u=u, gaps=gaps))
    series = rich(0, 14)
    with pytest.raises(AttributeError):
        with_everything.check(series, steps=5)
    standard = with_everything.units_.series(series)
    assert close(given["gaps"], standard.dt[8:13])
    assert close(given["u"], standard.u[8:13])


# ---------------------------------------------------------------- files


def assert_same_answers(one, two, series, **more):
    assert same(one.filter(series), two.filter(series))
    first, second = one.forecast(series, 5, **more), two.forecast(series, 5, **more)
    assert same((first.mean, first.cov), (second.mean, second.cov))


def test_a_saved_model_comes_back_bit_by_bit(with_everything, tmp_path):
    path = tmp_path / "m.safetensors"
    model = copy(with_everything).set_params(checkpoint=tmp_path / "run")
    model.history_ = History([25, 50], [1.0, 2.0], [0.5, 0.25], [0.1, 0.2], "because")
    model.save(path)
    loaded = ps.load(path)
    assert_same_answers(model, loaded, rich(0, 14), u=np.ones((5, 1)))
    assert loaded.history_ == model.history_
    assert loaded.get_params() == model.get_params() | {"checkpoint": str(tmp_path / "run")}
    assert loaded.units_.time == model.units_.time


def test_every_kind_of_model_can_be_saved(drawn_once, tmp_path):
    path = tmp_path / "m.safetensors"
    settings = {"latent_dim": 3, "emission": (4,), "process_noise": (3,), "weights": "point", "noise_floor": 1e-3}
    for model in (drawn_once, fit_untrained(wave(), **settings)):
        model.save(path)
        assert same(ps.load(path).ssm_, model.ssm_)


def test_a_copy_of_a_model_can_be_saved_too(drawn_once, tmp_path):
    deepcopy(drawn_once).save(tmp_path / "m.safetensors")
    assert same(ps.load(tmp_path / "m.safetensors").ssm_, drawn_once.ssm_)


def test_a_model_whose_settings_were_changed_is_not_saved_as_something_else(local, tmp_path):
    for change in (
        {"hidden": (6,)},
        {"weights": "global"},
        {"noise_floor": 0.1},
        {"residual": True},
        {"measurement_noise": 0.1},
    ):
        with pytest.raises(ValueError, match="changed after fit"):
            copy(local).set_params(**change).save(tmp_path / "m.safetensors")
    copy(local).set_params(method="unscented", iterations=3).save(tmp_path / "m.safetensors")
    assert ps.load(tmp_path / "m.safetensors").method == "unscented"


@pytest.mark.parametrize("activation", [jnp.tanh, lambda x: x / (1 + x**2), ps.ACTIVATIONS["relu"]])
def test_an_activation_without_a_name_is_not_saved(activation, tmp_path):
    model = fit_untrained(wave(), activation=activation)
    with pytest.raises(ValueError, match=r"activation must be one of .* to be saved"):
        model.save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_files_that_hold_no_model_are_refused(local, tmp_path):
    path = tmp_path / "m.safetensors"
    write(path, "checkpoint", {}, {"a": np.ones(2)})
    with pytest.raises(ValueError, match="holds a checkpoint, which is not a model; expected one of ProDSSM"):
        ps.load(path)
    local.save(path)
    stored = read(path)
    write(path, "ProDSSM", {}, stored.arrays)
    with pytest.raises(FileError, match="does not hold a whole ProDSSM"):
        ps.load(path)
    write(path, "ProDSSM", stored.config, {name: value for name, value in stored.arrays.items() if "transition" not in name})
    with pytest.raises(ValueError, match=r"missing: model\.transition"):
        ps.load(path)
    damaged = {
        name: np.full_like(value, np.nan) if name.endswith("log_measurement_noise") else value
        for name, value in stored.arrays.items()
    }
    write(path, "ProDSSM", stored.config, damaged)
    with pytest.raises(FileError, match=r"is damaged: model\.log_measurement_noise holds what is not a number"):
        ps.load(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ps.load(tmp_path / "other.safetensors")


# How tests/fixtures was made, in single precision, with version 0.1.0:
#
#     series, folder = rich(5, 12), Path("tests/fixtures")
#     model = ps.ProDSSM(latent_dim=3, hidden=(5,), residual=True, process_noise=(3,), emission=(4,), activation="erf",
#                        order=1, iterations=25, progress=False, seed=1).fit(series)
#     model.save(folder / "prodssm_v1.safetensors")
#     found = model.filter(series)
#     kept = {"y": series.y, "u": series.u, "time": series.time, "mean": found.mean, "log_evidence": found.log_evidence}
#     text = json.dumps({name: value.tolist() for name, value in kept.items()}).replace("NaN", "null")
#     (folder / "prodssm_v1.json").write_text(text + "\n")


@pytest.mark.parametrize("name", ["prodssm_v1_first", "prodssm_v1"])
def test_a_file_of_the_first_version_still_says_the_same(name):
    kept = {part: np.array(value, float) for part, value in json.loads((FIXTURES / f"{name}.json").read_text()).items()}
    model = ps.load(FIXTURES / f"{name}.safetensors")
    assert model.ssm_.initial_mean.dtype == np.float32
    found = model.filter(ps.Series(array(kept["y"]), array(kept["u"]), array(kept["time"])))
    # Single precision throughout, whatever JAX is set to.
    assert found.mean.dtype == np.float32
    assert close(found.mean, kept["mean"])
    assert close(found.log_evidence, kept["log_evidence"], scale=3)


# ---------------------------------------------------------------- training


def test_fit_learns_returns_itself_and_is_repeatable():
    model = ps.ProDSSM(**(CHEAP | {"hidden": (3,)}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
        assert model.fit(wave()) is model
    again, other = trained(), trained(seed=1)
    assert same(model.ssm_, again.ssm_)
    assert not same(model.ssm_, other.ssm_)
    assert model.history_.iterations == [25, 50]
    assert model.history_.objective[1] > model.history_.objective[0]


def test_an_interrupted_fit_keeps_its_best_model_and_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    original, calls = training._run_chunk, itertools.count()

    def interrupted(*args):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(training, "_run_chunk", interrupted)
    part = trained(checkpoint=tmp_path / "run", restarts=2)
    assert part.history_.stopped.startswith("interrupted")
    assert part.history_.iterations == [25]
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    monkeypatch.setattr(training, "_run_chunk", original)
    assert same(trained(checkpoint=tmp_path / "run").ssm_, trained().ssm_)
    with pytest.raises(ValueError, match="belongs to another run"):
        trained(wave(seed=1), checkpoint=tmp_path / "run")


def test_an_interruption_before_anything_was_learned_is_said(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "_run_chunk", interrupted)
    with pytest.warns(UserWarning, match="interrupted before anything was learned"):
        trained()


@pytest.mark.parametrize(("given", "rising"), [(None, [0.2, 0.0, 0.2]), (0.5, [0.5, 0.5, 0.5])])
def test_every_other_restart_begins_as_a_linear_model_and_goes_gently(given, rising, monkeypatch):
    made, risen = [], []
    acquainted, train = estimators.acquainted, estimators.train
    monkeypatch.setattr(estimators, "acquainted", lambda model, series: made.append(1) or acquainted(model, series))
    monkeypatch.setattr(estimators, "train", lambda *a, **k: risen.append(a[2].warm_up) or train(*a, **k))
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda *_: None)
    settings: dict[str, Any] = CHEAP | {"iterations": 1, "warm_up": given, "restarts": 3}
    ps.ProDSSM(**settings, emission="linear", latent_dim=2).fit(wave())
    assert len(made) == 2
    assert risen == rising


def test_restarts_keep_the_best_and_one_that_fails_is_not_the_best(monkeypatch):
    reached, starts = iter([np.nan, 1.0, 3.0, 2.0]), []

    def train(start, *_, checkpoint, **__):
        starts.append(start)
        return start, History([25], [next(reached)])

    monkeypatch.setattr(estimators, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
    model = ps.ProDSSM(**CHEAP, restarts=4).fit(wave())
    assert model.ssm_ is starts[2]
    assert model.history_.objective == [3.0]
    assert not any(same(one, two) for one, two in itertools.combinations(starts, 2))


def test_training_that_broke_off_is_warned_of(monkeypatch):
    monkeypatch.setattr(estimators, "train", lambda start, *_, **__: (start, History([25, 50], [1.0, np.nan])))
    with pytest.warns(UserWarning, match="learning_rate"):
        ps.ProDSSM(**CHEAP).fit(wave())


@pytest.mark.parametrize(("count", "share"), [(1, 0.2), (3, 0.5), (6, 0.2), (6, 0.99)])
def test_what_is_held_out_is_not_trained_on(count, share, monkeypatch):
    given = {}

    def train(start, series, recipe, *, held_out, **_):
        given.update(series=series, held_out=held_out)
        return start, History([25], [0.0], [0.0])

    monkeypatch.setattr(estimators, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
    data = [wave(seed=seed)[: TIME - seed] for seed in range(count)]
    model = ps.ProDSSM(**CHEAP, validation=share).fit(data)
    values = {float(v) for each in data for v in model.units_.series(ps.Series(each)).y[:, 0]}
    seen = {float(v) for each in given["series"] for v in each.y[:, 0]}
    scored = np.asarray(given["held_out"].scored)[..., None] > 0
    judged = {float(v) for v in np.asarray(given["held_out"].frames.y)[scored] if np.isfinite(v)}
    assert seen
    assert judged
    assert not seen & judged
    if count < 5:
        assert seen | judged == values
    with pytest.raises(ValueError, match="give more data"):
        ps.ProDSSM(**CHEAP, validation=0.2).fit(wave()[:2])


@pytest.mark.parametrize("count", [1, 6])
def test_early_stopping_returns_the_model_that_foresaw_the_held_out_part_best(count):
    rng = np.random.default_rng(3)
    data = [rng.normal(size=(TIME, 1)) for _ in range(count)]
    settings = {"hidden": (), "order": None, "prior_weight": 0.0, "learning_rate": 0.1, "iterations": 2000, "patience": 50}
    model = trained(data, validation=0.2, calibrate=False, **settings)
    history = model.history_
    assert history.stopped.startswith("no progress on the held-out part since iteration")
    assert history.iterations[-1] < 2000
    assert len(history.validation) == len(history.iterations)
    assert np.isclose(held_out_score(model, data), max(history.validation), rtol=1e-4, atol=1e-5)


def held_out_score(model, data, louder=1.0):
    """How well a model, with its process noise multiplied, foresees what was held out when it was trained."""
    held_out = model._split([model.units_.series(ps.Series(each)) for each in data], None).judged
    noisier = eqx.tree_at(lambda m: m.log_process_noise, model.ssm_, model.ssm_.log_process_noise + np.log(louder))
    return training.mean_foreseen(
        model._recipe().objective, noisier, held_out.frames, held_out.scored, method="moments", options={}
    )


def test_a_stretch_can_be_held_out(monkeypatch):
    given = {}

    def train(start, series, recipe, *, held_out, **_):
        given.update(series=series, held_out=held_out)
        raise KeyboardInterrupt

    monkeypatch.setattr("prodssm.estimators.train", train)
    data = [wave(), wave()[: TIME - 5]]
    for stretch, begin, ends in ((slice(10, 15), 10, (15, 15)), (slice(-8, None), -8, (TIME, TIME - 5))):
        with pytest.raises(KeyboardInterrupt):
            ps.ProDSSM(**CHEAP).fit(data, held_out=stretch)
        for n, (whole, learned, end) in enumerate(zip(data, given["series"], ends, strict=True)):
            first = begin % len(whole)
            held = np.arange(first, end)
            left = np.isfinite(np.asarray(learned.y)[:, 0])
            assert not left[held].any()
            assert left.sum() == len(whole) - len(held)
            judged = np.flatnonzero(np.asarray(given["held_out"].scored[n]) * np.isfinite(given["held_out"].frames.y[n, :, 0]))
            assert np.array_equal(judged, held)


@pytest.mark.parametrize("stretch", [slice(0, 0), slice(None), slice(0, 9, 2), slice(9, 3)])
def test_a_stretch_must_leave_something_on_either_side_of_the_choice(stretch):
    with pytest.raises(ValueError, match="held_out must be a slice of neighbouring time steps that leaves others"):
        ps.ProDSSM(**CHEAP).fit(wave(), held_out=stretch)
    with pytest.raises(TypeError, match="held_out must be a slice of whole numbers"):
        ps.ProDSSM(**CHEAP).fit(wave(), held_out=slice(0.5, 3))


def test_a_held_out_part_that_no_horizon_reaches_is_refused():
    with pytest.raises(ValueError, match="validation_horizons must reach"):
        ps.ProDSSM(**CHEAP, validation=0.2, validation_horizons=(400,)).fit(wave())


def test_training_is_judged_by_series_that_the_user_holds_out():
    data, other = wave(), wave(seed=1)
    settings = {"hidden": (), "order": None, "iterations": 50}
    model = ps.ProDSSM(**(CHEAP | settings)).fit(data, held_out=[other])
    judged = Data.of([model.units_.series(ps.Series(other))])
    score = training.mean_foreseen(
        model._recipe().judge, model.ssm_, judged.frames, judged.scored, method="moments", options={}
    )
    assert np.isclose(score, max(model.history_.validation), rtol=1e-4, atol=1e-5)
    assert np.allclose(model.units_.y.mean, data.mean(axis=0))  # nothing else is learned from it


@pytest.mark.parametrize(
    ("settings", "held_out", "message"),
    [
        ({"validation": 0.2}, wave(), "held_out takes the place of a share"),
        ({}, np.ones((TIME, 2)), "held_out: data must have 1 channels like those of fit, got 2"),
        ({}, np.array([[1.0], [np.nan], [np.nan]]), "what is held out must have observations"),
        ({"validation_horizons": (400,)}, wave(), "validation_horizons must reach observations of what is held out"),
    ],
)
def test_series_that_cannot_judge_are_refused(settings, held_out, message):
    with pytest.raises(ValueError, match=message):
        ps.ProDSSM(**(CHEAP | settings)).fit(wave(), held_out=held_out)


def test_a_held_out_part_says_how_large_the_process_noise_is():
    rng = np.random.default_rng(3)
    # Much quieter while it is learned than afterwards.
    data = [np.concatenate([0.1 * rng.normal(size=(40, 1)), 0.4 * rng.normal(size=(10, 1))])]
    settings = {"hidden": (), "order": None, "measurement_noise": 0.01, "iterations": 50, "validation": 0.2}
    model, sure = trained(data, **settings), trained(data, calibrate=False, **settings)
    scores = {louder: held_out_score(model, data, louder) for louder in (0.25, 1.0, 4.0)}
    assert scores[1.0] == max(scores.values())
    assert np.isclose(scores[1.0], max(model.history_.validation), rtol=1e-4, atol=1e-5)
    assert scores[1.0] > held_out_score(sure, data) + 0.5


def test_every_method_learns_the_same_linear_model():
    settings = {"hidden": (), "order": None, "weights": "point", "samples": 16, "iterations": 25}
    first, *others = [
        trained(method=method, **settings).forecast(wave(), 3) for method in ("linearised", "unscented", "sampled")
    ]
    for other in others:
        assert close(other.mean, first.mean, scale=10)
        assert close(other.cov, first.cov, scale=10)


@pytest.mark.parametrize("calibrate", [True, False])
def test_what_was_held_out_is_learned_from_in_the_end_but_not_how_sure_to_be(calibrate):
    data = wave()
    settings: dict[str, Any] = CHEAP | {"iterations": 25, "calibrate": calibrate}
    judged = ps.ProDSSM(**settings).fit(data, held_out=slice(12, 18))
    model = ps.ProDSSM(**settings, give_back=50).fit(data, held_out=slice(12, 18))
    assert np.array_equal(model.ssm_.log_process_noise, judged.ssm_.log_process_noise) == calibrate
    assert not same(model.ssm_.transition, judged.ssm_.transition)
    assert model.history_.iterations == [25, 50, 75]
    assert np.isfinite(model.history_.validation).tolist() == [True, False, False]


@pytest.mark.parametrize("own", [True, False])
def test_all_data_are_given_back(own, monkeypatch):
    seen, train = [], estimators.train

    def record(start, series, recipe, **rest):
        seen.append((series, recipe, rest.get("held_out")))
        return train(start, series, recipe, **rest)

    monkeypatch.setattr(estimators, "train", record)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda *_: None)
    data, other = wave(), wave(seed=1)
    ps.ProDSSM(**(CHEAP | {"iterations": 25}), restarts=2, give_back=30).fit(data, held_out=[other] if own else slice(12, 18))
    assert [recipe.iterations for _, recipe, _ in seen] == [25, 25, 30]
    assert seen[2][1].learning_rate == seen[0][1].learning_rate / 5
    series, _, held_out = seen[2]
    assert held_out is None
    assert [np.isfinite(each.y).all() for each in series] == [True] * (2 if own else 1)
    seen.clear()
    ps.ProDSSM(**(CHEAP | {"iterations": 25}), give_back=30).fit(data)  # nothing was held out
    assert len(seen) == 1


def test_a_fit_that_is_killed_while_giving_back_resumes_to_the_same(tmp_path, monkeypatch):
    settings: dict[str, Any] = CHEAP | {"iterations": 25, "validation": 0.25, "give_back": 50}
    whole = ps.ProDSSM(**settings).fit(wave())
    keep, kept = training._keep, []

    def killed(*args):
        keep(*args)
        kept.append(1)
        if len(kept) == 2:
            raise RuntimeError("killed")

    monkeypatch.setattr(training, "_keep", killed)
    with pytest.raises(RuntimeError, match="killed"):
        ps.ProDSSM(**settings, checkpoint=tmp_path / "run").fit(wave())
    assert same(ps.ProDSSM(**settings, checkpoint=tmp_path / "run").fit(wave()).ssm_, whole.ssm_)
