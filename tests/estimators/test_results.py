"""Forecasts have the quantiles and densities of their Gaussians; outcomes and names follow the columns of a frame."""

import numpy as np
import pandas as pd
import pytest
from oracles import array, close, root_eps
from scipy.stats import multivariate_normal, norm

from prodssm.data.layout import Layout
from prodssm.estimators.results import Decomposition, Prediction, Transition, output_names
from prodssm.scoring import metrics

STEPS = 5


def make_prediction(seed=0, layout=None, scale=1.0):
    """A forecast of two outputs and three states."""
    rng = np.random.default_rng(seed)
    roots, state_roots = rng.normal(size=(STEPS, 2, 2)), rng.normal(size=(STEPS, 3, 3))
    cov, state_cov = (scale * root @ root.swapaxes(1, 2) for root in (roots, state_roots))
    parts = Decomposition(*(part * np.diagonal(cov, axis1=1, axis2=2) for part in (0.2, 0.5, 0.3)))
    mean, state_mean = rng.normal(size=(STEPS, 2)), rng.normal(size=(STEPS, 3))
    return Prediction(*map(array, (mean, cov, state_mean, state_cov)), lambda: parts, layout)


def test_quantiles_and_intervals_are_those_of_the_normal_distribution():
    found = make_prediction()
    mean, std = np.asarray(found.mean, float), np.sqrt(np.diagonal(np.asarray(found.cov, float), axis1=1, axis2=2))
    assert close(found.std, std)
    for probability in (0.01, 0.5, 0.9):
        assert close(found.quantile(probability), norm.ppf(probability, mean, std), scale=3)
    for end, probability in zip(found.interval(0.8), (0.1, 0.9), strict=True):
        assert close(end, norm.ppf(probability, mean, std), scale=3)


def test_log_prob_is_the_joint_density_of_the_outputs_of_a_step():
    found, y = make_prediction(), np.random.default_rng(1).normal(size=(STEPS, 2))
    pairs = list(zip(y, np.asarray(found.mean, float), np.asarray(found.cov, float), strict=True))
    wanted = np.array([multivariate_normal.logpdf(*row) for row in pairs])
    assert close(found.log_prob(y), wanted, scale=10)
    assert np.isclose(-np.mean(found.log_prob(y)), metrics.nll(y, found.mean, found.cov), rtol=10 * root_eps(found.mean))
    y[1, 0], y[2] = np.nan, np.nan
    _, mean, cov = pairs[1]
    wanted[1], wanted[2] = norm.logpdf(y[1, 1], mean[1], cov[1, 1] ** 0.5), 0.0  # the rest of a step, or nothing
    assert close(found.log_prob(y), wanted, scale=10)


def test_outcomes_may_be_a_frame_with_its_columns_in_any_order():
    found, y = make_prediction(layout=Layout(("a", "b"), backend="pandas")), np.random.default_rng(1).normal(size=(STEPS, 2))
    frame = pd.DataFrame(y, columns=["a", "b"])
    for truth in (frame, frame[["b", "a"]]):
        assert np.array_equal(found.log_prob(truth), found.log_prob(y))


def test_bad_outcomes_and_probabilities_are_refused():
    found, y = make_prediction(), np.zeros((STEPS, 2))
    with pytest.raises(ValueError, match=r"y must have shape \(5, 2\)"):
        found.log_prob(y[:3])
    with pytest.raises(ValueError, match="infinite"):
        found.log_prob(y + np.inf)
    with pytest.raises(ValueError, match="positive variance have a density"):
        make_prediction(scale=0.0).log_prob(y)
    for wrong in (0.0, 1.0, 1.5, np.nan, 95.0):
        for question in (found.quantile, found.interval):
            with pytest.raises(ValueError, match="probability must"):
                question(wrong)


def test_outputs_are_named_by_the_frame_of_fit_or_by_number():
    assert make_prediction().names == output_names(None, 2) == ("y0", "y1")
    named = make_prediction(layout=Layout(("level", "flow"), backend="pandas"))
    assert named.names == ("level", "flow")
    assert list(named.to_frame().columns[:3]) == ["step", "level_mean", "level_std"]
    frame = make_prediction().to_frame("pandas", probability=0.5)
    assert list(frame["step"]) == [1, 2, 3, 4, 5]
    assert close(array(frame["y1_upper"]), make_prediction().interval(0.5)[1][:, 1])


def test_a_forecast_decomposes_on_request():
    found = make_prediction()
    parts = found.decompose()
    assert np.allclose(parts.epistemic + parts.aleatoric + parts.measurement, found.std**2, rtol=1e-5)


def test_standard_deviations_of_a_transition_are_the_roots_of_its_variances():
    assert close(Transition(array([[0.0]]), array([[4.0]])).std, np.array([[2.0]]))
