"""Diagnostic of the Gaussian approximation: the Gaussian forecast of a model against futures sampled from the same model.

No data enter the comparison. It tells whether the deterministic propagation of moments can be trusted, not whether the model is
right; for the latter score forecasts of test data (`prodssm.metrics`).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

# A step is trusted as long as its interval is accurate enough for a user: errors below these tolerances go unnoticed.
MEAN_TOLERANCE = 0.25  # error of the mean, in standard deviations of the samples
STD_TOLERANCE = 1.25  # factor between the standard deviations
SIGMAS = 4.0  # allowance for the sampling error, in standard errors
MIN_STD = 1e-12  # standard deviation below which a standardised output counts as constant


@dataclass(frozen=True)
class GaussianCheck:
    """Agreement of a model's Gaussian forecast with futures sampled from the same model, step by step; no data are involved.

    Attributes:
        mean_gap: Distance between the means, in standard deviations of the samples, (steps, y).
        std_ratio: Standard deviation of the Gaussian forecast over that of the samples, (steps, y).
        coverage: Fraction of the samples inside the central 95 % interval of the Gaussian forecast, (steps, y).
        trusted: Number of leading steps at which both agree within the tolerances.
        samples: Number of sampled futures.
        verdict: Summary in one paragraph.
    """

    mean_gap: Float[np.ndarray, "steps y"]
    std_ratio: Float[np.ndarray, "steps y"]
    coverage: Float[np.ndarray, "steps y"]
    trusted: int
    samples: int
    verdict: str

    @property
    def holds(self) -> bool:
        """Whether the Gaussian forecast agrees with the samples at all steps."""
        return self.trusted == len(self.mean_gap)

    def __str__(self) -> str:
        """Return the verdict."""
        return self.verdict


def compare_with_samples(
    mean: Float[np.ndarray, "steps y"], std: Float[np.ndarray, "steps y"], futures: Float[np.ndarray, "samples steps y"]
) -> GaussianCheck:
    """Compare the Gaussian forecast of a model with futures sampled from the same model.

    Args:
        mean: Means of the Gaussian forecast.
        std: Standard deviations of the Gaussian forecast.
        futures: Sampled observations.
    """
    samples = len(futures)
    with np.errstate(all="ignore"):  # overflow makes the comparison fail, without further warnings
        centred = futures - futures.mean(axis=0)
        sampled = np.maximum(centred.std(axis=0, ddof=1), MIN_STD)
        kurtosis = ((centred / sampled) ** 4).mean(axis=0)
        gap, ratio = np.abs(mean - futures.mean(axis=0)) / sampled, np.maximum(std, MIN_STD) / sampled
        width = np.abs(np.log(ratio))
        # Standard error of the log standard deviation. The kurtosis is clipped from below, because few samples underestimate
        # it, and from above, because heavy tails are a failure of the approximation and must not raise its tolerance.
        width_error = SIGMAS * np.sqrt(np.clip(kurtosis - 1, 2.0, 8.0) / (4 * samples))
        inside = (np.abs(futures - mean) <= 1.959964 * std + MIN_STD).mean(axis=0)
    agrees = (gap <= MEAN_TOLERANCE + SIGMAS / np.sqrt(samples)) & (width <= np.log(STD_TOLERANCE) + width_error)
    failed = ~agrees.all(axis=1)
    trusted = int(np.argmax(failed)) if failed.any() else len(agrees)
    worst = np.unravel_index(np.argmax(np.where(agrees, -1.0, gap + width)), agrees.shape)
    return GaussianCheck(gap, ratio, inside, trusted, samples, _verdict(gap, ratio, inside, trusted, samples, worst))


def _verdict(gap: np.ndarray, ratio: np.ndarray, inside: np.ndarray, trusted: int, samples: int, worst: tuple) -> str:
    steps, (step, output) = len(gap), worst
    sampled = f"{samples} futures sampled from the same model"
    if trusted == steps:
        return f"The Gaussian forecast agrees with {sampled} over all {steps} steps. No data were compared."
    if not (np.isfinite(gap[worst]) and 0 < ratio[worst] < np.inf):
        return f"The Gaussian forecast or {sampled} overflow after {trusted} of {steps} steps: the model is unstable."
    factor = ratio[worst]
    width = f"{factor:.2g} times as wide as" if factor < 0.95 or factor > 1.05 else "as wide as"
    return (
        f"The Gaussian forecast agrees with {sampled} for {trusted} of {steps} steps. At step {step + 1} it is {width} "
        f"the samples in output {output}, its mean is {gap[worst]:.2g} standard deviations away, and its 95 % interval covers "
        f"{100 * inside[worst]:.0f} % of them. No data were compared: the Gaussian approximation of the model's own predictive "
        "distribution is inaccurate there. Forecast fewer steps; every method propagates a Gaussian from step to step."
    )
