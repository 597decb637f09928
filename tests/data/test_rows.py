"""Rows are padded to few lengths, and minibatches contain training rows only."""

import jax.random as jr
import numpy as np
import pytest
from oracles import close

from prodssm.data.rows import Rows, padded_length


@pytest.mark.parametrize(("count", "length"), [(1, 64), (64, 64), (65, 80), (128, 128), (1000, 1024)])
def test_lengths_are_buckets_from_64_on(count, length):
    assert padded_length(count) == length


def test_rows_are_followed_by_padding():
    x, y = np.arange(10.0).reshape(5, 2), np.arange(5.0)[:, None]
    rows = Rows.padded(x, y, validation=2)
    assert (int(rows.training), int(rows.validation)) == (3, 2)
    assert rows.x.shape == (64, 2)
    assert rows.y.shape == (64, 1)
    assert close(rows.x[:5], x)
    assert close(rows.y[:5], y)
    assert (rows.x[5:] == 0).all()


def test_a_batch_has_no_row_twice_and_no_validation_row():
    rows = Rows.padded(np.zeros((40, 1)), np.zeros((40, 1)), validation=10)
    for n in range(20):
        members, counts = rows.draw(16, key=jr.key(n))
        assert counts.all()
        assert len(set(members.tolist())) == 16
        assert members.max() < 30
    members, counts = rows.draw(50, key=jr.key(0))
    assert counts.sum() == 30
    members, counts = rows.draw(64, key=jr.key(0))
    assert members.tolist() == list(range(64))
    assert counts.sum() == 30
