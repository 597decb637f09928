"""What data say about a fitted model: skill and calibration on held-out blocks, residuals, scores, the Gaussian assumption."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from prodssm._validation import require_integer
from prodssm.beliefs.mixture_scores import mixture_moments
from prodssm.data.folds import Block, folds
from prodssm.data.layout import Layout
from prodssm.data.scaling import DataScaling
from prodssm.data.series import Series
from prodssm.estimators.calibration import Calibration
from prodssm.estimators.checking import check_model
from prodssm.estimators.choices import MEMBERS, Choices
from prodssm.estimators.ensemble import stacked
from prodssm.estimators.fitted import FittedModel, require_fit
from prodssm.estimators.held_out import forecast_blocks, prolonged
from prodssm.estimators.parameters import require_no_target
from prodssm.estimators.residuals import residuals_of
from prodssm.estimators.skill import Skill, calibrated_out_of_fold, in_standard_deviations, measure_skill
from prodssm.models.likelihoods.base import Likelihood
from prodssm.scoring.diagnostics import GaussianCheck


class Assessing:
    """The part of `ProDSSM` that is about how good it is."""

    members_: tuple[FittedModel, ...]
    choices_: Choices
    scaling_: DataScaling
    layout_: Layout | None
    skill_: Skill | None
    calibration_: Calibration | None
    output_names_: Any  # a property of the estimator
    filter: Callable[[Any], Any]
    _checked_likelihood: Callable[[], Likelihood]
    _series: Callable[[Any], list[Series]]
    _known: Callable[[Any], list[Series]]
    _one: Callable[[Any], Series]
    _panel: Callable[[Any, Sequence[Any], Sequence[Series]], Any]
    _require_fit: Callable[[], None]
    _tell: Callable[[str], None]

    def _evaluate(self, series: list[Series], blocks: list[list[Block]]) -> None:
        """Skill on held-out blocks, and the calibration that follows from them; without any, skill on the training data."""
        # A member that was left out would leave the others with folds that they were trained on.
        held_out = self.choices_.held_out and len(self.members_) == self.choices_.n_estimators
        blocks = [each for each in blocks if each]
        if not blocks:
            return
        if held_out:
            runs = forecast_blocks(self.members_, series, prolonged(series, blocks), out_of_fold=True)
            ends = [block.end - block.begin for group in blocks[: len(self.members_)] for block in group]
            found = [run.first_steps(end) for run, end in zip(runs, ends, strict=True)]
            if self.choices_.calibrated:
                rules = [Calibration.fit(each) for each in (found, runs)]
                self.calibration_ = rules[0].at_least(rules[1])
                found = calibrated_out_of_fold(found)
        else:
            found = forecast_blocks(self.members_, series, blocks, out_of_fold=False)
        if not self._checked_likelihood().scaled:
            found, series = in_standard_deviations(found, series)
        size, through = self.choices_.linear_dim or self.choices_.latent_dim, self.choices_.emission == "feedthrough"
        self.skill_ = measure_skill(found, series, blocks, linear=size, feedthrough=through, in_sample=not held_out)
        self._tell(str(self.skill_))
        if self.skill_.worse_than and held_out:
            better = " and ".join(self.skill_.worse_than)
            warnings.warn(f"on held-out data {better} predicts better than this model, see skill_", UserWarning, stacklevel=3)

    def calibrate(self, data: Any) -> Any:
        """Let data that the model was not trained on say how wide its forecasts must be, horizon by horizon.

        Blocks of the data are forecast from what precedes them. What `fit` has found out from blocks that it held out is
        replaced. Results say that they are calibrated.

        Args:
            data: One or many series like those of `fit`.

        Example:
            >>> model.calibrate(y).forecast(y, steps=3).calibrated
            True
        """
        require_fit(self)
        if not self._checked_likelihood().gaussian:
            raise ValueError(f"calibrate {self.choices_.reasons['calibrated']}")
        series = [self.scaling_.transform_series(each) for each in self._series(data)]
        blocks = [each for each in folds(series, MEMBERS) if each]
        if not blocks:
            raise ValueError(f"data must have series of at least {MEMBERS + 1} time steps, got {max(map(len, series))}")
        self.calibration_ = Calibration.fit(forecast_blocks(self.members_, series, blocks, out_of_fold=False))
        return self

    def residuals(self, data: Any) -> Any:
        """Standardised one-step residuals: `.values`, an anomaly `.score`, `.to_frame()`, `.plot()`.

        Each observation is compared with its prediction from those before it; the first one with the initial belief. With
        several models the prediction has the moments of their mixture, calibrated like forecasts of one step.

        Args:
            data: One series, or several, as for `filter`.
        """
        series = self._known(data)
        found = []
        for each in series:
            parts = [member.one_step_ahead(each) for member in self.members_]
            if self.calibration_ is not None:
                parts = self.calibration_.apply_to_predictions(parts)
            mean, cov = mixture_moments(*(stacked([getattr(one, name) for one in parts]) for name in ("mean", "cov")))
            origin = each.stamps, self.layout_, getattr(each, "label", None)
            found.append(residuals_of(np.asarray(each.y, float), mean, cov, self.output_names_, origin))
        return self._panel(data, found, series)

    def score(self, data: Any, y: Any = None) -> float:
        """Mean log predictive density per observed value, one step ahead; the first time step of a series is not scored."""
        require_no_target(y)
        self._require_fit()
        total, count = 0.0, 0
        for series in self._series(data):
            total += float(self.filter(series).log_evidence[1:].sum())
            count += int((~np.isnan(series.y[1:])).sum())
        if not count:
            raise ValueError("data must have observations after the first of a series, to be scored")
        return total / count

    def check(self, data: Any, steps: int = 20, samples: int = 4000) -> GaussianCheck:
        """Check the Gaussian assumption: the deterministic forecast against futures sampled from the same model.

        It says nothing about whether the model fits the data. With several models the first one is checked. If one Gaussian
        does not hold, mixtures of 2, 4, 8 and 16 are tried until one does; each is compiled anew.

        Args:
            data: A series; the forecast is of its last `steps` observations, so that their controls are known.
            steps: Number of steps ahead.
            samples: Number of sampled futures.

        Returns:
            Differences per step and output, a `.verdict` in words, and the number of `.components` that holds at all steps.
        """
        require_integer("steps", steps, least=1)
        require_integer("samples", samples, least=10)
        series = self._one(data)
        if len(series) < steps + 2:
            raise ValueError(f"data must have at least {steps + 2} observations for {steps} steps, got {len(series)}")
        return check_model(self.members_[0], self.scaling_.transform_series(series), steps, samples)
