"""The UCI sets are the published files, and their splits are regenerated row by row."""

import numpy as np
import pytest

from prodssm.datasets import find, uci

# Rows, features, training rows, test rows, standard deviation of the target: the table of the protocol.
TABLE = {
    "boston": (506, 13, 455, 51, 9.188),
    "energy": (768, 8, 691, 77, 10.084),
    "concrete": (1030, 8, 927, 103, 16.698),
    "wine": (1599, 11, 1439, 160, 0.807),
    "kin8nm": (8192, 8, 7373, 819, 0.2636),
    "power": (9568, 4, 8611, 957, 17.066),
    "naval": (11934, 16, 10741, 1193, 0.01472),
    "protein": (45730, 9, 41157, 4573, 6.118),
}
FOLDERS = {name: facts.folder for name, facts in uci._FACTS.items()}


def test_the_names_are_those_of_the_table():
    assert uci.NAMES == tuple(TABLE)


@pytest.mark.parametrize("name", uci.NAMES)
def test_a_set_has_the_rows_features_and_target_of_the_table(name, or_skip):
    data = or_skip(uci.load, name)
    rows, features, _, _, std = TABLE[name]
    assert data.x.shape == (rows, features)
    assert data.y.shape == (rows,)
    assert data.x.dtype == data.y.dtype == np.float64
    assert np.isfinite(data.x).all()
    assert np.isfinite(data.y).all()
    assert data.y.std() == pytest.approx(std, rel=1e-3)
    assert data.published_splits == (5 if name == "protein" else 20)
    assert data.units
    assert FOLDERS[name] in data.source


@pytest.mark.parametrize("name", uci.NAMES)
def test_a_split_is_a_partition_of_the_rows(name):
    rows, _, train, test, _ = TABLE[name]
    for index in (0, uci.SPLITS - 1):
        split = uci.split(name, index)
        assert (len(split.train), len(split.test)) == (train, test)
        np.testing.assert_array_equal(np.sort(np.concatenate(split)), np.arange(rows))


@pytest.mark.parametrize("name", uci.NAMES)
def test_every_published_split_is_regenerated_in_order(name, or_skip):
    for index in range(uci._FACTS[name].published_splits):
        split = uci.split(name, index)
        for part, rows in (("train", split.train), ("test", split.test)):
            stored = or_skip(find, f"uci/{FOLDERS[name]}/index_{part}_{index}.txt")
            np.testing.assert_array_equal(rows, np.loadtxt(stored, dtype=np.int64))


def test_unpublished_splits_of_protein_continue_the_stream():
    rows, stream = 45730, np.random.RandomState(1)
    orders = [stream.choice(range(rows), rows, replace=False) for _ in range(uci.SPLITS)]
    for index in range(5, uci.SPLITS):
        np.testing.assert_array_equal(np.concatenate(uci.split("protein", index)), orders[index])


def test_naval_has_constant_and_twin_features_that_no_test_for_zero_finds(or_skip):
    data = or_skip(uci.load, "naval")
    std = data.x[uci.split("naval", 0).train].std(axis=0)
    assert set(np.flatnonzero(std < 1e-10)) == {8, 11}
    assert std[11] > 0
    np.testing.assert_array_equal(data.x[:, 5], data.x[:, 6])


def test_wine_shares_51_rows_between_the_parts_of_its_first_split(or_skip):
    data = or_skip(uci.load, "wine")
    rows = [tuple(row) for row in np.column_stack([data.x, data.y])]
    train, test = uci.split("wine", 0)
    seen = {rows[n] for n in train}
    assert sum(rows[n] in seen for n in test) == 51


def test_an_unknown_name_or_split_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of boston, .*got 'iris'"):
        uci.load("iris")
    with pytest.raises(ValueError, match="name must be one of"):
        uci.split("iris", 0)
    for index in (-1, 20):
        with pytest.raises(ValueError, match=rf"index must be .*got {index}"):
            uci.split("wine", index)
