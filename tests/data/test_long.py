"""A series on disk is the series in memory, wherever it is cut."""

import pickle

import numpy as np
import pytest

import prodssm as ps
from prodssm.data.long import Pool
from prodssm.data.scaling import DataScaling

RNG = np.random.default_rng(0)
Y, U = RNG.normal(size=(200, 2)), RNG.normal(size=(200, 1))
TIME = np.cumsum(RNG.uniform(0.5, 1.5, 200))


@pytest.fixture
def mapped(tmp_path):
    """Arrays that are mapped from files."""
    for name, array in (("y", Y), ("u", U), ("time", TIME)):
        np.save(tmp_path / f"{name}.npy", array)
    return [np.load(tmp_path / f"{name}.npy", mmap_mode="r") for name in ("y", "u", "time")]


@pytest.fixture
def folder(tmp_path):
    """Two Parquet files of several row groups."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"a": Y[:, 0], "valve": U[:, 0], "b": Y[:, 1], "t": TIME})
    place = tmp_path / "parts"
    place.mkdir()
    parquet.write_table(table.slice(0, 130), place / "0.parquet", row_group_size=40)
    parquet.write_table(table.slice(130), place / "1.parquet", row_group_size=30)
    return place


def same(part, begin, end):
    whole = ps.Series(Y, U, TIME)
    assert np.array_equal(part.y, whole.y[begin:end])
    assert np.array_equal(part.u, whole.u[begin:end])
    assert np.allclose(part.dt[:-1], whole.dt[begin : end - 1])
    assert np.allclose(part.dt[-1], whole.dt[end - 1])  # the step to what follows


@pytest.mark.parametrize(("begin", "end"), [(0, 200), (3, 5), (37, 45), (120, 160), (198, 200)])
def test_a_part_is_that_of_the_whole(mapped, folder, begin, end):
    same(ps.LongSeries.of_arrays(*mapped).part(begin, end), begin, end)
    same(ps.LongSeries.of_arrays(*(np.asarray(each) for each in mapped)).part(begin, end), begin, end)
    found = ps.LongSeries.of_parquet(folder, columns=["a", "b"], controls="valve", time="t").part(begin, end)
    same(found, begin, end)
    assert found.layout.outputs == ("a", "b")


def test_slices_of_mapped_files_are_read_from_their_place(mapped):
    y, u, time = (each[50:150] for each in mapped)
    same(ps.LongSeries.of_arrays(y, u, time).part(10, 20), 60, 70)
    columns = ps.LongSeries.of_arrays(mapped[0][:, 1:])
    assert np.array_equal(columns.part(10, 20).y, np.asarray(Y[10:20, 1:], columns.part(0, 2).y.dtype))


def test_chunks_are_all_there_and_the_last_is_no_single_row(mapped):
    long = ps.LongSeries.of_arrays(*mapped)
    assert [len(part) for part in long.chunks(60)] == [60, 60, 60, 20]
    assert [len(part) for part in long.chunks(199)] == [200]
    assert np.array_equal(np.concatenate([part.y for part in long.chunks(7)]), long.part(0, 200).y)


def test_pieces_are_spread_over_the_series(mapped):
    long = ps.LongSeries.of_arrays(*mapped)
    assert [(begin, len(piece)) for begin, piece in long.spread(3, 20)] == [(0, 20), (90, 20), (180, 20)]
    assert [(begin, len(piece)) for begin, piece in long.spread(20, 20)] == [(0, 200)]


def test_a_pool_never_shows_what_is_held_out_and_is_the_same_every_time(mapped):
    long = ps.LongSeries.of_arrays(*mapped)
    scaling = DataScaling.identity(2, 1, regular=False)
    pool = Pool(long, scaling, ((50, 60), (100, 101)), 400.0, 16, 30, seed=3)
    batch, again, other = pool.drawn(0), pool.drawn(0), pool.drawn(25)
    assert np.array_equal(batch.record.y, again.record.y, equal_nan=True)
    assert not np.array_equal(batch.record.y, other.record.y, equal_nan=True)
    assert float(batch.observed) == 400.0
    hidden = np.asarray(long.part(50, 60).y)
    for each in (batch, other):
        assert not np.isin(np.asarray(each.record.y), hidden).any()


def test_what_is_wrong_is_said(tmp_path):
    with pytest.raises(TypeError, match="y must be an array that can be sliced"):
        ps.LongSeries.of_arrays([1.0, 2.0])
    with pytest.raises(ValueError, match="u must have 200 rows"):
        ps.LongSeries.of_arrays(Y, U[:10])
    with pytest.raises(ValueError, match="a part must lie within 200 time steps, got 150 to 250"):
        ps.LongSeries.of_arrays(Y).part(150, 250)
    with pytest.raises(FileNotFoundError, match=r"no file that ends in \.parquet"):
        ps.LongSeries.of_parquet(tmp_path)


def test_what_is_changed_in_memory_only_and_masks_are_seen(tmp_path):
    np.save(tmp_path / "y.npy", Y)
    private = np.load(tmp_path / "y.npy", mmap_mode="c")
    private[3] = np.nan
    assert np.isnan(ps.LongSeries.of_arrays(private).part(0, 5).y[3]).all()
    masked = np.ma.masked_array(Y, mask=(np.arange(200) == 3)[:, None] & np.ones((1, 2), bool))
    assert np.isnan(ps.LongSeries.of_arrays(masked).part(0, 5).y).sum() == 2


def test_months_are_months_in_every_chunk():
    months = np.arange("2020-01", "2030-01", dtype="datetime64[M]").astype("datetime64[ns]")
    long = ps.LongSeries.of_arrays(np.zeros(120), time=months)
    assert all(np.allclose(part.dt, 1.0) for part in long.chunks(2))


def test_readers_travel_to_other_processes_without_their_data(mapped, folder):
    for long in (ps.LongSeries.of_arrays(*mapped), ps.LongSeries.of_parquet(folder, controls="valve", time="t")):
        found = pickle.dumps(long)
        assert len(found) < 3000
        assert np.array_equal(pickle.loads(found).part(10, 20).y, long.part(10, 20).y)


def test_a_pool_leaves_out_what_cannot_be_learned_from(caplog):
    time = np.arange(2000.0)
    time[1000:] += 3
    long = ps.LongSeries.of_arrays(np.zeros((2000, 1)), time=time)
    pool = Pool(long, DataScaling.identity(1, 0, regular=True), (), 2000.0, 8, 100, seed=0)
    batches = [pool.drawn(n) for n in range(20)]
    assert all(int(batch.count) == 8 for batch in batches)
    assert "training leaves out the time steps" in caplog.text
