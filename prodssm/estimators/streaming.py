"""Filtering one observation at a time, in constant memory and time."""

from typing import Any

import numpy as np

from prodssm._validation import unmasked
from prodssm.data.inputs import control_row, row_from
from prodssm.data.layout import Layout
from prodssm.data.scaling import DataScaling
from prodssm.estimators.calibration import Calibration
from prodssm.estimators.ensemble import mix_stream_steps
from prodssm.estimators.fitted import FittedModel, require_fit
from prodssm.estimators.results import Stream, StreamStep


class Streaming:
    """The part of `ProDSSM` that filters a stream."""

    members_: tuple[FittedModel, ...]
    scaling_: DataScaling
    layout_: Layout | None
    calibration_: Calibration | None

    def _require_fit(self) -> None:
        require_fit(self)

    def start(self) -> Any:
        """The state of a stream before its first observation.

        Example:
            >>> state, now = model.step(model.start(), y[0])
            >>> now.state_mean.shape
            (1,)
        """
        self._require_fit()
        return tuple(member.start() for member in self.members_)

    def step(self, state: Any, y: Any, u: Any = None, dt: float | None = None, time: Any = None) -> tuple[Any, StreamStep]:
        """Take in one observation (NaN where it is missing) and the control that follows it, in constant memory and time.

        Args:
            state: The stream, from `start` or from the last `step`.
            y: The observation, (y,); a dict or a row of a pandas frame is read by the names of fit.
            u: The control that acts until the next observation, (u,), if the model has any; likewise. With direct feedthrough
                it acts on `y` as well, and the prediction of the next observation is for a control that stays as it is.
            dt: Time until the next observation, in the units of the data; the typical time step if not given.
            time: When the observation was made, a date; needed for features of the calendar.

        Returns:
            The stream after this step; and what is known now: `.state_mean`, `.state_cov` of the filtered state, and the
            `.mean`, `.cov`, `.std` and `.interval(0.95)` of the next observation. With several models the latter is the
            mixture's, the state as in `filter`.

        Example:
            >>> state, now = model.step(model.start(), y[0])
            >>> state, now = model.step(state, [float("nan")])
            >>> now.mean.shape, now.cov.shape
            ((1,), (1, 1))
        """
        self._require_fit()
        if not isinstance(state, tuple) or not all(isinstance(each, Stream) for each in state):
            raise TypeError(f"state must be what start() or the last step has returned, got {type(state).__name__}")
        if len(state) != len(self.members_):
            raise ValueError(f"state must be that of a stream of this model, with {len(self.members_)} parts, got {len(state)}")
        row = self._checked_row(y, u, dt, time)
        pairs = [member.step(each, *row) for member, each in zip(self.members_, state, strict=True)]
        steps = [pair[1] for pair in pairs]
        steps = steps if self.calibration_ is None else self.calibration_.apply_to_steps(steps)
        found = mix_stream_steps(steps, same_states=self.members_[0].ssm.emission is None)
        return tuple(pair[0] for pair in pairs), found

    def _checked_row(self, y: Any, u: Any, dt: Any, time: Any) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        """One observation, control and time step as arrays."""
        if self.layout_ is not None:
            y, u = row_from(y, self.layout_.outputs), control_row(u, self.layout_, time)
        dtype, shape = self.scaling_.y.mean.dtype, self.scaling_.y.mean.shape
        y = np.asarray(unmasked(y), dtype=dtype)
        if y.shape != shape:
            raise ValueError(f"y must have shape {shape}, got {y.shape}")
        if np.isinf(y).any():
            raise ValueError(f"y must be finite, or NaN where it is missing; got {y}")
        outputs = None if self.layout_ is None else self.layout_.outputs
        self.members_[0].ssm.likelihood.require_data(y[None], outputs)
        self.scaling_.require_controls(u)
        control = None if u is None else np.asarray(unmasked(u), dtype=dtype)
        if control is not None and (control.shape != (self.scaling_.controls,) or not np.isfinite(control).all()):
            raise ValueError(f"u must be {self.scaling_.controls} finite numbers, got {control}")
        return y, control, np.asarray(self.scaling_.transform_dt(dt), dtype)
