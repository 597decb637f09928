"""Folds: blocks of time steps, or whole series of a panel, that the members of an ensemble hold out in turn."""

from typing import NamedTuple

from prodssm.data.series import Series

LONGEST_CONTEXT = 50  # observations before the first block, and those of a held-out series that are not scored
LONGEST_BLOCK = 250
BLOCKS_PER_FOLD = 2  # of one series, as long as blocks are not too short or too long for it
SHORTEST_BLOCK = 40
LONGEST_WHOLE = 2000  # time steps of a series of a panel that is held out whole
MOST_HELD_OUT = 0.1  # of a series so long that its blocks have their greatest length


class Block(NamedTuple):
    """Consecutive time steps of one series of a list.

    Attributes:
        series: Index of the series.
        begin: First time step.
        end: End, exclusive.
    """

    series: int
    begin: int
    end: int


def folds(series: list[Series], count: int) -> list[list[Block]]:
    """So many disjoint sets of blocks to hold out.

    Of at least twice as many series, none of which is long, each fold has whole ones, after a context that is known; else it
    has blocks of every series.
    """
    lengths = [len(each) for each in series]
    if len(series) >= 2 * count and max(lengths) <= LONGEST_WHOLE:
        return [[Block(n, context(lengths[n]), lengths[n]) for n in range(k, len(series), count)] for k in range(count)]
    found: list[list[Block]] = [[] for _ in range(count)]
    for n, length in enumerate(lengths):
        for position, (begin, end) in enumerate(_blocks(length, count)):
            found[position % count].append(Block(n, begin, end))
    return found


def context(length: int) -> int:
    """How many observations of a series are known before it is predicted."""
    return max(1, min(LONGEST_CONTEXT, length // 4))


def _blocks(length: int, count: int) -> list[tuple[int, int]]:
    """Blocks of a series that follow each other, or are spread over it if it is long."""
    first = max(1, min(LONGEST_CONTEXT, length // 8))
    room = length - first
    number = count * BLOCKS_PER_FOLD if room >= count * BLOCKS_PER_FOLD * SHORTEST_BLOCK else count
    size = room // number
    if size > LONGEST_BLOCK:
        number = max(number, int(MOST_HELD_OUT * room / LONGEST_BLOCK) // count * count)
        size = LONGEST_BLOCK
    if size < 1:
        return []
    starts = [first + n * room // number for n in range(number)]
    return [(begin, begin + size) for begin in starts]
