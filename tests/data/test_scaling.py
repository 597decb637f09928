"""Models see the same numbers in any units, constant columns are left alone, and the inverse is the inverse."""

import jax
import numpy as np
import pytest
from oracles import array, close, random_cov
from scipy import stats

from prodssm.data.scaling import DataScaling, Standardiser, mean_and_scale
from prodssm.data.series import Series

EPS = float(np.finfo(array(0.0).dtype).eps)
SCALE, SHIFT = np.array([1e6, 1.0]), np.array([-3e6, 5.0])
RNG = np.random.default_rng(0)


def rich(seed, length):
    """Two outputs with missing values, a control input, irregular sampling."""
    rng = np.random.default_rng(seed)
    y = np.cumsum(rng.normal(size=(length, 2)), axis=0)
    y[length // 2 : length // 2 + 4], y[1, 0] = np.nan, np.nan
    parts = y, rng.normal(size=(length, 1)), np.cumsum(rng.uniform(0.2, 1.0, length))
    return Series(*(array(part) for part in parts))


def other_units(series):
    """The same series in other units; the scales of the outputs are 1e6 apart."""
    return Series(series.y * array(SCALE) + array(SHIFT), 1e-3 * series.u - 7.0, 60.0 * series.time + 100.0)


@pytest.fixture(scope="module", autouse=True)
def rank_promotion():
    """Rows are scaled by broadcasting."""
    with jax.numpy_rank_promotion("allow"):
        yield


# ---------------------------------------------------------------- the standardiser


def test_standardised_columns_have_zero_mean_and_unit_standard_deviation():
    columns = np.where(RNG.random((50, 2)) < 0.2, np.nan, RNG.normal(size=(50, 2)) * SCALE + SHIFT)
    scaler = Standardiser.fit(array(columns))
    found = np.asarray(scaler.transform(array(columns)), float)
    assert np.allclose(np.nanmean(found, axis=0), 0, atol=100 * EPS)
    assert np.allclose(np.nanstd(found, axis=0), 1, atol=100 * EPS)
    assert np.allclose(
        scaler.inverse(scaler.transform(array(columns))), columns, rtol=100 * EPS, atol=100 * EPS, equal_nan=True
    )


def test_covariances_and_densities_return_to_the_scale_of_the_data():
    scaler = Standardiser(array([1.0, -2.0]), array([3.0, 0.5]))
    cov, z = random_cov(RNG, 2), RNG.normal(size=2)
    y, data_cov = scaler.inverse(array(z)), scaler.inverse_cov(array(cov))
    density = stats.multivariate_normal.logpdf(z, np.zeros(2), cov)
    wanted = stats.multivariate_normal.logpdf(np.asarray(y, float), [1.0, -2.0], np.asarray(data_cov, float))
    assert close(scaler.inverse_log_prob(array(density), array([1.0, 1.0])), wanted)
    alone = stats.norm.logpdf(z[1], 0, np.sqrt(cov[1, 1]))
    assert close(scaler.inverse_log_prob(array(alone), array([0.0, 1.0])), alone - np.log(0.5))


def test_small_units_are_scaled_and_constant_columns_are_not():
    current = 1e-11 * np.random.default_rng(0).normal(size=(500, 1))
    assert np.isclose(Standardiser.fit(array(current)).scale[0], current.std(), rtol=1e-4)
    assert Standardiser.fit(array(np.full((5, 1), 1e-11))).scale[0] == 1
    assert Standardiser.fit(array(np.zeros((5, 1)))).scale[0] == 1


def test_a_column_of_rounding_errors_counts_as_constant():
    column = np.full(1000, 0.1) + 1e-16 * RNG.normal(size=1000)
    _, scale = mean_and_scale(np.stack([column, 0 * column, 1e-13 * column + np.arange(1000.0)], axis=1))
    assert (scale[:2] == 1).all()
    assert scale[2] > 100


def test_a_numpy_standardiser_stays_in_double_precision():
    columns = 1e8 + RNG.normal(size=(30, 2))
    scaler = Standardiser.fit_double(columns)
    assert type(scaler.mean) is type(scaler.scale) is np.ndarray
    found = scaler.transform(columns)
    assert found.dtype == scaler.inverse(found).dtype == np.float64
    assert np.array_equal(found, (columns - scaler.mean) / scaler.scale)
    assert np.allclose(scaler.inverse(found), columns, rtol=1e-15)


def test_the_identity_changes_nothing():
    scaler, values = Standardiser.identity(2), array(RNG.normal(size=(4, 2)))
    assert np.array_equal(scaler.transform(values), values)
    assert np.array_equal(scaler.inverse(values), values)
    assert Standardiser.identity(3, np.float32).mean.dtype == np.float32


# ---------------------------------------------------------------- scaling of series


def test_a_model_sees_the_same_numbers_in_any_units():
    data = [rich(0, 14), rich(1, 10)]
    plain, other = (DataScaling.fit(each, regular=False) for each in (data, [other_units(series) for series in data]))
    assert plain.outputs == 2
    assert plain.controls == 1
    for series in data:
        one, two = plain.transform_series(series), other.transform_series(other_units(series))
        for name in ("y", "u", "time"):
            a, b = (np.nan_to_num(np.asarray(getattr(each, name))) for each in (one, two))
            assert close(a, b), name
    assert close(array(plain.transform_dt(0.7)), array(other.transform_dt(42.0)))
    steps = array([0.3, 0.8])
    assert close(plain.transform_time_steps(steps), other.transform_time_steps(60 * steps))


def test_time_steps_of_scaled_series_are_not_differences_of_rounded_stamps():
    series = Series(np.sin(0.3 * np.arange(40)), time=np.r_[0, 1e5 + 0.01 * np.arange(39)])
    assert close(DataScaling.fit([series], regular=False).transform_series(series).dt[1:], np.ones(39), scale=1e4)


def test_scaled_series_have_the_precision_of_the_weights():
    y = RNG.normal(size=(9, 1)).astype(np.float32)
    scaling = DataScaling.fit([Series(y)], regular=True)
    assert scaling.transform_series(Series(y)).y.dtype == array(0.0).dtype
    assert scaling.transform_series(Series(y)).time is None


def test_a_likelihood_may_scale_outputs_by_its_own_rule():
    series = rich(0, 14)
    scaling = DataScaling.fit([series], regular=False, standardise=lambda y: Standardiser.identity(y.shape[1], y.dtype))
    assert np.array_equal(scaling.transform_series(series).y, series.y, equal_nan=True)
    assert not np.array_equal(scaling.transform_series(series).u, series.u)


def test_the_identity_scaling_changes_nothing_but_time():
    series = rich(0, 14)
    found = DataScaling.identity(2, 1, time_step=2.0).transform_series(series)
    assert np.array_equal(found.y, series.y, equal_nan=True)
    assert np.array_equal(found.u, series.u)
    assert close(found.dt, series.dt / 2)
    assert DataScaling.identity(2, 0).u is None
    assert DataScaling.identity(2, 0).controls == 0


def test_standard_deviations_whose_squares_overflow_or_underflow_are_refused():
    for size in (1e-20, 1e20) if EPS > 1e-10 else (1e-160, 1e160):
        with pytest.raises(ValueError, match=r"data must be in units in which float.* standard deviation of .* in output 0"):
            DataScaling.fit([Series(size * np.sin(0.3 * np.arange(20)))], regular=True)


# ---------------------------------------------------------------- bad input

PLAIN = DataScaling.identity(1, 0, regular=True)
CONTROLLED = DataScaling.identity(2, 1)
Y = np.arange(5.0)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda: PLAIN.transform_series(Series(np.ones((5, 2)))), "data must have 1 outputs like those of fit, got 2"),
        (lambda: PLAIN.transform_series(Series(Y, u=Y)), "u must not be given, as in fit"),
        (lambda: PLAIN.transform_series(Series(Y, time=0.1 * Y)), "time must have steps of 1 throughout for residual=False"),
        (lambda: PLAIN.transform_controls(np.ones((5, 1))), "u must not be given, as in fit"),
        (lambda: PLAIN.require_controls(np.ones((5, 1))), "u must not be given, as in fit"),
        (lambda: PLAIN.transform_dt(0.0), "dt must be positive, got 0.0"),
        (lambda: PLAIN.transform_dt(np.nan), "dt must be finite"),
        (lambda: PLAIN.transform_dt("now"), "dt must be a number, got 'now'"),
        (lambda: PLAIN.transform_dt(2.0), "dt=2.0 needs residual=True"),
        (lambda: PLAIN.transform_time_steps([1.0, -1.0]), "dt must be positive, got -1.0"),
        (lambda: CONTROLLED.require_controls(None), "u must be given, as in fit"),
        (lambda: CONTROLLED.transform_series(Series(np.ones((5, 2)))), "u must be given, as in fit"),
        (lambda: CONTROLLED.transform_controls(np.ones((5, 2))), "u must have 1 columns like that of fit, got 2"),
        (lambda: CONTROLLED.transform_controls([[0.0], [np.nan]]), "u must be finite"),
    ],
)
def test_data_that_do_not_fit_the_scaling_are_refused_by_name(use, said):
    with pytest.raises((ValueError, TypeError), match=said):
        use()


def test_a_time_step_that_is_not_given_is_the_typical_one():
    scaling = DataScaling.identity(1, 0, time_step=0.5)
    assert scaling.transform_dt(None) == 1.0
    assert scaling.transform_dt(1.0) == 2.0
