"""Train a small problem with a checkpoint, as a process that others kill; and compare what is left with an undisturbed run.

    python killed_training.py CHECKPOINT [ANSWER]

writes every bit that was learned to ANSWER, a .npz file.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from light_xla import LIGHT  # noqa: E402

os.environ["XLA_FLAGS"] = LIGHT

import jax  # noqa: E402

jax.config.update("jax_compilation_cache_dir", str(FOLDER.parent.parent / ".cache" / "xla"))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

import numpy as np  # noqa: E402
from conftest import make_problem  # noqa: E402

from prodssm._storage import flatten  # noqa: E402

problem = make_problem()
found, history = problem.train(replace(problem.recipe, iterations=4000, batch=2), checkpoint=sys.argv[1])
if len(sys.argv) > 2:
    np.savez(sys.argv[2], objective=history.objective, **flatten(found))
