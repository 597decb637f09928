"""`ProDSSMForecaster`: `ProDSSM` as a forecaster of sktime."""

# sktime hands all arguments of these methods by name.
# pyright: reportIncompatibleMethodOverride=false

import os
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np

from prodssm.adapters.parameters import WrappedParameters
from prodssm.data.series import require_trainable
from prodssm.estimators.prodssm import ProDSSM
from prodssm.methods.base import Method
from prodssm.models.likelihoods.base import Likelihood
from prodssm.training.recipe import Recipe

try:
    import pandas as pd
    from sktime.forecasting.base import BaseForecaster, ForecastingHorizon

    from prodssm.adapters.mixtures import Components
    from prodssm.adapters.pasts import Past, split_instances
except ImportError as error:
    raise ImportError("prodssm.adapters.sktime needs sktime and skpro: pip install prodssm[sktime]") from error

FRAMES = ["pd.DataFrame", "pd-multiindex", "pd_multiindex_hier"]


class ProDSSMForecaster(WrappedParameters, BaseForecaster):
    """`prodssm.ProDSSM` for sktime: many outputs, exogenous data, missing values, panels, and whole distributions.

    One model is trained on all instances of a panel or a hierarchy. A forecast is the mixture of the Gaussian forecasts of its
    members. In-sample forecasts are one step ahead: each observation given those before it. Time steps without a row count as
    missing observations; a relative horizon starts at the last row of each instance.

    `update` appends data and never trains, for either value of `update_params`: forecasts are conditioned on the longer past.
    `pretrain` trains on a panel, and `fit` then only conditions on its data. A second `pretrain` trains anew on both panels.

    `X[t]` is the control `u[t]`: it acts between t and t + 1, and on `y[t]` as well with direct feedthrough
    (`emission="feedthrough"`, or what "auto" chooses). A forecast needs `X` at all time steps up to the end of the horizon.

    Args:
        latent_dim: Number of states; this and what follows is as in `prodssm.ProDSSM`.
        hidden: Hidden layer sizes of the transition network.
        activation: Its activation.
        weights: "local", "global" or "point".
        residual: Learn x + f(x) instead of f(x).
        process_noise: "constant", or hidden sizes of a network.
        emission: "identity", "linear", "feedthrough", hidden sizes of a network, or a known function.
        measurement_noise: Variance; None learns it.
        likelihood: The distribution of an observation given the emission's output: "gaussian", "poisson" (counts), "bernoulli"
            (labels 0 and 1), "student_t" (outliers), or one with parameters such as `StudentT(df=4)`; None is Gaussian.
        method: How channels are found, a name or a method.
        recipe: How to train, a `prodssm.Recipe`.
        n_estimators: Number of models.
        checkpoint: How the names of the files begin that an interrupted fit resumes from.
        progress: Show a progress bar, and print choices and skill.
        random_state: Seed of all randomness.
        physics: What is known of the transition, a function of (x, u).

    Attributes:
        model_: The trained `ProDSSM`.

    Example:
        >>> import prodssm as ps
        >>> from prodssm.adapters.sktime import ProDSSMForecaster
        >>> from sktime.datasets import load_airline
        >>> settings = {"hidden": (), "latent_dim": 2, "emission": "linear", "n_estimators": 1}
        >>> forecaster = ProDSSMForecaster(**settings, recipe=ps.Recipe(iterations=5, validation=0.0))
        >>> forecaster.fit(load_airline()).predict_interval(fh=[1, 2, 3], coverage=0.9).shape
        (3, 2)
    """

    _estimator = ProDSSM
    _tags = {  # noqa: RUF012 - sktime's own convention
        "authors": "prodssm developers",
        "maintainers": "prodssm developers",
        "y_inner_mtype": FRAMES,
        "X_inner_mtype": FRAMES,
        "capability:multivariate": True,
        "capability:exogenous": True,
        "capability:categorical_in_X": False,
        "capability:non_contiguous_X": False,
        "capability:missing_values": True,
        "capability:insample": True,
        "capability:pred_int": True,
        "capability:pred_int:insample": True,
        "capability:update": True,
        "capability:pretrain": True,
        "pretrain:fitted_params": ["pretrained_", "pretraining_pasts_"],
        "capability:random_state": True,
        "property:randomness": "derandomized",
        "requires-fh-in-fit": False,
    }
    _config = {"remember_data": False}  # noqa: RUF012 - the forecaster keeps its own copy

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
        progress: bool = False,
        random_state: Any = 0,
        physics: Any = None,
    ):
        """Store the parameters as they are; `fit` checks them."""
        self.latent_dim, self.hidden, self.activation, self.weights = latent_dim, hidden, activation, weights
        self.residual, self.process_noise, self.emission = residual, process_noise, emission
        self.measurement_noise, self.likelihood = measurement_noise, likelihood
        self.method, self.recipe, self.n_estimators = method, recipe, n_estimators
        self.checkpoint, self.progress, self.random_state, self.physics = checkpoint, progress, random_state, physics
        self._y = self._X = None  # where sktime keeps data if its configuration says so
        super().__init__()

    # ------------------------------------------------------------------ training and data

    def _pretrain(self, y: pd.DataFrame, X: pd.DataFrame | None = None, fh: Any = None) -> "ProDSSMForecaster":
        pasts = [*getattr(self, "pretraining_pasts_", ()), *split_instances(y, X).items()]
        self.pretrained_, self.pretraining_pasts_ = self._trained(pasts), pasts
        return self

    def _fit(self, y: pd.DataFrame, X: pd.DataFrame | None, fh: Any) -> "ProDSSMForecaster":
        self._pasts, self._levels = split_instances(y, X), y.index.names
        self.model_ = getattr(self, "pretrained_", None) or self._trained(list(self._pasts.items()))
        outputs, controls = self.model_.scaling_.outputs, self.model_.scaling_.controls
        given = y.shape[1], 0 if X is None else X.shape[1]
        if given != (outputs, controls):
            raise ValueError(
                f"y and X must have {outputs} and {controls} columns as in pretrain, got {given[0]} and {given[1]}"
            )
        return self

    def _update(self, y: pd.DataFrame, X: pd.DataFrame | None = None, update_params: bool = True) -> "ProDSSMForecaster":
        for name, later in split_instances(y, X).items():
            known = self._pasts.get(name)
            self._pasts = self._pasts | {name: later if known is None else known.followed_by(later)}
        return self

    def _trained(self, pasts: Sequence[tuple[tuple[Any, ...], Past]]) -> ProDSSM:
        series = []
        for name, past in pasts:
            try:
                series.append(past.series())
                require_trainable(series[-1:])
            except ValueError as error:
                raise ValueError(f"instance {name}: {error}" if name else str(error)) from error
        return self._unfitted().fit(series)

    # ------------------------------------------------------------------ forecasts

    def _predict(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> pd.DataFrame:
        found, index = self._forecast(fh, X)
        return pd.DataFrame(found.mean, index, self._columns)

    def _predict_var(self, fh: ForecastingHorizon, X: pd.DataFrame | None = None, cov: bool = False) -> pd.DataFrame:
        if cov:
            raise NotImplementedError("covariances between time steps are not known; call predict_var with cov=False")
        found, index = self._forecast(fh, X)
        return pd.DataFrame(found.var, index, self._columns)

    def _predict_quantiles(self, fh: ForecastingHorizon, X: pd.DataFrame | None, alpha: list[float]) -> pd.DataFrame:
        found, index = self._forecast(fh, X)
        return pd.DataFrame(found.quantiles(alpha), index, self._get_columns(method="predict_quantiles", alpha=alpha))

    def _predict_interval(self, fh: ForecastingHorizon, X: pd.DataFrame | None, coverage: list[float]) -> pd.DataFrame:
        found, index = self._forecast(fh, X)
        columns = self._get_columns(method="predict_interval", coverage=coverage)
        return pd.DataFrame(found.interval_ends(coverage), index, columns)

    def _predict_proba(self, fh: ForecastingHorizon, X: pd.DataFrame | None, marginal: bool = True) -> Any:
        if not marginal:
            raise NotImplementedError(
                "joint distributions over time steps are not known; call predict_proba with marginal=True"
            )
        found, index = self._forecast(fh, X)
        return found.distribution(index, self._columns)

    @property
    def _columns(self) -> pd.Index:
        return next(iter(self._pasts.values())).y.columns

    def _forecast(self, fh: ForecastingHorizon, X: pd.DataFrame | None) -> tuple[Components, pd.Index]:
        """The forecasts of all instances, one after another, and their index."""
        further = {} if X is None else split_instances(X, None)
        parts, index = [], []
        for name, past in self._pasts.items():
            stamps = copy(fh).to_absolute_index(past.cutoff)
            ahead = further.get(name)
            parts.append(forecast_at(self.model_, past.with_controls(None if ahead is None else ahead.y), stamps))
            index.append(stamps)
        if self._pasts.keys() == {()}:
            return parts[0], index[0]
        rows = [(*name, stamp) for name, stamps in zip(self._pasts, index, strict=True) for stamp in stamps]
        return Components.joined(parts), pd.MultiIndex.from_tuples(rows, names=self._levels)

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Any:
        """Settings under which sktime's checks take minutes: training is two iterations."""
        recipe = Recipe(iterations=2, validation=0.0)
        small = {"residual": False, "recipe": recipe}
        return [
            small | {"hidden": (), "emission": "identity", "latent_dim": None, "n_estimators": 1},
            small | {"hidden": (3,), "emission": "linear", "latent_dim": 2, "n_estimators": 2},
        ]


def forecast_at(model: ProDSSM, past: Past, stamps: pd.Index) -> Components:
    """Forecasts of one instance: one step ahead up to its last observation, then as many as it takes."""
    steps, series = past.steps(until=stamps.max()), past.series()
    rows, known = steps.get_indexer(stamps), len(series)
    if (rows < 0).any():
        raise ValueError(f"fh must be time steps of the series from {steps[0]} on, got {stamps[rows < 0][0]}")
    parts = []
    if rows.min() < known:
        members = tuple(member.one_step_ahead(series) for member in model.members_)
        members = members if model.calibration_ is None else model.calibration_.apply_to_steps(members)
        parts.append(Components.of(members))
    else:
        rows = rows - known
    horizon = int(steps.get_indexer(stamps).max()) + 1 - known
    if horizon > 0:
        found = model.forecast(series, horizon, u=past.controls(steps[known : known + horizon]))
        parts.append(Components.of(getattr(found, "members", (found,))))
    return Components.joined(parts).rows(np.asarray(rows))
