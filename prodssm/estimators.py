"""The friendly face: one object that standardises, learns, filters, smooths, forecasts and explains itself."""

import os
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from prodssm.activations import ACTIVATIONS
from prodssm.answers import OneStep, Parts, Prediction, Stream, Transition, channel_names
from prodssm.assembly import Settings, acquainted, assemble
from prodssm.batches import Data
from prodssm.checking import Check, compare
from prodssm.checks import (
    as_array,
    require_answer,
    require_finite,
    require_integer,
    require_number,
    require_variances,
    unmasked,
)
from prodssm.frames import Layout, from_frames, layout_of, row_from, values_from
from prodssm.gaussian import Gaussian
from prodssm.held_out import Split, beginning
from prodssm.inference import (
    Beliefs,
    Finder,
    filter_states,
    forecast,
    future,
    require_memory,
    sample_futures,
    simulate,
    smooth_states,
    split_variances,
    step,
)
from prodssm.methods import METHODS
from prodssm.methods.moments import moments
from prodssm.model import StateSpaceModel
from prodssm.objective import SCORES, Objective
from prodssm.persistence import FileError, flatten, read, restore, write
from prodssm.persistence import plain as _plain
from prodssm.regressor import DeepStochasticRegressor
from prodssm.series import Series, Standardiser, as_list
from prodssm.training import History, Recipe, described, slower, stages_of, train, trainable
from prodssm.units import Units

CHECK_STEPS, CHECK_SAMPLES = 20, 400  # of the small check at the end of a fit
GENTLE = 0.2  # of the iterations: how long the learning rate rises if the start is a fitted model


class ProDSSM(BaseEstimator):
    """A probabilistic deep state-space model: learned dynamics with uncertain weights, and inference without sampling.

    Time: the initial belief is about the state at the first observation. At every step the model conditions on `y[t]`, then
    moves to `t + 1` under the control `u[t]`.

    Args:
        latent_dim: Number of states; None takes the number of observed channels.
        hidden: Hidden layer sizes of the transition network; () is a linear model.
        activation: Its activation, by name or any elementwise function.
        weights: "local" (redrawn at every step), "global" (drawn once) or "point" (no uncertainty).
        method: "moments" (closed form), "linearised" (EKF), "unscented" (UKF) or "sampled" (Monte Carlo).
        residual: Learn x + dt f(x) instead of f(x); needed for irregular time stamps.
        process_noise: "constant", or hidden sizes of a network for a variance that depends on state and control.
        emission: "identity", "linear", or hidden sizes of a network.
        measurement_noise: Variance (one number or one per channel, in units of the data squared); None learns it.
        prior_weight: Weight of the hyper-prior on the weights.
        horizons: How many steps ahead training looks; (1,) is the likelihood of the filter.
        stride: With longer horizons, forecasts start at every so many observations; more is cheaper.
        objective: "evidence", or "bound" for the evidence lower bound.
        iterations: Steps of the optimiser.
        refine: With weights="global", steps at a fifth of the learning rate that follow `iterations` of them with weights
            redrawn at every step, which are cheaper and a good place to start from; None: all steps with weights drawn once.
        learning_rate: Of Adam.
        schedule: "cosine" or "constant".
        batch: Series or windows per step; None takes all series.
        window: Length of training windows; None takes whole series.
        validation: Share of the data held out for early stopping: whole series if there are five or more, else the end of each.
        patience: Iterations without progress on that share after which to stop.
        validation_horizons: How far ahead that share is foreseen, in steps, if not as far as `horizons`. Who wants to simulate
            for a long time trains with short horizons, which is fast, and judges by long ones.
        calibrate: Whether that share also says how large a constant process noise is: models are too sure of what they were
            not trained on.
        linear_start: With emission="linear", whether to start as the linear model that linear algebra finds; of several
            `restarts` every other one does, because neither start is always the better one.
        restarts: How often to train from new random weights; the best on the held-out part, or else in training, is kept.
        noise_floor: Least measurement variance that is learned, as a share of a channel's variance.
        order: Truncation order of the moment method; None chooses.
        rank: With weights="global", how many directions of what was learned about them a filter remembers; as many as weights
            or more: a dense covariance; None: that up to 400 weights, 64 directions beyond.
        samples: Particles for method="sampled".
        checkpoint: File that a killed run resumes from. It belongs to one fit to the same data.
        progress: Show a progress bar.
        seed: Seed of all randomness.
        variance_rate: How many times faster the logarithms of variances are learned than all else. Training that stops early
            leaves them close to where they began, and the model less sure than it might be.
        warm_up: Share of the iterations over which the learning rate rises; None: a fifth for a model that starts as the linear
            one, which full steps would take apart, none for others.
        give_back: So many iterations at a fifth of the learning rate follow on all data, the held-out part too, once that has
            said when to stop; None: none. What the model has not seen elsewhere it then learns as well. The process noise stays
            as the held-out part asked for, if it did.

    Attributes:
        ssm_: The learned `StateSpaceModel`, in standardised units.
        history_: What training saw.
        check_: A small check of the Gaussian assumption on the training data; None if the model was loaded from a file.
        layout_: What the columns of the data frame mean that it was fitted to; None if it was none.
        channel_names_: Names of the channels: its columns, else y0, y1, ...

    Example:
        >>> y = np.sin(0.3 * np.arange(60))
        >>> model = ProDSSM(hidden=(), residual=True, latent_dim=2, emission="linear", iterations=5, progress=False)
        >>> model.fit(y).forecast(y, steps=10).mean.shape
        (10, 1)
    """

    def __init__(
        self,
        latent_dim: int | None = None,
        hidden: Sequence[int] = (50,),
        activation: Any = "relu",
        weights: str = "local",
        method: str = "moments",
        residual: bool = False,
        process_noise: str | Sequence[int] = "constant",
        emission: str | Sequence[int] = "identity",
        measurement_noise: Any = None,
        prior_weight: float = 0.2,
        horizons: Sequence[int] = (1,),
        stride: int = 1,
        objective: str = "evidence",
        iterations: int = 500,
        refine: int | None = 50,
        learning_rate: float = 0.01,
        schedule: str = "cosine",
        batch: int | None = None,
        window: int | None = None,
        validation: float = 0.0,
        patience: int = 200,
        validation_horizons: Sequence[int] | None = None,
        calibrate: bool = True,
        linear_start: bool = True,
        restarts: int = 1,
        noise_floor: float = 1e-6,
        order: int | None = None,
        rank: int | None = None,
        samples: int = 64,
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = True,
        seed: int = 0,
        variance_rate: float = 1.0,
        warm_up: float | None = None,
        give_back: int | None = None,
    ):
        """Store the settings as they are; `fit` checks them."""
        self.latent_dim, self.hidden, self.activation, self.weights = latent_dim, hidden, activation, weights
        self.method, self.residual, self.process_noise, self.emission = method, residual, process_noise, emission
        self.measurement_noise, self.prior_weight = measurement_noise, prior_weight
        self.horizons, self.stride, self.objective = horizons, stride, objective
        self.iterations, self.refine, self.learning_rate = iterations, refine, learning_rate
        self.schedule, self.batch = schedule, batch
        self.window, self.validation, self.patience = window, validation, patience
        self.validation_horizons, self.calibrate = validation_horizons, calibrate
        self.linear_start, self.restarts = linear_start, restarts
        self.noise_floor, self.order, self.rank, self.samples = noise_floor, order, rank, samples
        self.checkpoint, self.progress, self.seed = checkpoint, progress, seed
        self.variance_rate, self.warm_up, self.give_back = variance_rate, warm_up, give_back

    # ------------------------------------------------------------------ learning

    def fit(self, data: Any, y: Any = None, *, held_out: Any = None) -> "ProDSSM":
        """Learn from one or many series: an array (time, y), a `Series`, a data frame, or a list of these.

        A data frame has one column per channel; `prodssm.frames.series_of` reads one that also has controls, time stamps or
        several series. Later frames must have the same columns, in any order.

        Ctrl-C ends training and keeps the best model so far.

        Args:
            data: What to learn from.
            y: Nothing; scikit-learn passes it.
            held_out: What to judge training by, in place of a share `validation` of the data: series of your own, or a slice
                of the time steps of each series, such as `slice(100, 150)`, which is then not learned from.
        """
        _require_nothing(y)
        vars(self).pop("ssm_", None)  # a fit that fails must not leave old weights with new units
        for name in ("calibrate", "linear_start", "residual"):
            if not isinstance(getattr(self, name), bool | np.bool_):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        recipe = self._recipe().check()
        require_integer("restarts", self.restarts, least=1)
        for name in ("refine", "rank", "give_back"):
            if getattr(self, name) is not None:
                require_integer(name, getattr(self, name), least=1)
        require_integer("seed", self.seed, least=0)
        require_integer("samples", self.samples, least=2)
        self.layout_ = layout_of(data)
        series = self._series(data)
        self.units_ = Units.of(series, even=not self.residual)
        series = [self.units_.series(each) for each in series]
        settings, noise = self._settings(self.units_.channels), self._standard_noise()
        training, judged, everything = split = self._split(series, held_out)
        split.require_observations(recipe, self.validation)
        columns = jnp.concatenate([each.y for each in training])
        comparable = Data.of(training).drawn_whole(recipe.batch, recipe.window) and self.method != "sampled"
        best, winner, interrupted = -np.inf, 0, False
        for restart in range(self.restarts):
            start = assemble(settings, columns, self.units_.controls, noise, key=jr.key(self.seed + 1_000_003 * restart))
            self._require_room(start, training)
            chosen = recipe
            if self.linear_start and restart % 2 == 0 and settings.emission == "linear":
                start = acquainted(start, training)
                chosen = recipe if self.warm_up is not None else replace(recipe, warm_up=GENTLE)
            found, history, last = self._train(start, chosen, training, judged, restart)
            seen = last.validation or (last.objective if comparable else last.objective[-1:])
            reached = max((value for value in seen if np.isfinite(value)), default=-np.inf)
            if restart == 0 or reached > best:
                self.ssm_, self.history_, best, winner = found, history, reached, restart
            if interrupted := last.stopped.startswith("interrupted"):
                break
        if self.give_back is not None and judged is not None and np.isfinite(best) and not interrupted:
            self._give_back(recipe, everything, winner)
        if self.history_.objective and not np.isfinite(self.history_.objective).any():
            vars(self).pop("ssm_")
            raise FloatingPointError(
                "training never had a finite objective, so nothing was learned: the model that it starts from is unstable on "
                "these data, or its first steps are too large; give shorter horizons or windows, a smaller learning_rate, "
                "another seed, or residual=False"
            )
        if not self.history_.iterations:
            warnings.warn("interrupted before anything was learned: this is the untrained model", UserWarning, stacklevel=2)
        if not np.isfinite(self.history_.objective).all():
            warnings.warn(f"training: {self.history_.stopped}; try a smaller learning_rate", UserWarning, stacklevel=2)
        self._check_quietly(series)
        return self

    def _train(
        self, model: StateSpaceModel, recipe: Recipe, series: list[Series], held_out: Data | None, restart: int
    ) -> tuple[StateSpaceModel, History, History]:
        """One run, which for weights that are drawn once may have two stages; the whole history and that of the last stage.

        The latter is empty if Ctrl-C came before: what other stages have reached cannot be compared with it.
        """
        history = found = History()
        stages = stages_of(self.weights, recipe, _plain(self.refine))
        for n, (kind, chosen) in enumerate(stages):
            suffix = f"{restart or ''}" + (".refined" if n else "")
            model = model.with_kind(kind)
            model, found = train(
                model,
                series,
                chosen,
                key=jr.fold_in(jr.key(self.seed), restart),
                held_out=held_out,
                method=self.method,
                options=self._options(),
                spec=trainable(model, measurement_noise=self.measurement_noise is None),
                checkpoint=None if self.checkpoint is None else f"{self.checkpoint}{suffix}",
                progress=self.progress,
            )
            history = history.followed_by(found)
            if found.stopped.startswith("interrupted"):
                found = found if n == len(stages) - 1 else History(stopped=found.stopped)
                break
        return model.with_kind(self.weights), history, found

    def _give_back(self, recipe: Recipe, series: list[Series], restart: int) -> None:
        """Learn from all data what the held-out part has to teach, but not how sure to be, which that part has said."""
        spec = trainable(self.ssm_, measurement_noise=self.measurement_noise is None, process_noise=not recipe.calibrate)
        self.ssm_, found = train(
            self.ssm_,
            series,
            slower(recipe, _plain(self.give_back)),
            key=jr.fold_in(jr.key(self.seed), restart),
            method=self.method,
            options=self._options(),
            spec=spec,
            checkpoint=None if self.checkpoint is None else f"{self.checkpoint}.all",
            progress=self.progress,
        )
        self.history_ = self.history_.followed_by(found)

    def _recipe(self) -> Recipe:
        if self.objective not in SCORES:
            raise ValueError(f"objective must be one of {', '.join(SCORES)}; got {self.objective!r}")
        horizons, judged = _plain(self.horizons), _plain(self.validation_horizons)
        for name, steps in (("horizons", horizons), ("validation_horizons", () if judged is None else judged)):
            if not isinstance(steps, tuple):
                raise TypeError(f"{name} must be a tuple of numbers of steps such as (1, 5), got {steps!r}")
        names = ("iterations", "learning_rate", "variance_rate", "schedule", "prior_weight")
        names += ("batch", "window", "patience", "calibrate")
        settings = {name: _plain(getattr(self, name)) for name in names}
        settings["warm_up"] = 0.0 if self.warm_up is None else _plain(self.warm_up)
        return Recipe(objective=Objective(horizons, self.objective, _plain(self.stride)), judged=judged, **settings)

    def _settings(self, y_size: int) -> Settings:
        return Settings(
            latent_dim=y_size if self.latent_dim is None else _plain(self.latent_dim),
            hidden=_plain(self.hidden),
            activation=self.activation,
            weights=self.weights,
            residual=bool(self.residual),
            process_noise=_plain(self.process_noise),
            emission=_plain(self.emission),
            noise_floor=_plain(self.noise_floor),
            rank=_plain(self.rank),
        ).check(y_size)

    def _require_room(self, start: StateSpaceModel, series: list[Series]) -> None:
        """Refuse what memory cannot hold, before any work: a gradient keeps the beliefs of all steps of a batch."""
        longest = max(len(each) for each in series)
        require_memory(start, min(self.window or longest, longest) * (self.batch or len(series)), self.method)

    def _options(self) -> dict[str, Any]:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}; got {self.method!r}")
        if self.method == "sampled":
            return {"key": jr.key(self.seed), "samples": self.samples}
        return {} if self.order is None or self.method != "moments" else {"order": self.order}

    def _standard_noise(self) -> Float[Array, " y"] | None:
        """The given measurement variances in standard units."""
        require_number("noise_floor", self.noise_floor)
        require_variances("noise_floor", self.noise_floor)
        if self.measurement_noise is None:
            return None
        found = self.units_.variances("measurement_noise", self.measurement_noise)
        if self.objective == "bound" and not (np.asarray(found) > 0).all():
            raise ValueError("measurement_noise must be positive for objective='bound', which divides by it; got zero")
        return found

    def _split(self, series: list[Series], held_out: Any) -> Split:
        """What to learn from and what to judge by: the user's own choice, or a share of the data."""
        if held_out is None:
            return Split.by_share(series, self.validation, self.seed)
        if self.validation:
            raise ValueError(f"held_out takes the place of a share of the data; give validation=0, got {self.validation}")
        if isinstance(held_out, slice):
            return Split.by_slice(series, held_out)
        try:
            return Split.by_others(series, [self.units_.series(each) for each in self._series(held_out)])
        except (TypeError, ValueError) as error:
            raise type(error)(f"held_out: {error}") from error

    def _check_quietly(self, series: list[Series]) -> None:
        """A small check of the Gaussian assumption; what it finds wrong is worth a warning."""
        longest = max(series, key=len)
        steps = min(CHECK_STEPS, len(longest) // 2)
        self.check_ = self._check(longest, max(steps, 1), CHECK_SAMPLES)
        if not self.check_.holds:
            warnings.warn(self.check_.verdict, UserWarning, stacklevel=3)

    # ------------------------------------------------------------------ inference

    def filter(self, data: Any) -> Beliefs:
        """Beliefs about the state given the observations up to each time: `.mean`, `.cov`, `.std`, `.log_likelihood`."""
        return self._infer(filter_states, data)

    def smooth(self, data: Any) -> Beliefs:
        """Beliefs about the state at each time given all observations."""
        return self._infer(smooth_states, data)

    def _infer(self, function: Callable[..., Beliefs], data: Any) -> Beliefs:
        series = self._one(data)
        standard = self.units_.series(series)
        found = function(self.ssm_, standard, self.method, **self._options())
        log_evidence = self.units_.y.undo_log_prob(found.log_evidence, ~jnp.isnan(series.y))
        return Beliefs(*self._state_units(found.mean, found.cov), log_evidence, found.weights)

    def forecast(self, data: Any, steps: int, u: Any = None, dt: Any = None) -> Prediction:
        """Beliefs about the observations that follow a series.

        Args:
            data: What was seen: an array (time, y), a `Series` or a data frame.
            steps: How many observations ahead.
            u: Future controls, (steps, u); `u[k]` acts after the k-th forecast, so the last row may be left out.
            dt: Future time steps, (steps,); `dt[k]` leads to the k-th forecast. The last one of the series if not given.

        Returns:
            `.mean`, `.cov`, `.std`, `.interval(0.95)`, `.quantile(0.5)`, `.log_prob(y)`, `.decompose()`, `.to_frame()`.
        """
        series = self._one(data)
        standard = self.units_.series(series)
        u, dt = self._future(u, dt)
        found = forecast(self.ssm_, standard, steps, self.method, u=u, dt=dt, **self._options())
        units = self.units_.y
        parts = partial(copy(self)._decompose, standard, steps, u, dt)  # of this model, whatever is fitted later
        mean, cov = units.undo(found.mean), units.undo_cov(found.cov)
        return Prediction(mean, cov, *self._state_units(found.state_mean, found.state_cov), parts, self.layout_)

    def _future(self, u: Any, dt: Any) -> tuple[Any, Any]:
        u = self._controls_of(u)
        u = None if u is None or (np.size(u) == 0 and self.units_.u is not None) else self.units_.control(u)
        return u, None if dt is None else self.units_.gaps(dt)

    def _controls_of(self, u: Any) -> Any:
        """Controls as a matrix, by the names of fit if they have names."""
        return values_from("u", u, () if self.layout_ is None else self.layout_.controls)

    def _decompose(self, standard: Series, steps: int, u: Any, dt: Any) -> Parts:
        if self.ssm_.weights == "local":
            raise ValueError(
                "decompose cannot tell epistemic from aleatoric variance for weights='local': they are redrawn at every step "
                "and act as process noise. Use weights='global', or compare transition(x).var with the process noise"
            )
        control, gaps = future(self.ssm_, standard, steps, u, dt)
        square = np.asarray(self.units_.y.scale, float) ** 2
        if self.ssm_.weights == "point":
            found = forecast(self.ssm_, standard, steps, self.method, u=u, dt=dt, **self._options())
            output = jnp.diagonal(found.cov, axis1=1, axis2=2) - self.ssm_.measurement_noise[None, :]
            shared = jnp.zeros_like(output)
        elif self.method != "moments":
            raise ValueError(f"decompose needs method='moments', got {self.method!r}")
        else:
            output, shared = split_variances(Finder(self.ssm_, self._options(), self.method), standard.frames, control, gaps)
        output, shared = np.asarray(output, float), np.asarray(shared, float)
        measurement = np.broadcast_to(np.asarray(self.ssm_.measurement_noise, float), output.shape)
        return Parts(shared * square, (output - shared) * square, measurement * square)

    def transition(self, x: Any, u: Any = None) -> Transition:
        """Belief about the next state f(x, w) at states x, (n, x), with the learned weights and without process noise.

        For a residual model it is x + f(x, w), one usual time step later.
        """
        self._require_fit()
        x = as_array("x", x, ndim=2)
        if x.shape[1] != self.ssm_.x_size:
            raise ValueError(f"x must have {self.ssm_.x_size} columns, one per state, got shape {x.shape}")
        require_finite("x", x)
        units = self._state_standardiser()
        states = units.apply(x.astype(units.mean.dtype))
        self.units_.require_control(u)
        controls = None if u is None else self.units_.control(self._controls_of(u))
        if controls is not None and len(controls) != len(states):
            raise ValueError(f"u must have {len(states)} rows like x, got {len(controls)}")
        mean, var = _transition(self.ssm_, states, controls, self.order)
        require_answer("the next state", mean, var)
        return Transition(units.undo(mean), var * units.scale[None, :] ** 2)

    def simulate(self, steps: int, key: Any, u: Any = None, dt: Any = None) -> tuple[Array, Array]:
        """States (steps, x) and observations (steps, y) drawn from the model."""
        self._require_fit()
        u, dt = self._future(u, dt)
        states, y = simulate(self.ssm_, steps, key=key, u=u, dt=dt)
        return self._state_standardiser().undo(states), self.units_.y.undo(y)

    def start(self) -> Stream:
        """A stream before its first observation."""
        self._require_fit()
        return Stream(self.ssm_.start(), jnp.asarray(0))

    def step(self, state: Any, y: Any, u: Any = None, dt: float | None = None) -> tuple[Stream, OneStep]:
        """Take in one observation (NaN where nothing was observed) and the control that follows it.

        Memory and time per step are constant.

        Args:
            state: The stream, from `start` or from the last `step`.
            y: The observation, (y,); a dict or a row of a pandas frame goes by the names of fit.
            u: The control that acts until the next observation, (u,), if the model has any; likewise.
            dt: Time until the next observation, in the units of the data; the usual time step if not given.

        Returns:
            The stream after this step; and what is known now: `.state_mean`, `.state_cov`, and the `.mean` and `.cov` of the
            next observation.
        """
        self._require_fit()
        if not isinstance(state, Stream):
            raise TypeError(f"state must be what start() or the last step has returned, got {type(state).__name__}")
        if self.layout_ is not None:
            y, u = row_from(y, self.layout_.channels), row_from(u, self.layout_.controls)
        y = np.asarray(unmasked(y), dtype=self.units_.y.mean.dtype)
        if y.shape != self.units_.y.mean.shape:
            raise ValueError(f"y must have shape {self.units_.y.mean.shape}, got {y.shape}")
        if np.isinf(y).any():
            raise ValueError(f"y must be finite, or NaN where nothing was observed; got {y}")
        self.units_.require_control(u)
        control = None if u is None else np.asarray(unmasked(u), dtype=self.units_.y.mean.dtype)
        if control is not None and (control.shape != (self.ssm_.u_size,) or not np.isfinite(control).all()):
            raise ValueError(f"u must be {self.ssm_.u_size} finite numbers, got {control}")
        gap = np.asarray(self.units_.gap(dt), y.dtype)
        finder = Finder(self.ssm_, self._options(), self.method)
        state, found = _stream_step(finder, self.units_.y, self.units_.u, self._state_standardiser(), state, y, control, gap)
        require_answer("the stream", *found, advice="the learned system is unstable; train it anew")
        return state, OneStep(*found)

    def score(self, data: Any, y: Any = None) -> float:
        """Mean log density per observed value, each given those before it; the first of each series is not scored."""
        _require_nothing(y)
        self._require_fit()
        total, count = 0.0, 0
        for series in self._series(data):
            found = self.filter(series)
            total += float(found.log_evidence[1:].sum())
            count += int((~jnp.isnan(series.y[1:])).sum())
        if not count:
            raise ValueError("data must have observations after the first of a series, to be scored")
        return total / count

    def check(self, data: Any, steps: int = 20, samples: int = 1000) -> Check:
        """Compare the deterministic forecast with futures sampled from the same model, step by step.

        Args:
            data: A series; the forecasts start after its part before the last `steps` observations, so that controls are known.
            steps: How many steps ahead.
            samples: How many futures.

        Returns:
            Gaps per step and channel, and a `.verdict` in words.
        """
        require_integer("steps", steps, least=1)
        require_integer("samples", samples, least=10)
        series = self._one(data)
        if len(series) < steps + 2:
            raise ValueError(f"data must have at least {steps + 2} observations for {steps} steps, got {len(series)}")
        return self._check(self.units_.series(series), steps, samples)

    def _check(self, standard: Series, steps: int, samples: int) -> Check:
        cut = max(len(standard) - steps, 2)
        past = beginning(standard, cut)
        u = None if standard.u is None else standard.u[cut:]
        dt = standard.dt[cut - 1 :][:steps] if self.ssm_.residual else None
        finder = Finder(self.ssm_, self._options(), self.method)
        found = forecast(self.ssm_, past, steps, self.method, u=u, dt=dt, **self._options())
        key = jr.key(self.seed + 1)
        outputs = sample_futures(finder, past.frames, *future(self.ssm_, past, steps, u, dt), key=key, samples=samples)
        noise = jr.normal(jr.fold_in(key, 1), outputs.shape, outputs.dtype) * jnp.sqrt(self.ssm_.measurement_noise)[None, None]
        mean, std, futures = (np.asarray(part, float) for part in (found.mean, found.std, outputs + noise))
        return compare(mean, std, futures)

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, see `prodssm.load`."""
        self._require_fit()
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} to be saved, got {self.activation!r}")
        channels, controls = self.units_.channels, self.units_.controls
        if _shape(self._template(channels, controls)) != _shape(self.ssm_):
            raise ValueError("the settings of this model were changed after fit: call fit again before save")
        params = {name: _plain(value) for name, value in self.get_params(deep=False).items()}
        params["checkpoint"] = None if self.checkpoint is None else os.fspath(self.checkpoint)
        config = {
            "params": params,
            "time_unit": self.units_.time,
            "controls": controls,
            "channels": channels,
            "layout": None if self.layout_ is None else asdict(self.layout_),
            "stopped": self.history_.stopped,
            "iterations": self.history_.iterations,
        }
        numbers = {f"history.{n}": np.asarray(getattr(self.history_, n), float) for n in ("objective", "validation", "seconds")}
        write(path, "ProDSSM", config, flatten(self._fitted()) | numbers)

    def _template(self, channels: int, controls: int) -> StateSpaceModel:
        """A model of this shape."""
        noise = None if self.measurement_noise is None else jnp.ones(channels)
        return assemble(self._settings(channels), jnp.zeros((2, channels)), controls, noise, key=jr.key(0))

    def _fitted(self) -> dict[str, Any]:
        return {"model": self.ssm_, "y_units": self.units_.y, "u_units": self.units_.u}

    @classmethod
    def _load(cls, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> "ProDSSM":
        model = cls(**{name: _plain(value) for name, value in config["params"].items()})
        numbers = {name: arrays.pop(f"history.{name}").tolist() for name in ("objective", "validation", "seconds")}
        model.history_ = History(iterations=config["iterations"], stopped=config["stopped"], **numbers)
        channels, controls = config["channels"], config["controls"]
        layout = config.get("layout")  # older files have none
        model.layout_ = None if layout is None else Layout(**{name: _plain(value) for name, value in layout.items()})
        model.ssm_ = model._template(channels, controls)
        model.units_ = Units.none(channels, controls, config["time_unit"], even=not model.ssm_.residual)
        fitted = restore(model._fitted(), arrays)
        model.ssm_ = fitted["model"]
        model.units_ = replace(model.units_, y=fitted["y_units"], u=fitted["u_units"])
        model.check_ = None
        return model

    # ------------------------------------------------------------------ units

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` has come to its end."""
        return hasattr(self, "ssm_")

    def _require_fit(self) -> None:
        if not hasattr(self, "ssm_"):
            raise NotFittedError("this ProDSSM has not learned anything yet: call fit(data) first")

    @property
    def channel_names_(self) -> tuple[str, ...]:
        """Names of the channels: the columns of the frame that was fitted, else y0, y1, ..."""
        return channel_names(self.layout_, self.units_.channels)

    def _series(self, data: Any) -> list[Series]:
        """Whatever holds series as a list of them, the columns of frames in the order of fit."""
        return as_list(from_frames(data, self.layout_))

    def _one(self, data: Any) -> Series:
        self._require_fit()
        series = self._series(data)
        if len(series) != 1:
            raise ValueError(f"data must be one series here, got {len(series)}; call this once for each")
        return series[0]

    def _state_standardiser(self) -> Standardiser:
        """Units of the state: those of the data if the state is what is observed, else its own."""
        if self.ssm_.emission is None:
            return self.units_.y
        return Standardiser.none(self.ssm_.x_size, self.ssm_.initial_mean.dtype)

    def _state_units(self, mean: Array, cov: Array) -> tuple[Array, Array]:
        units = self._state_standardiser()
        return units.undo(mean), units.undo_cov(cov)


def _require_nothing(y: Any) -> None:
    if y is not None:
        raise ValueError("y must be None: observations and controls come together as data, see prodssm.Series(y, u)")


def _shape(model: StateSpaceModel) -> Any:
    """All of a model but its numbers."""
    return described(model), {name: leaf.shape for name, leaf in flatten(model).items()}


@eqx.filter_jit
def _transition(model: StateSpaceModel, states: Array, controls: Array | None, order: int | None) -> tuple[Array, Array]:
    network = model.transition.at_mean() if model.weights == "point" else model.transition

    def at(x, u):
        found = moments(network, Gaussian.certain(x), u, order=order)
        assert found.cov is not None
        return (x + found.mean if model.residual else found.mean), jnp.diag(found.cov)

    return jax.vmap(at)(states, controls) if controls is not None else jax.vmap(lambda x: at(x, None))(states)


@eqx.filter_jit
def _stream_step(finder: Finder, y_units, u_units, x_units, state: Stream, y, u, dt) -> tuple[Stream, tuple]:
    control = None if u is None else u_units.apply(u)
    filtered, _, following, _ = step(finder, state.belief, y_units.apply(y), control, dt, state.count)
    seen = following.state.advance(finder.emission(following, state.count + 1))
    found = (
        y_units.undo(seen.mean),
        y_units.undo_cov(seen.cov),
        x_units.undo(filtered.mean),
        x_units.undo_cov(filtered.cov),
    )
    return Stream(following, state.count + 1), found


KINDS: dict[str, Any] = {"ProDSSM": ProDSSM, "DeepStochasticRegressor": DeepStochasticRegressor}


def load(path: str | os.PathLike[str]) -> Any:
    """A fitted model from the file that its `save` has written."""
    stored = read(path)
    if stored.kind not in KINDS:
        raise ValueError(f"{path} holds a {stored.kind}, which is not a model; expected one of {', '.join(KINDS)}")
    for name, array in stored.arrays.items():
        # Logarithms of nothing are legal, and where a history has no number it says so.
        if not name.startswith("history.") and array.dtype.kind == "f" and np.isnan(array).any():
            raise FileError(f"{path} is damaged: {name} holds what is not a number; take another copy, or save again")
    try:
        return KINDS[stored.kind]._load(stored.config, dict(stored.arrays))
    except (KeyError, TypeError) as error:
        raise FileError(f"{path} does not hold a whole {stored.kind} ({error}); take another copy, or save again") from error
