"""Free runs: observations that follow a context, predicted without being conditioned on."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from prodssm._compilation import compiled
from prodssm.beliefs.linalg import symmetrise
from prodssm.data.series import Record, Values
from prodssm.models.filtering import Recursion


@compiled
def free_runs(
    recursion: Recursion, records: Record, given: Bool[Values, "batch time"]
) -> tuple[Float[Array, "batch time y"], Float[Array, "batch time y y"]]:
    """Means and covariances of all observations of several records, see `free_run`."""
    return jax.vmap(lambda record, known: free_run(recursion, record, known))(records, jnp.asarray(given))


def free_run(
    recursion: Recursion, record: Record, given: Bool[Array, " time"]
) -> tuple[Float[Array, "time y"], Float[Array, "time y y"]]:
    """Means and covariances of all observations of a record, of which some are conditioned on.

    Args:
        recursion: The model with its method.
        record: The record.
        given: Which observations are conditioned on. Answers are forecasts where they are not.
    """
    states = recursion.scan(record, given=given)[1][0]  # predicted ones where nothing is conditioned on

    def observe(state, u, t):
        seen = recursion.observation(state, u, t)
        return seen.mean, symmetrise(seen.cov)

    steps = jnp.arange(given.shape[0], dtype=jnp.int32)
    if record.u is None:
        return jax.vmap(lambda state, t: observe(state, None, t))(states, steps)
    return jax.vmap(observe)(states, jnp.asarray(record.u), steps)
