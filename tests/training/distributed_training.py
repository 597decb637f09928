"""Train a small model as one of several processes with several devices each; a script that tests start.

    python distributed_training.py COUNT NUMBER PORT DEVICES BITS ITERATIONS CHECKPOINT [slow]

The first process prints the objectives and a sum of the parameters. "slow" waits after each chunk, so that it can be killed in
the middle.
"""

import json
import os
import sys
import time
from pathlib import Path

COUNT, NUMBER, PORT, DEVICES, BITS, ITERATIONS = map(int, sys.argv[1:7])
CHECKPOINT = None if sys.argv[7] == "none" else sys.argv[7]
sys.path.insert(0, str(Path(__file__).parent.parent))

from light_xla import LIGHT  # noqa: E402

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES} {LIGHT}"

import jax  # noqa: E402

jax.config.update("jax_enable_x64", BITS == 64)
if COUNT > 1:
    jax.distributed.initialize(f"127.0.0.1:{PORT}", COUNT, NUMBER)

import jax.random as jr  # noqa: E402
import numpy as np  # noqa: E402

import prodssm as ps  # noqa: E402
from prodssm.data.batching import SeriesBatch  # noqa: E402
from prodssm.training import loop  # noqa: E402

if sys.argv[8:] == ["slow"]:
    original = loop._run_chunk

    def waiting(*args):
        found = original(*args)
        time.sleep(2.0)
        return found

    loop._run_chunk = waiting

rng = np.random.default_rng(0)
series = [ps.Series(np.cumsum(rng.normal(size=(20 + 3 * k, 2)), axis=0) / 5) for k in range(7)]
model = ps.StateSpaceModel(
    initial=ps.Gaussian(np.zeros(2), np.eye(2)),
    transition=ps.Network.mlp((2, 6, 2), key=jr.key(0)),
    process_noise=np.full(2, 0.01),
    measurement_noise=np.full(2, 0.1),
    residual=True,
)
recipe = ps.Recipe(iterations=ITERATIONS, learning_rate=3e-3, batch=5, window=15, horizons=(1, 3))
held_out = SeriesBatch.stack(series[:3]).in_free_run(5)
settings = {"key": jr.key(1), "checkpoint": CHECKPOINT, "progress": False, "validation": held_out}
found, history = ps.train(model, series[3:], recipe, **settings)
if NUMBER == 0:
    learned = sum(float(np.abs(np.asarray(leaf, float)).sum()) for leaf in jax.tree.leaves(found))
    answer = {
        "objective": history.objective,
        "validation": history.validation,
        "learned": learned,
        "devices": jax.device_count(),
    }
    sys.stdout.write(json.dumps(answer | {"stopped": str(history.stop_reason)}) + "\n")
