"""Many series at once: filters, smoothers and forecasts, vmapped over series of like length."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from prodssm._compilation import bucket, compiled
from prodssm.beliefs.gaussian import Belief
from prodssm.data.series import Record, Series, part_of, stack_records
from prodssm.methods.base import Method
from prodssm.models.backward import Marginals
from prodssm.models.filtering import Beliefs, Recursion, _filter, _last_filtered, checked_input, filter_states, trimmed
from prodssm.models.forecasting import Forecast, Moves, _forecast, forecast, future_inputs, require_finite_steps
from prodssm.models.relinearisation import require_iterable
from prodssm.models.smoothing import Smoothed, _smooth, _smooth_iterated, finished, limits, require_gaussian, smooth_states
from prodssm.models.state_space import StateSpaceModel

TIME_STEPS = 1 << 17  # of all series that are filtered at once, padding included

Answer = TypeVar("Answer")


def filter_panel(model: StateSpaceModel, series: Sequence[Series], method: str | Method = "moments") -> list[Beliefs]:
    """Filtered beliefs about each of several series; see `filter_states`."""
    if _one_by_one(model, series):
        return [filter_states(model, each, method) for each in series]
    checked = [checked_input(model, each, method)[0] for each in series]
    recursion = Recursion(model, checked_input(model, series[0], method)[1])

    def run(numbers: list[int]) -> list[Beliefs]:
        found = _filters(recursion, stack_records([checked[n] for n in numbers]))
        parts = jax.tree.map(np.asarray, (found.mean, found.cov, found.log_evidence, found.mixture))

        def one(k: int) -> Beliefs:
            mean, cov, log_evidence, mixture = jax.tree.map(lambda part: part[k], parts)
            return Beliefs(mean, cov, log_evidence, mixture=mixture)

        return [trimmed("the filter", one(k), len(series[n])) for k, n in enumerate(numbers)]

    return _by_length(checked, run)


def smooth_panel(
    model: StateSpaceModel,
    series: Sequence[Series],
    method: str | Method = "moments",
    *,
    iterations: int = 1,
    damping: float | None = None,
) -> list[Smoothed]:
    """Smoothed beliefs about each of several series; see `smooth_states`."""
    if _one_by_one(model, series):
        return [smooth_states(model, each, method, iterations=iterations, damping=damping) for each in series]
    require_iterable(model, iterations, damping)
    require_gaussian(Recursion(model, checked_input(model, series[0], method)[1]))
    checked = [checked_input(model, each, method)[0] for each in series]
    recursion = Recursion(model, checked_input(model, series[0], method)[1])

    def run(numbers: list[int]) -> list[Smoothed]:
        records = stack_records([checked[n] for n in numbers])
        if iterations == 1:
            found: Any = records, _smooths(recursion, records), None
        else:
            found = records, *_smooths_iterated(recursion, records, *limits(iterations, damping))
        parts = [jax.tree.map(lambda part, k=k: np.asarray(part[k]), found) for k in range(len(numbers))]
        return [finished(recursion, *part, count=len(series[n])) for part, n in zip(parts, numbers, strict=True)]

    return _by_length(checked, run)


def forecast_panel(
    model: StateSpaceModel,
    series: Sequence[Series],
    steps: int,
    method: str | Method = "moments",
    *,
    u: Sequence[Any],
    dt: Sequence[Any],
) -> list[Forecast]:
    """Forecasts of each of several series, with controls and time steps for each; see `forecast`."""
    if _one_by_one(model, series):
        given = zip(series, u, dt, strict=True)
        return [forecast(model, each, steps, method, u=controls, dt=ahead) for each, controls, ahead in given]
    checked = [checked_input(model, each, method)[0] for each in series]
    recursion = Recursion(model, checked_input(model, series[0], method)[1])
    moves = [future_inputs(model, each, steps, *rest) for each, *rest in zip(checked, u, dt, strict=True)]
    room = bucket(steps)

    def run(numbers: list[int]) -> list[Forecast]:
        record = stack_records([checked[n] for n in numbers])
        empty = [numbers[0]] * (len(record.dt) - len(numbers))
        ahead = jax.tree.map(lambda *parts: np.stack(parts), *(moves[n].padded(room) for n in [*numbers, *empty]))
        found = _forecasts(recursion, record, ahead)
        return [jax.tree.map(lambda part, n=n: np.asarray(part[n])[:steps], found) for n in range(len(numbers))]

    found = _by_length(checked, run)
    for each in found:
        require_finite_steps(each)
    return found


def forecast_origins(
    model: StateSpaceModel, series: Series, origins: Sequence[int], steps: int, method: str | Method = "moments"
) -> list[Forecast]:
    """Forecasts of the observations from each of several time steps on, given those before, in one pass of the filter.

    Controls and time steps are those of the series.

    Args:
        model: The model.
        series: The series.
        origins: Indices of the first observations that are forecast, from 1.
        steps: Number of observations ahead; all lie within the series.
        method: How channels are found, a name or a `Method`.
    """
    moves = [_moves_at(series, origin, steps) for origin in origins]
    if _one_by_one(model, [series] * 2):
        pasts = [part_of(series, 0, origin) for origin in origins]
        return [forecast(model, past, steps, method, u=u, dt=dt) for past, (u, dt) in zip(pasts, moves, strict=True)]
    checked, found = checked_input(model, series, method)
    recursion, room = Recursion(model, found), bucket(steps)
    wanted = [*origins, *[origins[0]] * (bucket(len(origins)) - len(origins))]
    parts = [future_inputs(model, part_of(checked, 0, n), steps, *_moves_at(checked, n, steps)).padded(room) for n in wanted]
    ahead = jax.tree.map(lambda *each: np.stack(each), *parts)
    answer = _forecasts_from(recursion, recursion.bucketed(checked.record), np.array(wanted, np.int32), ahead)
    results = [jax.tree.map(lambda part, n=n: np.asarray(part[n])[:steps], answer) for n in range(len(origins))]
    for each in results:
        require_finite_steps(each)
    return results


def _moves_at(series: Series, origin: int, steps: int) -> tuple[Any, Any]:
    """Controls and time steps of the observations from an origin on."""
    dt = series.dt[origin - 1 : origin - 1 + steps]
    return None if series.u is None else series.u[origin : origin + steps], None if series.time is None else dt


def _one_by_one(model: StateSpaceModel, series: Sequence[Series]) -> bool:
    """Whether a batch would gain nothing: beliefs about global weights are large."""
    return len(series) == 1 or model.weights == "global"


def _by_length(series: Sequence[Series], run: Callable[[list[int]], list[Answer]]) -> list[Answer]:
    """The answers for batches of series of like length, in the order of the series."""
    alike = defaultdict(list)
    for n, each in enumerate(series):
        alike[bucket(len(each))].append(n)
    found: dict[int, Answer] = {}
    for length, numbers in alike.items():
        size = max(1, TIME_STEPS // length)
        for begin in range(0, len(numbers), size):
            batch = numbers[begin : begin + size]
            found |= zip(batch, run(batch), strict=True)
    return [found[n] for n in range(len(series))]


@compiled
def _filters(recursion: Recursion, records: Record) -> Beliefs:
    return jax.vmap(lambda record: _filter(recursion, record))(records)


@compiled
def _smooths(recursion: Recursion, records: Record) -> Smoothed:
    return jax.vmap(lambda record: _smooth(recursion, record))(records)


@compiled
def _smooths_iterated(recursion: Recursion, records: Record, most: Array, damping: Array | None) -> tuple[Smoothed, Marginals]:
    return jax.vmap(lambda record: _smooth_iterated(recursion, record, most, damping))(records)


@compiled
def _forecasts_from(recursion: Recursion, record: Record, origins: Array, ahead: Moves) -> Forecast:
    filtered = recursion.scan(record, keep_channels=True)[1][0]

    def one(origin: Array, moves: Moves) -> Forecast:
        belief = jax.tree.map(lambda leaf: leaf[origin - 1], filtered)
        return _forecast(recursion, belief, origin - 1 + jnp.arange(moves.dt.shape[0], dtype=jnp.int32), moves)

    return jax.vmap(one)(origins, ahead)


@compiled
def _forecasts(recursion: Recursion, records: Record, ahead: Moves) -> Forecast:
    def one(record: Record, moves: Moves) -> Forecast:
        belief: Belief = _last_filtered(recursion, record)
        return _forecast(recursion, belief, record.last + jnp.arange(moves.dt.shape[0], dtype=jnp.int32), moves)

    return jax.vmap(one)(records, ahead)
