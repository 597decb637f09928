"""Does the Gaussian assumption hold here? The deterministic forecast against futures sampled from the same model."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# A forecast is trusted as long as its intervals keep what they promise; these are the errors that a user would notice.
MEAN_TOLERANCE = 0.25  # of the sampled standard deviation
STD_TOLERANCE = 1.25  # factor
SIGMAS = 4.0  # standard errors of the sampling that are forgiven on top
NOTHING = 1e-12  # spread of a standardised channel that does not vary


@dataclass(frozen=True)
class Check:
    """How far a deterministic forecast is from sampled futures of the same model, step by step.

    Attributes:
        mean_gap: Distance of the means in sampled standard deviations, (steps, y).
        std_ratio: Standard deviation of the forecast over that of the samples, (steps, y).
        coverage: Share of sampled futures inside the forecast's 95 % interval, (steps, y).
        trusted: Number of first steps without a noticeable error.
        samples: How many futures were sampled.
        verdict: All of this in words.
    """

    mean_gap: Float[np.ndarray, "steps y"]
    std_ratio: Float[np.ndarray, "steps y"]
    coverage: Float[np.ndarray, "steps y"]
    trusted: int
    samples: int
    verdict: str

    @property
    def holds(self) -> bool:
        """Whether all steps can be trusted."""
        return self.trusted == len(self.mean_gap)

    def __str__(self) -> str:
        """The verdict."""
        return self.verdict


def compare(mean: np.ndarray, std: np.ndarray, futures: np.ndarray) -> Check:
    """Judge a forecast by sampled observations.

    Args:
        mean: Means of the forecast, (steps, y).
        std: Its standard deviations.
        futures: Sampled observations, (samples, steps, y).
    """
    samples = len(futures)
    with np.errstate(all="ignore"):  # what left the range of numbers fails, without further noise
        centred = futures - futures.mean(axis=0)
        sampled = np.maximum(centred.std(axis=0, ddof=1), NOTHING)
        kurtosis = ((centred / sampled) ** 4).mean(axis=0)
        gap, ratio = np.abs(mean - futures.mean(axis=0)) / sampled, np.maximum(std, NOTHING) / sampled
        width = np.abs(np.log(ratio))
        # At least the error of a normal sample: a few samples say little about their own tails. And not much more, or tails
        # that no Gaussian has would be their own excuse.
        width_error = SIGMAS * np.sqrt(np.clip(kurtosis - 1, 2.0, 8.0) / (4 * samples))
        inside = (np.abs(futures - mean) <= 1.959964 * std + NOTHING).mean(axis=0)
    fine = (gap <= MEAN_TOLERANCE + SIGMAS / np.sqrt(samples)) & (width <= np.log(STD_TOLERANCE) + width_error)
    failed = ~fine.all(axis=1)
    trusted = int(np.argmax(failed)) if failed.any() else len(fine)
    worst = np.unravel_index(np.argmax(np.where(fine, -1.0, gap + width)), fine.shape)
    return Check(gap, ratio, inside, trusted, samples, _verdict(gap, ratio, inside, trusted, samples, worst))


def _verdict(gap: np.ndarray, ratio: np.ndarray, inside: np.ndarray, trusted: int, samples: int, worst: tuple) -> str:
    steps, (step, channel) = len(gap), worst
    against = f"{samples} sampled futures"
    if trusted == steps:
        return f"The Gaussian forecast agrees with {against} over all {steps} steps."
    if not (np.isfinite(gap[worst]) and 0 < ratio[worst] < np.inf):
        return f"The forecast or {against} leave the range of numbers after {trusted} of {steps} steps: the system is unstable."
    size = ratio[worst]
    width = f"{size:.2g} times as wide as" if size < 0.95 or size > 1.05 else "as wide as"
    return (
        f"The Gaussian forecast agrees with {against} for {trusted} of {steps} steps. At step {step + 1} it is {width} "
        f"the samples in channel {channel}, its mean {gap[worst]:.2g} standard deviations away, and its 95 % interval holds "
        f"{100 * inside[worst]:.0f} % of them. Forecast fewer steps; every method carries a Gaussian from step to step."
    )
