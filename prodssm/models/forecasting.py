"""Multi-step forecasts: filter, then predict without updates."""

from collections.abc import Callable
from dataclasses import replace
from statistics import NormalDist
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm._compilation import bucket, compiled, is_traced, pad, scan
from prodssm._validation import as_values, require_answer, require_finite, require_probability, values_of
from prodssm.beliefs.gaussian import Belief, standard_deviations
from prodssm.beliefs.linalg import symmetrise
from prodssm.data.series import REGULAR_TOLERANCE, Record, Series, Values
from prodssm.methods.base import Method
from prodssm.models.components import Components, OutputComponents, predictive
from prodssm.models.filtering import Recursion, checked_input, last_filtered
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.state_space import StateSpaceModel, require_steps

Answer = TypeVar("Answer")


class About(eqx.Module):
    """What a forecast holds besides moments where it is not one Gaussian; with an axis for the steps.

    Attributes:
        mixture: The belief about the observations, if it is a mixture.
        output: The belief about the emission's outputs, if the likelihood is not Gaussian.
    """

    mixture: Any = None
    output: Any = None


def observed(likelihood: Likelihood, output: Any) -> tuple[Any, About]:
    """The belief about an observation, by its moments, given that about the emission's output, and what it is besides."""
    seen = output.each(likelihood.predict)
    return seen, About(seen.mixture, None if likelihood.gaussian else output)


class Forecast(eqx.Module):
    """Beliefs about future observations, and about the states behind them; `about` where they are not one Gaussian."""

    mean: Float[Values, "steps y"]
    cov: Float[Values, "steps y y"]
    state_mean: Float[Values, "steps x"]
    state_cov: Float[Values, "steps x x"]
    about: About = About()
    likelihood: Likelihood | None = None

    @property
    def std(self) -> Float[Values, "steps y"]:
        """Standard deviations, step by output."""
        return standard_deviations(self.cov)

    @property
    def components(self) -> Components | OutputComponents | None:
        """The predictive distribution where it is not one Gaussian, else None."""
        return None if self.likelihood is None else predictive(self.about, self.likelihood)

    def interval(self, probability: float = 0.95) -> tuple[Float[Values, "steps y"], Float[Values, "steps y"]]:
        """Lower and upper ends of central intervals, output by output."""
        require_probability(probability)
        if (components := self.components) is not None:
            low, high = (components.quantile(each) for each in ((1 - probability) / 2, (1 + probability) / 2))
            return low.astype(self.mean.dtype), high.astype(self.mean.dtype)
        width = NormalDist().inv_cdf(0.5 + float(probability) / 2) * self.std
        return self.mean - width, self.mean + width


def forecast(
    model: StateSpaceModel, series: Any, steps: int, method: str | Method = "moments", *, u: Any = None, dt: Any = None
) -> Forecast:
    """Beliefs about the observations that follow a series.

    Args:
        model: The model.
        series: The past: a `Series`, or an array (time, y).
        steps: Number of observations ahead.
        method: How channels are found, a name or a `Method`.
        u: Future controls, (steps, u); `u[k]` acts after the k-th forecast, and on it with direct feedthrough. Without that the
            last row is not used and may be left out.
        dt: Future time steps, (steps,); `dt[k]` leads to the k-th forecast. The last one of the series if not given.

    Returns:
        `.mean` (steps, y), `.cov` (steps, y, y), `.interval(0.95)`, and the states behind them.

    Example:
        >>> forecast(ssm, y, steps=5).mean.shape
        (5, 1)
    """
    series, found = checked_input(model, series, method)
    return forecast_with(Recursion(model, found), series, steps, u, dt)


def forecast_with(recursion: Recursion, series: Series, steps: int, u: Any, dt: Any) -> Forecast:
    """The same with a recursion that may have begun before the series."""
    ahead = future_inputs(recursion.model, series, steps, u, dt)
    answer = forecast_from(_forecast, recursion, series.record, ahead)
    require_finite_steps(answer)
    return replace(answer, likelihood=recursion.model.likelihood)


def one_step_ahead(model: StateSpaceModel, series: Any, method: str | Method = "moments") -> Forecast:
    """Beliefs about each observation of a series given those before it; the first one is that of the initial belief.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.

    Returns:
        `.mean` (time, y), `.cov` (time, y, y), and the predicted states behind them.
    """
    series, found = checked_input(model, series, method)
    recursion = Recursion(model, found)
    answer = _one_step_ahead(recursion, recursion.bucketed(series.record))
    if is_traced(answer):
        return answer
    answer = jax.tree.map(lambda part: np.asarray(part)[: len(series)], answer)
    require_answer("the filter", answer.mean, answer.cov)
    return answer


@compiled
def _one_step_ahead(recursion: Recursion, record: Record) -> Forecast:
    def body(belief, now):
        t, y, u, dt = now
        seen, about = observed(recursion.model.likelihood, recursion.emit(belief, u, t))
        following = recursion.move(recursion.update(belief, y, u, t)[0], u, dt, t)[1]
        return following, (seen.mean, symmetrise(seen.cov), belief.mean, symmetrise(belief.cov), about)

    steps = jnp.arange(record.dt.size, dtype=jnp.int32), record.y, record.u, record.dt
    return Forecast(*scan(body, recursion.initial_belief(), steps)[1])


class Moves(eqx.Module):
    """The known inputs of consecutive moves.

    Attributes:
        u: The control during each move; None without controls.
        seen_u: The control at the observation after each move; None without direct feedthrough.
        dt: The time step of each move.
    """

    u: Float[Values, "steps u"] | None
    seen_u: Float[Values, "steps u"] | None
    dt: Float[Values, " steps"]

    @classmethod
    def between(cls, model: StateSpaceModel, u: Float[Values, "n u"] | None, dt: Float[Values, " steps"]) -> "Moves":
        """The moves between observations at which these are the controls; the last one matters for feedthrough only."""
        if u is None:
            return cls(None, None, dt)
        return cls(u[: dt.shape[0]], u[1:] if model.feedthrough else None, dt)

    def padded(self, room: int) -> "Moves":
        """With so many moves."""
        u, seen = (None if part is None else pad(np.asarray(part), room) for part in (self.u, self.seen_u))
        return Moves(u, seen, pad(np.asarray(self.dt), room, 1.0))


def forecast_from(rule: Callable[..., Answer], recursion: Recursion, record: Record, ahead: Moves) -> Answer:
    """What a rule finds for the steps that follow a record, an answer whose arrays have the steps as their first axis.

    Args:
        rule: A compiled function of the recursion, the last filtered belief, the index of each move, and the moves.
        recursion: The model with its method.
        record: The past.
        ahead: The moves from the last observation on.
    """
    steps, last = ahead.dt.shape[0], record.dt.shape[0] - 1
    belief = last_filtered(recursion, record)
    if is_traced((belief, ahead)):
        return rule(recursion, belief, last + jnp.arange(steps), ahead)
    # Padded to a bucket, so that another horizon triggers no recompilation; what follows the last step is cut off.
    room = bucket(steps)
    times = last + np.arange(room, dtype=np.int32)
    found = rule(recursion, belief, times, ahead.padded(room))
    return jax.tree.map(lambda part: np.asarray(part)[:steps], found)


@compiled
def _forecast(recursion: Recursion, belief: Belief, times: Array, ahead: Moves) -> Forecast:
    def body(belief, now):
        t, move = now
        _, following = recursion.move(belief, move.u, move.dt, t)
        seen, about = observed(recursion.model.likelihood, recursion.emit(following, move.seen_u, t + 1))
        return following, (seen.mean, symmetrise(seen.cov), following.mean, symmetrise(following.cov), about)

    return Forecast(*scan(body, belief, (times, ahead))[1])


def future_inputs(model: StateSpaceModel, series: Series, steps: int, u: Any, dt: Any) -> Moves:
    """The moves from the last observation on, checked."""
    require_steps(model, steps)
    if model.u_size:
        wanted = steps if model.feedthrough else steps - 1
        if (u is None or not np.size(u)) and wanted:
            where = "at" if model.feedthrough else "between"
            raise ValueError(f"u must give the {wanted} controls that act {where} the forecasts, (steps, {model.u_size})")
        assert series.u is not None
        later = checked_controls(model, u, wanted).astype(series.u.dtype) if u is not None and np.size(u) else series.u[:0]
        u = _numpy_or_jax(series.u, later).concatenate([series.u[-1:], later])
    elif u is not None:
        raise ValueError("u must not be given: the model's transition has no control inputs")
    return Moves.between(model, u, checked_time_steps(model, dt, steps, default=series.dt[-1:]))


def checked_controls(model: StateSpaceModel, u: Any, count: int) -> Float[Values, "count u"]:
    """The first `count` controls, checked."""
    u = as_values("u", u, ndim=2)
    if u.shape[0] < count or u.shape[1] != model.u_size:
        why = ": the control at a forecast acts on it at once" if model.feedthrough and u.shape[0] == count - 1 else ""
        raise ValueError(f"u must have shape ({count} or more, {model.u_size}), got {u.shape}{why}")
    require_finite("u", u)
    return u[:count]


def checked_time_steps(model: StateSpaceModel, dt: Any, count: int, default: Float[Values, "1"]) -> Float[Values, " count"]:
    """The first `count` time steps, checked; the default one if none are given."""
    if dt is None:
        return _numpy_or_jax(default).repeat(default, count)
    steps = as_values("dt", dt, ndim=1).astype(default.dtype)[:count]
    if steps.size < count:
        raise ValueError(f"dt must have at least {count} entries, got {steps.size}")
    require_finite("dt", steps)
    values, wanted = values_of(steps), values_of(default[0])
    if values is not None and (values <= 0).any():
        raise ValueError(f"dt must be positive, got {values.min()}")
    if not (model.residual or values is None or wanted is None or np.allclose(values, wanted, rtol=REGULAR_TOLERANCE)):
        raise ValueError(f"dt must be {wanted} throughout for residual=False: only a residual transition scales with time")
    return steps


def _numpy_or_jax(*arrays: Any) -> Any:
    """NumPy, whose operations compile nothing, unless an array is traced."""
    return jnp if is_traced(arrays) else np


def require_finite_steps(found: Forecast) -> None:
    """Raise if the forecast overflows, with the first step at which it does."""
    mean, cov = values_of(found.mean), values_of(found.cov)
    if mean is None or cov is None:
        return
    finite = np.isfinite(mean).all(axis=1) & np.isfinite(cov).all(axis=(1, 2))
    if not finite.all():
        raise FloatingPointError(
            f"the forecast overflows at step {int(np.argmin(finite)) + 1}: the system is unstable; "
            "forecast fewer steps, or train with longer horizons such as Recipe(horizons=(1, 5, 20))"
        )
