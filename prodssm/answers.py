"""What a model answers: forecasts and the parts of their variance, transitions, and where a stream is."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.checks import as_array, require_probability, require_shape
from prodssm.frames import Layout, from_frames, to_frame
from prodssm.gaussian import Gaussian
from prodssm.linalg import safe_sqrt
from prodssm.series import Series


@dataclass(frozen=True)
class Parts:
    """Variances of a forecast by where they come from, (steps, y) each; they add up to the variance of the forecast.

    Attributes:
        epistemic: From not knowing the weights; more data would take it away.
        aleatoric: From process noise and from not knowing the state; it stays.
        measurement: From measurement noise.
    """

    epistemic: Float[np.ndarray, "steps y"]
    aleatoric: Float[np.ndarray, "steps y"]
    measurement: Float[np.ndarray, "steps y"]


@dataclass(frozen=True)
class Prediction:
    """Beliefs about future observations, in the units of the data.

    Attributes:
        mean: (steps, y).
        cov: (steps, y, y), measurement noise included.
        state_mean: States behind them; in the units of the data if the emission is the identity.
        state_cov: Their covariances.
        layout: What the columns of the data frame meant that the model was fitted to, if it was one.
    """

    mean: Float[Array, "steps y"]
    cov: Float[Array, "steps y y"]
    state_mean: Float[Array, "steps x"]
    state_cov: Float[Array, "steps x x"]
    _parts: Callable[[], Parts] = field(repr=False)
    layout: Layout | None = field(default=None, repr=False)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the channels: the columns of the frame that the model was fitted to, else y0, y1, ..."""
        return channel_names(self.layout, self.mean.shape[1])

    @property
    def std(self) -> Float[Array, "steps y"]:
        """Standard deviations, step by channel."""
        return safe_sqrt(jnp.diagonal(self.cov, axis1=1, axis2=2))

    def quantile(self, probability: float) -> Float[Array, "steps y"]:
        """What observations stay below with this probability, channel by channel; that of one half is the median."""
        require_probability(probability)
        return self.mean + NormalDist().inv_cdf(float(probability)) * self.std

    def interval(self, probability: float = 0.95) -> tuple[Float[Array, "steps y"], Float[Array, "steps y"]]:
        """Lower and upper ends of central intervals, channel by channel."""
        require_probability(probability)
        return self.quantile((1 - probability) / 2), self.quantile((1 + probability) / 2)

    def log_prob(self, y: Any) -> Float[Array, " steps"]:
        """Log density of what came true, step by step.

        Args:
            y: An array (steps, y), where NaN means not observed, or a data frame like that of `fit`. A step of which nothing
                was observed counts as 0.
        """
        y = from_frames(y, self.layout)
        y = as_array("y", y.y if isinstance(y, Series) else y, ndim=2).astype(self.mean.dtype)
        require_shape("y", y, self.mean.shape)
        if np.isinf(np.asarray(y)).any():
            raise ValueError("y must be finite or NaN (not observed), got an infinite value")
        if not (np.asarray(self.std) > 0).all():
            raise ValueError("only forecasts with a positive variance have a density; this one is certain of some values")
        return jax.vmap(lambda mean, cov, row: Gaussian(mean, cov).log_prob(row))(self.mean, self.cov, y)

    def decompose(self) -> Parts:
        """Where the variance comes from: the law of total variance over weights that are drawn once."""
        return self._parts()

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """A data frame with a row per step, from 1, and `_mean`, `_std`, `_lower` and `_upper` of each channel.

        Args:
            backend: "pandas", "polars" or "pyarrow"; if not given, the kind of frame that the model was fitted to, else the
                first of them that is installed.
            probability: Of the central interval from lower to upper.
        """
        usual = None if self.layout is None else self.layout.backend
        return to_frame(self, names=self.names, backend=backend or usual, probability=probability, first=1)


@dataclass(frozen=True)
class Transition:
    """Belief about the next state at given states under the learned weights, without process noise."""

    mean: Float[Array, "n x"]
    var: Float[Array, "n x"]

    @property
    def std(self) -> Float[Array, "n x"]:
        """Standard deviations, state by state."""
        return jnp.sqrt(self.var)


class Stream(eqx.Module):
    """Where a stream is: the belief before the next observation, and how many there were."""

    belief: Any
    count: Array


@dataclass(frozen=True)
class OneStep:
    """What a stream knows after one observation: the state now, and what it expects to see next."""

    mean: Float[Array, " y"]
    cov: Float[Array, "y y"]
    state_mean: Float[Array, " x"]
    state_cov: Float[Array, "x x"]


def channel_names(layout: Layout | None, count: int) -> tuple[str, ...]:
    """Names of channels: those of the frame that a model was fitted to, else y0, y1, ..."""
    return tuple(f"y{n}" for n in range(count)) if layout is None else layout.channels
