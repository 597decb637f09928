"""The examples in docstrings run as written.

They may use the small objects of `shared` below, so that no example needs more than a few lines and a second: a network `net`
that is |x|, a `belief` N(0, 1), a state-space model `ssm`, a record `y`, a fitted `model`, its forecast `ahead`, rows `X` and
`targets`, and a fitted regressor `reg`.
"""

import doctest
import importlib
import pkgutil
from copy import copy
from functools import cache
from urllib.error import URLError

import jax
import jax.numpy as jnp
import jax.random as jr
import matplotlib.pyplot as plt
import numpy as np
import pytest

import prodssm as ps
from prodssm.datasets import locate

plt.switch_backend("agg")

MODULES = sorted(found.name for found in pkgutil.walk_packages(ps.__path__, "prodssm."))
LOADERS = [name for name in MODULES if name.startswith("prodssm.datasets.") and hasattr(importlib.import_module(name), "load")]
NEEDS = {"prodssm.adapters.darts": "darts"}  # libraries that the tests do without
KEPT = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs", "jax_persistent_cache_min_entry_size_bytes")


@cache
def shared():
    """What examples may use without making it."""
    net = ps.Network.from_arrays(weights=[[[1.0], [-1.0]], [[1.0, 1.0]]], biases=[[0.0, 0.0], [0.0]], activation="relu")
    belief = ps.Gaussian([0.0], [[1.0]])
    y = np.sin(0.3 * np.arange(60))[:, None]
    model = ps.ProDSSM(emission="identity", hidden=(), weights="point", recipe=ps.Recipe(iterations=5), progress=False)
    model.fit(y)
    X, recipe = np.linspace(-1, 1, 20)[:, None], ps.Recipe(iterations=5, prior_weight=0.1)
    reg = ps.DeepStochasticRegressor(hidden=(), steps=1, n_estimators=1, recipe=recipe).fit(X, 3 * X[:, 0])
    return {
        "ps": ps,
        "np": np,
        "jnp": jnp,
        "jr": jr,
        "net": net,
        "belief": belief,
        "ssm": ps.StateSpaceModel(initial=belief, transition=net, process_noise=[0.1], measurement_noise=[0.1]),
        "y": y,
        "model": model,
        "ahead": model.forecast(y, steps=3),
        "X": X,
        "targets": 3 * X[:, 0],
        "reg": reg,
    }


@pytest.fixture(autouse=True)
def as_a_user_has_it(monkeypatch, tmp_path):
    """In an empty folder, offline, and without the strict promotion of our tests, which is not for the optimiser."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def refuse(url, **_):
        raise URLError("tests do not use the network")

    monkeypatch.setattr(locate, "urlopen", refuse)
    before = {name: getattr(jax.config, name) for name in KEPT}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
    for name, value in before.items():
        jax.config.update(name, value)
    plt.close("all")


def examples_in(name):
    """The examples of a module, each with shared objects of its own: an example may change them."""
    module = importlib.import_module(name)
    for test in doctest.DocTestFinder(exclude_empty=True).find(module):
        if test.examples:
            taken = {each: copy(value) if each in ("model", "reg") else value for each, value in shared().items()}
            test.globs = taken | test.globs  # a module's own names come first
            yield test


def failures(tests):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    return [test.name for test in tests if runner.run(test).failed]


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    assert not failures(test for test in examples_in(name) if test.name not in [f"{loader}.load" for loader in LOADERS])


@pytest.mark.parametrize("name", LOADERS)
def test_examples_of_loaders_where_the_data_are(name):
    try:
        importlib.import_module(name).load(*{"sysid": ["tanks"], "uci": ["energy"]}.get(name.split(".")[-1], []))
    except FileNotFoundError as error:
        pytest.skip(f"needs data: {error}")
    assert not failures(test for test in examples_in(name) if test.name == f"{name}.load")
