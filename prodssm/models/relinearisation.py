r"""Iterated posterior linearisation: channels around the smoothed marginals of the last pass, until these are a fixed point.

A pass finds all channels at once, around marginals $N(m^s_t, P^s_t)$, and runs filter and smoother with them. A channel that
was built around $m^s$ has the mean $mean + slope (m - m^s)$ at another belief: it is the same affine map.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm._compilation import scan
from prodssm._validation import require_integer, require_number
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.linalg import safe_sqrt
from prodssm.data.series import Record
from prodssm.models.backward import Marginals, smooth_backward
from prodssm.models.filtering import Recursion, select
from prodssm.models.state_space import StateSpaceModel

TOLERANCE = 1e-6  # standard deviations; or the root of the rounding error, if that is larger
HALF = 0.5
ROUNDING = 1e3  # rounding errors of a mean that do not count as a move, where it is almost certain


class Convergence(NamedTuple):
    """Whether iterated posterior linearisation has come to a fixed point.

    Attributes:
        passes: Passes of filter and smoother, the first one around the filter's own beliefs.
        move: The largest move of a mean in the last pass, in standard deviations; None after a single pass.
        converged: Whether that is at most 1e-6 (in single precision 3e-4); None after a single pass, which says nothing.
    """

    passes: Any = 1
    move: Any = None
    converged: Any = None


class Iterated(eqx.Module):
    """The state of the iteration.

    Attributes:
        found: Smoothed marginals of the last pass.
        built: The marginals around which its channels were built.
        passes: Passes so far.
        move: The largest difference between the two means, in standard deviations.
        share: The share of the new marginals in those that the next pass is built around.
    """

    found: Marginals
    built: Marginals
    passes: Array
    move: Array
    share: Array


def require_iterable(model: StateSpaceModel, iterations: Any, damping: Any) -> None:
    """Raise unless a smoother of this model can be iterated so."""
    require_integer("iterations", iterations, least=1)
    if damping is not None:
        require_number("damping", damping)
        if not 0 <= damping < 1:
            raise ValueError(f"damping must be at least 0 and below 1, got {damping}")
    if iterations > 1 and model.weights == "global":
        raise ValueError(
            "iterations must be 1 for weights='global', whose joint beliefs with the weights have no marginals in time to "
            f"relinearise around; use weights='local' or 'point', got iterations={iterations}"
        )


def iterate(recursion: Recursion, record: Record, first: Marginals, most: Array, damping: Array | None) -> Iterated:
    """Passes from the smoothed marginals of a first one, which counts, until they are a fixed point.

    Args:
        recursion: The model with its method.
        record: The record.
        first: Marginals that the second pass is built around.
        most: Largest number of passes.
        damping: The share of the old marginals; None as for `prodssm.smooth_states`.
    """
    tolerance = tolerance_of(first.mean)

    def unfinished(now: Iterated) -> Array:
        return (now.passes < most) & (now.move > tolerance) & jnp.isfinite(now.move)

    def body(now: Iterated) -> Iterated:
        built = _mixed(now.found, now.built, now.share)
        found = run_pass(recursion, record, built)[0]
        move = _move(record, built, found)
        share = now.share if damping is not None else jnp.where(move < HALF * now.move, now.share, HALF)
        found, built = select(jnp.isfinite(move), (found, built), (now.found, now.built))  # a pass that overflows is the last
        return Iterated(found, built, now.passes + 1, move, share)

    dtype = first.mean.dtype
    undecided, share = jnp.full((), jnp.finfo(dtype).max, dtype), jnp.asarray(1.0 if damping is None else 1.0 - damping, dtype)
    return jax.lax.while_loop(unfinished, body, Iterated(first, first, jnp.ones((), jnp.int32), undecided, share))


def tolerance_of(mean: Any) -> float:
    """The largest move of a fixed point, in standard deviations."""
    return max(TOLERANCE, float(jnp.finfo(mean.dtype).eps) ** 0.5)


def run_pass(recursion: Recursion, record: Record, built: Marginals) -> tuple[Marginals, tuple[Belief, Channel]]:
    """Smoothed marginals of one pass with channels around these marginals; its filtered beliefs and transition channels."""
    model = recursion.model
    steps = jnp.arange(record.dt.size, dtype=jnp.int32)

    def channels(t, mean, cov, u, dt):
        belief = Gaussian(mean, cov)
        return recursion.move(belief, u, dt, t)[0], model.emit(recursion.method.at(t, 0), belief, u)[0]

    def body(belief, now):
        t, y, at, (transition, emission) = now
        filtered, _ = model.likelihood.condition(belief, _at(emission, at, belief.mean), y)
        channel = _at(transition, at, filtered.mean)
        following = filtered.predict(channel)
        following = following if record.length is None else select(t < record.length, following, belief)
        return following, (filtered, channel)

    found = jax.vmap(channels)(steps, *built, record.u, record.dt)
    _, kept = scan(body, model.initial_belief(), (steps, record.y, built.mean, found))
    return smooth_backward(record, *kept)[1], kept


def _at(channel: Channel, built: Float[Array, " x"], mean: Float[Array, " x"]) -> Channel:
    """The same affine map around a belief of another mean."""
    return Channel(channel.mean + channel.slope @ (mean - built), channel.slope, channel.noise, affine=channel.affine)


def _mixed(new: Marginals, old: Marginals, share: Array) -> Marginals:
    """Averages of means and covariances."""
    return jax.tree.map(lambda a, b: share * a + (1 - share) * b, new, old)


def _move(record: Record, built: Marginals, found: Marginals) -> Float[Array, ""]:
    """The largest move of a mean before padding, in standard deviations."""
    std = safe_sqrt(jnp.diagonal(found.cov, axis1=1, axis2=2))
    limits = jnp.finfo(std.dtype)
    size = jnp.maximum(std, ROUNDING * float(limits.eps) * jnp.abs(found.mean)) + float(limits.tiny)
    moves = (jnp.abs(found.mean - built.mean) / size).max(axis=1)
    largest = jnp.where(jnp.arange(moves.size, dtype=jnp.int32) <= record.last, moves, 0.0).max()
    return jnp.where(jnp.isnan(largest), jnp.inf, largest)
