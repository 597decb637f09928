"""How `ProDSSM` learns: checks, choices from the data, training of the members, and a check of the result."""

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
from sklearn.base import clone
from tqdm.auto import tqdm

from prodssm._progress import Progress
from prodssm._validation import plain, require_integer
from prodssm.data.folds import Block, folds
from prodssm.data.frames import from_frames, layout_of
from prodssm.data.layout import Layout
from prodssm.data.long import LongSeries
from prodssm.data.scaling import DataScaling
from prodssm.data.series import Series, as_series_list, require_regular, require_trainable
from prodssm.estimators.calibration import Calibration
from prodssm.estimators.checking import check_fit, with_components
from prodssm.estimators.choices import AUTO, MEMBERS, Choices, choose
from prodssm.estimators.fitted import FittedModel, require_fit
from prodssm.estimators.fitting import (
    LongSource,
    MemberFit,
    fit_members,
    linked,
    train_members_further,
    warn_of_training,
)
from prodssm.estimators.held_out import forecast_blocks, pooled_rmse
from prodssm.estimators.parameters import NestedParameters, likelihood_of, require_no_target, seed_of
from prodssm.estimators.physics import known_parts, require_known
from prodssm.estimators.skill import Skill
from prodssm.methods.base import Method, find_method, require_weight_mode
from prodssm.methods.moments import Moments
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.state_space import require_room
from prodssm.scoring.diagnostics import GaussianCheck
from prodssm.training.history import History
from prodssm.training.initialisation import Architecture, KnownParts
from prodssm.training.recipe import SERIES_RECIPE, Recipe

BETTER = 0.97  # times the held-out RMSE of a linear model: what a network must reach
UPDATE_ITERATIONS = 100
PIECES, PIECE = 20, 10_000  # of a series that is not in memory, and their time steps


class Learning(NestedParameters):
    """The part of `ProDSSM` that is fitted."""

    latent_dim: Any
    hidden: Any
    activation: Any
    weights: Any
    residual: Any
    process_noise: Any
    emission: Any
    physics: Any
    measurement_noise: Any
    n_estimators: Any
    checkpoint: Any
    progress: bool
    random_state: Any
    members_: tuple[FittedModel, ...]
    choices_: Choices
    scaling_: DataScaling
    layout_: Layout | None
    check_: GaussianCheck | None
    skill_: Skill | None
    calibration_: Calibration | None
    _long: LongSource | None = None
    _evaluate: Callable[[list[Series], list[list[Block]]], None]

    @property
    def history_(self) -> History:
        """What training recorded, member after member."""
        return reduce(History.followed_by, (member.history for member in self.members_))

    @property
    def method_(self) -> Method:
        """The method of the first member's answers, in which nothing is "auto"."""
        return self.members_[0].method

    def fit(self, data: Any, y: Any = None, *, validation_data: Any = None, warm_start: bool = False) -> Any:
        """Learn from one or many series: an array (time, y), a `Series`, a data frame, or a list of these; or a `LongSeries`.

        A data frame has one column per output; `prodssm.frames.series_of` reads one that also has controls, time stamps or
        several series. Later frames must have the same columns, in any order.

        Ctrl-C ends training and keeps the best model so far. Of a `LongSeries`, which is read from disk, 20 pieces of 10,000
        time steps decide on scaling, choices, skill and calibration, and windows from all of it train.

        Args:
            data: What to learn from.
            y: Ignored; scikit-learn passes it.
            validation_data: What early stopping is based on, in place of a fraction `Recipe(validation=...)` of the data: other
                series, or a slice of the time steps of each series, such as `slice(100, 150)`, which is not trained on.
            warm_start: Go on from what was learned, with the same choices and scaling, rather than anew. Skill and calibration
                stay those of the first fit; `calibrate` measures the latter anew.

        Example:
            >>> model.fit(y).history_.iterations
            [5]
        """
        require_no_target(y)
        if warm_start and hasattr(self, "members_"):
            return self._go_on(data, validation_data, self._checked_recipe(self.choices_.recipe(SERIES_RECIPE)))
        vars(self).pop("members_", None)  # a fit that fails must not leave old weights with a new scaling
        self._check_parameters()
        seed, likelihood = seed_of(self.random_state), self._checked_likelihood()
        pieces = data.spread(PIECES, PIECE) if isinstance(data, LongSeries) else None
        series = self._read(data if pieces is None else [piece for _, piece in pieces])
        series = [self.scaling_.transform_series(each) for each in series]
        self._long = None if pieces is None else LongSource.of(data, [begin for begin, _ in pieces], series)
        self._choose(series, validated=validation_data is not None)
        if validation_data is not None and not isinstance(validation_data, slice):
            validation_data = self._validation_series(validation_data)
        self._tell(str(self.choices_))
        blocks = folds(series, MEMBERS)  # pieces of a long series hold out blocks, because they are long
        held_out = blocks if self.choices_.held_out else None
        self.members_ = self._learn(likelihood.for_data(self.scaling_.y), series, validation_data, seed, held_out)
        warn_of_training(self.history_)
        self.check_, self.skill_, self.calibration_ = None, None, None
        # Whoever interrupts does not want to wait for another compilation.
        if not self.history_.interrupted and likelihood.has_variance:
            with Progress("evaluation", 2, "part", shown=self.progress) as bar:
                self._check_gaussian(series)  # first, because it may choose a mixture
                bar.update()
                self._evaluate(series, blocks)
                bar.update()
        return self

    def choose(self, data: Any) -> Choices:
        """What `fit` would choose for what is "auto", and why, without training; whether hidden layers help shows in training.

        Args:
            data: One or many series, as for `fit`.

        Example:
            >>> model.choose(y).latent_dim
            1
        """
        fresh: Any = clone(self)
        fresh._check_parameters()
        series = fresh._read(data)
        fresh._choose([fresh.scaling_.transform_series(each) for each in series], validated=False)
        return fresh.choices_

    def _read(self, data: Any) -> list[Series]:
        """The data as series, from which layout and scaling are taken."""
        likelihood = self._checked_likelihood()
        self.layout_ = layout_of(data)
        series = self._series(data)
        require_trainable(series)
        rows, outputs = sum(map(len, series)), series[0].y.shape[1]
        if rows < outputs:
            raise ValueError(
                f"y must have a row per time step and a column per output, got {rows} by {outputs}; is it transposed?"
            )
        self.scaling_ = DataScaling.fit(series, regular=self.residual is False, standardise=likelihood.standardiser)
        return series

    def update(self, data: Any, iterations: int = UPDATE_ITERATIONS) -> Any:
        """Follow a system that drifts: go on training on new data for a few iterations, at a fifth of the learning rate.

        Choices, scaling, skill and calibration stay those of `fit`.

        Args:
            data: What has been observed lately: one or many series like those of `fit`.
            iterations: How many; more follow faster, and forget faster what the data do not show.

        Example:
            >>> model.update(y[-20:], iterations=5).forecast(y, steps=3).mean.shape
            (3, 1)
        """
        require_fit(self)
        require_integer("iterations", iterations, least=1)
        recipe = replace(self._checked_recipe(self.choices_.recipe(SERIES_RECIPE)), fine_tune=iterations)
        recipe = replace(
            recipe.fine_tuning(), fine_tune=0, free_run=0, validation=0.0, validation_score="density", calibrate=False
        )
        return self._go_on(data, None, recipe)

    def _go_on(self, data: Any, validation_data: Any, recipe: Recipe) -> Any:
        """Train the members further."""
        self._long = None
        self._check_parameters()
        if not self.choices_.agrees_with(self.get_params(deep=False)):
            raise ValueError("the parameters of this model were changed after fit: call fit again, without warm_start")
        series = self._series(data)
        require_trainable(series)
        series = [self.scaling_.transform_series(each) for each in series]
        if validation_data is not None and not isinstance(validation_data, slice):
            validation_data = self._validation_series(validation_data)
        fit = replace(self._member_fit(self._checked_likelihood().for_data(self.scaling_.y)), recipe=recipe)
        self.members_ = train_members_further(fit, self.members_, series, validation_data)
        warn_of_training(self.history_)
        return self

    def _learn(
        self, likelihood: Likelihood, series: list[Series], validation_data: Any, seed: int, held_out: Any
    ) -> tuple[FittedModel, ...]:
        """The members of the ensemble, without hidden layers where these do not help."""
        seeds = range(seed, seed + self.choices_.n_estimators)
        found = fit_members(self._member_fit(likelihood), series, validation_data, seeds, held_out)
        rivals = self.choices_.has_rival and likelihood.has_variance
        if not rivals or any(each.history.interrupted for each in found) or len(found) < len(seeds):
            return found
        network, self.choices_ = self.choices_, self.choices_.without_hidden()
        fit = self._member_fit(likelihood)
        fit = replace(fit, checkpoint=None if fit.checkpoint is None else f"{fit.checkpoint}.linear")
        try:
            rival = fit_members(fit, series, validation_data, seeds, held_out)
        except FloatingPointError:  # no reason to lose the networks
            rival = ()
        if len(rival) < len(seeds) or any(each.history.interrupted for each in rival):
            self.choices_ = network
            return found
        errors = [pooled_rmse(forecast_blocks(each, series, held_out, out_of_fold=True)) for each in (found, rival)]
        better = errors[0] < BETTER * errors[1]
        reason = f"held-out RMSE {errors[0]:.3g}, without hidden layers {errors[1]:.3g}"
        self.choices_ = (network if better else self.choices_).because(hidden=reason)
        return found if better else rival

    def _tell(self, text: str) -> None:
        if self.progress:
            tqdm.write(text)

    def _check_parameters(self) -> None:
        """Raise before any work if a parameter is wrong."""
        require_known(self.get_params(deep=False))
        if not isinstance(self.residual, bool | np.bool_) and self.residual != AUTO:
            raise TypeError(f"residual must be True, False or 'auto', got {self.residual!r}")
        require_weight_mode(self.weights, self._checked_method())
        require_room(self._checked_method(), size=1)  # more states and time steps need more, and are counted when known
        if self._checked_recipe(SERIES_RECIPE).prior_weight == "auto":
            raise ValueError("prior_weight='auto' is for DeepStochasticRegressor; give a number")
        for name, open_words in (("n_estimators", (AUTO,)), ("latent_dim", (AUTO, None))):
            if getattr(self, name) not in open_words:
                require_integer(name, getattr(self, name), least=1)

    def _choose(self, series: list[Series], *, validated: bool) -> None:
        """Settle what is "auto", from standardised data."""
        recipe, given = self._checked_recipe(SERIES_RECIPE), self.recipe or Recipe()
        params, validated = self.get_params(deep=False), validated or given.validation is not None
        likelihood = self._checked_likelihood()
        said = {"linear_start": bool(recipe.linear_start), "validated": validated, "progress": self.progress}
        found = choose(linked(series, likelihood), params, **said)
        self.choices_ = found.for_likelihood(likelihood).for_method(self._checked_method())
        self.scaling_ = replace(self.scaling_, regular=not self.choices_.residual)
        if not self.choices_.residual:
            for each in series:
                require_regular(each)

    def _member_fit(self, likelihood: Likelihood) -> MemberFit:
        """How each member is trained."""
        recipe = self._checked_recipe(self.choices_.recipe(SERIES_RECIPE))
        if recipe.objective == "bound":
            likelihood.require_bound()
        checkpoint = None if self.checkpoint is None else os.fspath(self.checkpoint)
        architecture, method = self._architecture(self.scaling_.outputs), self._checked_method()
        if method.automatic:
            method = with_components(method, 1)
        # Between hidden units the first order is enough for training, and almost twice as fast as the second.
        default = self.method == "moments" or self.method == Moments(components=AUTO)
        quick = Moments(order=1) if self.choices_.automatic and default else None
        parts = architecture, likelihood, recipe, method, self.scaling_, checkpoint, self.progress, self.layout_
        return MemberFit(*parts, training_method=quick, known=self._known_parts(), long=self._long)

    def _known_parts(self) -> KnownParts:
        """What the user knows, in the units of the model."""
        size, residual = self.choices_.latent_dim, bool(self.choices_.residual)
        return known_parts(self.physics, self.emission, self.scaling_, size, residual=residual)

    def _architecture(self, y_size: int) -> Architecture:
        chosen = self.choices_
        return Architecture(
            latent_dim=chosen.latent_dim,
            hidden=chosen.hidden,
            activation=chosen.activation,
            weights=self.weights,
            residual=bool(chosen.residual),
            process_noise=plain(self.process_noise),
            emission=chosen.emission,
            linear=chosen.linear,
        ).check(y_size)

    def _checked_method(self) -> Method:
        return find_method(self.method, automatic=True)

    def _resolved_method(self) -> Method:
        """The method of answers."""
        found = self._checked_method()
        return with_components(found, self.choices_.components or 1) if found.automatic else found

    def _checked_likelihood(self) -> Likelihood:
        given = super()._checked_likelihood()
        return given if self.measurement_noise is None else likelihood_of(self.measurement_noise, self.likelihood)

    def _validation_series(self, data: Any) -> list[Series]:
        try:
            series = self._series(data)
            for each in series:
                self.scaling_.transform_series(each)
            return series
        except (TypeError, ValueError) as error:
            raise type(error)(f"validation_data: {error}") from error

    def _check_gaussian(self, series: list[Series]) -> None:
        """A small check of the Gaussian assumption, whose failure is a warning; or one that chooses a number of components."""
        choose = self._checked_method().automatic
        checks = check_fit(self.members_[0], series, choose=choose)
        self.check_ = list(checks.values())[-1]
        if choose:
            self.choices_ = self.choices_.checked(checks)
            self._tell(f"components={self.choices_.components} ({self.choices_.reasons['components']})")
            self.members_ = tuple(replace(each, method=self._resolved_method()) for each in self.members_)
        elif not self.check_.holds:
            warnings.warn(self.check_.verdict, UserWarning, stacklevel=3)

    def _series(self, data: Any) -> list[Series]:
        """The data as a list of series, the columns of frames in the order of fit."""
        if isinstance(data, LongSeries):
            raise TypeError("data must be in memory here, got a LongSeries: only fit, filter_in_chunks and forecast take one")
        found = as_series_list(from_frames(data, self.layout_))
        for each in found:
            self._checked_likelihood().require_data(each.y, None if self.layout_ is None else self.layout_.outputs)
        return found
