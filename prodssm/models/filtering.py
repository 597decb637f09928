"""The recursion over time, and the filter: condition on y[t], then move to t + 1 under u[t].

The recursion is written against `Belief`, `Method` and `Likelihood`; it knows none of their members. Convention: the initial
belief is about the state at the first observation.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm._validation import require_answer
from prodssm.beliefs.gaussian import Belief, Channel, Gaussian
from prodssm.beliefs.linalg import safe_sqrt
from prodssm.data.series import Record, Series, as_series, require_regular
from prodssm.methods.base import Method, find_method, require_weight_mode
from prodssm.models.state_space import StateSpaceModel


class Beliefs(eqx.Module):
    """Beliefs about the state at every time step.

    Attributes:
        mean: Means, time by state.
        cov: Covariances, time by state by state.
        log_evidence: Log density of each observation given those before it.
        weights: Belief about global weights after the last step; `None` for local and point weights.
    """

    mean: Float[Array, "time x"]
    cov: Float[Array, "time x x"]
    log_evidence: Float[Array, " time"]
    weights: Any = None

    @property
    def log_likelihood(self) -> Float[Array, ""]:
        """Log density of all observations."""
        return self.log_evidence.sum()

    @property
    def std(self) -> Float[Array, "time x"]:
        """Standard deviations, time by state."""
        return safe_sqrt(jnp.diagonal(self.cov, axis1=1, axis2=2))


class Recursion(eqx.Module):
    """A model together with the method that finds its channels."""

    model: StateSpaceModel
    method: Method

    def update(self, belief: Belief, y: Array, t: Array | int) -> tuple[Belief, Array]:
        """The filtered belief after observing y, and the log evidence of y."""
        channel, _ = self.model.emit(self.method.at(t, 0), belief.state)
        return self.model.likelihood.condition(belief, channel, y)

    def move(self, belief: Belief, u: Array | None, dt: Array, t: Array | int) -> tuple[Channel, Belief]:
        """The transition channel, and the predicted belief at the next time step."""
        return self.model.move(self.method.at(t, 1), belief, u, dt)

    def emit(self, belief: Belief, t: Array | int) -> Gaussian:
        """The belief about the emission's output, without measurement noise."""
        return self.model.emit(self.method.at(t, 0), belief.state)[1]

    def scan(self, record: Record, *, keep_channels: bool = False) -> tuple[Belief, tuple[Any, Any, Array]]:
        """Filter a record: the belief after the last move; filtered beliefs (and channels) and log evidence at every step."""

        @jax.checkpoint  # a gradient stores beliefs only and recomputes the rest of a step: less memory, and less time
        def body(belief, now):
            t, y, u, dt = now
            filtered, log_evidence = self.update(belief, y, t)
            channel, following = self.move(filtered, u, dt, t)
            kept: tuple[Any, Any] = (filtered, channel) if keep_channels else (filtered.state, None)
            return following, (*kept, log_evidence)

        steps = jnp.arange(record.dt.size), record.y, record.u, record.dt
        return jax.lax.scan(body, self.model.initial_belief(), steps)


def filter_states(model: StateSpaceModel, series: Any, method: str | Method = "moments") -> Beliefs:
    """Filtered beliefs: about the state at each time given the observations up to then.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.

    Returns:
        `.mean` (time, x), `.cov` (time, x, x), `.log_likelihood` (a scalar), `.log_evidence` (time).
    """
    series, found = checked_input(model, series, method)
    beliefs = _filter(Recursion(model, found), series.record)
    require_answer("the filter", beliefs.mean, beliefs.cov, beliefs.log_evidence)
    return beliefs


@eqx.filter_jit
def _filter(recursion: Recursion, record: Record) -> Beliefs:
    last, (filtered, _, log_evidence) = recursion.scan(record)
    return Beliefs(filtered.mean, filtered.cov, log_evidence, last.weights)


@eqx.filter_jit
def last_filtered(recursion: Recursion, record: Record) -> Belief:
    """The filtered belief at the last observation; compiled on its own, because every forecast starts from it."""
    belief = recursion.scan(record[:-1])[0]
    return recursion.update(belief, record.y[-1], record.dt.size - 1)[0]


def checked_input(model: StateSpaceModel, series: Any, method: str | Method) -> tuple[Series, Method]:
    """The series in the precision of the model, and the method, or an error that says what does not fit."""
    if not isinstance(model, StateSpaceModel):
        raise TypeError(f"model must be a StateSpaceModel, got {type(model).__name__}")
    found, series = find_method(method), as_series(series)
    require_weight_mode(model.weights, found)
    if series.y.shape[1] != model.y_size:
        raise ValueError(f"series.y must have {model.y_size} outputs, got {series.y.shape[1]}")
    given = 0 if series.u is None else series.u.shape[1]
    if given != model.u_size:
        raise ValueError(f"series.u must have {model.u_size} columns for this model's transition, got {given}")
    if not model.residual:
        require_regular(series)
    return jax.tree.map(lambda column: column.astype(model.dtype), series), found
