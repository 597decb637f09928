"""The neural filter: its bound is one, the best forward inference network of a linear model is found, and it is causal."""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from linear_oracles import linear_state_space, random_linear_model
from oracles import array, close
from scipy.stats import multivariate_normal, norm

import prodssm as ps
from prodssm.baselines.neural_filter import InferenceNetwork, NeuralFilter, Posterior, lower_bound
from prodssm.data.scaling import Standardiser

LENGTH = 10
GAIN, SHIFT, Q, R = 0.8, 0.3, 0.3, 0.5


def scalar_model():
    """A linear model of one state that is seen directly."""
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.5]), array([[1.5]])),
        transition=ps.Network.from_arrays([array([[GAIN]])], [array([SHIFT])]),
        process_noise=array([Q]),
        measurement_noise=array([R]),
        weights="point",
    )


def nonlinear_model(x=3, y=2):
    """A residual model with a process noise that depends on the state, and a correlated initial belief."""
    keys, root = jr.split(jr.key(3), 3), np.random.default_rng(0).normal(size=(x, x))
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.arange(x)), array(root @ root.T + 0.1 * np.eye(x))),
        transition=ps.Network.mlp((x, 4, x), "tanh", uncertain=False, key=keys[0]),
        emission=ps.Network.mlp((x, 5, y), "tanh", uncertain=False, key=keys[1]),
        process_noise=ps.Network.mlp((x, 3, x), "tanh", uncertain=False, key=keys[2]),
        measurement_noise=array([0.3, 0.6]),
        weights="point",
        residual=True,
    )


def random_posterior(model, hidden=6, seed=0):
    network = InferenceNetwork.random(model.x_size, model.y_size, hidden, model.dtype, key=jr.key(seed))
    x, y = (Standardiser(np.full(n, 0.3, model.dtype), np.full(n, 1.7, model.dtype)) for n in (model.x_size, model.y_size))
    return Posterior(network, x, y)


def best_forward_posterior(y):
    """The q(x_t | x_{t-1}, y_1..y_t) of the scalar model that maximises the bound, and the bound of y under it.

    By one big joint Gaussian of states and observations: p(x_t | x_{t-1}, y) = N(a x_{t-1} + c(y), v), and the expected
    divergence of a Gaussian that does not see the future is least for N(a x_{t-1} + E[c(y) | y_1..y_t], v).
    """
    time = len(y)
    mean, cov = np.empty(2 * time), np.empty((2 * time, 2 * time))
    lags = np.subtract.outer(np.arange(time), np.arange(time))
    variances, means = [1.5], [0.5]
    for _ in range(time - 1):
        variances.append(GAIN**2 * variances[-1] + Q)
        means.append(GAIN * means[-1] + SHIFT)
    states = GAIN ** np.abs(lags) * np.array(variances)[np.minimum.outer(np.arange(time), np.arange(time))]
    mean[:], cov[:] = np.tile(means, 2), np.tile(states, (2, 2))
    cov[time:, time:] += R * np.eye(time)
    seen = np.arange(time, 2 * time)
    best, var, gap = np.empty(time), np.empty(time), 0.0
    for t in range(time):
        given = np.concatenate([[t - 1] if t else [], seen]).astype(int)
        slope = np.linalg.solve(cov[np.ix_(given, given)], cov[given, t])
        noise = cov[t, t] - slope @ cov[given, t]
        past = seen[: t + 1]
        ahead = mean[seen] + cov[np.ix_(seen, past)] @ np.linalg.solve(cov[np.ix_(past, past)], y[: t + 1] - mean[past])
        inputs = np.concatenate([best[t - 1 : t], ahead]) if t else ahead
        best[t] = mean[t] + slope @ (inputs - mean[given])
        var[t] = noise + (slope[0] ** 2 * var[t - 1] if t else 0.0)
        gap += (slope[-time:] @ (y - ahead)) ** 2 / (2 * noise)
    return best, var, multivariate_normal(mean[seen], cov[np.ix_(seen, seen)]).logpdf(y) - gap


def test_the_bound_is_the_expected_log_ratio_of_model_and_posterior():
    model, count = nonlinear_model(), 4000
    posterior, y = random_posterior(model), array(np.random.default_rng(1).normal(size=(5, 2)))
    keys = jr.split(jr.key(0), count)
    found = eqx.filter_jit(jax.vmap(lambda key: lower_bound(posterior, model, y, key=key)))(keys)
    paths = eqx.filter_jit(jax.vmap(lambda key: posterior.sample(model, y, key=key)))(keys)
    x, means, covs = (np.asarray(part, float) for part in (paths.states, paths.means, paths.covs))
    flat = array(x[:, :-1].reshape(-1, 3))
    moved = np.asarray(flat + jax.vmap(model.transition)(flat), float).reshape(count, 4, 3)
    variances = 1e-6 + np.logaddexp(0.0, np.asarray(jax.vmap(model.process_network)(flat), float).reshape(count, 4, 3))
    outputs = np.asarray(jax.vmap(model.emission)(array(x.reshape(-1, 3))), float).reshape(count, 5, 2)
    ratio = multivariate_normal(np.asarray(model.initial.mean), np.asarray(model.initial.cov)).logpdf(x[:, 0])
    ratio += norm.logpdf(x[:, 1:], moved, np.sqrt(variances)).sum(axis=(1, 2))
    ratio += norm.logpdf(np.asarray(y), outputs, np.sqrt([0.3, 0.6])).sum(axis=(1, 2))
    centred = x - means
    squares = np.einsum("sti,sti->st", centred, np.linalg.solve(covs, centred[..., None])[..., 0])
    ratio += 0.5 * (squares + np.linalg.slogdet(2 * math.pi * covs)[1]).sum(axis=1)
    difference = np.asarray(found) - ratio
    assert abs(difference.mean()) < 5 * difference.std() / math.sqrt(count)
    assert difference.std() > 0


def test_any_posterior_bounds_the_log_likelihood_of_a_linear_model():
    model = linear_state_space(random_linear_model(0), weights="point")
    y = ps.simulate(model, 6, key=jr.key(0))[1]
    posterior = random_posterior(model)
    found = jax.jit(jax.vmap(lambda key: lower_bound(posterior, model, jnp.asarray(y), key=key)))(jr.split(jr.key(1), 500))
    assert found.mean() + 5 * found.std() / math.sqrt(500) < ps.filter_states(model, y).log_likelihood


@pytest.fixture(scope="module")
def trained():
    """A filter of the scalar model, and twenty of its series."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        recipe = ps.Recipe(iterations=1500, learning_rate=3e-3)
        found = NeuralFilter(scalar_model(), hidden=32, length=LENGTH, recipe=recipe, samples=2000, progress=False).fit()
    return found, [ps.simulate(found.model, LENGTH, key=jr.key(100 + n))[1] for n in range(20)]


def test_training_finds_the_best_forward_posterior_of_a_linear_model(trained):
    found, series = trained
    oracle = [best_forward_posterior(np.asarray(y[:, 0], float)) for y in series]
    means, variances, best = (np.stack(part) for part in zip(*oracle, strict=True))
    filtered = [found.filter(y) for y in series]
    errors = np.stack([each.mean[:, 0] for each in filtered]) - means
    ratios = np.stack([each.cov[:, 0, 0] for each in filtered]) / variances
    assert np.sqrt((errors**2 / variances).mean()) < 0.1
    assert abs(np.log(ratios.mean(axis=0))).max() < 0.3
    assert abs(np.log(ratios.mean())) < 0.1
    bounds = np.stack([found.bounds(y) for y in series])
    error = math.sqrt((bounds.var(axis=1) / bounds.shape[1]).mean() / len(series))
    assert abs(bounds.mean() - best.mean()) < 0.1 + 5 * error


def test_the_filter_is_close_to_a_kalman_filter_and_its_bound_below_the_log_likelihood(trained):
    found, series = trained
    exact, filtered = [ps.filter_states(found.model, y) for y in series], [found.filter(y) for y in series]
    errors = [(mine.mean - each.mean) / np.sqrt(each.cov[:, :, 0]) for mine, each in zip(filtered, exact, strict=True)]
    assert np.sqrt(np.square(errors).mean()) < 0.25
    # Narrower, because the bound compares it with the smoothed density, which it cannot know.
    smoothed = np.mean([ps.smooth_states(found.model, y).cov for y in series])
    assert 0.95 * smoothed < np.mean([each.cov for each in filtered]) < np.mean([each.cov for each in exact])
    for y, each in zip(series, exact, strict=True):
        bounds = found.bounds(y)
        assert bounds.mean() - 5 * bounds.std() / math.sqrt(len(bounds)) < each.log_likelihood


def test_padding_and_later_observations_have_no_effect(trained):
    found, series = trained
    whole, part = found.filter(series[0]), found.filter(series[0][:-1])
    assert part.mean.shape == (LENGTH - 1, 1)
    assert part.cov.shape == (LENGTH - 1, 1, 1)
    assert close(part.mean, whole.mean[:-1])
    assert close(part.cov, whole.cov[:-1])


def test_moments_are_those_of_sampled_states():
    model = nonlinear_model()
    found = NeuralFilter(model, samples=4000, progress=False)
    found.posterior_ = random_posterior(model)
    y = array(np.random.default_rng(1).normal(size=(5, 2)))
    moments, keys = found.filter(y), jr.split(jr.key(9), 4000)
    states = np.asarray(eqx.filter_jit(jax.vmap(lambda key: found.posterior_.sample(model, y, key=key).states))(keys), float)
    for t in range(5):
        std = np.sqrt(np.diag(moments.cov[t]))
        assert (np.abs(states[:, t].mean(axis=0) - moments.mean[t]) < 6 * std / math.sqrt(4000)).all()
        assert (np.abs(np.cov(states[:, t].T) - moments.cov[t]) < 8 * np.outer(std, std) / math.sqrt(4000)).all()


def test_an_initial_state_that_is_known_costs_no_divergence():
    model = scalar_model()
    model = eqx.tree_at(lambda m: m.initial_chol, model, array([[0.0]]))
    posterior = random_posterior(model)
    found = [lower_bound(posterior, model, array([[0.1]]), weight, key=jr.key(0)) for weight in (0.0, 1.0)]
    white, var = posterior.network.first(posterior.network.read(array([[-0.2 / 1.7]]))[0])
    assert close(found[0], norm.logpdf(0.1, 0.5, math.sqrt(R)))
    assert close(found[0] - found[1], 0.5 * (var + white**2 - 1 - jnp.log(var)).sum())


def test_models_that_have_no_gaussian_transition_density_are_refused():
    model = scalar_model()
    with pytest.raises(ValueError, match="weights='point'"):
        NeuralFilter(model.with_weight_mode("local"))
    with pytest.raises(ValueError, match="process_noise must be positive"):
        NeuralFilter(eqx.tree_at(lambda m: m.log_process_noise, model, array([-np.inf])))
    with pytest.raises(ValueError, match="batch"):
        NeuralFilter(model, recipe=ps.Recipe(batch="all"))
    controlled = linear_state_space(random_linear_model(0), control_gain=np.ones((3, 1)), weights="point")
    with pytest.raises(ValueError, match="controls"):
        NeuralFilter(controlled)
