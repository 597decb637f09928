"""Data frames of every library read the same, errors name the column, and results are written to frames."""

from datetime import datetime, timedelta
from importlib import import_module
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.data import frames, tables
from prodssm.data.frames import from_frames, layout_of, series_of, to_frame
from prodssm.data.inputs import controls_from, row_from
from prodssm.data.layout import Layout
from prodssm.data.series import Series

BACKENDS = ("pandas", "polars", "pyarrow")


@pytest.fixture(params=BACKENDS)
def backend(request):
    pytest.importorskip(request.param)
    return request.param


@pytest.fixture(scope="module", autouse=True)
def standard_promotion():
    """The optimiser mixes its integer step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def make(backend, **columns):
    return getattr(import_module(backend), frames.BUILDERS[backend])(columns)


@pytest.fixture
def one():
    """A constructor of frames of the first library that is installed."""
    able = [name for name in BACKENDS if tables.find_spec(name) is not None]
    if not able:
        pytest.skip("no data frame library is installed")
    return lambda **columns: make(able[0], **columns)


def same(found, wanted):
    return np.array_equal(np.asarray(found), np.array(wanted, float), equal_nan=True)


def days(count):
    return [datetime(2024, 3, 30) + timedelta(days=n) for n in range(count)]


# ---------------------------------------------------------------- reading


def test_numeric_columns_become_outputs_and_nulls_missing_values(backend):
    frame = make(backend, a=[1.0, None, 3.0], n=[4, 5, 6], flag=[True, False, True])
    found = series_of(frame)
    assert same(found.y, [[1, 4, 1], [np.nan, 5, 0], [3, 6, 1]])
    assert found.u is None
    assert found.time is None
    assert found.layout == Layout(("a", "n", "flag"), backend=backend)


def test_whole_numbers_with_nulls_are_read(backend):
    assert same(series_of(make(backend, n=[4, None, 6])).y, [[4], [np.nan], [6]])


def test_nulls_of_a_nullable_pandas_column_are_nan():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {"n": pandas.array([1, None, 3], dtype="Int64"), "x": pandas.array([1.0, 2.0, None], dtype="Float64")}
    )
    assert same(series_of(frame).y, [[1, 1], [np.nan, 2], [3, np.nan]])


def test_columns_of_pandas_may_be_numbered():
    pandas = pytest.importorskip("pandas")
    found = series_of(pandas.DataFrame(np.arange(6.0).reshape(3, 2)), columns=["1"])
    assert close(found.y, array([[1], [3], [5]]))
    assert found.layout.outputs == ("1",)


def test_named_columns_become_controls_and_time(backend):
    frame = make(backend, t=[10.0, 10.5, 12.0], valve=[0, 1, 1], level=[0.1, 0.2, 0.3], speed=[7.0, 8.0, 9.0])
    found = series_of(frame, columns=["speed", "level"], controls="valve", time="t")
    assert close(found.y, array([[7, 0.1], [8, 0.2], [9, 0.3]]))
    assert close(found.u, array([[0], [1], [1]]))
    assert close(found.time, array([0, 0.5, 2]))
    assert series_of(frame, controls=["valve"], time="t").layout.outputs == ("level", "speed")


def test_dates_and_times_count_seconds_from_the_start(backend):
    stamps = [datetime(2024, 3, 30, 12) + timedelta(microseconds=n) for n in (0, 1, 3_000_000)]
    found = series_of(make(backend, t=stamps, y=[1.0, 2.0, 3.0]), time="t")
    assert close(found.time, array([0, 1e-6, 3]), scale=1e-6)


@pytest.mark.parametrize("library", BACKENDS[1:])  # pandas has no type for dates alone
def test_dates_are_a_day_apart(library):
    pytest.importorskip(library)
    found = series_of(make(library, t=[day.date() for day in days(3)], y=[1.0, 2.0, 3.0]), time="t")
    assert same(found.time, [0, 86400, 172800])


def test_every_library_reads_text_as_the_same_dates(backend):
    points, month_first = ["01.03.2024 06:00", "02.03.2024 06:00"], ["3/12/2024 06:00", "3/13/2024 06:00"]
    for text, first in ((points, "2024-03-01T06:00"), (month_first, "2024-03-12T06:00")):
        stamps = series_of(make(backend, t=text, y=[1.0, 2.0]), time="t").stamps.values
        assert list(stamps) == list(np.datetime64(first, "ns") + np.arange(2) * np.timedelta64(1, "D"))
    with pytest.raises(ValueError, match="time column 't' must say which number is the day"):
        series_of(make(backend, t=["1/2/2024", "1/3/2024"], y=[1.0, 2.0]), time="t")


def test_stamps_of_later_data_are_of_the_kind_of_fit(backend):
    layout = series_of(make(backend, t=[1, 2], y=[1.0, 2.0]), time="t").layout
    with pytest.raises(TypeError, match="time column 't' must hold numbers as in fit, got Date"):
        from_frames(make(backend, t=days(2), y=[1.0, 2.0]), layout)
    layout = series_of(make(backend, t=days(2), y=[1.0, 2.0]), time="t").layout
    with pytest.raises(TypeError, match="time column 't' must hold dates as in fit, got Int64"):
        from_frames(make(backend, t=[1, 2], y=[1.0, 2.0]), layout)


def test_nanoseconds_are_kept():
    pandas = pytest.importorskip("pandas")
    stamps = pandas.to_datetime(np.array([0, 7, 20]) + 1_700_000_000_000_000_000).astype("datetime64[ns]")
    found = series_of(pandas.DataFrame({"t": stamps, "y": [1.0, 2.0, 3.0]}), time="t")
    assert close(found.time * 1e9, array([0, 7, 20]))


def test_a_change_of_the_clock_is_no_jump_in_time():
    pandas = pytest.importorskip("pandas")
    hours = pandas.date_range("2024-03-31", periods=6, freq="h", tz="Europe/Berlin")
    found = series_of(pandas.DataFrame({"t": hours, "y": np.arange(6.0)}), time="t")
    assert close(found.dt, array([3600] * 6))


def test_equal_steps_of_late_time_stamps_stay_equal():
    pyarrow = pytest.importorskip("pyarrow")
    seconds = 1_700_000_000.0 + 0.25 * np.arange(50)
    assert close(series_of(pyarrow.table({"t": seconds, "y": np.arange(50.0)}), time="t").dt, array([0.25] * 50))


def test_groups_become_series_in_order_of_appearance(backend):
    frame = make(backend, who=["b", "a", "b", "a", "b"], t=[0, 5, 1, 7, 3], y=[1.0, 10.0, 2.0, 20.0, 3.0])
    b, a = series_of(frame, time="t", group="who")
    assert close(b.y, array([[1], [2], [3]]))
    assert close(b.time, array([0, 1, 3]))
    assert close(a.y, array([[10], [20]]))
    assert close(a.time, array([0, 2]))


@pytest.mark.parametrize(
    ("columns", "how", "error", "message"),
    [
        ({"y": [1.0, 2.0], "s": ["p", "q"]}, {}, TypeError, "'s' must be numeric, got String"),
        ({"y": [1.0, 2.0], "t": days(2)}, {}, TypeError, "'t' must be numeric, got Datetime"),
        ({"y": [1.0, 2.0], "t": ["p", "q"]}, {"time": "t"}, ValueError, "time column 't' must hold numbers, dates or times"),
        ({"y": [1.0, 2.0], "u": [1.0, None]}, {"controls": "u"}, ValueError, "'u' must be complete, .* in row 1"),
        ({"y": [1.0, 2.0], "u": [float("nan"), 1]}, {"controls": "u"}, ValueError, "'u' must be complete, .* in row 0"),
        ({"y": [1.0, 2.0], "t": [0.0, None]}, {"time": "t"}, ValueError, "'t' must be complete, .* in row 1"),
        ({"y": [1.0, 2.0], "t": [*days(1), None]}, {"time": "t"}, ValueError, "'t' must be complete, .* in row 1"),
        ({"y": [1.0, 2.0], "g": ["p", None]}, {"group": "g"}, ValueError, "'g' must be complete, .* in row 1"),
        (
            {"y": [1.0, 2.0], "t": days(2)[::-1]},
            {"time": "t"},
            ValueError,
            r"time column 't' must increase, got .* after .* \(row 1\); sort the rows",
        ),
        ({"y": [1.0, 2.0], "t": [3, 3]}, {"time": "t"}, ValueError, r"got 3 twice \(rows 0 and 1\); drop one"),
        ({"y": [1.0, 2.0], "t": [3, 4]}, {"time": "t", "calendar": "weekend"}, ValueError, "calendar needs dates"),
        ({"y": [1.0, 2.0], "t": days(2)}, {"time": "t", "calendar": "tide"}, ValueError, "calendar must be 'auto' or among"),
        ({"y": [1.0, 2.0]}, {"calendar": "weekend"}, ValueError, "calendar needs time stamps"),
        ({"y": [1.0, 2.0], "u": [None, 2.0]}, {"controls": "u"}, ValueError, "say how to fill gaps, fill='previous' or"),
        ({"y": [1.0, 2.0], "u": [1.0, 2.0]}, {"controls": "u", "fill": "next"}, ValueError, "fill must be one of 'previous'"),
        ({"level": [1.0, 2.0]}, {"columns": "levl"}, ValueError, "did you mean 'level'"),
        ({"y": [1.0, 2.0]}, {"controls": ["v"]}, ValueError, "must have a column 'v', got 'y'"),
        ({"y": [1.0, 2.0]}, {"columns": "y", "controls": "y"}, ValueError, "'y' twice"),
        ({"y": [1.0, 2.0]}, {"controls": "y"}, ValueError, "at least one column of observations"),
        ({"y": [1.0, float("inf")]}, {}, ValueError, "y must be finite"),
    ],
)
def test_a_frame_that_cannot_be_read_says_why(backend, columns, how, error, message):
    with pytest.raises(error, match=message):
        series_of(make(backend, **columns), **how)


def test_lazy_frames_and_arrays_are_refused():
    with pytest.raises(TypeError, match="frame must be a data frame of pandas, polars or pyarrow, got ndarray"):
        series_of(np.eye(2))
    polars = pytest.importorskip("polars")
    with pytest.raises(TypeError, match="collect it first"):
        series_of(polars.DataFrame({"y": [1.0, 2.0]}).lazy())


def test_data_without_frames_are_unchanged():
    for data in (np.eye(3), [1.0, 2.0], [np.eye(2), np.eye(2)], [[1.0], [2.0]], Series(np.eye(2))):
        assert layout_of(data) is None
        assert from_frames(data, None) is data
        assert from_frames(data, Layout(("a", "b"))) is data


def test_columns_are_found_by_name_in_any_order(one):
    layout = layout_of(one(a=[1.0, 2.0], b=[3.0, 4.0]))
    other = one(b=[30.0, 40.0], a=[10.0, 20.0])
    wanted = array([[10, 30], [20, 40]])
    assert close(from_frames(other, layout).y, wanted)
    assert close(from_frames(series_of(other), layout).y, wanted)
    many = from_frames([other, np.eye(2)], layout)
    assert close(many[0].y, wanted)
    assert close(many[1].y, array(np.eye(2)))


def test_the_roles_of_columns_are_remembered(one):
    def frame(**more):
        return one(p=[5.0, 6.0], t=[0, 1], y=[1.0, 2.0], v=[3.0, 4.0], **more)

    first = series_of(frame(g=["i", "i"]), controls=["v", "p"], time="t", group="g")
    layout = layout_of(first)
    for found in (from_frames(frame(), layout), from_frames(frame(g=["j", "j"]), layout)[0]):
        assert close(found.u, array([[3, 5], [4, 6]]))
        assert close(found.y, array([[1], [2]]))
        assert found.time is not None
    swapped = series_of(frame(), controls=["p", "v"], time="t")
    assert close(from_frames(swapped, layout).u, array([[3, 5], [4, 6]]))


def test_other_columns_are_an_error_by_name(one):
    layout = layout_of(one(a=[1.0, 2.0], b=[3.0, 4.0]))
    with pytest.raises(ValueError, match="columns of fit, 'a', 'b', in any order; got a frame without 'b' and with 'c'"):
        from_frames(one(a=[1.0, 2.0], c=[3.0, 4.0]), layout)
    with pytest.raises(ValueError, match="got a frame with 'c'"):
        from_frames(series_of(one(c=[0.0, 1.0], a=[1.0, 2.0], b=[3.0, 4.0])), layout)


def test_controls_are_read_by_name(one):
    u = one(b=[3.0, 4.0], a=[1.0, 2.0])
    assert same(controls_from(u, Layout(("y",), ("a", "b"))), [[1, 3], [2, 4]])
    assert same(controls_from(u, None), [[3, 1], [4, 2]])
    assert controls_from(5.0, Layout(("y",), ("a",))) == 5.0
    with pytest.raises(ValueError, match="u must have the columns of fit, 'a', in any order; got a frame with 'b'"):
        controls_from(u, Layout(("y",), ("a",)))


def test_a_row_is_read_by_name():
    assert same(row_from({"b": 2.0, "a": 1.0}, ("a", "b")), [1, 2])
    assert same(row_from({1: 2.0, "a": 1.0}, ("a", "1")), [1, 2])  # layouts store numbered columns of pandas as strings
    assert row_from([1.0, 2.0], ("a", "b")) == [1.0, 2.0]
    assert row_from({"a": 1.0}, ()) == {"a": 1.0}
    with pytest.raises(ValueError, match=r"a row must have the columns of fit, 'a', 'b'.*without 'a' and with 'c'"):
        row_from({"b": 5.0, "c": 0.0}, ("a", "b"))


# ---------------------------------------------------------------- writing


def belief(mean=((1.0, 2.0), (3.0, 4.0)), std=((0.5, 1.0), (1.0, 2.0))):
    return SimpleNamespace(mean=array(mean), std=array(std))


def values(frame, name):
    return array(np.asarray(frame[name]))


def test_a_frame_has_a_row_per_step_and_four_columns_per_output(backend):
    frame = to_frame(belief(), names=["a", "b"], backend=backend, probability=0.6826894921370859, first=1)
    assert type(frame).__module__.split(".")[0] == backend
    names = list(getattr(frame, "column_names", frame.columns) if backend == "pyarrow" else frame.columns)
    assert names == ["step", "a_mean", "a_std", "a_lower", "a_upper", "b_mean", "b_std", "b_lower", "b_upper"]
    assert np.asarray(frame["step"]).tolist() == [1, 2]
    assert close(values(frame, "b_mean"), array([2, 4]))
    assert close(values(frame, "a_std"), array([0.5, 1]))
    assert close(values(frame, "a_lower"), array([0.5, 2]))
    assert close(values(frame, "b_upper"), array([3, 6]))


@pytest.mark.parametrize(
    ("how", "error", "message"),
    [
        ({"backend": "excel"}, ValueError, "backend must be one of pandas, polars, pyarrow; got 'excel'"),
        ({"probability": 1.0}, ValueError, "probability must lie between 0 and 1"),
        ({"names": ["a"]}, ValueError, "names must be 2, one per output or state, got 1"),
    ],
)
def test_bad_arguments_of_to_frame_are_refused(how, error, message):
    with pytest.raises(error, match=message):
        to_frame(belief(), **how)


def test_without_any_frame_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(tables, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="needs one of pandas, polars, pyarrow; install it"):
        to_frame(belief())
    with pytest.raises(ImportError, match="pip install polars"):
        to_frame(belief(), backend="polars")


# ---------------------------------------------------------------- models
#
# One iteration is enough: what matters is which numbers a model reads.


def numbers(length=12):
    rng = np.random.default_rng(0)
    return np.cumsum(rng.normal(size=(length, 2)), axis=0), rng.normal(size=(length, 1))


def fit(data):
    return ps.ProDSSM(emission="identity", hidden=(), recipe=ps.Recipe(iterations=1), n_estimators=1, progress=False).fit(data)


@pytest.fixture(scope="module")
def plain():
    return fit(numbers()[0])


@pytest.fixture(scope="module")
def controlled():
    pyarrow = pytest.importorskip("pyarrow")
    y, u = numbers()
    table = pyarrow.table({"t": days(len(y)), "heat": u[:, 0], "a": y[:, 0], "b": y[:, 1]})
    return fit(series_of(table, controls="heat", time="t")), table


@pytest.mark.slow
def test_a_model_reads_frames_wherever_it_reads_data(backend, plain):
    y, _ = numbers()
    model, swapped = fit(make(backend, a=y[:, 0], b=y[:, 1])), make(backend, b=y[:, 1], a=y[:, 0])
    assert model.output_names_ == ("a", "b")
    assert plain.output_names_ == ("y0", "y1")
    for verb in ("filter", "smooth"):
        assert close(getattr(model, verb)(swapped).mean, getattr(plain, verb)(y).mean)
    assert np.isclose(model.score(swapped), plain.score(y), rtol=1e-5)
    ahead = model.forecast(swapped, steps=3)
    assert close(ahead.mean, plain.forecast(y, steps=3).mean)
    frame = ahead.to_frame()
    assert type(frame).__module__.split(".")[0] == backend
    assert close(values(frame, "b_mean"), ahead.mean[:, 1])
    assert close(values(frame, "a_lower"), ahead.interval(0.95)[0][:, 0])


@pytest.mark.slow
def test_a_check_reads_frames(plain, one):
    y, _ = numbers()
    found, wanted = plain.check(one(a=y[:, 0], b=y[:, 1]), steps=3), plain.check(y, steps=3)
    assert np.array_equal(found.mean_gap, wanted.mean_gap)


@pytest.mark.slow
def test_a_model_fitted_to_an_array_calls_its_outputs_y(plain):
    pytest.importorskip("pyarrow")
    ahead = plain.forecast(numbers()[0], steps=3)
    assert ahead.to_frame("pyarrow").column_names[1] == "y0_mean"
    assert ahead.names == ("y0", "y1")


@pytest.mark.slow
def test_controls_and_time_are_read_from_later_frames(controlled):
    model, table = controlled
    y, u = numbers()
    assert model.output_names_ == ("a", "b")
    later = table.select(["b", "heat", "t", "a"])
    wanted = model.filter(ps.Series(y, u, 86400.0 * np.arange(len(y))))
    assert close(model.filter(later).mean, wanted.mean)
    ahead = [model.forecast(table, steps=3, u=controls).mean for controls in (table.select(["heat"]), u)]
    assert close(*ahead)
    with pytest.raises(ValueError, match="u must have the columns of fit, 'heat', in any order; got a frame without 'heat'"):
        model.forecast(table, steps=3, u=table.select(["a"]))
    with pytest.raises(ValueError, match="got a frame without 'heat'"):
        model.filter(table.drop_columns(["heat"]))


@pytest.mark.slow
def test_a_saved_model_remembers_its_columns(controlled, tmp_path):
    model, table = controlled
    model.save(tmp_path / "m.safetensors")
    again = ps.load(tmp_path / "m.safetensors")
    assert again.layout_ == model.layout_
    assert close(again.filter(table).mean, model.filter(table).mean)


@pytest.mark.slow
def test_states_are_written_to_a_frame(plain):
    pytest.importorskip("pyarrow")
    filtered = plain.filter(numbers()[0])
    frame = to_frame(filtered, backend="pyarrow")
    assert frame.column_names[:3] == ["step", "x0_mean", "x0_std"]
    assert frame["step"][0].as_py() == 0
    assert close(values(frame, "x1_std"), filtered.std[:, 1])


@pytest.mark.slow
def test_a_grouped_frame_is_several_training_series(one):
    y, _ = numbers(24)
    frame = one(a=y[:, 0], b=y[:, 1], g=["one", "two"] * 12)
    model = fit(series_of(frame, group="g"))
    assert model.filter(frame).labels == ("one", "two")
    assert np.isfinite(model.score(frame))


@pytest.mark.slow
def test_controls_go_by_their_names_wherever_they_are_given():
    rng = np.random.default_rng(0)
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"y": np.sin(np.arange(30.0)), "a": rng.normal(size=30), "b": 5 + rng.normal(size=30)})
    model = fit(series_of(frame, controls=["a", "b"]))
    u = pandas.DataFrame({"a": [0.0, 1.0], "b": [5.0, 4.0]})
    turned = u[["b", "a"]]
    assert close(model.transition([[0.0], [1.0]], u=turned).mean, model.transition([[0.0], [1.0]], u=u.to_numpy()).mean)
    _, plain = model.step(model.start(), [0.5], u=[0.0, 5.0])
    for y, row in (([0.5], turned.iloc[0]), ({"y": 0.5}, {"b": 5.0, "a": 0.0}), ([0.5], pandas.Series([0.0, 5.0]))):
        assert close(model.step(model.start(), y, u=row)[1].mean, plain.mean)
    with pytest.raises(ValueError, match=r"a row must have the columns of fit, 'a', 'b'.*without 'a' and with 'c'"):
        model.step(model.start(), [0.5], u={"b": 5.0, "c": 0.0})
