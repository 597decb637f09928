"""Forecasts of blocks of observations that a model was not trained on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from prodssm.data.batching import SeriesBatch
from prodssm.data.folds import Block
from prodssm.data.series import Series
from prodssm.estimators.fitted import FittedModel
from prodssm.models.free_run import free_runs

LONGEST_RUN = 1000  # time steps
DISAGREEMENT = 1.5  # times the variance of the members' means: they share data, so their errors have more in common


@dataclass(frozen=True)
class BlockForecast:
    """The forecast of the observations of one block from those before it, in standardised units.

    Attributes:
        block: The block.
        fold: Index of the fold that it belongs to.
        truth: The observations; NaN is missing.
        mean: Their predicted means.
        std: Their predicted standard deviations, of one model.
        disagreement: Variance of the error that members who disagree so much have; zero for a single model.
        own_error_var: The part of the squared error that is the predicting model's own, not shared by other members.
    """

    block: Block
    fold: int
    truth: Float[np.ndarray, "n y"]
    mean: Float[np.ndarray, "n y"]
    std: Float[np.ndarray, "n y"]
    disagreement: Float[np.ndarray, "n y"]
    own_error_var: Float[np.ndarray, "n y"]

    @property
    def horizons(self) -> Float[np.ndarray, " n"]:
        """Steps ahead."""
        return np.arange(1.0, len(self.truth) + 1)

    def first_steps(self, count: int) -> "BlockForecast":
        """The forecast of the first so many steps."""
        parts = (self.truth, self.mean, self.std, self.disagreement, self.own_error_var)
        return BlockForecast(self.block._replace(end=self.block.begin + count), self.fold, *(part[:count] for part in parts))


def prolonged(series: list[Series], folds: Sequence[Sequence[Block]]) -> list[list[Block]]:
    """The same blocks with all that follows them in their series, up to a longest free run."""

    def longer(block: Block) -> Block:
        return block._replace(end=max(block.end, min(len(series[block.series]), block.begin + LONGEST_RUN)))

    return [[longer(block) for block in blocks] for blocks in folds]


def forecast_blocks(
    members: Sequence[FittedModel], series: list[Series], folds: Sequence[Sequence[Block]], *, out_of_fold: bool
) -> list[BlockForecast]:
    """Forecasts of all blocks.

    Args:
        members: The models of an ensemble.
        series: Standardised.
        folds: Sets of blocks; with `out_of_fold` the n-th member has held out the n-th of them.
        out_of_fold: Whether a block is predicted by the member that has held it out, else by the mixture.
    """
    found = []
    for fold, blocks in enumerate(folds[: len(members)] if out_of_fold else folds):
        batch = SeriesBatch.of_blocks(series, blocks, folds)
        assert batch.given is not None
        answers = [free_runs(member.recursion, batch.record, batch.given) for member in members]
        means = np.stack([np.asarray(mean, float) for mean, _ in answers])
        variances = np.stack([np.diagonal(np.asarray(cov, float), axis1=-2, axis2=-1) for _, cov in answers])
        parts = _out_of_fold(means, variances, fold) if out_of_fold else _of_mixture(means, variances)
        for row, block in enumerate(blocks):
            end = int(np.asarray(batch.record.length)[row])
            at = slice(end - (block.end - block.begin), end)
            truth = np.asarray(series[block.series].y[block.begin : block.end], float)
            found.append(BlockForecast(block, fold, truth, *(part[row, at] for part in parts)))
    return found


Moments = Float[np.ndarray, "m batch time y"]
Parts = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def _disagreement(means: Moments) -> np.ndarray:
    return DISAGREEMENT * means.var(axis=0, ddof=1) if len(means) > 1 else np.zeros(means.shape[1:])


def _out_of_fold(means: Moments, variances: Moments, fold: int) -> Parts:
    """Mean, standard deviation, disagreement and own error variance of the member that did not see the data."""
    own = np.zeros(means.shape[1:])
    if len(means) > 1:
        # The difference of one mean and that of m - 1 others has m / (m - 1) times the variance of one.
        others = np.delete(means, fold, axis=0).mean(axis=0)
        own = (1 - 1 / len(means)) * (means[fold] - others) ** 2
    return means[fold], np.sqrt(variances[fold]), _disagreement(means), own


def _of_mixture(means: Moments, variances: Moments) -> Parts:
    """The same of the mixture of all members, whose disagreement is a part of its variance."""
    disagreement = _disagreement(means)
    return means.mean(axis=0), np.sqrt(variances.mean(axis=0)), disagreement, disagreement


def pooled_rmse(forecasts: Sequence[BlockForecast]) -> float:
    """Root mean squared error over all blocks and outputs; infinite if a forecast overflows."""
    errors = np.concatenate([(each.truth - each.mean)[np.isfinite(each.truth)] for each in forecasts])
    return float(np.sqrt((errors**2).mean())) if np.isfinite(errors).all() else float("inf")
