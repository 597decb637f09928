"""One compiled step, one loop: minibatches, early stopping, checkpoints that resume bit by bit, progress, a history."""

import hashlib
import json
import os
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray
from tqdm.auto import tqdm

from prodssm.activations import Activation
from prodssm.batches import Data
from prodssm.checks import require_integer, require_number
from prodssm.methods import METHODS
from prodssm.model import StateSpaceModel
from prodssm.objective import Objective, mean_foreseen, model_prior
from prodssm.persistence import flatten, read, restore, write
from prodssm.series import Series

CHUNK = 25  # iterations per compiled call; progress, validation and checkpoints come between two of them
SCHEDULES = ("constant", "cosine")
MULTIPLES = (1.0, 0.25, 4.0, 16.0, 64.0, 256.0)  # multiples of the process noise that a held-out part may ask for
VARIANCES = ("log_process_noise", "log_measurement_noise", "weight_log_var", "bias_log_var")
REFINE_RATE = 0.2  # of the learning rate, for a model that has been trained already


@dataclass
class History:
    """What training saw, chunk by chunk.

    Attributes:
        iterations: Iterations done.
        objective: What is maximised, per observed value, mean over the chunk.
        validation: How well the held-out part was foreseen, per observed value; empty without one, NaN where one of several
            runs has none.
        seconds: Time since the start.
        stopped: Why training ended.
    """

    iterations: list[int] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stopped: str = "all iterations done"

    def followed_by(self, later: "History") -> "History":
        """This run and a later one, as if they were one."""
        done, spent = sum(self.iterations[-1:]), sum(self.seconds[-1:])
        judged = self.validation or later.validation
        return History(
            [*self.iterations, *(done + n for n in later.iterations)],
            self.objective + later.objective,
            [value for part in (self, later) for value in part.validation or [np.nan] * len(part.iterations) if judged],
            [*self.seconds, *(spent + s for s in later.seconds)],
            later.stopped if np.isfinite(self.objective).all() or not np.isfinite(later.objective).all() else self.stopped,
        )


@dataclass(frozen=True)
class Recipe:
    """How to train. The defaults are the same for all problems; docs/recipe.md tells how they were found.

    Attributes:
        iterations: Steps of the optimiser.
        learning_rate: Adam's, at its highest.
        schedule: "cosine" (falls to a hundredth) or "constant".
        clip: Largest norm of the gradient of the objective per observed value.
        prior_weight: Weight of the hyper-prior; the paper has 1.
        batch: Series (or windows) per step; None takes all series.
        window: Length of the windows that are drawn from the series; None takes whole series.
        objective: What is maximised besides the hyper-prior.
        patience: Iterations without progress on the held-out part after which to stop.
        judged: Horizons by which the held-out part is foreseen; None takes those of the objective.
        calibrate: Whether a held-out part also says how large the process noise is.
        variance_rate: How many times faster the logarithms of variances are learned than all else.
        warm_up: Share of the iterations over which the learning rate rises. Adam's first steps move every parameter by the
            whole rate, whatever its gradient, which takes apart a model that starts out fitted.
    """

    iterations: int = 500
    learning_rate: float = 0.01
    schedule: str = "cosine"
    clip: float = 1.0
    prior_weight: float = 0.2
    batch: int | None = None
    window: int | None = None
    objective: Objective = Objective()  # noqa: RUF009 - a named tuple
    patience: int = 200
    judged: tuple[int, ...] | None = None
    calibrate: bool = True
    variance_rate: float = 1.0
    warm_up: float = 0.0

    def check(self) -> "Recipe":
        """Itself, or an error."""
        require_integer("iterations", self.iterations, least=1)
        require_integer("patience", self.patience, least=1)
        for name in ("learning_rate", "clip", "variance_rate"):
            require_number(name, getattr(self, name))
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        require_number("prior_weight", self.prior_weight)
        if self.prior_weight < 0:
            raise ValueError(f"prior_weight must not be negative, got {self.prior_weight}")
        require_number("warm_up", self.warm_up)
        if not 0 <= self.warm_up <= 1:
            raise ValueError(f"warm_up must be a share between 0 and 1, got {self.warm_up}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule must be one of {', '.join(SCHEDULES)}; got {self.schedule!r}")
        if self.batch is not None:
            require_integer("batch", self.batch, least=1)
        if self.window is not None:
            require_integer("window", self.window, least=2)
        self.objective.check()
        self.judge.check("validation_horizons")
        return self

    @property
    def judge(self) -> Objective:
        """What counts on a held-out part."""
        return self.objective if self.judged is None else self.objective._replace(horizons=self.judged)

    def optimiser(self) -> optax.GradientTransformation:
        """Adam behind a clipped gradient."""
        usual = optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(self.rate()))
        return usual if self.variance_rate == 1 else optax.chain(usual, optax.stateless(self._hurried))

    def rate(self) -> float | optax.Schedule:
        """The learning rate: one number, or one for each iteration from 0 on."""
        if self.schedule == "cosine":
            falling = optax.cosine_decay_schedule(self.learning_rate, self.iterations, alpha=0.01)
        elif self.warm_up:
            falling = optax.constant_schedule(self.learning_rate)
        else:
            return self.learning_rate
        rising = round(self.warm_up * self.iterations)
        return (lambda n: falling(n) * jnp.minimum((n + 1) / rising, 1.0)) if rising else falling

    def _hurried(self, updates: Any, _: Any = None) -> Any:
        """Adam moves a parameter by at most its rate, and logarithms have further to go than weights."""

        def scaled(path: Any, update: Array) -> Array:
            return update * self.variance_rate if getattr(path[-1], "name", None) in VARIANCES else update

        return jax.tree_util.tree_map_with_path(scaled, updates)


Stage = tuple[str, Recipe]  # a kind of weights, and how to learn them


def stages_of(weights: str, recipe: Recipe, refine: int | None) -> list[Stage]:
    """How weights of a kind are learned: those that are drawn once as if redrawn at first, unless `refine` is None.

    From scratch, weights that are drawn once are many times slower to learn and stay too wide (docs/recipe.md).
    """
    if weights != "global" or refine is None:
        return [(weights, recipe)]
    return [("local", recipe), ("global", slower(recipe, refine))]


def slower(recipe: Recipe, iterations: int) -> Recipe:
    """How a model is trained on that has been trained already."""
    return replace(recipe, iterations=iterations, learning_rate=recipe.learning_rate * REFINE_RATE)


def trainable(
    model: StateSpaceModel, *, measurement_noise: bool = True, process_noise: bool = True, initial: bool = True
) -> Any:
    """Which leaves of a model are learned, as a tree of booleans; without `process_noise`, not its constant."""
    spec = jax.tree.map(eqx.is_inexact_array, model)
    if not process_noise and model.log_process_noise is not None:
        spec = eqx.tree_at(lambda m: m.log_process_noise, spec, False)
    if not measurement_noise:
        spec = eqx.tree_at(lambda m: m.log_measurement_noise, spec, False)
    if not initial:
        spec = eqx.tree_at(lambda m: (m.initial_mean, m.initial_root), spec, (False, False))
    return spec


class Progress(eqx.Module):
    """All that a run needs to go on where it stopped."""

    learned: Any
    state: Any
    best: Any
    best_value: Array
    best_iteration: Array


def train(
    model: StateSpaceModel,
    series: Sequence[Series],
    recipe: Recipe,
    *,
    key: PRNGKeyArray,
    held_out: Data | None = None,
    method: str = "moments",
    options: dict[str, Any] | None = None,
    spec: Any = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> tuple[StateSpaceModel, History]:
    """Maximise how well the data were foreseen, plus the hyper-prior, by Adam.

    Args:
        model: Where to start.
        series: The data; series of unequal length are welcome.
        recipe: How.
        key: Randomness of minibatches (and of the method, if it samples).
        held_out: Data that are not trained on: training stops when they are no longer foreseen better.
        method: How channels are found.
        options: For the method.
        spec: Which leaves are learned; `trainable(model)` if not given.
        checkpoint: A file to keep what a run needs to go on; if it is there already, the run goes on from it.
        progress: Show a bar with the current objective per observed value.

    Returns:
        The best model seen (by the held-out part if there is one, else by the objective), and the history.
    """
    recipe.check()
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    data = Data.of(series)
    learned, fixed = eqx.partition(model, trainable(model) if spec is None else spec)
    task = Task(
        fixed=fixed,
        data=data,
        held_out=held_out,
        prior_weight=jnp.asarray(recipe.prior_weight, data.frames.y.dtype),
        options=options or {},
        recipe=recipe,
        method=method,
    )
    best, history = maximise(task, learned, key=key, checkpoint=checkpoint, progress=progress)
    return eqx.combine(best, fixed), history


class Goal(eqx.Module):
    """What the loop asks of a task: series to foresee, rows to predict, whatever has an objective.

    Attributes:
        recipe: How to train.
        prior_weight: Weight of the hyper-prior, in the precision of the objective; it overrules that of the recipe.
        averaged: Whether the mean of the last parameters is kept rather than the last ones, which jump about if batches are
            small.
    """

    averaged: ClassVar[bool] = False
    recipe: eqx.AbstractVar[Recipe]
    prior_weight: eqx.AbstractVar[Array]

    @property
    @abstractmethod
    def validated(self) -> bool:
        """Whether `worth` is measured on data that are not trained on."""

    @property
    @abstractmethod
    def substance(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and numbers that tell one task from another."""

    @abstractmethod
    def objective(self, learned: Any, key: PRNGKeyArray) -> Array:
        """What is maximised, on one batch."""

    @abstractmethod
    def worth(self, learned: Any, objective: Array, done: Array) -> tuple[Any, Array]:
        """Parameters as they would be kept, and how good they are.

        Args:
            learned: Parameters that training has reached.
            objective: The mean objective on the way to them.
            done: How many iterations that took.
        """

    def optimiser(self) -> optax.GradientTransformation:
        """How parameters move."""
        return self.recipe.optimiser()

    def compiled(self) -> "Goal":
        """The task as it is compiled: without what may change from one to the next and yet need no new compilation."""
        return self


def later_is_better(objective: Array, done: Array) -> Array:
    """What parameters are worth that only a few batches can judge: these would choose lucky batches, not good parameters."""
    return jnp.where(jnp.isfinite(objective), done.astype(objective.dtype), -jnp.inf)


def maximise(
    task: Goal,
    learned: Any,
    *,
    key: PRNGKeyArray,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> tuple[Any, History]:
    """The loop of all training: the best parameters seen, and the history. Ctrl-C ends it and keeps the best so far.

    Args:
        task: What is maximised, and how.
        learned: Parameters to start from.
        key: Randomness.
        checkpoint: A file to keep what a run needs to go on; if it is there already, the run goes on from it.
        progress: Show a bar.
    """
    limit = task.recipe.iterations
    # By way of NumPy, or types that are still open at the start would be settled later, and all be compiled twice.
    learned = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), learned)
    nothing = jnp.full((), -jnp.inf, task.prior_weight.dtype)
    run = Progress(learned, task.optimiser().init(learned), learned, nothing, jnp.zeros((), jnp.int32))
    history, identity = History(), _identity(run, task, key)
    if checkpoint is not None and Path(checkpoint).exists():
        run, history = _resume(checkpoint, run, identity)
    clock = time.monotonic() - (history.seconds[-1] if history.seconds else 0.0)
    done = sum(history.iterations[-1:])
    bar = tqdm(total=limit, initial=done, disable=not progress, desc="training", unit="it")
    try:
        while not _is_over(run, history, task):
            length = (limit - done) % CHUNK or CHUNK  # a short chunk comes first, so that the last mean is over a whole one
            counts = (jnp.asarray(np.int32(count)) for count in (done + length, length))
            run, objective, value = _run_chunk(run, task.compiled(), jr.fold_in(key, done), *counts)
            reached = float(objective), float(value)  # what waits comes first: Ctrl-C must not leave half a row
            done += length
            history.iterations.append(done)
            history.objective.append(reached[0])
            history.validation += [reached[1]] if task.validated else []
            history.seconds.append(time.monotonic() - clock)
            if checkpoint is not None:
                _keep(checkpoint, run, history, identity)
            bar.update(length)
            bar.set_postfix_str(_postfix(history))
    except KeyboardInterrupt:
        history.stopped = "interrupted; the best model so far is returned"
    finally:
        bar.close()
    return run.best, history


class Task(Goal):
    """What does not change from one iteration to the next."""

    fixed: Any
    data: Data
    held_out: Data | None
    prior_weight: Array
    options: dict[str, Any]
    recipe: Recipe = eqx.field(static=True)
    method: str = eqx.field(static=True)

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """What is maximised, on one batch, per observed value."""
        model = eqx.combine(learned, self.fixed)
        draw_key, method_key = jr.split(key)
        batch, scored = self.data.batch(*self.data.draw(draw_key, self.recipe.batch, self.recipe.window), self.recipe.window)
        options = self.options | {"key": method_key} if "key" in self.options else self.options
        found = mean_foreseen(self.recipe.objective, model, batch, scored, method=self.method, options=options)
        return found + self.prior_weight * model_prior(model) / self.data.observed

    def worth(self, learned: Any, objective: Array, done: Array) -> tuple[Any, Float[Array, ""]]:
        """How well the held-out part is foreseen, or the objective where nothing is held out.

        What was trained on is foreseen better than what was not, so a model is too sure of the latter. If `calibrate`, it is
        kept with the multiple of its process noise that foresees the held-out part best.
        """
        if self.held_out is None:
            return learned, objective if self.whole else later_is_better(objective, done)
        if not self.recipe.calibrate or learned.log_process_noise is None:
            return learned, self.foreseen(learned)
        changes = jnp.log(jnp.asarray(MULTIPLES, learned.log_process_noise.dtype))

        def with_noise(change: Array) -> Any:
            return eqx.tree_at(lambda m: m.log_process_noise, learned, learned.log_process_noise + change)

        found = jax.lax.map(lambda change: self.foreseen(with_noise(change)), changes)
        best = jnp.argmax(jnp.where(jnp.isnan(found), -jnp.inf, found))
        return with_noise(changes[best]), found[best]

    def foreseen(self, learned: Any) -> Float[Array, ""]:
        """How well the held-out part is foreseen."""
        model, held = eqx.combine(learned, self.fixed), self.held_out
        assert held is not None
        return mean_foreseen(self.recipe.judge, model, held.frames, held.scored, method=self.method, options=self.options)

    def compiled(self) -> "Task":
        """The task without its recipe's prior weight, which it has as a number of its own, and patience, which the loop has."""
        return replace(self, recipe=replace(self.recipe, prior_weight=0.0, patience=1))

    @property
    def whole(self) -> bool:
        """Whether every iteration sees all there is, so that objectives can be compared."""
        return self.data.drawn_whole(self.recipe.batch, self.recipe.window) and "key" not in self.options

    @property
    def validated(self) -> bool:
        """Whether a part is held out."""
        return self.held_out is not None

    @property
    def substance(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """What tells this task from another: words and numbers."""
        return (self.method, *described(self.fixed, self.options)), (self.fixed, self.data, self.held_out, self.options)


@eqx.filter_jit
def _run_chunk(run: Progress, task: Goal, key: PRNGKeyArray, done: Array, length: Array) -> tuple[Progress, Array, Array]:
    """Some iterations in one compiled loop, so that a small model does not wait for Python."""
    optimiser = task.optimiser()

    def body(n, carry):
        learned, state, mean, total = carry
        value, grads = jax.value_and_grad(lambda p: -task.objective(p, jr.fold_in(key, n)))(learned)
        updates, state = optimiser.update(grads, state, learned)
        learned = eqx.apply_updates(learned, updates)
        if task.averaged:
            mean = jax.tree.map(lambda old, new: old + (new - old) / (n + 1).astype(new.dtype), mean, learned)
        return learned, state, mean, total - value

    # A loop whose length is a number like any other: a shorter chunk is not compiled again.
    nothing = jnp.zeros((), task.prior_weight.dtype)
    learned, state, mean, total = jax.lax.fori_loop(0, length, body, (run.learned, run.state, run.learned, nothing))
    objective = total / length
    kept, value = task.worth(mean if task.averaged else learned, objective, done)
    # The objective was that of the parameters before the last update, which may have spoilt them.
    sound = jnp.stack([~jnp.isnan(leaf).any() for leaf in jax.tree.leaves(kept)]).all()
    better = (value > run.best_value) & sound
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), kept, run.best)
    best_value = jnp.where(better, value, run.best_value)
    return Progress(learned, state, best, best_value, jnp.where(better, done, run.best_iteration)), objective, value


def _is_over(run: Progress, history: History, task: Goal) -> bool:
    """Whether training is done, and why."""
    if not history.iterations:
        return False
    if not np.isfinite(history.objective[-1]):
        history.stopped = "the objective was no longer finite; the best model so far is returned"
        return True
    if task.validated and history.iterations[-1] - int(run.best_iteration) >= task.recipe.patience:
        history.stopped = f"no progress on the held-out part since iteration {int(run.best_iteration)}; that model is returned"
        return True
    return history.iterations[-1] >= task.recipe.iterations


def _postfix(history: History) -> str:
    held = f", held out {history.validation[-1]:.4f}" if history.validation else ""
    return f"log likelihood {history.objective[-1]:.4f}{held} per value"


# Checkpoints


def described(model: StateSpaceModel, options: dict[str, Any] | None = None) -> tuple[str, ...]:
    """What a model and the options of its method are besides arrays, in words."""
    networks = [network for network in (model.transition, model.emission, model.process_network) if network is not None]
    activations = [layer.name for network in networks for layer in network.layers if isinstance(layer, Activation)]
    chosen = [f"{name}={value}" for name, value in sorted((options or {}).items()) if name != "key"]
    return model.weights, str(model.residual), str(model.measurement_floor), str(model.rank), *activations, *chosen


def _identity(run: Progress, task: Goal, key: PRNGKeyArray) -> str:
    """A fingerprint of where a run starts and what it is given: a checkpoint of anything else is not continued."""
    words, numbers = task.substance
    digest = hashlib.sha256(json.dumps([asdict(task.recipe), *words], sort_keys=True).encode())
    for name, array in flatten((run.learned, *numbers, key)).items():
        digest.update(name.encode() + str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _keep(path: str | os.PathLike[str], run: Progress, history: History, identity: str) -> None:
    config = {"identity": identity, "iterations": history.iterations}
    numbers = {f"history.{name}": np.asarray(getattr(history, name), float) for name in ("objective", "validation", "seconds")}
    write(path, "checkpoint", config, flatten(run) | numbers)


def _resume(path: str | os.PathLike[str], template: Progress, identity: str) -> tuple[Progress, History]:
    stored = read(path)
    if stored.kind != "checkpoint" or stored.config.get("identity") != identity:
        raise ValueError(
            f"checkpoint {path} belongs to another run (other data, settings or seed); delete it or choose another path"
        )
    numbers = {name: stored.arrays.pop(f"history.{name}").tolist() for name in ("objective", "validation", "seconds")}
    return restore(template, stored.arrays), History(iterations=stored.config["iterations"], **numbers)
