r"""Linear models by subspace identification, in NumPy.

A long autoregression with controls predicts each observation from those before it. What the past contributes to the predictions
of a whole future has few directions: the states (SSARX). They turn the autoregression into the innovation form

$$x_{t+1} = x_t + \Delta_t (A x_t + B u_t + a + K e_t), \qquad y_t = C x_t + D u_t + c + e_t.$$

Missing values are interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from prodssm.data.series import Series
from prodssm.training.linear import clipped_spectral_radius, principal_axes, ridge

MOST_LAGS = 20  # of the autoregression
ROWS_PER_UNKNOWN = 3  # at least so many
LONGEST = 20_000  # time steps from which a linear model is identified, of many more
LARGEST_STATE = 1e6


@dataclass(frozen=True)
class LinearModel:
    """The innovation form of a linear model of standardised data.

    Attributes:
        slope: [A, B], (x, state and control).
        drift: a.
        gain: K.
        emission: [C, D], (y, state and control), where D is zero without direct feedthrough.
        offset: c.
        innovation_cov: Covariance of e.
        points: Typical states and controls, (n, x + u).
    """

    slope: Float[np.ndarray, "x i"]
    drift: Float[np.ndarray, " x"]
    gain: Float[np.ndarray, "x y"]
    emission: Float[np.ndarray, "y i"]
    offset: Float[np.ndarray, " y"]
    innovation_cov: Float[np.ndarray, "y y"]
    points: Float[np.ndarray, "n i"]

    @property
    def x_size(self) -> int:
        """Number of states."""
        return len(self.slope)

    def forecast(self, series: Series, known: int) -> tuple[Float[np.ndarray, "n y"], Float[np.ndarray, "n y"]]:
        """Means and variances of the observations of a series after the first `known`, in a free run."""
        y, u, dt = np.asarray(series.y, float), _controls(series), np.asarray(series.dt, float)
        x, cov, means, variances = np.zeros(self.x_size), np.zeros((self.x_size, self.x_size)), [], []
        noise = self.gain @ self.innovation_cov @ self.gain.T
        for t in range(len(y)):
            mean = self.emission @ np.append(x, u[t]) + self.offset
            error = np.nan_to_num(y[t] - mean) if t < known else np.zeros(len(mean))
            if t >= known:
                c = self.emission[:, : self.x_size]
                means.append(mean)
                variances.append(np.diag(c @ cov @ c.T + self.innovation_cov))
            move = self.slope @ np.append(x, u[t]) + self.drift + self.gain @ error
            x = np.clip(x + dt[t] * move, -LARGEST_STATE, LARGEST_STATE)
            if t >= known:
                step = np.eye(self.x_size) + dt[t] * self.slope[:, : self.x_size]
                cov = np.clip(step @ cov @ step.T + dt[t] ** 2 * noise, -(LARGEST_STATE**2), LARGEST_STATE**2)
        return np.array(means), np.array(variances)


def identify(series: Sequence[Series], size: int, *, feedthrough: bool = False) -> LinearModel | None:
    """The linear model with so many states, or None if the series are too short for it.

    Args:
        series: Standardised.
        size: Number of states.
        feedthrough: Whether the control acts on the observation at once.
    """
    records = _records(series)
    outputs, controls = series[0].y.shape[1], 0 if series[0].u is None else series[0].u.shape[1]
    coefficients = _autoregression(records, feedthrough, least=-(-size // outputs)) if records else None
    if coefficients is None:
        return None
    histories = [_history(record, coefficients) for record in records]
    known = np.concatenate([record.known[len(coefficients) :] for record in records])
    rows = np.concatenate(histories)
    center = rows[known].mean(axis=0)
    axes = principal_axes(rows[known] - center, size)
    axes = axes / np.maximum(((rows[known] - center) @ axes.T).std(axis=0), 1e-6)[:, None]
    return _innovation_form([(each - center) @ axes.T for each in histories], records, feedthrough, controls)


@dataclass(frozen=True)
class _Record:
    """One series without gaps: interpolated observations, controls, time steps, and where observations were really seen."""

    y: Float[np.ndarray, "n y"]
    u: Float[np.ndarray, "n u"]
    dt: Float[np.ndarray, " n"]
    known: Bool[np.ndarray, " n"]


def _records(series: Sequence[Series]) -> list[_Record]:
    found, room = [], LONGEST
    for each in series:
        part = slice(0, room)
        gappy = np.asarray(each.y, float)[part]
        if len(gappy) < 3:
            continue
        seen = np.isfinite(gappy).all(axis=1)
        # Straight lines over gaps would pass for slow and noiseless motion.
        near = np.convolve(seen, np.ones(5), mode="full")[: len(gappy)] >= 3
        found.append(_Record(_interpolated(gappy), _controls(each)[part], np.asarray(each.dt, float)[part], seen & near))
        room -= len(gappy)
        if room <= 0:
            break
    return found


def _autoregression(records: Sequence[_Record], feedthrough: bool, least: int) -> Float[np.ndarray, "lags y both"] | None:
    """Coefficients of (y, u) at each lag of the autoregression with the smallest AIC, of those with at least so many lags."""
    both = records[0].y.shape[1] + records[0].u.shape[1]
    longest, best = max(len(record.y) for record in records), None
    for lags in [n for n in range(least, MOST_LAGS + 1) if n + 2 < longest]:
        rows, targets = _regression(records, lags, feedthrough, skip=min(MOST_LAGS, longest // 3))
        if len(rows) < ROWS_PER_UNKNOWN * rows.shape[1]:
            break
        slope, constant = ridge(rows, targets, strength=1e-6)
        residuals = targets - rows @ slope.T - constant
        cov = residuals.T @ residuals / len(rows) + 1e-12 * np.eye(len(slope))
        criterion = len(rows) * np.linalg.slogdet(cov)[1] + 2 * slope.size
        if best is None or criterion < best[0]:
            best = criterion, slope[:, : lags * both].reshape(len(slope), lags, both).swapaxes(0, 1)
    return None if best is None else best[1]


def _regression(records: Sequence[_Record], lags: int, feedthrough: bool, skip: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows ((y, u)[t-1], ..., (y, u)[t-n], and u[t] with feedthrough), and y[t]."""
    rows, targets = [], []
    for record in records:
        at = np.arange(max(lags, min(skip, len(record.y) // 2)), len(record.y))
        at = at[record.known[at]]
        both = np.concatenate([record.y, record.u], axis=1)
        past = [both[at - n] for n in range(1, lags + 1)]
        rows.append(np.concatenate([*past, record.u[at]] if feedthrough else past, axis=1))
        targets.append(record.y[at])
    return np.concatenate(rows), np.concatenate(targets)


def _history(record: _Record, coefficients: Float[np.ndarray, "lags y both"]) -> Float[np.ndarray, "n f"]:
    """What the past contributes to the predictions of the next observations, at each step that has a whole past."""
    lags, outputs, _ = coefficients.shape
    both, steps = np.concatenate([record.y, record.u], axis=1), max(len(record.y) - lags, 0)
    found = np.zeros((steps, lags, outputs))
    at = np.arange(lags, lags + steps)
    for ahead in range(lags):  # the prediction of y[t + ahead] from y and u before t
        for lag in range(ahead, lags):
            found[:, ahead] += both[at - 1 - (lag - ahead)] @ coefficients[lag].T
    return found.reshape(steps, lags * outputs)


def _innovation_form(
    states: Sequence[Float[np.ndarray, "_ x"]], records: Sequence[_Record], feedthrough: bool, controls: int
) -> LinearModel:
    """The regressions of observations and next states on states, controls and innovations."""
    shown, inputs, seen, moves, usable, steps = [], [], [], [], [], []
    for x, record in zip(states, records, strict=True):
        if len(x) < 2:
            continue
        at = slice(len(record.y) - len(x), len(record.y))
        shown.append(x)
        inputs.append(record.u[at])
        seen.append(record.y[at])
        moves.append(np.append(np.diff(x, axis=0) / record.dt[at][:-1, None], np.zeros((1, x.shape[1])), axis=0))
        usable.append(record.known[at] & np.append(record.known[at][1:], False))
        steps.append(record.dt[at])
    x, u, y, move, both, dt = (np.concatenate(part) for part in (shown, inputs, seen, moves, usable, steps))
    full = np.concatenate([x, u], axis=1)
    emission, offset = ridge((full if feedthrough else x)[both], y[both], strength=1e-6)
    if not feedthrough:
        emission = np.concatenate([emission, np.zeros((len(emission), controls))], axis=1)
    error = y - full @ emission.T - offset
    slope, drift = ridge(np.concatenate([full, error], axis=1)[both], move[both], strength=1e-6)
    size, typical = x.shape[1], float(np.median(dt))
    # Finite data are no evidence of an unstable system.
    step = clipped_spectral_radius(np.eye(size) + typical * slope[:, :size], 1.0)
    slope[:, :size] = (step - np.eye(size)) / typical
    cov = error[both].T @ error[both] / max(1, both.sum())
    gain = slope[:, full.shape[1] :]
    return LinearModel(slope[:, : full.shape[1]], drift, gain, emission, offset, cov, full[both])


def _controls(series: Series) -> Float[np.ndarray, "time u"]:
    return np.zeros((len(series), 0)) if series.u is None else np.asarray(series.u, float)


def _interpolated(y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
    """Without gaps: each channel interpolated, or zero if it was never seen."""
    at = np.arange(len(y))
    columns = []
    for column in y.T:
        known = np.isfinite(column)
        columns.append(np.interp(at, at[known], column[known]) if known.any() else np.zeros(len(y)))
    return np.stack(columns, axis=1)
