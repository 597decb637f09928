"""The choice of the hyper-prior's weight on validation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from prodssm.models.state_space import StateSpaceModel
from prodssm.training.history import History

PRIOR_WEIGHTS = (0.1, 0.3, 1.0)  # the candidates of "auto"
CHOOSING_MEMBERS = 2  # ensemble members that try all of them; the others use the best
DEFAULT_PRIOR_WEIGHT = 0.3  # without validation rows


@dataclass(frozen=True)
class Trial:
    """One training run: its prior weight, the trained model, and what training recorded."""

    prior_weight: float
    model: StateSpaceModel
    history: History

    @property
    def score(self) -> float:
        """The best validation score."""
        return self.history.best_validation


Tried = Mapping[float, Mapping[int, Sequence[Trial]]]
"""By prior weight and number of the member: its trials, stage by stage."""


def best_prior_weight(tried: Tried) -> float:
    """The prior weight with the best mean validation score over the choosing members.

    Validation rows differ between members, so only members that all weights have in common are compared, unless an interruption
    came before a weight had any.
    """
    some = [set(members) for members in tried.values() if members]
    common = set.intersection(*some) if some else set()
    compared = sorted(common)[:CHOOSING_MEMBERS]

    def score(weight: float) -> tuple[bool, float]:
        members = tried[weight]
        found = [members[n][0].score for n in (compared or members) if n in members]
        return bool(found), float(np.mean(found)) if found else -np.inf

    return max(tried, key=score)
