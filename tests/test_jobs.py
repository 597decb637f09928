"""Members and refits run wherever joblib is told to, with the same answers, and a lost worker costs its own job only."""

import logging
import os
import re
import signal
import time
from pathlib import Path

import joblib
import numpy as np
import pytest

import prodssm as ps
from prodssm._jobs import run_jobs
from prodssm._progress import Progress, shared, shared_progress

pytestmark = pytest.mark.usefixtures("standard_promotion")

Y = np.sin(0.3 * np.arange(60)) + 0.1 * np.random.default_rng(0).normal(size=60)
SMALL = {"latent_dim": 2, "hidden": (), "emission": "linear", "residual": True, "progress": False}


def square(x, place=None):
    """The square, noted beside this place; the first worker that finds no file in this place leaves one and dies."""
    if place is not None:
        with Path(f"{place}.calls").open("a") as file:
            file.write(f"{x}\n")
        try:
            Path(place).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return x * x


def model(members=2):
    return ps.ProDSSM(**SMALL, n_estimators=members, recipe=ps.Recipe(iterations=5))


def same_forecasts(first, second):
    ahead = [each.forecast(Y, steps=4) for each in (first, second)]
    return np.allclose(ahead[0].mean, ahead[1].mean, rtol=1e-9) and np.allclose(ahead[0].cov, ahead[1].cov, rtol=1e-9)


def test_jobs_come_in_order_in_one_process():
    assert list(run_jobs(square, [(n,) for n in range(4)])) == [(0, 0), (1, 1), (2, 4), (3, 9)]


def test_threads_answer_alike():
    with joblib.parallel_config("threading", n_jobs=2):
        assert sorted(run_jobs(square, [(n,) for n in range(4)])) == [(0, 0), (1, 1), (2, 4), (3, 9)]


@pytest.mark.slow
def test_a_lost_worker_costs_the_jobs_under_way_only(tmp_path):
    with joblib.parallel_config("loky", n_jobs=2):
        found = dict(run_jobs(square, [(n, tmp_path / "died") for n in range(40)]))
    assert found == {n: n * n for n in range(40)}
    calls = (tmp_path / "died.calls").read_text().splitlines()
    assert len(calls) <= 40 + 2 * 2  # those of both workers, and those that waited for them


KEPT = []


def grown(x):
    """The square, by a worker that comes to need as much more memory as compiled programs do."""
    KEPT.append(np.ones(45_000_000))
    time.sleep(1.1)  # loky looks once a second
    return x * x


@pytest.mark.slow
def test_workers_that_have_grown_are_replaced_without_a_word():
    """Warnings are errors here, also in the thread of loky that waits for answers."""
    with joblib.parallel_config("loky", n_jobs=2):
        assert dict(run_jobs(grown, [(n,) for n in range(8)])) == {n: n * n for n in range(8)}


@pytest.mark.slow
@pytest.mark.float64
def test_members_and_refits_in_other_processes_are_those_of_this_one():
    alone, backtest = model().fit(Y), ps.evaluation.backtest(model(1), Y, horizon=5, start=50, refit=True)
    reg = ps.DeepStochasticRegressor(hidden=(4,), steps=1, activation="relu", n_estimators=3, recipe=ps.Recipe(iterations=25))
    x, y = np.linspace(-1, 1, 40)[:, None], np.linspace(-1, 1, 40) ** 2
    wanted = reg.fit(x, y).predict(x), [weight for weight, _ in reg.trials_]
    with joblib.parallel_config("loky", n_jobs=2):
        assert same_forecasts(model().fit(Y), alone)
        again = ps.evaluation.backtest(model(1), Y, horizon=5, start=50, refit=True)
        assert np.allclose(reg.fit(x, y).predict(x), wanted[0], rtol=1e-9)
        assert [weight for weight, _ in reg.trials_] == wanted[1]
    assert np.allclose(again.mean, backtest.mean, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.filterwarnings("ignore")  # of the cluster, about its worker that is killed
def test_a_dask_cluster_that_loses_a_worker_answers_alike(monkeypatch):
    distributed = pytest.importorskip("distributed")
    alone = model(4).fit(Y)
    backtest = ps.evaluation.backtest(model(1), Y, horizon=5, start=45, refit=True)
    killed = []
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):

        class Killing(Progress):
            """Kills a worker when the first answer of a piece of work has come."""

            def update(self, count=1, note=""):
                if self.what not in killed:
                    killed.append(self.what)
                    os.kill(next(iter(cluster.workers.values())).pid, signal.SIGKILL)
                super().update(count, note)

        monkeypatch.setattr("prodssm.estimators.fitting.Progress", Killing)
        monkeypatch.setattr("prodssm.evaluation.backtesting.Progress", Killing)
        again = model(4).fit(Y)
        distributed.get_client().wait_for_workers(2)  # the cluster starts another one
        later = ps.evaluation.backtest(model(1), Y, horizon=5, start=45, refit=True)
    assert killed == ["members", "backtest"]
    assert same_forecasts(again, alone)
    assert np.allclose(later.mean, backtest.mean, rtol=1e-9)


def test_progress_is_logged_with_the_time_left(caplog, monkeypatch):
    monkeypatch.setattr("prodssm._progress.SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "prodssm"), Progress("work", 4, "piece", shown=False) as progress:
        time.sleep(0.01)
        progress.update(2, "half")
        progress.leave_out(1)
    assert "work: 2 of 4 piece, 00:00 left, half" in caplog.text
    assert "work: 2 of 3 piece in" in caplog.text


def test_fits_backtests_and_chunked_passes_log_the_time_left(caplog, monkeypatch):
    monkeypatch.setattr("prodssm._progress.SECONDS", 0.0)
    with caplog.at_level(logging.INFO, "prodssm"):
        fitted = model(1).fit(Y)
        ps.evaluation.backtest(fitted, Y, horizon=5, start=50)
        list(fitted.filter_in_chunks(ps.LongSeries.of_arrays(Y), 30))
    for what in ("training", "backtest", "filter"):
        assert re.search(rf"{what}: \d+ of \d+ \w+, \d\d:\d\d left", caplog.text)


def test_training_counts_on_a_shared_progress():
    with Progress("all", 50, shown=False) as progress, shared(progress):
        assert shared_progress() is progress
        model(1).fit(Y)
        assert progress.done == 5
    assert shared_progress() is None
