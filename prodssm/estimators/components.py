"""The components of a forecast that is a mixture of Gaussians: its own quantiles, densities and scores."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from prodssm._compilation import bucket, pad
from prodssm.beliefs.gaussian import gaussian_log_probs, standard_deviations
from prodssm.beliefs.mixture_scores import mixture_crps, mixture_log_prob, mixture_moments, mixture_quantile
from prodssm.data.scaling import Standardiser


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
    def of(cls, found: Any) -> "Components":
        """Of a result that is one Gaussian at each step, or has components."""
        if found.components is not None:
            return found.components
        mean, cov = (np.asarray(part, float)[None] for part in (found.mean, found.cov))
        return cls(np.ones(mean.shape[:2]), mean, cov)

    @classmethod
    def of_mixture(cls, mixture: Any, scaling: Standardiser) -> "Components | None":
        """Of a `GaussianMixture` with a time axis, in the units of the data; None of None."""
        if mixture is None:
            return None
        log_weights, means, covs = (np.asarray(part, float) for part in (mixture.log_weights, mixture.means, mixture.covs))
        mean, cov = scaling.inverse(means), scaling.inverse_cov(covs)
        return cls(np.exp(log_weights).T, np.asarray(mean, float).swapaxes(0, 1), np.asarray(cov, float).swapaxes(0, 1))

    @classmethod
    def pooled(cls, members: Sequence[Any]) -> "Components":
        """Those of several results in equal parts."""
        parts = [cls.of(each) for each in members]
        weights = np.concatenate([each.weights for each in parts]) / len(parts)
        return cls(weights, *(np.concatenate([getattr(each, name) for each in parts]) for name in ("mean", "cov")))

    @property
    def std(self) -> Float[np.ndarray, "m n y"]:
        """Standard deviations of the components."""
        return np.stack([np.asarray(standard_deviations(each)) for each in self.cov])

    def moments(self) -> tuple[Float[np.ndarray, "n y"], Float[np.ndarray, "n y y"]]:
        """Mean and covariance of the mixture."""
        return mixture_moments(self.mean, self.cov, self.weights)

    def quantile(self, probability: float) -> Float[np.ndarray, "n y"]:
        """Marginal quantiles of the mixture."""
        return mixture_quantile(probability, self.mean, self.std, self.weights)

    def crps(self, y: Any) -> Float[np.ndarray, "n y"]:
        """Continuous ranked probability score of outcomes."""
        return mixture_crps(y, self.mean, self.std, self.weights)

    def log_prob(self, y: Float[np.ndarray, "n y"]) -> Float[np.ndarray, " n"]:
        """Log density of outcomes; NaN is missing."""
        room, n = bucket(len(y)), len(y)
        rows = pad(y, room, np.nan)
        each = []
        for mean, cov in zip(self.mean, self.cov, strict=True):
            found = gaussian_log_probs(pad(mean, room, 1.0), pad(cov, room, 1.0), rows)
            each.append(np.asarray(found, float)[:n])
        return mixture_log_prob(np.stack(each), self.weights)

    def scaled(self, factors: Float[np.ndarray, "n y"], extra: Float[np.ndarray, "n y y"] | float = 0.0) -> "Components":
        """Deviations from the mean of the mixture multiplied by factors, plus independent Gaussian noise."""
        centre = self.moments()[0]
        mean = centre + factors * (self.mean - centre)
        return replace(self, mean=mean, cov=self.cov * factors[:, :, None] * factors[:, None, :] + extra)
