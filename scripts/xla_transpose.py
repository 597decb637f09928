"""XLA:CPU drops a transpose once no fusion pass hides it from the algebraic simplifier. Pure JAX, no prodssm.

XLA_FLAGS="--xla_cpu_use_fusion_emitters=false --xla_disable_hlo_passes=fusion" python scripts/xla_transpose.py
"""

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np


def flat(a):
    """The smallest case: compiled to the identity."""
    return a.T.reshape(-1)


def kept(a):
    """What a filter does: a scan that stores a transposed matrix of every step."""
    return jax.lax.scan(lambda c, x: (c, (x * a).T), 0.0, jnp.ones(2))[1]


a = np.arange(6, dtype=np.float32).reshape(2, 3)
print("jaxlib", jaxlib.__version__)
for f, want in ((flat, a.T.reshape(-1)), (kept, np.stack([a.T, a.T]))):
    got = np.asarray(jax.jit(f)(a))
    print(f.__name__, "right" if np.array_equal(got, want) else "WRONG", got.ravel()[:6], "wanted", want.ravel()[:6])
