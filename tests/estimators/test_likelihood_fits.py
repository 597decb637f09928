"""`ProDSSM` on counts, events and data with outliers: from fit to file, with the likelihood as the only choice."""

import json
import re

import numpy as np
import pytest
from oracles import close
from scipy import stats
from sklearn.base import clone
from small_models import without_training

import prodssm as ps

RNG = np.random.default_rng(3)
STEPS, TRAINED = 330, 260
QUICK = {"emission": "linear", "latent_dim": 3, "hidden": (), "residual": True, "weights": "point", "progress": False}


def quick(likelihood, iterations=3, **changes):
    recipe = ps.Recipe(iterations=iterations, linear_start=True)
    return ps.ProDSSM(likelihood=likelihood, recipe=recipe, random_state=0, **(QUICK | changes))


def counts(rng=RNG):
    """Rates of a sinusoid plus a random walk, in logarithms."""
    walk = np.cumsum(0.05 * rng.normal(size=STEPS))
    return rng.poisson(np.exp(1.2 + 0.8 * np.sin(2 * np.pi * np.arange(STEPS) / 40) + walk))[:, None].astype(float)


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
    # The Gaussian has the mass around a count, for zero all of that below one half.
    differences = []
    for seed in range(10):
        y = counts(np.random.default_rng(seed))
        later = y[TRAINED:, 0]
        poisson = quick(ps.Poisson(), iterations=60).fit(y[:TRAINED]).filter(y).log_evidence[TRAINED:].mean()
        residuals = quick(None, iterations=60).fit(y[:TRAINED]).residuals(y)
        mean, std = residuals.mean[TRAINED:, 0], residuals.std[TRAINED:, 0]
        below = np.where(later > 0, stats.norm.cdf((later - 0.5 - mean) / std), 0.0)
        mass = stats.norm.cdf((later + 0.5 - mean) / std) - below
        differences.append(poisson - np.log(np.maximum(mass, 1e-300)).mean())
    mean, chance = np.mean(differences), stats.wilcoxon(differences, alternative="greater").pvalue
    print(f"log score of counts, one step ahead: Poisson {mean:.3f} better than Gaussian, p = {chance:.4f}")  # noqa: T201
    # By signed ranks: one series in which the Gaussian misses a few counts by far decides a mean and its standard error.
    assert mean > 0
    assert chance < 0.01


@pytest.fixture(scope="module")
def pair():
    """Two untrained models of counts, in a frame; and its rows as an array."""
    pandas = pytest.importorskip("pandas")
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"sales": rng.poisson(1.0, 60), "returns": rng.poisson(0.2, 60)}).astype(float)
    settings = {"hidden": (), "latent_dim": 2, "emission": "linear", "n_estimators": 2, "progress": False}
    with without_training():
        return ps.ProDSSM(likelihood="poisson", **settings).fit(frame), frame


def test_rates_of_filter_and_smoother_are_positive_and_in_the_units_of_the_data(pair):
    model, frame = pair
    for found in (model.filter(frame).outputs, model.smooth(frame).outputs):
        low, high = found.interval(0.95)
        assert (low > 0).all()
        assert ((low < found.mean) & (found.mean < high)).all()
        assert abs(found.mean[:, 0].mean() / frame["sales"].mean() - 1) < 0.5
        table = found.to_frame("pandas")
        assert np.allclose(table["sales_lower"], low[:, 0], rtol=1e-5)
    assert np.isclose(found.quantile(0.5)[7, 1], np.exp(found.about.g.quantile(0.5)[7, 1]), rtol=1e-5)


def test_a_backtest_scores_counts_by_their_probabilities(pair):
    model, frame = pair
    found = ps.evaluation.backtest(model, frame, horizon=3, step=6)
    assert (found.lower >= 0).all()
    ahead, y = model.forecast(frame[: found.origins[1]], 3), found.truth[1]
    for n in range(2):
        alone = np.where(np.arange(2) == n, y, np.nan)
        assert np.allclose(found.log_prob[1, :, n], ahead.log_prob(alone), atol=1e-4)
    assert np.allclose(found.crps[1], ahead.crps(y), atol=1e-4)
    scores = found.scores
    assert np.isclose(scores["nll"].iloc[0], -found.log_prob[..., 0].mean())


@pytest.mark.slow
def test_the_report_of_counts_has_no_negative_band(pair, tmp_path):
    model, frame = pair
    model.report(frame, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    pictures = json.loads(re.search(r'<script[^>]*id="pictures"[^>]*>(.*?)</script>', page, flags=re.S)[1])
    for figure in ("outputs", "forecast"):
        panels = [panel for view in pictures["figures"][figure]["views"].values() for panel in view]
        bands = [pictures["lines"][layer["d"]] for panel in panels for layer in panel["layers"] if layer["k"] == "band"]
        assert len(bands) > 3
        assert all(value >= 0 for band in bands for value in band["lo"])


WRONG = [-1.0, 1.5]


@pytest.mark.parametrize("value", WRONG)
def test_what_is_no_count_is_refused_wherever_data_come_in(pair, value):
    model, frame = pair
    wrong, said = frame.copy(), f"data must be counts 0, 1, 2, .* for the likelihood Poisson, got {value:g} in returns at row"
    wrong.loc[40, "returns"] = value
    ahead = model.forecast(frame, 3)
    for ask in (
        lambda: clone(model).fit(wrong),
        lambda: clone(model).fit(frame, validation_data=wrong),
        lambda: model.choose(wrong),
        lambda: model.update(wrong),
        lambda: model.filter(wrong),
        lambda: model.smooth(wrong),
        lambda: model.forecast(wrong, 3),
        lambda: model.score(wrong),
        lambda: model.residuals(wrong),
        lambda: model.check(wrong),
        lambda: model.report(wrong, "never.html"),
        lambda: ps.evaluation.backtest(model, wrong, horizon=3),
        lambda: model.step(model.start(), wrong.iloc[40]),
        lambda: ahead.log_prob(wrong[38:41]),
        lambda: ahead.crps(wrong[38:41].to_numpy()),
    ):
        with pytest.raises(ValueError, match=said), without_training():
            ask()


@pytest.mark.slow
def test_without_a_variance_moments_are_refused_with_advice_and_the_rest_works():
    y = outliers()[:60]
    with without_training():
        model = ps.ProDSSM(likelihood=ps.StudentT(df=2), hidden=(), emission="linear", latent_dim=1, progress=False).fit(y)
    assert np.isfinite(model.filter(y).outputs.std).all()
    assert np.isfinite(model.score(y))
    for ask in (
        lambda: model.forecast(y, 3),
        lambda: model.residuals(y),
        lambda: model.check(y),
        lambda: model.step(model.start(), y[0]),
        lambda: ps.evaluation.backtest(model, y, horizon=3),
        lambda: model.ssm_.likelihood.predict(ps.Gaussian.certain([0.0])),
    ):
        with pytest.raises(ValueError, match=r"df must be larger than 2 for a variance, got 2.0: .* Use quantiles"):
            ask()


def test_a_likelihood_may_be_named():
    model = clone(quick("student_t"))
    assert model.get_params()["likelihood__df"] == 4.0
    assert model.set_params(likelihood__df=7).likelihood.df == 7.0
    assert isinstance(quick("poisson")._checked_likelihood(), ps.Poisson)


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
