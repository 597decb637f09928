"""`ProDSSM`: the estimator that standardises, trains, filters, smooths, forecasts and saves a state-space model."""

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any

import jax.random as jr
import numpy as np

from prodssm._validation import as_values, require_finite, require_key
from prodssm.data.frames import is_panel
from prodssm.data.inputs import controls_from, future_controls, split_controls
from prodssm.data.long import LongSeries
from prodssm.data.series import Series, Values
from prodssm.data.stamps import Stamps
from prodssm.estimators.assessing import Assessing
from prodssm.estimators.chunks import Chunked
from prodssm.estimators.ensemble import mix_beliefs, mix_predictions, mix_transitions, stacked
from prodssm.estimators.fitted import FittedModel
from prodssm.estimators.learning import Learning
from prodssm.estimators.results import Panel, Prediction, Transition, output_names
from prodssm.estimators.smoothing import Smoothing
from prodssm.estimators.streaming import Streaming
from prodssm.methods.base import Method, find_method, require_weight_mode
from prodssm.models.filtering import Origin
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.panels import filter_panel
from prodssm.models.state_space import StateSpaceModel, require_steps
from prodssm.training.recipe import Recipe


class ProDSSM(Smoothing, Streaming, Chunked, Assessing, Learning):
    """A probabilistic deep state-space model: learned dynamics with uncertain weights, and inference without sampling.

    Time: the initial belief is about the state at the first observation. At every step the model conditions on `y[t]`, then
    moves to `t + 1` under the control `u[t]`.

    Args:
        latent_dim: Number of states; "auto" chooses it from the data, None takes the number of outputs.
        hidden: Hidden layer sizes of the transition network; () is a linear model. "auto" is (50,), or () if a linear model
            predicts held-out blocks as well.
        activation: Its activation, by name or any elementwise function; "auto" takes units that saturate beside a linear part,
            so that free runs stay bounded, else "relu".
        weights: "local" (redrawn at every step), "global" (drawn once) or "point" (no uncertainty).
        residual: Learn x + dt f(x) instead of f(x); needed for irregular time stamps, and then what "auto" takes.
        process_noise: "constant", or hidden sizes of a network for a variance that depends on state and control.
        emission: "identity"; "linear"; "feedthrough", a linear map of state and control, which then acts on the observation at
            once; or hidden sizes of a network; or a known function of (x, u), `Known`, or a matrix, for data in their units.
            "auto" chooses between the second and the third; with physics it is "identity".
        measurement_noise: Variance (one number or one per output, in units of the data squared); None learns it. Shorthand for
            `likelihood=GaussianLikelihood(variance)`; give one of the two.
        likelihood: The distribution of an observation given the emission's output: "gaussian", "poisson" (counts), "bernoulli"
            (labels 0 and 1), "student_t" (outliers), or one with parameters such as `StudentT(df=4)`; None is Gaussian.
        method: "moments" (closed form), "linearised" (EKF), "unscented" (UKF), "cubature", "sampled" (Monte Carlo), or a method
            with parameters such as `Moments(order=2)`. `Moments(components="auto")` trains with one Gaussian and answers with a
            mixture if `check` recommends one.
        recipe: How to train, a `Recipe`; what is None in it is the default (docs/recipe.md).
        n_estimators: Number of models, trained from the seeds `random_state`, `random_state + 1`, ...; their forecast is the
            mixture, which is wider where they differ. "auto" takes four that hold out different blocks of the data, unless the
            emission is given or data are few or many.
        checkpoint: How the names of the files begin that an interrupted fit resumes from. They belong to one fit to one data
            set.
        progress: Show a progress bar.
        random_state: Seed of all randomness.
        physics: What is known of the transition, a function of (x, u) in the units of the data, or `Known` if it has parameters
            to learn: the rate dx/dt if `residual`, else the next state. The network is added to it; `hidden=None` is none.

    Attributes:
        members_: The trained models, each a `FittedModel`.
        ssm_: The `StateSpaceModel` of the first of them, in standardised units.
        method_: The method of its answers; with a number of components also where that was "auto".
        history_: What training recorded, member after member.
        check_: A check of the Gaussian assumption on the training data; None if training was interrupted, or if the model was
            loaded from a file.
        choices_: What "auto" stood for, and why.
        skill_: Scores on held-out blocks, beside those of simple forecasts; None if training was interrupted.
        calibration_: How much wider or narrower forecasts are made; None without held-out data, or see `calibrate`.
        scaling_: The scaling of the data.
        layout_: The columns of the data frame that it was fitted to; None if it was none.
        output_names_: Names of the outputs: its columns, else y0, y1, ...

    Example:
        >>> y = np.sin(0.3 * np.arange(60))
        >>> recipe = Recipe(iterations=5)
        >>> model = ProDSSM(hidden=(), residual=True, latent_dim=2, emission="linear", recipe=recipe, progress=False)
        >>> model.fit(y).forecast(y, steps=10).mean.shape
        (10, 1)
        >>> model.filter(y).mean.shape, model.smooth(y).outputs.mean.shape
        ((60, 2), (60, 1))
        >>> model.transition(np.zeros((5, 2))).var.shape, model.simulate(5, jr.key(0))[1].shape
        ((5, 2), (5, 1))
        >>> model.residuals(y).score.shape, model.check(y, steps=3).trusted, isinstance(model.score(y), float)
        ((60,), 3, True)
        >>> model.with_method("unscented").save("model.safetensors")
        >>> model.report(y, "report.html")
    """

    def __init__(
        self,
        latent_dim: int | str | None = "auto",
        hidden: Sequence[int] | str | None = "auto",
        activation: Any = "auto",
        weights: str = "local",
        residual: bool | str = "auto",
        process_noise: str | Sequence[int] = "constant",
        emission: Any = "auto",
        measurement_noise: Any = None,
        likelihood: str | Likelihood | None = None,
        method: str | Method = "moments",
        recipe: Recipe | None = None,
        n_estimators: int | str = "auto",
        checkpoint: str | os.PathLike[str] | None = None,
        progress: bool = True,
        random_state: Any = 0,
        physics: Any = None,
    ):
        """Store the parameters as they are; `fit` checks them."""
        self.latent_dim, self.hidden, self.activation, self.weights = latent_dim, hidden, activation, weights
        self.residual, self.process_noise, self.emission = residual, process_noise, emission
        self.measurement_noise, self.likelihood = measurement_noise, likelihood
        self.method, self.recipe, self.n_estimators = method, recipe, n_estimators
        self.checkpoint, self.progress, self.random_state, self.physics = checkpoint, progress, random_state, physics

    # ------------------------------------------------------------------ inference

    def filter(self, data: Any) -> Any:
        """Filtered beliefs about the state: `.mean` (time, x), `.cov`, `.std`, `.log_likelihood`, `.to_frame()`.

        `.outputs` has the `.mean`, `.cov` and `.std` of what the sensors would show without noise, in the units of the data.

        With several models the evidence and the outputs are those of their mixture. If the emission is the identity the states
        are its moments, else those of the first model: latent coordinates differ between models.

        Args:
            data: One series, as for `fit`, or several: a list, or a frame with groups. A sensor may be dead, one row is legal.

        Returns:
            `Beliefs`; of several series a `Panel` of them, which `.to_frame()` makes one frame of.
        """
        series, same = self._known(data), self.ssm_.emission is None
        found = zip(*(member.infer(filter_panel, series) for member in self.members_), strict=True)
        pairs = zip(found, series, strict=True)
        mixed = [replace(mix_beliefs(each, same_states=same), origin=self._origin(one)) for each, one in pairs]
        return self._panel(data, mixed, series)

    def forecast(self, data: Any, steps: int, u: Any = None, dt: Any = None) -> Any:
        """Beliefs about the observations that follow a series.

        Args:
            data: The past: an array (time, y), a `Series` or a data frame; or several, as for `filter`; or a `LongSeries`.
            steps: Number of observations ahead.
            u: Future controls, (steps, u); `u[k]` acts after the k-th forecast, so the last row may be left out. A frame is
                read by the names of fit; features of the calendar are not given. For several series a list, or a frame with
                their groups.
            dt: Future time steps, (steps,); `dt[k]` leads to the k-th forecast. The last one of the series if not given.

        Returns:
            `.mean`, `.cov`, `.std`, `.interval(0.95)`, `.quantile(0.5)`, `.log_prob(y)`, `.sample(n, key)`, `.decompose()`,
            `.to_frame()`; of several series a `Panel` of these.
        """
        if isinstance(data, LongSeries):
            self._require_fit()
            behind, last = self._at_end(data)
            return behind.forecast(last, steps, u, dt)
        series = self._known(data)
        later = [self._later(each, steps, dt) for each in series]
        controls = self._future_controls(u, series, later, steps)
        found = self._mixed([member.forecast(series, steps, controls, [dt] * len(series)) for member in self.members_], steps)
        pairs = zip(found, later, series, strict=True)
        found = [replace(each, stamps=stamps, label=getattr(one, "label", None)) for each, stamps, one in pairs]
        return self._panel(data, found, series)

    def _mixed(self, ahead: Sequence[Sequence[Prediction]], steps: int) -> list[Prediction]:
        """The mixtures of the members' forecasts, member by member, of several series; calibrated."""
        members = self.members_  # those of now, whatever is fitted before `decompose` is called
        modes, measured = [member.ssm.weights for member in members], partial(_measurement_variances, members, steps)
        found = [mix_predictions(each, measured, modes) for each in zip(*ahead, strict=True)]
        return found if self.calibration_ is None else [self.calibration_.apply(each) for each in found]

    def _forecast_at(self, series: Series, origins: Sequence[int], steps: int) -> list[Prediction]:
        """Forecasts of a series from each of several time steps on, given what precedes them; controls are its own."""
        self._checked_likelihood().require_data(series.y, self.output_names_)
        found = self._mixed([member.forecast_at(series, origins, steps) for member in self.members_], steps)
        stamps = [None if series.stamps is None else series.stamps[n : n + steps] for n in origins]
        return [
            replace(each, stamps=when, label=getattr(series, "label", None)) for each, when in zip(found, stamps, strict=True)
        ]

    def transition(self, x: Any, u: Any = None) -> Transition:
        """Belief about the next state f(x, w) at states x, (n, x), with the learned weights and without process noise.

        For a residual model it is x + f(x, w), one typical time step later. With several models as for `filter`.
        """
        self._require_fit()
        x = as_values("x", x, ndim=2)
        if x.shape[1] != self.ssm_.x_size:
            raise ValueError(f"x must have {self.ssm_.x_size} columns, one per state, got shape {x.shape}")
        require_finite("x", x)
        self.scaling_.require_controls(u)
        u = controls_from(u, self.layout_)
        chosen = self.members_ if self.ssm_.emission is None else self.members_[:1]
        return mix_transitions([member.transition(x, u) for member in chosen])

    def simulate(self, steps: int, key: Any, u: Any = None, dt: Any = None) -> tuple[Values, Values]:
        """States (steps, x) and observations (steps, y) drawn from the model, or from a random one of several."""
        self._require_fit()
        require_key("key", key)
        count = len(self.members_)
        chosen = 0 if count == 1 else int(jr.randint(jr.fold_in(key, 1), (), 0, count))
        return self.members_[chosen].simulate(steps, key, controls_from(u, self.layout_), dt)

    def with_method(self, method: str | Method) -> "ProDSSM":
        """The same fitted model with answers by another method, such as `Unscented()` or more particles."""
        self._require_fit()
        same = copy(self)
        same.method, found = method, find_method(method)
        require_weight_mode(self.weights, found)
        same.members_ = tuple(replace(each, method=found.seeded(jr.key(each.seed))) for each in self.members_)
        return same

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the fitted model to one safetensors file, see `prodssm.load`."""
        from prodssm.estimators.persistence import save_prodssm

        self._require_fit()
        save_prodssm(self, path)

    def report(self, data: Any, path: str | os.PathLike[str]) -> None:
        """Write one HTML page about this model on data: skill, calibration, forecasts, states, dynamics (docs/report.md).

        Args:
            data: One or many series like those of `fit`.
            path: The file; it needs nothing else to be read, and no network.
        """
        from prodssm.evaluation.report import write_report

        self._require_fit()
        write_report(self, self._series(data), path)

    # ------------------------------------------------------------------ fitted attributes and data

    members_: tuple[FittedModel, ...]

    def __sklearn_is_fitted__(self) -> bool:
        """Whether `fit` has come to its end."""
        return hasattr(self, "members_")

    @property
    def ssm_(self) -> StateSpaceModel:
        """The state-space model of the first member, in standardised units."""
        return self.members_[0].ssm

    @property
    def output_names_(self) -> tuple[str, ...]:
        """Names of the outputs: the columns of the frame that was fitted, else y0, y1, ..."""
        return output_names(self.layout_, self.scaling_.outputs)

    def _one(self, data: Any) -> Series:
        series = self._known(data)
        if len(series) != 1:
            raise ValueError(f"data must be one series here, got {len(series)}; call this once for each")
        return series[0]

    def _known(self, data: Any) -> list[Series]:
        """The data as series, which may be of one row and have dead sensors."""
        self._require_fit()
        return self._series(data)

    def _panel(self, data: Any, results: Sequence[Any], series: Sequence[Series]) -> Any:
        """The results of several series as a panel; that of one series itself."""
        if not is_panel(data, self.layout_):
            return results[0]
        return Panel(results, [getattr(each, "label", None) for each in series])

    def _origin(self, series: Series) -> Origin:
        names = self.output_names_
        states = names if self.ssm_.emission is None else None
        return Origin(series.stamps, self.layout_, getattr(series, "label", None), states, names)

    def _later(self, series: Series, steps: int, dt: Any) -> Stamps | None:
        """The time stamps of a forecast."""
        require_steps(self.ssm_, steps, len(self.members_))
        if series.stamps is None:
            return None
        if dt is None and len(series) == 1:
            dt = np.full(steps, self.scaling_.time_step)
        return series.stamps.later(steps, dt)

    def _future_controls(self, u: Any, series: Sequence[Series], later: Sequence[Stamps | None], steps: int) -> list[Any]:
        """Future controls of each series."""
        labels = [getattr(each, "label", None) for each in series]
        given = split_controls(u, self.layout_, labels)
        return [future_controls(each, self.layout_, stamps, steps) for each, stamps in zip(given, later, strict=True)]


def _measurement_variances(members: Sequence[FittedModel], steps: int) -> np.ndarray:
    """Measurement variances of all members; a function of the module, so that forecasts can be pickled."""
    return stacked([member.measurement_variance(steps) for member in members])
