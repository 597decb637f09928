"""Programs are compiled once per bucket, few are kept, BLAS has one thread while they run, and a signal ends a call at once."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
import threadpoolctl
from oracles import array, close

import prodssm as ps
from prodssm import _compilation
from prodssm._compilation import bucket, compiled, is_traced, one_blas_thread, pad, scan
from prodssm.models.filtering import Recursion

# ---------------------------------------------------------------- buckets


def test_a_bucket_is_at_most_a_quarter_longer_and_there_are_four_per_power_of_two():
    found = [bucket(n) for n in range(1, 4097)]
    assert all(n <= to <= 1.25 * n for n, to in enumerate(found, start=1))
    assert found == sorted(found)
    assert len(set(found)) == 8 + 4 * 9
    assert [bucket(to) for to in found] == found


def test_padding_is_added_at_the_end_of_the_first_axis():
    assert pad(np.ones((2, 1)), 4, np.nan).tolist()[:2] == [[1.0], [1.0]]
    assert np.isnan(pad(np.ones((2, 1)), 4, np.nan)[2:]).all()


def small_model(weights="local", rank=None):
    rng = np.random.default_rng(0)
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.1, -0.2]), array([[1.0, 0.2], [0.2, 0.5]])),
        transition=ps.Network.mlp((3, 4, 2), key=jr.key(0), log_var=-3.0),
        emission=ps.Network.from_arrays([array(rng.normal(size=(3, 2)))], [array([0.1, 0.2, 0.3])]),
        process_noise=array([0.1, 0.2]),
        measurement_noise=array([0.1, 0.3, 0.2]),
        weights=weights,
        residual=True,
        rank=rank,
    )


def series_of(length):
    rng = np.random.default_rng(1)
    y, u = rng.normal(size=(40, 3)), rng.normal(size=(40, 1))
    y[3], y[5, 1] = np.nan, np.nan
    return ps.Series(array(y[:length]), u=array(u[:length])), array(u[length:])


@pytest.mark.float64
@pytest.mark.parametrize(("weights", "rank"), [("local", None), ("global", None), ("global", 4)])
@pytest.mark.parametrize("length", [9, 17])
def test_padding_changes_no_number(weights, rank, length):
    model, (series, u), steps = small_model(weights, rank), series_of(length), 9
    assert bucket(length) > length
    assert bucket(steps) > steps

    # Under a transformation nothing is padded.
    def plain(function):
        return jax.jit(lambda scale: function(jax.tree.map(lambda leaf: leaf * scale, model)))(array(1.0))

    for infer in (ps.filter_states, ps.smooth_states):
        found, wanted = infer(model, series), plain(lambda m, infer=infer: infer(m, series))
        for part in ("mean", "cov", "log_evidence"):
            assert np.allclose(getattr(found, part), getattr(wanted, part), rtol=1e-12, atol=1e-13)
        if weights == "global":
            assert np.allclose(found.weights.mean, wanted.weights.mean, rtol=1e-12, atol=1e-13)
            assert np.allclose(found.weights.var, wanted.weights.var, rtol=1e-12, atol=1e-13)
    found, wanted = ps.forecast(model, series, steps, u=u), plain(lambda m: ps.forecast(m, series, steps, u=u))
    for part in ("mean", "cov", "state_mean", "state_cov"):
        assert np.allclose(getattr(found, part), getattr(wanted, part), rtol=1e-12, atol=1e-13)


def test_simulations_of_other_lengths_share_their_beginning():
    model, u = small_model(), series_of(2)[1]
    short, long = (ps.simulate(model, steps, key=jr.key(1), u=u) for steps in (5, 9))
    for first, second in zip(short, long, strict=True):
        assert close(first, second[:5])


def test_an_unstable_system_does_not_overflow_in_its_padding():
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.0]), array([[1.0]])),
        transition=ps.Network.from_arrays([array([[1e3]])], [array([0.0])]),
        process_noise=array([0.1]),
        measurement_noise=array([0.1]),
        weights="point",
    )
    y = np.full((65, 1), 1.0)
    recursion = Recursion(model, ps.Moments())
    record = recursion.bucketed(ps.Series(array(y)).record)
    assert record.dt.shape == (80,)
    gradient = jax.jit(jax.grad(lambda m: Recursion(m, ps.Moments()).scan(record)[1][2].sum()))(model)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


# ---------------------------------------------------------------- programs


def test_a_function_is_traced_once_per_type_and_static_leaf():
    traced = []

    @compiled
    def double(tree, factor):
        traced.append(1)
        return {"twice": tree["x"] * factor, "name": "static"}

    assert double({"x": array([1.0, 2.0])}, 2)["twice"].tolist() == [2.0, 4.0]
    assert double({"x": array([5.0, 2.0])}, 2) == {"twice": pytest.approx([10.0, 4.0]), "name": "static"}
    assert len(traced) == 1
    double({"x": array([1.0])}, 2)
    double({"x": array([1.0])}, 3)
    assert len(traced) == 3
    assert jax.jit(lambda x: double({"x": x}, 2)["twice"])(array([3.0])).tolist() == [6.0]
    assert jax.grad(lambda x: double({"x": x}, 2)["twice"].sum())(array([3.0])).tolist() == [2.0]


def test_arrays_of_numpy_are_traced_in_the_precision_of_jax():
    traced = []

    @compiled
    def total(x):
        traced.append(x.dtype)
        return x.sum()

    assert total(np.ones(3, np.float64)) == 3.0
    assert total(np.zeros(3, np.float64)) == 0.0
    assert traced == [jnp.result_type(float)]


def test_the_least_recently_used_program_is_released():
    traced = []

    @compiled
    def identity(x):
        traced.append(x.size)
        return x + 1.0

    before = ps.keep_programs(2)
    try:
        for size in (1, 2, 1, 3, 1, 2):
            identity(np.ones(size))
        assert traced == [1, 2, 3, 2]
        assert len(_compilation._programs.kept) == 2
    finally:
        assert ps.keep_programs(before) == 2
    with pytest.raises(ValueError, match="most must be a positive integer, got 0"):
        ps.keep_programs(0)


def count_maps():
    return Path("/proc/self/maps").read_bytes().count(b"\n")


@pytest.mark.filterwarnings("ignore:The Gaussian forecast")
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="memory maps are counted on Linux")
def test_fits_of_ten_sizes_with_a_cache_of_two_programs_need_no_more_maps(standard_promotion):
    before = ps.keep_programs(2)
    try:
        counts = []
        for hidden in range(10, 20):
            ps.ProDSSM(emission="identity", hidden=(hidden,), recipe=ps.Recipe(iterations=1), progress=False).fit(
                np.sin(0.3 * np.arange(30))
            )
            counts.append(count_maps())
    finally:
        ps.keep_programs(before)
    assert max(counts[5:]) <= max(counts[:5]) + 100


# ---------------------------------------------------------------- BLAS


def blas_threads():
    return {pool["num_threads"] for pool in threadpoolctl.threadpool_info() if pool["user_api"] == "blas"}


def test_blas_has_one_thread_inside_and_as_many_as_before_outside():
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        many = blas_threads()
        with one_blas_thread():
            assert blas_threads() == {1}
            with one_blas_thread():
                assert blas_threads() == {1}
            assert blas_threads() == {1}
        assert blas_threads() == many


def test_threads_share_the_limit_and_the_last_one_restores_it():
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with one_blas_thread():
            entered.set()
            leave.wait(10)

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        many, thread = blas_threads(), threading.Thread(target=hold)
        with one_blas_thread():
            thread.start()
            entered.wait(10)
        assert blas_threads() == {1}
        leave.set()
        thread.join()
        assert blas_threads() == many


def test_the_first_program_of_a_process_finds_the_blas_that_jax_loads_only_now():
    program = (
        "import prodssm, sys, threadpoolctl\n"
        "assert 'scipy.linalg' not in sys.modules\n"
        "from prodssm._compilation import one_blas_thread\n"
        "with one_blas_thread():\n"
        "    import scipy.linalg.cython_blas\n"
        "    pools = threadpoolctl.threadpool_info()\n"
        "    print([pool['num_threads'] for pool in pools if pool['user_api'] == 'blas'])\n"
    )
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)) == {1}


# ---------------------------------------------------------------- interruption


def test_an_interruptible_call_answers_as_the_plain_one_and_passes_errors_on():
    @compiled
    def add(x, y):
        if y.size > 3:
            raise ValueError("too long")
        return x + y

    assert add.interruptible(np.ones(2), np.ones(2)).tolist() == add(np.ones(2), np.ones(2)).tolist()
    with pytest.raises(ValueError, match="too long"):
        add.interruptible(np.ones(4), np.ones(4))


SCRIPT = """
import os, sys, threading, time, warnings
import numpy as np
import prodssm as ps

after, number = float(sys.argv[1]), int(sys.argv[2])

def send():
    time.sleep(after)
    os.kill(os.getpid(), number)

y = np.random.default_rng(0).normal(size=(3000, 4))
model = ps.ProDSSM(emission="identity", hidden=(50, 50), recipe=ps.Recipe(iterations=10**9), progress=False)
threading.Thread(target=send, daemon=True).start()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    model.fit(y)
assert model.history_.interrupted
assert any("interrupted" in str(warning.message) for warning in said), said
sys.stdout.write("ended")
sys.stdout.flush()
os._exit(0)  # the abandoned thread is not waited for
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [6.0, 30.0], ids=["early", "late"])
def test_a_signal_ends_a_fit_and_is_told(after, number):
    program = [sys.executable, "-c", SCRIPT, str(after), str(int(number))]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "ended"), done.stderr


# ---------------------------------------------------------------- compilation on disk


def test_compiled_programs_are_kept_on_disk(tmp_path):
    program = (
        "import sys, jax, numpy as np, prodssm as ps\n"
        "hits = []\n"
        "jax.monitoring.register_event_listener(lambda name, **_: hits.append(name) if name.endswith('cache_hits') else None)\n"
        "assert ps.enable_compilation_cache(sys.argv[1]).is_dir()\n"
        "model = ps.StateSpaceModel(initial=ps.Gaussian(np.zeros(1), np.eye(1)), process_noise=[0.1],\n"
        "    measurement_noise=[0.1], transition=ps.Network.from_arrays([[[0.5]]], [[0.0]]))\n"
        "ps.smooth_states(model, np.zeros((20, 1)))\n"
        "sys.stdout.write(str(len(hits)))\n"
    )
    found = [
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert found[0] == "0"
    assert int(found[1]) > 0


def test_the_default_folder_is_in_the_cache_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    set_flags = {}
    monkeypatch.setattr(jax.config, "update", lambda name, value: set_flags.update({name: value}))
    assert ps.enable_compilation_cache() == tmp_path / "prodssm"
    assert set_flags["jax_compilation_cache_dir"] == str(tmp_path / "prodssm")


def test_tracers_are_found_in_trees():
    found = []
    jax.jit(lambda x: found.append(is_traced({"a": [x, 1]})))(1.0)
    assert found == [True]
    assert not is_traced({"a": [np.ones(1), jnp.ones(1), None, "b"]})


@pytest.mark.parametrize("length", [1, 3])
def test_a_scan_of_any_length_equals_a_loop(length):
    def body(carry, now):
        return carry + now["a"], (carry * now["a"], None)

    inputs = {"a": jnp.arange(1.0, length + 1.0)}
    last, (found, nothing) = scan(body, jnp.ones(()), inputs)
    expected, carry = [], 1.0
    for now in range(1, length + 1):
        expected.append(carry * now)
        carry += now
    assert nothing is None
    assert float(last) == carry
    assert np.asarray(found).tolist() == expected


# ---------------------------------------------------------------- one operation at a time

WIDE = """
import numpy as np, prodssm as ps
y = list(np.random.default_rng(0).normal(size=(16, 20, 50)))
shape = {"latent_dim": 6, "hidden": (30, 30), "emission": (30, 30), "residual": True, "n_estimators": 1}
recipe = ps.Recipe(iterations=50, objective="free_run", context=3)
ps.ProDSSM(**shape, method=ps.Moments(order=2), recipe=recipe, progress=False).fit(y)
"""


@pytest.mark.slow
def test_wide_data_do_not_wait_for_themselves_forever():
    """Compiled as usual, this program hangs on two cores (scripts/xla_deadlock.py)."""
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", WIDE], capture_output=True, text=True, timeout=600)
    assert found.returncode == 0, found.stderr
