"""What every likelihood promises: its moments, densities and updates agree with each other and with its samples."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from likelihood_oracles import NegativeBinomial
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close, random_cov
from scipy import stats

import prodssm as ps
from prodssm.data.scaling import Standardiser
from prodssm.models.likelihoods.base import find_likelihood

# Likelihoods of two outputs, in the units of the data.
LIKELIHOODS = {
    "gaussian": ps.GaussianLikelihood([0.3, 0.05]),
    "gaussian, learned": ps.GaussianLikelihood([0.3, 0.05], floor=0.0, learned=True),
    "student t": ps.StudentT(10, [0.3, 0.2]),
    "student t, learned": ps.StudentT(10, [0.3, 0.2], learned=True),
    "poisson": ps.Poisson(),
    "bernoulli": ps.Bernoulli(),
    "written by a user": NegativeBinomial(),
}
RNG = np.random.default_rng(0)
G = ps.Gaussian(array([0.4, -1.2]), array(random_cov(RNG, 2)))
STATE = ps.Gaussian(array(RNG.normal(size=3)), array(random_cov(RNG, 3)))
EMISSION = ps.Channel(array(RNG.normal(size=2)), array(RNG.normal(size=(2, 3))), array(0.1 * random_cov(RNG, 2)))
OBSERVATIONS = [[0.7, -0.9], [3.0, np.nan], [np.nan, -2.0]]
OF_SUPPORT = {
    "real": OBSERVATIONS,
    "counts": [[2.0, 0.0], [5.0, np.nan], [np.nan, 1.0]],
    "binary": [[1.0, 0.0], [1.0, np.nan], [np.nan, 1.0]],
}
MOST = {"counts": 60, "binary": 1}  # of what is drawn
GAUSSIAN = [name for name, each in LIKELIHOODS.items() if each.gaussian]
REAL = [name for name, each in LIKELIHOODS.items() if each.support == "real"]


@pytest.fixture(params=LIKELIHOODS)
def likelihood(request):
    return LIKELIHOODS[request.param]


@pytest.fixture(params=REAL)
def continuous(request):
    return LIKELIHOODS[request.param]


@pytest.fixture(params=[name for name in LIKELIHOODS if name not in REAL])
def discrete(request):
    return LIKELIHOODS[request.param]


@pytest.fixture(params=range(3), ids=["both", "first", "second"])
def y(request, likelihood):
    return OF_SUPPORT[likelihood.support][request.param]


def pairs_of(discrete):
    """All pairs of values that are drawn."""
    values = np.arange(MOST[discrete.support] + 1.0)
    return np.stack([part.ravel() for part in np.meshgrid(values, values, indexing="ij")], axis=1), len(values)


def densities(likelihood, g, ys):
    """Log densities of many observations in one compiled call."""
    return np.asarray(jax.jit(jax.vmap(likelihood.log_prob, (None, 0)))(g, array(ys)), float)


def test_it_is_known_by_name_and_counts_its_outputs(likelihood):
    assert ps.Likelihood.registry[type(likelihood).__name__] is type(likelihood)
    assert likelihood.size in (None, 2)


def test_predicted_moments_are_those_of_samples(likelihood):
    g_key, y_key = jr.split(jr.key(1))
    drawn = likelihood.sample(G.sample(key=g_key, shape=(100_000,)), key=y_key)
    rows, wanted = np.asarray(drawn, float), likelihood.predict(G)
    assert_mean_matches(wanted.mean, SampleMoments.of(rows, rows))
    assert_cov_matches(wanted.cov, SampleMoments.of(rows, rows))


def test_the_conditional_variance_is_that_of_samples_with_the_same_output(likelihood):
    g_key, *y_keys = jr.split(jr.key(2), 3)
    g = G.sample(key=g_key, shape=(100_000,))
    first, second = (np.asarray(likelihood.sample(g, key=key), float) for key in y_keys)
    rows = (first - second) ** 2 / 2
    assert_mean_matches(likelihood.conditional_var(G), SampleMoments.of(rows, rows))


def test_moments_of_the_observation_without_noise_are_those_of_samples(likelihood):
    g = np.asarray(G.sample(key=jr.key(5), shape=(100_000,)), float)
    rows, wanted = likelihood.expected_at(g), likelihood.expected(G)
    assert_mean_matches(wanted.mean, SampleMoments.of(rows, rows))
    assert_cov_matches(wanted.cov, SampleMoments.of(rows, rows))
    assert (np.diff(likelihood.expected_at(np.sort(g[:50], axis=0)), axis=0) >= 0).all()


def test_three_correlated_outputs_have_the_moments_of_samples():
    root = np.array([[1.0, 0.0, 0.0], [0.9, 0.4, 0.0], [-0.7, 0.3, 0.5]])
    g = ps.Gaussian(array([0.2, -0.5, 0.8]), array(0.5 * root @ root.T))
    for likelihood in (ps.Poisson(), ps.Bernoulli(), ps.StudentT(10, [0.3, 0.2, 0.5])):
        g_key, y_key = jr.split(jr.key(6))
        rows = np.asarray(likelihood.sample(g.sample(key=g_key, shape=(200_000,)), key=y_key), float)
        wanted = likelihood.predict(g)
        assert_mean_matches(wanted.mean, SampleMoments.of(rows, rows))
        assert_cov_matches(wanted.cov, SampleMoments.of(rows, rows))


def test_probabilities_add_up_to_one_and_missing_values_are_summed_over(discrete):
    points, count = pairs_of(discrete)
    table = np.exp(densities(discrete, G, points)).reshape(count, count)
    assert np.isclose(table.sum(), 1.0, atol=1e-4)
    alone = np.exp(densities(discrete, G, np.stack([np.arange(float(count)), np.full(count, np.nan)], axis=1)))
    assert np.allclose(table.sum(axis=1), alone, atol=1e-4)


def test_probabilities_are_those_of_samples(discrete):
    g_key, y_key = jr.split(jr.key(3))
    drawn = np.asarray(discrete.sample(G.sample(key=g_key, shape=(20_000,)), key=y_key), float)
    points = pairs_of(discrete)[0]
    points = points[(points <= 4).all(axis=1)]
    found = np.exp(densities(discrete, G, points))
    seen = (drawn[:, None, :] == points[None]).all(axis=-1).mean(axis=0)
    assert (np.abs(found - seen) < 5 * np.sqrt((found + 1e-4) / len(drawn))).all()


def test_the_distribution_function_and_the_quantiles_are_those_of_samples(likelihood):
    g_key, y_key = jr.split(jr.key(4))
    drawn = np.asarray(likelihood.sample(G.sample(key=g_key, shape=(40_000,)), key=y_key), float)
    mean, var = np.asarray(G.mean, float), np.asarray(G.var, float)
    for probability in (0.1, 0.5, 0.9):
        at = likelihood.quantile(mean, var, probability)
        share = (drawn <= at + 1e-9).mean(axis=0)
        assert np.allclose(likelihood.cdf(mean, var, at), share, atol=5 * 0.5 / 200)
        assert (likelihood.cdf(mean, var, at) >= probability - 1e-6).all()
        if likelihood.support != "real":
            assert (at >= 0).all()
            assert (at == np.round(at)).all()
            assert (likelihood.cdf(mean, var, at - 1) < probability).all()
    rows = likelihood.quantile(np.stack([mean, mean]), np.stack([var, var]), 0.9)
    assert np.allclose(rows, likelihood.quantile(mean, var, 0.9)[None])


def test_a_density_integrates_to_one_and_missing_values_are_integrated_out(continuous):
    likelihood = continuous
    wanted = likelihood.predict(G)
    axes = [
        np.linspace(m - 12 * s, m + 12 * s, 201) for m, s in zip(np.asarray(wanted.mean), np.asarray(wanted.std), strict=True)
    ]
    first, second = np.meshgrid(*axes, indexing="ij")
    grid = np.exp(densities(likelihood, G, np.stack([first.ravel(), second.ravel()], axis=1))).reshape(201, 201)
    marginal = np.trapezoid(grid, axes[1], axis=1)
    assert np.isclose(np.trapezoid(marginal, axes[0]), 1.0, atol=1e-4)
    alone = np.exp(densities(likelihood, G, np.stack([axes[0], np.full(201, np.nan)], axis=1)))
    assert np.allclose(marginal, alone, atol=1e-4 * alone.max())
    assert densities(likelihood, G, [[np.nan, np.nan]])[0] == 0.0


def test_the_density_is_that_of_samples(continuous):
    likelihood = continuous
    g_key, y_key = jr.split(jr.key(3))
    drawn = np.asarray(likelihood.sample(G.sample(key=g_key, shape=(20_000,)), key=y_key), float)
    # With p the density and q = N(middle, cov) another one, E_p[q / (p + q)] = E_q[p / (p + q)].
    middle, cov = drawn.mean(axis=0), 2 * np.cov(drawn.T)
    normal = stats.multivariate_normal(middle, cov)
    other = normal.rvs(len(drawn), random_state=0)

    def shares(points):
        """q / (p + q)."""
        return 1 / (1 + np.exp(densities(likelihood, G, points) - normal.logpdf(points)))

    ours, theirs = shares(drawn), 1 - shares(other)
    error = np.sqrt((ours.var() + theirs.var()) / len(drawn))
    assert abs(ours.mean() - theirs.mean()) < 5 * error


def test_the_evidence_of_an_update_is_the_predictive_density(likelihood, y):
    _, evidence = likelihood.condition(STATE, EMISSION, array(y))
    assert close(evidence, likelihood.log_prob(STATE.predict(EMISSION), array(y)))


def test_an_observation_that_is_missing_changes_nothing(likelihood):
    nothing = array([np.nan, np.nan])
    found, evidence = likelihood.condition(STATE, EMISSION, nothing)
    assert evidence == 0.0
    assert close(found.mean, STATE.mean)
    assert close(found.cov, STATE.cov)
    joint = ps.JointGaussian.independent(STATE, ps.Network.mlp((3, 3), key=jr.key(0)).weights)
    found, evidence = likelihood.condition(joint, EMISSION, nothing)
    assert evidence == 0.0
    assert close(found.dense().mean, joint.dense().mean)
    assert close(found.dense().cov, joint.dense().cov)


def test_the_expected_log_density_is_an_expectation_and_at_most_the_log_density(likelihood, y):
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    white = np.stack([part.ravel() for part in np.meshgrid(nodes, nodes)], axis=1)
    points = np.asarray(G.mean, float) + white @ np.linalg.cholesky(np.asarray(G.cov, float)).T
    given = jax.jit(jax.vmap(lambda g: likelihood.log_prob(ps.Gaussian.certain(g), array(y))))(array(points))
    wanted = np.asarray(given, float) @ np.outer(weights, weights).ravel() / weights.sum() ** 2
    found = likelihood.expected_log_prob(G, array(y))
    # The logarithm of a heavy tail is no polynomial.
    assert close(found, wanted, scale=10) if likelihood.gaussian else np.isclose(found, wanted, atol=2e-4)
    assert found < likelihood.log_prob(G, array(y))
    certain = ps.Gaussian.certain(G.mean)
    assert close(likelihood.expected_log_prob(certain, array(y)), likelihood.log_prob(certain, array(y)), scale=10)


@pytest.mark.parametrize("y", OBSERVATIONS, ids=str)
def test_in_standardised_units_the_log_density_changes_by_the_log_scale(continuous, y):
    likelihood = continuous
    scaling = Standardiser(array([0.5, -2.0]), array([3.0, 0.2]))
    scale = np.asarray(scaling.scale, float)
    g = ps.Gaussian(scaling.transform(G.mean), array(np.asarray(G.cov, float) / np.outer(scale, scale)))
    found = likelihood.for_data(scaling).log_prob(g, scaling.transform(array(y)))
    observed = np.isfinite(y)
    assert close(found - np.log(scale[observed]).sum(), likelihood.log_prob(G, array(y)), scale=10)


def test_what_is_trainable_has_a_finite_gradient(likelihood, y):
    learned, fixed = eqx.partition(likelihood, likelihood.trainable())
    grads = jax.jit(jax.grad(lambda part: eqx.combine(part, fixed).log_prob(G, array(y))))(learned)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


BAD = {"counts": [(-1.0, "counts"), (1.5, "counts")], "binary": [(2.0, "labels 0 and 1"), (-1.0, "labels 0 and 1")]}


def test_what_cannot_be_observed_has_no_density_and_no_update(discrete):
    name = type(discrete).__name__
    allows_all = type(discrete).require_data is ps.Likelihood.require_data  # its author says nothing about its data
    for value, wanted in () if allows_all else BAD[discrete.support]:
        for ask in (
            lambda y: discrete.log_prob(G, y),
            lambda y: discrete.expected_log_prob(G, y),
            lambda y: discrete.condition(STATE, EMISSION, y),
        ):
            with pytest.raises(ValueError, match=f"data must be {wanted}.* for the likelihood {name}, got {value:g} in y1"):
                ask(array([1.0, value]))


def test_likelihoods_are_known_by_names_of_their_own():
    for name, cls in {"gaussian": ps.GaussianLikelihood, "poisson": ps.Poisson, "student_t": ps.StudentT}.items():
        assert isinstance(find_likelihood(name), cls)
    assert isinstance(find_likelihood(None), ps.GaussianLikelihood)
    assert isinstance(find_likelihood("negative_binomial"), NegativeBinomial)
    for wrong in ("poison", "scalar"):
        with pytest.raises(ValueError, match=f"likelihood must be one of gaussian, .*bernoulli.*; got '{wrong}'"):
            find_likelihood(wrong)


# The Gaussian likelihood


@pytest.mark.parametrize("y", OBSERVATIONS, ids=str)
def test_the_gaussian_likelihood_has_the_gaussian_density_and_the_kalman_update(y):
    likelihood, y = LIKELIHOODS["gaussian"], np.asarray(y)
    kept = np.isfinite(y)
    noise = np.diag([0.3, 0.05])
    cov = np.asarray(G.cov, float) + noise
    wanted = stats.multivariate_normal(np.asarray(G.mean, float)[kept], cov[np.ix_(kept, kept)]).logpdf(y[kept])
    assert close(likelihood.log_prob(G, array(y)), wanted)
    p, h = np.asarray(STATE.cov, float), np.asarray(EMISSION.slope, float)[kept]
    s = (h @ p @ h.T) + (np.asarray(EMISSION.noise, float) + noise)[np.ix_(kept, kept)]
    gain = p @ h.T @ np.linalg.inv(s)
    found, _ = likelihood.condition(STATE, EMISSION, array(y))
    assert close(found.mean, np.asarray(STATE.mean) + gain @ (y - np.asarray(EMISSION.mean, float))[kept])
    assert close(found.cov, p - gain @ s @ gain.T)


def test_the_bound_of_one_output_is_the_textbook_formula():
    found = ps.GaussianLikelihood([0.4]).expected_log_prob(ps.Gaussian(array([0.3]), array([[0.5]])), array([1.0]))
    assert close(found, -0.5 * (math.log(2 * math.pi * 0.4) + ((1.0 - 0.3) ** 2 + 0.5) / 0.4))


def test_a_given_variance_is_not_learned_unless_asked_for():
    given, learned = LIKELIHOODS["gaussian"], LIKELIHOODS["gaussian, learned"]
    assert jax.tree.leaves(eqx.filter(given, given.trainable())) == []
    assert len(jax.tree.leaves(eqx.filter(learned, learned.trainable()))) == 1
    assert close(given.variance, [0.3, 0.05])  # no floor beneath what is known
    assert close(ps.GaussianLikelihood([0.3], floor=0.1, learned=True).variance, [0.4])
    assert close(ps.GaussianLikelihood([0.3, 0.3], floor=[0.1, 0.0], learned=True).variance, [0.4, 0.3])
    with pytest.raises(ValueError, match="floor of the measurement noise must be one number or 3, got 2"):
        ps.GaussianLikelihood(floor=[0.1, 0.2]).for_data(Standardiser(array(np.zeros(3)), array(np.ones(3))))


def test_an_unknown_variance_is_known_only_after_it_has_seen_data():
    unknown = ps.GaussianLikelihood()
    assert unknown.learned
    assert unknown.variance is None
    with pytest.raises(ValueError, match=r"variance must be given where nothing is fitted: GaussianLikelihood\(variance=...\)"):
        unknown.log_prob(G, array([0.0, 0.0]))
    ready = unknown.for_data(Standardiser(array([0.0, 0.0, 0.0]), array([1.0, 2.0, 3.0])))
    assert ready.learned
    assert close(ready.variance, np.full(3, 0.1 + 1e-6))


def test_one_variance_stands_for_all_outputs_in_the_units_of_the_data():
    scaling = Standardiser(array([0.0, 0.0]), array([1.0, 10.0]))
    assert close(ps.GaussianLikelihood(0.5).for_data(scaling).variance, [0.5, 0.005])
    assert not ps.GaussianLikelihood(0.5).for_data(scaling).learned
    with pytest.raises(ValueError, match="must be one number or 2, got 3"):
        ps.GaussianLikelihood([0.1, 0.2, 0.3]).for_data(scaling)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"variance": [-0.1]}, "variance must not be negative"),
        ({"variance": [[0.1]]}, "variance must be one number or one per output"),
        ({"variance": [np.nan]}, "variance must be finite"),
        ({"variance": "much"}, "variance must be an array of numbers"),
        ({"floor": -1e-3}, "floor must not be negative"),
        ({"floor": [0.1, -1e-3]}, "floor must not be negative"),
    ],
)
def test_bad_variances_are_refused_by_name(arguments, said):
    with pytest.raises((ValueError, TypeError), match=said):
        ps.GaussianLikelihood(**arguments)
