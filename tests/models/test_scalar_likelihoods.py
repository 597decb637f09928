"""Counts, events and outliers in a model: updates against brute force, exact special cases, filters, densities of forecasts."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from likelihood_oracles import NegativeBinomial, UnitNormal
from oracles import array, close, random_cov, smallest_eigenvalue
from scipy import special, stats

import prodssm as ps
from prodssm.beliefs.linalg import positive_part

RNG = np.random.default_rng(1)
STATE = ps.Gaussian(array([0.3, -0.2]), array([[0.6, 0.2], [0.2, 0.5]]))
NEVER = np.nan


def local_level(likelihood, q=0.1, start=1.0):
    """x[t + 1] = x[t] + N(0, q), observed through the likelihood."""
    walk = ps.Network.from_arrays(weights=[[[1.0]]], biases=[[0.0]], activation="identity")
    belief = ps.Gaussian(array([0.0]), jnp.asarray([[start]], float))
    return ps.StateSpaceModel(
        initial=belief, transition=walk, process_noise=jnp.asarray([q], float), likelihood=likelihood, weights="point"
    )


def by_brute_force(mean, cov, density):
    """Evidence and posterior moments of a state of two dimensions on a grid."""
    axis = np.linspace(-8, 8, 801)
    grid = np.stack([part.ravel() for part in np.meshgrid(axis, axis, indexing="ij")], axis=1)
    mass = stats.multivariate_normal(mean, cov).pdf(grid) * density(grid) * (axis[1] - axis[0]) ** 2
    total = mass.sum()
    centre = mass @ grid / total
    return np.log(total), centre, (grid - centre).T @ ((grid - centre) * mass[:, None]) / total


ONE_OUTPUT = {
    "poisson": (ps.Poisson(), 6.0, lambda g: stats.poisson.pmf(6, np.exp(g))),
    "bernoulli": (ps.Bernoulli(), 0.0, lambda g: special.ndtr(-g)),
    "student t": (ps.StudentT(4, [0.3]), 4.0, lambda g: stats.t.pdf((4.0 - g) / 0.3, 4) / 0.3),
    "negative binomial": (NegativeBinomial(), 6.0, lambda g: stats.nbinom.pmf(6, 3, 3 / (3 + np.exp(g)))),
}


@pytest.mark.parametrize("name", ONE_OUTPUT)
def test_an_update_by_one_output_is_exact(name):
    likelihood, y, density = ONE_OUTPUT[name]
    slope = np.array([[0.8, -0.5]])
    emission = ps.Channel(array([0.1]) + array(slope) @ STATE.mean, array(slope), array([[0.0]]))
    found, evidence = likelihood.condition(STATE, emission, array([y]))
    wanted = by_brute_force(np.asarray(STATE.mean), np.asarray(STATE.cov), lambda x: density(0.1 + x @ slope[0]))
    assert np.allclose(evidence, wanted[0], atol=2e-4)
    assert np.allclose(found.mean, wanted[1], atol=2e-4)
    assert np.allclose(found.cov, wanted[2], atol=2e-4)


def test_an_update_by_two_outputs_is_close_to_brute_force_and_uses_their_correlation():
    emission = ps.Channel(STATE.mean, jnp.eye(2, dtype=STATE.mean.dtype), array(np.zeros((2, 2))))
    found, evidence = ps.Poisson().condition(STATE, emission, array([4.0, 1.0]))

    def density(x):
        return stats.poisson.pmf(4, np.exp(x[:, 0])) * stats.poisson.pmf(1, np.exp(x[:, 1]))

    wanted = by_brute_force(np.asarray(STATE.mean), np.asarray(STATE.cov), density)
    assert np.allclose(evidence, wanted[0], atol=0.01)
    assert np.allclose(found.mean, wanted[1], atol=0.02)
    assert np.allclose(found.cov, wanted[2], atol=0.02)


def test_outputs_share_the_noise_of_a_nonlinear_emission():
    noise = np.array([[0.5, 0.45], [0.45, 0.5]])
    emission = ps.Channel(array([0.2, 0.1]), array([[1.0, 0.3], [-0.4, 1.2]]), array(noise))
    alone = ps.Channel(array([0.2, 0.1]), array([[1.0, 0.3], [-0.4, 1.2]]), array(np.diag(np.diag(noise))))
    wanted, evidence = ps.GaussianLikelihood([1.0, 1.0]).condition(STATE, emission, array([1.5, -1.0]))
    found, same = UnitNormal().condition(STATE, emission, array([1.5, -1.0]))
    assert close(found.mean, wanted.mean)
    assert close(found.cov, wanted.cov)
    assert close(same, evidence)
    assert not close(UnitNormal().condition(STATE, alone, array([1.5, -1.0]))[0].mean, wanted.mean)


@pytest.mark.parametrize("outputs", [1, 2, 5], ids=lambda n: f"{n} outputs")
def test_a_normal_density_that_a_user_writes_is_the_gaussian_likelihood(outputs):
    slope = array(RNG.normal(size=(outputs, 2)))  # five outputs of two states: their covariance is singular
    emission = ps.Channel.of_affine(slope @ STATE.mean, slope)
    y = array(RNG.normal(size=outputs)).at[0].set(NEVER if outputs > 1 else 0.4)
    wanted, evidence = ps.GaussianLikelihood(np.ones(outputs)).condition(STATE, emission, y)
    found, same = UnitNormal().condition(STATE, emission, y)
    assert close(found.mean, wanted.mean, scale=10)
    assert close(found.cov, wanted.cov, scale=10)
    assert close(same, evidence, scale=10)
    g = STATE.predict(emission)
    assert close(UnitNormal().log_prob(g, y), ps.GaussianLikelihood(np.ones(outputs)).log_prob(g, y), scale=10)
    assert close(UnitNormal().predict(g).cov, ps.GaussianLikelihood(np.ones(outputs)).predict(g).cov, scale=10)


@pytest.mark.parametrize("rank", [None, 3], ids=["dense", "low rank"])
def test_global_weights_learn_from_a_normal_density_as_from_the_gaussian_likelihood(rank):
    net = ps.Network.mlp((1, 4, 1), activation="erf", key=jr.key(0))
    y = array(np.sin(np.arange(8.0))[:, None])

    def answer(likelihood):
        belief = ps.Gaussian(array([0.0]), array([[1.0]]))
        parts = {"process_noise": [0.1], "weights": "global", "residual": True, "rank": rank}
        return ps.filter_states(ps.StateSpaceModel(initial=belief, transition=net, likelihood=likelihood, **parts), y)

    found, wanted = answer(UnitNormal()), answer(ps.GaussianLikelihood([1.0]))
    assert close(found.mean, wanted.mean, scale=30)
    assert close(found.cov, wanted.cov, scale=30)
    assert close(found.log_evidence, wanted.log_evidence, scale=30)
    assert close(found.weights.mean, wanted.weights.mean, scale=30)
    assert close(found.weights.cov(), wanted.weights.cov(), scale=30)


def test_an_outlier_leaves_the_joint_belief_about_state_and_weights_psd():
    net = ps.Network.mlp((2, 3, 2), key=jr.key(0))
    joint = ps.JointGaussian.independent(STATE, net.weights)
    joint = joint.predict(ps.channel(net, joint, weights="global"))
    emission = ps.Channel.of_affine(joint.mean, jnp.eye(2, dtype=joint.mean.dtype))
    y = joint.mean + array([6.0, 0.1]) * joint.std
    found, _ = ps.StudentT(4, [0.2, 0.2]).condition(joint, emission, y)
    assert found.var[0] > joint.var[0]
    assert smallest_eigenvalue(found.dense().cov) > -1e-7
    alone, _ = ps.StudentT(4, [0.2, 0.2]).condition(joint.state, emission, y)
    assert close(found.mean, alone.mean)
    assert close(found.cov, alone.cov)


def test_the_positive_part_of_a_matrix_has_a_gradient_at_equal_eigenvalues():
    same = array(np.diag([1.0, 1.0, -2.0]))
    assert close(positive_part(same), np.diag([1.0, 1.0, 0.0]))
    assert jnp.isfinite(jax.jacobian(positive_part)(same)).all()
    cov, change = array(random_cov(RNG, 3) - 1.5 * np.eye(3)), array(random_cov(RNG, 3))
    step = 1e-6 if cov.dtype == jnp.float64 else 1e-2
    slope = (positive_part(cov + step * change) - positive_part(cov - step * change)) / (2 * step)
    found = jax.jvp(positive_part, (cov,), (change,))[1]
    assert np.allclose(found, slope, atol=1e-4 if cov.dtype == jnp.float64 else 5e-2)


# ---------------------------------------------------------------- Student t


def test_with_many_degrees_of_freedom_student_t_is_gaussian():
    y = array(RNG.normal(size=(20, 1)))
    found = ps.filter_states(local_level(ps.StudentT(1e6, [1.0])), y)
    wanted = ps.filter_states(local_level(ps.GaussianLikelihood([1.0])), y)
    assert np.allclose(found.mean, wanted.mean, atol=1e-4)
    assert np.allclose(found.cov, wanted.cov, atol=1e-4)
    assert np.allclose(found.log_evidence, wanted.log_evidence, atol=1e-4)


@pytest.mark.parametrize("measured", [1.0, 10.0])
def test_an_outlier_of_twenty_deviations_moves_the_filter_by_less_than_one(measured):
    q, r = 0.1 * measured, measured  # q / r = .1
    y = np.cumsum(np.sqrt(q) * RNG.normal(size=60)) + np.sqrt(r) * RNG.normal(size=60)
    spoiled, gap = y.copy(), y.copy()
    before = ps.filter_states(local_level(ps.StudentT(4, [np.sqrt(r)]), q), array(y[:, None]))
    spoiled[40], gap[40] = float(before.mean[39, 0]) + 20 * np.sqrt(r), np.nan
    filters = {
        name: [ps.filter_states(local_level(each, q), array(part[:, None])) for part in (spoiled, gap)]
        for name, each in (("student", ps.StudentT(4, [np.sqrt(r)])), ("gaussian", ps.GaussianLikelihood([r])))
    }
    moved = {n: float(abs(a.mean[40, 0] - b.mean[40, 0]) / b.std[40, 0]) for n, (a, b) in filters.items()}
    print(f"an outlier of 20 deviations moves the filter by {moved} standard deviations")  # noqa: T201
    assert moved["student"] < 1.0
    assert moved["gaussian"] > 5.0


@pytest.mark.parametrize("df", [1.0, 2.0])
def test_without_a_variance_a_filter_runs_and_moments_say_why_there_are_none(df):
    ssm = local_level(ps.StudentT(df, [0.5]))
    y = array(RNG.normal(size=(10, 1)))
    assert np.isfinite(ps.filter_states(ssm, y).log_evidence).all()
    assert np.isfinite(ps.smooth_states(ssm, y).cov).all()
    assert np.isfinite(ssm.likelihood.quantile([0.0], [1.0], 0.975)).all()
    with pytest.raises(ValueError, match=r"df must be larger than 2 for a variance, got"):
        ps.forecast(ssm, y, steps=2)
    with pytest.raises(ValueError, match=r"df must be larger than 2 for a variance, got"):
        ssm.likelihood.conditional_var(STATE)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"df": 0}, "df must be positive, got 0"),
        ({"df": "four"}, "df must be a number"),
        ({"scale": [0.1, 0.0]}, "scale must be positive and finite"),
        ({"scale": [[0.1]]}, "scale must be one number or one per output"),
    ],
)
def test_a_bad_df_or_scale_is_refused_by_name(arguments, said):
    with pytest.raises((ValueError, TypeError), match=said):
        ps.StudentT(**arguments)


def test_the_scale_of_data_with_outliers_is_that_of_the_rest():
    y = RNG.normal(size=(400, 1))
    y[::20] += 200.0
    scaling = ps.StudentT().standardiser(y)
    assert 0.5 < float(scaling.scale[0]) < 10.0
    assert abs(float(scaling.mean[0])) < 0.3


@pytest.mark.parametrize("df", [1.0, 4.0, 30.0])
@pytest.mark.parametrize("var", [0.0, 0.01, 4.0])
def test_quantiles_of_student_t_are_those_of_a_convolution(df, var):
    likelihood = ps.StudentT(df, [0.5])
    z, weights = np.polynomial.hermite_e.hermegauss(180)
    for probability in (0.025, 0.5, 0.9):
        at = likelihood.quantile([0.7], [var], probability)
        wanted = stats.t.cdf((at - 0.7 - np.sqrt(var) * z) / 0.5, df) @ weights / weights.sum()
        assert np.isclose(wanted, probability, atol=2e-4)


# ---------------------------------------------------------------- counts and events


@pytest.mark.parametrize(
    ("mean", "var", "k"), [(0.5, 1.0, 3), (0.5, 0.0, 2), (3.0, 1e-4, 22), (11.5, 0.25, 120_000), (2.0, 9.0, 0)]
)
def test_the_distribution_function_of_counts_is_the_sum_of_their_probabilities(mean, var, k):
    z = np.linspace(-9, 9, 200_001)
    weights = np.exp(-0.5 * z**2)
    wanted = stats.poisson.cdf(k, np.exp(mean + np.sqrt(var) * z)) @ weights / weights.sum()
    assert np.allclose(ps.Poisson().cdf([mean], [var], [float(k)]), wanted, atol=1e-6)
    assert ps.Poisson().cdf([mean], [var], [-1.0]) == 0.0


@pytest.mark.parametrize("var", [0.0, 1.0, 25.0])
def test_intervals_of_counts_are_counts(var):
    lower, upper = (ps.Poisson().quantile([-1.0, 3.0, 11.0], [var] * 3, p) for p in (0.025, 0.975))
    assert (lower >= 0).all()
    assert (lower <= upper).all()
    assert (upper == np.round(upper)).all()


def test_a_filter_of_counts_follows_their_rate_over_a_gap():
    ssm = local_level(ps.Poisson(), q=0.02)
    y = RNG.poisson(np.exp(2 + np.sin(np.arange(60) / 8)))[:, None].astype(float)
    y[30:35] = np.nan
    found = ps.filter_states(ssm, array(y))
    assert (np.asarray(found.log_evidence)[30:35] == 0.0).all()
    assert np.abs(np.asarray(found.mean)[20:30, 0] - (2 + np.sin(np.arange(20, 30) / 8))).max() < 0.6
    assert (np.diff(np.asarray(found.std)[29:35, 0]) > 0).all()
    ahead = ps.forecast(ssm, array(y), steps=5)
    assert (np.asarray(ahead.mean) > 0).all()
    states, drawn = ps.simulate(ssm, 20, key=jr.key(0))
    assert (np.asarray(drawn) >= 0).all()
    assert states.shape == drawn.shape


@pytest.mark.slow
@pytest.mark.parametrize("likelihood", [ps.Poisson(), ps.Bernoulli(), ps.StudentT(4, [0.3])], ids=repr)
def test_a_smoother_can_be_iterated_with_any_likelihood_and_its_paths_have_its_moments(likelihood):
    y = array(np.random.default_rng(2).integers(0, 2, size=(15, 1)))
    once, often = (ps.smooth_states(local_level(likelihood), y, iterations=most) for most in (1, 50))
    assert often.convergence.converged
    assert often.convergence.passes == 2  # the functions are affine: a second pass finds the same channels
    assert close(often.mean, once.mean, scale=10)
    assert close(often.cov, once.cov, scale=10)
    paths = np.asarray(often.sample(4000, jr.key(0)), float)
    assert (np.abs(paths.mean(axis=0) - often.mean) < 5 * often.std / 4000**0.5).all()
    assert (np.abs(paths.var(axis=0) / often.cov[:, :, 0] - 1) < 5 * (2 / 4000) ** 0.5).all()


@pytest.mark.parametrize("likelihood", [ps.Poisson(), ps.Bernoulli(), ps.StudentT(4, [0.3])], ids=repr)
def test_the_evidence_of_a_filter_has_finite_gradients_from_a_certain_start(likelihood):
    y = array([[1.0], [0.0], [np.nan], [1.0]])

    def evidence(start, q):
        return ps.filter_states(local_level(likelihood, q=q, start=start), y).log_likelihood

    for start in (0.0, 1.0):
        grads = jax.jit(jax.grad(lambda q, start=start: evidence(start, q)))(array(0.1))
        assert jnp.isfinite(grads)


@pytest.mark.parametrize(
    ("likelihood", "y", "said"),
    [
        (ps.Poisson(), [[1.0], [-2.0]], r"data must be counts 0, 1, 2, ... for the likelihood Poisson, got -2 in y0 at row 1"),
        (ps.Poisson(), [[0.5]], r"got 0.5 in y0 at row 0"),
        (ps.Bernoulli(), [[1.0], [2.0]], r"data must be labels 0 and 1 for the likelihood Bernoulli, got 2 in y0 at row 1"),
    ],
)
def test_data_outside_the_support_are_refused(likelihood, y, said):
    with pytest.raises(ValueError, match=said):
        likelihood.require_data(np.asarray(y))
    likelihood.require_data(np.array([[np.nan], [1.0]]))
    with pytest.raises(ValueError, match="in sales at row"):
        likelihood.require_data(np.asarray(y), ["sales"])
    model, series = local_level(likelihood), ps.Series(array(y))
    for ask in (
        lambda: ps.filter_states(model, series),
        lambda: ps.smooth_states(model, series),
        lambda: ps.forecast(model, series, 2),
        lambda: ps.train(model, [series], key=jr.key(0)),
    ):
        with pytest.raises(ValueError, match=said):
            ask()


def test_starts_are_the_mean_count_and_the_mean_rate_of_events():
    counts, events = array([[0.0], [4.0], [np.nan], [8.0]]), array([[0.0], [1.0], [1.0]])
    assert np.allclose(ps.Poisson().offset(np.asarray(counts)), np.log(4.0))
    assert np.allclose(ps.Bernoulli().offset(np.asarray(events)), special.ndtri(2.5 / 4))
    assert np.isfinite(ps.Poisson().offset(np.zeros((5, 1)))).all()
    assert np.isnan(ps.Poisson().link(np.asarray(counts))[2, 0])
    assert np.isfinite(ps.Bernoulli().link(np.asarray(events))).all()
