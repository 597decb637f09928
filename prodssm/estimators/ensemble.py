"""Ensembles: the forecasts of several models as one equally weighted mixture.

Models that were trained from other seeds, or with other validation data, agree where the data are informative and differ where
they are not; their mixture is wider there. Models have latent coordinates of their own, so only observations can be mixed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Float

from prodssm.beliefs.mixture_scores import mixture_log_prob, mixture_moments
from prodssm.estimators.results import Decomposition, Prediction, StreamStep, Transition
from prodssm.models.components import Components
from prodssm.models.filtering import Beliefs, Outputs


@dataclass(frozen=True, kw_only=True)
class EnsemblePrediction(Prediction):
    """A forecast of several models, whose mixture it is.

    Attributes:
        members: The forecasts of the models.
    """

    members: tuple[Prediction, ...] = field(repr=False)


def mix_predictions(
    members: Sequence[Prediction], measurement: Callable[[], Float[np.ndarray, "m steps y"]], modes: Sequence[str]
) -> Prediction:
    """The mixture of the forecasts of several models in equal parts.

    Its states are those of the first member. `decompose` counts what the members disagree on as epistemic, for any weights.

    Args:
        members: Forecasts of the same outputs.
        measurement: Returns the measurement variance of each member, in the units of the data.
        modes: The weight mode of each member.
    """
    if len(members) == 1:
        return members[0]
    means, covs = (stacked([getattr(each, part) for each in members]) for part in ("mean", "cov"))
    mean, cov = mixture_moments(means, covs)
    first = members[0]
    parts = partial(_decompose, members, means, cov, measurement, tuple(modes))
    states = first.state_mean, first.state_cov
    mean, cov = (part.astype(first.mean.dtype) for part in (mean, cov))
    draw = partial(_draw, members)
    mixture = {"members": tuple(members), "components": Components.pooled(members)}
    return EnsemblePrediction(mean, cov, *states, parts, first.layout, _draw=draw, **mixture)


def _draw(members: Sequence[Prediction], count: int, key: Any) -> np.ndarray:
    """Paths of the mixture: each is one of a random member."""
    chosen = np.asarray(jr.randint(jr.fold_in(key, 0), (count,), 0, len(members)))
    found = [each.sample(count, jr.fold_in(key, n + 1)) for n, each in enumerate(members)]
    return np.stack(found)[chosen, np.arange(count)]


def _decompose(
    members: Sequence[Prediction],
    means: np.ndarray,
    cov: np.ndarray,
    measurement: Callable[[], np.ndarray],
    modes: Sequence[str],
) -> Decomposition:
    """Between-member variance, plus the epistemic part within members that have one."""
    noise = measurement().mean(axis=0)
    within = [each.decompose().epistemic for each, mode in zip(members, modes, strict=True) if mode == "global"]
    epistemic = means.var(axis=0) + sum(within, np.zeros(means.shape[1:])) / len(members)
    return Decomposition(epistemic, np.diagonal(cov, axis1=1, axis2=2) - epistemic - noise, noise)


def mix_beliefs(members: Sequence[Beliefs], *, same_states: bool) -> Beliefs:
    """The evidence of the mixture; its states if all members have the same ones, else those of the first member."""
    if len(members) == 1:
        return members[0]
    first, dtype = members[0], members[0].mean.dtype
    evidence = mixture_log_prob(stacked([each.log_evidence for each in members])).astype(dtype)
    outputs = partial(_mixed_outputs, members)
    if not same_states:
        return Beliefs(first.mean, first.cov, evidence, first.weights, outputs, mixture=first.mixture)
    moments = mixture_moments(*(stacked([getattr(each, part) for each in members]) for part in ("mean", "cov")))
    mean, cov = (part.astype(dtype) for part in moments)
    return Beliefs(mean, cov, evidence, None, outputs)


def _mixed_outputs(members: Sequence[Beliefs]) -> Outputs:
    """The outputs of the mixture."""
    found = [each.outputs for each in members]
    moments = mixture_moments(*(stacked([getattr(each, part) for each in found]) for part in ("mean", "cov")))
    mean, cov = (part.astype(members[0].mean.dtype) for part in moments)
    groups = [each.about for each in found]
    about = None if groups[0] is None else replace(groups[0], g=groups[0].g.joined([each.g for each in groups[1:]]))
    return Outputs(mean, cov, about=about)


def mix_transitions(members: Sequence[Transition]) -> Transition:
    """Mean and variance of the mixture of transitions."""
    if len(members) == 1:
        return members[0]
    means, variances = (stacked([getattr(each, part) for each in members]) for part in ("mean", "var"))
    moments = means.mean(axis=0), variances.mean(axis=0) + means.var(axis=0)
    return Transition(*(part.astype(members[0].mean.dtype) for part in moments))


def mix_stream_steps(members: Sequence[StreamStep], *, same_states: bool) -> StreamStep:
    """The mixture of the predictions of a stream; its states as for `mix_beliefs`."""
    first = members[0]
    if len(members) == 1:
        return first
    names = ("mean", "cov", "state_mean", "state_cov")
    parts = {name: stacked([getattr(each, name) for each in members])[:, None] for name in names}
    mean, cov = (part[0] for part in mixture_moments(parts["mean"], parts["cov"]))
    states: Any = (first.state_mean, first.state_cov)
    if same_states:
        states = (part[0] for part in mixture_moments(parts["state_mean"], parts["state_cov"]))
    rows = [SimpleNamespace(mean=each.mean[None], cov=each.cov[None], components=each.components) for each in members]
    moments = (np.asarray(part, first.mean.dtype) for part in (mean, cov, *states))
    return StreamStep(*moments, components=Components.pooled(rows))


def stacked(arrays: Sequence[Any]) -> np.ndarray:
    """Arrays of all members in double precision, members first."""
    return np.stack([np.asarray(each, float) for each in arrays])
