"""States identified by linear algebra are those of a linear system."""

import numpy as np
import pytest

import prodssm as ps
from prodssm.training.subspace import LAGS, _interpolated, identify_states


def test_the_states_of_a_linear_system_move_and_emit_linearly(linear_system):
    found = identify_states([linear_system(400), linear_system(100, seed=1)], 2)
    assert found is not None
    for inputs, outputs in (found.seen, found.moves):
        design = np.concatenate([inputs, np.ones((len(inputs), 1))], axis=1)
        residuals = outputs - design @ np.linalg.lstsq(design, outputs, rcond=None)[0]
        assert (residuals.std(axis=0) < 0.02 * outputs.std(axis=0)).all()
    assert len(found.seen[0]) == (400 - 2 * LAGS + 1) + (100 - 2 * LAGS + 1)
    assert np.allclose(found.seen[0].std(axis=0), 1.0)
    assert (found.dt == 1).all()


def test_gaps_are_interpolated():
    assert np.allclose(_interpolated(np.array([[1.0], [np.nan], [3.0], [np.nan]]))[:, 0], [1, 2, 3, 3])
    assert np.allclose(_interpolated(np.full((3, 1), np.nan)), 0)


@pytest.mark.parametrize(("size", "lost"), [(3, 0), (100, 90)])
def test_short_gaps_cost_nothing_but_long_ones_are_left_out(size, lost, linear_system):
    series = linear_system(400)
    y = np.where((np.arange(400) - 100) // size == 0, np.nan, np.asarray(series.y)[:, 0])
    found = identify_states([ps.Series(y, series.u)], 2)
    assert found is not None
    whole = 400 - 2 * LAGS + 1
    assert len(found.seen[0]) == whole if not lost else len(found.seen[0]) < whole - lost


def test_series_that_are_too_short_have_no_states(linear_system):
    assert identify_states([linear_system(3 * LAGS)], 2) is None
    assert identify_states([linear_system(40)], 2) is None
    assert identify_states([linear_system(400)], LAGS + 1) is None  # more states than a future has outputs
