"""Regression for scikit-learn's users: deep stochastic layers that know how unsure they are, learned without sampling."""

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from prodssm.activations import ACTIVATIONS, find_activation
from prodssm.assembly import RESIDUAL_SCALE, START_MEASUREMENT_VAR, START_PROCESS_VAR
from prodssm.checks import require_integer, require_number, require_variances
from prodssm.gaussian import Gaussian
from prodssm.methods import WEIGHTS
from prodssm.mixture import log_density, matched
from prodssm.model import StateSpaceModel
from prodssm.network import Network
from prodssm.persistence import flatten, plain, restore, write
from prodssm.regression import METHODS, TOGETHER, Plan, Rows, RowsTask, log_densities, predict_rows
from prodssm.series import centre_and_scale
from prodssm.training import History, Recipe, Stage, maximise, stages_of

PRIOR_WEIGHTS = (0.1, 0.3, 1.0)  # that "auto" chooses from
CHOOSING = 2  # members that try all of them; the others follow
RIDGE = 0.1  # of the linear regression that training starts from, in standard units
USUAL_PRIOR_WEIGHT = 0.3  # where there are too few rows to choose on
ITERATIONS = 3000  # at least, unless the user says otherwise
PASSES = 50  # over all rows, if that is more
SETTLED = "settled"  # the name of the last stage
SETTLE_RATE = 0.01  # of the learning rate, which is where a cosine ends
MOST_HELD = 1000  # rows that are held out at most: more would cost time and tell little more
FEWEST = 10  # rows that can be split into some to learn from and some to choose on


@dataclass(frozen=True)
class Scaling:
    """Columns in standard units: mean zero, standard deviation one. Double precision, whatever the model computes in."""

    mean: Float[np.ndarray, " c"]
    scale: Float[np.ndarray, " c"]

    @classmethod
    def fit(cls, columns: Float[np.ndarray, "n c"]) -> "Scaling":
        """From the columns; one that does not vary keeps its scale."""
        return cls(*centre_and_scale(columns))

    @classmethod
    def none(cls, size: int) -> "Scaling":
        """One that changes nothing."""
        return cls(np.zeros(size), np.ones(size))

    def apply(self, columns: Float[np.ndarray, "n c"]) -> Float[np.ndarray, "n c"]:
        """To standard units."""
        return (columns - self.mean) / self.scale


@dataclass(frozen=True)
class Shape:
    """The shape of a model, as `DeepStochasticRegressor` describes it; anything until it is checked."""

    hidden: Any
    noise_hidden: Any
    activation: Any
    weights: Any
    noise_floor: Any

    def check(self) -> "Shape":
        """Itself, or an error."""
        find_activation(self.activation)
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {self.weights!r}")
        for name in ("hidden", "noise_hidden"):
            sizes = getattr(self, name)
            if not isinstance(sizes, tuple):
                raise TypeError(f"{name} must be a tuple of hidden sizes such as (40,), got {sizes!r}")
            for size in sizes:
                require_integer(name, size, least=1)
        require_number("noise_floor", self.noise_floor)
        require_variances("noise_floor", self.noise_floor)
        return self

    def start(self, x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"], *, key: PRNGKeyArray) -> StateSpaceModel:
        """A model for standardised rows that is ready to learn: almost a linear regression, with a residual network on top."""
        size, dtype = x.shape[1], jnp.result_type(float)
        transition_key, noise_key, emission_key = jr.split(key, 3)
        network = partial(Network.mlp, activation=self.activation, uncertain=self.weights != "point")
        level = float(np.log(np.expm1(START_PROCESS_VAR)))
        return StateSpaceModel(
            initial=Gaussian(jnp.zeros(size, dtype), jnp.eye(size, dtype=dtype)),  # stands in for the row
            transition=network((size, *self.hidden, size), key=transition_key, spread=1.0).scaled(RESIDUAL_SCALE),
            process_noise=network((size, *self.noise_hidden, size), key=noise_key).shifted(level),
            emission=_linear_emission(x, y, key=emission_key),
            measurement_noise=jnp.full(y.shape[1], START_MEASUREMENT_VAR, dtype),
            weights=self.weights,
            residual=True,
            measurement_floor=self.noise_floor,
        )


def _linear_emission(x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"], *, key: PRNGKeyArray) -> Network:
    """Ridge regression, and a little of everything: a direction that nobody sees would never learn."""
    size, dtype = x.shape[1], jnp.result_type(float)
    slope = np.linalg.solve(x.T @ x / len(x) + RIDGE * np.eye(size), x.T @ y / len(x)).T
    slope = slope + 0.1 / size**0.5 * np.asarray(jr.normal(key, slope.shape), float)
    return Network.from_arrays([jnp.asarray(slope, dtype)], [jnp.zeros(y.shape[1], dtype)])


@dataclass(frozen=True)
class Trial:
    """One run of training: with which prior weight, where it led, and what it saw."""

    prior_weight: float
    model: StateSpaceModel
    history: History

    @property
    def score(self) -> float:
        """How well the held-out rows were predicted at best; what is not a number is no good."""
        return max((value for value in self.history.validation if np.isfinite(value)), default=-np.inf)


class _InterruptedError(Exception):
    """Somebody pressed Ctrl-C."""

    def __init__(self, trial: Trial):
        self.trial = trial


def _best(tried: dict[float, list[list[Trial]]]) -> float:
    """The prior weight with which the members that choose predict their held-out rows best.

    Only those that all weights have in common are compared, unless Ctrl-C came before a weight had any: rows differ.
    """
    shared = min([CHOOSING, *(len(members) for members in tried.values() if members)])

    def score(weight: float) -> tuple[bool, float]:
        found = [members[0].score for members in tried[weight][:shared]]
        return bool(found), float(np.mean(found)) if found else -np.inf

    return max(tried, key=score)


class DeepStochasticRegressor(RegressorMixin, BaseEstimator):
    r"""Deep stochastic layers: the inputs are a state, which moves by $x + f(x, w)$ a few times with noise, and shows as y.

    The network's weights are uncertain, and mean and variance of every prediction are found in closed form. Inputs and targets
    are standardised inside. Follows scikit-learn's conventions: use it in a `Pipeline`, `GridSearchCV` or `cross_val_score`.

    Args:
        hidden: Hidden layer sizes of the network f; () is a linear map.
        noise_hidden: Hidden layer sizes of the network of the noise variances.
        steps: How often the state moves; the layers share their weights' distribution.
        activation: By name, or any elementwise function.
        weights: "local" (redrawn at every step), "global" (drawn once) or "point" (no uncertainty: a plain DSSM).
        method: "moments" (closed form) or "sampled" (Monte Carlo).
        order: Truncation order of covariances between hidden units for "moments"; more is more exact and slower, and foresaw
            held-out rows no better (docs/results.md). None takes the order of `ProDSSM`.
        samples: Particles per row while training, for "sampled".
        test_samples: Particles per row for predictions, for "sampled".
        prior_weight: Weight of the hyper-prior on the weights, or "auto": that of 0.1, 0.3 and 1 with which the first two
            members predict their held-out rows best. Fewer than ten rows take 0.3.
        iterations: Steps of the optimiser, at most; None takes 3000, or as many as show every row 50 times.
        learning_rate: Of Adam.
        refine: Weights that are drawn once are learned as if redrawn at every step at first, then as they are for at most this
            many iterations at a fifth of the learning rate. None learns them as they are from the start, which is slow.
        settle: So many iterations at most follow at a hundredth of the learning rate, until the held-out rows have not been
            predicted better for a fifth of them: for whoever wants to be sure that nothing is left to gain. Without
            `early_stopping` all of them. None does without this end.
        schedule: "cosine" or "constant".
        batch_size: Rows per step; None takes all rows.
        members: Models that are learned, whose mixture predicts. Each holds out other rows, as far as there are others, and
            starts elsewhere; where they differ, the mixture is less sure.
        early_stopping: Whether a member stops when it no longer predicts its held-out rows better. Fewer than ten rows do
            without.
        validation_fraction: Share of the rows, but at most 1000 of them, that each member holds out, for `early_stopping` and
            `prior_weight="auto"`. The parameters that predict them best are kept. Without either nothing is held out.
        patience: Iterations without progress on the held-out rows after which to stop; None takes a fifth of `iterations`.
        noise_floor: Least variance of the measurement noise, as a share of a target's variance. Targets that are nearly free
            of noise cannot be predicted more surely than this.
        checkpoint: How the names of the files begin that a killed fit resumes from; every run of every member has one. They
            belong to one fit to one set of rows: leave it None in `cross_val_score` and `GridSearchCV`.
        progress: Show a progress bar.
        random_state: Seed of all randomness.

    Attributes:
        ssms_: The learned models, one `StateSpaceModel` per member, in standardised units.
        prior_weight_: The prior weight that was used.
        n_iter_: Iterations that all members together were trained for.
        history_: What their training saw, one after the other.
        trials_: All that was tried: pairs of a prior weight and a history.
        n_features_in_: Number of inputs.

    Example:
        >>> X = np.linspace(-1, 1, 20)[:, None]
        >>> reg = DeepStochasticRegressor(hidden=(), steps=1, prior_weight=0.1, early_stopping=False, iterations=25)
        >>> mean, std = reg.fit(X, 3 * X[:, 0]).predict(X, return_std=True)
        >>> mean.shape, bool((std > 0).all())
        ((20,), True)
    """

    n_features_in_: int
    feature_names_in_: np.ndarray

    def __init__(
        self,
        hidden: Sequence[int] = (40,),
        noise_hidden: Sequence[int] = (10,),
        steps: int = 5,
        activation: Any = "relu",
        weights: str = "local",
        method: str = "moments",
        order: int | None = 1,
        samples: int = 32,
        test_samples: int = 128,
        prior_weight: float | str = "auto",
        iterations: int | None = None,
        learning_rate: float = 0.01,
        refine: int | None = 200,
        settle: int | None = None,
        schedule: str = "cosine",
        batch_size: int | None = 32,
        members: int = 5,
        early_stopping: bool = True,
        validation_fraction: float = 0.2,
        patience: int | None = None,
        noise_floor: float = 1e-6,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = False,
        random_state: Any = 0,
    ):
        """Store the settings as they are; `fit` checks them."""
        self.hidden, self.noise_hidden, self.steps, self.activation = hidden, noise_hidden, steps, activation
        self.weights, self.method, self.order = weights, method, order
        self.samples, self.test_samples, self.prior_weight = samples, test_samples, prior_weight
        self.iterations, self.learning_rate, self.refine, self.settle = iterations, learning_rate, refine, settle
        self.schedule, self.batch_size, self.members = schedule, batch_size, members
        self.early_stopping, self.validation_fraction, self.patience = early_stopping, validation_fraction, patience
        self.noise_floor, self.checkpoint, self.progress, self.random_state = noise_floor, checkpoint, progress, random_state

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn may expect: also several targets."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model."""
        return hasattr(self, "ssms_")

    # ------------------------------------------------------------------ learning

    def fit(self, X: Any, y: Any) -> "DeepStochasticRegressor":
        """Learn from inputs (n, features) and targets (n,) or (n, targets). Ctrl-C keeps the members that are done."""
        x, y, stages = self._prepare(X, y)
        weights = self._prior_weights(len(x))
        tried: dict[float, list[list[Trial]]] = {weight: [] for weight in weights}  # member by member, stage by stage
        self.trials_: list[tuple[float, History]] = []
        stopped = ""
        try:
            for n in range(self.members):
                choosing = n < CHOOSING and len(weights) > 1
                held = self._held(len(x)) if choosing or self.early_stopping else 0
                rows, start = self._member(n, x, y, held)
                for weight in weights if choosing else (_best(tried),):
                    tried[weight].append([self._run(start, rows, stages[0], weight, f".{n}.{weight}")])
            later = self._later(stages)
            for n, found in enumerate(tried[_best(tried)] if later else ()):
                rows, _ = self._member(n, x, y, self._held(len(x)) if self.early_stopping else 0)
                for name, stage in later:
                    before = found[-1]
                    after = self._run(before.model, rows, stage, before.prior_weight, f".{n}.{before.prior_weight}.{name}")
                    if name.endswith(SETTLED) and after.history.validation and after.score < before.score:
                        after = replace(after, model=before.model)  # nothing was left to gain
                    found.append(after)
        except _InterruptedError as interruption:
            stopped = interruption.trial.history.stopped
            if not any(tried.values()):  # part of a model is better than none
                tried[interruption.trial.prior_weight].append([interruption.trial])
        self.prior_weight_ = _best(tried)
        members = tried[self.prior_weight_]
        history = reduce(History.followed_by, (trial.history for found in members for trial in found))
        self.history_ = replace(history, stopped=stopped or history.stopped)
        self.n_iter_ = sum(self.history_.iterations[-1:])
        if not np.isfinite(self.history_.objective).all():
            warnings.warn(f"training: {self.history_.stopped}; try a smaller learning_rate", UserWarning, stacklevel=2)
        self.ssms_ = tuple(found[-1].model for found in members)
        return self

    def _prepare(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray, list[Stage]]:
        """Checked rows in standard units and a random order, and how to learn from them."""
        vars(self).pop("ssms_", None)  # a fit that fails must not leave old weights with new units
        self._shape, self._plan = self._checked_shape(), self._checked_plan()
        self._checked_recipe(0)
        X, y = validate_data(self, X, y, dtype=np.float64, multi_output=True, y_numeric=True)
        recipe = self._checked_recipe(len(X))
        self._y_ndim, targets = y.ndim, _targets(y)
        self._x_units, self._y_units = Scaling.fit(X), Scaling.fit(targets)
        draw = check_random_state(self.random_state)
        self._seed = int(draw.randint(2**31 - 1))
        order = np.random.default_rng(self._seed).permutation(len(X))
        return (
            self._x_units.apply(X)[order],
            self._y_units.apply(targets)[order],
            stages_of(self.weights, recipe, plain(self.refine)),
        )

    def _later(self, stages: list[Stage]) -> list[tuple[str, Stage]]:
        """What follows the first stage, by name."""
        later = [("refined", stage) for stage in stages[1:]]
        if self.settle is not None:
            kind, first = stages[-1][0], stages[0][1]
            calm = {"learning_rate": SETTLE_RATE * first.learning_rate, "schedule": "constant"}
            settled = replace(first, iterations=plain(self.settle), patience=max(1, plain(self.settle) // 5), **calm)
            later.append((f"{kind}.{SETTLED}", (kind, settled)))
        return later

    def _prior_weights(self, rows: int) -> tuple[float, ...]:
        """Those to choose from."""
        if self.weights == "point":
            return (0.0,)  # nothing has a prior
        if self.prior_weight != "auto":
            return (float(self.prior_weight),)
        return PRIOR_WEIGHTS if rows >= FEWEST else (USUAL_PRIOR_WEIGHT,)

    def _held(self, rows: int) -> int:
        """How many rows each member holds out, if it does."""
        return min(max(1, round(self.validation_fraction * rows)), rows - 1, MOST_HELD) if rows >= FEWEST else 0

    def _member(self, n: int, x: np.ndarray, y: np.ndarray, held: int) -> tuple[Rows, StateSpaceModel]:
        """What the n-th member learns from and what it holds out, and where it starts."""
        begin = n * len(x) // self.members
        x, y = np.roll(x, -begin, axis=0), np.roll(y, -begin, axis=0)
        learned = len(x) - held
        return Rows.of(x, y, held), self._shape.start(x[:learned], y[:learned], key=self._key(0, n))

    def _run(self, model: StateSpaceModel, rows: Rows, stage: Stage, weight: float, suffix: str) -> Trial:
        """One stage of learning with one prior weight."""
        kind, recipe = stage
        recipe = replace(recipe, prior_weight=weight)
        if not self.early_stopping:
            recipe = replace(recipe, patience=recipe.iterations + 1)
        model = model.with_kind(kind)
        task, parameters = RowsTask.of(model, rows, recipe, self._plan, key=self._key(2))
        best, history = maximise(
            task,
            parameters,
            key=self._key(1),
            checkpoint=None if self.checkpoint is None else f"{os.fspath(self.checkpoint)}{suffix}",
            progress=self.progress,
        )
        self.trials_.append((weight, history))
        trial = Trial(weight, eqx.combine(best, model).with_kind(self.weights), history)
        if history.stopped.startswith("interrupted"):
            raise _InterruptedError(trial)
        return trial

    def _key(self, *purpose: int) -> PRNGKeyArray:
        """Randomness: 0 of where a member starts, 1 of training, 2 of predictions."""
        return reduce(jr.fold_in, purpose, jr.key(self._seed))

    def _checked_shape(self) -> Shape:
        names = ("hidden", "noise_hidden", "weights", "noise_floor")
        return Shape(activation=self.activation, **{name: plain(getattr(self, name)) for name in names}).check()

    def _checked_plan(self) -> Plan:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        if self.order is not None:
            require_integer("order", self.order, least=1)
        for name in ("steps", "samples", "test_samples", "members"):
            require_integer(name, getattr(self, name), least=1)
        return Plan(*(plain(getattr(self, name)) for name in ("steps", "method", "order", "samples", "test_samples")))

    def _checked_recipe(self, rows: int) -> Recipe:
        """The recipe for so many rows, but for its prior weight."""
        if self.prior_weight != "auto":
            Recipe(prior_weight=plain(self.prior_weight)).check()
        for name in ("batch_size", "refine", "settle"):
            if getattr(self, name) is not None:
                require_integer(name, getattr(self, name), least=1)
        if not isinstance(self.early_stopping, bool | np.bool_):
            raise TypeError(f"early_stopping must be True or False, got {self.early_stopping!r}")
        require_number("validation_fraction", self.validation_fraction)
        if not 0 < self.validation_fraction < 1:
            raise ValueError(f"validation_fraction must lie between 0 and 1, got {self.validation_fraction}")
        usual = max(ITERATIONS, -(-PASSES * rows // (self.batch_size or max(rows, 1))))
        iterations = usual if self.iterations is None else plain(self.iterations)
        require_integer("iterations", iterations, least=1)
        patience = max(1, iterations // 5) if self.patience is None else plain(self.patience)
        settings = {name: plain(getattr(self, name)) for name in ("learning_rate", "schedule")}
        return Recipe(iterations=iterations, patience=patience, batch=plain(self.batch_size), **settings).check()

    # ------------------------------------------------------------------ predictions

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means of the targets, and how unsure they are, noise included.

        Args:
            X: Inputs, (n, features).
            return_std: Also return standard deviations, of the shape of the means.
            return_cov: Also return covariances between the targets of a row, (n, targets, targets).

        Returns:
            Means, (n,) or (n, targets) as in `fit`; or a pair.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov must not both be True: the variances are the covariances' diagonal")
        check_is_fitted(self)
        mean, cov = matched(*self._beliefs(np.asarray(validate_data(self, X, reset=False, dtype=np.float64))))
        scale = self._y_units.scale
        mean, cov = mean * scale + self._y_units.mean, cov * scale[:, None] * scale[None, :]
        if return_cov:
            return self._as_given(mean), cov
        std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
        return (self._as_given(mean), self._as_given(std)) if return_std else self._as_given(mean)

    def log_prob(self, X: Any, y: Any) -> Float[np.ndarray, " n"]:
        """Log density of the targets of each row under the mixture of all members, in the units of the data."""
        check_is_fitted(self)
        X, y = validate_data(self, X, y, reset=False, dtype=np.float64, multi_output=True, y_numeric=True)
        targets = _targets(y)
        size = self.ssms_[0].y_size
        if targets.shape[1] != size:
            raise ValueError(f"y must have {size} targets like that of fit, got {targets.shape[1]}")
        with np.errstate(over="ignore"):  # as far away as numbers reach is far enough
            standard = self._y_units.apply(targets).astype(self.ssms_[0].initial_mean.dtype)
        each = [_in_chunks(log_densities, mean, cov, standard) for mean, cov in zip(*self._beliefs(X), strict=True)]
        return log_density(np.stack(each)) - np.log(self._y_units.scale).sum()

    def _beliefs(self, X: Float[np.ndarray, "n x"]) -> tuple[Float[np.ndarray, "m n y"], Float[np.ndarray, "m n y y"]]:
        """Means and covariances of each member in standard units, some rows at a time: no number of rows is compiled anew."""
        with np.errstate(over="ignore"):  # what does not fit is found below
            x = self._x_units.apply(X).astype(self.ssms_[0].initial_mean.dtype)
        rule = partial(predict_rows, plan=self._plan, key=self._key(2))
        found = [_in_chunks(lambda rows, ssm=ssm: rule(ssm, x=rows), x) for ssm in self.ssms_]
        mean, cov = (np.stack([member[part] for member in found]) for part in (0, 1))
        if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
            raise FloatingPointError(
                "a prediction left the range of numbers: X is too far from that of fit, or the learned layers are unstable"
            )
        return mean, cov

    def _as_given(self, columns: Float[np.ndarray, "n y"]) -> np.ndarray:
        """In the shape that the targets had in `fit`."""
        return columns[:, 0] if self._y_ndim == 1 else columns

    # ------------------------------------------------------------------ files

    def _template(self, targets: int) -> StateSpaceModel:
        """A model of this shape."""
        return self._shape.start(np.zeros((2, self.n_features_in_)), np.zeros((2, targets)), key=jr.key(0))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, see `prodssm.load`."""
        check_is_fitted(self)
        if not isinstance(self._shape.activation, str) or self._shape.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} to be saved, got {self._shape.activation!r}")
        params = {name: plain(value) for name, value in self.get_params(deep=False).items() if name != "random_state"}
        params["random_state"] = int(self.random_state) if isinstance(self.random_state, int | np.integer) else None
        params["checkpoint"] = None if self.checkpoint is None else os.fspath(self.checkpoint)
        names = getattr(self, "feature_names_in_", None)
        config = {
            "params": params,
            "shape": asdict(self._shape),
            "plan": asdict(self._plan),
            "seed": self._seed,
            "features": self.n_features_in_,
            "feature_names": None if names is None else list(names),
            "targets": self.ssms_[0].y_size,
            "members": len(self.ssms_),
            "y_ndim": self._y_ndim,
            "prior_weight": self.prior_weight_,
            "n_iter": self.n_iter_,
            "history": _in_words(self.history_),
            "trials": [[weight, _in_words(history)] for weight, history in self.trials_],
        }
        write(path, "DeepStochasticRegressor", config, flatten(self._fitted()))

    def _fitted(self) -> dict[str, Any]:
        units = {"x_mean": self._x_units.mean, "x_scale": self._x_units.scale}
        units |= {"y_mean": self._y_units.mean, "y_scale": self._y_units.scale}
        return {"models": self.ssms_, **units}

    @classmethod
    def _load(cls, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> "DeepStochasticRegressor":
        model = cls(**{name: plain(value) for name, value in config["params"].items()})
        model._shape = Shape(**{name: plain(value) for name, value in config["shape"].items()})
        model._plan, model._seed, model._y_ndim = Plan(**config["plan"]), config["seed"], config["y_ndim"]
        model.n_features_in_, targets = config["features"], config["targets"]
        if config["feature_names"] is not None:
            model.feature_names_in_ = np.asarray(config["feature_names"], dtype=object)
        model.prior_weight_, model.n_iter_ = config["prior_weight"], config["n_iter"]
        model.history_ = _from_words(config["history"])
        model.trials_ = [(weight, _from_words(history)) for weight, history in config["trials"]]
        model._x_units, model._y_units = Scaling.none(model.n_features_in_), Scaling.none(targets)
        model.ssms_ = (model._template(targets),) * config["members"]
        found = restore(model._fitted(), arrays)
        model.ssms_ = found["models"]
        model._x_units, model._y_units = Scaling(found["x_mean"], found["x_scale"]), Scaling(found["y_mean"], found["y_scale"])
        return model


def _in_chunks(function: Callable[..., Any], *columns: np.ndarray) -> Any:
    """What a function finds for rows, in double precision, some of them at a time: no number of rows is compiled anew."""
    count, dtype = len(columns[0]), columns[-1].dtype
    full = [np.pad(each.astype(dtype), ((0, -count % TOGETHER), *((0, 0),) * (each.ndim - 1)), mode="edge") for each in columns]
    starts = range(0, count, TOGETHER)
    found = [function(*(jnp.asarray(each[n : n + TOGETHER]) for each in full)) for n in starts]
    return jax.tree.map(lambda *parts: np.concatenate([np.asarray(part, float) for part in parts])[:count], *found)


def _targets(y: Any) -> Float[np.ndarray, "n y"]:
    """Targets as columns of numbers."""
    columns = np.asarray(y.toarray() if hasattr(y, "toarray") else y, float)
    return columns[:, None] if columns.ndim == 1 else columns


NUMBERS = ("objective", "validation", "seconds")


def _in_words(history: History) -> dict[str, Any]:
    """A history as JSON can say it, which knows no NaN: the shortest words that read back to the same bits."""
    return asdict(history) | {name: [repr(float(value)) for value in getattr(history, name)] for name in NUMBERS}


def _from_words(words: dict[str, Any]) -> History:
    numbers: dict[str, Any] = {name: [float(value) for value in words[name]] for name in NUMBERS}
    return History(**(words | numbers))
