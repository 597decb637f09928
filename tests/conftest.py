"""Every test runs in the precision of PRODSSM_TEST_BITS (64 or 32), with JAX at its strictest and shapes checked at run time.

PRODSSM_TEST_XLA=default compiles as users do. Otherwise XLA's backend optimisation is off and its older loop emitters are used,
which compile in a third of the time (docs/architecture.md, "Tests compile lightly"), and compiled programs are kept in .cache.
"""

import gc
import os
import sys
from pathlib import Path

from light_xla import LIGHT

BITS = os.environ.get("PRODSSM_TEST_BITS", "64")
if BITS not in ("32", "64"):
    raise ValueError(f"PRODSSM_TEST_BITS must be 32 or 64, got {BITS!r}")
if os.environ.get("PRODSSM_TEST_XLA") != "default":
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {LIGHT}".strip()

import jax  # noqa: E402
import jax.random as jr  # noqa: E402
import pytest  # noqa: E402
import threadpoolctl  # noqa: E402
from jaxtyping import install_import_hook  # noqa: E402

jax.config.update("jax_enable_x64", BITS == "64")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
if os.environ.get("PRODSSM_TEST_XLA") != "default":
    jax.config.update("jax_compilation_cache_dir", str(Path(__file__).parent.parent / ".cache" / "xla"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Annotated shapes and types are checked wherever the library is called from a test; not again in single precision.
if BITS == "64" and os.environ.get("PRODSSM_TEST_XLA") != "default":
    install_import_hook("prodssm", "beartype.beartype")

# The oracles multiply small matrices many times: a thread pool would only add waiting.
threadpoolctl.threadpool_limits(1, user_api="blas")

# Tracing creates many small objects that live long: collect garbage less often.
gc.set_threshold(200_000, 50, 100)

MOST_MAPS = 30_000

# Tests in every folder say `from oracles import ...`.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_collection_modifyitems(items):
    """Skip in a 32-bit run what is compared more finely than single precision can be."""
    if BITS == "64":
        return
    skip = pytest.mark.skip(reason="the oracle is finer than float32")
    for item in items:
        if item.get_closest_marker("float64"):
            item.add_marker(skip)


@pytest.fixture(scope="module", autouse=True)
def bounded_maps():
    """Release compiled programs before their memory maps reach the kernel's limit of 65,530, at which LLVM crashes."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


@pytest.fixture
def key():
    """Randomness that is the same in every run."""
    return jr.key(20230908)


@pytest.fixture
def standard_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield
