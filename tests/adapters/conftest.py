"""What the checks of sktime and skpro need: promotion as users have it, and room for the programs of many shapes."""

import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location

import jax
import numpy as np
import pytest

import prodssm as ps


@pytest.fixture(autouse=True, scope="module")
def promotion():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.fixture(autouse=True, scope="module")
def programs():
    before = ps.keep_programs(100)
    yield
    ps.keep_programs(before)


@pytest.fixture(autouse=True)
def seed():
    """The suites draw their data from NumPy's global generator."""
    np.random.seed(0)


@pytest.fixture
def unwrapped(monkeypatch):
    """Load a module without the type checks of tests, whose wrappers hide the signatures that sktime and skpro look at."""

    def load(name):
        spec = spec_from_file_location(f"unwrapped_{name.rpartition('.')[2]}", find_spec(name).origin)
        module = module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)
        spec.loader.exec_module(module)
        return module

    return load
