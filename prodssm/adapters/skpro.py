"""`DeepStochasticProbaRegressor`: `DeepStochasticRegressor` as a probabilistic regressor of skpro."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from prodssm.adapters.parameters import WrappedParameters
from prodssm.estimators.regressor import DeepStochasticRegressor
from prodssm.methods.base import Method
from prodssm.methods.moments import Moments
from prodssm.models.likelihoods.base import Likelihood
from prodssm.training.recipe import Recipe

try:
    import pandas as pd
    from skpro.regression.base import BaseProbaRegressor

    from prodssm.adapters.mixtures import Components
except ImportError as error:
    raise ImportError("prodssm.adapters.skpro needs skpro: pip install prodssm[skpro]") from error


class DeepStochasticProbaRegressor(WrappedParameters, BaseProbaRegressor):
    """`prodssm.DeepStochasticRegressor` for skpro: a prediction is the mixture of the Gaussian predictions of its members.

    With one member it is skpro's `Normal`, else a `GaussianMixture`. Several targets are described by their marginals;
    `model_.predict(X, return_cov=True)` has the covariances between them.

    Args:
        hidden: Hidden layer sizes of the network; this and what follows is as in `prodssm.DeepStochasticRegressor`.
        noise_hidden: Hidden layer sizes of the network of the process noise variances.
        steps: Number of transitions.
        activation: By name, or any elementwise function.
        weights: "local", "global" or "point".
        likelihood: The distribution of a target given the emission's output; None is Gaussian with learned variance.
        method: How channels are found, a name or a method.
        recipe: How to train, a `prodssm.Recipe`.
        n_estimators: Number of models, whose mixture predicts.
        checkpoint: How the names of the files begin that an interrupted fit resumes from.
        progress: Show a progress bar. "auto": once a fit has taken ten seconds.
        random_state: Seed of all randomness.

    Attributes:
        model_: The trained `DeepStochasticRegressor`.

    Example:
        >>> import prodssm as ps
        >>> from prodssm.adapters.skpro import DeepStochasticProbaRegressor
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True, as_frame=True)
        >>> recipe = ps.Recipe(iterations=5, prior_weight=0.1, validation=0.0)
        >>> regressor = DeepStochasticProbaRegressor(hidden=(), steps=1, n_estimators=2, recipe=recipe).fit(X[:50], y[:50])
        >>> regressor.predict_proba(X[50:60]).mean().shape
        (10, 1)
    """

    _estimator = DeepStochasticRegressor
    _tags = {  # noqa: RUF012 - skpro's own convention
        "authors": "prodssm developers",
        "maintainers": "prodssm developers",
        "capability:multioutput": True,
        "capability:missing": False,
        "X_inner_mtype": "pd_DataFrame_Table",
        "y_inner_mtype": "pd_DataFrame_Table",
    }

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
        super().__init__()

    def _fit(self, X: pd.DataFrame, y: pd.DataFrame, C: None = None) -> "DeepStochasticProbaRegressor":
        self._targets = y.columns
        self.model_ = self._unfitted().fit(_numbers(X), y.to_numpy(float))
        return self

    def _predict(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(self._predicted(X).mean, X.index, self._targets)

    def _predict_var(self, X: pd.DataFrame) -> pd.DataFrame:
        return pd.DataFrame(self._predicted(X).var, X.index, self._targets)

    def _predict_quantiles(self, X: pd.DataFrame, alpha: list[float]) -> pd.DataFrame:
        columns = self._get_columns(method="predict_quantiles", alpha=alpha)
        return pd.DataFrame(self._predicted(X).quantiles(alpha), X.index, columns)

    def _predict_interval(self, X: pd.DataFrame, coverage: list[float]) -> pd.DataFrame:
        columns = self._get_columns(method="predict_interval", coverage=coverage)
        return pd.DataFrame(self._predicted(X).interval_ends(coverage), X.index, columns)

    def _predict_proba(self, X: pd.DataFrame) -> Any:
        return self._predicted(X).distribution(X.index, self._targets)

    def _predicted(self, X: pd.DataFrame) -> Components:
        inputs: Any = _numbers(X)
        means, covs = self.model_._beliefs(np.asarray(validate_data(self.model_, inputs, reset=False, dtype=np.float64)))
        scaling = self.model_._y_scaling
        variances = np.diagonal(scaling.inverse_cov(covs), axis1=-2, axis2=-1)
        return Components(scaling.inverse(means), np.sqrt(variances))

    @classmethod
    def get_test_params(cls, parameter_set: str = "default") -> Any:
        """Settings under which skpro's checks take a minute: training is two iterations."""
        recipe = Recipe(iterations=2, prior_weight=0.1, validation=0.0)
        small = {"method": Moments(order=1), "recipe": recipe}
        return [
            small | {"hidden": (), "noise_hidden": (), "steps": 1, "n_estimators": 1},
            small | {"hidden": (3,), "noise_hidden": (2,), "steps": 2, "n_estimators": 2},
        ]


def _numbers(X: pd.DataFrame) -> np.ndarray:
    """Inputs as numbers: names of columns, which scikit-learn wants to be all text, are checked by skpro."""
    return X.to_numpy(float)
