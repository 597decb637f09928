"""Rows of a regression problem, padded so that their number is traced, and random minibatches of them."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from prodssm._compilation import bucket
from prodssm.data.series import Values

SMALLEST_PADDED = 64


class Rows(eqx.Module):
    """Training rows, followed by validation rows, followed by padding.

    Both counts are traced and the arrays have one of few lengths, so that another number of rows triggers no recompilation.
    """

    x: Float[Values, "n x"]
    y: Float[Values, "n y"]
    training: Int[Values, ""]
    validation: Int[Values, ""]

    @classmethod
    def padded(cls, x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"], validation: int = 0) -> "Rows":
        """All rows, the last `validation` of them to score and not to train on."""
        room, dtype = padded_length(len(x)) - len(x), jnp.result_type(float)
        filled = (np.pad(part, ((0, room), (0, 0))).astype(dtype) for part in (x, y))
        return cls(*filled, *(np.asarray(count, np.int32) for count in (len(x) - validation, validation)))

    def draw(self, size: int, *, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        """A minibatch without replacement: row indices, and which of them are training rows rather than padding."""
        length = self.x.shape[0]
        members = jnp.arange(length, dtype=jnp.int32)
        if size < length:
            lots = jr.uniform(key, (length,), self.x.dtype)
            members = jax.lax.top_k(jnp.where(members < self.training, lots, -1.0), size)[1]
        return members, members < self.training


def padded_length(count: int) -> int:
    """The next bucket, from 64 on."""
    return max(SMALLEST_PADDED, bucket(count))
