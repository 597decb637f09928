"""The smoother of an estimator: iterated where asked for, and posterior paths of the state in the units of the data."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax.random as jr
import numpy as np

from prodssm.data.scaling import Standardiser
from prodssm.estimators.ensemble import mix_beliefs
from prodssm.estimators.fitted import FittedModel
from prodssm.models.panels import smooth_panel
from prodssm.models.relinearisation import Convergence
from prodssm.models.smoothing import Smoothed

Draw = Callable[[int, Any], Any]


class Smoothing:
    """The part of `ProDSSM` that smooths."""

    members_: tuple[FittedModel, ...]
    _known: Any
    _origin: Any
    _panel: Any

    def smooth(self, data: Any, iterations: int = 1, damping: float | None = None) -> Any:
        """Smoothed beliefs about the state at each time given all observations; otherwise like `filter`.

        `.sample(n, key)` draws whole paths of the state, in the units of the data if the emission is the identity.

        Args:
            data: One series, or several, as for `filter`.
            iterations: Largest number of passes. With more than one, iterated posterior linearisation: each finds its channels
                around the smoothed beliefs of the last one, which follows strong nonlinearities better, see
                `prodssm.smooth_states`; `.convergence` says whether it converged, of several models that of the slowest.
            damping: The share of the old beliefs in those that the next pass is built around; None damps where it is needed.

        Example:
            >>> found = model.smooth(y, iterations=200)
            >>> found.convergence.converged, found.sample(3, jr.key(0)).shape
            (True, (3, 60, 1))
        """
        series = self._known(data)
        rule = partial(smooth_panel, iterations=iterations, damping=damping)
        found = zip(*(member.infer(rule, series) for member in self.members_), strict=True)
        mixed = [_mixed(self.members_, each, self._origin(one)) for each, one in zip(found, series, strict=True)]
        return self._panel(data, mixed, series)


def _mixed(members: Sequence[FittedModel], found: Sequence[Any], origin: Any) -> Smoothed:
    """The smoothed beliefs of the mixture; states and paths are those of the first member unless all have the same states."""
    same = members[0].ssm.emission is None
    mean = mix_beliefs(found, same_states=same)
    sources = [(member.state_scaling, each._draw) for member, each in zip(members, found, strict=True)]
    draw, slowest = partial(_draw, sources if same else sources[:1]), _slowest([each.convergence for each in found])
    parts = mean.mean, mean.cov, mean.log_evidence, mean.weights, mean._outputs, origin
    return Smoothed(*parts, convergence=slowest, _draw=draw)


def _slowest(reports: Sequence[Convergence]) -> Convergence:
    """The most passes and the largest move; converged if all are."""
    passes = max(each.passes for each in reports)
    if any(each.move is None for each in reports):
        return Convergence(passes)
    return Convergence(passes, max(each.move for each in reports), all(each.converged for each in reports))


def _draw(sources: Sequence[tuple[Standardiser, Draw]], count: int, key: Any) -> np.ndarray:
    """Paths in the units of the data; each is one of a random member."""
    keys = [jr.fold_in(key, n + 1) for n in range(len(sources))]
    found = [scaling.inverse(draw(count, one)) for (scaling, draw), one in zip(sources, keys, strict=True)]
    if len(found) == 1:
        return found[0]
    chosen = np.asarray(jr.randint(jr.fold_in(key, 0), (count,), 0, len(found)))
    return np.stack(found)[chosen, np.arange(count)]
