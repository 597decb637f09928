"""The measured systems come as series in our time convention, whatever the form of their files."""

import numpy as np
import pytest

from prodssm.data.series import Series
from prodssm.datasets import sysid

LENGTHS = {"actuator": (512, 512), "ballbeam": (500, 500), "dryer": (500, 500), "tanks": (1024, 1024)}


@pytest.fixture(params=sysid.NAMES)
def name(request):
    return request.param


@pytest.fixture
def data(name, or_skip):
    return or_skip(sysid.load, name)


def test_series_have_one_input_one_output_and_unit_steps(name, data):
    for series, length in zip((data.train, data.test), LENGTHS[name], strict=True):
        assert isinstance(series, Series)
        assert series.y.shape == series.u.shape == (length, 1)
        assert np.isfinite(np.asarray(series.y)).all()
        assert np.isfinite(np.asarray(series.u)).all()
        assert series.time is None


def test_a_system_says_what_it_is(name, data):
    assert set(data.units) == {"u", "y"}
    assert data.source.startswith("https://")
    assert data.sampling_time == {"actuator": None, "ballbeam": 0.1, "dryer": 0.08, "tanks": 4.0}[name]


def test_no_stretch_of_the_training_series_is_in_the_test_series(data):
    # Inputs too: full tanks are all alike.
    rows = [np.concatenate(pair, axis=1) for pair in values(data)]
    pieces = [{part[n : n + 10].tobytes() for n in range(len(part) - 9)} for part in rows]
    assert not pieces[0] & pieces[1]


def test_an_input_does_not_act_on_the_output_of_its_own_row(data):
    u, y = (part[:, 0].astype(float) for part in values(data)[0])
    lags, now = 4, slice(4, None)
    past = [part[lags - k : len(part) - k] for part in (u, y) for k in range(1, lags + 1)]
    constant = np.ones(len(y) - lags)

    def error(columns):
        inputs = np.column_stack(columns)
        return np.std(y[now] - inputs @ np.linalg.lstsq(inputs, y[now], rcond=None)[0])

    assert error([*past, constant, u[now]]) > 0.99 * error([*past, constant])


def test_the_big_endian_file_gives_the_range_of_the_actuator(or_skip):
    data = or_skip(sysid.load, "actuator")
    u, y = (np.concatenate(parts) for parts in zip(*values(data), strict=True))
    np.testing.assert_allclose([u.min(), u.max()], [-1.45, 1.28], rtol=0, atol=5e-3)
    np.testing.assert_allclose([y.min(), y.max()], [-3.96, 3.52], rtol=0, atol=5e-3)


def test_the_tanks_take_training_and_test_from_the_right_columns(or_skip):
    data = or_skip(sysid.load, "tanks")
    first = [part[0].item() for parts in values(data) for part in parts]
    last = [part[-1].item() for parts in values(data) for part in parts]
    np.testing.assert_allclose(first, [3.2567, 5.205, 0.97619, 4.9728], rtol=1e-6)
    np.testing.assert_allclose(last, [3.2615, 3.6831, 0.94805, 3.7179], rtol=1e-6)
    assert max(data.train.y.max().item(), data.test.y.max().item()) == 10.0


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="name must be one of actuator, ballbeam, dryer, tanks; got 'boat'"):
        sysid.load("boat")


def values(data):
    return [(np.asarray(series.u), np.asarray(series.y)) for series in (data.train, data.test)]
