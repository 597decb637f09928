"""What `ProDSSM` chooses from the data where a parameter is "auto", and why."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from prodssm._progress import Progress
from prodssm._validation import plain
from prodssm.data.batching import LEAD
from prodssm.data.folds import Block, folds
from prodssm.data.series import REGULAR_TOLERANCE, Series, part_of
from prodssm.data.splitting import without_blocks
from prodssm.estimators.physics import in_words
from prodssm.methods.base import Method
from prodssm.models.likelihoods.base import Likelihood
from prodssm.scoring.diagnostics import GaussianCheck
from prodssm.training.recipe import Recipe
from prodssm.training.subspace import LinearModel, identify

MEMBERS = 4  # of an ensemble whose members hold out different blocks
LONG = 5000  # time steps beyond which training uses windows and minibatches, and one member
LONG_WINDOW, LONG_BATCH = 200, 32
FEWEST_STEPS = 60  # for an ensemble
SIZES = (1, 2, 3, 4, 6, 8)  # of the ladder of linear models
FEWEST_STATES = 4  # of a network: what a linear model cannot express may need states of its own
QUIET = 2.0  # seconds before a bar is shown
TOLERANCE = 1.02  # a larger model must be better by so much
AUTO = "auto"
HIDDEN = (50,)
AUTO_RECIPE: dict[str, Any] = {"iterations": 400, "patience": 150, "variance_rate": 3.0, "free_run": 300}
LINEAR_RECIPE: dict[str, Any] = {"iterations": 200, "free_run": 0}
LONG_RECIPE: dict[str, Any] = {"iterations": 1500, "patience": 500, "free_run": 500}


NAMES = ("latent_dim", "hidden", "emission", "residual", "activation", "n_estimators")  # of parameters that may be "auto"


@dataclass(frozen=True)
class Choices:
    """The settings of a fit, chosen or given.

    Attributes:
        latent_dim: Number of states.
        hidden: Hidden layer sizes of the transition; () is a linear model.
        emission: "identity", "linear", "feedthrough", or hidden sizes.
        residual: Whether the transition is x + dt f(x).
        activation: Of the hidden units.
        n_estimators: Number of models.
        linear: Whether a linear part with point weights stands beside the network.
        held_out: Whether each model holds out blocks of the data, which say when to stop and how sure to be.
        window: Length of the windows of training, or "all".
        batch: Their number per step, or "all".
        linear_dim: Number of states of the linear model of the ladder; None without one.
        calibrated: Whether held-out blocks say how wide forecasts are.
        components: Of the mixture that answers, where `Moments(components="auto")` left it open; else None.
        reasons: Why, by name, for what was chosen.
        scores: RMSE of free runs over held-out blocks of the ladder of linear models, standardised, by (states, feedthrough).

    Example:
        >>> model.choices_.emission, model.choices_.reasons["n_estimators"]
        ('identity', 'the emission was given')
    """

    latent_dim: int
    hidden: Any
    emission: Any
    residual: bool
    activation: Any
    n_estimators: int
    linear: bool
    held_out: bool = False
    window: Any = "all"
    batch: Any = "all"
    linear_dim: int | None = None
    calibrated: bool = True
    components: int | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def automatic(self) -> bool:
        """Whether the emission was chosen, hence all of the training that follows from it."""
        return "emission" in self.reasons

    def recipe(self, defaults: Recipe) -> Recipe:
        """The defaults of training for these choices."""
        if not self.automatic:
            return defaults
        changes: dict[str, Any] = LONG_RECIPE if self.window != "all" else {}
        changes = AUTO_RECIPE | changes | ({} if self.hidden else LINEAR_RECIPE)
        return replace(defaults, **changes, window=self.window, batch=self.batch)

    @property
    def has_rival(self) -> bool:
        """Whether a model without hidden layers competes, on held-out blocks."""
        return "hidden" in self.reasons and self.held_out and self.linear and self.linear_dim is not None

    def for_likelihood(self, likelihood: Likelihood) -> "Choices":
        """The choices without what only Gaussian observations allow."""
        if likelihood.gaussian:
            return self
        name = type(likelihood).__name__
        why = f"factors on standard deviations are for Gaussian observations, not for {name}"
        if not likelihood.has_variance:
            why = f"{likelihood} has no variance, hence no skill, no check and no rival either"
        return replace(self, calibrated=False).because(calibrated=why)

    def for_method(self, method: Method) -> "Choices":
        """With the number of components of training, if it was left open."""
        if not method.automatic:
            return self
        return replace(self, components=1).because(components="one Gaussian is trained; a check afterwards chooses")

    def checked(self, checks: Mapping[int, GaussianCheck]) -> "Choices":
        """With the number of components that agrees with sampled futures, else the largest that was tried."""
        count, last = list(checks.items())[-1]
        found = [f"{each.trusted} with {'one Gaussian' if n == 1 else f'{n} components'}" for n, each in checks.items()]
        reason = f"steps of {len(last.mean_gap)} that agree with sampled futures: {', '.join(found)}"
        return replace(self, components=count).because(components=reason if last.holds else f"{reason}, so none holds")

    def without_hidden(self) -> "Choices":
        """The model without hidden layers that competes with the network."""
        assert self.linear_dim is not None
        return replace(self, hidden=(), latent_dim=self.linear_dim, linear=False)

    def because(self, **reasons: str) -> "Choices":
        """With other reasons."""
        return replace(self, reasons=self.reasons | reasons)

    def agrees_with(self, params: dict[str, Any]) -> bool:
        """Whether the parameters of an estimator, where they are not left to choice, are still those of the fit."""
        params = in_words(params)
        given = {name: plain(params[name]) for name in NAMES}
        return all(value in (AUTO, None) or value == getattr(self, name) for name, value in given.items())

    def words(self) -> dict[str, Any]:
        """As JSON can say it; the activation is stored with the parameters."""
        return {name: value for name, value in asdict(self).items() if name != "activation"}

    def __str__(self) -> str:
        """One line."""
        parts = [f"{name}={getattr(self, name)!r} ({reason})" for name, reason in self.reasons.items()]
        return "chosen from the data: " + "; ".join(parts) if parts else "nothing was left to choose"


def settings_given(params: dict[str, Any], outputs: int) -> Choices:
    """The settings of a fit that were all given by hand, without a linear part."""
    params = in_words(params)
    latent = params["latent_dim"]
    return Choices(
        latent_dim=outputs if latent in (None, AUTO) else latent,
        hidden=HIDDEN if params["hidden"] == AUTO else plain(params["hidden"]),
        emission="identity" if params["emission"] == AUTO else params["emission"],
        residual=params["residual"] is not False and params["residual"] != AUTO,
        activation=_activation(params["activation"], linear=False),
        n_estimators=1 if params["n_estimators"] == AUTO else params["n_estimators"],
        linear=False,
    )


def choose(
    series: list[Series], params: dict[str, Any], *, linear_start: bool, validated: bool, progress: bool = False
) -> Choices:
    """Settings for these data.

    Args:
        series: Standardised.
        params: The parameters of the estimator.
        linear_start: Whether training may start from a linear model.
        validated: Whether the user says what is held out.
        progress: Show a progress bar.
    """
    reasons: dict[str, str] = {}
    scores: dict[str, float] = {}
    choices: dict[str, Any] = {}
    params = in_words(params)
    outputs, steps = series[0].y.shape[1], sum(len(each) for each in series)
    emission, latent = plain(params["emission"]), plain(params["latent_dim"])
    automatic = emission == AUTO
    if automatic:
        latent, emission, scores, choices["linear_dim"] = _from_ladder(series, latent, reasons, progress)
    latent = outputs if latent in (None, AUTO) else latent
    hidden = plain(params["hidden"])
    if hidden == AUTO:
        hidden = HIDDEN
        reasons |= {"hidden": "the default"} if automatic else {}
    linear = linear_start and emission in ("linear", "feedthrough") and bool(hidden) and params.get("physics") is None
    residual = params["residual"]
    if residual == AUTO:
        irregular = any(_is_irregular(each) for each in series)
        residual = automatic or irregular
        reasons["residual"] = "time is irregular" if irregular else "the default for series" if automatic else "time is regular"
    count = plain(params["n_estimators"])
    if count == AUTO:
        count, reasons["n_estimators"] = _members(series, steps, automatic=automatic, validated=validated)
    held_out = automatic and not validated and steps >= FEWEST_STEPS and all(folds(series, MEMBERS)) and count <= MEMBERS
    if automatic and steps > LONG:
        choices |= {"window": min(LONG_WINDOW, max(len(each) for each in series)), "batch": LONG_BATCH}
        reasons |= dict.fromkeys(("window", "batch"), f"{steps} time steps")
    activation = _activation(params["activation"], linear=linear)
    if params["activation"] == AUTO:
        reasons["activation"] = "bounded, beside a linear part" if linear else "no linear part"
    parts = latent, hidden, emission, residual, activation, count, linear, held_out
    return Choices(*parts, **choices, reasons=reasons, scores=scores)


def _activation(given: Any, *, linear: bool) -> Any:
    """Units that saturate leave a stable linear part in charge far from the data, so that free runs do not explode."""
    if not (isinstance(given, str) and given == AUTO):
        return given
    return "erf" if linear else "relu"


def _members(series: list[Series], steps: int, *, automatic: bool, validated: bool) -> tuple[int, str]:
    if not automatic:
        return 1, "the emission was given"
    if validated:
        return 1, "what is held out was given"
    if steps > LONG:
        return 1, f"{steps} time steps are enough for one"
    if steps < FEWEST_STEPS or not all(folds(series, MEMBERS)):
        return 1, f"{steps} time steps are too few to hold some out"
    return MEMBERS, "each holds out other blocks"


def _is_irregular(series: Series) -> bool:
    steps = np.asarray(series.dt[:-1], float)
    return series.time is not None and bool((np.abs(steps / np.median(steps) - 1) > 10 * REGULAR_TOLERANCE).any())


def _from_ladder(
    series: list[Series], latent: Any, reasons: dict[str, str], progress: bool
) -> tuple[Any, str, dict[str, float], int | None]:
    """Number of states and emission from linear models, scored by free runs over the blocks that they did not see."""
    sizes = SIZES if latent in (None, AUTO) else (latent,)
    ladder = [(size, through) for size in sizes for through in ((False, True) if series[0].u is not None else (False,))]
    tried = {}
    with Progress("choosing", len(ladder), "model", shown=progress, delay=QUIET) as bar:
        for size, through in ladder:
            tried[size, through] = held_out_error(series, size, feedthrough=through)
            bar.update()
    scores = {
        f"{size} {'feedthrough' if through else 'linear'}": error
        for (size, through), error in tried.items()
        if np.isfinite(error)
    }
    best = min(tried.values())
    if not np.isfinite(best):
        reasons["emission"] = "too few data for a linear model"
        if latent in (None, AUTO):
            latent = max(series[0].y.shape[1], FEWEST_STATES)
            reasons["latent_dim"] = "too few data for a linear model"
        return latent, "linear", scores, None
    size, through = next(key for key, error in tried.items() if error <= TOLERANCE * best)
    reasons["emission"] = "controls act on the output at once" if through else "linear models predict well through it"
    if latent in (None, AUTO):
        latent = max(size, series[0].y.shape[1], FEWEST_STATES)
        reasons["latent_dim"] = f"a linear model needs {size}"
    return latent, "feedthrough" if through else "linear", scores, size


def held_out_error(series: list[Series], size: int, *, feedthrough: bool) -> float:
    """RMSE of free runs of linear models over the blocks that they did not see; infinite if there are too few data."""
    errors = []
    for blocks in folds(series, MEMBERS):
        model = identify(without_blocks(series, blocks), size, feedthrough=feedthrough) if blocks else None
        if model is None:
            return float("inf")
        errors += [_errors(model, series, block) for block in blocks[:: max(1, len(blocks) // 50)]]
    return float(np.sqrt(np.concatenate(errors).var() + np.concatenate(errors).mean() ** 2))


def _errors(model: LinearModel, series: Sequence[Series], block: Block) -> np.ndarray:
    begin = max(0, block.begin - LEAD)
    mean, _ = model.forecast(part_of(series[block.series], begin, block.end), block.begin - begin)
    error = np.asarray(series[block.series].y[block.begin : block.end], float) - mean
    return error[np.isfinite(error)]
