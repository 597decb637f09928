"""Training on series: the multi-horizon evidence of minibatches of windows, scored on validation data."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.data.batching import SeriesBatch
from prodssm.data.long import Pool
from prodssm.data.series import Series, Values
from prodssm.methods.base import Method, find_method
from prodssm.models.state_space import StateSpaceModel, require_room
from prodssm.training.checkpoints import describe_method, describe_model
from prodssm.training.devices import share_of, total, training_mesh
from prodssm.training.history import History
from prodssm.training.loop import Task, latest_score, maximise
from prodssm.training.objectives import mean_log_score, mean_squared_error, model_hyper_prior
from prodssm.training.recipe import SERIES_RECIPE, Pace, Recipe
from prodssm.training.stability import is_stable, stabilised

NOISE_FACTORS = (1.0, 0.25, 4.0, 16.0, 64.0, 256.0)  # on the process noise, of which the validation data choose one


def train(
    model: StateSpaceModel,
    series: Sequence[Series],
    recipe: Recipe | None = None,
    *,
    key: PRNGKeyArray,
    validation: SeriesBatch | None = None,
    method: str | Method = "moments",
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
    pool: Pool | None = None,
) -> tuple[StateSpaceModel, History]:
    """Train a model by type-II MAP: maximise the evidence of the data plus the hyper-prior with Adam.

    Args:
        model: The initial model.
        series: The training data; lengths may differ.
        recipe: How to train; what is None in it is the default of `ProDSSM`.
        key: Randomness of minibatches, and of a random method.
        validation: Data that are not trained on: training stops when their score no longer improves.
        method: How channels are found, a name or a `Method`.
        checkpoint: A file that an interrupted run resumes from.
        progress: Show a progress bar with the objective per observed value.
        pool: Takes the place of `series` for data on disk: every chunk of iterations sees other parts of them.

    Returns:
        The best model (by the validation score if there is one, else by the objective), and the history.

    Example:
        >>> trained, history = train(ssm, [Series(y)], Recipe(iterations=5), key=jr.key(0), progress=False)
        >>> history.iterations
        [5]
    """
    recipe, method = (recipe or Recipe()).filled(SERIES_RECIPE), find_method(method)
    _require_possible(model, series, recipe, method)
    data = SeriesBatch.stack(series) if pool is None else pool.drawn(0)
    learned, fixed = eqx.partition(model, trainable(model))
    task = SeriesTask(
        fixed=fixed,
        data=data,
        validation=validation,
        prior_weight=np.asarray(recipe.prior_weight, data.record.y.dtype),
        method=method,
        recipe=recipe,
        pace=recipe.pace(data.record.y.dtype),
        stable=is_stable(model),
        full_batch=pool is None and data.is_full_batch(recipe.batch_size, recipe.window_length) and not method.random,
        devices=training_mesh(recipe.batch_size or len(series)),
    )
    renewed = None if pool is None else lambda task, done: replace(task, data=pool.drawn(done))
    best, history = maximise(task, learned, key=key, checkpoint=checkpoint, progress=progress, renewed=renewed)
    return task.model(best), history


def _require_possible(model: StateSpaceModel, series: Sequence[Series], recipe: Recipe, method: Method) -> None:
    """Raise before any work if the likelihood does not allow the data, or components, which a gradient keeps, exceed memory."""
    for each in series:
        model.likelihood.require_data(each.y)
    longest = max(len(each) for each in series)
    length = min(recipe.window_length or longest, longest)
    require_room(method, model.x_size, length * (recipe.batch_size or len(series)), model.dtype.itemsize)


def trainable(model: StateSpaceModel, *, initial: bool = True) -> Any:
    """Which leaves of a model are learned, as a tree of booleans; without `initial`, not its initial belief."""
    spec = jax.tree.map(eqx.is_inexact_array, model)
    spec = eqx.tree_at(
        lambda m: (m.likelihood, m.transition), spec, (model.likelihood.trainable(), model.transition.trainable())
    )
    if model.emission is not None:
        spec = eqx.tree_at(lambda m: m.emission, spec, model.emission.trainable())
    if not initial:
        spec = eqx.tree_at(lambda m: (m.initial_mean, m.initial_chol), spec, (False, False))
    return spec


class SeriesTask(Task):
    """Training on series, for `prodssm.training.loop.maximise`.

    Attributes:
        stable: Whether the linear part beside the network has to stay stable.
        full_batch: Whether every iteration sees all data deterministically, so that objectives can be compared.
        devices: Those that share every batch; None for a single one.
    """

    fixed: Any
    data: SeriesBatch
    validation: SeriesBatch | None
    prior_weight: Float[Values, ""]
    method: Method
    recipe: Recipe = eqx.field(static=True)
    pace: Pace
    stable: bool = eqx.field(static=True)
    full_batch: bool = eqx.field(static=True)
    devices: Mesh | None = eqx.field(static=True, default=None)

    def model(self, learned: Any) -> StateSpaceModel:
        """The model with these parameters."""
        model = eqx.combine(learned, self.fixed)
        return stabilised(model) if self.stable else model

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective of one batch, per observed value; on several devices this one's share of it."""
        model, recipe = self.model(learned), self.recipe
        draw_key, method_key = jr.split(key)
        (members, starts), counts = share_of(self.data.draw(draw_key, recipe.batch_size, recipe.window_length), self.mesh)
        batch, scored = self.data.select(members, starts, recipe.window_length)
        scored = scored if counts is None else scored * counts[:, None]
        method = self.method.seeded(method_key)
        score = mean_log_score(recipe.training_objective, model, batch, scored, method=method, mesh=self.mesh)
        count = 1 if self.mesh is None else self.mesh.size
        return score + self.prior_weight * model_hyper_prior(model) / (self.data.observed * count)

    def evaluate(self, learned: Any, objective: Array, done: Array) -> tuple[Any, Float[Array, ""]]:
        """The validation score, or the objective without validation data.

        Training data are predicted better than new data, so a model is overconfident about the latter. With `calibrate` it is
        kept with the multiple of its constant process noise that has the best validation score.
        """
        if self.validation is None:
            return learned, objective if self.full_batch else latest_score(objective, done)
        if not self.recipe.calibrate or learned.log_process_noise is None:
            return learned, self.validation_score(learned)
        changes = jnp.log(jnp.asarray(NOISE_FACTORS, learned.log_process_noise.dtype))

        def with_noise(change: Array) -> Any:
            return eqx.tree_at(lambda m: m.log_process_noise, learned, learned.log_process_noise + change)

        scores = jax.lax.map(lambda change: self.validation_score(with_noise(change)), changes)
        best = jnp.argmax(jnp.where(jnp.isnan(scores), -jnp.inf, scores))
        return with_noise(changes[best]), scores[best]

    def validation_score(self, learned: Any) -> Float[Array, ""]:
        """Mean log score of the validation data, or minus their mean squared error."""
        model, held_out = self.model(learned), self.validation
        assert held_out is not None
        parts, counts = share_of((held_out.record, held_out.scored, held_out.given), self.mesh)
        record, scored, given = parts
        scored = scored if counts is None else scored * counts[:, None]
        settings: dict[str, Any] = {"method": self.method, "mesh": self.mesh}
        if self.recipe.validation_score == "squared_error":
            return total(-mean_squared_error(model, record, scored, given, **settings), self.mesh)
        return total(mean_log_score(self.recipe.validation_objective, model, record, scored, given, **settings), self.mesh)

    @property
    def mesh(self) -> Mesh | None:
        """The devices that share every batch."""
        return self.devices

    @property
    def validated(self) -> bool:
        """Whether there are validation data."""
        return self.validation is not None

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        words = (describe_method(self.method), *describe_model(self.fixed))
        return words, (self.fixed, self.data, self.validation, self.method)


def require_scored(data: Sequence[Series], validation: SeriesBatch | None, recipe: Recipe) -> None:
    """Raise unless training and validation data have observations to score at every horizon."""
    training, fraction = SeriesBatch.stack(data), recipe.validation
    if not training.observed:
        rest = f" that validation={fraction} leaves; give more data, or a smaller fraction" if fraction else ""
        raise ValueError(f"data must have observations after the first of a series, to learn from{rest}")
    if missed := recipe.training_objective.unreached_horizons(training, recipe.window_length):
        longest = min(training.longest, recipe.window_length or training.longest)
        raise ValueError(
            f"horizons must reach observations to learn from, got {recipe.horizons} of which none of {missed} does "
            f"in series or windows of at most {longest} steps; give shorter horizons, longer windows, or more data"
        )
    if validation is None:
        return
    held_out = f"validation={fraction} holds out" if fraction else "is validation data"
    if not validation.observed:
        raise ValueError(f"what {held_out} must have observations after the first of a series; give more data")
    if missed := recipe.validation_objective.unreached_horizons(validation):
        name = "horizons" if recipe.validation_horizons is None else "validation_horizons"
        longest = validation.longest
        raise ValueError(
            f"{name} must reach observations of what {held_out}, got {recipe.validation_objective.horizons} of which none of "
            f"{missed} does in series of at most {longest} steps; give shorter validation_horizons, or more data"
        )
