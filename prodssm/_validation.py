"""Validation of user input: every error names the argument, what was expected and what was given, before any computation.

Only concrete values are inspected: traced arrays pass once their shapes are right.
"""

from collections.abc import Iterable
from typing import Any

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


def unmasked(value: Any) -> Any:
    """Replace masked entries of a NumPy masked array by NaN; return anything else unchanged."""
    if not isinstance(value, np.ma.MaskedArray) or value.dtype.kind not in "fiub":
        return value
    numbers = value.data if value.dtype.kind == "f" else value.data.astype(float)
    return np.where(np.ma.getmaskarray(value), np.asarray(np.nan, numbers.dtype), numbers)


def as_array(name: str, value: Any, ndim: int) -> Array:
    """Convert to a non-empty floating point array of JAX with `ndim` axes."""
    array, dtype = _checked_array(name, value, ndim)
    return jnp.asarray(array, dtype=dtype)


def as_values(name: str, value: Any, ndim: int) -> Any:
    """Convert to a non-empty floating point array of NumPy, in JAX's precision, with `ndim` axes; a tracer stays one.

    Of NumPy, because every operation of JAX on an array of another length compiles a program of its own.
    """
    array, dtype = _checked_array(name, value, ndim)
    if isinstance(array, jax.core.Tracer):
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        found = np.asarray(array, dtype)
    lost = np.isinf(found) & np.isfinite(array)
    if lost.any():
        raise ValueError(
            f"{name} must hold numbers that {found.dtype} can, got {np.asarray(array)[lost][0]:g}; choose another unit"
        )
    return found


def _checked_array(name: str, value: Any, ndim: int) -> tuple[Any, Any]:
    """A non-empty array of numbers with `ndim` axes, and its floating point type in JAX's precision."""
    array = value = unmasked(value)
    if not isinstance(value, jax.Array | np.ndarray):
        try:
            array = np.asarray(value)
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__}") from error
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    if array.dtype.kind not in "fiub" and not floating:
        raise TypeError(f"{name} must be an array of numbers, got {type(value).__name__} of dtype {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} {'axis' if ndim == 1 else 'axes'}, got shape {array.shape}")
    if 0 in array.shape:
        raise ValueError(f"{name} must not be empty, got shape {array.shape}")
    if floating and jnp.finfo(array.dtype).bits < 32:
        raise ValueError(f"{name} must be float32 or float64, got {array.dtype}")
    return array, jax.dtypes.canonicalize_dtype(array.dtype) if floating else jnp.result_type(float)


def require_shape(name: str, array: Any, shape: tuple[int, ...]) -> None:
    """Raise unless the array has exactly this shape."""
    if getattr(array, "shape", None) != shape:
        raise ValueError(f"{name} must have shape {shape}, got {getattr(array, 'shape', type(array).__name__)}")


def require_integer(name: str, value: Any, least: int) -> None:
    """Raise unless the value is an integer of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}")


def require_key(name: str, key: Any) -> None:
    """Raise unless the value is a JAX random key, typed or raw."""
    found = getattr(key, "dtype", None)
    if found is None or not (jnp.issubdtype(found, jax.dtypes.prng_key) or (found == jnp.uint32 and key.ndim == 1)):
        raise TypeError(f"{name} must be a key such as jax.random.key(0), got {key!r}")


def require_number(name: str, value: Any) -> None:
    """Raise unless the value is a finite real scalar (or a tracer)."""
    if isinstance(value, jax.core.Tracer):
        return
    if isinstance(value, bool) or not (isinstance(value, int | float) or getattr(value, "shape", None) == ()):
        raise TypeError(f"{name} must be a number, got {value!r}")
    require_finite(name, value)


def require_probability(value: Any, name: str = "probability") -> None:
    """Raise unless the value is a number strictly between 0 and 1."""
    require_number(name, value)
    if not 0 < value < 1:
        raise ValueError(f"{name} must lie between 0 and 1, got {value}")


def values_of(array: Any) -> np.ndarray | None:
    """The concrete values of an array, or None for a tracer."""
    return None if isinstance(array, jax.core.Tracer) else np.asarray(array)


def require_finite(name: str, array: Any) -> None:
    """Raise if any entry is NaN or infinite."""
    values = values_of(array)
    if values is not None and not np.isfinite(values).all():
        bad = np.argwhere(~np.isfinite(values))[0]
        raise ValueError(f"{name} must be finite, got {values[tuple(bad)]} at index {tuple(int(i) for i in bad)}")


def require_answer(what: str, *arrays: Any, advice: str = "the system is unstable") -> None:
    """Raise if a result computed from finite input is not finite."""
    if not all(values is None or np.isfinite(values).all() for values in map(values_of, arrays)):
        raise FloatingPointError(f"{what} overflowed: {advice}")


def require_variances(name: str, array: Any) -> None:
    """Raise unless all entries are finite and non-negative; zero is a legal variance."""
    require_finite(name, array)
    values = values_of(array)
    if values is not None and (values < 0).any():
        raise ValueError(f"{name} must not be negative, got {values.min()}")


def require_covariance(name: str, array: Any) -> None:
    """Raise unless the matrix is finite, symmetric and positive semi-definite up to rounding in its own precision."""
    require_finite(name, array)
    values = values_of(array)
    if values is None:
        return
    slack = 100 * len(values) * float(np.finfo(values.dtype).eps) * float(np.abs(values).max())
    off = float(np.abs(values - values.T).max())
    if off > slack:
        raise ValueError(f"{name} must be symmetric, got entries that differ by {off:.3g} from their mirror image")
    lowest = float(np.linalg.eigvalsh(values.astype(float))[0])
    if lowest < -slack:
        raise ValueError(f"{name} must be positive semi-definite, got an eigenvalue of {lowest:.3g}")


def plain(value: Any) -> Any:
    """NumPy scalars and sequences as Python numbers and tuples, which compare, hash and serialise to JSON."""
    if isinstance(value, np.generic | np.ndarray | jax.Array):
        value = value.tolist()
    return tuple(plain(each) for each in value) if isinstance(value, Iterable) and not isinstance(value, str) else value
