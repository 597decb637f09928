"""Autoregression with exogenous inputs by least squares: the linear forecast that a learned model has to beat."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from prodssm.data.series import Series

MOST_LAGS = 10
LARGEST_VARIANCE = 10.0  # of a forecast, as a multiple of that of the training data


@dataclass(frozen=True)
class ARX:
    r"""$y_t = c + \sum_{k=1}^n A_k y_{t-k} + \sum_{k=0}^n B_k u_{t-k} + e_t$, all outputs jointly; time stamps are ignored.

    Attributes:
        past: The matrices $A_k$, (lags, y, y).
        controls: The matrices $B_k$, (lags + 1, y, u).
        constant: c.
        innovation_cov: Covariance of $e_t$.
        mean: Of the training data.
        var: Of the training data.

    Example:
        >>> found = ARX.fit([Series(y)])
        >>> mean, cov = found.forecast(Series(y), 3)
        >>> mean.shape, cov.shape, bool(np.allclose(mean[:, 0], np.sin(0.3 * np.arange(60, 63)), atol=1e-3))
        ((3, 1), (3, 1, 1), True)
    """

    past: Float[np.ndarray, "n y y"]
    controls: Float[np.ndarray, "m y u"]
    constant: Float[np.ndarray, " y"]
    innovation_cov: Float[np.ndarray, "y y"]
    mean: Float[np.ndarray, " y"]
    var: Float[np.ndarray, " y"]

    @classmethod
    def fit(cls, series: Sequence[Series], most_lags: int = MOST_LAGS) -> "ARX":
        """Least squares; the number of lags has the smallest AIC, over the rows that all of them have."""
        columns = np.concatenate([np.asarray(each.y, float) for each in series])
        longest = max(1, min(most_lags, max(len(each) for each in series) - 2))
        found = [cls._fit(series, lags, longest) for lags in range(1, longest + 1)]
        criteria, fits = zip(*[each for each in found if each is not None], strict=True)
        past, controls, constant, cov = fits[int(np.argmin(criteria))]
        return cls(past, controls, constant, cov, np.nanmean(columns, axis=0), np.nanvar(columns, axis=0))

    @staticmethod
    def _fit(series: Sequence[Series], lags: int, skip: int) -> tuple[float, Any] | None:
        """AIC and the fit with so many lags; None if there are too few rows."""
        parts = [_regressors(each, lags, skip) for each in series if len(each) > skip]
        rows, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
        known = np.isfinite(rows).all(axis=1) & np.isfinite(targets).all(axis=1)
        rows, targets = rows[known], targets[known]
        count, outputs = targets.shape
        if count <= rows.shape[1] + outputs and lags > 1:
            return None
        slope = np.linalg.lstsq(rows, targets, rcond=None)[0]
        residuals = targets - rows @ slope
        cov = residuals.T @ residuals / count + 1e-12 * np.diag(np.maximum(targets.var(axis=0), 1e-300))
        inputs = 0 if series[0].u is None else series[0].u.shape[1]
        past = slope[: lags * outputs].reshape(lags, outputs, outputs).swapaxes(1, 2)
        controls = slope[lags * outputs : -1].reshape(lags + 1, inputs, outputs).swapaxes(1, 2)
        criterion = count * np.linalg.slogdet(cov)[1] + 2 * slope.size
        return float(criterion), (past, controls, slope[-1], cov)

    def forecast(
        self, past: Series, steps: int, u: Any = None
    ) -> tuple[Float[np.ndarray, "steps y"], Float[np.ndarray, "steps y y"]]:
        """Means and covariances of the observations that follow a series, by recursion.

        Args:
            past: The series. Missing values are replaced by their prediction, and before the first ones by the mean.
            steps: Number of observations ahead.
            u: Controls at the forecasts, (steps, u); the last row may be left out where it has no effect.
        """
        lags, outputs = self.past.shape[:2]
        begin = np.asarray(past.y, float)
        values = np.vstack([np.tile(self.mean, (lags, 1)), begin, np.zeros((steps, outputs))])
        inputs = self._inputs(past, steps, u, lags)
        for t in range(lags, len(values)):
            window = values[t - lags : t][::-1]
            found = self.constant + np.einsum("kij,kj->i", self.past, window)
            found = found + np.einsum("kij,kj->i", self.controls, inputs[t - lags : t + 1][::-1])
            given = begin[t - lags] if t < lags + len(begin) else np.full(outputs, np.nan)
            values[t] = np.where(np.isnan(given), np.clip(found, -1e150, 1e150), given)
        return values[-steps:], self._covariances(steps)

    def _inputs(self, past: Series, steps: int, u: Any, lags: int) -> Float[np.ndarray, "t u"]:
        width = self.controls.shape[2]
        if past.u is None:
            return np.zeros((lags + len(past) + steps, width))
        seen, ahead = np.asarray(past.u, float), np.zeros((0, width)) if u is None else np.asarray(u, float)[:steps]
        known = np.vstack([np.tile(seen[:1], (lags, 1)), seen, ahead])
        missing = lags + len(past) + steps - len(known)
        return np.vstack([known, np.tile(known[-1:], (missing, 1))])

    def _covariances(self, steps: int) -> Float[np.ndarray, "steps y y"]:
        """The innovation covariance propagated through the recursion, its variances capped."""
        lags, outputs = self.past.shape[:2]
        companion = np.eye(lags * outputs, k=-outputs)
        companion[:outputs] = np.concatenate(list(self.past), axis=1)
        cov, found = np.zeros_like(companion), []
        for _ in range(steps):
            with np.errstate(over="ignore", invalid="ignore"):
                cov = companion @ cov @ companion.T
            cov[:outputs, :outputs] += self.innovation_cov
            cov = np.nan_to_num(np.clip(cov, -1e150, 1e150), nan=1e150)
            top = cov[:outputs, :outputs]
            shrink = np.sqrt(np.minimum(1.0, LARGEST_VARIANCE * self.var / np.maximum(np.diag(top), 1e-300)))
            found.append(top * shrink[:, None] * shrink[None, :])
        return np.array(found)


def _regressors(series: Series, lags: int, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows (y[t-1..t-n], u[t..t-n], 1) and targets y[t] for t from `skip` on."""
    y, times = np.asarray(series.y, float), np.arange(skip, len(series))
    parts = [y[times - k] for k in range(1, lags + 1)]
    if series.u is not None:
        parts += [np.asarray(series.u, float)[times - k] for k in range(lags + 1)]
    return np.concatenate([*parts, np.ones((len(times), 1))], axis=1), y[times]
