"""The Rauch-Tung-Striebel smoother, iterated posterior linearisation, and posterior paths of the state."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float

from prodssm._compilation import bucket, compiled, is_traced
from prodssm._validation import require_answer, require_integer, require_key
from prodssm.data.series import Record, Values
from prodssm.methods.base import Method
from prodssm.models.backward import Marginals, sample_backward, smooth_backward
from prodssm.models.filtering import Beliefs, Recursion, checked_input
from prodssm.models.relinearisation import Convergence, iterate, require_iterable, run_pass, tolerance_of
from prodssm.models.state_space import StateSpaceModel, require_memory


class Smoothed(Beliefs):
    """Smoothed beliefs about the state at every time step.

    Attributes:
        convergence: Of iterated posterior linearisation: `.passes`, `.move`, `.converged`.
    """

    convergence: Convergence = eqx.field(default=Convergence(), repr=False)
    _draw: Callable[[int, Any], Values] | None = eqx.field(static=True, default=None, repr=False)

    def sample(self, count: int, key: Any) -> Float[Values, "count time x"]:
        """Whole paths of the state given all observations, (count, time, state), drawn backwards in time.

        They are drawn through the channels of the last pass, so that they have the means, covariances and lag-one covariances
        of the smoother. Paths of `ProDSSM.smooth` are in the units of the data if the emission is the identity, and then of
        random members of an ensemble; else they are latent states, those of its first member.

        Args:
            count: Number of paths.
            key: Randomness.

        Example:
            >>> ps.smooth_states(ssm, y).sample(10, jr.key(0)).shape
            (10, 60, 1)
        """
        require_integer("count", count, least=1)
        require_key("key", key)
        if self._draw is None:
            raise ValueError("paths are known to what smooth_states and ProDSSM.smooth return outside of jit")
        return self._draw(count, key)


def smooth_states(
    model: StateSpaceModel,
    series: Any,
    method: str | Method = "moments",
    *,
    iterations: int = 1,
    damping: float | None = None,
) -> Smoothed:
    """Smoothed beliefs: about the state at each time given all observations.

    With more than one iteration this is iterated posterior linearisation: every pass finds its channels around the smoothed
    marginals of the last one, until the means move by at most 1e-6 standard deviations (3e-4 in single precision).
    `log_evidence` stays that of the filter. There is no reverse-mode gradient through the iteration. With `Linearised` passes
    may go back and forth for ever, because the slope of a ReLU network jumps: `.convergence` says so.

    Args:
        model: The model; its weights are local or point for more than one iteration.
        series: A `Series`, or an array (time, y).
        method: How channels are found, a name or a `Method`.
        iterations: Largest number of passes; the default is the smoother itself.
        damping: The share of the old marginals in those that the next pass is built around, from 0 (none) to below 1. None
            damps only where it is needed: by one half, after the first pass that moves more than half as far as the one before.

    Returns:
        As `filter_states`; global weights are smoothed as well. `.convergence` has the number of passes, the last move in
        standard deviations and whether it converged; `.sample(n, key)` draws paths.

    Example:
        >>> smooth_states(ssm, y).mean.shape
        (60, 1)
        >>> smooth_states(ssm, y, iterations=200).convergence.converged
        True
    """
    series, found = checked_input(model, series, method)
    require_iterable(model, iterations, damping)
    require_memory(model, len(series), found)
    recursion = Recursion(model, found)
    require_gaussian(recursion)
    record = recursion.bucketed(series.record)
    if iterations == 1:
        return finished(recursion, record, _smooth(recursion, record), None, len(series))
    return finished(recursion, record, *_smooth_iterated(recursion, record, *limits(iterations, damping)), len(series))


def limits(iterations: int, damping: float | None) -> tuple[np.ndarray, np.ndarray | None]:
    """Both as arrays, so that other values trigger no recompilation."""
    return np.asarray(iterations, np.int32), None if damping is None else np.asarray(damping, float)


def finished(recursion: Recursion, record: Record, found: Smoothed, built: Marginals | None, count: int) -> Smoothed:
    """The answer without padding, with a report in numbers of Python; an error if it overflowed.

    Args:
        recursion: The model with its method.
        record: The padded record.
        found: Smoothed beliefs.
        built: The marginals around which its channels were built; None if these are the filter's own.
        count: Number of time steps before padding.
    """
    if is_traced(found):
        return found
    plain = found.first_steps(count)
    require_answer("the smoother", plain.mean, plain.cov, plain.log_evidence)
    convergence = found.convergence
    if convergence.move is not None:
        convergence = Convergence(int(convergence.passes), float(convergence.move), bool(convergence.converged))
    draw = partial(_paths, recursion, record, built, count)
    return Smoothed(plain.mean, plain.cov, plain.log_evidence, plain.weights, convergence=convergence, _draw=draw)


def require_gaussian(recursion: Recursion) -> None:
    """Raise if the belief is a mixture, which has no smoother in closed form: it would divide by a mixture."""
    if jax.eval_shape(recursion.initial_belief).mixture is not None:
        raise ValueError(
            "method must carry one Gaussian to smooth, got components of a mixture; use method='moments', of a fitted model "
            "model.with_method('moments').smooth(data)"
        )


@compiled
def _smooth(recursion: Recursion, record: Record) -> Smoothed:
    _, (filtered, channels, log_evidence) = recursion.scan(record, keep_channels=True)
    first, states = smooth_backward(record, filtered, channels)
    return Smoothed(*states, log_evidence, first.weights)


@compiled
def _smooth_iterated(recursion: Recursion, record: Record, most: Array, damping: Array | None) -> tuple[Smoothed, Marginals]:
    first = _smooth(recursion, record)
    last = iterate(recursion, record, Marginals(jnp.asarray(first.mean), jnp.asarray(first.cov)), most, damping)
    convergence = Convergence(last.passes, last.move, last.move <= tolerance_of(first.mean))
    return Smoothed(*last.found, first.log_evidence, convergence=convergence), last.built


def _paths(recursion: Recursion, record: Record, built: Marginals | None, length: int, count: int, key: Any) -> np.ndarray:
    """Posterior paths without padding; a function of the module, so that results can be pickled."""
    found = _sample(recursion, record, built, jr.split(key, bucket(count)))
    paths = np.asarray(found)[:count, :length]
    require_answer("the smoother", paths)
    return paths


@compiled
def _sample(recursion: Recursion, record: Record, built: Marginals | None, keys: Array) -> Float[Array, "count time x"]:
    kept = recursion.scan(record, keep_channels=True)[1][:2] if built is None else run_pass(recursion, record, built)[1]
    return jax.vmap(lambda key: sample_backward(record, *kept, key=key))(keys)
