r"""Calibration: how much wider or narrower forecasts must be, horizon by horizon, by what a model did not see.

A forecast $m_h + d_h$ with a deviation $d_h$ of standard deviation $s_h$ becomes $m_h + c_h d_h$. The factor $c_h$ is the root
mean square of $(y - m_h) / s_h$ over held-out observations at the horizons around h, shrunk towards that of all horizons,
which is itself shrunk towards one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float

from prodssm.estimators.ensemble import EnsemblePrediction
from prodssm.estimators.held_out import BlockForecast
from prodssm.estimators.results import Decomposition, Prediction, StreamStep

SHRINKAGE = 4.0  # blocks' worth of what is more general: all outputs for one, all horizons for a range, no change for all
LARGEST_FACTOR = 5.0


@dataclass(frozen=True)
class Calibration:
    """Factors on the deviations of a forecast from its mean.

    Attributes:
        horizons: Steps ahead, increasing; between them the logarithm of a factor is linear in the logarithm of the horizon.
        factors: At these horizons, output by output.
    """

    horizons: Float[np.ndarray, " h"]
    factors: Float[np.ndarray, "h y"]

    @classmethod
    def fit(cls, forecasts: Sequence[BlockForecast]) -> "Calibration":
        """The factors under which the errors of forecasts of held-out blocks have the size that they say."""
        horizons = np.concatenate([each.horizons for each in forecasts])
        squares = np.concatenate([((each.truth - each.mean) / each.std) ** 2 for each in forecasts])
        seen, group = np.isfinite(squares), np.log2(horizons).astype(int)
        everything = _shrunk(squares[seen].mean(), len(forecasts), 1.0)
        centers, found = [], []
        for now in np.unique(group):
            at = group == now
            rows, known = np.where(seen[at], squares[at], 0.0), seen[at]
            if not known.any():
                continue
            blocks = sum(len(each.truth) >= 2**now for each in forecasts)
            pooled = _shrunk(rows.sum() / known.sum(), blocks * known.shape[1], everything)
            each = _shrunk(rows.sum(axis=0) / np.maximum(known.sum(axis=0), 1), blocks * known.any(axis=0), pooled)
            centers.append(np.exp(np.log(horizons[at]).mean()))
            found.append(np.sqrt(each))
        return cls(np.array(centers), np.clip(np.array(found), 1 / LARGEST_FACTOR, LARGEST_FACTOR))

    def words(self) -> dict[str, Any]:
        """As JSON can say it."""
        return {"horizons": self.horizons.tolist(), "factors": self.factors.tolist()}

    def at(self, horizons: Any) -> Float[np.ndarray, "n y"]:
        """Factors at these horizons, (n, outputs)."""
        wanted, known = np.log(np.asarray(horizons, float)), np.log(self.horizons)
        return np.exp(np.stack([np.interp(wanted, known, column) for column in np.log(self.factors).T], axis=1))

    def apply(self, prediction: Prediction) -> Prediction:
        """The forecast with deviations from its mean multiplied by the factors; its states are as before."""
        factors = self.at(np.arange(1, len(prediction.mean) + 1)).astype(prediction.mean.dtype)
        changes: dict[str, Any] = {"cov": _scaled(prediction.cov, factors), "calibrated": True}
        changes["_decompose"] = partial(_scaled_parts, prediction, factors)
        if isinstance(prediction, EnsemblePrediction):
            mean = prediction.mean
            changes["members"] = tuple(
                replace(each, mean=mean + factors * (each.mean - mean), cov=_scaled(each.cov, factors))
                for each in prediction.members
            )
        return replace(prediction, **changes)

    def apply_to_step(self, step: StreamStep) -> StreamStep:
        """The same for the prediction of the next observation of a stream."""
        factors = self.at([1.0]).astype(step.cov.dtype)
        return replace(step, cov=_scaled(np.asarray(step.cov)[None], factors)[0])


def _shrunk(value: Any, weight: Any, towards: Any) -> Any:
    return (weight * value + SHRINKAGE * towards) / (weight + SHRINKAGE)


def _scaled(cov: Any, factors: Float[np.ndarray, "n y"]) -> np.ndarray:
    return np.asarray(cov) * factors[:, :, None] * factors[:, None, :]


def _scaled_parts(prediction: Prediction, factors: Float[np.ndarray, "n y"]) -> Decomposition:
    """Parts of the variance of a calibrated forecast, all scaled alike; a function of the module, so that it can be pickled."""
    found = prediction.decompose()
    return Decomposition(*(part * factors**2 for part in (found.epistemic, found.aleatoric, found.measurement)))
