"""Splits of the data into training and validation data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import numpy as np

from prodssm._validation import require_number
from prodssm.data.batching import SeriesBatch
from prodssm.data.folds import Block
from prodssm.data.series import Series, first_steps

MIN_WHOLE_SERIES = 5  # number of series from which on validation data are whole series rather than the ends of all


class Split(NamedTuple):
    """Training series, the validation data, if any, with a mask of the observations to score, and blocks that are held out."""

    training: list[Series]
    validation: SeriesBatch | None
    held_out: Sequence[Block] = ()

    @classmethod
    def by_fraction(cls, series: list[Series], fraction: Any, seed: Any) -> "Split":
        """Hold out a fraction as validation data: whole series if there are many, else the end of each.

        Args:
            series: The data.
            fraction: Fraction of the series, or of the time steps of each; 0 holds nothing out.
            seed: Seed of the choice of whole series.
        """
        require_number("validation", fraction)
        if not 0 <= fraction < 1:
            raise ValueError(f"validation must be a fraction between 0 and 1, got {fraction}")
        if not fraction:
            return cls(series, None)
        if len(series) >= MIN_WHOLE_SERIES:
            order = np.random.default_rng(seed).permutation(len(series))
            count = min(max(1, round(fraction * len(series))), len(series) - 1)
            return cls([series[n] for n in order[count:]], SeriesBatch.stack([series[n] for n in order[:count]]))
        cuts = [max(2, round((1 - fraction) * len(each))) for each in series]
        training = [first_steps(each, cut) for each, cut in zip(series, cuts, strict=True)]
        return cls(training, SeriesBatch.stack(series, begin=cuts))

    @classmethod
    def by_slice(cls, series: list[Series], steps: slice) -> "Split":
        """Hold out the same time steps of each series; in the training data their observations are missing values."""
        begin, end = zip(*(_bounds(steps, len(each)) for each in series), strict=True)
        training = [with_gaps(each, [(first, last)]) for each, first, last in zip(series, begin, end, strict=True)]
        return cls(training, SeriesBatch.stack(series, begin, end))

    @classmethod
    def by_blocks(cls, series: list[Series], blocks: Sequence[Block], among: Sequence[Sequence[Block]] = ()) -> "Split":
        """Hold out blocks, which are scored in a free run from what precedes them; in the training data they are missing.

        Args:
            series: The data.
            blocks: What is held out.
            among: All sets of blocks that are held out in turn.
        """
        return cls(without_blocks(series, blocks), SeriesBatch.of_blocks(series, blocks, among), blocks)

    @classmethod
    def by_series(cls, series: list[Series], validation_series: list[Series]) -> "Split":
        """Train on all of `series` and validate on others."""
        return cls(series, SeriesBatch.stack(validation_series))


def without_blocks(series: Sequence[Series], blocks: Sequence[Block]) -> list[Series]:
    """The series with the observations of these blocks as missing values."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for n, begin, end in blocks:
        spans.setdefault(n, []).append((begin, end))
    return [with_gaps(each, spans[n]) if n in spans else each for n, each in enumerate(series)]


def with_gaps(series: Series, spans: Sequence[tuple[int, int]]) -> Series:
    """Mark the observations from the first to the last time step (exclusive) of each span as missing."""
    y = np.array(series.y)  # one copy: a long series has blocks in proportion to its length
    for begin, end in spans:
        y[begin:end] = np.nan
    return eqx.tree_at(lambda s: s.y, series, y)


def _bounds(steps: slice, length: int) -> tuple[int, int]:
    """First and last (exclusive) time step of a slice of a series of this length."""
    try:
        begin, end, step = steps.indices(length)
    except TypeError as error:
        raise TypeError(f"validation_data must be a slice with integer bounds, got {steps}") from error
    if step != 1 or not begin < end or end - begin == length:
        raise ValueError(
            f"validation_data must be a slice of consecutive time steps that leaves others to train on, got {steps} of {length}"
        )
    return begin, end
