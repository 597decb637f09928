"""Predictive distributions that are not one Gaussian: mixtures, and likelihoods of counts, events and outliers.

Arrays have the components first: m components, n steps, y outputs.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float

from prodssm._compilation import bucket, compiled, pad
from prodssm.beliefs.gaussian import Gaussian, gaussian_log_probs, standard_deviations
from prodssm.beliefs.mixture_scores import mixture_cdf, mixture_crps, mixture_log_prob, mixture_moments, mixture_quantile
from prodssm.data.scaling import Standardiser
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.likelihoods.quantiles import find_quantile

TAIL, NODES = 1e-4, 257  # of the integral behind a continuous ranked probability score
MOST_COUNTS = 4096  # that it sums over one by one


@dataclass(frozen=True)
class Components:
    """Gaussian components of a mixture about each of several observations, in double precision.

    Attributes:
        weights: They sum to one at each step; a component may be empty.
        mean: Their means.
        cov: Their covariances.
    """

    weights: Float[np.ndarray, "m n"]
    mean: Float[np.ndarray, "m n y"]
    cov: Float[np.ndarray, "m n y y"]

    @classmethod
    def of(cls, found: Any) -> "Components | OutputComponents":
        """Of a result that is one Gaussian at each step, or has components."""
        if found.components is not None:
            return found.components
        mean, cov = (np.asarray(part, float)[None] for part in (found.mean, found.cov))
        return cls(np.ones(mean.shape[:2]), mean, cov)

    @classmethod
    def of_marginals(cls, mean: Float[np.ndarray, "n y"], std: Float[np.ndarray, "n y"]) -> "Components":
        """One Gaussian at each step, of which nothing joint is asked."""
        return cls(np.ones((1, len(mean))), mean[None], (std[:, :, None] ** 2 * np.eye(mean.shape[1]))[None])

    @classmethod
    def of_beliefs(cls, beliefs: Any, scaling: Standardiser) -> "Components":
        """Of `Gaussian` or `GaussianMixture` beliefs with a time axis, in the units of the data."""
        if beliefs.mixture is None:
            means, covs = (np.asarray(part, float)[:, None] for part in (beliefs.mean, beliefs.cov))
            weights = np.ones(means.shape[:2])
        else:
            means, covs = np.asarray(beliefs.means, float), np.asarray(beliefs.covs, float)
            weights = np.exp(np.asarray(beliefs.log_weights, float))
        mean, cov = np.asarray(scaling.inverse(means), float), np.asarray(scaling.inverse_cov(covs), float)
        return cls(weights.T, mean.swapaxes(0, 1), cov.swapaxes(0, 1))

    @staticmethod
    def pooled(members: Sequence[Any]) -> "Components | OutputComponents":
        """Those of several results in equal parts."""
        parts: list[Any] = [Components.of(each) for each in members]
        return parts[0].joined(parts[1:])

    def joined(self, others: Sequence["Components"]) -> "Components":
        """These and others in equal parts."""
        parts = [self, *others]
        weights = np.concatenate([each.weights for each in parts]) / len(parts)
        return Components(weights, *(np.concatenate([getattr(each, name) for each in parts]) for name in ("mean", "cov")))

    def require_outcomes(self, y: Float[np.ndarray, "n y"], names: Sequence[str]) -> None:
        """All numbers have a density."""

    @property
    def std(self) -> Float[np.ndarray, "m n y"]:
        """Standard deviations of the components."""
        return np.stack([np.asarray(standard_deviations(each)) for each in self.cov])

    def moments(self) -> tuple[Float[np.ndarray, "n y"], Float[np.ndarray, "n y y"]]:
        """Mean and covariance of the mixture."""
        return mixture_moments(self.mean, self.cov, self.weights)

    @property
    def support(self) -> str:
        """Of the observations: real numbers."""
        return "real"

    def cdf(self, y: Float[np.ndarray, "*s n y"]) -> Float[np.ndarray, "*s n y"]:
        """P(Y <= y), output by output, of one or several values at each step."""
        return mixture_cdf(y, self.mean, self.std, self.weights)

    def quantile(self, probability: float) -> Float[np.ndarray, "n y"]:
        """Marginal quantiles of the mixture."""
        return mixture_quantile(probability, self.mean, self.std, self.weights)

    def pit(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
        """Probability integral transform of outcomes, output by output: P(Y <= y)."""
        return mixture_cdf(y, self.mean, self.std, self.weights)

    def crps(self, y: Any) -> Float[np.ndarray, "n y"]:
        """Continuous ranked probability score of outcomes."""
        return mixture_crps(y, self.mean, self.std, self.weights)

    def log_prob(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, " n"]:
        """Log density of outcomes; NaN is missing."""
        room, n = bucket(len(y)), len(y)
        rows = pad(y, room, np.nan)
        each = []
        for mean, cov in zip(self.mean, self.cov, strict=True):
            found = gaussian_log_probs(*(pad(part.astype(y.dtype), room, 1.0) for part in (mean, cov)), rows)
            each.append(np.asarray(found, float)[:n])
        return mixture_log_prob(np.stack(each), self.weights)

    def marginal_log_prob(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
        """Log density of outcomes, output by output; NaN is missing and stays so."""
        if not (self.std[self.weights > 0] > 0).all():
            raise ValueError("only forecasts with a positive variance have a density; this one has a zero variance")
        z = (y - self.mean) / self.std
        each = -0.5 * z**2 - np.log(self.std) - 0.5 * np.log(2 * np.pi)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.logaddexp.reduce(each + np.log(self.weights)[:, :, None], axis=0)

    def scaled(self, factors: Float[np.ndarray, "n y"], extra: Float[np.ndarray, "n y y"] | float = 0.0) -> "Components":
        """Deviations from the mean of the mixture multiplied by factors, plus independent Gaussian noise."""
        centre = self.moments()[0]
        mean = centre + factors * (self.mean - centre)
        return replace(self, mean=mean, cov=self.cov * factors[:, :, None] * factors[:, None, :] + extra)


@dataclass(frozen=True)
class Group:
    """What one model says: components of the emission's outputs g in its own units, and its likelihood."""

    g: Components
    likelihood: Likelihood
    scaling: Standardiser
    share: float = 1.0

    @classmethod
    def of_beliefs(cls, beliefs: Any, likelihood: Likelihood, scaling: Standardiser) -> "Group":
        """Of `Gaussian` or `GaussianMixture` beliefs about g with a time axis, in the units of the model."""
        return cls(Components.of_beliefs(beliefs, Standardiser.identity(_size_of(beliefs))), likelihood, scaling)

    def cdf(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
        """P(Y <= y), output by output, times the share of the model."""
        at = np.asarray(self.scaling.transform(y), float)
        found = self.likelihood.cdf(self.g.mean, self.g.std**2, np.broadcast_to(at, self.g.mean.shape))
        return self.share * (found * self.g.weights[:, :, None]).sum(axis=0)

    def expected_quantile(self, probability: float) -> Float[np.ndarray, "n y"]:
        """Marginal quantiles of E[y | g], which is increasing in g."""
        found = np.asarray(self.likelihood.expected_at(self.g.quantile(probability)), float)
        return np.asarray(self.scaling.inverse(found), float)

    def log_prob(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, " n"]:
        """Log density of outcomes."""
        room, n = bucket(len(y)), len(y)
        rows = pad(np.asarray(self.scaling.transform(y), y.dtype), room, np.nan)
        parts = zip(self.g.mean, self.g.cov, strict=True)
        each = [_log_probs(self.likelihood, *(pad(part.astype(y.dtype), room, 1.0) for part in pair), rows) for pair in parts]
        found = mixture_log_prob(np.stack([np.asarray(one, float)[:n] for one in each]), self.g.weights)
        return np.asarray(self.scaling.inverse_log_prob(found, ~np.isnan(y)))


@dataclass(frozen=True)
class OutputComponents:
    """Predictive distributions of a likelihood that is not Gaussian: the observations of one or several models.

    Attributes:
        groups: One for each model.
    """

    groups: tuple[Group, ...]

    def joined(self, others: Sequence["OutputComponents"]) -> "OutputComponents":
        """These and others in equal parts."""
        parts = [self, *others]
        groups = [replace(group, share=group.share / len(parts)) for each in parts for group in each.groups]
        return OutputComponents(tuple(groups))

    @property
    def support(self) -> str:
        """Of the observations: "real", "counts" or "binary"."""
        return self.groups[0].likelihood.support

    def require_outcomes(self, y: Float[np.ndarray, "n y"], names: Sequence[str]) -> None:
        """Raise if the likelihood does not allow some of these."""
        self.groups[0].likelihood.require_data(y, names)

    def cdf(self, y: Float[np.ndarray, "*s n y"]) -> Float[np.ndarray, "*s n y"]:
        """P(Y <= y), output by output, of one or several values at each step."""
        if y.ndim > 2:  # one after the other, because the quadratures of many values need much memory
            return np.stack([self.cdf(each) for each in y])
        return sum((group.cdf(y) for group in self.groups), np.zeros(y.shape))

    def pit(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
        """Probability integral transform of outcomes; of discrete ones at random between P(Y < y) and P(Y <= y)."""
        low, high = (self.cdf(y) if self.support == "real" else self.cdf(y - 1)), self.cdf(y)
        return low + np.random.default_rng(0).random(y.shape) * (high - low)

    def quantile(self, probability: float) -> Float[np.ndarray, "n y"]:
        """Marginal quantiles: the smallest values with at least this probability."""
        first = self.groups[0]
        start = np.asarray(first.scaling.inverse(first.g.moments()[0]), float)
        width = np.broadcast_to(np.asarray(first.scaling.scale, float) * (1 + first.g.std.max(axis=0)), start.shape)
        return find_quantile(self.cdf, self.support, float(probability), start, width)

    def log_prob(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, " n"]:
        """Log density, or probability, of outcomes; NaN is missing."""
        return np.logaddexp.reduce([group.log_prob(y) + np.log(group.share) for group in self.groups], axis=0)

    def marginal_log_prob(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
        """Log density, or probability, of outcomes, output by output; NaN is missing and stays so."""
        each = [self.log_prob(np.where(one, y, np.nan)) for one in np.eye(y.shape[1], dtype=bool)]
        return np.where(np.isnan(y), np.nan, np.stack(each, axis=1))

    def crps(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, "n y"]:
        """Continuous ranked probability score of outcomes, the integral of (P(Y <= z) - [y <= z])^2 over z."""
        y = np.asarray(y, float)
        low, high = np.minimum(self.quantile(TAIL), y), np.maximum(self.quantile(1 - TAIL), y)
        if self.support != "real" and (last := int(high.max(initial=0))) <= MOST_COUNTS:
            whole = (np.full(y.shape, float(k)) for k in range(last + 1))
            return np.sum([(self.cdf(each) - (y <= each)) ** 2 for each in whole], axis=0)
        total = np.zeros(y.shape)
        for start, end, after in ((low, y, 0.0), (y, high, 1.0)):
            at = [start + (end - start) * share for share in np.linspace(0, 1, NODES)]
            total += np.trapezoid([(self.cdf(each) - after) ** 2 for each in at], axis=0) * (end - start) / (NODES - 1)
        return total


def predictive(about: Any, likelihood: Likelihood, scaling: Standardiser | None = None) -> Components | OutputComponents | None:
    """The predictive distribution of a forecast in the units of the data; None if it is one Gaussian.

    Args:
        about: What the forecast holds besides moments.
        likelihood: The likelihood of the model.
        scaling: Of the data; none for the units of the model.
    """
    beliefs: Any = about.mixture if likelihood.gaussian else about.output
    if beliefs is None:
        return None
    scaling = Standardiser.identity(_size_of(beliefs)) if scaling is None else scaling
    if likelihood.gaussian:
        return Components.of_beliefs(beliefs, scaling)
    return OutputComponents((Group.of_beliefs(beliefs, likelihood, scaling),))


def _size_of(beliefs: Any) -> int:
    """Number of outputs of `Gaussian` or `GaussianMixture` beliefs."""
    return beliefs.mean.shape[-1] if beliefs.mixture is None else beliefs.means.shape[-1]


@compiled
def _log_probs(likelihood: Likelihood, mean: Array, cov: Array, y: Array) -> Array:
    return jax.vmap(lambda m, c, row: likelihood.log_prob(Gaussian(m, c), row))(mean, cov, y)
