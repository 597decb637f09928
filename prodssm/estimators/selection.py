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


def best_prior_weight(tried: Mapping[float, Sequence[Sequence[Trial]]]) -> float:
    """The prior weight with the best mean validation score over the choosing members.

    Args:
        tried: For each weight the members' trials, stage by stage. Validation rows differ between members, so only members
            that all weights have in common are compared, unless an interruption came before a weight had any.
    """
    shared = min([CHOOSING_MEMBERS, *(len(members) for members in tried.values() if members)])

    def score(weight: float) -> tuple[bool, float]:
        found = [members[0].score for members in tried[weight][:shared]]
        return bool(found), float(np.mean(found)) if found else -np.inf

    return max(tried, key=score)
