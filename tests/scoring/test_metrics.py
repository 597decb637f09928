"""Scores agree with SciPy, with scoringrules and with sampling; missing values have no effect; bad input is refused."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close, random_cov, standard_error
from scipy import integrate, stats

from prodssm.scoring.metrics import coverage, crps, energy_score, mse, nll, pit, pit_histogram, rmse, width

NAN = math.nan
KEY = jr.key(0)
RNG = np.random.default_rng(0)
N, Y = 40, 3
MEAN = RNG.normal(size=(N, Y))
COV = np.stack([random_cov(RNG, Y) for _ in range(N)])
VAR = np.diagonal(COV, axis1=1, axis2=2)
STD = np.sqrt(VAR)
WHOLE = MEAN + 1.5 * STD * RNG.normal(size=(N, Y))
# Some coordinates are missing, of row 2 all, of row 3 none.
HIDDEN = RNG.random((N, Y)) < 0.3
HIDDEN[2], HIDDEN[3] = True, False
GAPPY = np.where(HIDDEN, NAN, WHOLE)

# Every score as a function of (y, mean, std), with the covariance made from the standard deviations where it is asked for.
SCORES = {
    "nll": lambda y, mean, std: nll(y, mean, np.asarray(std, float) ** 2),
    "mse": lambda y, mean, std: mse(y, mean),
    "rmse": lambda y, mean, std: rmse(y, mean),
    "crps": crps,
    "energy_score": lambda y, mean, std: energy_score(y, mean, np.asarray(std, float) ** 2, key=KEY, samples=10),
    "coverage": coverage,
    "pit": lambda y, mean, std: float(np.nanmean(pit(y, mean, std))),
    "pit_histogram": lambda y, mean, std: float(pit_histogram(y, mean, std)[0][0]),
}
every_score = pytest.mark.parametrize("score", [pytest.param(score, id=name) for name, score in SCORES.items()])
with_std = pytest.mark.parametrize(
    "score", [crps, coverage, pit, pit_histogram], ids=["crps", "coverage", "pit", "pit_histogram"]
)
with_cov = pytest.mark.parametrize("score", [nll, partial(energy_score, key=KEY, samples=10)], ids=["nll", "energy_score"])


@pytest.fixture(scope="module")
def scoringrules():
    """Imported late: it brings a compiler along."""
    import scoringrules

    return scoringrules


# ---------------------------------------------------------------- the density


def test_nll_is_scipys_density_of_the_observed_coordinates():
    scores = []
    for y, mean, cov in zip(GAPPY, MEAN, COV, strict=True):
        kept = ~np.isnan(y)
        if kept.any():
            scores.append(-stats.multivariate_normal.logpdf(y[kept], mean[kept], cov[np.ix_(kept, kept)]))
    assert len(scores) == N - 1
    assert close(nll(GAPPY, MEAN, COV), np.mean(scores))


def test_nll_of_variances_is_that_of_diagonal_covariances_and_of_independent_numbers():
    diagonal = nll(GAPPY, MEAN, VAR[:, :, None] * np.eye(Y))
    rows = np.nansum(-stats.norm.logpdf(GAPPY, MEAN, STD), axis=1)
    assert close(nll(GAPPY, MEAN, VAR), diagonal)
    assert close(diagonal, rows[~HIDDEN.all(axis=1)].mean())


def test_nll_at_the_mean_of_a_standard_normal_is_half_the_log_of_two_pi():
    assert nll([0.0], [0.0], [1.0]) == 0.5 * math.log(2 * math.pi)


def test_nll_moves_by_the_log_of_the_unit():
    units = np.array([1e-9, 1.0, 1e9])
    found = nll(WHOLE * units, MEAN * units, COV * units[:, None] * units)
    assert close(found, nll(WHOLE, MEAN, COV) + np.log(units).sum())


def test_nll_of_strongly_correlated_coordinates_keeps_its_digits():
    tight = 1 - 1e-9
    cov = np.array([[[1.0, tight], [tight, 1.0]]])
    # In the sum and the difference of the coordinates the forecast is independent.
    y, turned = np.array([[0.3, 0.3 + 1e-5]]), np.array([0.6 + 1e-5, -1e-5]) / math.sqrt(2)
    expected = -stats.norm.logpdf(turned, 0.0, np.sqrt([1 + tight, 1 - tight])).sum()
    assert nll(y, np.zeros((1, 2)), cov) == pytest.approx(expected, rel=1e-6)


def test_the_true_forecast_has_the_lowest_expected_nll_crps_and_energy_score():
    rng = np.random.default_rng(5)
    y = rng.normal(size=5_000)
    zeros, ones = np.zeros_like(y), np.ones_like(y)
    for score in (nll, crps, lambda y, m, s: energy_score(y, m, s**2, key=KEY, samples=50)):
        honest = score(y, zeros, ones)
        for shift, scale in ((0.3, 1.0), (0.0, 0.7), (0.0, 1.4)):
            assert score(y, zeros + shift, scale * ones) > honest


# ---------------------------------------------------------------- errors


def test_mse_and_rmse_average_over_the_observed_values():
    errors = (WHOLE - MEAN)[~HIDDEN]
    assert close(mse(GAPPY, MEAN), (errors**2).mean())
    assert close(rmse(GAPPY, MEAN), np.sqrt((errors**2).mean()))
    assert mse([1.0, NAN, 4.0], [0.0, 0.0, 1.0]) == 5.0


# ---------------------------------------------------------------- CRPS and energy score


@pytest.mark.slow
def test_crps_is_that_of_scoringrules(scoringrules):
    expected = scoringrules.crps_normal(WHOLE, MEAN, STD)
    assert crps(GAPPY, MEAN, STD) == pytest.approx(expected[~HIDDEN].mean(), rel=1e-12)


def test_crps_is_the_squared_distance_between_distribution_functions():
    y, mean, std = 0.7, -0.4, 1.3
    below = integrate.quad(lambda x: stats.norm.cdf(x, mean, std) ** 2, mean - 12 * std, y)[0]
    above = integrate.quad(lambda x: stats.norm.sf(x, mean, std) ** 2, y, mean + 12 * std)[0]
    assert close(crps([y], [mean], [std]), below + above)


@pytest.mark.parametrize("std", [0.0, 5e-324, 1e-200])
def test_crps_of_a_certain_forecast_is_the_absolute_error(std):
    assert crps([1.5, -0.5, 0.0], [0.0, 0.0, 0.0], [std] * 3) == pytest.approx(2.0 / 3, rel=1e-12)


def test_crps_far_in_the_tail_is_the_error_less_the_spread():
    assert crps([1e8], [0.0], [1.0]) == pytest.approx(1e8 - 1 / math.sqrt(math.pi), rel=1e-15)


def test_energy_score_of_one_number_is_its_crps():
    y, mean, std = GAPPY[:, 0], MEAN[:, 0], STD[:, 0]
    found = [energy_score(y, mean, std**2, key=key, samples=200) for key in jr.split(KEY, 50)]
    assert abs(np.mean(found) - crps(y, mean, std)) < 5 * standard_error(found)


def test_energy_score_of_two_samples_is_unbiased():
    y, mean, std = WHOLE[:5, 0], MEAN[:5, 0], STD[:5, 0]
    found = [energy_score(y, mean, std**2, key=key, samples=2) for key in jr.split(KEY, 1000)]
    assert abs(np.mean(found) - crps(y, mean, std)) < 5 * standard_error(found)


@pytest.mark.slow
def test_energy_score_is_that_of_scoringrules_on_samples_of_the_observed_coordinates(scoringrules):
    def sampled(seed):
        rng, scores = np.random.default_rng(seed), []
        for y, mean, cov in zip(GAPPY, MEAN, COV, strict=True):
            kept = ~np.isnan(y)
            if kept.any():
                draws = rng.multivariate_normal(mean, cov, size=200)[:, kept]
                scores.append(scoringrules.es_ensemble(y[kept], draws, estimator="fair", backend="numpy"))
        return np.mean(scores)

    theirs = [sampled(seed) for seed in range(20)]
    ours = [energy_score(GAPPY, MEAN, COV, key=key, samples=500) for key in jr.split(KEY, 20)]
    error = math.hypot(standard_error(theirs), standard_error(ours))
    assert abs(np.mean(ours) - np.mean(theirs)) < 5 * error


def test_energy_score_of_variances_is_that_of_diagonal_covariances():
    pairs = [
        [energy_score(GAPPY, MEAN, cov, key=key, samples=200) for cov in (VAR, VAR[:, :, None] * np.eye(Y))]
        for key in jr.split(KEY, 50)
    ]
    gaps = [one - other for one, other in pairs]
    # Roots may differ by a reflection, so that the draws do.
    assert abs(np.mean(gaps)) <= 5 * standard_error(gaps) + 1e-12


def test_energy_score_of_a_certain_forecast_is_the_distance_between_observed_coordinates():
    distances = np.sqrt(np.nansum((GAPPY - MEAN) ** 2, axis=1))[~HIDDEN.all(axis=1)]
    assert close(energy_score(GAPPY, MEAN, np.zeros_like(COV), key=KEY, samples=3), distances.mean())


def test_energy_score_accepts_singular_covariances():
    # Three copies of one number are as far apart as the number, times √3.
    copies = np.ones((N, Y, Y)) * VAR[:, :1, None]
    y, mean = (np.repeat(each[:, :1], Y, axis=1) for each in (WHOLE, MEAN))
    found = [energy_score(y, mean, copies, key=key, samples=200) / math.sqrt(3) for key in jr.split(KEY, 50)]
    assert abs(np.mean(found) - crps(y[:, 0], mean[:, 0], STD[:, 0])) < 5 * standard_error(found)


def test_energy_score_depends_on_the_key_alone():
    first, again, other = (energy_score(WHOLE, MEAN, COV, key=jr.key(seed)) for seed in (1, 1, 2))
    assert first == again != other
    assert energy_score(WHOLE, MEAN, COV, key=jr.PRNGKey(1)) == first


# ---------------------------------------------------------------- calibration


def test_coverage_and_width_are_those_of_scipys_interval():
    for probability in (0.5, 0.8, 0.95):
        low, high = stats.norm.interval(probability, MEAN, STD)
        inside = (low <= WHOLE) & (high >= WHOLE)
        assert coverage(GAPPY, MEAN, STD, probability) == inside[~HIDDEN].mean()
        assert close(width(STD, probability), (high - low).mean())


def test_coverage_of_the_true_forecast_is_the_probability():
    rng, n = np.random.default_rng(6), 100_000
    mean, std = rng.normal(size=n), rng.uniform(0.5, 2.0, size=n)
    found = coverage(mean + std * rng.normal(size=n), mean, std, probability=0.9)
    assert abs(found - 0.9) < 5 * math.sqrt(0.9 * 0.1 / n)


def test_a_certain_forecast_covers_only_what_it_says():
    assert coverage([1.0, 1.0, NAN], [1.0, 2.0, 2.0], [0.0, 0.0, 0.0]) == 0.5


def test_pit_is_scipys_distribution_function_and_keeps_gaps():
    found = pit(GAPPY, MEAN, STD)
    assert found.shape == GAPPY.shape
    assert (np.isnan(found) == HIDDEN).all()
    assert close(found[~HIDDEN], stats.norm.cdf(WHOLE, MEAN, STD)[~HIDDEN])


def test_pit_of_a_certain_forecast_is_zero_one_or_one_half():
    assert pit([-1.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]).tolist() == [0.0, 0.5, 1.0]


def test_pit_histogram_counts_every_observed_value_once_and_both_ends():
    counts, edges = pit_histogram(GAPPY, MEAN, STD, bins=7)
    assert counts.sum() == (~HIDDEN).sum()
    assert close(edges, np.linspace(0, 1, 8))
    assert pit_histogram([-9e9, 9e9], [0.0, 0.0], [1.0, 1.0], bins=4)[0].tolist() == [1, 0, 0, 1]


def test_pit_histogram_of_the_true_forecast_is_flat():
    y = np.random.default_rng(7).normal(size=50_000)
    counts, _ = pit_histogram(y, np.zeros_like(y), np.ones_like(y))
    assert stats.chisquare(counts).pvalue > 1e-3


# ---------------------------------------------------------------- input


@every_score
def test_a_vector_is_one_column(score):
    y, mean, std = GAPPY[:, 0], MEAN[:, 0], STD[:, 0]
    assert score(y, mean, std) == score(y[:, None], mean[:, None], std[:, None])


@every_score
def test_rows_without_observations_have_no_effect(score):
    kept = ~HIDDEN.all(axis=1)
    assert score(GAPPY, MEAN, STD) == score(GAPPY[kept], MEAN[kept], STD[kept])


@with_cov
def test_missing_coordinates_have_no_effect(score):
    wide, moved = COV.copy(), np.where(HIDDEN, 100.0, MEAN)
    diagonal = np.arange(Y)
    wide[:, diagonal, diagonal] += np.where(HIDDEN, 100.0, 0.0)
    assert close(score(GAPPY, moved, wide), score(GAPPY, MEAN, COV))


@pytest.mark.parametrize("shape", [(N,), (N, 1, 1)])
def test_variances_of_a_vector_may_be_one_by_one_matrices(shape):
    assert nll(GAPPY[:, 0], MEAN[:, 0], VAR[:, 0].reshape(shape)) == nll(GAPPY[:, :1], MEAN[:, :1], VAR[:, :1])


@every_score
def test_jax_arrays_and_lists_score_like_numpy_arrays(score):
    y, mean, std = (array(each) for each in (GAPPY, MEAN, STD))
    found = score(y, mean, std)
    assert type(found) is float
    assert found == score(*(np.asarray(each) for each in (y, mean, std)))
    assert found == score(*(each.tolist() for each in (y, mean, std)))


def test_scores_are_in_float64_whatever_jax_is_set_to():
    y, mean = np.array([1e8 + 1.0]), np.array([1e8])
    assert mse(y, mean) == 1.0
    assert crps(y, mean, [0.0]) == 1.0


def test_float32_covariances_are_taken_with_their_own_rounding():
    cov = COV.astype(np.float32)
    cov[:, 0, 1] *= 1 + np.float32(1e-6)
    assert nll(WHOLE, MEAN, cov) == pytest.approx(nll(WHOLE, MEAN, COV), rel=1e-4)
    assert nll(WHOLE, MEAN, cov) == nll(WHOLE, MEAN, np.swapaxes(cov, 1, 2))
    with pytest.raises(ValueError, match="cov must be symmetric"):
        nll(WHOLE, MEAN, cov.astype(float))
    # What is left of the second number, given the first, is one rounding error.
    singular = np.array([[[1.0, 1 - 1e-7], [1 - 1e-7, 1.0]]], dtype=np.float32)
    assert math.isfinite(nll([[0.0, 0.0]], [[0.0, 0.0]], singular.astype(float)))
    with pytest.raises(ValueError, match="cov must be positive definite"):
        nll([[0.0, 0.0]], [[0.0, 0.0]], singular)


# ---------------------------------------------------------------- bad input


@every_score
@pytest.mark.parametrize(
    ("y", "mean", "says"),
    [
        (np.full((2, 2), NAN), np.zeros((2, 2)), "y must have at least one observed value"),
        ([1.0, math.inf], [0.0, 0.0], r"y must be finite or NaN .* inf at index \(1,\)"),
        ([1.0, 2.0], [0.0, NAN], "mean must be finite"),
        ([1.0, 2.0], [0.0, -math.inf], "mean must be finite"),
        ([1.0, 2.0], [[0.0], [0.0]], r"mean must have shape \(2,\), got \(2, 1\)"),
        (np.zeros((1, 1, 1)), np.zeros((1, 1, 1)), "y must have 1 or 2 axes"),
        (3.0, 3.0, "y must have 1 or 2 axes"),
        ([], [], "y must not be empty"),
    ],
)
def test_bad_outcomes_and_means_are_refused(score, y, mean, says):
    with pytest.raises(ValueError, match=says):
        score(y, mean, np.ones(np.shape(y)))


@every_score
@pytest.mark.parametrize("y", ["text", [1.0, None], [[1.0], [1.0, 2.0]], np.array([1j]), np.ma.array([1.0], mask=[True])])
def test_outcomes_that_are_not_numbers_are_refused(score, y):
    with pytest.raises(TypeError, match="y must be"):
        score(y, [0.0], [1.0])


@with_std
@pytest.mark.parametrize(
    ("std", "says"),
    [
        ([1.0, -1e-9], "std must not be negative"),
        ([1.0, NAN], "std must be finite"),
        ([1.0, math.inf], "std must be finite"),
        ([1.0], r"std must have shape \(2,\), got \(1,\)"),
        (1.0, r"std must have shape \(2,\), got \(\)"),
    ],
)
def test_bad_standard_deviations_are_refused(score, std, says):
    with pytest.raises(ValueError, match=says):
        score([0.0, 1.0], [0.0, 0.0], std)


@with_cov
@pytest.mark.parametrize(
    ("cov", "says"),
    [
        ([[1.0, -1.0]], "cov must not be negative, got -1.0"),
        ([[[1.0, 0.0], [0.0, -1.0]]], "cov must not have negative variances, got -1.0 at row 0"),
        ([[[1.0, 0.5], [0.0, 1.0]]], "cov must be symmetric.* row 0"),
        ([[[1.0, 2.0], [2.0, 1.0]]], "cov must be positive .*definite.* eigenvalue of -1 at row 0"),
        ([[1.0, math.inf]], "cov must be finite"),
        ([[[1.0, NAN], [NAN, 1.0]]], "cov must be finite"),
        ([[1.0, 0.0], [0.0, 1.0]], r"cov must have shape \(1, 2\) \(variances\) or \(1, 2, 2\) \(covariances\), got \(2, 2\)"),
        ([1.0, 1.0], "cov must have shape"),
    ],
)
def test_bad_covariances_are_refused(score, cov, says):
    with pytest.raises(ValueError, match=says):
        score([[0.0, 1.0]], [[0.0, 0.0]], cov)


def test_nll_refuses_what_has_no_density():
    y, mean = [[0.0, 1.0]] * 2, [[0.0, 0.0]] * 2
    with pytest.raises(ValueError, match="got 0 at row 1; crps and energy_score accept it"):
        nll(y, mean, [[1.0, 1.0], [1.0, 0.0]])
    with pytest.raises(ValueError, match=r"cov must be positive definite .* at row 1; .* energy_score"):
        nll(y, mean, [np.eye(2), np.ones((2, 2))])
    # Not needed where nothing is observed.
    assert close(nll([[0.0, NAN]], [[0.0, 0.0]], [[1.0, 0.0]]), nll([0.0], [0.0], [1.0]))
    assert close(nll([[0.0, NAN]], [[0.0, 0.0]], [np.ones((2, 2))]), nll([0.0], [0.0], [1.0]))


@pytest.mark.parametrize("probability", [0.0, 1.0, -0.5, 95, NAN])
@pytest.mark.parametrize("score", [partial(coverage, [0.0], [0.0], [1.0]), partial(width, [1.0])], ids=["coverage", "width"])
def test_bad_probabilities_are_refused(score, probability):
    with pytest.raises(ValueError, match="probability must"):
        score(float(probability))


def test_other_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="std must not be negative"):
        width([-1.0])
    with pytest.raises(ValueError, match="bins must be at least 1"):
        pit_histogram([0.0], [0.0], [1.0], bins=0)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        energy_score([0.0], [0.0], [1.0], key=KEY, samples=0)
    with pytest.raises(TypeError, match="key"):
        energy_score([0.0], [0.0], [1.0], key=None)


def test_scores_refuse_to_be_traced():
    with pytest.raises(TypeError, match="y must be an array of numbers"):
        jax.jit(lambda y: mse(y, jnp.zeros(2)))(jnp.zeros(2))
