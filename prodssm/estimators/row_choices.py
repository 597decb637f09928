"""What `DeepStochasticRegressor` chooses from the number of rows where a parameter is "auto", and why."""

from dataclasses import asdict, dataclass, field
from typing import Any

from prodssm._validation import plain
from prodssm.estimators.choices import AUTO

FEW_ROWS = 300  # below which a layer of Fourier features is the start; its evidence costs the cube of the rows
LAYERS: dict[str, Any] = {"hidden": (40,), "steps": 5, "activation": "relu"}
FEW_ROWS_LAYERS: dict[str, Any] = {"hidden": (100,), "steps": 1, "activation": "sin"}


@dataclass(frozen=True)
class RowChoices:
    """The layers of a fit, chosen or given.

    Attributes:
        hidden: Hidden layer sizes.
        steps: Number of transitions.
        activation: Of the hidden units.
        fourier: Whether training starts from Bayesian linear regression on random Fourier features.
        reasons: Why, by name, for what was chosen.
    """

    hidden: tuple[int, ...]
    steps: int
    activation: Any
    fourier: bool = False
    reasons: dict[str, str] = field(default_factory=dict)

    def agrees_with(self, params: dict[str, Any]) -> bool:
        """Whether the parameters of an estimator, where they are not left to choice, are still those of the fit."""
        given = {name: plain(params[name]) for name in LAYERS}
        return all(is_auto(value) or value == getattr(self, name) for name, value in given.items())

    def words(self) -> dict[str, Any]:
        """As JSON can say it; an activation that was given is stored with the parameters."""
        found = asdict(self)
        return found if "activation" in self.reasons else found | {"activation": None}

    @classmethod
    def restored(cls, words: dict[str, Any] | None, params: dict[str, Any]) -> "RowChoices":
        """The choices of a file; in one from before there were any, all was given."""
        given = {name: plain(params[name]) for name in LAYERS}
        if words is None:
            return cls(**given)
        stored = words | {"hidden": plain(words["hidden"])}
        return cls(**stored) if words["activation"] is not None else cls(**(stored | {"activation": given["activation"]}))

    def __str__(self) -> str:
        """One line."""
        parts = [f"{name}={getattr(self, name)!r} ({reason})" for name, reason in self.reasons.items()]
        return "chosen from the data: " + "; ".join(parts) if parts else "nothing was left to choose"


def choose_layers(rows: int, params: dict[str, Any]) -> RowChoices:
    """The layers for so many rows: what is given is kept, and Fourier features must fit it to be chosen.

    Args:
        rows: Number of training rows, validation included.
        params: The parameters of the estimator.
    """
    given = {name: plain(params[name]) for name in LAYERS if not is_auto(params[name])}
    fourier = rows < FEW_ROWS and len(given) < len(LAYERS) and _fit_features(given)
    reason = f"few rows, {rows}" if fourier else f"many rows, {rows}"
    if rows < FEW_ROWS and not fourier:
        reason = "what was given leaves no room for Fourier features"
    chosen = {name: value for name, value in (FEW_ROWS_LAYERS if fourier else LAYERS).items() if name not in given}
    return RowChoices(**given, **chosen, fourier=fourier, reasons=dict.fromkeys(chosen, reason))


def _fit_features(given: dict[str, Any]) -> bool:
    """Whether what was given leaves room for one transition with one hidden layer of sines."""
    one_layer = "hidden" not in given or (isinstance(given["hidden"], tuple) and len(given["hidden"]) == 1)
    return one_layer and given.get("steps", 1) == 1 and given.get("activation", "sin") == "sin"


def is_auto(value: Any) -> bool:
    """Whether a parameter is left to choice."""
    return isinstance(value, str) and value == AUTO
