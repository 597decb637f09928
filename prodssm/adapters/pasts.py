"""Data of sktime, one instance of a panel at a time, on a grid of regular time steps."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from prodssm.data.series import Series


@dataclass(frozen=True, eq=False)
class Past:
    """What was observed of one instance.

    Attributes:
        y: Observations, indexed by integers, periods or dates; steps that have no row are missing.
        X: Exogenous data, which may reach further than the observations; None without any.
    """

    y: pd.DataFrame
    X: pd.DataFrame | None = None

    @property
    def cutoff(self) -> pd.Index:
        """The last time stamp, with the frequency that dates have."""
        last = self.y.index[-1:]
        return pd.DatetimeIndex(last, freq=self._frequency) if isinstance(last, pd.DatetimeIndex) else last

    def steps(self, until: Any = None) -> pd.Index:
        """All time steps from the first observation to the last one, or to a later time stamp."""
        index = self.y.index
        first, last = index[0], index[-1] if until is None else max(until, index[-1])
        if isinstance(index, pd.PeriodIndex):
            found: pd.Index = pd.period_range(first, last, freq=index.freq)
        elif isinstance(index, pd.DatetimeIndex):
            found = pd.date_range(first, last, freq=self._frequency)
        else:
            found = pd.RangeIndex(first, last + 1)
        irregular = ~index.isin(found)
        if irregular.any():
            raise ValueError(
                f"y must be sampled at regular times, got {index[irregular][0]} after steps of {self._frequency} from {first}; "
                "give it a frequency with y.asfreq, resample it, or use prodssm.ProDSSM with prodssm.Series(y, time=...)"
            )
        return found

    @property
    def _frequency(self) -> Any:
        """The frequency of dates; where rows are missing, the smallest step between them."""
        index = self.y.index
        assert isinstance(index, pd.DatetimeIndex)
        found = index.freq or (pd.infer_freq(index) if len(index) > 2 else None)
        if found is None and len(index) == 1:
            raise ValueError("y must have dates with a frequency, or more than one of them; got a single date without")
        return pd.tseries.frequencies.to_offset((index[1:] - index[:-1]).min() if found is None else found)

    def series(self) -> Series:
        """The observations with their controls."""
        steps = self.steps()
        return Series(self.y.reindex(steps).to_numpy(float), u=self.controls(steps))

    def controls(self, steps: pd.Index) -> Float[np.ndarray, "n u"] | None:
        """The exogenous data at these time steps; None without any."""
        if self.X is None:
            return None
        missing = ~steps.isin(self.X.index)
        if missing.any():
            raise ValueError(f"X must have a row for every time step up to the last forecast, none for {steps[missing][0]}")
        found = self.X.reindex(steps).to_numpy(float)
        bad = ~np.isfinite(found).all(axis=1)
        if bad.any():
            raise ValueError(f"X must be finite at every time step, got {found[bad][0]} at {steps[bad][0]}")
        return found

    def with_controls(self, X: pd.DataFrame | None) -> "Past":
        """With further exogenous data, which replace those of the same time steps."""
        if X is None:
            return self
        if self.X is None:
            raise ValueError("X must not be given: the forecaster was fitted without")
        return replace(self, X=_joined("X", self.X, X))

    def followed_by(self, later: "Past") -> "Past":
        """With further data, which end at the last observation of the later ones: what is known after that is forgotten."""
        y = _joined("y", self.y, later.y)
        return replace(self.with_controls(later.X), y=y.loc[: later.y.index[-1]])


def split_instances(y: pd.DataFrame, X: pd.DataFrame | None) -> dict[tuple[Any, ...], Past]:
    """The instances of a panel or a hierarchy by name; a single series has the empty name."""
    controls = {} if X is None else _instances(X)
    found = {name: Past(part, controls.get(name)) for name, part in _instances(y).items()}
    for name, past in found.items():
        if X is not None and past.X is None:
            raise ValueError(f"X must have the instances of y, none for {name}")
    return found


def _instances(frame: pd.DataFrame) -> dict[tuple[Any, ...], pd.DataFrame]:
    if not isinstance(frame.index, pd.MultiIndex):
        return {(): frame}
    levels = list(range(frame.index.nlevels - 1))
    groups = frame.groupby(level=levels, sort=False)
    return {name if isinstance(name, tuple) else (name,): part.droplevel(levels) for name, part in groups}


def _joined(name: str, old: pd.DataFrame, new: pd.DataFrame) -> pd.DataFrame:
    """The rows of both, in the order of time; where both have one, the new one."""
    if set(new.columns) != set(old.columns):
        raise ValueError(f"{name} must have the columns of fit, {list(old.columns)}; got {list(new.columns)}")
    return pd.concat([old.loc[~old.index.isin(new.index)], new.loc[:, old.columns]]).sort_index()
