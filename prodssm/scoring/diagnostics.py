"""Diagnostic of the Gaussian approximation: the forecast of a model against futures sampled from the same model.

No data enter the comparison. It tells whether the deterministic propagation of moments, or of a mixture, can be trusted, not
whether the model is right; for the latter score forecasts of test data (`prodssm.metrics`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float

from prodssm.models.components import Components, OutputComponents

# A step is trusted as long as its interval is accurate enough for a user: errors below these tolerances go unnoticed.
MEAN_TOLERANCE = 0.25  # error of the mean, in standard deviations of the samples
STD_TOLERANCE = 1.25  # factor between the standard deviations
CDF_TOLERANCE = 0.05  # error of a probability P(Y <= y)
SIGMAS = 4.0  # allowance for the sampling error, in standard errors
BEYOND = 6.334e-5  # probability of a normal variable beyond so many
MIN_STD = 1e-12  # standard deviation below which a standardised output counts as constant
POINTS = 500  # at which distribution functions are compared


@dataclass(frozen=True)
class GaussianCheck:
    """Agreement of a model's forecast with futures sampled from the same model, step by step; no data are involved.

    Attributes:
        mean_gap: Distance between the means, in standard deviations of the samples, (steps, y).
        std_ratio: Standard deviation of the forecast over that of the samples, (steps, y).
        cdf_gap: Largest difference between the distribution function of the forecast and that of the samples, (steps, y).
        coverage: Fraction of the samples inside the central 95 % interval of the forecast, (steps, y).
        trusted: Number of leading steps at which all agree within the tolerances.
        samples: Number of sampled futures.
        verdict: Summary in one paragraph.
        components: Number of Gaussians with which a forecast agrees at all steps, `Moments(components=...)`; None if none of
            those that were tried does.
        tried: Numbers of Gaussians that were tried, that of the model first.

    Example:
        >>> found = model.check(y, steps=3)
        >>> found.trusted, found.holds, found.coverage.shape
        (3, True, (3, 1))
    """

    mean_gap: Float[np.ndarray, "steps y"]
    std_ratio: Float[np.ndarray, "steps y"]
    cdf_gap: Float[np.ndarray, "steps y"]
    coverage: Float[np.ndarray, "steps y"]
    trusted: int
    samples: int
    verdict: str
    components: int | None = None
    tried: tuple[int, ...] = (1,)

    @property
    def holds(self) -> bool:
        """Whether the forecast agrees with the samples at all steps."""
        return self.trusted == len(self.mean_gap)

    def __str__(self) -> str:
        """Return the verdict."""
        return self.verdict


def compare_with_samples(
    mean: Float[np.ndarray, "steps y"],
    std: Float[np.ndarray, "steps y"],
    futures: Float[np.ndarray, "samples steps y"],
    predictive: Components | OutputComponents | None = None,
    components: int = 1,
) -> GaussianCheck:
    """Compare the forecast of a model with futures sampled from the same model.

    Args:
        mean: Means of the forecast.
        std: Standard deviations of the forecast.
        futures: Sampled observations.
        predictive: The distribution of the forecast, if it is not one Gaussian at each step.
        components: Number of Gaussians in the belief about the state.
    """
    samples = len(futures)
    predictive = Components.of_marginals(mean, std) if predictive is None else predictive
    with np.errstate(all="ignore"):  # overflow makes the comparison fail, without further warnings
        centred = futures - futures.mean(axis=0)
        sampled = np.maximum(centred.std(axis=0, ddof=1), MIN_STD)
        kurtosis = ((centred / sampled) ** 4).mean(axis=0)
        gap, ratio = np.abs(mean - futures.mean(axis=0)) / sampled, np.maximum(std, MIN_STD) / sampled
        width = np.abs(np.log(ratio))
        # Standard error of the log standard deviation. The kurtosis is clipped from below, because few samples underestimate
        # it, and from above, because heavy tails are a failure of the approximation and must not raise its tolerance.
        width_error = SIGMAS * np.sqrt(np.clip(kurtosis - 1, 2.0, 8.0) / (4 * samples))
        low, high = (predictive.quantile(each) for each in (0.025, 0.975))
        inside = ((low - MIN_STD <= futures) & (futures <= high + MIN_STD)).mean(axis=0)
        distance = cdf_distance(predictive, futures)
    agrees = (
        (gap <= MEAN_TOLERANCE + SIGMAS / np.sqrt(samples))
        & (width <= np.log(STD_TOLERANCE) + width_error)
        & (distance <= CDF_TOLERANCE + cdf_error(samples))
    )
    failed = ~agrees.all(axis=1)
    trusted = int(np.argmax(failed)) if failed.any() else len(agrees)
    worst = np.unravel_index(np.argmax(np.where(agrees, -1.0, gap + width + distance)), agrees.shape)
    found = GaussianCheck(gap, ratio, distance, inside, trusted, samples, "", tried=(components,))
    return replace(found, verdict=_verdict(found, worst), components=components if found.holds else None)


def cdf_error(samples: int) -> float:
    """What the largest difference between a distribution function and that of samples from it hardly ever exceeds.

    As rarely as a normal variable exceeds the standard errors that the other comparisons allow, by the inequality of
    Dvoretzky, Kiefer, Wolfowitz and Massart, which holds for every distribution.
    """
    return float(np.sqrt(np.log(2 / BEYOND) / (2 * samples)))


def cdf_distance(
    predictive: Components | OutputComponents, futures: Float[np.ndarray, "samples steps y"]
) -> Float[np.ndarray, "steps y"]:
    """Largest differences between distribution functions and those of samples, the statistic of Kolmogorov and Smirnov."""
    ordered, below = np.sort(futures, axis=0), MIN_STD if predictive.support == "real" else 1.0
    y = ordered[np.unique(np.linspace(0, len(ordered) - 1, min(len(ordered), POINTS)).astype(int))]
    until, before = (np.empty(y.shape) for _ in range(2))
    for step, output in np.ndindex(futures.shape[1:]):
        column = ordered[:, step, output], y[:, step, output]
        until[:, step, output], before[:, step, output] = (np.searchsorted(*column, side=side) for side in ("right", "left"))
    # Both functions jump at values of counts, and at the mean of a certain output: compared at the jump and before it.
    above = until / len(ordered) - predictive.cdf(y + MIN_STD)
    return np.maximum(above, predictive.cdf(y - below) - before / len(ordered)).max(axis=0)


def with_advice(checks: Mapping[int, GaussianCheck], otherwise: str) -> GaussianCheck:
    """The first of several checks of a model, with the number of components that holds, and what to do if it is another.

    Args:
        checks: By number of components, that of the model first.
        otherwise: The advice if only one was tried and does not hold.
    """
    first, last = next(iter(checks.values())), list(checks.values())[-1]
    found = replace(first, components=last.components, tried=tuple(checks))
    if first.holds:
        return found
    advice = otherwise
    if last.components is not None:
        advice = f"Moments(components={last.components}) agrees with them at all steps."
    elif len(checks) > 1:
        advice = f"Moments(components={last.tried[0]}) agrees with them for {last.trusted} steps. Forecast fewer steps."
    return replace(found, verdict=f"{first.verdict} {advice}")


def _verdict(found: GaussianCheck, worst: tuple) -> str:
    """What was found, without advice."""
    steps, (step, output) = len(found.mean_gap), worst
    sampled = f"{found.samples} futures sampled from the same model"
    count = found.tried[0]
    name = "The Gaussian forecast" if count == 1 else f"The forecast as a mixture of {count} Gaussians"
    if found.holds:
        return f"{name} agrees with {sampled} over all {steps} steps. No data were compared."
    gap, factor = found.mean_gap[worst], found.std_ratio[worst]
    if not (np.isfinite(gap) and 0 < factor < np.inf):
        return f"{name} or {sampled} overflow after {found.trusted} of {steps} steps: the model is unstable."
    width = f"{factor:.2g} times as wide as" if factor < 0.95 or factor > 1.05 else "as wide as"
    return (
        f"{name} agrees with {sampled} for {found.trusted} of {steps} steps. At step {step + 1} it is {width} "
        f"the samples in output {output}, its mean is {gap:.2g} standard deviations away, its probabilities are off by up to "
        f"{found.cdf_gap[worst]:.2g}, and its 95 % interval covers {100 * found.coverage[worst]:.0f} % of them. No data were "
        "compared: the approximation of the model's own predictive distribution is inaccurate there."
    )
