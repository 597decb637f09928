"""Units in which a model learns: channels and controls with mean zero and deviation one, time in usual steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.checks import as_array, require_finite, require_number, require_variances, values_of
from prodssm.inference import EVEN, require_even
from prodssm.series import Series, Standardiser, timed


@dataclass(frozen=True)
class Units:
    """Standard units of channels, controls and time, learned from series, and what follows them is held to the same shapes.

    Attributes:
        y: Of the channels.
        u: Of the controls; None without any.
        time: The usual time step, in the units of the data.
        even: Whether all time steps must be the usual one, because the model is not residual.
    """

    y: Standardiser
    u: Standardiser | None
    time: float
    even: bool = False

    @classmethod
    def of(cls, series: Sequence[Series], *, even: bool) -> "Units":
        """Learned from series."""
        dtype = jnp.result_type(float)  # that of the weights
        controls = [each.u.astype(dtype) for each in series if each.u is not None]
        y = Standardiser.fit(jnp.concatenate([each.y.astype(dtype) for each in series]))
        _require_squares(y.scale)
        return cls(
            y=y,
            u=Standardiser.fit(jnp.concatenate(controls)) if controls else None,
            time=float(np.median(np.concatenate([np.asarray(each.dt[:-1]) for each in series]))),
            even=even,
        )

    @classmethod
    def none(cls, channels: int, controls: int, time: float = 1.0, *, even: bool = False) -> "Units":
        """Units that change nothing but time."""
        return cls(Standardiser.none(channels), Standardiser.none(controls) if controls else None, time, even)

    @property
    def channels(self) -> int:
        """How many there are."""
        return self.y.mean.size

    @property
    def controls(self) -> int:
        """How many there are."""
        return 0 if self.u is None else self.u.mean.size

    def series(self, series: Series) -> Series:
        """A series in these units."""
        if series.y.shape[1] != self.channels:
            raise ValueError(f"data must have {self.channels} channels like those of fit, got {series.y.shape[1]}")
        self.require_control(series.u)
        if self.even:
            require_even(series, self.time)
        u = None if series.u is None else self.control(series.u)
        found = Series(self.y.apply(series.y.astype(self.y.mean.dtype)), u)
        if series.time is None:
            return found
        return timed(found, *((x / self.time).astype(found.y.dtype) for x in (series.time, series.dt)))

    def require_control(self, u: Any) -> None:
        """Controls if there were any in fit, and only then."""
        if (u is None) != (self.u is None):
            raise ValueError(f"u must {'be given' if u is None else 'not be given'}, as in fit")

    def control(self, u: Any) -> Float[Array, "time u"]:
        """Controls in these units."""
        if self.u is None:
            raise ValueError("u must not be given, as in fit")
        u = as_array("u", u, ndim=2)
        if u.shape[1] != self.controls:
            raise ValueError(f"u must have {self.controls} columns like that of fit, got {u.shape[1]}")
        require_finite("u", u)
        return self.u.apply(u.astype(self.u.mean.dtype))

    def gap(self, dt: float | None) -> float:
        """One time step."""
        if dt is None:
            return 1.0
        require_number("dt", dt)
        if dt <= 0:
            raise ValueError(f"dt must be positive, got {dt}")
        if self.even and abs(dt / self.time - 1) > EVEN:
            raise ValueError(f"dt={dt} needs residual=True: only a residual transition scales with time")
        return dt / self.time

    def gaps(self, dt: Any) -> Float[Array, " time"]:
        """Time steps."""
        dt = as_array("dt", dt, ndim=1)
        values = values_of(dt)
        if values is not None and (values <= 0).any():
            raise ValueError(f"dt must be positive, got {values.min()}")
        return dt / self.time

    def variances(self, name: str, given: Any) -> Float[Array, " y"]:
        """Variances of the channels, one for all or one for each."""
        as_array(name, given, ndim=np.ndim(given))
        given, scale = np.asarray(given, float), self.y.scale
        require_variances(name, given)
        if given.shape not in ((), scale.shape):
            raise ValueError(f"{name} must be one variance or {scale.size}, got shape {given.shape}")
        return jnp.asarray(np.broadcast_to(given, scale.shape) / np.asarray(scale, float) ** 2, scale.dtype)


def _require_squares(scale: Array) -> None:
    """Deviations whose squares, the variances of every answer, can be written down in their precision."""
    there = np.finfo(scale.dtype)
    square = np.asarray(scale, float) ** 2
    bad = (square < 1e6 * float(there.tiny)) | (square > 1e-6 * float(there.max))
    if bad.any():
        channel = int(np.argmax(bad))
        raise ValueError(
            f"data must be in units in which {there.dtype} can hold variances, got a standard deviation of "
            f"{float(scale[channel]):.3g} in channel {channel}; give it in other units"
        )
