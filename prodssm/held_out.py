"""What is held out of series, for training to be judged by."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from prodssm.batches import Data
from prodssm.checks import require_number
from prodssm.series import Series
from prodssm.training import Recipe

MANY = 5  # series from which on whole ones are held out


class Split(NamedTuple):
    """Series to learn from, what training is judged by, and both together."""

    training: list[Series]
    judged: Data | None
    everything: list[Series]

    @classmethod
    def by_share(cls, series: list[Series], share: Any, seed: Any) -> "Split":
        """Hold out a share: whole series if there are many, else the end of each."""
        require_number("validation", share)
        if not 0 <= share < 1:
            raise ValueError(f"validation must be a share between 0 and 1, got {share}")
        if not share:
            return cls(series, None, series)
        if len(series) >= MANY:
            order = np.random.default_rng(seed).permutation(len(series))
            count = min(max(1, round(share * len(series))), len(series) - 1)
            return cls([series[n] for n in order[count:]], Data.of([series[n] for n in order[:count]]), series)
        cuts = [max(2, round((1 - share) * len(each))) for each in series]
        return cls([beginning(each, cut) for each, cut in zip(series, cuts, strict=True)], Data.of(series, begin=cuts), series)

    @classmethod
    def by_slice(cls, series: list[Series], held_out: slice) -> "Split":
        """Hold out the same time steps of each series, which are then as if they were not observed."""
        begin, end = zip(*(_stretch(held_out, len(each)) for each in series), strict=True)
        return cls([_gap(*each) for each in zip(series, begin, end, strict=True)], Data.of(series, begin, end), series)

    @classmethod
    def by_others(cls, series: list[Series], others: list[Series]) -> "Split":
        """Judge by series of their own."""
        return cls(series, Data.of(others), [*series, *others])

    def require_observations(self, recipe: Recipe, share: Any) -> None:
        """Something to learn from, and something to judge by where anything is held out, at all horizons that are asked for.

        Args:
            recipe: How it is learned.
            share: The share that is held out; zero if it was not chosen by a share.
        """
        learned = Data.of(self.training)
        if not learned.observed:
            rest = f" that validation={share} leaves; give more data, or a smaller share" if share else ""
            raise ValueError(f"data must have observations after the first of a series, to learn from{rest}")
        if missed := learned.missed(recipe.objective, recipe.window):
            longest, horizons = min(learned.frames.dt.shape[1], recipe.window or np.inf), recipe.objective.horizons
            raise ValueError(
                f"horizons must reach observations to learn from, got {horizons} of which none of {missed} does "
                f"in series or windows of at most {longest} steps; give shorter horizons, longer windows, or more data"
            )
        if self.judged is None:
            return
        held_out = f"validation={share} holds out" if share else "is held out"
        if not self.judged.observed:
            raise ValueError(f"what {held_out} must have observations after the first of a series; give more data")
        if missed := self.judged.missed(recipe.judge):
            name = "horizons" if recipe.judged is None else "validation_horizons"
            longest = self.judged.frames.dt.shape[1]
            raise ValueError(
                f"{name} must reach observations of what {held_out}, got {recipe.judge.horizons} of which none of {missed} "
                f"does in series of at most {longest} steps; give shorter validation_horizons, or more data"
            )


def _gap(series: Series, begin: int, end: int) -> Series:
    """A series of which a stretch was not observed."""
    return eqx.tree_at(lambda s: s.y, series, series.y.at[begin:end].set(jnp.nan))


def _stretch(held_out: slice, length: int) -> tuple[int, int]:
    """Where a slice of a series of this length begins and ends."""
    try:
        begin, end, step = held_out.indices(length)
    except TypeError as error:
        raise TypeError(f"held_out must be a slice of whole numbers, got {held_out}") from error
    if step != 1 or not begin < end or end - begin == length:
        raise ValueError(f"held_out must be a slice of neighbouring time steps that leaves others, got {held_out} of {length}")
    return begin, end


def beginning(series: Series, length: int) -> Series:
    """The beginning of a series; unlike a series of its own it may have no observations of some channel."""
    return jax.tree.map(lambda column: column[:length], series)
