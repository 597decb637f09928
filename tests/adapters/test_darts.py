"""Series of Darts say what the results say, at the same times."""

import sys

import jax.random as jr
import numpy as np
import pandas as pd
import pytest
from small_models import linear_prodssm, without_training

import prodssm as ps
from prodssm.adapters.darts import to_darts

HOURS = 48


def record(zone=None, freq="h"):
    index = pd.date_range("2024-03-29", periods=HOURS, freq=freq, tz=zone, name="when")
    return pd.DataFrame({"load": np.sin(0.3 * np.arange(HOURS)), "heat": np.cos(0.3 * np.arange(HOURS))}, index=index)


def fitted(data):
    with without_training():
        return linear_prodssm().fit(data)


def test_without_darts_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "darts", None)
    with pytest.raises(ImportError, match="pip install darts"):
        to_darts(None)


class TestWhereDartsIs:
    @pytest.fixture(autouse=True)
    def darts(self):
        return pytest.importorskip("darts")

    def test_means_and_times_are_those_of_the_frame(self):
        frame = record()
        model = fitted(frame)
        ahead = model.forecast(frame, 5)
        found = to_darts(ahead)
        assert found.components.tolist() == ["load", "heat"]
        assert np.allclose(found.values(), ahead.mean)
        assert list(found.time_index) == list(ahead.to_frame().index)
        smoothed = model.smooth(frame).outputs
        found = to_darts(smoothed)
        assert np.allclose(found.values(), smoothed.mean)
        assert list(found.time_index) == list(frame.index)
        assert to_darts(model.filter(frame)).components.tolist() == ["load", "heat"]  # the states are observed as they are
        with pytest.raises(ValueError, match="paths are drawn from forecasts"):
            to_darts(smoothed, 10, jr.key(0))

    def test_samples_are_the_paths_of_the_forecast(self):
        frame = record()
        ahead = fitted(frame).forecast(frame, 5)
        found = to_darts(ahead, 50, jr.key(0))
        assert found.is_stochastic
        assert np.allclose(found.all_values(), np.moveaxis(ahead.sample(50, jr.key(0)), 0, 2))

    @pytest.mark.parametrize(("freq", "first"), [("h", "2024-03-30 23:00"), ("D", "2024-05-16"), ("MS", "2028-04-01")])
    def test_steps_are_regular_across_a_change_of_the_clock(self, freq, first):
        frame = record("Europe/Berlin", freq)
        found = to_darts(fitted(frame).forecast(frame, 5))
        assert found.time_index[0] == pd.Timestamp(first)
        assert found.time_index.freq == pd.tseries.frequencies.to_offset(freq)

    def test_few_dates_need_a_frequency(self):
        frame = record()
        ahead = fitted(frame).forecast(frame, 1)
        assert len(to_darts(ahead, freq="h")) == 1
        with pytest.raises(ValueError, match="freq"):
            to_darts(ahead)

    def test_several_series_and_numbers(self):
        y = np.sin(0.3 * np.arange(40))
        model = fitted([y[:20], y[20:]])
        found = to_darts(model.forecast([y[:20], y[20:]], 3))
        assert [list(each.time_index) for each in found] == [[1, 2, 3]] * 2
        series = ps.frames.series_of(pd.DataFrame({"t": 100 + 2 * np.arange(40), "y": y}), time="t")
        assert list(to_darts(fitted(series).forecast(series, 3)).time_index) == [180, 182, 184]
        series = ps.frames.series_of(pd.DataFrame({"t": 0.5 * np.arange(40), "y": y}), time="t")
        with pytest.raises(ValueError, match=r"has dates or whole numbers as time stamps, got 20\.0"):
            to_darts(fitted(series).forecast(series, 3))
