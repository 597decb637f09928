"""The forecaster passes sktime's checks, and says what `ProDSSM` says."""

import sys
from copy import deepcopy

import numpy as np
import pandas as pd
import pytest
from checks import require_passed
from sktime.forecasting.base import ForecastingHorizon
from sktime.forecasting.model_selection import ForecastingGridSearchCV
from sktime.split import ExpandingWindowSplitter
from sktime.utils.estimator_checks import check_estimator

import prodssm as ps
from prodssm.adapters.sktime import ProDSSMForecaster

TIME, AHEAD = 24, 5
SMALL = {"hidden": (), "latent_dim": 2, "residual": False, "n_estimators": 2, "progress": False}
SMALL |= {"recipe": ps.Recipe(iterations=2, validation=0.0)}
QUICK_CHECKS = [
    "test_constructor",
    "test_clone",
    "test_set_params_sklearn",
    "test_valid_object_tags",
    "test_predict_series_name_preserved",
    "test_update_with_exogenous_variables",
]
BARELY_TRAINED = pytest.mark.filterwarnings("ignore:The Gaussian forecast agrees with 400 futures:UserWarning")


def problem(steps=TIME + AHEAD, index=None, seed=0):
    """Two outputs, one of them with gaps, and an exogenous column."""
    rng = np.random.default_rng(seed)
    index = pd.date_range("2020-01-01", periods=steps, freq="D") if index is None else index
    y = pd.DataFrame(np.cumsum(rng.normal(size=(steps, 2)), axis=0), index, ["level", "flow"])
    y.iloc[3:5, 0] = np.nan
    return y, pd.DataFrame({"pump": rng.normal(size=steps)}, index)


def series_of(y, X, stop):
    return ps.Series(y.to_numpy()[:stop], u=X.to_numpy()[:stop])


def panel(lengths=(14, 11)):
    """Series of one output of different lengths, as sktime has them and as arrays."""
    parts = {f"machine {n}": problem(length, seed=n)[0][["flow"]] for n, length in enumerate(lengths)}
    return pd.concat(parts, names=["machine", "time"]), [ps.Series(part.to_numpy()) for part in parts.values()]


@pytest.fixture(scope="module")
def fitted():
    """A forecaster and a model, fitted to the same data."""
    y, X = problem()
    forecaster = ProDSSMForecaster(**SMALL, emission="linear").fit(y[:TIME], X[:TIME])
    return forecaster, ps.ProDSSM(**SMALL, emission="linear").fit(series_of(y, X, TIME))


@pytest.fixture
def forecaster(fitted):
    """The fitted forecaster, which a test may update."""
    return deepcopy(fitted[0])


def test_forecasts_are_those_of_the_model(fitted):
    forecaster, model = fitted
    y, X = problem()
    wanted = model.forecast(series_of(y, X, TIME), AHEAD, u=X.to_numpy()[TIME:])
    rows, asked = [0, 1, 4], {"fh": [1, 2, 5], "X": X[TIME:]}
    found = forecaster.predict(**asked)
    assert list(found.columns) == ["level", "flow"]
    assert found.index.equals(y.index[TIME:][rows])
    assert np.allclose(found, wanted.mean[rows], rtol=1e-12)
    assert np.allclose(forecaster.predict_var(**asked), wanted.std[rows] ** 2, rtol=1e-12)
    intervals = forecaster.predict_interval(**asked, coverage=[0.5, 0.9])
    for coverage in (0.5, 0.9):
        ends = intervals.xs(coverage, axis=1, level=1)
        for n, end in enumerate(("lower", "upper")):
            assert np.allclose(ends.xs(end, axis=1, level=1), wanted.interval(coverage)[n][rows], rtol=1e-10)
    quantiles = forecaster.predict_quantiles(**asked, alpha=[0.05, 0.7])
    assert np.allclose(quantiles.xs(0.7, axis=1, level=1), wanted.quantile(0.7)[rows], rtol=1e-10)


def test_distributions_are_mixtures_of_the_members(fitted):
    forecaster, model = fitted
    y, X = problem()
    wanted = model.forecast(series_of(y, X, TIME), AHEAD, u=X.to_numpy()[TIME:])
    found = forecaster.predict_proba(fh=range(1, AHEAD + 1), X=X[TIME:])
    assert found.index.equals(y.index[TIME:])
    assert np.allclose(found.mean(), wanted.mean, rtol=1e-12)
    assert np.allclose(found.var(), wanted.std**2, rtol=1e-12)
    assert np.allclose(found.cdf(wanted.quantile(0.3)), 0.3)
    flow = y[TIME:][["flow"]]
    masked = y[TIME:].assign(level=np.nan)
    assert np.allclose(found.loc[flow.index, ["flow"]].log_pdf(flow).to_numpy()[:, 0], wanted.log_prob(masked.to_numpy()))


@pytest.mark.parametrize("update_params", [True, False])
def test_an_update_conditions_on_more_data_and_does_not_train(forecaster, fitted, update_params):
    y, X = problem()
    before = forecaster.model_
    for stop in (TIME + 1, TIME + 3):  # the second one repeats a row
        forecaster.update(y[TIME:stop], X[TIME:stop], update_params=update_params)
    assert forecaster.model_ is before
    assert forecaster.cutoff == y.index[TIME + 2]
    wanted = fitted[1].forecast(series_of(y, X, TIME + 3), 2, u=X.to_numpy()[TIME + 3 :])
    assert np.allclose(forecaster.predict(fh=[1, 2], X=X[TIME + 3 :]), wanted.mean, rtol=1e-12)


def test_what_follows_the_last_update_is_not_used(forecaster, fitted):
    y, X = problem()
    forecaster.update(y[10:15], X[10:15])
    wanted = fitted[1].forecast(series_of(y, X, 15), 2, u=X.to_numpy()[15:17])
    assert np.allclose(forecaster.predict(fh=[1, 2]), wanted.mean, rtol=1e-12)


def test_in_sample_forecasts_are_one_step_ahead(fitted):
    forecaster, model = fitted
    y, X = problem()
    found = forecaster.predict(fh=[-9, 0])
    assert found.index.equals(y.index[[TIME - 10, TIME - 1]])
    ends = forecaster.predict_interval(fh=[-9, 0], coverage=0.9)
    for row, stop in enumerate((TIME - 10, TIME - 1)):
        wanted = model.forecast(series_of(y, X, stop), 1, u=X.to_numpy()[stop : stop + 1])
        assert np.allclose(found.iloc[row], wanted.mean[0])
        assert np.allclose(ends.iloc[row, [0, 2]], wanted.interval(0.9)[0][0])
    assert forecaster.predict(fh=[-1, 2], X=X[TIME:]).index.equals(y.index[[TIME - 2, TIME + 1]])


def test_in_sample_forecasts_are_calibrated_for_one_step(forecaster):
    y, X = problem()
    forecaster.model_.calibrate(series_of(y, X, TIME))
    ahead = forecaster.model_.forecast(series_of(y, X, TIME - 1), 1, u=X.to_numpy()[TIME - 1 : TIME])
    assert ahead.calibrated
    assert np.allclose(forecaster.predict_var(fh=[0]), ahead.std**2)


def test_a_panel_has_one_model():
    data, series = panel()
    forecaster = ProDSSMForecaster(**SMALL, emission="linear").fit(data)
    model = ps.ProDSSM(**SMALL, emission="linear").fit(series)
    found = forecaster.predict(fh=[1, 2])
    assert found.index.names == ["machine", "time"]
    for n, (part, length) in enumerate(zip(series, (14, 11), strict=True)):
        own = found.loc[f"machine {n}"]
        assert list(own.index) == list(pd.date_range("2020-01-01", periods=20)[length : length + 2])
        assert np.allclose(own, model.forecast(part, 2).mean, rtol=1e-12)
    assert forecaster.predict_proba(fh=[1, 2]).shape == (4, 1)
    new = pd.concat({"machine 7": data.loc["machine 0"]}, names=["machine", "time"])
    later = forecaster.update(new).predict(fh=[1, 2])
    assert np.allclose(later.loc["machine 7"], found.loc["machine 0"], rtol=1e-12)
    assert np.allclose(later.loc["machine 1"], found.loc["machine 1"], rtol=1e-12)


def test_a_pretrained_forecaster_conditions_only():
    data, series = panel((14, 14))
    forecaster = ProDSSMForecaster(**SMALL, emission="linear").pretrain(data)
    trained = forecaster.pretrained_
    found = forecaster.clone().fit(data.loc["machine 1"][:9]).predict(fh=[1, 2])
    assert np.allclose(found, trained.forecast(ps.Series(series[1].y[:9]), 2).mean, rtol=1e-12)
    with pytest.raises(ValueError, match="1 and 0 columns as in pretrain, got 1 and 1"):
        forecaster.clone().fit(data.loc["machine 1"], X=data.loc["machine 0"])
    twice = forecaster.pretrain(data.rename(index=str.upper, level=0))
    assert len(twice.pretraining_pasts_) == 4


@pytest.mark.parametrize(
    ("index", "absent"),
    [
        (pd.RangeIndex(5, 25), [4, 11]),
        (pd.date_range("2020-01-01", periods=20, freq="MS"), []),
        (pd.date_range("2020-01-01", periods=20, freq="h", tz="Europe/Berlin"), [4, 11]),
        (pd.period_range("2020-01", periods=20, freq="M"), [4, 11]),
    ],
    ids=["range", "month", "hour", "period"],
)
def test_forecasts_have_the_index_of_the_horizon_and_absent_rows_are_missing(index, absent):
    y = pd.Series(np.sin(np.arange(20)), index, name="wave")
    forecaster = ProDSSMForecaster(**SMALL, emission="linear").fit(y.iloc[:16].drop(index[absent]))
    y.iloc[absent] = np.nan
    found = forecaster.predict(ForecastingHorizon(index[16:18], is_relative=False))
    assert isinstance(found, pd.Series)
    assert found.name == "wave"
    assert found.index.equals(index[16:18])
    assert np.allclose(found, forecaster.model_.forecast(ps.Series(y.to_numpy()[:16]), 2).mean[:, 0], rtol=1e-12)


def test_bad_data_are_refused_by_name(forecaster):
    y, X = problem()
    with pytest.raises(ValueError, match="X must have a row for every time step up to the last forecast, none for 2020-01-26"):
        forecaster.predict(fh=[3], X=X[TIME + 2 :].iloc[1:].combine_first(X[TIME : TIME + 1]))
    with pytest.raises(ValueError, match=r"X must be finite at every time step, got \[nan\] at 2020-01-26"):
        forecaster.predict(fh=[3], X=X.mask(np.arange(len(X))[:, None] == TIME + 1))
    with pytest.raises(ValueError, match=r"X must have the columns of fit, \['pump'\]; got \['valve'\]"):
        forecaster.predict(fh=[1], X=X.rename(columns={"pump": "valve"}))
    with pytest.raises(ValueError, match="fh must be time steps of the series from 2020-01-01"):
        forecaster.predict(fh=[-TIME])
    with pytest.raises(NotImplementedError, match="cov=False"):
        forecaster.predict_var(fh=[0], cov=True)
    with pytest.raises(NotImplementedError, match="marginal=True"):
        forecaster.predict_proba(fh=[0], marginal=False)
    dates = pd.to_datetime(["2020-01-01", "2020-01-03", "2020-01-04", "2020-01-11T06"], format="ISO8601")
    with pytest.raises(ValueError, match="y must be sampled at regular times, got 2020-01-11 06:00:00 after steps of <24"):
        ProDSSMForecaster(**SMALL).fit(y[["flow"]].iloc[:4].set_axis(dates))
    silent = panel()[0]
    silent.loc["machine 1"] = np.nan
    with pytest.raises(ValueError, match=r"instance \('machine 1',\): y must have observations of every output"):
        ProDSSMForecaster(**SMALL).fit(silent)


def test_parameters_are_those_of_the_model():
    names = set(ps.ProDSSM().get_params(deep=False))
    assert set(ProDSSMForecaster().get_params(deep=False)) == names
    forecaster = ProDSSMForecaster().set_params(recipe__learning_rate=0.5, method__order=1)
    assert forecaster.recipe == ps.Recipe(learning_rate=0.5)
    assert forecaster.method == ps.Moments(order=1)
    with pytest.raises(ValueError, match="has no parameter 'speed'"):
        forecaster.set_params(recipe__speed=1)


@pytest.mark.filterwarnings("ignore:The default of config ``remember_data`` will change:FutureWarning")
def test_a_grid_search_changes_nested_settings():
    search = ForecastingGridSearchCV(
        ProDSSMForecaster(**SMALL, emission="linear"),
        cv=ExpandingWindowSplitter(fh=[1, 2], initial_window=TIME, step_length=2),
        param_grid={"recipe__learning_rate": [1e-3, 0.1]},
    )
    search.fit(problem()[0][["flow"]][: TIME + 2])
    assert search.best_forecaster_.recipe.iterations == 2
    assert search.best_forecaster_.recipe.learning_rate == search.best_params_["recipe__learning_rate"]
    assert search.cv_results_.iloc[:, 0].nunique() == 2


@pytest.mark.parametrize("absent", ["sktime.forecasting.base", "prodssm.adapters.mixtures"])
def test_without_sktime_the_error_says_what_to_install(absent, unwrapped, monkeypatch):
    monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError, match=r"needs sktime and skpro: pip install prodssm\[sktime\]"):
        unwrapped("prodssm.adapters.sktime")


@BARELY_TRAINED
def test_a_part_of_the_checks_of_sktime(unwrapped):
    forecaster = unwrapped("prodssm.adapters.sktime").ProDSSMForecaster
    results = check_estimator(forecaster, tests_to_run=QUICK_CHECKS, verbose=False)
    require_passed(results, least=10)


@pytest.mark.slow
@BARELY_TRAINED
@pytest.mark.filterwarnings("ignore:Sorting by default when concatenating all DatetimeIndex is deprecated:DeprecationWarning")
def test_all_checks_of_sktime(unwrapped):
    forecaster = unwrapped("prodssm.adapters.sktime").ProDSSMForecaster
    results = check_estimator(forecaster, verbose=False)
    require_passed(results, least=890)
