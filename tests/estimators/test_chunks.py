"""What is found chunk by chunk is what is found at once; a fit to a series on disk is a fit to its parts."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_models import linear_prodssm, without_training

import prodssm as ps

Y = np.sin(0.3 * np.arange(120)) + 0.1 * np.random.default_rng(0).normal(size=120)
TIME = np.cumsum(np.random.default_rng(1).uniform(0.5, 1.5, 120))


@pytest.fixture(scope="module", params=["local", "global"])
def fitted(request):
    with without_training():
        return linear_prodssm(weights=request.param, n_estimators=2).fit(ps.Series(Y, time=TIME))


LONG = ps.LongSeries.of_arrays(Y, time=TIME)


@pytest.mark.float64
def test_filtered_chunks_are_the_filter_of_the_whole(fitted):
    whole, parts = fitted.filter(ps.Series(Y, time=TIME)), list(fitted.filter_in_chunks(LONG, size=35))
    assert [len(part.mean) for part in parts] == [35, 35, 35, 15]
    for name in ("mean", "cov", "log_evidence"):
        assert np.allclose(np.concatenate([getattr(part, name) for part in parts]), getattr(whole, name), rtol=1e-9, atol=1e-9)
    assert np.allclose(parts[1].outputs.mean, whole.outputs.mean[35:70], rtol=1e-9)
    assert np.array_equal(parts[1].time, TIME[35:70])


@pytest.mark.float64
def test_a_forecast_of_a_long_series_is_that_of_the_whole(fitted):
    wanted = fitted.forecast(ps.Series(Y, time=TIME), steps=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("prodssm.estimators.chunks.CHUNK", 50)
        found = fitted.forecast(LONG, steps=6)
    assert np.allclose(found.mean, wanted.mean, rtol=1e-9)
    assert np.allclose(found.cov, wanted.cov, rtol=1e-9)
    assert np.allclose(found.decompose().epistemic, wanted.decompose().epistemic, rtol=1e-7, atol=1e-12)
    assert np.array_equal(found.time, wanted.time)
    with pytest.raises(TypeError, match="must be in memory here"):
        fitted.filter(LONG)
    with pytest.raises(TypeError, match="data must be a LongSeries"):
        fitted.filter_in_chunks(Y)


def test_mixtures_go_on_from_chunk_to_chunk(fitted):
    if fitted.weights == "global":
        return
    mixture = fitted.with_method(ps.Moments(components=2, splits=3))
    whole = mixture.filter(ps.Series(Y, time=TIME))
    parts = list(mixture.filter_in_chunks(LONG, size=60))
    assert np.allclose(parts[1].mean, whole.mean[60:], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_fit_to_a_series_on_disk_learns_from_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setattr("prodssm.estimators.learning.PIECES", 4)
    monkeypatch.setattr("prodssm.estimators.learning.PIECE", 2000)
    rng, y = np.random.default_rng(0), np.zeros((60_000, 1))
    for t in range(2, len(y)):
        y[t] = 1.6 * y[t - 1] - 0.8 * y[t - 2] + 0.1 * rng.normal()
    np.save(tmp_path / "y.npy", y)
    long = ps.LongSeries.of_arrays(np.load(tmp_path / "y.npy", mmap_mode="r"))
    recipe = ps.Recipe(iterations=100)
    model = ps.ProDSSM(hidden=(), latent_dim=2, emission="linear", residual=False, recipe=recipe, progress=False).fit(long)
    errors = [y[n + 1, 0] - model.forecast(y[:n], steps=2).mean[1, 0] for n in range(1000, 1030)]
    assert np.sqrt(np.mean(np.square(errors))) < 0.3  # the best there is: 0.1 times the root of 1 + 1.6**2, 0.19
    with pytest.raises(ValueError, match="of a LongSeries validation_data must be other series"):
        model.set_params(recipe=ps.Recipe(iterations=2, validation=0.2)).fit(long)


@pytest.mark.slow
@pytest.mark.float64
def test_memory_of_chunked_passes_does_not_grow_with_the_length_of_the_series():
    script, peaks = Path(__file__).parent.parent.parent / "benchmarks" / "scale.py", []
    for steps in (10**6, 4 * 10**6):
        run = subprocess.run([sys.executable, script, "--chunked", str(steps), "1"], capture_output=True, text=True, check=True)
        peaks.append(json.loads(run.stdout.splitlines()[-1])["MiB"])
    assert peaks[1] < 1.1 * peaks[0]


def test_columns_are_read_in_the_order_of_fit(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = pyarrow.table({"a": Y, "b": np.cos(0.1 * np.arange(120))})
    parquet.write_table(table, tmp_path / "t.parquet")
    with without_training():
        model = linear_prodssm().fit(table)
    long = ps.LongSeries.of_parquet(tmp_path / "t.parquet", columns=["b", "a"])
    found = np.concatenate([part.log_evidence for part in model.filter_in_chunks(long, size=70)])
    assert np.allclose(found, model.filter(table).log_evidence, rtol=1e-4, atol=1e-4)


@pytest.mark.float64
def test_an_irregular_step_between_two_chunks_is_refused():
    time = np.arange(120.0)
    time[60:] += 5
    with without_training():
        model = linear_prodssm(residual=False).fit(ps.Series(Y, time=np.arange(120.0)))
    with pytest.raises(ValueError, match="residual=True"):
        list(model.filter_in_chunks(ps.LongSeries.of_arrays(Y, time=time), size=60))
