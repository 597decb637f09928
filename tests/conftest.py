"""Every test runs in the precision that PRODSSM_TEST_BITS asks for, with JAX at its strictest."""

import gc
import os
import sys
from pathlib import Path

import jax
import jax.random as jr
import pytest
import threadpoolctl

BITS = os.environ.get("PRODSSM_TEST_BITS", "64")
if BITS not in ("32", "64"):
    raise ValueError(f"PRODSSM_TEST_BITS must be 32 or 64, got {BITS!r}")

jax.config.update("jax_enable_x64", BITS == "64")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The oracles multiply small matrices many times: threads only wait for each other.
threadpoolctl.threadpool_limits(1, user_api="blas")

# Tracing makes many small objects that live long: do not look through them as often as usual.
gc.set_threshold(200_000, 50, 100)

# Tests in every folder say `from oracles import ...`.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    """Leave out of a 32-bit run what is compared more finely than single precision can be."""
    if BITS == "64":
        return
    skip = pytest.mark.skip(reason="the oracle is finer than float32")
    for item in items:
        if item.get_closest_marker("float64"):
            item.add_marker(skip)


@pytest.fixture
def key():
    """Randomness that is the same in every run."""
    return jr.key(20230908)
