"""`DeepStochasticRegressor`: deep stochastic layers with predictive variances, in scikit-learn's conventions."""

import os
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from prodssm._jobs import in_parallel, run_jobs
from prodssm._progress import Progress, shared
from prodssm._validation import plain, require_integer
from prodssm.data.rows import Rows
from prodssm.data.scaling import Standardiser
from prodssm.estimators.choices import AUTO
from prodssm.estimators.parameters import NestedParameters
from prodssm.estimators.row_choices import RowChoices, choose_layers, is_auto
from prodssm.estimators.row_predictions import RowPredictions, targets_of
from prodssm.estimators.row_recipe import defaults_for, recipe_for, require_rows_recipe, validation_rows
from prodssm.estimators.selection import (
    CHOOSING_MEMBERS,
    DEFAULT_PRIOR_WEIGHT,
    PRIOR_WEIGHTS,
    Trial,
    best_prior_weight,
)
from prodssm.methods.base import Method, require_weight_mode
from prodssm.methods.moments import Moments
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.regression import LayerStack
from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.activations import find_activation
from prodssm.training.fourier_start import with_features
from prodssm.training.history import History, StopReason
from prodssm.training.initialisation import regression_model, require_sizes
from prodssm.training.loop import maximise
from prodssm.training.recipe import Recipe, Stage, stages
from prodssm.training.regression_task import RegressionTask

PATIENT_SECONDS = 10.0  # of a fit, before "auto" shows a progress bar


class DeepStochasticRegressor(RowPredictions, RegressorMixin, NestedParameters):
    r"""Deep stochastic layers: the inputs are a state, which moves by $x + f(x, w)$ with noise a few times, then emits y.

    The network's weights are uncertain, and mean and variance of every prediction are found in closed form. Inputs and targets
    are standardised inside. Follows scikit-learn's conventions: use it in a `Pipeline`, `GridSearchCV` or `cross_val_score`.

    With fewer than 300 rows, what is "auto" becomes one transition with one hidden layer of sines, which starts at Bayesian
    linear regression on random Fourier features (`prodssm.training.fourier_start`): a Gaussian process in weight space. What is
    given is kept; where it is more than one hidden layer, several steps or another activation, the defaults are those of many
    rows.

    Args:
        hidden: Hidden layer sizes of the network f; () is a linear map. "auto": (40,), or (100,) for few rows.
        noise_hidden: Hidden layer sizes of the network of the process noise variances.
        steps: Number of transitions; they share the weights' distribution. "auto": 5, or 1 for few rows.
        activation: By name, or any elementwise function. "auto": "relu", or "sin" for few rows.
        weights: "local" (redrawn at every step), "global" (drawn once) or "point" (no uncertainty: a plain DSSM).
        likelihood: The distribution of a target given the emission's output; None is Gaussian with learned variance.
        method: How channels are found, a name or a method. "sampled" propagates particles. A higher order of `Moments` is more
            exact and slower, and predicted validation rows no better (docs/results.md).
        recipe: How to train, a `Recipe`; what is None in it is the default: 3000 iterations, or 50 passes over the rows, with a
            patience of a fifth of them. With `prior_weight="auto"` the first two members choose between 0.1, 0.3 and 1 on
            their validation rows. After Fourier features the defaults are 300 iterations over all training rows and
            `prior_weight=0.1`. Settings of series (horizons, windows) are refused.
        n_estimators: Number of models, whose mixture predicts. Each has other validation rows and another start; where they
            differ, the mixture is wider.
        checkpoint: How the names of the files begin that an interrupted fit resumes from; every run of every member has one.
            They belong to one fit to one set of rows: leave it None in `cross_val_score` and `GridSearchCV`.
        progress: Show a progress bar, whose remaining time is that of the whole fit, over all members. "auto": once a fit has
            taken ten seconds.
        random_state: Seed of all randomness.

    Attributes:
        choices_: The layers that were chosen or given, and why: `hidden`, `steps`, `activation`, `fourier`, `reasons`.
        ssms_: The trained models, one `StateSpaceModel` per member, in standardised units.
        prior_weight_: The weight of the hyper-prior that was used.
        n_iter_: Iterations of all members together.
        history_: What training recorded, member after member.
        trials_: All runs: pairs of a prior weight and a history.
        n_features_in_: Number of inputs.

    Example:
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> recipe = Recipe(prior_weight=0.1, validation=0.0, iterations=25)
        >>> reg = DeepStochasticRegressor(hidden=(), steps=1, recipe=recipe)
        >>> mean, std = reg.fit(X, 3 * X[:, 0]).predict(X, return_std=True)
        >>> mean.shape, bool((std > 0).all())
        ((20,), True)
    """

    choices_: RowChoices
    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        hidden: Sequence[int] | str = "auto",
        noise_hidden: Sequence[int] = (10,),
        steps: int | str = "auto",
        activation: Any = "auto",
        weights: str = "local",
        likelihood: str | Likelihood | None = None,
        method: str | Method = Moments(order=1),  # noqa: B008 - immutable
        recipe: Recipe | None = None,
        n_estimators: int = 5,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool | str = "auto",
        random_state: Any = 0,
    ):
        """Store the parameters as they are; `fit` checks them."""
        self.hidden, self.noise_hidden, self.steps, self.activation = hidden, noise_hidden, steps, activation
        self.weights, self.likelihood, self.method, self.recipe = weights, likelihood, method, recipe
        self.n_estimators, self.checkpoint = n_estimators, checkpoint
        self.progress, self.random_state = progress, random_state

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: also several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` has come to its end."""
        return hasattr(self, "ssms_")

    # ------------------------------------------------------------------ training

    def fit(self, X: Any, y: Any) -> "DeepStochasticRegressor":
        """Learn from inputs (n, features) and targets (n,) or (n, targets). Ctrl-C keeps the members that are complete.

        Example:
            >>> reg.fit(X, targets).n_iter_
            5
        """
        x, y, recipe = self._prepare(X, y)
        validation = validation_rows(len(x), recipe)
        weights = self._prior_weights(recipe, validation)
        first, *later = stages(self.weights, recipe)
        tried: dict[float, dict[int, list[Trial]]] = {weight: {} for weight in weights}
        self.trials_: list[tuple[float, History]] = []
        stopped, choosing = None, min(CHOOSING_MEMBERS, self.n_estimators) if len(weights) > 1 else 0
        with self._bar(first, later, len(weights)) as bar:
            try:
                parts = x, y, validation, tried, bar
                self._try(first, range(choosing), weights, *parts)
                best = (best_prior_weight(tried),)
                self._try(first, range(choosing, self.n_estimators), best, *parts)
                for stage in later:
                    self._try(stage, range(self.n_estimators), best, *parts)
            except KeyboardInterrupt:
                if not any(tried.values()):
                    raise
                stopped = StopReason.INTERRUPTED
        self.prior_weight_ = best_prior_weight(tried)
        members = [trials for _, trials in sorted(tried[self.prior_weight_].items())]
        history = reduce(History.followed_by, (trial.history for trials in members for trial in trials))
        self.history_ = replace(history, stop_reason=stopped or history.stop_reason)
        self.n_iter_ = sum(self.history_.iterations[-1:])
        if stopped is not None:
            done, whole = len(members), self.n_estimators
            warnings.warn(f"interrupted: {done} of {whole} models are kept", UserWarning, stacklevel=2)
        elif self.history_.diverged:
            warnings.warn(f"training: {self.history_.stop_reason}; try a smaller learning_rate", UserWarning, stacklevel=2)
        self.ssms_ = tuple(trials[-1].model for trials in members)
        return self

    def _prepare(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, Recipe]:
        """Checked rows in standardised units and random order, and the recipe for them."""
        vars(self).pop("ssms_", None)  # a fit that fails must not leave old weights with a new scaling
        self._require_parameters()
        self._rows_recipe(1)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        self.choices_ = choose_layers(len(X), self.get_params(deep=False))
        recipe = self._rows_recipe(len(X))
        self._y_ndim, targets = y.ndim, targets_of(y)
        self._x_scaling, self._y_scaling = Standardiser.fit_double(X), Standardiser.fit_double(targets)
        self._seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        self._stack = LayerStack(self.choices_.steps, self._checked_method())
        order = np.random.default_rng(self._seed).permutation(len(X))
        return self._x_scaling.transform(X)[order], self._y_scaling.transform(targets)[order], recipe

    def _require_parameters(self) -> None:
        if not is_auto(self.activation):
            find_activation(self.activation)
        require_weight_mode(self.weights, self._checked_method())
        require_sizes("hidden", plain(self.hidden), (AUTO,))
        require_sizes("noise_hidden", plain(self.noise_hidden))
        if not is_auto(self.steps):
            require_integer("steps", self.steps, least=1)
        require_integer("n_estimators", self.n_estimators, least=1)
        if not self._checked_likelihood().scaled:
            name = type(self._checked_likelihood()).__name__
            raise ValueError(f"likelihood must describe standardised targets, such as GaussianLikelihood(), got {name}")

    def _rows_recipe(self, rows: int) -> Recipe:
        """The recipe for so many rows."""
        require_rows_recipe(self.recipe)
        fourier = choose_layers(rows, self.get_params(deep=False)).fourier
        return recipe_for(rows, self.recipe or Recipe(), self._checked_recipe(defaults_for(fourier)), fourier)

    def _prior_weights(self, recipe: Recipe, validation: int) -> tuple[float, ...]:
        """The candidates for the weight of the hyper-prior."""
        if self.weights == "point":
            return (0.0,)  # point weights have no prior
        if recipe.prior_weight != "auto":
            return (float(recipe.prior_weight),)  # type: ignore[arg-type]
        return PRIOR_WEIGHTS if validation else (DEFAULT_PRIOR_WEIGHT,)

    def _member(self, n: int, x: np.ndarray, y: np.ndarray, validation: int) -> tuple[Rows, StateSpaceModel]:
        """Training and validation rows of the n-th member, and its initial model."""
        begin = n * len(x) // self.n_estimators
        x, y = np.roll(x, -begin, axis=0), np.roll(y, -begin, axis=0)
        training = len(x) - validation
        model = self._initial_model(x[:training], y[:training], key=self._key(0, n))
        if self.choices_.fourier:
            model = with_features(model, x[:training], y[:training], seed=self._seed + n)
        return Rows.padded(x, y, validation), model

    def _initial_model(self, x: np.ndarray, y: np.ndarray, *, key: PRNGKeyArray) -> StateSpaceModel:
        parts = self._y_scaling.mean, self._y_scaling.scale
        scaling = Standardiser(*(np.asarray(part, jnp.result_type(float)) for part in parts))
        likelihood = self._checked_likelihood().for_data(scaling)
        sizes = self.choices_.hidden, plain(self.noise_hidden)
        return regression_model(*sizes, self.choices_.activation, self.weights, likelihood, x, y, key=key)

    def _bar(self, first: Stage, later: Sequence[Stage], candidates: int) -> Progress:
        """A progress bar over all runs, which knows how long the whole fit will take; shown late if `progress` is "auto"."""
        runs = self.n_estimators + (candidates - 1) * min(CHOOSING_MEMBERS, self.n_estimators)
        total = runs * (first[1].iterations or 0) + self.n_estimators * sum(recipe.iterations or 0 for _, recipe in later)
        delay = PATIENT_SECONDS if is_auto(self.progress) else 0.0
        return Progress("training", total, shown=self.progress, delay=delay)

    def _try(
        self,
        stage: Stage,
        members: Sequence[int],
        weights: Sequence[float],
        x: np.ndarray,
        y: np.ndarray,
        validation: int,
        tried: dict[float, dict[int, list[Trial]]],
        bar: Progress,
    ) -> None:
        """One stage of training for members with prior weights; KeyboardInterrupt once a run has been interrupted."""
        elsewhere, found = in_parallel(), {}
        before = [[tried[weight].get(n, [None])[-1] for weight in weights] for n in members]
        calls = [(self, x, y, validation, n, stage, weights, last) for n, last in zip(members, before, strict=True)]
        try:
            with shared(None if elsewhere else bar):
                for k, trials in run_jobs(_trials, calls):
                    found[members[k]] = trials
                    if elsewhere:
                        done = sum(sum(trial.history.iterations[-1:]) for trial in trials)
                        bar.update(done)
                        bar.leave_out(len(weights) * (stage[1].iterations or 0) - done)
                    if trials[-1].history.interrupted:
                        raise KeyboardInterrupt
        finally:
            for n, trials in sorted(found.items()):
                for trial in trials:
                    self.trials_.append((trial.prior_weight, trial.history))
                    # An incomplete member is better than none.
                    if not trial.history.interrupted or not any(tried.values()):
                        tried[trial.prior_weight].setdefault(n, []).append(trial)

    def _run(self, model: StateSpaceModel, rows: Rows, stage: Stage, weight: float, suffix: str) -> Trial:
        """One stage of training with one prior weight."""
        mode, recipe = stage
        model = model.with_weight_mode(mode)
        chosen = replace(recipe, prior_weight=weight)
        task, parameters = RegressionTask.of(model, rows, chosen, self._stack, key=self._key(2))
        best, history = maximise(
            task,
            parameters,
            key=self._key(1),
            checkpoint=None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}{suffix}",
            progress=False,
        )
        return Trial(weight, eqx.combine(best, model).with_weight_mode(self.weights), history)

    def _key(self, *purpose: int) -> PRNGKeyArray:
        """Randomness: 0 of the initial model of a member, 1 of training, 2 of predictions."""
        return reduce(jr.fold_in, purpose, jr.key(self._seed))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, see `prodssm.load`.

        Example:
            >>> reg.save("reg.safetensors")
            >>> ps.load("reg.safetensors").predict(X).shape
            (20,)
        """
        from prodssm.estimators.persistence import save_regressor

        check_is_fitted(self)
        save_regressor(self, path)


def _trials(
    reg: DeepStochasticRegressor,
    x: np.ndarray,
    y: np.ndarray,
    validation: int,
    n: int,
    stage: Stage,
    weights: Sequence[float],
    before: Sequence[Trial | None],
) -> list[Trial]:
    """One stage of training of the n-th member with each prior weight, from its start or from the stage before."""
    rows, start = reg._member(n, x, y, validation)
    found = []
    for weight, last in zip(weights, before, strict=True):
        suffix = f".{n}.{weight}" if last is None else f".{n}.{weight}.fine_tune"
        found.append(reg._run(start if last is None else last.model, rows, stage, weight, suffix))
        if found[-1].history.interrupted:
            break
    return found
