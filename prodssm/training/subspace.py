"""Subspace identification of latent states, in NumPy.

The future of the observations is regressed on their past and on the controls in between; the leading directions of the past in
that regression are states. Missing values are interpolated.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from prodssm.data.series import Series
from prodssm.training.linear import principal_axes, ridge

LAGS = 10  # steps of the past, and of the future


@dataclass(frozen=True)
class SubspaceFit:
    """Estimated states of unit variance, with the regression data of emission and transition.

    Attributes:
        seen: States, and controls and observations at the same times, gaps interpolated.
        moves: States and controls, and the states that followed.
        dt: The time that each move took.
    """

    seen: tuple[Float[np.ndarray, "n x"], Float[np.ndarray, "n u"], Float[np.ndarray, "n y"]]
    moves: tuple[Float[np.ndarray, "m i"], Float[np.ndarray, "m x"]]
    dt: Float[np.ndarray, " m"]


def identify_states(series: Sequence[Series], size: int) -> SubspaceFit | None:
    """Estimated states behind series, or None if these are too short.

    Args:
        series: Standardised; together they need twice as many steps as a regression on the past has unknowns.
        size: Number of states.
    """
    series = [each for each in series if len(each) > 3 * LAGS]
    if not series:
        return None
    parts = [_windows(each) for each in series]
    past, future, controls = (np.concatenate([part[n][part.known] for part in parts]) for n in range(3))
    if len(past) < 2 * (past.shape[1] + controls.shape[1]) or min(past.shape[1], future.shape[1]) < size:
        return None
    slope = ridge(np.concatenate([past, controls], axis=1), future)[0][:, : past.shape[1]]
    center = past.mean(axis=0)
    explained = (past - center) @ slope.T
    axes = principal_axes(explained, size)
    axes = axes / np.maximum((explained @ axes.T).std(axis=0), 1e-6)[:, None]
    return _collect([(part.past - center) @ slope.T @ axes.T for part in parts], parts, series)


class Windows(NamedTuple):
    """One row per step that has a past and a future, gaps interpolated; `known` where most of both was really seen."""

    past: Float[np.ndarray, "n p"]
    future: Float[np.ndarray, "n f"]
    controls: Float[np.ndarray, "n c"]
    known: Bool[np.ndarray, " n"]


def _collect(states: Sequence[Float[np.ndarray, "_ x"]], parts: Sequence[Windows], series: Sequence[Series]) -> SubspaceFit:
    """The states of all series, from step `LAGS` of each on, where they are known."""
    shown, known, seen, before, after, times = [], [], [], [], [], []
    for x, part, each in zip(states, parts, series, strict=True):
        at, move = slice(LAGS, LAGS + len(x)), part.known[1:] & part.known[:-1]
        u = np.zeros((len(x), 0)) if each.u is None else np.asarray(each.u, float)[at]
        shown.append(x[part.known])
        known.append(u[part.known])
        seen.append(part.future[part.known, : each.y.shape[1]])
        before.append(np.concatenate([x, u], axis=1)[:-1][move])
        after.append(x[1:][move])
        times.append(np.asarray(each.dt, float)[at][:-1][move])
    join = np.concatenate
    return SubspaceFit((join(shown), join(known), join(seen)), (join(before), join(after)), join(times))


def _windows(series: Series) -> Windows:
    """The windows of one series."""
    gappy = np.asarray(series.y, float)
    y, seen = _interpolated(gappy), np.isfinite(gappy).mean(axis=1)
    u = np.zeros((len(y), 0)) if series.u is None else np.asarray(series.u, float)
    both = np.concatenate([y, u], axis=1)
    steps = np.arange(LAGS, len(y) - LAGS + 1)
    past = np.concatenate([both[steps - n] for n in range(1, LAGS + 1)], axis=1)
    future = np.concatenate([y[steps + n] for n in range(LAGS)], axis=1)
    controls = np.concatenate([u[steps + n] for n in range(LAGS)], axis=1)
    # Straight lines over gaps would pass for slow and noiseless motion.
    known = np.mean([seen[steps + n] for n in range(-LAGS, LAGS)], axis=0) >= 0.5
    return Windows(past, future, controls, known)


def _interpolated(y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
    """Without gaps: each channel interpolated, or zero if it was never seen."""
    at = np.arange(len(y))
    columns = []
    for column in y.T:
        known = np.isfinite(column)
        columns.append(np.interp(at, at[known], column[known]) if known.any() else np.zeros(len(y)))
    return np.stack(columns, axis=1)
