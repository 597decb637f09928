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


@dataclass(frozen=True)
class BlockForecast:
    """The forecast of the observations of one block from those before it, in standardised units.

    Attributes:
        block: The block.
        fold: Index of the fold that it belongs to.
        truth: The observations; NaN is missing.
        mean: Their predicted means.
        std: Their predicted standard deviations.
    """

    block: Block
    fold: int
    truth: Float[np.ndarray, "n y"]
    mean: Float[np.ndarray, "n y"]
    std: Float[np.ndarray, "n y"]

    @property
    def horizons(self) -> Float[np.ndarray, " n"]:
        """Steps ahead."""
        return np.arange(1.0, len(self.truth) + 1)


def forecast_blocks(
    members: Sequence[FittedModel], series: list[Series], folds: Sequence[Sequence[Block]], *, out_of_fold: bool
) -> list[BlockForecast]:
    """Forecasts of all blocks, with the standard deviations of the mixture of the members.

    Args:
        members: The models of an ensemble.
        series: Standardised.
        folds: Sets of blocks; with `out_of_fold` the n-th member has held out the n-th of them.
        out_of_fold: Whether the means are those of the member that has held a block out, else those of the mixture.
    """
    found = []
    for fold, blocks in enumerate(folds[: len(members)] if out_of_fold else folds):
        batch = SeriesBatch.of_blocks(series, blocks)
        assert batch.given is not None
        answers = [free_runs(member.recursion, batch.record, batch.given) for member in members]
        means = np.stack([np.asarray(mean, float) for mean, _ in answers])
        variances = np.stack([np.diagonal(np.asarray(cov, float), axis1=-2, axis2=-1) for _, cov in answers])
        std = np.sqrt(variances.mean(axis=0) + means.var(axis=0))
        mean = means[fold] if out_of_fold else means.mean(axis=0)
        for row, block in enumerate(blocks):
            end = int(np.asarray(batch.record.length)[row])
            at = slice(end - (block.end - block.begin), end)
            truth = np.asarray(series[block.series].y[block.begin : block.end], float)
            found.append(BlockForecast(block, fold, truth, mean[row, at], std[row, at]))
    return found


def pooled_rmse(forecasts: Sequence[BlockForecast]) -> float:
    """Root mean squared error over all blocks and outputs; infinite if a forecast overflows."""
    errors = np.concatenate([(each.truth - each.mean)[np.isfinite(each.truth)] for each in forecasts])
    return float(np.sqrt((errors**2).mean())) if np.isfinite(errors).all() else float("inf")
