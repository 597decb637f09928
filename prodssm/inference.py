"""Filter, smooth, forecast, simulate: one recursion that knows time and Bayes' rule, no method and no kind of weights.

Convention: the initial belief is about the state at the first observation. At every step the model conditions on `y[t]`, then
moves to `t + 1` under the control `u[t]`.
"""

import os
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.checks import (
    as_array,
    require_answer,
    require_finite,
    require_integer,
    require_key,
    require_probability,
    values_of,
)
from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.linalg import safe_sqrt, symmetrise
from prodssm.methods import METHODS
from prodssm.methods.moments import twin_moments, twin_outputs
from prodssm.model import StateSpaceModel
from prodssm.network import Network
from prodssm.series import Frames, Series, as_series

Belief = Gaussian | JointGaussian

EVEN = 1e-3  # share of a time step by which steps may differ and still count as equal


class Beliefs(eqx.Module):
    """Beliefs about the state at every time step.

    Attributes:
        mean: Means, time by state.
        cov: Covariances, time by state by state.
        log_evidence: Log density of each observation given those before it.
        weights: Belief about the weights after the last step, if they are drawn once.
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


class Forecast(eqx.Module):
    """Beliefs about future observations, and about the states behind them."""

    mean: Float[Array, "steps y"]
    cov: Float[Array, "steps y y"]
    state_mean: Float[Array, "steps x"]
    state_cov: Float[Array, "steps x x"]

    @property
    def std(self) -> Float[Array, "steps y"]:
        """Standard deviations, step by channel."""
        return safe_sqrt(jnp.diagonal(self.cov, axis1=1, axis2=2))

    def interval(self, probability: float = 0.95) -> tuple[Float[Array, "steps y"], Float[Array, "steps y"]]:
        """Lower and upper ends of central intervals, channel by channel."""
        require_probability(probability)
        width = NormalDist().inv_cdf(0.5 + float(probability) / 2) * self.std
        return self.mean - width, self.mean + width


class Finder(eqx.Module):
    """A model together with the way to find its channels."""

    model: StateSpaceModel
    options: dict[str, Any]
    method: str = eqx.field(static=True)

    def chosen(self, t: Array | int, salt: int) -> dict[str, Any]:
        """Options of one call: a key of its own where there is randomness."""
        if "key" not in self.options:
            return self.options
        return self.options | {"key": jr.fold_in(jr.fold_in(self.options["key"], t), salt)}

    def emission(self, belief: Belief, t: Array | int) -> Channel:
        """The channel from state to observation."""
        return self.model.emission_channel(belief.state, method=self.method, **self.chosen(t, 0))

    def transition(self, belief: Belief, u: Array | None, dt: Array, t: Array | int) -> Channel:
        """The channel from state to next state."""
        return self.model.transition_channel(belief, u, dt, method=self.method, **self.chosen(t, 1))


def step(finder: Finder, belief: Belief, y: Array, u: Array | None, dt: Array, t: Array | int):
    """Condition on one observation, then move on: filtered belief, channel of the move, next belief, log evidence."""
    filtered, log_evidence = belief.condition(finder.emission(belief, t), y)
    channel = finder.transition(filtered, u, dt, t)
    return filtered, channel, filtered.advance(channel), log_evidence


def walk(finder: Finder, frames: Frames, *, keep_channels: bool = False) -> tuple[Any, tuple[Any, Any, Array]]:
    """The recursion over time: filtered beliefs (and channels), log evidence, and the belief after the last move."""

    @jax.checkpoint  # a gradient keeps beliefs alone and works the rest out again: less memory, and less time too
    def body(belief, now):
        t, y, u, dt = now
        filtered, channel, following, log_evidence = step(finder, belief, y, u, dt, t)
        kept: tuple[Any, Any] = (filtered, channel) if keep_channels else (filtered.state, None)
        return following, (*kept, log_evidence)

    return jax.lax.scan(body, finder.model.start(), (jnp.arange(frames.dt.size), frames.y, frames.u, frames.dt))


def filter_states(model: StateSpaceModel, series: Any, method: str = "moments", **options: Any) -> Beliefs:
    """Beliefs about the state given the observations up to each time.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found: "moments", "linearised", "unscented" or "sampled".
        **options: For the method, see `prodssm.channel`.

    Returns:
        `.mean` (time, x), `.cov` (time, x, x), `.log_likelihood` (a scalar), `.log_evidence` (time).
    """
    series = _check(model, series, method)
    found = _filter(Finder(model, options, method), series.frames)
    require_answer("the beliefs", found.mean, found.cov, found.log_evidence)
    return found


@eqx.filter_jit
def _filter(finder: Finder, frames: Frames) -> Beliefs:
    last, (beliefs, _, log_evidence) = walk(finder, frames)
    states: Gaussian = beliefs.state
    return Beliefs(states.mean, states.cov, log_evidence, getattr(last, "weights", None))


def smooth_states(model: StateSpaceModel, series: Any, method: str = "moments", **options: Any) -> Beliefs:
    """Beliefs about the state at each time given all observations, by a backward pass over the filter's channels.

    Args:
        model: The model.
        series: A `Series`, or an array (time, y).
        method: How channels are found.
        **options: For the method.

    Returns:
        As `filter_states`; weights that are drawn once are smoothed as well.
    """
    series = _check(model, series, method)
    require_memory(model, len(series))
    found = _smooth(Finder(model, options, method), series.frames)
    require_answer("the beliefs", found.mean, found.cov, found.log_evidence)
    return found


@eqx.filter_jit
def _smooth(finder: Finder, frames: Frames) -> Beliefs:
    _, (filtered, channels, log_evidence) = walk(finder, frames, keep_channels=True)
    last = jax.tree.map(lambda leaf: leaf[-1], filtered)

    def body(following, now):
        belief, channel = now
        smoothed = belief.smooth(channel, following)
        return smoothed, smoothed.state

    earlier = jax.tree.map(lambda leaf: leaf[:-1], (filtered, channels))
    first, states = jax.lax.scan(body, last, earlier, reverse=True)
    means = jnp.concatenate([states.mean, last.state.mean[None]])
    covs = jnp.concatenate([states.cov, last.state.cov[None]])
    return Beliefs(means, covs, log_evidence, getattr(first, "weights", None))


def forecast(
    model: StateSpaceModel, series: Any, steps: int, method: str = "moments", *, u: Any = None, dt: Any = None, **options: Any
) -> Forecast:
    """Beliefs about the observations that follow a series.

    Args:
        model: The model.
        series: What was seen: a `Series`, or an array (time, y).
        steps: How many observations ahead.
        method: How channels are found.
        u: Future controls, (steps, u); `u[k]` acts after the k-th forecast. The last row is not used and may be left out.
        dt: Future time steps, (steps,); `dt[k]` leads to the k-th forecast. The last one of the series if not given.
        **options: For the method.

    Returns:
        `.mean` (steps, y), `.cov` (steps, y, y), `.interval(0.95)`, and the states behind them.
    """
    series = _check(model, series, method)
    finder, ahead = Finder(model, options, method), future(model, series, steps, u, dt)
    found = _forecast(finder, latest(finder, series.frames), _times(series.frames, steps), *ahead)
    _require_finite_steps(found)
    return found


def _require_finite_steps(found: Forecast) -> None:
    """A forecast that stays in the range of numbers, or an error that says how far it does."""
    mean, cov = values_of(found.mean), values_of(found.cov)
    if mean is None or cov is None:
        return
    finite = np.isfinite(mean).all(axis=1) & np.isfinite(cov).all(axis=(1, 2))
    if not finite.all():
        raise FloatingPointError(
            f"the forecast left the range of numbers at step {int(np.argmin(finite)) + 1}: the system is unstable; "
            "forecast fewer steps, or train with longer horizons such as horizons=(1, 5, 20)"
        )


def future(model: StateSpaceModel, series: Series, steps: int, u: Any, dt: Any) -> tuple[Array | None, Array]:
    """Controls and time steps from the last observation on, checked."""
    require_integer("steps", steps, least=1)
    if model.u_size:
        if (u is None or not np.size(u)) and steps > 1:
            raise ValueError(f"u must give the {steps - 1} controls that act between the forecasts, (steps, {model.u_size})")
        assert series.u is not None
        u = _controls(model, u, steps - 1).astype(series.u.dtype) if u is not None and np.size(u) else series.u[:0]
        u = jnp.concatenate([series.u[-1:], u])
    elif u is not None:
        raise ValueError("u must not be given: the model's transition has no control inputs")
    return u, _time_steps(model, dt, steps, usual=series.dt[-1])


def _controls(model: StateSpaceModel, u: Any, count: int) -> Float[Array, "count u"]:
    """So many controls, checked."""
    u = as_array("u", u, ndim=2)
    if u.shape[0] < count or u.shape[1] != model.u_size:
        raise ValueError(f"u must have shape ({count} or more, {model.u_size}), got {u.shape}")
    require_finite("u", u)
    return u[:count]


def _time_steps(model: StateSpaceModel, dt: Any, count: int, usual: Array) -> Float[Array, " count"]:
    """So many time steps, checked."""
    if dt is None:
        return jnp.repeat(usual[None], count)
    gaps = as_array("dt", dt, ndim=1).astype(usual.dtype)[:count]
    if gaps.size < count:
        raise ValueError(f"dt must have at least {count} entries, got {gaps.size}")
    require_finite("dt", gaps)
    values, wanted = values_of(gaps), values_of(usual)
    if values is not None and (values <= 0).any():
        raise ValueError(f"dt must be positive, got {values.min()}")
    if not (model.residual or values is None or wanted is None or np.allclose(values, wanted, rtol=EVEN)):
        raise ValueError(f"dt must be {wanted} throughout for residual=False: only a residual transition scales with time")
    return gaps


@eqx.filter_jit
def latest(finder: Finder, frames: Frames) -> Belief:
    """The belief after the last observation: compiled for itself, because all that looks ahead starts from it."""
    belief = walk(finder, frames[:-1])[0]
    return belief.condition(finder.emission(belief, frames.dt.size - 1), frames.y[-1])[0]


def _times(frames: Frames, steps: int) -> Array:
    """Numbers of the moves from the last observation on."""
    return jnp.asarray(frames.dt.size - 1 + np.arange(steps, dtype=np.int32))


@eqx.filter_jit
def _forecast(finder: Finder, belief: Belief, times: Array, u: Array | None, gaps: Array) -> Forecast:
    def body(belief, ahead):
        t, control, dt = ahead
        following = belief.advance(finder.transition(belief, control, dt, t))
        seen = following.state.advance(finder.emission(following, t + 1))
        return following, (seen.mean, symmetrise(seen.cov), following.mean, symmetrise(following.cov))

    return Forecast(*jax.lax.scan(body, belief, (times, u, gaps))[1])


def split_variances(finder: Finder, frames: Frames, u: Array | None, gaps: Array) -> tuple[Array, Array]:
    """Variances of the forecast outputs without measurement noise, and what of them comes from not knowing the weights.

    The latter is the covariance between twins: two futures with the same weights, and all else drawn for each (MATH 7.3).
    """
    return _split(finder, latest(finder, frames), _times(frames, gaps.size), u, gaps)


@eqx.filter_jit
def _split(finder: Finder, belief: Belief, times: Array, u: Array | None, gaps: Array) -> tuple[Array, Array]:
    assert isinstance(belief, JointGaussian)
    model = finder.model
    # The order of the forecast itself, or the parts would not be parts of the same variance.
    order = finder.options.get("order")

    def body(carry, ahead):
        belief, twins = carry
        t, control, dt = ahead
        channel = finder.transition(belief, control, dt, t)
        _, moved = twin_moments(model.transition, belief, twins, control, order)
        if model.residual:
            across = (channel.slope - jnp.eye(len(twins), dtype=twins.dtype)) @ twins + channel.weight_slope @ belief.cross.T
            moved = twins + across + across.T + dt**2 * moved
        following = belief.advance(channel)
        seen = following.state.advance(finder.emission(following, t + 1))
        shown = moved if model.emission is None else twin_outputs(model.emission.at_mean(), following.state, moved, order)
        return (following, moved), (jnp.diag(seen.cov) - model.measurement_noise, jnp.diag(shown))

    start = belief.weights.solve(belief.cross) @ belief.cross.T
    return jax.lax.scan(body, (belief, start), (times, u, gaps))[1]


def sample_futures(finder: Finder, frames: Frames, u: Array | None, gaps: Array, *, key: PRNGKeyArray, samples: int) -> Array:
    """Outputs without measurement noise along sampled futures of a series, (samples, steps, y)."""
    return _sample_futures(finder.model, latest(finder, frames), u, gaps, key, samples)


@eqx.filter_jit
def _sample_futures(model: StateSpaceModel, belief: Belief, u: Array | None, gaps: Array, key: PRNGKeyArray, samples: int):
    def future_of(key):
        start_key, walk_key = jr.split(key)
        if isinstance(belief, JointGaussian):
            x, drawn = belief.sample(key=start_key)
            network = model.transition.with_weights(drawn)
        else:
            x, network = belief.sample(key=start_key), model.transition
        return _follow(model, network, x, u, gaps, walk_key)[1]

    return jax.vmap(future_of)(jr.split(key, samples))


def simulate(
    model: StateSpaceModel, steps: int, *, key: Any, u: Any = None, dt: Any = None
) -> tuple[Float[Array, "steps x"], Float[Array, "steps y"]]:
    """States and observations drawn from the model, weights included.

    Args:
        model: The model.
        steps: How many observations.
        key: Randomness.
        u: Controls, (steps, u), if the model has any; the last row is not used and may be left out.
        dt: Time steps, (steps,), likewise; ones if not given.

    Returns:
        States (steps, x) and observations (steps, y).
    """
    require_integer("steps", steps, least=1)
    require_key("key", key)
    if (u is None) != (model.u_size == 0):
        raise ValueError(f"u must {'be given' if u is None else 'not be given'}: the transition takes {model.u_size} controls")
    dtype = model.initial_mean.dtype
    u = None if u is None else _controls(model, u, steps - 1).astype(dtype)
    states, y = _simulate(model, key, u, _time_steps(model, dt, steps - 1, usual=jnp.ones((), dtype)))
    require_answer("the simulation", states, y, advice="the system is unstable; simulate fewer steps")
    return states, y


@eqx.filter_jit
def _simulate(model: StateSpaceModel, key: Array, u: Array | None, gaps: Array):
    start_key, weight_key, walk_key, noise_key = jr.split(key, 4)
    network = model.transition.sample(weight_key) if model.weights == "global" else model.transition
    first = model.initial.sample(key=start_key)  # observed before any move
    later, seen = _follow(model, network, first, u, gaps, walk_key)
    shown = first if model.emission is None else model.emission(first)
    states, outputs = jnp.concatenate([first[None], later]), jnp.concatenate([shown[None], seen])
    noise = jr.normal(noise_key, outputs.shape, outputs.dtype) * jnp.sqrt(model.measurement_noise)[None, :]
    return states, outputs + noise


def _follow(model: StateSpaceModel, network: Network, x: Array, u: Array | None, gaps: Array, key: PRNGKeyArray):
    """One path from a state: the states after each move, and the outputs there without measurement noise."""
    network = network.at_mean() if model.weights == "point" else network

    def body(x, now):
        control, dt, key = now
        move_key, var_key, noise_key = jr.split(key, 3)
        inputs = x if control is None else jnp.concatenate([x, control])
        moved = network.sample_output(inputs, key=move_key)
        var = model.sample_process_variances(inputs, key=var_key)
        noise = jr.normal(noise_key, x.shape, x.dtype)
        following = x + dt * moved + jnp.sqrt(dt * var) * noise if model.residual else moved + jnp.sqrt(var) * noise
        return following, (following, following if model.emission is None else model.emission(following))

    return jax.lax.scan(body, x, (u, gaps, jr.split(key, gaps.size)))[1]


def _check(model: StateSpaceModel, series: Any, method: str) -> Series:
    if not isinstance(model, StateSpaceModel):
        raise TypeError(f"model must be a StateSpaceModel, got {type(model).__name__}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    series = as_series(series)
    if series.y.shape[1] != model.y_size:
        raise ValueError(f"series.y must have {model.y_size} channels, got {series.y.shape[1]}")
    given = 0 if series.u is None else series.u.shape[1]
    if given != model.u_size:
        raise ValueError(f"series.u must have {model.u_size} columns for this model's transition, got {given}")
    if not model.residual:
        require_even(series)
    # Everything runs in the precision of the model.
    return jax.tree.map(lambda column: column.astype(model.initial_mean.dtype), series)


def require_even(series: Series, unit: float | None = None) -> None:
    """Refuse time stamps that a transition without a residual link would ignore: unequal steps, or not of the usual size."""
    stamps = None if series.time is None else values_of(series.time)
    if stamps is None:
        return
    gaps = np.asarray(series.dt[:-1], float)
    unit = float(np.median(gaps)) if unit is None else unit
    rounding = 4 * float(np.finfo(stamps.dtype).eps) * np.abs(stamps).max()
    if (np.abs(gaps - unit) > EVEN * unit + rounding).any():
        raise ValueError(
            f"time must have steps of {unit:.4g} throughout for residual=False, got {gaps.min():.4g} to {gaps.max():.4g}; "
            "use residual=True, or put NaN rows where nothing was observed"
        )


def require_memory(model: StateSpaceModel, count: int, method: str = "moments") -> None:
    """Refuse to keep more joint beliefs about state and weights than this machine can hold."""
    if model.weights != "global" or not hasattr(os, "sysconf"):
        return
    weights = sum(rows * columns for rows, columns in model.transition.shapes)
    # A gradient or a smoother keeps one belief per step; points and particles need one whole matrix besides.
    whole = weights if method in ("unscented", "sampled") or model.width is None else 0
    needed = weights * (count * (model.width or weights) + whole) * model.initial_mean.dtype.itemsize
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ValueError(
            f"weights='global' would keep {count} covariances of {weights} weights, {needed / 1e9:.3g} GB; this machine has "
            f"{there / 1e9:.3g} GB; use a smaller network or rank, fewer or shorter series or windows, or weights='local'"
        )
