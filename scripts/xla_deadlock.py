"""XLA:CPU waits for itself forever on two cores: batched triangular solves at the same time wait for each other's threads.

    python scripts/xla_deadlock.py           hangs on a machine with two cores (jaxlib 0.10.2), after a line or none
    python scripts/xla_deadlock.py --off     prints eight lines: one operation at a time

The gradient of free runs of 16 series with 50 outputs. Each of two `lapack_strsm_ffi` splits its batch between the threads of
the pool that both of them occupy, and waits. What this library compiles does one operation at a time.
"""

import sys
import time

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm._compilation import ONE_AT_A_TIME
from prodssm.data.batching import SeriesBatch
from prodssm.data.scaling import Standardiser
from prodssm.training.initialisation import Architecture, random_model
from prodssm.training.objectives import Objective, mean_log_score
from prodssm.training.series_task import trainable

SERIES, STEPS, OUTPUTS = 16, 20, 50

y = np.random.default_rng(0).normal(size=(SERIES, STEPS, OUTPUTS)).astype(np.float32)
likelihood = ps.GaussianLikelihood().for_data(Standardiser.identity(OUTPUTS))
architecture = Architecture(6, (30, 30), "relu", "local", residual=True, process_noise="constant", emission=(30, 30))
model = random_model(architecture, y.reshape(-1, OUTPUTS), 0, likelihood, key=jr.key(0))
learned, fixed = eqx.partition(model, trainable(model))
batch = SeriesBatch.stack([ps.Series(each) for each in y])


def loss(learned):
    """Minus the mean log density of free runs."""
    model, objective = eqx.combine(learned, fixed), Objective(score="free_run", context=3)
    return -mean_log_score(objective, model, batch.record, batch.scored, method=ps.Moments(order=2))


gradient = jax.jit(jax.grad(loss), compiler_options=ONE_AT_A_TIME if "--off" in sys.argv else None)
for n in range(8):
    begin = time.monotonic()
    jax.block_until_ready(gradient(learned))
    print(n, f"{time.monotonic() - begin:.2f} s", flush=True)
