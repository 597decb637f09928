"""Validation data are never trained on, however they are chosen."""

import numpy as np
import pytest
from oracles import array

from prodssm.data.folds import Block
from prodssm.data.series import Series
from prodssm.data.splitting import Split, without_blocks

TIME = 24


def wave(length=TIME, seed=0):
    """One output that oscillates, with noise."""
    y = np.sin(0.4 * np.arange(TIME))[:, None] + 0.1 * np.random.default_rng(seed).normal(size=(TIME, 1))
    return Series(array(y[:length]))


def values(series):
    return {float(v) for each in series for v in each.y[:, 0] if np.isfinite(v)}


def validation_values(split):
    scored = np.asarray(split.validation.scored)[..., None] > 0
    return {float(v) for v in np.asarray(split.validation.record.y)[scored] if np.isfinite(v)}


@pytest.mark.parametrize(("count", "fraction"), [(1, 0.2), (3, 0.5), (6, 0.2), (6, 0.99)])
def test_validation_data_are_not_trained_on(count, fraction):
    series = [wave(TIME - seed, seed) for seed in range(count)]
    split = Split.by_fraction(series, fraction, seed=0)
    training, validation = values(split.training), validation_values(split)
    assert training
    assert validation
    assert not training & validation
    if count < 5:
        assert training | validation == values(series)


def test_many_series_are_held_out_whole_and_the_seed_chooses_which():
    series = [wave(TIME - seed, seed) for seed in range(10)]
    splits = [Split.by_fraction(series, 0.3, seed) for seed in (0, 0, 1)]
    for split in splits:
        assert len(split.training) == 7
        assert sorted([*map(len, split.training), *split.validation.record.length.tolist()]) == sorted(map(len, series))
    lengths = [[len(each) for each in split.training] for split in splits]
    assert lengths[0] == lengths[1] != lengths[2]


def test_a_zero_fraction_holds_nothing_out():
    series = [wave()]
    found = Split.by_fraction(series, 0, seed=0)
    assert (found.training, found.validation, found.held_out) == (series, None, ())


@pytest.mark.parametrize("fraction", [1.0, -0.1, 7.0])
def test_a_bad_fraction_is_refused(fraction):
    with pytest.raises(ValueError, match=rf"validation must be a fraction between 0 and 1, got {fraction}"):
        Split.by_fraction([wave()], fraction, seed=0)


@pytest.mark.parametrize(("steps", "begin", "ends"), [(slice(10, 15), 10, (15, 15)), (slice(-8, None), -8, (TIME, TIME - 5))])
def test_a_slice_of_time_steps_can_be_held_out(steps, begin, ends):
    series = [wave(), wave(TIME - 5)]
    split = Split.by_slice(series, steps)
    for n, (whole, training, end) in enumerate(zip(series, split.training, ends, strict=True)):
        held_out = np.arange(begin % len(whole), end)
        left = np.isfinite(np.asarray(training.y)[:, 0])
        assert not left[held_out].any()
        assert left.sum() == len(whole) - len(held_out)
        scored = np.asarray(split.validation.scored[n]) * np.isfinite(split.validation.record.y[n, :, 0])
        assert np.array_equal(np.flatnonzero(scored), held_out)


@pytest.mark.parametrize("steps", [slice(0, 0), slice(None), slice(0, 9, 2), slice(9, 3)])
def test_a_slice_must_be_consecutive_and_leave_training_data(steps):
    with pytest.raises(ValueError, match="validation_data must be a slice of consecutive time steps that leaves others"):
        Split.by_slice([wave()], steps)


def test_a_slice_must_have_integer_bounds():
    with pytest.raises(TypeError, match="validation_data must be a slice with integer bounds"):
        Split.by_slice([wave()], slice(0.5, 3))


def test_other_series_can_be_the_validation_data():
    series, others = [wave()], [wave(seed=1), wave(9, seed=2)]
    split = Split.by_series(series, others)
    assert split.training is series
    assert split.validation.record.length.tolist() == [TIME, 9]
    assert split.validation.observed == TIME - 1 + 8


def test_many_blocks_are_held_out_together_and_the_data_stay_as_they_are():
    series = [wave(seed=0), wave(seed=1)]
    before = [np.array(each.y) for each in series]
    blocks = [Block(0, 2, 5), Block(1, 4, 6), Block(0, 10, 12)]
    found = without_blocks(series, blocks)
    for n, each in enumerate(found):
        held_out = {t for block in blocks if block.series == n for t in range(block.begin, block.end)}
        assert set(np.flatnonzero(np.isnan(each.y[:, 0])).tolist()) == held_out
        assert np.array_equal(series[n].y, before[n])
    assert all(a.y is b.y for a, b in zip(Split.by_blocks(series, blocks[:1]).training[1:], series[1:], strict=True))
