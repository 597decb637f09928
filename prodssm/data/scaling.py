"""Standardisation of outputs and control inputs, and scaling of time to the typical sampling interval."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm._validation import as_values, require_finite, require_number, values_of
from prodssm.data.series import REGULAR_TOLERANCE, Series, Values, require_regular, with_times

Columns = TypeVar("Columns", Array, np.ndarray, Values)


class Standardiser(eqx.Module):
    """Columnwise affine map to zero mean and unit standard deviation, z = (y - mean) / scale, and its inverse.

    A column that is constant up to rounding error keeps its scale. Fields are NumPy arrays, in the precision of the columns
    (`fit`) or in double precision whatever JAX is set to (`fit_double`).
    """

    mean: Float[Values, " y"]
    scale: Float[Values, " y"]

    @classmethod
    def fit(cls, columns: Float[Values, "time y"]) -> "Standardiser":
        """Estimate mean and scale from the observed values of each column, in the columns' precision."""
        dtype = columns.dtype
        return cls(*(np.asarray(part, dtype) for part in mean_and_scale(np.asarray(columns, dtype=float))))

    @classmethod
    def fit_double(cls, columns: Float[np.ndarray, "n y"]) -> "Standardiser":
        """Estimate mean and scale from the observed values of each column, in double precision."""
        return cls(*mean_and_scale(columns))

    @classmethod
    def identity(cls, size: int, dtype: Any = None) -> "Standardiser":
        """Return the identity map on `size` columns."""
        dtype = jnp.result_type(float) if dtype is None else dtype
        return cls(np.zeros(size, dtype), np.ones(size, dtype))

    def transform(self, values: Float[Columns, "*any y"]) -> Float[Columns, "*any y"]:
        """Standardise values."""
        return (values - self.mean) / self.scale

    def inverse(self, values: Float[Columns, "*any y"]) -> Float[Columns, "*any y"]:
        """Map standardised values back to the scale of the data."""
        return values * self.scale + self.mean

    def inverse_cov(self, cov: Float[Columns, "*any y y"]) -> Float[Columns, "*any y y"]:
        """Map covariances of standardised values back to the scale of the data."""
        return cov * self.scale[:, None] * self.scale[None, :]

    def inverse_log_prob(self, log_prob: Columns, observed: Any) -> Columns:
        """Map log densities of standardised values to log densities of the data by the change of variables.

        Args:
            log_prob: Log density of each row.
            observed: Which coordinates of each row were observed, (..., y); only these contribute a Jacobian.
        """
        return log_prob - (np.log(self.scale) * observed).sum(axis=-1)


def mean_and_scale(columns: Float[np.ndarray, "n c"]) -> tuple[Float[np.ndarray, " c"], Float[np.ndarray, " c"]]:
    """Mean and standard deviation of the observed values of each column; the scale of a constant column is 1.

    Example:
        >>> mean_and_scale(np.array([[1e-30, 7.0], [3e-30, 7.0], [np.nan, 7.0]]))
        (array([2.e-30, 7.e+00]), array([1.e-30, 1.e+00]))
        >>> mean_and_scale(np.array([[1e6 + 1e-6], [1e6 - 1e-6]]))[1].round(7)
        array([1.e-06])
    """
    mean = np.nanmean(columns, axis=0)
    # Relative to the largest deviation: squares of very large or small numbers would overflow or underflow.
    peak = np.nanmax(np.abs(columns - mean), axis=0)
    std = peak * np.nanstd((columns - mean) / np.where(peak > 0, peak, 1.0), axis=0)
    # Rounding leaves a constant column a standard deviation of 1e-16 of its size: a relative threshold is scale-invariant.
    constant = std <= 1e-13 * np.nanmax(np.abs(columns), axis=0)
    return mean, np.where(constant, 1.0, std)


@dataclass(frozen=True)
class DataScaling:
    """Scaling of outputs, control inputs and time, fitted to training data; later data must have the same columns.

    Attributes:
        y: Standardisation of the outputs.
        u: Standardisation of the control inputs; None without control inputs.
        time_step: Median sampling interval, in the time unit of the data.
        regular: Whether all time steps must equal `time_step`, because the transition has no residual link.
    """

    y: Standardiser
    u: Standardiser | None
    time_step: float
    regular: bool = False

    @classmethod
    def fit(
        cls,
        series: Sequence[Series],
        *,
        regular: bool,
        standardise: Callable[[Float[np.ndarray, "time y"]], Standardiser] = Standardiser.fit,
    ) -> "DataScaling":
        """Estimate the scaling from series.

        Args:
            series: The training data.
            regular: Whether later data must be regularly sampled.
            standardise: The scaling of the outputs from all observations, (time, y); a likelihood may have its own rule.
        """
        dtype = jnp.result_type(float)  # that of the weights
        controls = [np.asarray(each.u, dtype) for each in series if each.u is not None]
        y = standardise(np.concatenate([np.asarray(each.y, dtype) for each in series]))
        _require_representable_variance(y.scale)
        return cls(
            y=y,
            u=Standardiser.fit(np.concatenate(controls)) if controls else None,
            time_step=float(np.median(np.concatenate([np.asarray(each.dt[:-1]) for each in series]))),
            regular=regular,
        )

    @classmethod
    def identity(cls, outputs: int, controls: int, time_step: float = 1.0, *, regular: bool = False) -> "DataScaling":
        """Return the scaling that leaves outputs and control inputs unchanged."""
        u = Standardiser.identity(controls) if controls else None
        return cls(Standardiser.identity(outputs), u, time_step, regular)

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return self.y.mean.size

    @property
    def controls(self) -> int:
        """Number of control inputs."""
        return 0 if self.u is None else self.u.mean.size

    def transform_series(self, series: Series) -> Series:
        """Scale outputs, control inputs and time of a series."""
        if series.y.shape[1] != self.outputs:
            raise ValueError(f"data must have {self.outputs} outputs like those of fit, got {series.y.shape[1]}")
        self.require_controls(series.u)
        if self.regular:
            require_regular(series, self.time_step)
        u = None if series.u is None else self.transform_controls(series.u)
        found = Series(self.y.transform(series.y.astype(self.y.mean.dtype)), u)
        if series.time is None or len(series) == 1:  # one row says nothing of the time step, which is then the typical one
            return found
        return with_times(found, *((x / self.time_step).astype(found.y.dtype) for x in (series.time, series.dt)))

    def require_controls(self, u: Any) -> None:
        """Raise unless control inputs are given exactly if the training data had some."""
        if (u is None) != (self.u is None):
            raise ValueError(f"u must {'be given' if u is None else 'not be given'}, as in fit")

    def transform_controls(self, u: Any) -> Float[Values, "time u"]:
        """Validate and standardise control inputs, (time, u)."""
        if self.u is None:
            raise ValueError("u must not be given, as in fit")
        u = as_values("u", u, ndim=2)
        if u.shape[1] != self.controls:
            raise ValueError(f"u must have {self.controls} columns like that of fit, got {u.shape[1]}")
        require_finite("u", u)
        return self.u.transform(u.astype(self.u.mean.dtype))

    def transform_dt(self, dt: Any) -> Any:
        """Validate one time step, a number, and divide it by `time_step`; None is the typical time step."""
        if dt is None:
            return 1.0
        require_number("dt", dt)
        if dt <= 0:
            raise ValueError(f"dt must be positive, got {dt}")
        if self.regular and abs(dt / self.time_step - 1) > REGULAR_TOLERANCE:
            raise ValueError(f"dt={dt} needs residual=True: only a residual transition scales with the time step")
        return dt / self.time_step

    def transform_time_steps(self, dt: Any) -> Float[Values, " time"]:
        """Validate a vector of time steps and divide it by `time_step`."""
        dt = as_values("dt", dt, ndim=1)
        values = values_of(dt)
        if values is not None and (values <= 0).any():
            raise ValueError(f"dt must be positive, got {values.min()}")
        return dt / self.time_step


def _require_representable_variance(scale: Float[Values, " y"]) -> None:
    """Raise unless the squares of all scales, hence all variances in the units of the data, are normal floats."""
    limits = np.finfo(scale.dtype)
    with np.errstate(over="ignore", under="ignore"):
        square = np.asarray(scale, float) ** 2
    bad = (square < 1e6 * float(limits.tiny)) | (square > 1e-6 * float(limits.max))
    if bad.any():
        output = int(np.argmax(bad))
        raise ValueError(
            f"data must be in units in which {limits.dtype} can hold variances, got a standard deviation of "
            f"{float(scale[output]):.3g} in output {output}; rescale it"
        )
