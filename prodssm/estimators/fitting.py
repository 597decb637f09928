"""How one ensemble member of `ProDSSM` is trained: initialisation, stages, and what is done when training fails."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np

from prodssm._jobs import in_parallel, run_jobs
from prodssm._progress import Progress
from prodssm.data.folds import Block
from prodssm.data.layout import Layout
from prodssm.data.long import LongSeries, Pool
from prodssm.data.scaling import DataScaling
from prodssm.data.series import Series
from prodssm.data.splitting import Split
from prodssm.estimators.fitted import FittedModel
from prodssm.methods.base import Method
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.state_space import StateSpaceModel, require_memory
from prodssm.training.history import History
from prodssm.training.initialisation import Architecture, KnownParts, random_model
from prodssm.training.linear_start import linear_start
from prodssm.training.recipe import Recipe, stages
from prodssm.training.series_task import require_scored, train

STRETCH, STRETCHES = 1000, 32  # time steps of a stretch of a long series at least, and their number without minibatches
LEAST_WINDOWS = 4  # of training in a stretch
FITTED_START_WARM_UP = 0.2  # of the iterations: full steps of Adam would destroy a fitted initialisation


@dataclass(frozen=True)
class LongSource:
    """A series on disk, of which the series of a fit are pieces.

    Attributes:
        series: The series.
        begins: First time step of each piece.
        observed: About how many values it has.
    """

    series: LongSeries
    begins: tuple[int, ...]
    observed: float

    @classmethod
    def of(cls, long: LongSeries, begins: Sequence[int], pieces: Sequence[Series]) -> "LongSource | None":
        """The source of these pieces; None if they are all there is, and in memory."""
        if len(pieces) == 1:
            return None
        values = np.concatenate([np.asarray(each.y) for each in pieces])
        return cls(long, tuple(begins), float(np.isfinite(values).mean() * len(long) * values.shape[1]))

    def pool(self, scaling: DataScaling, split: Split, recipe: Recipe, seed: int) -> Pool:
        """The stretches that this recipe draws its windows from; what is held out is missing in them."""
        spans = tuple((self.begins[n] + begin, self.begins[n] + end) for n, begin, end in split.held_out)
        length = max(STRETCH, LEAST_WINDOWS * (recipe.window_length or 0))
        return Pool(self.series, scaling, spans, self.observed, recipe.batch_size or STRETCHES, length, seed)


@dataclass(frozen=True)
class MemberFit:
    """All that the training of one member needs.

    Attributes:
        architecture: Shape of the model.
        likelihood: In standardised units.
        recipe: How to train.
        method: How channels are found.
        scaling: The scaling of the data.
        checkpoint: How the names of checkpoint files begin; None for none.
        progress: Show a progress bar.
        layout: The columns of the data frame that the data came from, if it was one.
        training_method: How channels are found in training, if otherwise.
        known: Functions that the user knows, in the units of the model.
        long: The series on disk that windows are drawn from; None if all data are in memory.
    """

    architecture: Architecture
    likelihood: Likelihood
    recipe: Recipe
    method: Method
    scaling: DataScaling
    checkpoint: str | None
    progress: bool
    layout: Layout | None = None
    training_method: Method | None = None
    known: KnownParts = KnownParts()  # noqa: RUF009
    long: LongSource | None = None

    def numbered(self, n: int) -> "MemberFit":
        """How the n-th member is trained: its checkpoint has its number."""
        return self if self.checkpoint is None or n == 0 else replace(self, checkpoint=f"{self.checkpoint}.{n}")

    def split(
        self, series: list[Series], validation_data: Any, seed: int, folds: Sequence[Sequence[Block]] = (), fold: int = 0
    ) -> Split:
        """Training and validation data: one of these folds, the user's own choice, or a fraction of the data."""
        if self.long is not None and not folds and (self.recipe.validation or isinstance(validation_data, slice)):
            raise ValueError("of a LongSeries validation_data must be other series, not a fraction or a slice of it")
        if folds:
            found = Split.by_blocks(series, folds[fold], among=folds)
        elif validation_data is None:
            found = Split.by_fraction(series, self.recipe.validation, seed)
        elif self.recipe.validation:
            raise ValueError(
                f"validation_data takes the place of a fraction; give Recipe(validation=0), got {self.recipe.validation}"
            )
        elif isinstance(validation_data, slice):
            found = Split.by_slice(series, validation_data)
        else:
            found = Split.by_series(series, [self.scaling.transform_series(each) for each in validation_data])
        if self.recipe.scores_free_runs and found.validation is not None:
            found = found._replace(validation=found.validation.in_free_run(self.recipe.context))
        require_scored(found.training, found.validation, self.recipe)
        return found

    def run(self, split: Split, seed: int, start: StateSpaceModel | None = None) -> tuple[StateSpaceModel, History]:
        """Train one member from this seed, or from a model that has been trained already."""
        columns, model, recipe = np.concatenate([each.y for each in split.training]), start, self.recipe
        if model is None:
            parts = self.architecture, columns, self.scaling.controls, self.likelihood
            model = random_model(*parts, key=jr.key(seed), known=self.known)
        self._require_memory(model, split.training)
        fitted = start is not None
        linear = self.architecture.emission in ("linear", "feedthrough") and self.known.physics is None
        if not fitted and recipe.linear_start and linear:
            model, fitted = linear_start(model, linked(split.training, model.likelihood)), True
        if fitted and recipe.warm_up is None:
            recipe = replace(recipe, warm_up=FITTED_START_WARM_UP)
        history, method = History(), self.training_method or self.method
        for n, (weights, stage) in enumerate(stages(self.architecture.weights, recipe)):
            model, found = train(
                model.with_weight_mode(weights),
                split.training,
                stage,
                key=jr.fold_in(jr.key(seed), 0),
                validation=split.validation,
                method=method.seeded(jr.key(seed)),
                checkpoint=None if self.checkpoint is None else self.checkpoint + (".fine_tune" if n else ""),
                progress=self.progress,
                pool=self._pool(split, stage, seed),
            )
            history = history.followed_by(found)
            if found.interrupted:
                break
            if n == 0 and stage.free_run and split.validation is not None:
                model, history = self._free_run(model, history, split, stage, seed)
                if history.interrupted:
                    break
        return model.with_weight_mode(self.architecture.weights), history

    def _free_run(
        self, model: StateSpaceModel, before: History, split: Split, recipe: Recipe, seed: int
    ) -> tuple[StateSpaceModel, History]:
        """The model after some iterations of the free-run objective, if it predicts validation data better then."""
        recipe = recipe.free_running(max(len(each) for each in split.training), len(split.training))
        later, found = train(
            model,
            split.training,
            recipe,
            key=jr.fold_in(jr.key(seed), 1),
            validation=split.validation,
            method=(self.training_method or self.method).seeded(jr.key(seed)),
            checkpoint=None if self.checkpoint is None else self.checkpoint + ".free_run",
            progress=self.progress,
            pool=self._pool(split, recipe, seed),
        )
        better = found.best_validation > before.best_validation
        return later if better else model, before.followed_by(found)

    def _pool(self, split: Split, recipe: Recipe, seed: int) -> Pool | None:
        return None if self.long is None else self.long.pool(self.scaling, split, recipe, seed)

    def _require_memory(self, model: StateSpaceModel, series: Sequence[Series]) -> None:
        """Raise before any work if the beliefs of a batch, which a gradient keeps, exceed memory."""
        longest = max(len(each) for each in series)
        length = min(self.recipe.window_length or longest, longest)
        require_memory(model, length * (self.recipe.batch_size or len(series)), self.method)


def linked(series: Sequence[Series], likelihood: Likelihood) -> list[Series]:
    """The series of what a linear model of g is fitted to in place of standardised observations."""
    return [eqx.tree_at(lambda one: one.y, each, likelihood.link(np.asarray(each.y))) for each in series]


def fit_members(
    fit: MemberFit,
    series: list[Series],
    validation_data: Any,
    seeds: Sequence[int],
    held_out: Sequence[Sequence[Block]] | None = None,
) -> tuple[FittedModel, ...]:
    """One model per seed. After an interruption the models that are complete are kept, or else the incomplete one.

    Args:
        fit: How each is trained.
        series: Standardised.
        validation_data: What the user holds out.
        seeds: Of the models.
        held_out: The blocks that each holds out, if the user says nothing.
    """
    elsewhere = in_parallel() and len(seeds) > 1
    one = replace(fit, progress=fit.progress and not elsewhere)
    calls = [(one.numbered(n), series, validation_data, seed, held_out or (), n) for n, seed in enumerate(seeds)]
    found: dict[int, FittedModel] = {}
    bar = Progress("members", len(seeds), "member", shown=fit.progress) if elsewhere else None
    try:
        for n, (ssm, history) in run_jobs(_fitted, calls):
            method = fit.method.seeded(jr.key(seeds[n]))
            found[n] = FittedModel(ssm, fit.scaling, method, seeds[n], history, fit.layout)
            if bar is not None:
                bar.update()
            if history.interrupted:
                break
    except KeyboardInterrupt:  # of the process that waits for workers
        if not found:
            raise
    finally:
        if bar is not None:
            bar.close()
    members = [found[n] for n in sorted(found)]
    finite = [each for each in members if not each.history.objective or np.isfinite(each.history.objective).any()]
    if not finite:
        raise FloatingPointError(
            "training never had a finite objective, so nothing was learned: the initial model is unstable on these data, "
            "or the first steps are too large; give shorter horizons or windows, a smaller learning_rate, another "
            "random_state, or residual=False"
        )
    if len(finite) < len(members):
        lost = f"{len(members) - len(finite)} of {len(members)}"
        warnings.warn(f"{lost} models never had a finite objective and were left out", UserWarning, stacklevel=3)
    complete = [each for each in finite if not each.history.interrupted]
    stopped = len(members) < len(seeds) or any(each.history.interrupted for each in members)
    if complete and stopped:
        kept = f"{len(complete)} of {len(seeds)}"
        warnings.warn(f"interrupted: the {kept} models that are complete are kept", UserWarning, stacklevel=3)
    return tuple(complete or finite)


def _fitted(
    fit: MemberFit, series: list[Series], validation_data: Any, seed: int, held_out: Sequence[Sequence[Block]], n: int
) -> tuple[StateSpaceModel, History]:
    """One trained model."""
    return fit.run(fit.split(series, validation_data, seed, held_out, n), seed)


def train_members_further(
    fit: MemberFit, members: Sequence[FittedModel], series: list[Series], validation_data: Any
) -> tuple[FittedModel, ...]:
    """The members after more training, each from what it has learned; after an interruption the others stay as they are."""
    found: list[FittedModel] = []
    for n, member in enumerate(members):
        chosen = fit.numbered(n)
        ssm, history = chosen.run(chosen.split(series, validation_data, member.seed), member.seed, member.ssm)
        if history.objective and not np.isfinite(history.objective).any():
            raise FloatingPointError(
                "training never had a finite objective: the model is unstable on these data, and stays as it was"
            )
        found.append(replace(member, ssm=ssm, history=history))
        if history.interrupted:
            return (*found, *members[n + 1 :])
    return tuple(found)


def warn_of_training(history: History) -> None:
    """Warn if training was interrupted or diverged."""
    if not history.iterations:
        warnings.warn("interrupted before anything was learned: this is the untrained model", UserWarning, stacklevel=3)
    elif history.interrupted:
        done = history.iterations[-1]
        warnings.warn(f"interrupted after {done} iterations: the best model so far is kept", UserWarning, stacklevel=3)
    elif history.diverged:
        warnings.warn(f"training: {history.stop_reason}; try a smaller learning_rate", UserWarning, stacklevel=3)
