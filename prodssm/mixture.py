"""Several beliefs about the same thing, each as good as the others, or with shares that say how good.

Models that were trained on other rows, or from another start, agree where the data speak and differ where they do not. Their
mixture knows that; each of them alone does not.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import ndtr, ndtri

from prodssm.answers import Parts, Prediction
from prodssm.checks import require_probability


def matched(
    mean: Float[np.ndarray, "m n y"], cov: Float[np.ndarray, "m n y y"]
) -> tuple[Float[np.ndarray, "n y"], Float[np.ndarray, "n y y"]]:
    """Mean and covariance of a mixture in equal parts, by the law of total covariance.

    Example:
        >>> matched(np.array([[[0.0]], [[2.0]]]), np.ones((2, 1, 1, 1)))
        (array([[1.]]), array([[[2.]]]))
    """
    centre = mean.mean(axis=0)
    gap = mean - centre
    return centre, (cov + gap[..., :, None] * gap[..., None, :]).mean(axis=0)


def log_density(each: Float[np.ndarray, "m n"], shares: Any = None) -> Float[np.ndarray, " n"]:
    """Log density of a mixture, from those of its members; in equal parts unless there are shares.

    Example:
        >>> np.exp(log_density(np.log([[0.5], [0.25]]))).round(6)
        array([0.375])
    """
    with np.errstate(divide="ignore"):  # a part without a share
        return np.logaddexp.reduce(each + np.log(_shares(each, shares)), axis=0)


def quantile(
    probability: float, mean: Float[np.ndarray, "m n y"], std: Float[np.ndarray, "m n y"], shares: Any = None
) -> Float[np.ndarray, "n y"]:
    """What a mixture of normal distributions stays below with this probability; in equal parts unless there are shares.

    Parts that have lost their way move it little as long as they are a smaller share than lies beyond: in equal parts their
    share is one of so many, so this holds for medians, but for the ends of 95 % intervals only beyond forty parts.

    Example:
        >>> quantile(0.5, np.array([[[0.0]], [[0.1]], [[1e30]]]), np.ones((3, 1, 1))).round(1)
        array([[0.7]])
    """
    require_probability(probability)
    share = _shares(mean, shares)[..., None]
    each = mean + ndtri(probability) * std
    low, high = each.min(axis=0), each.max(axis=0)  # where no part, and where every part has that much below
    middle = low / 2 + high / 2
    while ((low < middle) & (middle < high)).any():  # until there is no number in between
        # A certain part has all or nothing below.
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            each = np.where(std > 0, ndtr((middle - mean) / std), middle >= mean)
        below = (share * each).sum(axis=0)
        low, high = np.where(below < probability, middle, low), np.where(below < probability, high, middle)
        middle = low / 2 + high / 2
    return middle


def crps(
    y: Any, mean: Float[np.ndarray, "m n y"], std: Float[np.ndarray, "m n y"], shares: Any = None
) -> Float[np.ndarray, "n y"]:
    r"""Continuous ranked probability score of a mixture of normal distributions, value by value, in the unit of `y`.

    $E|X - y| - E|X - X'|/2$ for independent draws $X, X'$ of the mixture. As a function of the shares it is a quadratic one. A
    lost part costs the square of its share times how far off it is.

    Args:
        y: What came true.
        mean: Means of the parts.
        std: Their standard deviations; zero is welcome.
        shares: Of the parts, for all rows or row by row; equal ones if not given.

    Example:
        >>> float(crps(np.zeros((1, 1)), np.zeros((2, 1, 1)), np.ones((2, 1, 1)))[0, 0].round(6))  # as one normal distribution
        0.233695
    """
    if np.shape(y) != mean.shape[1:]:
        raise ValueError(f"y must have the shape of one part, {mean.shape[1:]}; got {np.shape(y)}")
    share = _shares(mean, shares)[..., None]
    to_truth = (share * _mean_distance(mean - y, std)).sum(axis=0)
    apart = [(share * _mean_distance(mean - m, np.hypot(std, s))).sum(axis=0) for m, s in zip(mean, std, strict=True)]
    return to_truth - (share * np.asarray(apart)).sum(axis=0) / 2


def _mean_distance(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Mean of the absolute value of a normal variable."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        z = np.where(std > 0, mean / std, np.copysign(np.inf, mean))
        return mean * (2 * ndtr(z) - 1) + std * np.exp(-(z**2) / 2) * np.sqrt(2 / np.pi)


def _shares(parts: np.ndarray, shares: Any) -> Float[np.ndarray, "m n"] | Float[np.ndarray, "m 1"]:
    """How much of a mixture each part is."""
    m, n = parts.shape[:2]
    if shares is None:
        return np.full((m, 1), 1 / m)
    found = np.asarray(shares, float)
    if found.shape not in ((m,), (m, n)) or not (found >= 0).all() or (np.abs(found.sum(axis=0) - 1) > 1e-6).any():
        raise ValueError(
            f"shares must be {m} numbers of at least zero that sum to one, or so many for each of {n} rows; got {shares}"
        )
    return found.reshape(m, -1)


@dataclass(frozen=True, kw_only=True)
class Mixed(Prediction):
    """A forecast of several models: the moments of their mixture, and its own quantiles and densities.

    Attributes:
        members: The forecasts of the models.
    """

    members: tuple[Prediction, ...] = field(repr=False)

    def quantile(self, probability: float) -> Float[Array, "steps y"]:
        """What observations stay below with this probability, channel by channel; that of one half is the median."""
        means, stds = (_stacked([getattr(each, part) for each in self.members]) for part in ("mean", "std"))
        return jnp.asarray(quantile(probability, means, stds))

    def log_prob(self, y: Any) -> Float[Array, " steps"]:
        """Log density of what came true, (steps, y), step by step; NaN means not observed."""
        return jnp.asarray(log_density(_stacked([each.log_prob(y) for each in self.members])))


def forecast(models: Sequence[Any], data: Any, steps: int, u: Any = None, dt: Any = None) -> Mixed:
    """Beliefs of several fitted models about the observations that follow a series, as one: their mixture in equal parts.

    Its mean and covariance are the mixture's moments, its intervals and log densities those of the mixture itself. Its
    `decompose` calls epistemic what the models disagree on, also for weights that are redrawn at every step. Models have states
    of their own, so the answer has none.

    Args:
        models: Each a `ProDSSM` that was fitted to the same channels, for instance with different seeds.
        data: As for `ProDSSM.forecast`, like all that follows.
        steps: How many observations ahead.
        u: Future controls.
        dt: Future time steps.
    """
    models = tuple(models)
    if not models:
        raise ValueError("models must be at least one fitted model, got none")
    ahead = [model.forecast(data, steps, u, dt) for model in models]
    if len({each.names for each in ahead}) > 1:
        raise ValueError(f"models must have the same channels, got {' and '.join(str(each.names) for each in ahead)}")
    means, covs = (_stacked([getattr(each, part) for each in ahead]) for part in ("mean", "cov"))
    mean, cov = matched(means, covs)
    # Of these models, whatever they are fitted to later.
    noise = [np.asarray(m.ssm_.measurement_noise, float) * np.asarray(m.units_.y.scale, float) ** 2 for m in models]
    drawn_once = [each for model, each in zip(models, ahead, strict=True) if model.ssm_.weights == "global"]
    parts = partial(_parts, means, cov, np.asarray(noise), drawn_once)
    none = jnp.zeros((len(mean), 0)), jnp.zeros((len(mean), 0, 0))
    return Mixed(jnp.asarray(mean), jnp.asarray(cov), *none, parts, ahead[0].layout, members=tuple(ahead))


def _parts(means: np.ndarray, cov: np.ndarray, noise: np.ndarray, drawn_once: Sequence[Prediction]) -> Parts:
    """What the models disagree on, and what each of them that has weights drawn once does not know by itself."""
    measurement = np.broadcast_to(noise.mean(axis=0), means.shape[1:])
    within = [each.decompose().epistemic for each in drawn_once]
    epistemic = means.var(axis=0) + sum(within, np.zeros(means.shape[1:])) / len(means)
    return Parts(epistemic, np.diagonal(cov, axis1=1, axis2=2) - epistemic - measurement, measurement)


def _stacked(arrays: Sequence[Any]) -> np.ndarray:
    return np.stack([np.asarray(each, float) for each in arrays])
