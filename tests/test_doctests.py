"""The examples in docstrings run as written."""

import doctest
import importlib
import pkgutil

import jax
import pytest

import prodssm

MODULES = sorted(found.name for found in pkgutil.walk_packages(prodssm.__path__, "prodssm."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_of(name):
    module = importlib.import_module(name)
    # As a user has it; the strict promotion of our tests is not for the optimiser, which is not ours.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        failed = doctest.testmod(module, optionflags=doctest.ELLIPSIS).failed
    assert not failed
