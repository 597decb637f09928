"""One-step predictions of every observation of a series, from which residuals are measured."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from prodssm._compilation import compiled, scan
from prodssm._validation import require_answer
from prodssm.beliefs.linalg import symmetrise
from prodssm.data.series import Record
from prodssm.methods.base import Method
from prodssm.models.filtering import Outputs, Recursion, checked_input
from prodssm.models.state_space import StateSpaceModel


def predict_observations(model: StateSpaceModel, series: Any, method: str | Method = "moments") -> Outputs:
    """Each observation as predicted from those before it, measurement noise included.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.

    Returns:
        `.mean` (time, y) and `.cov` (time, y, y); the first is that of the initial belief.
    """
    series, found = checked_input(model, series, method)
    recursion = Recursion(model, found)
    mean, cov = (np.asarray(part)[: len(series)] for part in _predicted(recursion, recursion.bucketed(series.record)))
    require_answer("the filter", mean, cov)
    return Outputs(mean, cov)


@compiled
def _predicted(recursion: Recursion, record: Record):
    def body(belief, now):
        t, y, u, dt = now
        seen = recursion.model.likelihood.predict(recursion.emit(belief, u, t))
        filtered, _ = recursion.update(belief, y, u, t)
        _, following = recursion.move(filtered, u, dt, t)
        return following, (seen.mean, symmetrise(seen.cov))

    steps = jnp.arange(record.dt.size, dtype=jnp.int32), record.y, record.u, record.dt
    return scan(body, recursion.model.initial_belief(), steps)[1]
