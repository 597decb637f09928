r"""Calibration: how wide forecasts must be, horizon by horizon, by what a model did not see.

The error of a member of an ensemble has a part that all members share, and a part of its own, which members disagree on. A
member's variance $s_h^2$, trained on errors that have both, would count disagreement twice. So the variance of the ensemble at
horizon h is $a_h^2 s_h^2 + \kappa V$: V is the disagreement of the members about this very forecast (unbiased variance of their
means), $\kappa$ says how much error it stands for, and the members' variance is scaled to the rest of the squared errors of
held-out observations: $a_h^2 = E[(e^2 - v) / s_h^2]$, where v is the part of the squared error that is a member's own. Factors
are shrunk towards those of all horizons. Held-out blocks are short: free runs that go on after them, over data that were
trained on, may ask for more, never for less.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Float

from prodssm.beliefs.mixture_scores import mixture_moments
from prodssm.estimators.ensemble import EnsemblePrediction, stacked
from prodssm.estimators.held_out import DISAGREEMENT, BlockForecast
from prodssm.estimators.results import Decomposition, Prediction, StreamStep
from prodssm.models.components import Components
from prodssm.models.forecasting import Forecast

SHRINKAGE = 4.0  # blocks' worth of what is more general: all outputs for one, all horizons for a range of them
LEAST_SHARED = 0.25  # of the squared errors, at least, is shared by all members
LARGEST_FACTOR = 5.0

Steps = TypeVar("Steps", StreamStep, Forecast)


@dataclass(frozen=True)
class Calibration:
    """Factors on the standard deviations of the members of an ensemble, or of a single model.

    Attributes:
        horizons: Steps ahead, increasing; between them the logarithm of a factor is linear in the logarithm of the horizon.
        factors: At these horizons, output by output.
    """

    horizons: Float[np.ndarray, " h"]
    factors: Float[np.ndarray, "h y"]

    @classmethod
    def fit(cls, forecasts: Sequence[BlockForecast]) -> "Calibration":
        """The factors under which forecasts of held-out blocks have errors of the size that they say."""
        horizons = np.concatenate([each.horizons for each in forecasts])
        whole = np.concatenate([((each.truth - each.mean) / each.std) ** 2 for each in forecasts])
        own = np.concatenate([each.own_error_var / each.std**2 for each in forecasts])
        seen, group = np.isfinite(whole), np.log2(horizons).astype(int)
        whole, shared = (np.where(seen, part, 0.0) for part in (whole, whole - own))

        def mean(of: np.ndarray, at: np.ndarray, axis: int | None = None) -> Any:
            return of[at].sum(axis=axis) / np.maximum(seen[at].sum(axis=axis), 1)

        everything = max(mean(shared, group >= 0), LEAST_SHARED * mean(whole, group >= 0))
        centers, found = [], []
        for now in np.unique(group):
            at = group == now
            blocks, outputs = sum(len(each.truth) >= 2**now for each in forecasts), seen.shape[1]
            known = seen[at].any(axis=0)
            pooled = _shrunk(mean(shared, at), blocks * outputs * known.any(), everything)
            pooled = max(pooled, LEAST_SHARED * mean(whole, at))
            each = _shrunk(mean(shared, at, 0), blocks * known, pooled)
            centers.append(np.exp(np.log(horizons[at]).mean()))
            found.append(np.sqrt(np.maximum(each, LEAST_SHARED * mean(whole, at, 0))))
        return cls(np.array(centers), np.clip(np.array(found), 1 / LARGEST_FACTOR, LARGEST_FACTOR))

    def at_least(self, other: "Calibration") -> "Calibration":
        """The larger factors of two calibrations, of which the other one reaches further."""
        return Calibration(other.horizons, np.maximum(other.factors, self.at(other.horizons)))

    def words(self) -> dict[str, Any]:
        """As JSON can say it."""
        return {"horizons": self.horizons.tolist(), "factors": self.factors.tolist()}

    def at(self, horizons: Any) -> Float[np.ndarray, "n y"]:
        """Factors at these horizons, (n, outputs)."""
        wanted, known = np.log(np.asarray(horizons, float)), np.log(self.horizons)
        return np.exp(np.stack([np.interp(wanted, known, column) for column in np.log(self.factors).T], axis=1))

    def calibrated(self, forecast: BlockForecast) -> BlockForecast:
        """The forecast of a block with the standard deviation that it should have."""
        var = (self.at(forecast.horizons) * forecast.std) ** 2 + forecast.disagreement
        return replace(forecast, std=np.sqrt(var), disagreement=np.zeros_like(var), own_error_var=np.zeros_like(var))

    def apply(self, prediction: Prediction) -> Prediction:
        """The calibrated forecast: the same mean, members with other variances; its states are as before."""
        factors = self.at(np.arange(1, len(prediction.mean) + 1))
        parts = partial(_scaled_parts, prediction, factors)
        if not isinstance(prediction, EnsemblePrediction):
            mixture: Any = prediction.components  # of a Gaussian likelihood: others are not calibrated
            components = None if mixture is None else mixture.scaled(factors)
            cov = _scaled(prediction.cov, factors)
            found = replace(prediction, cov=cov, components=components, calibrated=True, _decompose=parts)
        else:
            members = self._members(prediction.members, factors)
            cov = mixture_moments(*(stacked([getattr(each, part) for each in members]) for part in ("mean", "cov")))[1]
            cov = cov.astype(prediction.cov.dtype)
            pooled = Components.pooled(members)
            found = replace(prediction, cov=cov, members=members, components=pooled, calibrated=True, _decompose=parts)
        return replace(found, _draw=partial(_scaled_paths, prediction, np.asarray(found.std, float)))

    def apply_to_steps(self, members: Sequence[Steps]) -> tuple[Steps, ...]:
        """What members say of observations one step ahead, calibrated: of the next one of a stream, or of all of a series."""
        return self._members(members, self.at([1.0]))

    def apply_to_predictions(self, members: Sequence[Any]) -> tuple[Any, ...]:
        """What the members predict one step ahead at many time steps, calibrated."""
        return self._members(members, np.repeat(self.at([1.0]), len(members[0].mean), axis=0))

    def _members(self, members: Sequence[Any], factors: Float[np.ndarray, "n y"]) -> tuple[Any, ...]:
        """Members with scaled covariances, to which comes what their means do not say of the disagreement."""
        means = stacked([np.asarray(each.mean, float) for each in members])
        gap = means - means.mean(axis=0)
        between = (gap[..., :, None] * gap[..., None, :]).mean(axis=0)
        doubt = (_weight(len(members)) - 1) * between

        def scaled(each: Any) -> Any:
            found = replace(each, cov=(_scaled(each.cov, factors) + doubt).astype(each.cov.dtype))
            components = getattr(each, "components", None)
            return found if components is None else replace(found, components=components.scaled(factors, doubt))

        return tuple(scaled(each) for each in members)


def _weight(count: int) -> float:
    """What the variance of the means of so many members is multiplied by."""
    return DISAGREEMENT * count / (count - 1) if count > 1 else 1.0


def _shrunk(value: Any, weight: Any, towards: Any) -> Any:
    return (weight * value + SHRINKAGE * towards) / (weight + SHRINKAGE)


def _scaled(cov: Any, factors: Float[np.ndarray, "n y"]) -> np.ndarray:
    """Covariances, (n, y, y) or (y, y), of deviations multiplied by factors, in their precision."""
    cov = np.asarray(cov)
    scaled = cov.reshape(-1, *cov.shape[-2:]) * factors[:, :, None] * factors[:, None, :]
    return scaled.reshape(cov.shape).astype(cov.dtype)


def _scaled_paths(prediction: Prediction, std: Float[np.ndarray, "steps y"], count: int, key: Any) -> np.ndarray:
    """Paths around the same mean with the calibrated standard deviations."""
    mean, before = np.asarray(prediction.mean, float), np.asarray(prediction.std, float)
    ratio = np.divide(std, before, out=np.ones_like(std), where=before > 0)
    return mean + ratio * (prediction.sample(count, key) - mean)


def _scaled_parts(prediction: Prediction, factors: Float[np.ndarray, "n y"]) -> Decomposition:
    """Parts of the variance of a calibrated forecast; a function of the module, so that it can be pickled."""
    found, square = prediction.decompose(), factors**2
    between = np.zeros_like(square)
    members = prediction.members if isinstance(prediction, EnsemblePrediction) else ()
    if members:
        between = stacked([each.mean for each in members]).var(axis=0)
    epistemic = square * (found.epistemic - between) + _weight(len(members)) * between
    return Decomposition(epistemic, square * found.aleatoric, square * found.measurement)
