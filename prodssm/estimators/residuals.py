"""Standardised one-step residuals: white noise of unit variance if the model is right, large where something is unusual."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from prodssm.data.layout import Layout
from prodssm.data.stamps import Stamps
from prodssm.data.tables import Table, build, time_of

FEW = 1e-300  # a probability below which scores do not grow any more


@dataclass(frozen=True)
class Residuals:
    """Observations against their one-step predictions.

    Attributes:
        mean: Predicted from the observations before, (time, y), in the units of the data.
        std: Standard deviation of the prediction, measurement noise included.
        values: (observation - mean) / std, NaN where nothing was observed.
        score: Anomaly score of each time step: minus the decimal logarithm of the probability that the model gives to an
            observation that is at least as far away, all outputs taken together. 3 is one in a thousand; NaN where nothing was
            observed.
        names: Of the outputs.
        stamps: Time stamps of the data, if they had some.
        layout: The columns of the data frame, if the data were one.
        label: The group of the series.

    Example:
        >>> unusual = y.copy()
        >>> unusual[40] += 5.0
        >>> found = model.residuals(unusual)
        >>> int(found.score.argmax()), found.values.shape
        (40, (60, 1))
    """

    mean: Float[np.ndarray, "time y"]
    std: Float[np.ndarray, "time y"]
    values: Float[np.ndarray, "time y"]
    score: Float[np.ndarray, " time"]
    names: tuple[str, ...]
    stamps: Stamps | None = field(default=None, repr=False)
    layout: Layout | None = field(default=None, repr=False)
    label: Any = field(default=None, repr=False)

    @property
    def time(self) -> np.ndarray:
        """Time stamps of the data (in UTC, if they have a time zone), or steps from 0."""
        return np.arange(len(self.mean)) if self.stamps is None else self.stamps.values

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """A data frame with a row per time step: `score`, and `_mean`, `_std` and `_residual` of each output.

        Example:
            >>> model.residuals(y).to_frame("pandas").columns.tolist()
            ['step', 'score', 'y0_mean', 'y0_std', 'y0_residual']
        """
        return build(self._table(probability), backend, self.layout)

    def _table(self, _: float) -> Table:
        parts = {"mean": self.mean, "std": self.std, "residual": self.values}
        columns = {f"{name}_{kind}": part[:, n] for n, name in enumerate(self.names) for kind, part in parts.items()}
        return time_of(self, len(self.mean), 0) | {"score": self.score} | columns

    def autocorrelation(self, lags: int = 20) -> Float[np.ndarray, "lags y"]:
        """Autocorrelations at the lags from 1, over pairs that were both observed; within 2 / sqrt(n) of 0 if white.

        Example:
            >>> model.residuals(y).autocorrelation(5).shape
            (5, 1)
        """
        found = np.full((lags, self.values.shape[1]), np.nan)
        for lag in range(1, min(lags, len(self.values) - 1) + 1):
            early, late = self.values[:-lag], self.values[lag:]
            pairs = ~np.isnan(early * late)
            count = pairs.sum(axis=0)
            product = np.where(pairs, early * late, 0.0).sum(axis=0)
            found[lag - 1] = np.where(count > 0, product / np.maximum(count, 1), np.nan)
        return found / np.nanmean(self.values**2, axis=0)

    def plot(self, output: int | str = 0) -> Any:
        """Residuals over time, their histogram beside the Gaussian density, and their autocorrelation.

        Example:
            >>> len(model.residuals(y).plot())
            3
        """
        from prodssm.evaluation.plots import plot_residuals

        return plot_residuals(self, output)


def residuals_of(
    y: np.ndarray, mean: np.ndarray, cov: np.ndarray, names: Sequence[str], origin: tuple[Any, Any, Any]
) -> Residuals:
    """Residuals of observations against predictions.

    Args:
        y: Observations, NaN is missing.
        mean: Predicted.
        cov: Their covariances.
        names: Of the outputs.
        origin: Stamps, layout and label of the data.
    """
    std = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    distance, count = _squared_distances(y - mean, cov)
    return Residuals(mean, std, (y - mean) / std, _scores(distance, count), tuple(names), *origin)


def _squared_distances(error: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared Mahalanobis distances in the outputs that were observed, and how many these are."""
    seen = ~np.isnan(error)
    both = seen[:, :, None] & seen[:, None, :]
    # Outputs that are missing become independent ones without an error.
    whole = np.where(both, cov, np.eye(cov.shape[1]))
    filled = np.where(seen, error, 0.0)[:, :, None]
    return (filled * np.linalg.solve(whole, filled)).sum(axis=(1, 2)), seen.sum(axis=1)


def _scores(distance: np.ndarray, count: np.ndarray) -> np.ndarray:
    from scipy import special  # slow to import

    tail = special.gammaincc(np.maximum(count, 1) / 2, distance / 2)
    return np.where(count > 0, -np.log10(np.maximum(tail, FEW)), np.nan)
