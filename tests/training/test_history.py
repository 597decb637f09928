"""A history says what happened and why it ended, also over several runs."""

import numpy as np

from prodssm.training.history import History, StopReason


def test_two_runs_become_one():
    first = History([25, 50], [-2.0, -1.0], [-3.0, -2.5], [1.0, 2.0], StopReason.EARLY_STOPPING)
    found = first.followed_by(History([10, 20], [-0.9, -0.8], [-2.4, -2.6], [0.5, 1.0]))
    assert found.iterations == [25, 50, 60, 70]
    assert found.objective == [-2.0, -1.0, -0.9, -0.8]
    assert found.validation == [-3.0, -2.5, -2.4, -2.6]
    assert found.seconds == [1.0, 2.0, 2.5, 3.0]
    assert found.stop_reason is StopReason.COMPLETED
    assert found.best_validation == -2.4
    assert History().followed_by(first) == first


def test_a_run_without_validation_data_has_none_beside_one_that_has():
    with_some, without = History([5], [1.0], [2.0], [0.1]), History([5, 10], [1.0, 1.5], [], [0.1, 0.2])
    assert np.array_equal(without.followed_by(with_some).validation, [np.nan, np.nan, 2.0], equal_nan=True)
    assert np.array_equal(with_some.followed_by(without).validation, [2.0, np.nan, np.nan], equal_nan=True)
    assert without.followed_by(with_some).best_validation == 2.0
    assert without.followed_by(without).validation == []
    assert without.best_validation == -np.inf


def test_a_run_that_diverged_is_not_hidden_by_one_that_did_not():
    lost = History([5], [np.nan], [], [0.1], StopReason.DIVERGED)
    fine = History([5], [1.0], [], [0.1])
    assert lost.diverged
    assert not fine.diverged
    assert lost.followed_by(fine).stop_reason is StopReason.DIVERGED
    assert fine.followed_by(lost).stop_reason is StopReason.DIVERGED


def test_the_reason_is_written_in_words():
    assert str(StopReason.COMPLETED) == "all iterations done"
    assert str(StopReason.EARLY_STOPPING).startswith("no improvement on the validation data")
    assert History(stop_reason=StopReason.INTERRUPTED).interrupted
    assert not History().interrupted
