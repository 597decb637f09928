"""What regression baselines share: standardised units, and the size of the network."""

from abc import abstractmethod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from prodssm.data.scaling import Standardiser
from prodssm.networks.network import Network

MANY_ROWS = 20_000  # above which there are more hidden units


def hidden_units(rows: int) -> int:
    """Number of hidden units for so many rows, as in the papers on these data."""
    return 100 if rows > MANY_ROWS else 50


class StandardisedRegressor(RegressorMixin, BaseEstimator):
    """A regressor with densities that works in standardised units inside."""

    n_features_in_: int
    network_: Network

    def predict(self, x: Any) -> Float[np.ndarray, " n"]:
        """The mean of the target of each row."""
        check_is_fitted(self, "network_")
        rows: Any = validate_data(self, x, dtype=float, reset=False)
        return self._y_scaling.inverse(self._means(_in_precision(self._x_scaling.transform(rows)))[:, None])[:, 0]

    def log_prob(self, x: Any, y: Any) -> Float[np.ndarray, " n"]:
        """Log density of the target of each row, in the units of the target."""
        check_is_fitted(self, "network_")
        x, y = validate_data(self, x, y, dtype=float, y_numeric=True, reset=False)
        standard = self._x_scaling.transform(x), self._y_scaling.transform(y[:, None])[:, 0]
        found = self._log_densities(*map(_in_precision, standard))
        return found - np.log(self._y_scaling.scale[0])

    def _standardise(self, x: Any, y: Any, least: int) -> tuple[Float[np.ndarray, "n i"], Float[np.ndarray, "n 1"]]:
        """Check and standardise at least so many rows, by their own means and standard deviations."""
        x, y = validate_data(self, x, y, dtype=float, y_numeric=True, ensure_min_samples=least)
        self._x_scaling, self._y_scaling = Standardiser.fit_double(x), Standardiser.fit_double(y[:, None])
        return _in_precision(self._x_scaling.transform(x)), _in_precision(self._y_scaling.transform(y[:, None]))

    @abstractmethod
    def _means(self, x: Float[np.ndarray, "n i"]) -> Float[np.ndarray, " n"]:
        """Means in standardised units."""

    @abstractmethod
    def _log_densities(self, x: Float[np.ndarray, "n i"], y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Log densities in standardised units."""


def _in_precision(rows: np.ndarray) -> np.ndarray:
    """Rows in the precision that JAX computes in."""
    return rows.astype(jnp.result_type(float))
