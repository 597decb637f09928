"""The training loop: chunks of compiled iterations, early stopping, checkpoints that resume bit by bit, progress, a history."""

import os
import time
import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray

from prodssm._compilation import compiled
from prodssm._progress import Progress, shared_progress
from prodssm.training.checkpoints import TrainingState, fingerprint, read_checkpoint, write_checkpoint
from prodssm.training.claims import claimed
from prodssm.training.devices import local, on_all, raise_together, require_same, together, total
from prodssm.training.history import History, StopReason
from prodssm.training.recipe import Pace, Recipe
from prodssm.training.signals import interrupts

CHUNK = 25  # iterations; progress, validation and checkpoints come between two chunks
LONGEST_CALL = 1.0  # seconds of a compiled call, if an iteration is not longer


class Task(eqx.Module):
    """What the loop maximises.

    Attributes:
        averaged: Whether the mean of a chunk's parameters is kept rather than its last ones, which fluctuate with small
            batches.
        recipe: How to train.
        pace: The settings of the optimiser as arrays; they overrule those of the recipe.
        prior_weight: Weight of the hyper-prior as an array; it overrules that of the recipe.
    """

    averaged: ClassVar[bool] = False
    recipe: eqx.AbstractVar[Recipe]
    pace: eqx.AbstractVar[Pace]
    prior_weight: eqx.AbstractVar[Any]

    @property
    def validated(self) -> bool:
        """Whether `evaluate` scores validation data."""
        return False

    @property
    @abstractmethod
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell one task from another, for the fingerprint of a checkpoint."""

    @abstractmethod
    def objective(self, learned: Any, key: PRNGKeyArray) -> Array:
        """The objective of one batch."""

    def evaluate(self, learned: Any, objective: Array, done: Array) -> tuple[Any, Array]:
        """The parameters as they would be kept, and their score; without validation data the latest finite ones win.

        Args:
            learned: Parameters after a chunk.
            objective: The mean objective over the chunk.
            done: Iterations so far.
        """
        return learned, latest_score(objective, done)

    def optimiser(self) -> optax.GradientTransformation:
        """How parameters are updated."""
        return self.pace.optimiser(self.recipe.schedule)

    @property
    def mesh(self) -> Mesh | None:
        """The devices that share every batch; None for a single one."""
        return None

    def compiled(self) -> "Task":
        """The task without settings that only the loop needs, or that are arrays: they would trigger recompilation."""
        return replace(self, recipe=self.recipe.compiled())  # type: ignore[type-var]


def latest_score(objective: Array, done: Array) -> Array:
    """The iteration as a score, where objectives of minibatches cannot be compared: the latest finite parameters win."""
    return jnp.where(jnp.isfinite(objective), done.astype(objective.dtype), -jnp.inf)


def maximise(
    task: Task,
    learned: Any,
    *,
    key: PRNGKeyArray,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    renewed: Callable[[Any, int], Any] | None = None,
) -> tuple[Any, History]:
    """Run the loop: the best parameters seen, and the history. Ctrl-C or SIGTERM ends it at once and keeps the best so far.

    Args:
        task: What is maximised, and how.
        learned: Initial parameters.
        key: Randomness; a function of key and iteration, so that a resumed run continues to the same bits.
        checkpoint: A file that an interrupted run resumes from.
        renewed: The task with other data, given the number of iterations so far; called before every chunk.
        progress: Show a progress bar, unless the run counts on that of several (`prodssm._progress.shared`).
    """
    several = together(task.mesh)
    writes = checkpoint is not None and not (several and jax.process_index() > 0)
    with ExitStack() as stack:
        error = None
        try:
            stack.enter_context(claimed(checkpoint if writes else None))
        except (OSError, ValueError) as problem:
            error = problem
        raise_together(task.mesh, error)
        return _maximise(task, learned, key, checkpoint, writes, progress, renewed)


def _maximise(
    task: Task,
    learned: Any,
    key: PRNGKeyArray,
    checkpoint: Any,
    writes: bool,
    progress: bool,
    renewed: Callable[[Any, int], Any] | None,
) -> tuple[Any, History]:
    """The loop of a run whose checkpoint nobody else writes."""
    limit = task.recipe.iterations
    assert limit is not None
    # By way of NumPy: weak types would trigger a second compilation after the first chunk.
    learned = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), learned)
    several = together(task.mesh)
    progress = progress and not (several and jax.process_index() > 0)
    worst, first = jnp.asarray(np.asarray(-np.inf, task.prior_weight.dtype)), jnp.asarray(np.zeros((), np.int32))
    state = TrainingState(learned, _initial_optimiser(task.compiled(), learned), learned, worst, first)
    history, identity = History(), fingerprint(state.learned, task.recipe, *task.identity, key)
    require_same(task.mesh, identity, "in data, settings or seed; each must read the same data and call fit alike")
    if checkpoint is not None and Path(checkpoint).exists():
        state, history = read_checkpoint(checkpoint, state, identity)
    require_same(task.mesh, str(history), "in the checkpoint; it must be on storage that all of them share")
    clock = time.monotonic() - (history.seconds[-1] if history.seconds else 0.0)
    done, slices = sum(history.iterations[-1:]), Slices(several)
    resumed = done
    shared = shared_progress()
    bar = Progress("training", limit, shown=progress, initial=done) if shared is None else shared
    try:
        with interrupts(several) as signals:
            while not _is_over(state, history, task):
                length = (limit - done) % CHUNK or CHUNK  # a short chunk first, so that the last mean is over a whole one
                after = done + length, length, slices
                task = task if renewed is None else renewed(task, done)
                state, objective, value = _run_chunk(state, task.compiled(), jr.fold_in(key, done), *after)
                done += length
                history.iterations.append(done)
                history.objective.append(float(objective))
                history.validation += [float(value)] if task.validated else []
                history.seconds.append(time.monotonic() - clock)
                if writes:
                    _save(checkpoint, state, history, identity)
                bar.update(length, _note(history))
                signals.raise_together()
    except KeyboardInterrupt:
        history.stop_reason = StopReason.INTERRUPTED
    finally:
        if shared is None:
            bar.close()
        else:
            shared.leave_out(limit - done + resumed)
    return jax.tree.map(jnp.asarray, state.best), history


def _save(checkpoint: Any, state: TrainingState, history: History, identity: str) -> None:
    """Write a checkpoint; a disk that is full for a while must not cost what has been learned."""
    try:
        write_checkpoint(checkpoint, state, history, identity)
    except OSError as error:
        done, why = history.iterations[-1], error.strerror or error
        warnings.warn(
            f"checkpoint {checkpoint} could not be written after {done} iterations ({why}); training goes on, and the last one "
            "that was written stays",
            UserWarning,
            stacklevel=4,
        )


@compiled
def _initial_optimiser(task: Task, learned: Any) -> Any:
    """The initial state of the optimiser."""
    return task.optimiser().init(learned)


class Slices:
    """How many iterations to run in one call, so that an interrupted call does not go on for long in its thread."""

    def __init__(self, several: bool):
        # Several processes must not measure: they would disagree on how many iterations a call has.
        self.several, self.count = several, CHUNK if several else 1

    def measure(self, count: int, seconds: float) -> None:
        """Take in that `count` iterations took so long."""
        if not self.several:
            self.count = max(1, int(count * LONGEST_CALL / max(seconds, 1e-6)))


def _run_chunk(
    state: TrainingState, task: Task, key: PRNGKeyArray, done: int, length: int, slices: Slices
) -> tuple[TrainingState, Array, Array]:
    """`length` iterations that lead to `done`: the state after them, the mean objective and the score.

    An interrupt ends it at once, whether it is being compiled or executed.
    """
    carry: Any = (state.learned, state.opt_state, state.learned, np.zeros((), task.prior_weight.dtype))
    now = 0
    while now < length:
        end, begin = min(now + slices.count, length), time.monotonic()
        found = _iterate.interruptible(task, key, carry, np.asarray(now, np.int32), np.asarray(end, np.int32))
        carry = local(found, task.mesh)
        slices.measure(end - now, time.monotonic() - begin)
        now = end
    found = _keep_best.interruptible(state, task, carry, np.asarray(done, np.int32), np.asarray(length, np.int32))
    return local(found, task.mesh)


@compiled
def _iterate(task: Task, key: PRNGKeyArray, carry: Any, begin: Array, end: Array) -> Any:
    """Some iterations of a chunk in one compiled loop, so that small models do not wait for Python."""
    return on_all(task.mesh, _iterations)(task, key, carry, begin, end)


def _iterations(task: Task, key: PRNGKeyArray, carry: Any, begin: Array, end: Array) -> Any:
    """The loop on one device, which has a share of every batch."""
    optimiser = task.optimiser()

    def body(n, carry):
        learned, opt_state, mean, sum_so_far = carry
        share = jax.value_and_grad(lambda p: -task.objective(p, jr.fold_in(key, n)))(learned)
        value, grads = total(share, task.mesh)
        updates, opt_state = optimiser.update(grads, opt_state, learned)
        learned = eqx.apply_updates(learned, updates)
        if task.averaged:
            mean = jax.tree.map(lambda old, new: old + (new - old) / (n + 1).astype(new.dtype), mean, learned)
        return learned, opt_state, mean, sum_so_far - value

    # The bounds are traced: another number of iterations is not compiled again.
    return jax.lax.fori_loop(begin, end, body, carry)


@compiled
def _keep_best(state: TrainingState, task: Task, carry: Any, done: Array, length: Array) -> tuple[TrainingState, Array, Array]:
    """The state after a chunk, with the best parameters so far; the mean objective and the score of the new ones."""
    return on_all(task.mesh, _best)(state, task, carry, done, length)


def _best(state: TrainingState, task: Task, carry: Any, done: Array, length: Array) -> tuple[TrainingState, Array, Array]:
    """The same, of one device that has a share of the validation data."""
    learned, opt_state, mean, sum_of_chunk = carry
    objective = sum_of_chunk / length
    kept, value = task.evaluate(mean if task.averaged else learned, objective, done)
    # The objective is that of the parameters before the last update, which may have made them NaN.
    finite = jnp.stack([~jnp.isnan(leaf).any() for leaf in jax.tree.leaves(kept)]).all()
    better = (value > state.best_score) & finite
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), kept, state.best)
    best_score = jnp.where(better, value, state.best_score)
    best_iteration = jnp.where(better, done, state.best_iteration)
    return TrainingState(learned, opt_state, best, best_score, best_iteration), objective, value


def _is_over(state: TrainingState, history: History, task: Task) -> bool:
    """Whether training is done; if early, the history says why."""
    if not history.iterations:
        return False
    if not np.isfinite(history.objective[-1]):
        history.stop_reason = StopReason.DIVERGED
        return True
    patience, limit = task.recipe.patience, task.recipe.iterations
    assert patience is not None
    assert limit is not None
    if task.validated and history.iterations[-1] - int(state.best_iteration) >= patience:
        history.stop_reason = StopReason.EARLY_STOPPING
        return True
    return history.iterations[-1] >= limit


def _note(history: History) -> str:
    validation = f", validation {history.validation[-1]:.4f}" if history.validation else ""
    return f"log likelihood {history.objective[-1]:.4f}{validation} per value"
