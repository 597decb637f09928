"""One compiled step, one loop: progress, the best state kept, Ctrl-C returns it, a history that can be plotted."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, PRNGKeyArray
from tqdm.auto import tqdm

from prodssm.checks import require_integer, require_number
from prodssm.model import StateSpaceModel
from prodssm.objective import log_posterior
from prodssm.series import Frames, Series, stack

CHUNK = 25  # iterations per compiled call


@dataclass
class History:
    """What training saw: the objective per observed value, chunk by chunk."""

    iterations: list[int] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    stopped: str = "all iterations done"


def trainable(model: StateSpaceModel, *, measurement_noise: bool = True, initial: bool = True) -> Any:
    """Which leaves of a model are learned, as a tree of booleans."""
    spec = jax.tree.map(eqx.is_inexact_array, model)
    if not measurement_noise:
        spec = eqx.tree_at(lambda m: m.log_measurement_noise, spec, False)
    if not initial:
        spec = eqx.tree_at(lambda m: (m.initial_mean, m.initial_root), spec, (False, False))
    return spec


def train(
    model: StateSpaceModel,
    series: Sequence[Series],
    *,
    iterations: int,
    key: PRNGKeyArray,
    learning_rate: float = 5e-3,
    clip: float = 1.0,
    prior_weight: float = 1.0,
    batch: int | None = None,
    method: str = "moments",
    options: dict[str, Any] | None = None,
    spec: Any = None,
    progress: bool = True,
) -> tuple[StateSpaceModel, History]:
    """Maximise the evidence and the hyper-prior by Adam.

    Args:
        model: Where to start.
        series: The data; series of unequal length are welcome.
        iterations: How many steps.
        key: Randomness of minibatches (and of the method, if it samples).
        learning_rate: Adam's.
        clip: Largest norm of the gradient per observed value.
        prior_weight: Weight of the hyper-prior; 1 is the paper's.
        batch: Series per step; all of them if not given.
        method: How channels are found.
        options: For the method.
        spec: Which leaves are learned; `trainable(model)` if not given.
        progress: Show a bar with the current objective per observed value.

    Returns:
        The model with the best objective seen, and the history.
    """
    require_integer("iterations", iterations, least=1)
    require_number("prior_weight", prior_weight)
    data = stack(series)
    count, size = len(series), len(series) if batch is None else min(batch, len(series))
    observed = float(np.isfinite(np.asarray(data.y[:, 1:])).sum())
    optimiser = optax.chain(optax.clip_by_global_norm(clip), optax.adam(learning_rate))
    learned, fixed = eqx.partition(model, trainable(model) if spec is None else spec)
    state = optimiser.init(learned)
    weight = jnp.asarray(prior_weight, data.y.dtype)
    best, best_objective, history = learned, -np.inf, History()
    bar = tqdm(total=iterations, disable=not progress, desc="training", unit="it")
    try:
        for begin in range(0, iterations, CHUNK):
            length = min(CHUNK, iterations - begin)
            chunk_key = jr.fold_in(key, begin)
            picks = _draw_batches(chunk_key, length, count, size)
            learned, state, values = _run_chunk(
                learned, state, fixed, data, picks, chunk_key, weight, observed, size / count, optimiser, method, options or {}
            )
            objective = float(values.mean())
            history.iterations.append(begin + length)
            history.objective.append(objective)
            if not np.isfinite(objective):
                history.stopped = "the objective was no longer finite; the best model so far is returned"
                break
            if objective > best_objective:
                best, best_objective = learned, objective
            bar.update(length)
            bar.set_postfix_str(f"objective {objective:.4f} per value")
    except KeyboardInterrupt:
        history.stopped = "interrupted; the best model so far is returned"
    finally:
        bar.close()
    return eqx.combine(best, fixed), history


def _draw_batches(key: PRNGKeyArray, length: int, count: int, size: int) -> Array:
    """Members of each step's batch, without replacement within it."""
    if size == count:
        return jnp.broadcast_to(jnp.arange(count), (length, count))
    return jax.vmap(lambda k: jr.permutation(k, count)[:size])(jr.split(key, length))


@eqx.filter_jit
def _run_chunk(learned, state, fixed, data: Frames, picks, key, weight, observed, share, optimiser, method, options):
    """Some iterations in one compiled loop, so that a small model does not wait for Python."""

    def loss(parameters, members, step_key):
        chosen = options | {"key": step_key} if "key" in options else options
        model = eqx.combine(parameters, fixed)
        value = log_posterior(model, data[members], method=method, options=chosen, prior_weight=weight, share=share)
        return -value / observed

    def body(carry, now):
        parameters, state = carry
        value, grads = jax.value_and_grad(loss)(parameters, *now)
        updates, state = optimiser.update(grads, state, parameters)
        return (eqx.apply_updates(parameters, updates), state), -value

    (learned, state), values = jax.lax.scan(body, (learned, state), (picks, jr.split(key, len(picks))))
    return learned, state, values
