"""The default recipes of `DeepStochasticRegressor`, by the number of rows."""

from dataclasses import replace
from typing import Any

from prodssm.training.loop import CHUNK
from prodssm.training.recipe import SERIES_RECIPE, Recipe

ITERATIONS = 3000  # at least, by default
PASSES = 50  # over all rows, if that is more
MOST_VALIDATION_ROWS = 1000  # more would cost time and hardly change the score
FEWEST_ROWS = 10  # that are split into training and validation rows
ROWS_RECIPE = replace(SERIES_RECIPE, prior_weight="auto", batch=32, validation=0.2, fine_tune=200)
# The start is good already, and only validation rows can say how much longer to train: without any, one chunk of iterations.
FEW_ROWS_RECIPE = replace(ROWS_RECIPE, batch="all", learning_rate=0.005, prior_weight=0.1)
FEW_ROWS_ITERATIONS = 300
SERIES_ONLY = ("warm_up", "variance_rate", "objective", "horizons", "stride", "window", "validation_horizons")
SERIES_ONLY += ("calibrate", "linear_start", "free_run", "context", "validation_score")


def require_rows_recipe(recipe: Any) -> None:
    """Raise if a recipe has settings of series."""
    refused = [name for name in SERIES_ONLY if getattr(recipe, name, None) is not None]
    if isinstance(recipe, Recipe) and refused:
        raise ValueError(f"{refused[0]} is a setting of series; a regressor has none, leave it None")


def defaults_for(fourier: bool) -> Recipe:
    """The defaults after a start from Fourier features, or without one; `recipe_for` replaces iterations and patience."""
    return replace(FEW_ROWS_RECIPE if fourier else ROWS_RECIPE, iterations=ITERATIONS, patience=1)


def recipe_for(rows: int, given: Recipe, filled: Recipe, fourier: bool) -> Recipe:
    """The recipe for so many rows.

    Args:
        rows: Number of rows, validation included.
        given: The user's recipe.
        filled: The same with defaults.
        fourier: Whether training starts from Fourier features.
    """
    default = max(ITERATIONS, -(-PASSES * rows // (filled.batch_size or rows)))
    if fourier:
        default = FEW_ROWS_ITERATIONS if validation_rows(rows, filled) else CHUNK
    iterations = default if given.iterations is None else filled.iterations
    assert iterations is not None
    patience = max(1, iterations // 5) if given.patience is None else filled.patience
    return replace(filled, iterations=iterations, patience=patience if filled.validation else iterations + 1)


def validation_rows(rows: int, recipe: Recipe) -> int:
    """How many rows each member does not train on."""
    if rows < FEWEST_ROWS or not recipe.validation:
        return 0
    return min(max(1, round(recipe.validation * rows)), rows - 1, MOST_VALIDATION_ROWS)
