"""What a fitted `DeepStochasticRegressor` says of rows: means, standard deviations, quantiles and densities of the mixture."""

from collections.abc import Sequence
from copy import copy
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.utils.validation import check_is_fitted, validate_data

from prodssm._validation import require_probability
from prodssm.beliefs.gaussian import gaussian_log_probs
from prodssm.beliefs.mixture_scores import mixture_log_prob, mixture_moments, mixture_quantile
from prodssm.data.scaling import Standardiser
from prodssm.methods.base import Method, require_weight_mode
from prodssm.models.regression import LayerStack, in_chunks, predict_rows
from prodssm.models.state_space import StateSpaceModel


class RowPredictions:
    """The part of `DeepStochasticRegressor` that predicts."""

    weights: str
    method: Any
    ssms_: Sequence[StateSpaceModel]
    _stack: LayerStack
    _x_scaling: Standardiser
    _y_scaling: Standardiser
    _y_ndim: int
    _key: Any
    _checked_method: Any

    def predict(self, X: Any, return_std: bool = False, return_cov: bool = False) -> Any:
        """Means of the targets, and their uncertainty, measurement noise included.

        Args:
            X: Inputs, (n, features).
            return_std: Also return standard deviations, of the shape of the means.
            return_cov: Also return covariances between the targets of a row, (n, targets, targets).

        Returns:
            Means, (n,) or (n, targets) as in `fit`; or a pair.

        Example:
            >>> mean, std = reg.predict(X, return_std=True)
            >>> mean.shape, std.shape
            ((20,), (20,))
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov must not both be True: the variances are the covariances' diagonal")
        check_is_fitted(self)
        mean, cov = mixture_moments(*self._beliefs(np.asarray(validate_data(self, X, reset=False, dtype=np.float64))))
        mean, cov = self._y_scaling.inverse(mean), self._y_scaling.inverse_cov(cov)
        if return_cov:
            return self._as_given(mean), cov
        std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
        return (self._as_given(mean), self._as_given(std)) if return_std else self._as_given(mean)

    def quantile(self, X: Any, probability: float) -> np.ndarray:
        """Quantiles of the mixture of all members, target by target, in the shape of the means.

        Example:
            >>> bool((reg.quantile(X, 0.1) < reg.quantile(X, 0.9)).all())
            True
        """
        check_is_fitted(self)
        mean, cov = self._beliefs(np.asarray(validate_data(self, X, reset=False, dtype=np.float64)))
        std = np.sqrt(np.diagonal(cov, axis1=2, axis2=3))
        return self._as_given(self._y_scaling.inverse(mixture_quantile(probability, mean.astype(float), std.astype(float))))

    def interval(self, X: Any, probability: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of central intervals of new observations, target by target.

        Example:
            >>> lower, upper = reg.interval(X, 0.95)
            >>> bool((lower < upper).all())
            True
        """
        require_probability(probability)
        return self.quantile(X, (1 - probability) / 2), self.quantile(X, (1 + probability) / 2)

    def log_prob(self, X: Any, y: Any) -> Float[np.ndarray, " n"]:
        """Log density of the targets of each row under the mixture of all members, in the units of the data.

        Example:
            >>> reg.log_prob(X, targets).shape
            (20,)
        """
        check_is_fitted(self)
        X, y = validate_data(self, X, y, reset=False, dtype=np.float64, multi_output=True, y_numeric=True)
        targets = targets_of(y)
        size = self.ssms_[0].y_size
        if targets.shape[1] != size:
            raise ValueError(f"y must have {size} targets like that of fit, got {targets.shape[1]}")
        with np.errstate(over="ignore"):  # an overflowing target has zero density
            standard = self._y_scaling.transform(targets).astype(self.ssms_[0].dtype)
        each = [in_chunks(gaussian_log_probs, mean, cov, standard) for mean, cov in zip(*self._beliefs(X), strict=True)]
        return mixture_log_prob(np.stack(each)) - np.log(self._y_scaling.scale).sum()

    def with_method(self, method: str | Method) -> Any:
        """The same fitted model with predictions by another method, such as more particles or a higher order.

        Example:
            >>> reg.with_method("sampled").predict(X).shape
            (20,)
        """
        check_is_fitted(self)
        same = copy(self)
        same.method = method
        require_weight_mode(self.weights, same._checked_method())
        same._stack = LayerStack(self._stack.steps, same._checked_method())
        return same

    def _beliefs(self, X: Float[np.ndarray, "n x"]) -> tuple[Float[np.ndarray, "m n y"], Float[np.ndarray, "m n y y"]]:
        """Means and covariances of each member in standardised units."""
        with np.errstate(over="ignore"):  # found below
            x = self._x_scaling.transform(X).astype(self.ssms_[0].dtype)
        rule = partial(predict_rows, stack=self._stack, key=self._key(2))
        found = [in_chunks(lambda rows, ssm=ssm: rule(ssm, x=rows), x) for ssm in self.ssms_]
        mean, cov = (np.stack([member[part] for member in found]) for part in (0, 1))
        if not (np.isfinite(mean).all() and np.isfinite(cov).all()):
            raise FloatingPointError(
                "a prediction overflows: X is too far from that of fit, or the trained layers are unstable"
            )
        return mean, cov

    def _as_given(self, columns: Float[np.ndarray, "n y"]) -> np.ndarray:
        """In the shape that the targets had in `fit`."""
        return columns[:, 0] if self._y_ndim == 1 else columns


def targets_of(y: Any) -> Float[np.ndarray, "n y"]:
    """Targets as columns of numbers."""
    columns = np.asarray(y.toarray() if hasattr(y, "toarray") else y, float)
    return columns[:, None] if columns.ndim == 1 else columns
