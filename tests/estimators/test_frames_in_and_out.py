"""From a data frame to a data frame: what people have goes in, what they need comes out."""

from datetime import datetime

import jax.random as jr
import numpy as np
import pytest
from small_models import linear_prodssm, linear_regressor, standard_promotion, without_training

import prodssm as ps

pandas = pytest.importorskip("pandas")
HOURS = 72


def load(zone=None, **columns):
    """An hourly record with a DatetimeIndex."""
    index = pandas.date_range("2024-03-29", periods=HOURS, freq="h", tz=zone, name="when")
    values = np.sin(2 * np.pi * np.arange(HOURS) / 24) + 0.05 * np.random.default_rng(0).standard_normal(HOURS)
    return pandas.DataFrame({"load": values} | columns, index=index)


def fitted(data, **settings):
    with without_training():
        return linear_prodssm(**settings).fit(data)


def following(frame, steps):
    """The stamps after those of a frame."""
    return pandas.date_range(frame.index[-1], periods=steps + 1, freq="h", name=frame.index.name)[1:]


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
def test_a_datetime_index_is_time_and_comes_back_also_in_the_future(zone):
    frame = load(zone)
    model = fitted(frame)
    assert model.scaling_.time_step == 3600
    ahead = model.forecast(frame, 5).to_frame()
    assert ahead.index.equals(following(frame, 5))
    assert str(ahead.index.tz) == str(zone)
    assert list(ahead.columns) == ["load_mean", "load_std", "load_lower", "load_upper"]
    for found in (model.filter(frame), model.smooth(frame), model.filter(frame).outputs):
        assert found.to_frame().index.equals(frame.index)


def test_a_column_of_time_comes_back_as_one():
    frame = load().reset_index()
    series = ps.frames.series_of(frame, time="when")
    ahead = fitted(series).forecast(series, 3).to_frame()
    assert list(ahead["when"]) == list(following(load(), 3))
    polars = pytest.importorskip("polars")
    series = ps.frames.series_of(polars.from_pandas(frame), time="when")
    ahead = fitted(series).forecast(series, 3).to_frame()
    assert ahead["when"].to_list() == [stamp.to_pydatetime() for stamp in following(load(), 3)]


def test_numbers_of_time_go_on():
    frame = pandas.DataFrame({"t": 100 + 2 * np.arange(30), "y": np.sin(0.3 * np.arange(30))})
    series = ps.frames.series_of(frame, time="t")
    assert list(fitted(series).forecast(series, 3).to_frame()["t"]) == [160, 162, 164]


def test_irregular_stamps_and_given_steps():
    index = pandas.DatetimeIndex(["2024-01-01", "2024-01-02", "2024-01-05", "2024-01-06", "2024-01-08"], name="day")
    frame = pandas.DataFrame({"y": [0.0, 1.0, 0.5, 0.2, 0.1]}, index=index)
    model = fitted(frame, residual=True)
    days = model.forecast(frame, 2, dt=[86400.0, 3 * 86400.0]).to_frame().index
    assert list(days) == [pandas.Timestamp("2024-01-09"), pandas.Timestamp("2024-01-12")]


def test_calendar_features_need_no_future_controls():
    frame = load("Europe/Berlin")
    series = ps.frames.series_of(frame, calendar=["hour_of_day", "weekend"])
    assert series.u.shape == (HOURS, 5)
    model = fitted(series)
    ahead = model.forecast(frame, 30)
    assert ahead.to_frame().index.equals(following(frame, 30))
    # The same as with the features as controls by hand.
    u = ps.frames.series_of(
        load("Europe/Berlin").reindex(frame.index.append(following(frame, 30))), calendar=model.layout_.calendar
    ).u
    by_hand = model.members_[0].forecast([series], 30, [u[HOURS:]], [None])[0]
    assert np.allclose(ahead.mean, by_hand.mean)
    _, step = model.step(model.start(), {"load": 0.1}, time=datetime(2024, 3, 30, 1))
    assert np.isfinite(step.interval(0.9)).all()
    with pytest.raises(ValueError, match="time must be given: features of the calendar"):
        model.step(model.start(), {"load": 0.1})


def test_categories_become_indicators_and_gaps_in_controls_are_filled():
    weather = np.array(["sun", "rain", "fog"])[np.arange(HOURS) % 3].astype(object)
    pump = np.sin(np.arange(HOURS)).astype(float)
    weather[5], pump[7] = None, np.nan
    frame = load(weather=weather, pump=pump)
    how = {"controls": "pump", "one_hot": "weather", "fill": "previous"}
    series = ps.frames.series_of(frame, **how)
    assert series.layout.control_names == ["pump", "weather=fog", "weather=rain", "weather=sun"]
    assert np.allclose(series.u[5], series.u[4] * [0, 1, 1, 1] + [series.u[5, 0], 0, 0, 0])
    assert series.u[7, 0] == series.u[6, 0]
    model = fitted(series)
    future = pandas.DataFrame({"weather": ["sun", "sun", "fog"], "pump": [0.0, 1.0, 0.0]}, index=following(frame, 3))
    ahead = model.forecast(frame, 3, u=future)
    by_hand = model.forecast(frame, 3, u=np.array([[0, 0, 0, 1], [1, 0, 0, 1], [0, 1, 0, 0.0]]))
    assert np.array_equal(ahead.mean, by_hand.mean)
    with pytest.raises(ValueError, match="column 'weather' must have values of fit, 'fog', 'rain', 'sun'; got 'snow'"):
        model.forecast(frame, 3, u=future.assign(weather="snow"))


def test_many_series_are_answered_at_once_as_one_frame():
    frames = [load().iloc[:length].assign(site=site) for site, length in (("north", 40), ("south", 72), ("west", 41))]
    frame = pandas.concat(frames)
    data = ps.frames.series_of(frame, group="site", time="when")
    model = fitted(data)
    for rule in (model.filter, model.smooth):
        found = rule(frame)
        assert found.labels == ("north", "south", "west")
        for one, part in zip(found, frames, strict=True):
            alone = rule(part.drop(columns="site"))
            assert np.allclose(one.mean, alone.mean, atol=1e-6)
            assert np.allclose(one.log_evidence, alone.log_evidence, atol=1e-5)
        assert len(found.to_frame()) == len(frame)
        assert found.to_frame().index.names == ["site", "when"]
    ahead = model.forecast(frame, 4)
    for one, part in zip(ahead, frames, strict=True):
        assert np.allclose(one.mean, model.forecast(part.drop(columns="site"), 4).mean, atol=1e-6)
    table = ahead.to_frame()
    assert list(table.loc["west"].index) == list(following(frames[2], 4))
    assert model.forecast([frames[0].drop(columns="site")], 2).labels == (0,)


def test_controls_of_many_series_come_by_group():
    frame = pandas.concat([load(pump=np.arange(HOURS) % 5.0).assign(site=site) for site in "ab"])
    data = ps.frames.series_of(frame, group="site", time="when", controls="pump")
    model = fitted(data)
    future = pandas.DataFrame({"site": list("bbaa"), "pump": [1.0, 2.0, 3.0, 4.0]})
    ahead = model.forecast(data, 2, u=future)
    alone = model.forecast(data[0], 2, u=np.array([[3.0], [4.0]]))
    assert np.allclose(ahead[0].mean, alone.mean, atol=1e-6)
    with pytest.raises(ValueError, match="u must have controls of group 'a'"):
        model.forecast(data, 2, u=future[future.site == "b"])


def test_a_dead_sensor_and_a_single_row_are_a_past():
    frame = load(other=np.cos(np.arange(HOURS)))
    model = fitted(frame)
    dead = frame.iloc[:20].assign(other=np.nan)
    assert np.isfinite(model.forecast(dead, 3).to_frame()).all(axis=None)
    one = model.forecast(frame.iloc[:1], 3).to_frame()
    assert list(one.index) == list(frame.index[1:4])
    assert len(model.filter(frame.iloc[:1]).to_frame()) == 1
    with pytest.raises(ValueError, match="y must have at least two time steps, got 1"):
        fitted(frame.iloc[:1])
    with pytest.raises(ValueError, match="output 1 has none"):
        fitted(dead)


def test_paths_have_the_moments_of_the_forecast_and_sums_have_intervals():
    frame = load()
    model = fitted(frame, n_estimators=2)
    ahead = model.forecast(frame, 24)
    paths = ahead.sample(4000, jr.key(0))
    assert paths.shape == (4000, 24, 1)
    error = 5 * ahead.std / np.sqrt(4000)
    assert (np.abs(paths.mean(axis=0) - ahead.mean) < error).all()
    assert np.allclose(paths.std(axis=0), ahead.std, rtol=0.15)
    # Steps that follow one another are alike: a sum has more than the variances of its parts.
    assert paths.sum(axis=1).var() > (ahead.std**2).sum()
    hourly = pandas.DataFrame(paths[:, :, 0].T, ahead.to_frame().index)
    low, high = hourly.sum().quantile([0.05, 0.95])
    assert low < ahead.mean.sum() < high


def test_residuals_are_those_of_the_filter_and_find_what_is_unusual():
    frame = load()
    frame.iloc[50] += 3.0
    frame.iloc[30] = np.nan
    model = fitted(frame)
    found = model.residuals(frame)
    table = found.to_frame()
    assert table.index.equals(frame.index)
    assert list(table.columns) == ["score", "load_mean", "load_std", "load_residual"]
    assert table.score.idxmax() == frame.index[50]
    assert np.isnan(table.score.iloc[30])
    again = found.mean + found.std * found.values
    assert np.allclose(again[~np.isnan(again)], frame.to_numpy()[~np.isnan(again)], atol=1e-5)
    log_evidence = model.filter(frame).log_evidence
    density = -0.5 * found.values[:, 0] ** 2 - np.log(found.std[:, 0]) - 0.5 * np.log(2 * np.pi)
    assert np.allclose(np.nan_to_num(density), log_evidence, atol=1e-4)
    assert found.autocorrelation(3).shape == (3, 1)


def test_more_training_goes_on_and_an_update_follows_a_drift():
    frame = load()
    drifted = 2 * frame + 1
    with standard_promotion():
        model = linear_prodssm(iterations=30, latent_dim=2, emission="linear").fit(frame)
        before = model.score(frame)
        members = model.members_
        model.fit(frame, warm_start=True)
        assert model.score(frame) > before
        assert model.scaling_ is members[0].scaling
        old, width = model.score(drifted), model.forecast(drifted, 5).to_frame()["load_std"]
        model.update(drifted, iterations=40)
        assert model.score(drifted) > old
        ahead = model.forecast(drifted, 5).to_frame()
        assert ahead.index.equals(following(frame, 5))
        assert not np.allclose(ahead["load_std"], width, rtol=0.01)
        with pytest.raises(ValueError, match="data must have the columns of fit"):
            model.update(drifted.rename(columns={"load": "heat"}))
        with pytest.raises(ValueError, match="the parameters of this model were changed after fit"):
            model.set_params(latent_dim=3).fit(frame, warm_start=True)


def test_a_regressor_has_intervals():
    x = pandas.DataFrame({"area": np.linspace(-1, 1, 40), "age": np.cos(np.arange(40))})
    with standard_promotion():
        model = linear_regressor(n_estimators=2).fit(x, 2 * x["area"])
    assert list(model.feature_names_in_) == ["area", "age"]
    found = x.assign(**dict(zip(("lower", "upper"), model.interval(x, 0.9), strict=True)))
    assert (found["lower"] < model.quantile(x, 0.5)).all()
    assert (model.quantile(x, 0.5) < found["upper"]).all()
    with pytest.raises(ValueError, match="feature names"):
        model.interval(x[["age", "area"]])
