"""Several beliefs about the same thing, each as good as the others.

Models that were trained on other rows, or from another start, agree where the data speak and differ where they do not. Their
mixture knows that; each of them alone does not.
"""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from prodssm.answers import Parts, Prediction


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


def log_density(each: Float[np.ndarray, "m n"]) -> Float[np.ndarray, " n"]:
    """Log density of a mixture in equal parts, from those of its members.

    Example:
        >>> np.exp(log_density(np.log([[0.5], [0.25]]))).round(6)
        array([0.375])
    """
    return np.logaddexp.reduce(each, axis=0) - np.log(len(each))


def forecast(models: Sequence[Any], data: Any, steps: int, u: Any = None, dt: Any = None) -> Prediction:
    """Beliefs of several fitted models about the observations that follow a series, as one: the normal of their moments.

    Its `decompose` calls epistemic what the models disagree on, also for weights that are redrawn at every step. Models have
    states of their own, so the answer has none.

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
    means, covs = (np.stack([np.asarray(getattr(each, part), float) for each in ahead]) for part in ("mean", "cov"))
    mean, cov = matched(means, covs)
    # Of these models, whatever they are fitted to later.
    noise = [np.asarray(m.ssm_.measurement_noise, float) * np.asarray(m.units_.y.scale, float) ** 2 for m in models]
    drawn_once = [each for model, each in zip(models, ahead, strict=True) if model.ssm_.weights == "global"]

    def parts() -> Parts:
        measurement = np.broadcast_to(np.mean(noise, axis=0), mean.shape)
        within = [each.decompose().epistemic for each in drawn_once]
        epistemic = means.var(axis=0) + sum(within, np.zeros_like(mean)) / len(noise)
        return Parts(epistemic, np.diagonal(cov, axis1=1, axis2=2) - epistemic - measurement, measurement)

    none = jnp.zeros((len(mean), 0)), jnp.zeros((len(mean), 0, 0))
    return Prediction(jnp.asarray(mean), jnp.asarray(cov), *none, parts, ahead[0].layout)
