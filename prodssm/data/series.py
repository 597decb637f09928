"""Multivariate time series with missing values, control inputs and irregular sampling, and batches of them."""

import warnings
from collections.abc import Sequence
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from prodssm._compilation import bucket, pad
from prodssm._validation import as_values, require_finite, unmasked, values_of
from prodssm.data.stamps import REGULAR_TOLERANCE, Stamps, require_increasing

ROUNDING_TOLERANCE = 1e-3  # rounding error of a column that is tolerated without a warning, relative to its range

SeriesT = TypeVar("SeriesT", bound="Series")
Values = Array | np.ndarray


class Record(eqx.Module):
    """The arrays that a recursion scans over: observation, control input and time to the next observation.

    May have a leading batch axis.

    Attributes:
        y: Observations; NaN is missing.
        u: Control inputs, or `None`.
        dt: Time steps.
        length: Number of time steps before padding, a traced count so that another length triggers no recompilation; `None` if
            nothing is padded.
    """

    y: Float[Values, "*batch time y"]
    u: Float[Values, "*batch time u"] | None
    dt: Float[Values, "*batch time"]
    length: Int[Values, "*batch"] | None = None

    @property
    def last(self) -> Int[Array, "*batch"]:
        """Index of the last time step before padding."""
        return jnp.asarray(self.dt.shape[-1] if self.length is None else self.length, jnp.int32) - 1

    def padded(self, to: int | None = None) -> "Record":
        """The record padded with time steps without observations, to the next bucket by default."""
        count = self.dt.shape[0]
        to = bucket(count) if to is None else to
        u = None if self.u is None else pad(np.asarray(self.u), to)
        y, dt = pad(np.asarray(self.y), to, np.nan), pad(np.asarray(self.dt), to, 1.0)
        return Record(y, u, dt, np.asarray(count, np.int32))


class Series(eqx.Module):
    """One time series of observations and control inputs, as arrays of NumPy in JAX's precision.

    Attributes:
        y: Observations, (time, y); NaN marks a missing value, coordinate by coordinate.
        u: Control inputs, (time, u), or `None`. `u[t]` acts between `y[t]` and `y[t + 1]`.
        time: Increasing time stamps, shifted to start at zero; `None` means regular sampling with time step one.
        dt: Time from each observation to the next, (time,); the last entry is the time step after the last observation.
        stamps: The time stamps as given, which results carry on; None if there are none.

    Example:
        >>> Series([0.0, 1.0, float("nan")]).y.shape
        (3, 1)
    """

    y: Float[Values, "time y"]
    u: Float[Values, "time u"] | None
    time: Float[Values, " time"] | None
    dt: Float[Values, " time"]
    stamps: Stamps | None = eqx.field(static=True, default=None)

    def __init__(self, y: Any, u: Any = None, time: Any = None):
        """Validate and convert; a vector is a single column. Time stamps are numbers, dates or times."""
        y, u = unmasked(y), unmasked(u)
        self.y = _columns("y", y)
        length = self.y.shape[0]
        _require_no_infinity(self.y)
        self.u = None if u is None else _columns("u", u).astype(self.y.dtype)
        if self.u is not None:
            if self.u.shape[0] != length:
                raise ValueError(f"u must have {length} rows, one per observation, got {self.u.shape[0]}")
            require_finite("u", self.u)
        _warn_of_rounding("y", y, self.y)
        _warn_of_rounding("u", u, self.u)
        self.stamps = _stamps(time)
        if time is None:
            self.time, self.dt = None, np.ones(length, self.y.dtype)
        else:
            self.time, self.dt = _times_and_steps(time if self.stamps is None else self.stamps, length, self.y.dtype)

    def __len__(self) -> int:
        """Return the number of time steps."""
        return self.y.shape[0]

    @property
    def record(self) -> Record:
        """The arrays that a recursion scans over."""
        return Record(self.y, self.u, self.dt)

    def window(self, begin: int, length: int) -> "Series":
        """Return `length` consecutive time steps from `begin` on as a series of its own.

        Example:
            >>> Series(np.arange(10.0)).window(2, 3).y[:, 0].tolist()
            [2.0, 3.0, 4.0]
        """
        steps = slice(begin, begin + length)
        found = Series(self.y[steps], None if self.u is None else self.u[steps])
        return found if self.time is None else with_times(found, self.time[steps], _repeat_last(self.dt[steps][:-1]))


def with_times(series: SeriesT, time: Float[Values, " time"], dt: Float[Values, " time"]) -> SeriesT:
    """Replace the time stamps and the time steps, where the steps are more precise than differences of the stamps."""
    since_first = time - time[0]
    return eqx.tree_at(lambda s: (s.time, s.dt), series, (since_first, dt), is_leaf=lambda leaf: leaf is None)


def first_steps(series: SeriesT, length: int) -> SeriesT:
    """Return the first `length` time steps; unlike a new `Series`, they may miss all values of an output."""
    return part_of(series, 0, length)


def part_of(series: SeriesT, begin: int, end: int) -> SeriesT:
    """Return the time steps from `begin` to `end` (exclusive); unlike a new `Series`, they may miss all values of an output."""
    found = jax.tree.map(lambda column: column[begin:end], series)
    if series.stamps is not None:
        object.__setattr__(found, "stamps", series.stamps[begin:end])  # a static field of a module that was made just now
    return found


# ---------------------------------------------------------------- conversion


def as_series(data: Any) -> Series:
    """Convert an array (time, y) to a `Series`; return a `Series` unchanged."""
    return data if isinstance(data, Series) else Series(data)


def as_series_list(data: Any) -> list[Series]:
    """Convert one or several series to a list; all must agree in outputs, control inputs and the presence of time stamps."""
    many = isinstance(data, list | tuple) and len(data) > 0 and not is_row(data[0])
    found = [_numbered(n, each) for n, each in enumerate(data)] if many else [as_series(data)]
    for n, each in enumerate(found):
        if each.y.shape[1] != found[0].y.shape[1]:
            raise ValueError(f"series {n} must have {found[0].y.shape[1]} outputs like the first, got {each.y.shape[1]}")
        widths = [0 if s.u is None else s.u.shape[1] for s in (each, found[0])]
        if widths[0] != widths[1]:
            raise ValueError(f"u of series {n} must have {widths[1]} columns like the first, got {widths[0]}")
        if (each.time is None) != (found[0].time is None):
            raise ValueError(f"time must be given for all series or for none, series {n} differs from the first")
    return found


def stack_records(series: Sequence[Series], room: tuple[int, int] = (0, 0)) -> Record:
    """Stack series of unequal length along a leading batch axis, both axes padded to a bucket.

    Padding has no observations, hence no log evidence, and leaves the filtered beliefs before it unchanged.

    Args:
        series: The series.
        room: Number of series and of time steps that there is room for, at least.
    """
    longest = bucket(max(room[1], *(len(each) for each in series)))
    records = [each.record.padded(longest) for each in series]
    empty = bucket(max(room[0], len(records))) - len(records)
    first = records[0]
    nothing = Record(
        np.full_like(first.y, np.nan),
        None if first.u is None else np.zeros_like(first.u),
        np.ones_like(first.dt),
        np.asarray(0, np.int32),
    )
    return jax.tree.map(lambda *parts: np.stack(parts), *records, *[nothing] * empty)


# ---------------------------------------------------------------- validation


def require_regular(series: Series, step: float | None = None) -> None:
    """Raise unless all time steps equal `step`, by default their median, up to `REGULAR_TOLERANCE`.

    A transition without residual link does not depend on the time step, so that irregular sampling would be ignored.
    """
    stamps = None if series.time is None else values_of(series.time)
    if stamps is None or len(stamps) == 1:
        return
    steps = np.asarray(series.dt[:-1], float)
    step = float(np.median(steps)) if step is None else step
    rounding = 4 * float(np.finfo(stamps.dtype).eps) * np.abs(stamps).max()
    if (np.abs(steps - step) > REGULAR_TOLERANCE * step + rounding).any():
        raise ValueError(
            f"time must have steps of {step:.4g} throughout for residual=False, got {steps.min():.4g} to {steps.max():.4g}; "
            "use residual=True, or insert rows of NaN for missing observations"
        )


def _columns(name: str, values: Any) -> Values:
    array = as_values(name, values, ndim=1 if np.ndim(values) == 1 else 2)
    return array[:, None] if array.ndim == 1 else array


def _numbered(n: int, data: Any) -> Series:
    """Convert to a `Series`, with its number in the error message."""
    try:
        return as_series(data)
    except (TypeError, ValueError) as error:
        raise type(error)(f"series {n}: {error}") from error


def is_row(value: Any) -> bool:
    """Whether an entry of a list is a row of one series, as NumPy reads nested lists, rather than a series."""
    return np.isscalar(value) or (isinstance(value, list | tuple) and len(value) > 0 and all(map(np.isscalar, value)))


def _stamps(time: Any) -> Stamps | None:
    """Time stamps as given; None for a tracer."""
    if time is None or isinstance(time, Stamps | jax.core.Tracer):
        return time if isinstance(time, Stamps) else None
    values = np.asarray(time)
    if values.dtype.kind not in "Mfiub" or values.ndim != 1:
        as_values("time", time, ndim=1)  # says what is wrong
    return Stamps.read(values)


def _times_and_steps(time: Any, length: int, dtype: Any) -> tuple[Float[Values, " time"], Float[Values, " time"]]:
    """Validated time since the first stamp, and the time steps between them."""
    dates = isinstance(time, Stamps) and time.values.dtype.kind == "M"
    given = time.elapsed if dates else as_values("time", time.values if isinstance(time, Stamps) else time, ndim=1)
    if given.shape[0] != length:
        raise ValueError(f"time must have {length} entries, one per observation, got {given.shape[0]}")
    require_finite("time", given)
    if isinstance(time, Stamps):
        require_increasing(time, "time")
    since = given if dates else _since_first(time.values if isinstance(time, Stamps) else time)
    # Differences before conversion to JAX's precision: float32 stamps would not resolve short steps a year after the first.
    steps = as_values("time", since[1:] - since[:-1], ndim=1).astype(dtype) if length > 1 else np.ones(1, dtype)
    return as_values("time", since, ndim=1).astype(dtype), _repeat_last(steps)[:length]


def _since_first(time: Any) -> Any:
    """Time stamps minus the first one, in the given precision: float32 has a resolution of two minutes in Unix time."""
    stamps = time if isinstance(time, jax.core.Tracer) else np.asarray(time)
    signed = stamps.astype(np.int64) if stamps.dtype.kind in "ub" else stamps
    return signed - signed[0]


def _repeat_last(steps: Float[Values, " moves"]) -> Float[Values, " time"]:
    """Time steps, with the last one repeated for the step after the last observation."""
    return jnp.concatenate([steps, steps[-1:]]) if isinstance(steps, jax.core.Tracer) else np.append(steps, steps[-1:])


def require_trainable(series: Sequence[Series]) -> None:
    """Raise unless there is something to learn from: two time steps, and observations of every output.

    A forecast needs neither: a sensor may be dead, and one row is a past.
    """
    for n, each in enumerate(series):
        label = getattr(each, "label", None)
        where = f"group {label!r}: " if label is not None else f"series {n}: " if len(series) > 1 else ""
        if len(each) < 2:
            raise ValueError(f"{where}y must have at least two time steps, got {len(each)}; give a longer series")
        values = values_of(each.y)
        empty = np.isnan(values).all(axis=0) if values is not None else np.zeros(1, bool)
        if empty.any():
            output = int(np.argmax(empty))
            raise ValueError(f"{where}y must have observations of every output, output {output} has none; leave it out")


def _require_no_infinity(y: Values) -> None:
    values = values_of(y)
    if values is not None and np.isinf(values).any():
        at = tuple(int(i) for i in np.argwhere(np.isinf(values))[0])
        raise ValueError(f"y must be finite or NaN (not observed), got {values[at]} at index {at}")


def _warn_of_rounding(name: str, given: Any, kept: Values | None) -> None:
    """Warn if conversion to float32 loses a noticeable part of the variation of a column."""
    if kept is None or isinstance(given, jax.Array) or jnp.finfo(kept.dtype).bits == 64:
        return
    exact = np.asarray(given, float).reshape(kept.shape)
    dead = np.isnan(exact).all(axis=0)
    exact, rounded = (np.where(dead, 0.0, part) for part in (exact, np.asarray(kept, float)))
    lost = np.nanmax(np.abs(exact - rounded), axis=0)
    spread = np.nanmax(exact, axis=0) - np.nanmin(exact, axis=0)
    bad = (spread > 0) & (lost > ROUNDING_TOLERANCE * spread)
    if bad.any():
        column = int(np.argmax(bad))
        warnings.warn(
            f"{name}[:, {column}] varies by less than single precision can resolve: rounding changed values around "
            f"{exact[0, column]:.6g} by up to {lost[column]:.2g}. Subtract a constant offset first, or call "
            'jax.config.update("jax_enable_x64", True)',
            UserWarning,
            stacklevel=3,
        )
