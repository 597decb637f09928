"""Series keep what they are given, refuse what does not fit together by name, and are padded without a trace."""

import numpy as np
import pytest
from oracles import array, close

from prodssm.data.series import (
    Series,
    as_series,
    as_series_list,
    first_steps,
    require_regular,
    require_trainable,
    stack_records,
    with_times,
)

EPS = float(np.finfo(array(0.0).dtype).eps)
TIME = 24


def wave(length=TIME, seed=0):
    """One output that oscillates, with noise."""
    return np.sin(0.4 * np.arange(length))[:, None] + 0.1 * np.random.default_rng(seed).normal(size=(length, 1))


def irregular(length=TIME):
    return Series(array(wave(length)), time=array(np.cumsum(np.random.default_rng(0).uniform(0.2, 1.0, length))))


# ---------------------------------------------------------------- one series


def test_a_vector_is_one_column_sampled_with_time_step_one():
    series = Series([0.0, np.nan, 2.0], u=[1, 2, 3])
    assert series.y.shape == series.u.shape == (3, 1)
    assert len(series) == 3
    assert series.time is None
    assert series.dt.tolist() == [1, 1, 1]
    assert series.u.dtype == series.y.dtype
    record = series.record
    assert (record.y is series.y, record.u is series.u, record.dt is series.dt) == (True, True, True)
    assert record.length is None
    assert Series([0.0, 1.0]).record.u is None


def test_time_starts_at_zero_and_the_last_time_step_is_repeated():
    series = Series(np.zeros(3), time=[10.0, 10.5, 12.0])
    assert close(series.time, array([0, 0.5, 2]))
    assert close(series.dt, array([0.5, 1.5, 1.5]))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Series(np.zeros((0, 1))), "y must not be empty"),
        (lambda: Series([]), "y must not be empty"),
        (lambda: require_trainable([Series([1.0])]), "y must have at least two time steps, got 1"),
        (lambda: Series(np.zeros((2, 2, 2))), "y must have 2 axes"),
        (lambda: Series([[1.0], [np.inf]]), r"y must be finite or NaN \(not observed\), got inf at index \(1, 0\)"),
        (lambda: require_trainable([Series([[1.0, np.nan], [2.0, np.nan]])]), "every output, output 1 has none"),
        (lambda: require_trainable([Series(wave()), Series([1.0])]), "series 1: y must have at least two time steps"),
        (lambda: Series("abc"), "y must be an array of numbers"),
        (lambda: Series([1.0, 2.0], u=[1.0]), "u must have 2 rows, one per observation, got 1"),
        (lambda: Series(wave(), u=np.zeros((TIME - 1, 1))), f"u must have {TIME} rows"),
        (lambda: Series([1.0, 2.0], u=[1.0, np.nan]), "u must be finite"),
        (lambda: Series([1.0, 2.0], time=[1.0, 1.0]), "time must increase"),
        (lambda: Series([1.0, 2.0], time=[1.0, np.nan]), "time must be finite"),
        (lambda: Series([1.0, 2.0], time=[1.0]), "time must have 2 entries, one per observation, got 1"),
        (lambda: Series(wave(), time=np.zeros(TIME)), "time must increase"),
        (lambda: Series(wave(), time=np.arange(TIME)[::-1]), "time must increase"),
        (lambda: Series([1.0, 2.0], time=["a", "b"]), "time must be an array of numbers"),
    ],
)
def test_bad_series_are_refused_by_name(make, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make()


@pytest.mark.parametrize("kind", [float, np.int64, np.uint32])
def test_decreasing_time_is_refused_in_the_numbers_that_were_given(kind):
    with pytest.raises(ValueError, match=r"got 7(\.0)? after 9(\.0)? \(row 2\); sort"):
        Series(np.zeros(3), time=np.array([5, 9, 7]).astype(kind))


def test_masked_values_are_missing_values():
    y = np.sin(0.3 * np.arange(20))
    masked = np.ma.masked_equal(np.where(y > 0.9, -999.0, y), -999.0)
    assert np.array_equal(np.isnan(Series(masked).y[:, 0]), y > 0.9)
    assert float(np.nanmin(Series(np.ma.masked_equal(np.round(y), -1)).y)) == 0.0
    with pytest.raises(ValueError, match="u must be finite"):
        Series(y, u=masked)


# ---------------------------------------------------------------- precision


def test_loss_of_variation_in_single_precision_is_warned_of():
    northing = 5.3e6 + 0.05 * np.random.default_rng(0).normal(size=TIME)
    if EPS > 1e-10:
        with pytest.warns(UserWarning, match=r"y\[:, 0\] varies by less than single precision"):
            Series(northing)
        with pytest.warns(UserWarning, match=r"u\[:, 1\] varies"):
            Series(np.arange(TIME, dtype=float), u=np.stack([np.arange(TIME, dtype=float), northing], axis=1))
    else:
        assert len(np.unique(Series(northing).y)) == TIME


def test_numbers_beyond_the_precision_are_refused():
    largest = 1e300 * np.arange(TIME)
    if EPS > 1e-10:
        with pytest.raises(ValueError, match=r"y must hold numbers that float32 can, got 1e\+300; choose another unit"):
            Series(largest)
    else:
        assert float(Series(largest).y[1, 0]) == 1e300


def test_constant_columns_are_not_warned_of(recwarn):
    y = np.sin(0.3 * np.arange(20))
    Series(np.column_stack([y, np.full(20, 0.1)]), u=np.full(20, 0.1))
    assert not recwarn.list


def test_time_steps_of_unix_time_keep_their_precision():
    stamps = 1.7e9 + 60 * np.arange(TIME)
    for time in (stamps, stamps.astype(int), stamps.astype(np.uint64), stamps.tolist()):
        assert np.allclose(Series(np.zeros(TIME), time=time).dt, 60, rtol=10 * EPS)


def test_time_steps_are_taken_before_stamps_are_rounded():
    y, stamps = np.sin(0.3 * np.arange(40)), np.r_[0, 1e5 + 0.01 * np.arange(39)]
    series = Series(y, time=stamps)
    assert close(series.dt[1:] / 0.01, np.ones(39), scale=1e4)
    assert close(series.window(5, 20).dt / 0.01, np.ones(20), scale=1e4)
    assert Series(y, time=np.r_[0, 3600 * 24 * 365 + np.arange(39)]).dt[5] == 1.0  # integer seconds, a year later


# ---------------------------------------------------------------- parts of a series


def test_a_window_is_a_series_whose_time_starts_at_zero():
    series = Series(array(wave()), array(wave(seed=1)), irregular().time)
    part = series.window(3, 5)
    assert close(part.y, series.y[3:8])
    assert close(part.u, series.u[3:8])
    assert close(part.time, series.time[3:8] - series.time[3])
    assert close(part.dt, np.r_[series.dt[3:7], series.dt[6]])
    assert Series(wave()).window(3, 5).time is None


def test_the_first_steps_may_miss_an_output():
    series = Series([[1.0, np.nan], [2.0, np.nan], [3.0, 4.0]], time=[0.0, 1.0, 3.0])
    part = first_steps(series, 2)
    assert np.array_equal(part.y, series.y[:2], equal_nan=True)
    assert part.dt.tolist() == [1.0, 2.0]
    assert part.u is None


def test_given_time_steps_replace_those_of_the_stamps():
    found = with_times(Series(np.zeros(3)), array([5.0, 6.0, 8.0]), array([1.25, 2.25, 3.25]))
    assert found.time.tolist() == [0.0, 1.0, 3.0]
    assert found.dt.tolist() == [1.25, 2.25, 3.25]


# ---------------------------------------------------------------- several series


def test_nested_lists_are_rows_as_numpy_reads_them():
    rows = np.random.default_rng(0).normal(size=(12, 2))
    for data, outputs, count in ((rows.tolist(), 2, 1), ([rows, rows], 2, 2), (rows[:, 0].tolist(), 1, 1)):
        found = as_series_list(data)
        assert len(found) == count
        assert {each.y.shape[1] for each in found} == {outputs}
    series = Series(rows)
    assert as_series(series) is series
    assert as_series_list([series])[0] is series


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "y must not be empty"),
        ([wave(), np.hstack([wave(), wave()])], "series 1 must have 1 outputs like the first, got 2"),
        ([Series(wave(), u=wave()), Series(wave())], "u of series 1 must have 1 columns like the first, got 0"),
        ([irregular(), Series(wave())], "time must be given for all series or for none, series 1 differs"),
        ("abc", "y must be an array of numbers"),
    ],
)
def test_series_that_do_not_belong_together_are_refused(data, said):
    with pytest.raises((ValueError, TypeError), match=said):
        as_series_list(data)


def test_a_stack_pads_short_series_with_missing_values():
    long, short = Series(wave(7), u=wave(7, 1)), Series(wave(4, 2), u=wave(4, 3), time=[0.0, 2.0, 4.0, 6.0])
    record = stack_records([long, short])
    assert record.y.shape == record.u.shape == (2, 7, 1)
    assert close(record.y[0], long.y)
    assert close(record.y[1, :4], short.y)
    assert np.isnan(record.y[1, 4:]).all()
    assert close(record.u[1], np.concatenate([short.u, np.zeros((3, 1))]))
    assert record.dt[1].tolist() == [2, 2, 2, 2, 1, 1, 1]
    assert record.length.tolist() == [7, 4]
    assert stack_records([Series(wave())]).u is None


def test_lengths_and_numbers_of_series_are_padded_to_a_bucket_without_observations():
    record = stack_records([Series(wave(9), u=wave(9, 1))] * 9)
    assert record.y.shape == record.u.shape == (10, 10, 1)
    assert record.length.tolist() == [9] * 9 + [0]
    assert np.isnan(record.y[9]).all()
    assert np.isnan(record.y[:, 9]).all()
    assert (record.u[:, 9] == 0).all()
    assert (record.dt == 1).all()


# ---------------------------------------------------------------- regular sampling


def test_irregular_sampling_is_refused_where_the_transition_ignores_time_steps():
    require_regular(Series(wave()))
    require_regular(Series(wave(), time=0.1 * np.arange(TIME)))
    require_regular(Series(wave(), time=0.1 * np.arange(TIME)), step=0.1)
    require_regular(Series(wave(), time=1e5 + np.arange(TIME) * (1 + 1e-4 * np.arange(TIME) / TIME)))
    with pytest.raises(ValueError, match=r"time must have steps of .* throughout for residual=False, got .*residual=True"):
        require_regular(irregular())
    with pytest.raises(ValueError, match=r"time must have steps of 1 throughout for residual=False, got 0\.1 to 0\.1"):
        require_regular(Series(wave(), time=0.1 * np.arange(TIME)), step=1.0)


def test_one_row_and_a_dead_sensor_are_a_past():
    found = Series([[1.0, np.nan]], time=[5.0])
    assert close(found.dt, array([1.0]))
    assert len(found) == 1


def test_dates_are_time_and_are_kept_in_parts():
    days = np.datetime64("2026-01-01") + np.arange(TIME)
    found = Series(wave(), time=days)
    assert close(found.dt, np.full(TIME, 86400.0))
    assert found.stamps.text(1) == "2026-01-02 00:00:00"
    assert first_steps(found, 3).stamps.text(-1) == "2026-01-03 00:00:00"
