"""The record of a training run, and why it ended."""

from dataclasses import dataclass, field
from enum import Enum

import numpy as np


class StopReason(Enum):
    """Why training ended.

    Example:
        >>> str(StopReason.COMPLETED)
        'all iterations done'
    """

    COMPLETED = "all iterations done"
    EARLY_STOPPING = "no improvement on the validation data; the best model is returned"
    DIVERGED = "the objective was no longer finite; the best model so far is returned"
    INTERRUPTED = "interrupted; the best model so far is returned"

    def __str__(self) -> str:
        """The reason in words."""
        return self.value


@dataclass
class History:
    """What training recorded, chunk by chunk.

    Attributes:
        iterations: Iterations done.
        objective: The objective per observed value, mean over the chunk.
        validation: The validation score per observed value; empty without validation data, NaN where one of several runs has
            none.
        seconds: Time since the start.
        stop_reason: Why training ended.

    Example:
        >>> model.history_.iterations, str(model.history_.stop_reason)
        ([5], 'all iterations done')
    """

    iterations: list[int] = field(default_factory=list)
    objective: list[float] = field(default_factory=list)
    validation: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    stop_reason: StopReason = StopReason.COMPLETED

    @property
    def interrupted(self) -> bool:
        """Whether the run was interrupted by the user."""
        return self.stop_reason is StopReason.INTERRUPTED

    @property
    def diverged(self) -> bool:
        """Whether the objective was ever not finite."""
        return not np.isfinite(self.objective).all()

    @property
    def best_validation(self) -> float:
        """The best finite validation score; minus infinity if there is none."""
        return max((value for value in self.validation if np.isfinite(value)), default=-np.inf)

    def followed_by(self, later: "History") -> "History":
        """This run and a later one as one."""
        done, spent = sum(self.iterations[-1:]), sum(self.seconds[-1:])
        validated = self.validation or later.validation
        return History(
            [*self.iterations, *(done + n for n in later.iterations)],
            self.objective + later.objective,
            [value for part in (self, later) for value in part.validation or [np.nan] * len(part.iterations) if validated],
            [*self.seconds, *(spent + s for s in later.seconds)],
            self.stop_reason if self.diverged and not later.diverged else later.stop_reason,
        )
