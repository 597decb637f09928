"""Batches score the observations that they should, and mini-batches are drawn from inside the series."""

import jax.random as jr
import numpy as np
import pytest
from oracles import array

from prodssm.data.batching import SeriesBatch
from prodssm.data.series import Series

RNG = np.random.default_rng(0)
LONG, SHORT = (Series(array(RNG.normal(size=(length, 1)))) for length in (12, 6))


def test_all_observations_but_the_first_of_each_series_are_scored():
    gappy = Series(array([0.1, 0.5, -0.2, np.nan, 0.3, 0.7]))
    batch = SeriesBatch.stack([gappy, Series(array([0.4, 0.1]))])
    assert batch.record.length.tolist() == [6, 2]
    assert batch.longest == 6
    assert batch.scored.tolist() == [[0, 1, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0]]
    assert batch.observed == 5


def test_scored_time_steps_may_be_bounded_series_by_series():
    batch = SeriesBatch.stack([LONG, SHORT], begin=[8, 0], end=[10, 3])
    assert np.flatnonzero(batch.scored[0]).tolist() == [8, 9]
    assert np.flatnonzero(batch.scored[1]).tolist() == [1, 2]
    assert batch.observed == 4


def test_windows_are_drawn_from_inside_their_series():
    batch = SeriesBatch.stack([LONG, SHORT])
    for n in range(20):
        members, starts = batch.draw(jr.key(n), 4, 5)
        record, scored = batch.select(members, starts, 5)
        assert record.y.shape == (4, 5, 1)
        assert not np.isnan(record.y).any()
        assert record.length.tolist() == [5] * 4
        assert (scored.sum(axis=1) >= 4).all()


def test_padded_series_are_not_drawn_and_not_scored():
    batch = SeriesBatch.stack([LONG] * 9)
    assert batch.record.y.shape == (10, 12, 1)
    assert batch.count == 9
    assert not batch.scored[9].any()
    assert batch.record.length[9] == 0
    for n in range(10):
        assert sorted(batch.draw(jr.key(n), 9, None)[0].tolist()) == list(range(9))
        assert max(batch.draw(jr.key(n), 27, None)[0].tolist()) == 8


def test_members_are_drawn_without_replacement_as_long_as_there_are_enough():
    batch = SeriesBatch.stack([LONG, SHORT, LONG, SHORT])
    for n in range(10):
        assert len(set(batch.draw(jr.key(n), 3, None)[0].tolist())) == 3
        assert sorted(batch.draw(jr.key(n), 8, None)[0].tolist()) == [0, 0, 1, 1, 2, 2, 3, 3]
    members, starts = batch.draw(jr.key(0), None, None)
    assert members.tolist() == [0, 1, 2, 3]
    record, scored = batch.select(members, starts, None)
    assert np.array_equal(record.y, batch.record.y, equal_nan=True)
    assert np.array_equal(scored, batch.scored)


@pytest.mark.parametrize(("size", "window", "full"), [(None, None, True), (2, 12, True), (1, None, False), (None, 10, False)])
def test_a_full_batch_has_all_series_at_full_length(size, window, full):
    assert SeriesBatch.stack([LONG, SHORT]).is_full_batch(size, window) == full
