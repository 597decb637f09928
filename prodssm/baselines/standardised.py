"""What regression baselines share: standardised units, and predictions of some rows at a time."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from prodssm._compilation import bucket, pad
from prodssm.data.scaling import Standardiser
from prodssm.networks.network import Network

MANY_ROWS = 20_000  # above which there are more hidden units
ROWS_PER_CHUNK = 512  # rows that are predicted at once


def hidden_units(rows: int) -> int:
    """Number of hidden units for so many rows, as in the papers on these data."""
    return 100 if rows > MANY_ROWS else 50


def in_chunks(function: Callable[..., Any], *rows: np.ndarray) -> np.ndarray:
    """A function of arrays of rows, some rows at a time; its results, whose last axis is that of the rows, as one array.

    Chunks are padded to few lengths, so that another number of rows triggers no recompilation.
    """
    found = []
    for first in range(0, len(rows[0]), ROWS_PER_CHUNK):
        chunk = [part[first : first + ROWS_PER_CHUNK] for part in rows]
        count = len(chunk[0])
        padded = (pad(part, bucket(count)).astype(jnp.result_type(float)) for part in chunk)
        found.append(np.asarray(function(*padded), float)[..., :count])
    return np.concatenate(found, axis=-1)


class StandardisedRegressor(RegressorMixin, BaseEstimator):
    """A regressor with densities that works in standardised units inside."""

    n_features_in_: int
    network_: Network

    def predict(self, x: Any) -> Float[np.ndarray, " n"]:
        """The mean of the target of each row."""
        check_is_fitted(self, "network_")
        rows: Any = validate_data(self, x, dtype=float, reset=False)
        return self._y_scaling.inverse(self._means(self._x_scaling.transform(rows))[:, None])[:, 0]

    def log_prob(self, x: Any, y: Any) -> Float[np.ndarray, " n"]:
        """Log density of the target of each row, in the units of the target."""
        check_is_fitted(self, "network_")
        x, y = validate_data(self, x, y, dtype=float, y_numeric=True, reset=False)
        found = self._log_densities(self._x_scaling.transform(x), self._y_scaling.transform(y[:, None])[:, 0])
        return found - np.log(self._y_scaling.scale[0])

    def _standardise(self, x: Any, y: Any, least: int) -> tuple[Float[np.ndarray, "n i"], Float[np.ndarray, "n 1"]]:
        """Check and standardise at least so many rows, by their own means and standard deviations."""
        x, y = validate_data(self, x, y, dtype=float, y_numeric=True, ensure_min_samples=least)
        self._x_scaling, self._y_scaling = Standardiser.fit_double(x), Standardiser.fit_double(y[:, None])
        return self._x_scaling.transform(x), self._y_scaling.transform(y[:, None])

    @abstractmethod
    def _means(self, x: Float[np.ndarray, "n i"]) -> Float[np.ndarray, " n"]:
        """Means in standardised units."""

    @abstractmethod
    def _log_densities(self, x: Float[np.ndarray, "n i"], y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        """Log densities in standardised units."""
