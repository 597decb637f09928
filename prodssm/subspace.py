"""A first guess of states that nobody has seen: what the past of a series tells about its future, in a few directions.

Subspace identification: the future of the observations is regressed on their past and on the controls in between, and the
directions of the past that explain most of it are states. Linear algebra alone; missing values are interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from prodssm.linalg import principal_axes, ridge
from prodssm.series import Series

LAGS = 10  # steps of the past, and of the future


@dataclass(frozen=True)
class Guess:
    """States of unit variance, and what they are to explain.

    Attributes:
        seen: States, and the observations at the same times, gaps interpolated.
        moves: States and controls, and the states that followed.
        dt: The time that each move took.
    """

    seen: tuple[Float[np.ndarray, "n x"], Float[np.ndarray, "n y"]]
    moves: tuple[Float[np.ndarray, "m i"], Float[np.ndarray, "m x"]]
    dt: Float[np.ndarray, " m"]


def guess_states(series: Sequence[Series], size: int) -> Guess | None:
    """States behind series, or None if these are too short to tell.

    Args:
        series: Standardised; together they need twice as many steps as a regression on the past has unknowns.
        size: Number of states.
    """
    series = [each for each in series if len(each) > 3 * LAGS]
    if not series:
        return None
    parts = [_windows(each) for each in series]
    past, future, controls = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    if len(past) < 2 * (past.shape[1] + controls.shape[1]) or min(past.shape[1], future.shape[1]) < size:
        return None
    slope = ridge(np.concatenate([past, controls], axis=1), future)[0][:, : past.shape[1]]
    center = past.mean(axis=0)
    explained = (past - center) @ slope.T
    axes = principal_axes(explained, size)
    axes = axes / np.maximum((explained @ axes.T).std(axis=0), 1e-6)[:, None]
    return _joined([(part[0] - center) @ slope.T @ axes.T for part in parts], series)


def _joined(states: Sequence[Float[np.ndarray, "_ x"]], series: Sequence[Series]) -> Guess:
    """The states of all series, from step `LAGS` of each on."""
    seen, before, after, times = [], [], [], []
    for x, each in zip(states, series, strict=True):
        at = slice(LAGS, LAGS + len(x))
        seen.append(_filled(np.asarray(each.y, float))[at])
        before.append((x if each.u is None else np.concatenate([x, np.asarray(each.u, float)[at]], axis=1))[:-1])
        after.append(x[1:])
        times.append(np.asarray(each.dt, float)[at][:-1])
    join = np.concatenate
    return Guess((join(states), join(seen)), (join(before), join(after)), join(times))


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
    """Without gaps: each channel interpolated, or zero if it was never seen."""
    at = np.arange(len(y))
    columns = []
    for column in y.T:
        known = np.isfinite(column)
        columns.append(np.interp(at, at[known], column[known]) if known.any() else np.zeros(len(y)))
    return np.stack(columns, axis=1)
