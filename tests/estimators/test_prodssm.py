"""`ProDSSM`: bad data, settings and questions are refused by name before any work; data of any shape give finite answers."""

import pickle
from copy import copy

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import close
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from small_models import (
    TIME,
    fit_untrained,
    irregular,
    linear_prodssm,
    rich,
    same,
    small_prodssm,
    wave,
    without_training,
)

import prodssm as ps
from prodssm.estimators import fitted, fitting
from prodssm.estimators.results import Stream
from prodssm.models import state_space
from prodssm.training.history import History


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
        lambda m: m.step(Stream(None, jnp.zeros(())), [0.0]),
        lambda m: m.save("nowhere.safetensors"),
    ],
)
def test_nothing_can_be_asked_before_fit(use):
    with pytest.raises(NotFittedError, match=r"call fit\(data\) first"):
        use(ps.ProDSSM())


# ---------------------------------------------------------------- bad data


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (np.zeros((0, 1)), "y must not be empty"),
        ([], "y must not be empty"),
        ([1.0], "y must have at least two time steps"),
        (np.stack([wave()[:, 0], np.full(TIME, np.nan)], axis=1), "output 1 has none"),
        (np.array([[0.0], [np.inf]]), "y must be finite or NaN"),
        ([wave(), np.hstack([wave(), wave()])], "series 1 must have 1 outputs"),
        ([ps.Series(wave(), u=wave()), ps.Series(wave())], "u of series 1"),
        ([irregular(), ps.Series(wave())], "time must be given for all"),
        ([1.0, np.nan, np.nan], "observations after the first"),
        ("abc", "y must be an array of numbers"),
        ([wave(), wave()[:1]], "series 1: y must have at least two time steps"),
        (np.eye(3, 7), "y must have a row per time step and a column per output, got 3 by 7; is it transposed"),
    ],
)
def test_bad_data_are_refused_before_any_work(data, said, monkeypatch):
    monkeypatch.setattr(fitting, "random_model", None)  # would fail if it were reached
    with pytest.raises((ValueError, TypeError), match=said):
        small_prodssm().fit(data)


def test_irregular_data_need_the_residual_form():
    with pytest.raises(ValueError, match="residual=True"):
        small_prodssm(residual=False).fit(irregular())
    with without_training():
        model = small_prodssm().fit(irregular())
    assert model.choices_.residual
    assert model.choices_.reasons["residual"] == "time is irregular"


def test_controls_are_not_mistaken_for_a_target():
    with pytest.raises(ValueError, match=r"y must be None.*Series\(y, u\)"):
        small_prodssm().fit(wave(), np.ones((TIME, 1)))
    with pytest.raises(ValueError, match="y must be None"):
        small_prodssm().score(wave(), np.ones((TIME, 1)))


# ---------------------------------------------------------------- bad settings


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"weights": "loca"}, "weights must be one of local, global, point"),
        ({"method": "magic"}, "method must be one of"),
        ({"method": 3}, "method must be a name or a prodssm method"),
        ({"activation": "rleu"}, "activation must be one of"),
        ({"emission": "identiy"}, "emission must be 'identity' or 'linear' or 'feedthrough' or a tuple"),
        ({"emission": None}, "emission must be 'identity' or 'linear' or 'feedthrough' or a tuple"),
        ({"process_noise": "none"}, "process_noise must be 'constant' or a tuple"),
        ({"hidden": 50}, "hidden must be a tuple of hidden sizes, got 50"),
        ({"hidden": (5, 0)}, "hidden must have positive sizes"),
        ({"hidden": (5, 2.5)}, "hidden must be a tuple"),
        ({"latent_dim": 2}, "latent_dim must equal the 1 outputs"),
        ({"latent_dim": 0}, "latent_dim must be at least 1"),
        ({"residual": "no"}, "residual must be True, False or 'auto'"),
        ({"measurement_noise": -0.1}, "measurement_noise: variance must not be negative"),
        ({"measurement_noise": np.nan}, "measurement_noise: variance must be finite"),
        ({"measurement_noise": (0.1, 0.1)}, "the measurement noise must be one number or 1"),
        ({"measurement_noise": [[0.1]]}, "measurement_noise: variance must be one number or one per output"),
        ({"measurement_noise": "small"}, "measurement_noise: variance must be an array of numbers"),
        ({"measurement_noise": 0.1, "likelihood": ps.GaussianLikelihood(0.1)}, "either measurement_noise or likelihood, not"),
        ({"likelihood": "poison"}, "likelihood must be one of gaussian, .*; got 'poison'"),
        ({"likelihood": 3.0}, "likelihood must be a name, a prodssm likelihood or None, got float"),
        ({"likelihood": ps.GaussianLikelihood((0.1, 0.1))}, "must be one number or 1, got 2"),
        ({"objective": "bound", "measurement_noise": 0}, "measurement_noise must be positive for objective='bound'"),
        ({"objective": "bound", "likelihood": ps.GaussianLikelihood(0.0)}, "measurement_noise must be positive"),
        ({"recipe": "fast"}, "recipe must be a prodssm.Recipe or None, got str"),
        ({"horizons": 5}, "horizons must be a tuple"),
        ({"horizons": ()}, "horizons must be"),
        ({"objective": "elbo"}, "objective must be one of evidence, bound"),
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"prior_weight": -1.0}, "prior_weight must not be negative"),
        ({"prior_weight": "auto"}, "prior_weight='auto' is for DeepStochasticRegressor"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"window": 1}, "window must be at least 2"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"validation_horizons": ()}, "validation_horizons must be one or more"),
        ({"calibrate": "no"}, "calibrate must be True or False"),
        ({"warm_up": 2.0}, "warm_up must be a fraction"),
        ({"linear_start": 2}, "linear_start must be True or False"),
        ({"fine_tune": -1}, "fine_tune must be at least 0"),
        ({"validation": 1.0}, "validation must be a fraction"),
        ({"validation": -0.1}, "validation must be a fraction"),
        ({"n_estimators": 0}, "n_estimators must be at least 1"),
        ({"n_estimators": 1.5}, "n_estimators must be an integer"),
        ({"random_state": -1}, "random_state must be at least 0"),
        ({"random_state": "one"}, "'one' cannot be used to seed"),
    ],
)
@pytest.mark.usefixtures("without_type_checks")
def test_bad_settings_are_refused_by_name_before_any_work(settings, said, monkeypatch):
    monkeypatch.setattr(fitting, "random_model", None)  # would fail if it were reached
    with pytest.raises((ValueError, TypeError), match=said):
        small_prodssm(**settings).fit(wave())


def test_global_weights_are_refused_where_memory_cannot_hold_them(monkeypatch):
    monkeypatch.setattr(state_space.os, "sysconf", lambda name: 100)  # a machine of 10 kB
    with pytest.raises(ValueError, match=r"weights='global' would keep .* smaller network.*weights='local'"):
        small_prodssm(weights="global").fit(wave())


def test_horizons_that_training_never_reaches_are_refused():
    for settings in ({"horizons": (30,)}, {"horizons": (15,), "window": 10}):
        with pytest.raises(ValueError, match="horizons must reach observations to learn from"):
            linear_prodssm(**settings).fit(wave())


def test_a_failed_fit_leaves_no_fitted_model(local_model):
    model = copy(local_model).set_params(recipe__validation=7.0)
    with pytest.raises(ValueError, match="validation"):
        model.fit(1000 * wave())
    with pytest.raises(NotFittedError):
        model.filter(wave())
    with pytest.raises(NotFittedError):
        check_is_fitted(model)


def test_training_without_a_finite_objective_is_an_error(monkeypatch):
    monkeypatch.setattr(fitting, "train", lambda start, *_, **__: (start, History([25], [np.nan])))
    model = linear_prodssm()
    with pytest.raises(FloatingPointError, match="nothing was learned"):
        model.fit(wave())
    assert not model.__sklearn_is_fitted__()


# ---------------------------------------------------------------- bad questions


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda m: m.check([wave(), wave()]), "data must be one series here, got 2"),
        (lambda m: m.filter(np.hstack([wave(), wave()])), "data must have 1 outputs like those of fit, got 2"),
        (lambda m: m.filter(ps.Series(wave(), u=wave())), "u must not be given, as in fit"),
        (lambda m: m.filter(irregular()), "time must have steps of 1 throughout for residual=False"),
        (lambda m: m.filter(ps.Series(wave(), time=0.1 * np.arange(TIME))), "time must have steps of 1"),
        (lambda m: m.forecast(wave(), 0), "steps must be at least 1"),
        (lambda m: m.forecast(wave(), 2, u=np.ones((2, 1))), "u must not be given, as in fit"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0]), "dt must have at least 2 entries"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0, -1.0]), "dt must be positive"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0, np.nan]), "dt must be finite"),
        (lambda m: m.forecast(wave(), 2, dt=[1.0, 0.5]), "dt must be 1.0 throughout for residual=False"),
        (lambda m: m.transition([0.0]), "x must have 2 axes"),
        (lambda m: m.transition([[0.0, 0.0]]), "x must have 1 columns"),
        (lambda m: m.transition([[np.nan]]), "x must be finite"),
        (lambda m: m.transition([[0.0]], u=[[0.0]]), "u must not be given, as in fit"),
        (lambda m: m.simulate(0, jr.key(0)), "steps must be at least 1"),
        (lambda m: m.simulate(3, 0), r"key must be a key such as jax.random.key\(0\), got 0"),
        (lambda m: m.simulate(3, jr.key(0), u=np.ones((3, 1))), "u must not be given, as in fit"),
        (lambda m: m.simulate(4, jr.key(0), dt=[1.0, 1.0]), "dt must have at least 3 entries"),
        (lambda m: m.score(np.array([[1.0], [np.nan], [np.nan]])), "observations after the first of a series, to be scored"),
        (lambda m: m.check(wave(), steps=TIME), f"data must have at least {TIME + 2} observations"),
        (lambda m: m.check(wave(), steps=5, samples=1), "samples must be at least 10"),
    ],
)
def test_bad_questions_are_refused_by_name(use, said, local_model):
    with pytest.raises((ValueError, TypeError), match=said):
        use(local_model)


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
    ],
)
def test_bad_controls_are_refused_by_name(use, said, rich_model):
    with pytest.raises((ValueError, TypeError), match=said):
        use(rich_model, rich(0, 14))


# ---------------------------------------------------------------- unusual data


def no_futures(recursion, record, ahead, *, key, samples):
    """Stands in for sampled futures where their values do not matter."""
    return jnp.zeros((samples, ahead.dt.size, recursion.model.y_size))


@pytest.mark.filterwarnings("ignore:The Gaussian forecast")
def test_constant_outputs_and_long_gaps_give_finite_beliefs():
    y = np.hstack([wave(), np.full((TIME, 1), 0.1)])
    y[:16, 0] = np.nan  # more than half: the past of the forecast of the check has no observation of this output
    with without_training(check=True) as patch:
        patch.setattr(fitted, "sample_futures", no_futures)
        model = linear_prodssm(validation=0.4).fit(y)
    assert model.check_.mean_gap.shape == (12, 2)
    found = model.filter(y)
    assert np.isfinite(found.mean).all()
    assert (np.linalg.eigvalsh(np.asarray(found.cov, float)) > 0).all()
    # The sine is less certain before its first observation than afterwards.
    assert found.std[15, 0] > found.std[-1, 0]


@pytest.mark.filterwarnings("ignore:The Gaussian forecast")
def test_two_steps_with_controls_are_enough():
    series = ps.Series([[0.0], [1.0]], u=[[1.0], [2.0]])
    with without_training(check=True) as patch:
        patch.setattr(fitted, "sample_futures", no_futures)
        model = linear_prodssm().fit(series)
    assert model.check_.mean_gap.shape == (1, 1)
    assert same(model.forecast(series, 1).mean, model.forecast(series, 1, u=np.zeros((0, 1))).mean)


def test_single_precision_data_are_read_in_either_precision(local_model):
    series = wave().astype(np.float32)
    found = fit_untrained(series).filter(series)
    assert found.mean.dtype == jnp.result_type(float)
    assert np.allclose(found.mean, local_model.filter(wave()).mean, atol=1e-4)
    assert np.allclose(local_model.filter(series).mean, local_model.filter(wave()).mean, atol=1e-4)


def test_nested_lists_are_rows_as_numpy_reads_them():
    rows = np.random.default_rng(0).normal(size=(12, 2))
    for data, outputs in ((rows.tolist(), 2), ([rows, rows], 2), (rows[:, 0].tolist(), 1)):
        assert fit_untrained(data, hidden=(), method="moments").scaling_.outputs == outputs


def test_point_weights_make_the_process_noise_network_certain():
    model = fit_untrained(wave(), weights="point", process_noise=(3,))
    assert not model.ssm_.process_network.uncertain


# ---------------------------------------------------------------- answers


def test_the_score_is_the_mean_evidence_per_observed_value_after_the_first_step(rich_model):
    series = rich(0, 14)
    evidence, observed = rich_model.filter(series).log_evidence, np.isfinite(np.asarray(series.y))
    assert np.isclose(rich_model.score(series), evidence[1:].sum() / observed[1:].sum(), rtol=1e-6)
    assert np.isclose(rich_model.score([series, series]), rich_model.score(series), rtol=1e-6)


def test_parameters_that_change_after_fit_change_no_answer(local_model):
    changed = copy(local_model).set_params(method="linearised", random_state=9)
    assert same(changed.forecast(wave(), 3).mean, local_model.forecast(wave(), 3).mean)


def test_the_method_decides_the_answer(local_model):
    other = fit_untrained(wave(), method="linearised")
    assert same(other.ssm_, local_model.ssm_)
    plain, linearised = local_model.forecast(wave(), 12), other.forecast(wave(), 12)
    assert not np.allclose(plain.mean, linearised.mean, atol=1e-6)
    series = local_model.scaling_.transform_series(ps.Series(wave()))
    direct = ps.forecast(local_model.ssm_, series, 12, "linearised")
    assert close(linearised.mean, local_model.scaling_.y.inverse(direct.mean))
    assert same(local_model.with_method("linearised").forecast(wave(), 12).mean, linearised.mean)


def test_outputs_are_named_by_number_without_a_frame(rich_model):
    assert rich_model.output_names_ == ("y0", "y1")
    assert rich_model.layout_ is None
    assert rich_model.ssm_ is rich_model.members_[0].ssm


def softsign(x):
    return x / (1 + jnp.abs(x))


@pytest.mark.parametrize("activation", ["relu", softsign])
def test_a_fitted_model_can_be_pickled(activation):
    model = fit_untrained(wave(), hidden=(3,), activation=activation)
    again = pickle.loads(pickle.dumps(model))
    assert (again.forecast(wave(), 3).mean == model.forecast(wave(), 3).mean).all()
    assert repr(again) == repr(model)


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(3)])
def test_a_random_state_may_be_anything_that_seeds_numpy(random_state):
    model = fit_untrained(wave(), random_state=random_state)
    assert model.members_[0].seed >= 0
