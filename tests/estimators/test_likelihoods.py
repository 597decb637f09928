"""`ProDSSM` on counts, events and data with outliers: from fit to file, with the likelihood as the only choice."""

import numpy as np
import pytest
from oracles import close
from scipy import stats
from sklearn.base import clone

import prodssm as ps

RNG = np.random.default_rng(3)
STEPS, TRAINED = 330, 260
QUICK = {"emission": "linear", "latent_dim": 3, "hidden": (), "residual": True, "weights": "point", "progress": False}


def quick(likelihood, iterations=3, **changes):
    recipe = ps.Recipe(iterations=iterations, linear_start=True)
    return ps.ProDSSM(likelihood=likelihood, recipe=recipe, random_state=0, **(QUICK | changes))


def counts():
    """Rates of a sinusoid plus a random walk, in logarithms."""
    walk = np.cumsum(0.05 * RNG.normal(size=STEPS))
    return RNG.poisson(np.exp(1.2 + 0.8 * np.sin(2 * np.pi * np.arange(STEPS) / 40) + walk))[:, None].astype(float)


def events():
    return (np.sin(np.arange(STEPS) / 8) + RNG.normal(size=STEPS) > 0.3)[:, None].astype(float)


def outliers():
    y = np.sin(np.arange(STEPS) / 8)[:, None] + 0.2 * RNG.normal(size=(STEPS, 1))
    y[::25] += 20.0
    return y


DATA = {"poisson": (ps.Poisson(), counts()), "bernoulli": (ps.Bernoulli(), events()), "student": (ps.StudentT(4), outliers())}


@pytest.fixture(scope="module", params=DATA)
def fitted(request):
    likelihood, y = DATA[request.param]
    return quick(likelihood).fit(y[:TRAINED]), y


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_fitted_model_answers_streams_and_is_saved(fitted, tmp_path):
    model, y = fitted
    y = y[:60].copy()
    y[20:23] = np.nan
    found = model.filter(y)
    assert np.isfinite(found.mean).all()
    assert (found.log_evidence[20:23] == 0).all()
    assert np.isfinite(model.smooth(y).cov).all()
    assert np.isfinite(model.score(y))
    assert np.isfinite(model.residuals(y).values[:20]).all()
    assert np.isfinite(model.forecast(y, steps=4).mean).all()
    assert model.history_.iterations == [3]
    assert model.calibration_ is None
    assert "standard deviations are for Gaussian observations" in model.choices_.reasons["calibrated"]
    state = model.start()
    for t in range(30):
        state, now = model.step(state, y[t])
        assert close(now.state_mean, found.mean[t], scale=10)
    model.save(tmp_path / "m.safetensors")
    same = ps.load(tmp_path / "m.safetensors")
    assert np.array_equal(same.filter(y).log_evidence, found.log_evidence)
    assert type(same.likelihood) is type(model.likelihood)
    with pytest.raises(ValueError, match="are for Gaussian observations"):
        model.calibrate(y)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_counts_are_forecast_with_a_better_log_score_than_by_a_gaussian_model():
    y = counts()
    later = y[TRAINED:, 0]
    poisson = quick(ps.Poisson(), iterations=60).fit(y[:TRAINED]).filter(y).log_evidence[TRAINED:].mean()
    residuals = quick(None, iterations=60).fit(y[:TRAINED]).residuals(y)
    mean, std = residuals.mean[TRAINED:, 0], residuals.std[TRAINED:, 0]
    mass = stats.norm.cdf((later + 0.5 - mean) / std) - stats.norm.cdf((later - 0.5 - mean) / std)
    gaussian = np.log(np.maximum(mass, 1e-300)).mean()
    print(f"log score of counts, one step ahead: Poisson {poisson:.3f}, Gaussian {gaussian:.3f}")  # noqa: T201
    assert poisson > gaussian


def test_parameters_of_a_likelihood_are_those_of_the_estimator():
    model = clone(quick(ps.StudentT(df=4)))
    assert model.get_params()["likelihood__df"] == 4.0
    model.set_params(likelihood__df=7)
    assert model.likelihood.df == 7.0
    assert isinstance(clone(quick(ps.Poisson())).likelihood, ps.Poisson)


@pytest.mark.parametrize(
    ("likelihood", "bad", "said"),
    [(ps.Poisson(), -1.0, "counts 0, 1, 2, .* got -1 in y0"), (ps.Bernoulli(), 0.5, "labels 0 and 1 .* got 0.5 in y0")],
)
def test_data_outside_the_support_are_refused_before_training(likelihood, bad, said):
    y = np.ones((30, 1))
    y[7] = bad
    with pytest.raises(ValueError, match=said):
        quick(likelihood).fit(y)


def test_a_regressor_refuses_likelihoods_of_data_that_are_not_standardised():
    with pytest.raises(ValueError, match="likelihood must describe standardised targets"):
        ps.DeepStochasticRegressor(likelihood=ps.Poisson(), steps=1).fit(np.ones((20, 1)), np.arange(20.0))
