"""How a model is trained: one object for all settings, the same words in both estimators."""

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from prodssm._validation import plain, require_integer, require_number
from prodssm.data.series import Values
from prodssm.training.objectives import OBJECTIVES, Objective

SCHEDULES = ("constant", "cosine")
VALIDATION_SCORES = ("density", "squared_error")
FINAL_RATE = 0.01  # of the learning rate, where a cosine schedule ends
FREE_RUN_RATE = 0.3  # of the learning rate, likewise
FREE_RUN_WARM_UP = 0.2  # of the iterations
FREE_RUN_WINDOW, FREE_RUN_BATCH = 200, 4  # time steps of the windows, and their number, for one series
FINE_TUNE_RATE = 0.2  # of the learning rate, for a model that has been trained already


@dataclass(frozen=True, repr=False)
class Recipe:
    """Training settings. What is None is the estimator's default (docs/recipe.md).

    Attributes:
        iterations: Steps of the optimiser, at most.
        learning_rate: Of Adam, at its highest.
        schedule: "cosine" (decays to a hundredth) or "constant".
        warm_up: Fraction of the iterations over which the learning rate rises linearly. Adam's first steps move every parameter
            by the whole rate, which would destroy a fitted initialisation; None: 0.2 after a linear initialisation, else 0.
        variance_rate: Factor on the learning rate of log variances.
        clip: Largest norm of the gradient of the objective per observed value.
        prior_weight: Weight of the hyper-prior; 1 in the paper. "auto" (regressor): chosen on validation data.
        objective: "evidence", "bound" for the evidence lower bound, or "free_run" for densities of all observations after a
            context that alone is conditioned on; a free run starts badly from random weights.
        context: Observations at the beginning of a series or window that a free run is conditioned on; None: a quarter of its
            time steps, 50 at most.
        horizons: Steps ahead at which observations are predicted, with equal weight; (1,) is the filter's evidence.
        stride: With longer horizons, forecasts start at every `stride`-th observation.
        batch: Series, windows or rows per step, or "all".
        window: Length of the windows that are drawn from series, or "all" for whole series.
        validation: Fraction of the data held out for early stopping.
        validation_horizons: Horizons of the validation score; those of training if None.
        validation_score: "density", or "squared_error" of standardised outputs. With `free_run` either is that of a free run.
        patience: Iterations without improvement on the validation data after which to stop.
        calibrate: Whether the validation data also rescale a constant process noise.
        linear_start: With a linear emission, whether to initialise with the linear model of subspace identification.
        free_run: Iterations of the free-run objective after training, at a third of the learning rate; what they find is kept
            if it predicts validation data better.
        fine_tune: Global weights are trained as local ones first, then as global for so many iterations at a fifth of the
            learning rate; 0 trains them as global from the start.

    Example:
        >>> Recipe(iterations=300, schedule="constant")
        Recipe(iterations=300, schedule='constant')
    """

    iterations: int | None = None
    learning_rate: float | None = None
    schedule: str | None = None
    warm_up: float | None = None
    variance_rate: float | None = None
    clip: float | None = None
    prior_weight: float | str | None = None
    objective: str | None = None
    context: int | None = None
    horizons: tuple[int, ...] | None = None
    stride: int | None = None
    batch: int | str | None = None
    window: int | str | None = None
    validation: float | None = None
    validation_horizons: tuple[int, ...] | None = None
    validation_score: str | None = None
    patience: int | None = None
    calibrate: bool | None = None
    linear_start: bool | None = None
    free_run: int | None = None
    fine_tune: int | None = None

    def __repr__(self) -> str:
        """The settings that are given."""
        given = [f"{part.name}={getattr(self, part.name)!r}" for part in fields(self) if getattr(self, part.name) is not None]
        return f"Recipe({', '.join(given)})"

    def filled(self, defaults: "Recipe") -> "Recipe":
        """The recipe with its missing settings taken from the defaults, checked.

        Example:
            >>> Recipe(iterations=300).filled(SERIES_RECIPE).learning_rate
            0.01
        """
        values = {part.name: plain(getattr(self, part.name)) for part in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return replace(defaults, **given).check()

    def check(self) -> "Recipe":
        """Itself, or an error that names the setting.

        Example:
            >>> SERIES_RECIPE.check().iterations
            500
        """
        for name in ("iterations", "patience", "stride"):
            require_integer(name, getattr(self, name), least=1)
        for name in ("free_run", "fine_tune"):
            require_integer(name, getattr(self, name), least=0)
        if self.context is not None:
            require_integer("context", self.context, least=1)
        if self.validation_score == "squared_error" and not self.scores_free_runs:
            raise ValueError("validation_score='squared_error' is that of a free run: give free_run, or objective='free_run'")
        for name in ("learning_rate", "clip", "variance_rate"):
            require_number(name, getattr(self, name))
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be positive, got {getattr(self, name)}")
        for name in ("calibrate", "linear_start"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        if self.prior_weight != "auto":
            require_number("prior_weight", self.prior_weight)
            if not self.prior_weight >= 0:  # type: ignore[operator]
                raise ValueError(f"prior_weight must not be negative, got {self.prior_weight}")
        _require_fraction("warm_up", self.warm_up or 0.0, inclusive=True)
        _require_fraction("validation", self.validation)
        words_of = {"schedule": SCHEDULES, "objective": OBJECTIVES, "validation_score": VALIDATION_SCORES}
        for name, words in words_of.items():
            if getattr(self, name) not in words:
                raise ValueError(f"{name} must be one of {', '.join(words)}; got {getattr(self, name)!r}")
        for name, least in (("batch", 1), ("window", 2)):
            if getattr(self, name) != "all":
                require_integer(name, getattr(self, name), least=least)
        _require_horizons("horizons", self.horizons)
        if self.validation_horizons is not None:
            _require_horizons("validation_horizons", self.validation_horizons)
        return self

    @property
    def batch_size(self) -> int | None:
        """Members of a batch; None for all."""
        return None if self.batch == "all" else self.batch  # type: ignore[return-value]

    @property
    def window_length(self) -> int | None:
        """Length of windows; None for whole series."""
        return None if self.window == "all" else self.window  # type: ignore[return-value]

    @property
    def training_objective(self) -> Objective:
        """What is maximised besides the hyper-prior."""
        return Objective(self.horizons, self.objective, self.stride, self.context)  # type: ignore[arg-type]

    @property
    def scores_free_runs(self) -> bool:
        """Whether validation data are scored in free runs."""
        return bool(self.free_run) or self.objective == "free_run"

    @property
    def validation_objective(self) -> Objective:
        """How validation data are scored."""
        objective = self.training_objective
        return objective if self.validation_horizons is None else objective._replace(horizons=self.validation_horizons)

    def fine_tuning(self) -> "Recipe":
        """The recipe of a model that has been trained already: fewer iterations at a lower rate.

        Example:
            >>> SERIES_RECIPE.fine_tuning().iterations
            50
        """
        assert self.learning_rate is not None
        return replace(self, iterations=self.fine_tune, learning_rate=self.learning_rate * FINE_TUNE_RATE)

    def free_running(self, longest: int, count: int) -> "Recipe":
        """The recipe of the free-run objective for a model that has been trained already, on so many series of this length.

        Example:
            >>> SERIES_RECIPE.free_running(longest=1000, count=1).window
            200
        """
        assert self.learning_rate is not None
        changes: dict[str, Any] = {
            "objective": "free_run",
            "horizons": (1,),
            "iterations": self.free_run,
            "warm_up": FREE_RUN_WARM_UP,
        }
        window = min(self.window_length or longest, longest, FREE_RUN_WINDOW)
        batch = FREE_RUN_BATCH if count == 1 else min(4 * FREE_RUN_BATCH, count)
        return replace(self, learning_rate=self.learning_rate * FREE_RUN_RATE, window=window, batch=batch, **changes)

    def pace(self, dtype: Any) -> "Pace":
        """The settings of the optimiser as arrays.

        Example:
            >>> SERIES_RECIPE.pace(np.float64).learning_rate.item()
            0.01
        """
        assert self.iterations is not None
        rising = round((self.warm_up or 0.0) * self.iterations)
        numbers = self.learning_rate, self.iterations, rising, self.variance_rate, self.clip
        return Pace(*(np.asarray(number, dtype) for number in numbers))

    def compiled(self) -> "Recipe":
        """The settings that a compiled chunk of iterations depends on, besides its arrays.

        Example:
            >>> Recipe(iterations=300, batch=8).compiled()
            Recipe(batch=8)
        """
        names = "schedule", "objective", "context", "horizons", "stride", "batch", "window", "calibrate"
        names += "validation_horizons", "validation_score"
        return Recipe(**{name: getattr(self, name) for name in names})


class Pace(eqx.Module):
    """The settings of the optimiser as arrays, so that other values trigger no recompilation.

    Attributes:
        learning_rate: At its highest.
        iterations: Over which a cosine schedule decays.
        rising: First iterations, over which the learning rate rises linearly.
        variance_rate: Factor on the learning rate of log variances.
        clip: Largest norm of the gradient.
    """

    learning_rate: Float[Values, ""]
    iterations: Float[Values, ""]
    rising: Float[Values, ""]
    variance_rate: Float[Values, ""]
    clip: Float[Values, ""]

    def optimiser(self, schedule: str | None) -> optax.GradientTransformation:
        """Adam behind a clipped gradient."""
        clip: Any = self.clip
        rate: Any = partial(self.rate, schedule)
        return optax.chain(optax.clip_by_global_norm(clip), optax.adam(rate), optax.stateless(self._scale_log_variances))

    def rate(self, schedule: str | None, count: Array) -> Array:
        """The learning rate at an iteration."""
        done, rate = count.astype(self.learning_rate.dtype), self.learning_rate
        if schedule == "cosine":
            share = jnp.minimum(done / self.iterations, 1.0)
            rate = rate * (FINAL_RATE + (1 - FINAL_RATE) * 0.5 * (1 + jnp.cos(jnp.pi * share)))
        # The product is rounded to single precision, as optax does with a factor that is made of the count.
        factor = jnp.minimum((done + 1).astype(jnp.float32) / jnp.maximum(self.rising, 1.0).astype(jnp.float32), 1.0)
        return jnp.where(self.rising > 0, (rate.astype(jnp.float32) * factor).astype(rate.dtype), rate)

    def _scale_log_variances(self, updates: Any, _: Any = None) -> Any:
        """Adam moves a parameter by at most its rate, and log variances have further to go than weights."""

        def scaled(path: Any, update: Array) -> Array:
            # Positive parameters are stored as logarithms, and named so.
            name = getattr(path[-1], "name", "") if path else ""
            return update * self.variance_rate if name.startswith("log_") or name.endswith("_log_var") else update

        return jax.tree_util.tree_map_with_path(scaled, updates)


SERIES_RECIPE = Recipe(
    iterations=500,
    learning_rate=0.01,
    schedule="cosine",
    variance_rate=1.0,
    clip=1.0,
    prior_weight=0.2,
    objective="evidence",
    horizons=(1,),
    stride=1,
    batch="all",
    window="all",
    validation=0.0,
    validation_score="density",
    patience=200,
    calibrate=True,
    linear_start=True,
    free_run=0,
    fine_tune=50,
)
"""Defaults of `ProDSSM`."""

Stage = tuple[str, Recipe]
"""A weight mode, and how to train with it."""


def stages(weights: str, recipe: Recipe) -> list[Stage]:
    """The stages of training: global weights as local ones first, because a gradient of theirs costs many times as much."""
    if weights != "global" or not recipe.fine_tune:
        return [(weights, recipe)]
    return [("local", recipe), ("global", recipe.fine_tuning())]


def _require_fraction(name: str, value: Any, *, inclusive: bool = False) -> None:
    require_number(name, value)
    if not (0 <= value < 1 or (inclusive and value == 1)):
        raise ValueError(f"{name} must be a fraction between 0 and 1, got {value}")


def _require_horizons(name: str, horizons: Any) -> None:
    if not isinstance(horizons, tuple):
        raise TypeError(f"{name} must be a tuple of numbers of steps such as (1, 5), got {horizons!r}")
    if not horizons or len(set(horizons)) < len(horizons):
        raise ValueError(f"{name} must be one or more different numbers of steps, got {horizons}")
    for steps in horizons:
        require_integer(name, steps, least=1)
