"""Predictions of several models as the frames and distributions that sktime and skpro ask for."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from prodssm.beliefs.mixture_scores import mean_abs, mixture_quantile

try:
    import pandas as pd
    from skpro.distributions.base import BaseDistribution
    from skpro.distributions.normal import Normal
    from skpro.distributions.normal_mixture import NormalMixture
except ImportError as error:
    raise ImportError("prodssm.adapters needs skpro: pip install prodssm[sktime] or prodssm[skpro]") from error


@dataclass(frozen=True)
class Components:
    """Gaussian marginals of rows of outputs, one component per model, in equal parts.

    Attributes:
        means: Means of the components.
        stds: Their standard deviations.
    """

    means: Float[np.ndarray, "m n y"]
    stds: Float[np.ndarray, "m n y"]

    @classmethod
    def of(cls, members: Sequence[Any]) -> "Components":
        """The components of results that have a `mean` and a `std`, (n, y)."""
        return cls(*(np.stack([np.asarray(getattr(each, part), float) for each in members]) for part in ("mean", "std")))

    @classmethod
    def joined(cls, parts: Sequence["Components"]) -> "Components":
        """The rows of all parts, one after another."""
        means, stds = (np.concatenate([getattr(each, part) for each in parts], axis=1) for part in ("means", "stds"))
        return cls(means, stds)

    def rows(self, chosen: Any) -> "Components":
        """The chosen rows."""
        return Components(self.means[:, chosen], self.stds[:, chosen])

    @property
    def mean(self) -> Float[np.ndarray, "n y"]:
        """Means of the mixture."""
        return self.means.mean(axis=0)

    @property
    def var(self) -> Float[np.ndarray, "n y"]:
        """Variances of the mixture, by the law of total variance."""
        return (self.stds**2).mean(axis=0) + self.means.var(axis=0)

    def quantiles(self, probabilities: Sequence[float]) -> Float[np.ndarray, "n columns"]:
        """Quantiles of the mixture; the columns are all probabilities of the first output, then of the next."""
        found = [mixture_quantile(each, self.means, self.stds) for each in probabilities]
        return np.stack(found, axis=-1).reshape(self.means.shape[1], -1)

    def interval_ends(self, coverages: Sequence[float]) -> Float[np.ndarray, "n columns"]:
        """Lower and upper ends of central intervals, in the order of `quantiles`."""
        return self.quantiles([0.5 + side * float(coverage) / 2 for coverage in coverages for side in (-1, 1)])

    def distribution(self, index: pd.Index, columns: pd.Index) -> BaseDistribution:
        """The distribution of skpro: `Normal` for one model, else a `GaussianMixture`."""
        if len(self.means) == 1:
            return Normal(mu=self.means[0], sigma=self.stds[0], index=index, columns=columns)
        weights = np.full((self.means.shape[1], len(self.means)), 1 / len(self.means))
        mu, sigma = self.means.swapaxes(0, 1), self.stds.swapaxes(0, 1)
        return GaussianMixture(pi=weights, mu=mu, sigma=sigma, index=index, columns=columns)


class GaussianMixture(NormalMixture):
    r"""skpro's mixture of Gaussians with an exact self-energy $E|X - X'|$, on which its CRPS rests.

    Args:
        pi: Weights, (n, components).
        mu: Means, (n, components, outputs).
        sigma: Standard deviations, likewise.
        index: Names of the rows.
        columns: Names of the outputs.

    Example:
        >>> from prodssm.adapters.mixtures import GaussianMixture
        >>> found = GaussianMixture(pi=[[0.5, 0.5]], mu=[[[0.0], [2.0]]], sigma=[[[1.0], [1.0]]])
        >>> found.var()
             0
        0  2.0
    """

    def _var(self) -> Any:
        weights = self._pi[:, :, None]
        mean = (weights * self._mu).sum(axis=1, keepdims=True)
        found = (weights * (self._sigma**2 + (self._mu - mean) ** 2)).sum(axis=1)
        return found if self.ndim else float(found[0, 0])

    def _energy_self(self) -> Any:
        apart = mean_abs(self._mu[:, :, None] - self._mu[:, None], np.hypot(self._sigma[:, :, None], self._sigma[:, None]))
        found = np.einsum("nk,nl,nkly->n", self._pi, self._pi, apart)
        return found[:, None] if self.ndim else float(found[0])

    def _iloc(self, rowidx: Any = None, colidx: Any = None) -> "GaussianMixture":
        return GaussianMixture(**super()._iloc(rowidx, colidx).get_params(deep=False))

    def _iat(self, rowidx: Any = None, colidx: Any = None) -> "GaussianMixture":
        return GaussianMixture(**super()._iat(rowidx, colidx).get_params(deep=False))
