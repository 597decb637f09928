"""Backtests: the same numbers as forecasts one by one, and their scores as a frame."""

from types import SimpleNamespace

import numpy as np
import pytest
from small_models import linear_prodssm, standard_promotion, without_training

import prodssm as ps
from prodssm.evaluation import backtest

pandas = pytest.importorskip("pandas")
LENGTH = 60


def record(name="y", begin="2024-01-01"):
    index = pandas.date_range(begin, periods=LENGTH, freq="h", name="when")
    values = np.sin(0.3 * np.arange(LENGTH)) + 0.1 * np.random.default_rng(0).standard_normal(LENGTH)
    return pandas.DataFrame({name: values}, index=index)


@pytest.fixture(scope="module")
def model():
    with without_training():
        return linear_prodssm(latent_dim=2, emission="linear").fit(record())


def test_each_forecast_is_that_of_its_past(model):
    frame = record()
    found = backtest(model, frame, horizon=4, step=7)
    assert list(found.origins) == [30, 37, 44, 51]
    for n, origin in enumerate(found.origins):
        alone = model.forecast(frame.iloc[:origin], 4)
        assert np.allclose(found.mean[n], alone.mean, atol=1e-5)
        assert np.allclose(found.std[n], alone.std, atol=1e-5)
        assert np.allclose(found.lower[n], alone.interval()[0], atol=1e-5)
    assert np.allclose(found.last[:, 0], frame["y"].to_numpy()[found.origins - 1])


def test_scores_are_a_frame_by_horizon(model):
    frame = record()
    frame.iloc[40] = np.nan
    found = backtest(model, frame, horizon=5)
    scores = found.scores
    assert list(scores["horizon"]) == [0, 1, 2, 3, 4, 5]
    rows = found.to_frame()
    assert len(rows) == found.mean.size
    assert list(rows["time"].iloc[:5]) == list(frame.index[30:35])
    seen = rows.dropna(subset="truth")
    assert scores["count"].iloc[0] == len(seen)
    assert np.isclose(scores["rmse"].iloc[0], np.sqrt(((seen["truth"] - seen["mean"]) ** 2).mean()))
    second = seen[seen["horizon"] == 2]
    covered = (second["truth"] >= second["lower"]) & (second["truth"] <= second["upper"])
    assert np.isclose(scores["coverage"].iloc[2], covered.mean())
    assert "6 origins, horizon 5; y: RMSE" in repr(found)
    assert len(found.plot()) == 2


def test_many_series_controls_and_a_window(model):
    pump = np.cos(np.arange(LENGTH))
    frames = [record().assign(pump=pump, site=site) for site in ("a", "b")]
    data = ps.frames.series_of(pandas.concat(frames), group="site", time="when", controls="pump")
    with without_training():
        fitted = linear_prodssm().fit(data)
    found = backtest(fitted, data, horizon=3, start=50, window=10)
    assert found.labels == ("a", "b")
    assert list(found.series) == [0, 0, 0, 1, 1, 1]
    past, future = (
        ps.frames.series_of(part.drop(columns="site"), controls="pump") for part in (frames[0][40:50], frames[0][50:53])
    )
    alone = fitted.forecast(past, 3, u=future.u)
    assert np.allclose(found.mean[0], alone.mean, atol=1e-5)


def test_a_refit_sees_the_past_only():
    frame = record()
    with standard_promotion():
        model = linear_prodssm(latent_dim=2, emission="linear", iterations=2)
        found = backtest(model, frame, horizon=3, step=10, start=40, refit=True)
        alone = linear_prodssm(latent_dim=2, emission="linear", iterations=2).fit(frame.iloc[:50]).forecast(frame.iloc[:50], 3)
        assert np.allclose(found.mean[1], alone.mean, atol=1e-5)
        once = backtest(model, frame, horizon=3, start=40)
        assert not hasattr(model, "members_")
        assert np.allclose(once.mean[0], found.mean[0], atol=1e-5)


@pytest.mark.parametrize("refit", [True, False])
def test_an_interrupted_fit_ends_the_backtest(refit, monkeypatch):
    def interrupted(self, data):
        self.history_ = SimpleNamespace(interrupted=True)
        return self

    model = linear_prodssm()
    monkeypatch.setattr(type(model), "history_", None)
    monkeypatch.setattr(type(model), "fit", interrupted)
    with pytest.raises(KeyboardInterrupt):
        backtest(model, record(), horizon=3, refit=refit)


@pytest.mark.slow
def test_refits_in_several_processes_are_the_same():
    model = linear_prodssm(latent_dim=2, emission="linear", iterations=2)
    settings = {"horizon": 3, "step": 10, "start": 40, "refit": True, "window": 30}
    with standard_promotion():
        alone, together = (backtest(model, record(), **settings, n_jobs=jobs) for jobs in (1, 2))
    assert np.allclose(alone.mean, together.mean, atol=1e-5)
    assert list(together.origins) == [40, 50]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"horizon": 0}, "horizon must be at least 1"),
        ({"horizon": 3, "step": 0}, "step must be at least 1"),
        ({"horizon": 40}, "data must have at least 70 observations, 30 before the first origin and 40 after it; got 60"),
        ({"horizon": 3, "n_jobs": 0}, "n_jobs must be a number of processes, or -1 for all cores; got 0"),
        ({"horizon": 3, "probability": 95.0}, "probability must lie between 0 and 1"),
    ],
)
def test_bad_questions_are_refused(model, settings, said):
    with pytest.raises(ValueError, match=said):
        backtest(model, record(), **settings)
