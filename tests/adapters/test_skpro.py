"""The regressor passes skpro's checks, and says what `DeepStochasticRegressor` says."""

import sys

import numpy as np
import pandas as pd
import pytest
from checks import require_passed
from skpro.metrics import CRPS
from skpro.utils.estimator_checks import check_estimator

import prodssm as ps
from prodssm.adapters.mixtures import Components, GaussianMixture
from prodssm.adapters.skpro import DeepStochasticProbaRegressor
from prodssm.beliefs.mixture_scores import mixture_crps

SMALL = {"hidden": (), "noise_hidden": (), "steps": 1, "n_estimators": 2}
SMALL |= {"recipe": ps.Recipe(iterations=5, prior_weight=0.1, validation=0.0)}
QUICK_CHECKS = [
    "test_constructor",
    "test_clone",
    "test_set_params_sklearn",
    "test_valid_object_tags",
    "test_input_output_contract",
    "test_pred_quantiles_interval",
]


def rows(count=30, targets=("heat", "cost")):
    """Inputs with names that scikit-learn would refuse, and targets that are not in alphabetical order."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(count, 2)), columns=["area", 7], index=range(100, 100 + count))
    noise = rng.normal(size=(count, len(targets)))
    return X, pd.DataFrame(X.to_numpy() @ rng.normal(size=(2, len(targets))) + noise, X.index, list(targets))


@pytest.fixture(scope="module")
def fitted():
    """A regressor and a model, fitted to the same rows."""
    X, y = rows()
    model = ps.DeepStochasticRegressor(**SMALL).fit(X.to_numpy(), y.to_numpy())
    return DeepStochasticProbaRegressor(**SMALL).fit(X, y), model


def test_predictions_are_those_of_the_model(fitted):
    regressor, model = fitted
    X, _ = rows()
    mean, std = model.predict(X.to_numpy(), return_std=True)
    found = regressor.predict(X)
    assert found.index.equals(X.index)
    assert list(found.columns) == ["heat", "cost"]
    assert np.allclose(found, mean, rtol=1e-12)
    assert np.allclose(regressor.predict_var(X), std**2, rtol=1e-12)
    distribution = regressor.predict_proba(X)
    assert np.allclose(distribution.mean(), mean, rtol=1e-12)
    assert np.allclose(distribution.var(), std**2, rtol=1e-12)
    quantiles = regressor.predict_quantiles(X, alpha=[0.1, 0.8])
    assert np.allclose(distribution.cdf(quantiles.xs(0.8, axis=1, level=1)), 0.8)
    ends = regressor.predict_interval(X, coverage=0.6)
    assert np.allclose(ends.xs("upper", axis=1, level=2).droplevel(1, axis=1), quantiles.xs(0.8, axis=1, level=1))


def test_a_single_target_has_the_density_of_the_model():
    X, y = rows(targets=("heat",))
    regressor = DeepStochasticProbaRegressor(**SMALL).fit(X, y["heat"])
    assert isinstance(regressor.predict(X), pd.Series)
    wanted = regressor.model_.log_prob(X.to_numpy(), y.to_numpy())
    assert np.allclose(regressor.predict_proba(X).log_pdf(y).to_numpy()[:, 0], wanted)
    with pytest.raises(ValueError, match="NaN"):
        regressor.predict(X.where(X > 0))


def test_mixtures_have_exact_moments_and_scores():
    rng = np.random.default_rng(1)
    found = Components(1e4 + rng.normal(size=(3, 4, 2)), np.exp(rng.normal(size=(3, 4, 2))))
    index, columns = pd.period_range("2020-01", periods=4, freq="M"), pd.Index(["b", "a"])
    mixture = found.distribution(index, columns)
    assert np.allclose(mixture.var(), found.var, rtol=1e-12)
    y = pd.DataFrame(1e4 + rng.normal(size=(4, 2)), index, columns)
    wanted = mixture_crps(y.to_numpy(), found.means, found.stds)
    energy = mixture.energy(y) - 0.5 * mixture.energy()
    assert np.allclose(energy.to_numpy()[:, 0], wanted.sum(axis=1))
    assert np.isclose(CRPS()(y, mixture), wanted.mean())
    part = mixture.loc[index[1:3], ["a"]]
    assert isinstance(part, GaussianMixture)
    assert np.allclose(part.energy(y.loc[index[1:3], ["a"]]) - 0.5 * part.energy(), wanted[1:3, 1:])
    scalar = mixture.iat[2, 1]
    assert np.isclose(scalar.energy(y.iat[2, 1]) - 0.5 * scalar.energy(), wanted[2, 1])
    assert np.isclose(scalar.var(), found.var[2, 1])


def test_a_single_component_is_normal():
    found = Components(np.zeros((1, 2, 1)), np.ones((1, 2, 1))).distribution(pd.RangeIndex(2), pd.Index(["y"]))
    assert type(found).__name__ == "Normal"


def test_parameters_are_those_of_the_model():
    names = ps.DeepStochasticRegressor().get_params(deep=False)
    assert DeepStochasticProbaRegressor().get_params(deep=False) == names
    regressor = DeepStochasticProbaRegressor().set_params(recipe__learning_rate=0.5, method__order=2)
    assert regressor.recipe == ps.Recipe(learning_rate=0.5)
    assert regressor.method == ps.Moments(order=2)


@pytest.mark.parametrize("module", ["skpro", "mixtures"])
def test_without_skpro_the_error_says_what_to_install(module, unwrapped, monkeypatch):
    for absent in ("skpro.regression.base", "skpro.distributions.base"):
        monkeypatch.setitem(sys.modules, absent, None)
    with pytest.raises(ImportError, match=r"pip install prodssm\[sk"):
        unwrapped(f"prodssm.adapters.{module}")


def test_a_part_of_the_checks_of_skpro(unwrapped):
    regressor = unwrapped("prodssm.adapters.skpro").DeepStochasticProbaRegressor
    results = check_estimator(regressor, tests_to_run=QUICK_CHECKS, verbose=False)
    require_passed(results, least=10)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not have a numerically exact implementation of the 'pdfnorm' method:UserWarning")
@pytest.mark.parametrize(
    ("module", "name", "checks"), [("skpro", "DeepStochasticProbaRegressor", 63), ("mixtures", "GaussianMixture", 147)]
)
def test_all_checks_of_skpro(unwrapped, module, name, checks):
    found = getattr(unwrapped(f"prodssm.adapters.{module}"), name)
    results = check_estimator(found, verbose=False)
    require_passed(results, least=checks)
