"""What estimators return: forecasts and the parts of their variance, transitions, and the state of a stream."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from prodssm._compilation import bucket, pad
from prodssm._validation import as_values, require_integer, require_key, require_probability, require_shape
from prodssm.beliefs.gaussian import gaussian_log_probs, standard_deviations
from prodssm.data.frames import from_frames
from prodssm.data.layout import Layout
from prodssm.data.series import Series, Values
from prodssm.data.stamps import Stamps
from prodssm.data.tables import Table, build, joined, table_of
from prodssm.models.components import Components, OutputComponents


@dataclass(frozen=True)
class Decomposition:
    """Parts of the variance of a forecast, (steps, y) each; they add up to it.

    Attributes:
        epistemic: From uncertain weights; more data would remove it.
        aleatoric: From process noise and the uncertain state; more data would not.
        measurement: From measurement noise.

    Example:
        >>> parts = ahead.decompose()
        >>> parts.aleatoric.shape, bool((parts.measurement > 0).all())
        ((3, 1), True)
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
        stamps: When the observations will be made, if the data had time stamps.
        label: The group of the series, if the data had groups.
        components: The components of a mixture, whose own quantiles and densities are answered; None for one Gaussian.

    Example:
        >>> ahead = model.forecast(y, steps=3)
        >>> ahead.mean.shape, ahead.std.shape, ahead.time.tolist()
        ((3, 1), (3, 1), [1, 2, 3])
    """

    mean: Float[Values, "steps y"]
    cov: Float[Values, "steps y y"]
    state_mean: Float[Values, "steps x"]
    state_cov: Float[Values, "steps x x"]
    _decompose: Callable[[], Decomposition] = field(repr=False)
    layout: Layout | None = field(default=None, repr=False)
    calibrated: bool = False
    stamps: Stamps | None = field(default=None, repr=False)
    label: Any = field(default=None, repr=False)
    _draw: Callable[[int, Any], np.ndarray] | None = field(default=None, repr=False)
    components: Components | OutputComponents | None = field(default=None, repr=False)

    @property
    def time(self) -> np.ndarray:
        """When the observations will be made: time stamps (in UTC, if they have a time zone), or steps from 1."""
        return np.arange(1, len(self.mean) + 1) if self.stamps is None else self.stamps.values

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the outputs: the columns of the frame that the model was fitted to, else y0, y1, ..."""
        return output_names(self.layout, self.mean.shape[1])

    @property
    def std(self) -> Float[Values, "steps y"]:
        """Standard deviations, step by output."""
        return standard_deviations(self.cov)

    def quantile(self, probability: float) -> Float[Values, "steps y"]:
        """Marginal quantiles, output by output.

        Example:
            >>> bool((ahead.quantile(0.1) < ahead.quantile(0.9)).all())
            True
        """
        require_probability(probability)
        if self.components is not None:
            return self.components.quantile(probability).astype(self.mean.dtype)
        return self.mean + NormalDist().inv_cdf(float(probability)) * self.std

    def interval(self, probability: float = 0.95) -> tuple[Float[Values, "steps y"], Float[Values, "steps y"]]:
        """Lower and upper ends of central intervals, output by output.

        Example:
            >>> lower, upper = ahead.interval(0.95)
            >>> bool(((lower < ahead.mean) & (ahead.mean < upper)).all())
            True
        """
        require_probability(probability)
        return self.quantile((1 - probability) / 2), self.quantile((1 + probability) / 2)

    def log_prob(self, y: Any) -> Float[Values, " steps"]:
        """Log density of outcomes, step by step.

        Args:
            y: An array (steps, y), where NaN is missing, or a data frame like that of `fit`. A step without any observation
                counts as 0.

        Example:
            >>> ahead.log_prob([[0.1], [float("nan")], [0.3]]).shape
            (3,)
        """
        y = self._outcomes(y)
        if not (np.asarray(self.std) > 0).all():
            raise ValueError("only forecasts with a positive variance have a density; this one has a zero variance")
        if self.components is not None:
            return self.components.log_prob(y).astype(self.mean.dtype)
        room = bucket(len(y))
        mean, cov = (pad(np.asarray(part), room, 1.0) for part in (self.mean, self.cov))
        return np.asarray(gaussian_log_probs(mean, cov, pad(y, room, np.nan)))[: len(y)]

    def crps(self, y: Any) -> Float[np.ndarray, "steps y"]:
        """Continuous ranked probability score of outcomes, in their units: a distance of the forecast from what came.

        Args:
            y: As for `log_prob`; NaN where it is missing.

        Example:
            >>> ahead.crps([[0.1], [0.2], [0.3]]).shape
            (3, 1)
        """
        y = self._outcomes(y)
        found = Components.of(self).crps(np.where(np.isnan(y), 0.0, y))
        return np.where(np.isnan(y), np.nan, found).astype(self.mean.dtype)

    def _outcomes(self, y: Any) -> np.ndarray:
        """Outcomes as an array, checked."""
        y = from_frames(y, self.layout)
        y = as_values("y", y.y if isinstance(y, Series) else y, ndim=2).astype(self.mean.dtype)
        require_shape("y", y, self.mean.shape)
        if np.isinf(y).any():
            raise ValueError("y must be finite or NaN (missing), got an infinite value")
        Components.of(self).require_outcomes(y, self.names)
        return y

    def sample(self, count: int, key: Any) -> Float[np.ndarray, "count steps y"]:
        """Whole paths of future observations, for what depends on several steps, such as sums over a day.

        Each path is drawn from the model, weights and noise included; a calibrated forecast scales the deviations of paths from
        its mean, step by step and output by output, as it scales its standard deviations.

        Args:
            count: Number of paths.
            key: Randomness, such as `jax.random.key(0)`.

        Example:
            >>> ahead.sample(10, key=jr.key(0)).shape
            (10, 3, 1)
        """
        require_integer("count", count, least=1)
        require_key("key", key)
        if self._draw is None:
            raise ValueError("paths are drawn from what ProDSSM.forecast returns")
        return self._draw(count, key)

    def decompose(self) -> Decomposition:
        """Epistemic, aleatoric and measurement variance, by the law of total variance over global weights.

        Example:
            >>> parts = ahead.decompose()
            >>> total = parts.epistemic + parts.aleatoric + parts.measurement
            >>> bool(np.allclose(total, ahead.std**2))
            True
        """
        return self._decompose()

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """A data frame with a row per step and `_mean`, `_std`, `_lower` and `_upper` of each output.

        Rows have the time stamps that follow those of the data, else the number of the step, from 1.

        Args:
            backend: "pandas", "polars" or "pyarrow"; if not given, the kind of frame that the model was fitted to, else the
                first of them that is installed.
            probability: Of the central interval from lower to upper.

        Example:
            >>> ahead.to_frame("pandas").columns.tolist()
            ['step', 'y0_mean', 'y0_std', 'y0_lower', 'y0_upper']
        """
        return build(self._table(probability), backend, self.layout)

    def _table(self, probability: float) -> Table:
        return table_of(self, names=self.names, probability=probability, first=1)


class Panel(tuple):
    """What is known about each of several series, in the order in which they were given.

    Attributes:
        labels: The groups of the series, or their numbers from 0.

    Example:
        >>> found = model.forecast([y[:30], y[:50]], steps=3)
        >>> found.labels, found[1].mean.shape
        ((0, 1), (3, 1))
    """

    labels: tuple[Any, ...]

    def __new__(cls, results: Iterable[Any], labels: Sequence[Any]) -> "Panel":
        """Results with the labels of their series."""
        found = super().__new__(cls, results)
        found.labels = tuple(n if label is None else label for n, label in enumerate(labels))
        return found

    def to_frame(self, backend: str | None = None, probability: float = 0.95) -> Any:
        """One data frame with the rows of all series, and a column that says which: that of the data, else "series".

        Example:
            >>> model.forecast([y[:30], y[:50]], steps=3).to_frame("pandas").columns.tolist()[:3]
            ['series', 'step', 'y0_mean']
        """
        layout = self[0].layout
        group = "series" if layout is None or layout.group is None else layout.group
        tables = [each._table(probability) for each in self]
        return build(joined(tables, self.labels, group), backend, layout)


@dataclass(frozen=True)
class Transition:
    """Belief about f(x, w) at given states under the learned weights, without process noise.

    Example:
        >>> found = model.transition([[0.0], [0.5]])
        >>> found.mean.shape, found.std.shape
        ((2, 1), (2, 1))
    """

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
    """What a stream knows after one observation: the filtered state, and the prediction of the next observation.

    Example:
        >>> state, now = model.step(model.start(), [0.3])
        >>> now.state_mean.shape, now.mean.shape, now.std.shape
        ((1,), (1,), (1,))
    """

    mean: Float[Values, " y"]
    cov: Float[Values, "y y"]
    state_mean: Float[Values, " x"]
    state_cov: Float[Values, "x x"]
    components: Components | OutputComponents | None = field(default=None, repr=False)

    @property
    def std(self) -> Float[Values, " y"]:
        """Standard deviations of the next observation."""
        return np.sqrt(np.diagonal(np.asarray(self.cov)))

    def interval(self, probability: float = 0.95) -> tuple[Float[Values, " y"], Float[Values, " y"]]:
        """Lower and upper ends of central intervals of the next observation, output by output.

        Example:
            >>> _, now = model.step(model.start(), [0.3])
            >>> lower, upper = now.interval(0.9)
            >>> bool((lower < now.mean).all() and (now.mean < upper).all())
            True
        """
        require_probability(probability)
        if self.components is not None:
            ends = (1 - float(probability)) / 2, (1 + float(probability)) / 2
            low, high = (self.components.quantile(each)[0].astype(self.mean.dtype) for each in ends)
            return low, high
        radius = NormalDist().inv_cdf(0.5 + float(probability) / 2) * self.std
        return self.mean - radius, self.mean + radius


def output_names(layout: Layout | None, count: int) -> tuple[str, ...]:
    """Names of outputs: those of the frame that a model was fitted to, else y0, y1, ..."""
    return tuple(f"y{n}" for n in range(count)) if layout is None else layout.outputs
