"""Time series as people have them: missing values, control inputs, irregular time stamps, unequal lengths, any units."""

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.checks import as_array, require_finite, unmasked, values_of

ROUNDING = 1e-3  # share of a column's range that its rounding may be


class Frames(eqx.Module):
    """What a recursion meets at each time: an observation, a control, the time to the next one. May have a batch axis."""

    y: Float[Array, "*batch time y"]
    u: Float[Array, "*batch time u"] | None
    dt: Float[Array, "*batch time"]

    def __getitem__(self, part: Any) -> "Frames":
        """A stretch of time, or one member of a batch."""
        return Frames(self.y[part], None if self.u is None else self.u[part], self.dt[part])


AnySeries = TypeVar("AnySeries", bound="Series")


class Series(eqx.Module):
    """One series of observations, with what was done to the system meanwhile.

    Attributes:
        y: Observations, time by channel; NaN means not observed, coordinate by coordinate.
        u: Control inputs, time by input. `u[t]` acts between `y[t]` and `y[t + 1]`.
        time: Time stamps, increasing, counted from the first one; `None` means one step of one.
        dt: Time from each observation to the next; the last one stands for the step after the end.

    Example:
        >>> Series([0.0, 1.0, float("nan")]).y.shape
        (3, 1)
    """

    y: Float[Array, "time y"]
    u: Float[Array, "time u"] | None
    time: Float[Array, " time"] | None
    dt: Float[Array, " time"]

    def __init__(self, y: Any, u: Any = None, time: Any = None):
        """Check and store; a vector is one channel."""
        y, u = unmasked(y), unmasked(u)
        self.y = _columns("y", y)
        length = self.y.shape[0]
        if length < 2:
            raise ValueError(f"y must have at least two time steps, got {length}; give a longer series")
        _require_observations(self.y)
        self.u = None if u is None else _columns("u", u).astype(self.y.dtype)
        if self.u is not None:
            if self.u.shape[0] != length:
                raise ValueError(f"u must have {length} rows, one per observation, got {self.u.shape[0]}")
            require_finite("u", self.u)
        _warn_of_rounding("y", y, self.y)
        _warn_of_rounding("u", u, self.u)
        if time is None:
            self.time, self.dt = None, jnp.ones(length, self.y.dtype)
            return
        if not isinstance(time, jax.Array) and np.asarray(time).dtype.kind in "mM":
            raise TypeError(
                "time must be numbers, got dates; give (time - time[0]) / np.timedelta64(1, 's'), "
                "or a data frame by way of prodssm.frames.series_of"
            )
        given = as_array("time", time, ndim=1)
        if given.shape[0] != length:
            raise ValueError(f"time must have {length} entries, one per observation, got {given.shape[0]}")
        require_finite("time", given)
        stamps = _since_first(time)
        self.time = as_array("time", stamps, ndim=1).astype(self.y.dtype)
        # Differences before rounding: single precision tells a burst apart that comes a year after the first stamp.
        steps = stamps[1:] - stamps[:-1]
        values = values_of(steps)
        if values is not None and (values <= 0).any():
            at, given = int(np.argmax(values <= 0)), np.asarray(time)
            raise ValueError(f"time must increase, got {given[at]} followed by {given[at + 1]} at index {at}")
        self.dt = _continued(as_array("time", steps, ndim=1).astype(self.y.dtype))

    def __len__(self) -> int:
        """Number of time steps."""
        return self.y.shape[0]

    @property
    def frames(self) -> "Frames":
        """The arrays that a recursion walks over."""
        return Frames(self.y, self.u, self.dt)

    def window(self, begin: int, length: int) -> "Series":
        """A stretch of the series."""
        part = slice(begin, begin + length)
        found = Series(self.y[part], None if self.u is None else self.u[part])
        return found if self.time is None else timed(found, self.time[part], _continued(self.dt[part][:-1]))


def timed(series: AnySeries, time: Float[Array, " time"], dt: Float[Array, " time"]) -> AnySeries:
    """The same observations at other times, whose steps are known better than their stamps tell."""
    since_first = time - time[0]
    return eqx.tree_at(lambda s: (s.time, s.dt), series, (since_first, dt), is_leaf=lambda leaf: leaf is None)


def as_series(data: Any) -> Series:
    """A series from whatever holds one."""
    return data if isinstance(data, Series) else Series(data)


def as_list(data: Any) -> list[Series]:
    """Many series from one or many; all must have the same channels."""
    many = isinstance(data, list | tuple) and len(data) > 0 and not _is_row(data[0])
    found = [_numbered(n, each) for n, each in enumerate(data)] if many else [as_series(data)]
    for n, each in enumerate(found):
        if each.y.shape[1] != found[0].y.shape[1]:
            raise ValueError(f"series {n} must have {found[0].y.shape[1]} channels like the first, got {each.y.shape[1]}")
        widths = [0 if s.u is None else s.u.shape[1] for s in (each, found[0])]
        if widths[0] != widths[1]:
            raise ValueError(f"u of series {n} must have {widths[1]} columns like the first, got {widths[0]}")
        if (each.time is None) != (found[0].time is None):
            raise ValueError(f"time must be given for all series or for none, series {n} differs from the first")
    return found


def _numbered(n: int, data: Any) -> Series:
    try:
        return as_series(data)
    except (TypeError, ValueError) as error:
        raise type(error)(f"series {n}: {error}") from error


def _is_row(value: Any) -> bool:
    """A number, or numbers in a list: a row of one series, as NumPy reads nested lists."""
    return np.isscalar(value) or (isinstance(value, list | tuple) and len(value) > 0 and all(map(np.isscalar, value)))


def _continued(steps: Float[Array, " moves"]) -> Float[Array, " time"]:
    """Time steps, the last one once more for the step after the end."""
    return jnp.concatenate([steps, steps[-1:]])


def stack(series: Sequence[Series]) -> Frames:
    """Series of unequal length as one batch, batch axis first.

    Shorter ones are continued with frames in which nothing is observed: these change no filtered belief and cost no evidence,
    so that padding leaves no trace.
    """
    longest = max(len(each) for each in series)

    def pad(array: Array, fill: float) -> Array:
        rows = [(0, longest - array.shape[0]), *[(0, 0)] * (array.ndim - 1)]
        return jnp.pad(array, rows, constant_values=fill)

    frames = [each.frames for each in series]
    y, dt = (
        jnp.stack([pad(part, fill) for part in parts])
        for parts, fill in (([f.y for f in frames], jnp.nan), ([f.dt for f in frames], 1.0))
    )
    controls = [f.u for f in frames if f.u is not None]
    return Frames(y, jnp.stack([pad(u, 0.0) for u in controls]) if controls else None, dt)


class Standardiser(eqx.Module):
    """Channels shifted to mean zero and scaled to standard deviation one, and the way back for means and covariances.

    A channel that does not vary keeps its scale, however small its rounding.
    """

    mean: Float[Array, " y"]
    scale: Float[Array, " y"]

    @classmethod
    def fit(cls, columns: Float[Array, "time y"]) -> "Standardiser":
        """From the observed values of each column."""
        dtype = jnp.asarray(columns).dtype
        return cls(*(jnp.asarray(part, dtype) for part in centre_and_scale(np.asarray(columns, dtype=float))))

    @classmethod
    def none(cls, size: int, dtype: Any = None) -> "Standardiser":
        """One that changes nothing."""
        return cls(jnp.zeros(size, dtype), jnp.ones(size, dtype))

    def apply(self, values: Float[Array, "*any y"]) -> Float[Array, "*any y"]:
        """To standard units."""
        return (values - self.mean) / self.scale

    def undo(self, values: Float[Array, "*any y"]) -> Float[Array, "*any y"]:
        """Back to the units of the data."""
        return values * self.scale + self.mean

    def undo_cov(self, cov: Float[Array, "*any y y"]) -> Float[Array, "*any y y"]:
        """Covariances back to the units of the data."""
        return cov * self.scale[:, None] * self.scale[None, :]

    def undo_log_prob(self, log_prob: Array, observed: Array) -> Array:
        """A log density of standardised values as one of the data, given which coordinates were observed."""
        return log_prob - (jnp.log(self.scale) * observed).sum(axis=-1)


def centre_and_scale(columns: Float[np.ndarray, "n c"]) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """Mean and standard deviation of the observed values of each column; 1 for a column that does not vary.

    Example:
        >>> centre_and_scale(np.array([[1e-30, 7.0], [3e-30, 7.0], [np.nan, 7.0]]))
        (array([2.e-30, 7.e+00]), array([1.e-30, 1.e+00]))
        >>> centre_and_scale(np.array([[1e6 + 1e-6], [1e6 - 1e-6]]))[1].round(7)
        array([1.e-06])
    """
    mean = np.nanmean(columns, axis=0)
    # By way of the largest deviation, or squares of very large or small numbers would leave the range of floats.
    peak = np.nanmax(np.abs(columns - mean), axis=0)
    std = peak * np.nanstd((columns - mean) / np.where(peak > 0, peak, 1.0), axis=0)
    # Rounding leaves a constant column a standard deviation of 1e-16 of its size. Relative, so that units do not matter.
    constant = std <= 1e-13 * np.nanmax(np.abs(columns), axis=0)
    return mean, np.where(constant, 1.0, std)


def _since_first(time: Any) -> Any:
    """Time stamps counted from the first one: single precision would lose minutes in seconds since 1970."""
    stamps = time if isinstance(time, jax.Array) else np.asarray(time)
    signed = stamps.astype(np.int64) if stamps.dtype.kind in "ub" else stamps
    return signed - signed[0]


def _warn_of_rounding(name: str, given: Any, kept: Array | None) -> None:
    """Say so if the precision of JAX cannot tell values apart that were given."""
    if kept is None or isinstance(given, jax.Array) or jnp.finfo(kept.dtype).bits == 64:
        return
    exact = np.asarray(given, float).reshape(kept.shape)
    lost = np.nanmax(np.abs(exact - np.asarray(kept, float)), axis=0)
    spread = np.nanmax(exact, axis=0) - np.nanmin(exact, axis=0)
    bad = (spread > 0) & (lost > ROUNDING * spread)
    if bad.any():
        column = int(np.argmax(bad))
        warnings.warn(
            f"{name}[:, {column}] varies by less than single precision can tell: values around {exact[0, column]:.6g} were "
            f"changed by up to {lost[column]:.2g}. Subtract what does not vary, or call "
            'jax.config.update("jax_enable_x64", True) first',
            UserWarning,
            stacklevel=3,
        )


def _columns(name: str, values: Any) -> Array:
    array = as_array(name, values, ndim=1 if np.ndim(values) == 1 else 2)
    return array[:, None] if array.ndim == 1 else array


def _require_observations(y: Array) -> None:
    values = values_of(y)
    if values is None:
        return
    if np.isinf(values).any():
        at = tuple(int(i) for i in np.argwhere(np.isinf(values))[0])
        raise ValueError(f"y must be finite or NaN (not observed), got {values[at]} at index {at}")
    empty = np.isnan(values).all(axis=0)
    if empty.any():
        channel = int(np.argmax(empty))
        raise ValueError(f"y must have observations in every channel, channel {channel} has none; leave it out")
