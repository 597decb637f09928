"""Which observations a likelihood allows: errors that name the output, what was expected and what came."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from prodssm._validation import values_of


def require_counts(name: str, y: Any, names: Sequence[str] | None) -> None:
    """Raise unless all observed values are 0, 1, 2, ..."""
    _require(name, y, names, lambda values: (values >= 0) & (values == np.floor(values)), "counts 0, 1, 2, ...")


def require_labels(name: str, y: Any, names: Sequence[str] | None) -> None:
    """Raise unless all observed values are 0 or 1."""
    _require(name, y, names, lambda values: (values == 0) | (values == 1), "labels 0 and 1")


def _require(name: str, y: Any, names: Sequence[str] | None, allows: Any, wanted: str) -> None:
    values = values_of(y)
    if values is None:
        return
    wrong = ~(np.isnan(values) | allows(values))
    if wrong.any():
        time, output = (int(n) for n in np.argwhere(wrong)[0])
        which = f"y{output}" if names is None else names[output]
        raise ValueError(
            f"data must be {wanted} for the likelihood {name}, got {values[time, output]:g} in {which} at row {time}"
        )
