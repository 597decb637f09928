"""Folds are disjoint blocks that leave most of the data to every member."""

import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.data.batching import LEAD, SeriesBatch
from prodssm.data.folds import LONGEST_BLOCK, MOST_HELD_OUT, Block, context, folds
from prodssm.data.splitting import Split


def series(*lengths):
    return [ps.Series(array(np.arange(float(length)))) for length in lengths]


@pytest.mark.parametrize("lengths", [(60,), (300,), (1000, 400), (50_000,), (20, 30, 40, 50, 20, 30, 40, 60, 20)])
def test_folds_are_disjoint_and_leave_most_of_the_data(lengths):
    found = folds(series(*lengths), 4)
    assert len(found) == 4
    taken = [np.zeros(length, int) for length in lengths]
    for blocks in found:
        assert blocks
        held = sum(end - begin for _, begin, end in blocks)
        assert held <= 0.4 * sum(lengths)
        for n, begin, end in blocks:
            assert 0 < begin < end <= lengths[n]
            assert end - begin <= LONGEST_BLOCK
            taken[n][begin:end] += 1
    assert max(part.max() for part in taken) == 1
    if max(lengths) > 10_000:
        assert sum(part.sum() for part in taken) <= MOST_HELD_OUT * sum(lengths)


def test_of_many_series_whole_ones_are_held_out_after_a_context():
    found = folds(series(*[40] * 10), 4)
    assert [[block.series for block in blocks] for blocks in found] == [[0, 4, 8], [1, 5, 9], [2, 6], [3, 7]]
    assert all(block == Block(block.series, context(40), 40) for blocks in found for block in blocks)


def test_validation_data_are_scored_in_a_free_run_from_what_precedes_them():
    data = series(200, 30)
    behind = Split.by_slice(data, slice(20, 25)).validation.in_free_run(None)
    assert (behind.given.sum(axis=1)[:2] == 20).all()
    assert behind.observed == 10
    whole = Split.by_series(data, data).validation
    for context_size, known in ((None, [context(200), context(30)]), (3, [3, 3]), (100, [100, 29])):
        found = whole.in_free_run(context_size)
        assert found.given.sum(axis=1)[:2].tolist() == known
        assert found.scored.sum(axis=1)[:2].tolist() == [200 - known[0], 30 - known[1]]
        assert not (found.given * found.scored).any()
        assert found.in_free_run(7) is found


def test_a_split_hides_blocks_from_training_and_scores_them_in_a_free_run():
    data = series(200, 300)
    blocks = [Block(0, 150, 160), Block(1, 50, 80)]
    split = Split.by_blocks(data, blocks)
    for n, begin, end in blocks:
        assert np.isnan(split.training[n].y[begin:end]).all()
        assert np.isnan(split.training[n].y).sum() == end - begin
    batch = split.validation
    assert isinstance(batch, SeriesBatch)
    assert batch.observed == 10 + 30
    for row, (n, begin, end) in enumerate(blocks):
        first = max(0, begin - LEAD)
        assert batch.record.y[row, 0, 0] == first
        assert batch.given[row].sum() == begin - first
        scored = np.flatnonzero(batch.scored[row])
        assert (batch.record.y[row, scored, 0] == data[n].y[begin:end, 0]).all()
        assert not batch.given[row][scored].any()
