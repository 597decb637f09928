"""Time stamps: the clock that makes their steps regular, and the stamps that follow."""

import numpy as np
import pytest

from prodssm.data.calendar import FEATURES, calendar_features, chosen_features
from prodssm.data.stamps import Stamps, iso_dates, require_increasing

pandas = pytest.importorskip("pandas")


def read(index):
    zone = None if index.tz is None else str(index.tz)
    utc = index if zone is None else index.tz_convert("UTC").tz_localize(None)
    return Stamps.read(np.asarray(utc), zone)


@pytest.mark.parametrize(
    ("index", "clock"),
    [
        (pandas.date_range("2024-03-30", periods=60, freq="h", tz="Europe/Berlin"), "second"),
        (pandas.date_range("2024-03-01", periods=60, freq="D", tz="Europe/Berlin"), "wall"),
        (pandas.date_range("2024-03-01", periods=60, freq="D"), "second"),
        (pandas.date_range("2023-01-01", periods=30, freq="MS"), "month"),
        (pandas.date_range("2023-01-01", periods=30, freq="ME"), "month"),
        (pandas.date_range("2020-01-15", periods=12, freq="QS"), "month"),
        (pandas.date_range("2020-01-01", periods=12, freq="YS", tz="America/New_York"), "month"),
        (pandas.date_range("2024-01-01", periods=20, freq="100ms"), "second"),
    ],
)
def test_regular_stamps_have_a_clock_and_go_on_as_pandas_would(index, clock):
    known, future = index[:-5], index[-5:]
    found = read(known)
    assert found.clock == clock
    steps = np.diff(found.elapsed)
    assert np.allclose(steps, steps[0], rtol=1e-6)
    assert np.array_equal(found.later(5).values, read(future).values)
    # In single precision, as a model holds its time steps.
    assert np.array_equal(found.later(5, np.full(5, steps[-1], np.float32)).values, read(future).values)


def test_irregular_dates_are_measured_in_seconds():
    found = Stamps.read(np.array(["2024-01-01", "2024-01-02", "2024-01-05"], "datetime64[s]"))
    assert found.clock == "second"
    assert np.array_equal(found.elapsed, [0, 86400, 4 * 86400])


def test_a_time_that_the_zone_skips_is_moved_forward():
    index = pandas.date_range("2024-03-25 02:30", periods=6, freq="D", tz="Europe/Berlin")
    # The 31st has no 02:30.
    assert read(index).later(2, [86400.0, 86400.0]).values[0] == np.datetime64("2024-03-31T01:30")


@pytest.mark.parametrize(
    ("values", "following"), [([1, 3, 5], [7, 9]), ([0.1, 0.2, 0.3], [0.4, 0.5]), ([2], [3, 4]), ([0, 1.5], [3, 4.5])]
)
def test_numbers_go_on(values, following):
    found = Stamps.read(np.array(values)).later(2)
    assert np.allclose(found.values, following)
    assert found.values.dtype.kind == np.array(values).dtype.kind


def test_what_does_not_increase_is_named():
    stamps = Stamps.read(np.array(["2024-01-01", "2024-01-03", "2024-01-02"], "datetime64[s]"))
    with pytest.raises(
        ValueError, match=r"time must increase, got 2024-01-02 00:00:00 after 2024-01-03 00:00:00 \(row 2\); sort"
    ):
        require_increasing(stamps, "time")


def test_an_unknown_zone_says_what_to_do():
    with pytest.raises(ValueError, match="time zone 'Mars/Base' is not known"):
        _ = Stamps.read(np.array(["2024-01-01"], "datetime64[s]"), "Mars/Base").wall


def test_the_calendar_is_that_of_the_wall():
    index = pandas.date_range("2024-03-29 06:00", periods=96, freq="h", tz="Europe/Berlin")  # a Friday
    found = calendar_features(["hour_of_day", "day_of_week", "weekend"], read(index))
    assert np.allclose(found[:, 0], np.sin(2 * np.pi * index.hour / 24), atol=1e-12)
    assert np.array_equal(found[:, 4:11].argmax(axis=1), index.day_of_week)
    assert np.array_equal(found[:, 11], index.day_of_week >= 5)
    year = calendar_features(["day_of_year"], read(index))
    assert np.allclose(year[0, 0], np.sin(2 * np.pi * (index[0].day_of_year - 1 + 0.25) / 365.2425), atol=1e-12)


@pytest.mark.parametrize(
    ("freq", "periods", "features"),
    [
        ("h", 24 * 20, ("hour_of_day", "day_of_week")),
        ("D", 800, ("day_of_week", "day_of_year")),
        ("MS", 36, ("day_of_year",)),
        ("s", 100, ()),
    ],
)
def test_auto_takes_the_cycles_that_the_data_show(freq, periods, features):
    assert chosen_features(read(pandas.date_range("2022-01-01", periods=periods, freq=freq))) == features
    assert set(features) <= set(FEATURES)


@pytest.mark.parametrize(
    ("given", "iso"),
    [
        (["01.03.2024", "02.03.2024"], ["2024-03-01", "2024-03-02"]),
        (["12/3/2024 18:00", "13/3/2024 18:00"], ["2024-03-12 18:00", "2024-03-13 18:00"]),
        (["3/12/2024", "3/13/2024"], ["2024-03-12", "2024-03-13"]),
        (["03-12-2024", "03-13-2024"], ["2024-03-12", "2024-03-13"]),
        (["1/2/2024", "1/3/2024"], None),
        (["13/1/2024", "1/13/2024"], None),
        (["2024-03-01", "2024-03-02"], ["2024-03-01", "2024-03-02"]),
        (["01.03.24", "02.03.24"], ["01.03.24", "02.03.24"]),
    ],
)
def test_the_day_is_found_or_nothing_is_guessed(given, iso):
    assert iso_dates(given) == iso
