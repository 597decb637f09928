"""A first guess of states that nobody has seen: what the past of a series tells about its future, in a few directions.

Subspace identification: the future of the observations is regressed on their past and on the controls in between, and the
directions of the past that explain most of it are states. Linear algebra alone; missing values are interpolated.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from prodssm.linalg import principal_axes, ridge
from prodssm.series import Series

LAGS = 10  # steps of the past, and of the future


def guess_states(series: Sequence[Series], size: int) -> list[Float[np.ndarray, "time x"]] | None:
    """States of each series from step `LAGS` on, of unit variance; None if the series are too short to tell.

    Args:
        series: Standardised; together they need about as many steps as a regression on all lags has unknowns.
        size: Number of states.
    """
    parts = [_windows(each) for each in series if len(each) > 3 * LAGS]
    if not parts:
        return None
    past, future, controls = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if len(past) < 2 * max(past.shape[1], size) or min(past.shape[1], future.shape[1]) < size:
        return None
    center = past.mean(axis=0)
    slope = ridge(np.concatenate([past, controls], axis=1), future)[0][:, : past.shape[1]]
    directions = slope.T @ principal_axes((past - center) @ slope.T, size).T
    directions = directions / np.maximum(((past - center) @ directions).std(axis=0), 1e-6)
    return [(part[0] - center) @ directions for part in parts]


def _windows(series: Series) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Past, future and the controls in between, one row per step that has both."""
    y = _filled(np.asarray(series.y, float))
    u = np.zeros((len(y), 0)) if series.u is None else np.asarray(series.u, float)
    both = np.concatenate([y, u], axis=1)
    steps = np.arange(LAGS, len(y) - LAGS + 1)
    past = np.concatenate([both[steps - n] for n in range(1, LAGS + 1)], axis=1)
    future = np.concatenate([y[steps + n] for n in range(LAGS)], axis=1)
    return past, future, np.concatenate([u[steps + n] for n in range(LAGS - 1)], axis=1)


def _filled(y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
    """Without gaps, each channel interpolated."""
    at = np.arange(len(y))
    columns = []
    for column in y.T:
        seen = np.isfinite(column)
        columns.append(np.interp(at, at[seen], column[seen]) if seen.any() else np.zeros(len(y)))
    return np.stack(columns, axis=1)
