"""What estimators return: forecasts and the parts of their variance, transitions, and the state of a stream."""

from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from prodssm._compilation import bucket, pad
from prodssm._validation import as_values, require_probability, require_shape
from prodssm.beliefs.gaussian import gaussian_log_probs, standard_deviations
from prodssm.data.frames import Layout, from_frames, to_frame
from prodssm.data.series import Series, Values


@dataclass(frozen=True)
class Decomposition:
    """Parts of the variance of a forecast, (steps, y) each; they add up to it.

    Attributes:
        epistemic: From uncertain weights; more data would remove it.
        aleatoric: From process noise and the uncertain state; more data would not.
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
        layout: The columns of the data frame that the model was fitted to, if it was one.
        calibrated: Whether held-out data have said how wide the forecast must be; states are not calibrated.
    """

    mean: Float[Values, "steps y"]
    cov: Float[Values, "steps y y"]
    state_mean: Float[Values, "steps x"]
    state_cov: Float[Values, "steps x x"]
    _decompose: Callable[[], Decomposition] = field(repr=False)
    layout: Layout | None = field(default=None, repr=False)
    calibrated: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs: the columns of the frame that the model was fitted to, else y0, y1, ..."""
        return output_names(self.layout, self.mean.shape[1])

    @property
    def std(self) -> Float[Values, "steps y"]:
        """Standard deviations, step by output."""
        return standard_deviations(self.cov)

    def quantile(self, probability: float) -> Float[Values, "steps y"]:
        """Marginal quantiles, output by output."""
        require_probability(probability)
        return self.mean + NormalDist().inv_cdf(float(probability)) * self.std

    def interval(self, probability: float = 0.95) -> tuple[Float[Values, "steps y"], Float[Values, "steps y"]]:
        """Lower and upper ends of central intervals, output by output."""
        require_probability(probability)
        return self.quantile((1 - probability) / 2), self.quantile((1 + probability) / 2)

    def log_prob(self, y: Any) -> Float[Values, " steps"]:
        """Log density of outcomes, step by step.

        Args:
            y: An array (steps, y), where NaN is missing, or a data frame like that of `fit`. A step without any observation
                counts as 0.
        """
        y = from_frames(y, self.layout)
        y = as_values("y", y.y if isinstance(y, Series) else y, ndim=2).astype(self.mean.dtype)
        require_shape("y", y, self.mean.shape)
        if np.isinf(y).any():
            raise ValueError("y must be finite or NaN (missing), got an infinite value")
        if not (np.asarray(self.std) > 0).all():
            raise ValueError("only forecasts with a positive variance have a density; this one has a zero variance")
        room = bucket(len(y))
        mean, cov = (pad(np.asarray(part), room, 1.0) for part in (self.mean, self.cov))
        return np.asarray(gaussian_log_probs(mean, cov, pad(y, room, np.nan)))[: len(y)]

    def decompose(self) -> Decomposition:
        """Epistemic, aleatoric and measurement variance, by the law of total variance over global weights."""
        return self._decompose()

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """A data frame with a row per step, from 1, and `_mean`, `_std`, `_lower` and `_upper` of each output.

        Args:
            backend: "pandas", "polars" or "pyarrow"; if not given, the kind of frame that the model was fitted to, else the
                first of them that is installed.
            probability: Of the central interval from lower to upper.
        """
        default = None if self.layout is None else self.layout.backend
        return to_frame(self, names=self.names, backend=backend or default, probability=probability, first=1)


@dataclass(frozen=True)
class Transition:
    """Belief about f(x, w) at given states under the learned weights, without process noise."""

    mean: Float[Values, "n x"]
    var: Float[Values, "n x"]

    @property
    def std(self) -> Float[Values, "n x"]:
        """Standard deviations, state by state."""
        return np.sqrt(self.var)


class Stream(eqx.Module):
    """The state of a stream: the belief before the next observation, and the number of observations so far."""

    belief: Any
    count: Any


@dataclass(frozen=True)
class StreamStep:
    """What a stream knows after one observation: the filtered state, and the prediction of the next observation."""

    mean: Float[Values, " y"]
    cov: Float[Values, "y y"]
    state_mean: Float[Values, " x"]
    state_cov: Float[Values, "x x"]


def output_names(layout: Layout | None, count: int) -> tuple[str, ...]:
    """Names of outputs: those of the frame that a model was fitted to, else y0, y1, ..."""
    return tuple(f"y{n}" for n in range(count)) if layout is None else layout.outputs
