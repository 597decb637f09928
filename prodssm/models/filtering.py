"""The recursion over time, and the filter: condition on y[t], then move to t + 1 under u[t].

The recursion is written against `Belief`, `Method` and `Likelihood`; it knows none of their members. Convention: the initial
belief is about the state at the first observation.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist
from types import SimpleNamespace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from prodssm._compilation import compiled, is_traced, scan
from prodssm._validation import require_answer, require_probability
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, standard_deviations
from prodssm.data.layout import Layout
from prodssm.data.series import Record, Series, Values, as_series, require_regular
from prodssm.data.stamps import Stamps
from prodssm.data.tables import Table, build, central_interval, table_of
from prodssm.methods.base import Method, find_method, require_weight_mode
from prodssm.models.state_space import StateSpaceModel, require_room


class Origin(NamedTuple):
    """What results know of the data that they are about.

    Attributes:
        stamps: Time stamps.
        layout: The columns of the data frame.
        label: The group of the series.
        states: Names of the states.
        outputs: Names of the outputs.
    """

    stamps: Stamps | None = None
    layout: Layout | None = None
    label: Any = None
    states: tuple[str, ...] | None = None
    outputs: tuple[str, ...] | None = None

    def table(self, found: Any, names: Sequence[str] | None, probability: float) -> Table:
        """The columns of beliefs over time."""
        lower, upper = central_interval(found, probability)
        about = SimpleNamespace(mean=found.mean, std=found.std, stamps=self.stamps, layout=self.layout)
        about.interval = lambda _: (lower, upper)
        return table_of(about, names=names, probability=probability, first=0)

    def to_frame(self, found: Any, names: Sequence[str] | None, backend: str | None, probability: float) -> Any:
        """Beliefs over time as a data frame."""
        return build(self.table(found, names, probability), backend, self.layout)


class Outputs(eqx.Module):
    """Beliefs about the observations without measurement noise, at every time step.

    That is E[y | g] for the emission's output g(x, u): g itself unless a likelihood says otherwise, as for a rate of counts.

    Attributes:
        mean: Means, time by output.
        cov: Covariances, time by output by output.
        about: What quantiles follow from, if the likelihood is not Gaussian: a `Group`.

    Example:
        >>> found = model.smooth(y).outputs
        >>> lower, upper = found.interval(0.9)
        >>> found.mean.shape, bool(np.allclose(found.quantile(0.05), lower)), len(found.to_frame())
        ((60, 1), True, 60)
    """

    mean: Float[Values, "time y"]
    cov: Float[Values, "time y y"]
    origin: Origin = eqx.field(static=True, default=Origin(), repr=False)
    about: Any = eqx.field(static=True, default=None, repr=False)

    @property
    def std(self) -> Float[Values, "time y"]:
        """Standard deviations, time by output."""
        return standard_deviations(self.cov)

    def quantile(self, probability: float) -> Float[Values, "time y"]:
        """Marginal quantiles, output by output."""
        require_probability(probability)
        if self.about is not None:
            return self.about.expected_quantile(float(probability)).astype(self.mean.dtype)
        return self.mean + NormalDist().inv_cdf(float(probability)) * self.std

    def interval(self, probability: float = 0.95) -> tuple[Float[Values, "time y"], Float[Values, "time y"]]:
        """Lower and upper ends of central intervals, output by output."""
        require_probability(probability)
        return self.quantile((1 - probability) / 2), self.quantile((1 + probability) / 2)

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """A data frame with a row per time step and `_mean`, `_std`, `_lower` and `_upper` of each output."""
        return self.origin.to_frame(self, self.origin.outputs, backend, probability)


class Beliefs(eqx.Module):
    """Beliefs about the state at every time step.

    Attributes:
        mean: Means, time by state.
        cov: Covariances, time by state by state.
        log_evidence: Log density of each observation given those before it.
        weights: Belief about global weights after the last step; `None` for local and point weights.
        mixture: The components of a mixture, a `GaussianMixture` with a time axis; `None` for one Gaussian.

    Example:
        >>> found = model.filter(y)
        >>> found.mean.shape, found.log_evidence.shape, found.first_steps(10).mean.shape, len(found.to_frame())
        ((60, 1), (60,), (10, 1), 60)
    """

    mean: Float[Values, "time x"]
    cov: Float[Values, "time x x"]
    log_evidence: Float[Values, " time"]
    weights: Any = None
    _outputs: Callable[[], Outputs] | None = eqx.field(static=True, default=None, repr=False)
    origin: Origin = eqx.field(static=True, default=Origin(), repr=False)
    mixture: Any = None

    @property
    def outputs(self) -> Outputs:
        """Beliefs about what sensors would show without noise, also where nothing was observed; of an estimator's answer."""
        if self._outputs is None:
            raise ValueError("outputs are known to what ProDSSM.filter and ProDSSM.smooth return")
        return replace(self._outputs(), origin=self.origin)

    @property
    def layout(self) -> Layout | None:
        """The columns of the data frame, if the data were one."""
        return self.origin.layout

    @property
    def time(self) -> np.ndarray:
        """Time stamps of the data (in UTC, if they have a time zone), or steps from 0."""
        stamps = self.origin.stamps
        return np.arange(len(self.mean)) if stamps is None else stamps.values

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """A data frame with a row per time step and `_mean`, `_std`, `_lower` and `_upper` of each state.

        `.outputs.to_frame()` is that of the outputs.
        """
        return self.origin.to_frame(self, self.origin.states, backend, probability)

    def _table(self, probability: float) -> Table:
        return self.origin.table(self, self.origin.states, probability)

    @property
    def log_likelihood(self) -> Float[Values | np.floating, ""]:
        """Log density of all observations."""
        return self.log_evidence.sum()

    @property
    def std(self) -> Float[Values, "time x"]:
        """Standard deviations, time by state."""
        return standard_deviations(self.cov)

    def first_steps(self, count: int) -> "Beliefs":
        """The beliefs without padding, as arrays of NumPy."""
        parts = self.mean, self.cov, self.log_evidence, self.mixture
        mean, cov, log_evidence, mixture = jax.tree.map(lambda part: np.asarray(part)[:count], parts)
        return Beliefs(mean, cov, log_evidence, self.weights, mixture=mixture)


class Recursion(eqx.Module):
    """A model together with the method that finds its channels.

    Attributes:
        model: The model.
        method: The method.
        start: The belief to start with, in the middle of a series; None for the model's initial belief.
        begun: Time steps before.
    """

    model: StateSpaceModel
    method: Method
    start: Belief | None = None
    begun: Any = 0

    def update(self, belief: Belief, y: Array, u: Array | None, t: Array | int) -> tuple[Belief, Array]:
        """The filtered belief after observing y under the control u, and the log evidence of y."""
        method = self.method.at(t + self.begun, 0)

        def rule(component: Belief) -> tuple[Belief, Array]:
            channel, _ = self.model.emit(method, component.state, u)
            return self.model.likelihood.condition(component, channel, y)

        return belief.updated(rule)

    def move(self, belief: Belief, u: Array | None, dt: Array, t: Array | int) -> tuple[Channel, Belief]:
        """The transition channel, and the predicted belief at the next time step."""
        method = self.method.at(t + self.begun, 1)
        return belief.moved(lambda component: self.model.move(method, component, u, dt))

    def emit(self, belief: Belief, u: Array | None, t: Array | int) -> Any:
        """The belief about the emission's output under the control u, without measurement noise."""
        method = self.method.at(t + self.begun, 0)
        return belief.each(lambda component: self.model.emit(method, component.state, u)[1])

    def observation(self, belief: Belief, u: Array | None, t: Array | int) -> Any:
        """The belief about the observation under the control u, by its moments."""
        return self.emit(belief, u, t).each(self.model.likelihood.predict)

    def log_prob(self, belief: Belief, u: Array | None, t: Array | int, y: Array) -> Float[Array, ""]:
        """Log predictive density of an observation."""
        return self.emit(belief, u, t).log_mean(lambda output: self.model.likelihood.log_prob(output, y))

    def initial_belief(self) -> Belief:
        """The belief before the first observation, in the form in which the method carries it."""
        return self.start if self.start is not None else self.method.start(self.model.initial_belief())

    def scan(
        self,
        record: Record,
        *,
        moves: Values | None = None,
        keep_channels: bool = False,
        given: Bool[Values, " time"] | None = None,
    ) -> tuple[Belief, tuple[Any, Any, Array]]:
        """Filter a record: the belief after the last move; filtered beliefs (and channels) and log evidence at every step.

        Args:
            record: The record.
            moves: Number of moves after which the belief stays as it is; by default the length of the record before padding.
            keep_channels: Whether to return the transition's channels, and whole beliefs rather than those about the state.
            given: Which observations are conditioned on; the others are predicted only, as in a free run. All if not given.
        """
        moves = record.length if moves is None else moves

        @jax.checkpoint  # a gradient stores beliefs only and recomputes the rest of a step: less memory, and less time
        def body(belief, now):
            t, y, u, dt, known = now
            filtered, log_evidence = self.update(belief, y if known is None else jnp.where(known, y, jnp.nan), u, t)
            if known is not None:
                log_evidence = self.log_prob(belief, u, t, y)
            channel, following = self.move(filtered, u, dt, t)
            if moves is not None:
                following = select(t < moves, following, belief)
            kept: tuple[Any, Any] = (filtered, channel) if keep_channels else (filtered.state, None)
            return following, (*kept, log_evidence)

        steps = jnp.arange(record.dt.size, dtype=jnp.int32), record.y, record.u, record.dt, given
        return scan(body, self.initial_belief(), steps)

    def bucketed(self, record: Record) -> Record:
        """The record padded to a bucket, so that another length triggers no recompilation; as it is under a transformation."""
        return record if is_traced((self, record)) else record.padded()


def filter_states(model: StateSpaceModel, series: Any, method: str | Method = "moments") -> Beliefs:
    """Filtered beliefs: about the state at each time given the observations up to then.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.

    Returns:
        `.mean` (time, x), `.cov` (time, x, x), `.log_likelihood` (a scalar), `.log_evidence` (time).

    Example:
        >>> found = filter_states(ssm, y)
        >>> found.mean.shape, found.cov.shape, found.log_likelihood.shape
        ((60, 1), (60, 1, 1), ())
    """
    series, found = checked_input(model, series, method)
    recursion = Recursion(model, found)
    return trimmed("the filter", _filter(recursion, recursion.bucketed(series.record)), len(series))


def trimmed(what: str, found: Beliefs, count: int) -> Beliefs:
    """Beliefs without padding, or an error if they overflowed."""
    if is_traced(found):
        return found
    found = found.first_steps(count)
    require_answer(what, found.mean, found.cov, found.log_evidence)
    return found


def filter_chunk(recursion: Recursion, series: Series) -> tuple[Recursion, Beliefs]:
    """Filtered beliefs of a chunk of a long series, and the recursion that goes on behind it."""
    last, found = _filter_on(recursion, recursion.bucketed(series.record))
    begun = np.asarray(recursion.begun + len(series), np.int32)
    return replace(recursion, start=last, begun=begun), trimmed("the filter", found, len(series))


@compiled
def _filter(recursion: Recursion, record: Record) -> Beliefs:
    return _filter_with_last(recursion, record)[1]


@compiled
def _filter_on(recursion: Recursion, record: Record) -> tuple[Belief, Beliefs]:
    return _filter_with_last(recursion, record)


def _filter_with_last(recursion: Recursion, record: Record) -> tuple[Belief, Beliefs]:
    last, (filtered, _, log_evidence) = recursion.scan(record)
    mean, cov = moments(filtered)
    return last, Beliefs(mean, cov, log_evidence, last.weights, mixture=filtered.mixture)


def moments(beliefs: Any) -> tuple[Array, Array]:
    """Means and covariances of beliefs over time."""
    return jax.vmap(lambda belief: (belief.mean, belief.cov))(beliefs)


def last_filtered(recursion: Recursion, record: Record) -> Belief:
    """The filtered belief at the last observation; compiled on its own, because every forecast starts from it."""
    return _last_filtered(recursion, recursion.bucketed(record))


@compiled
def _last_filtered(recursion: Recursion, record: Record) -> Belief:
    last = record.last
    belief = recursion.scan(record, moves=last)[0]
    u = None if record.u is None else jnp.asarray(record.u)[last]
    return recursion.update(belief, jnp.asarray(record.y)[last], u, last)[0]


def select(condition: Array, then: Any, otherwise: Any) -> Any:
    """One of two trees of arrays."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), then, otherwise)


def checked_input(model: StateSpaceModel, series: Any, method: str | Method) -> tuple[Series, Method]:
    """The series in the precision of the model, and the method, or an error that says what does not fit."""
    if not isinstance(model, StateSpaceModel):
        raise TypeError(f"model must be a StateSpaceModel, got {type(model).__name__}")
    found, series = find_method(method), as_series(series)
    require_weight_mode(model.weights, found)
    require_room(found, model.x_size, len(series), model.dtype.itemsize)
    if series.y.shape[1] != model.y_size:
        raise ValueError(f"series.y must have {model.y_size} outputs, got {series.y.shape[1]}")
    given = 0 if series.u is None else series.u.shape[1]
    if given != model.u_size:
        raise ValueError(f"series.u must have {model.u_size} columns for this model's transition, got {given}")
    model.likelihood.require_data(series.y)
    if not model.residual:
        require_regular(series)
    return jax.tree.map(lambda column: column.astype(model.dtype, copy=False), series), found
