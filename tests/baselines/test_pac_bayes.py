"""E-PAC-Bayes: likelihood, divergence and bound in closed form where there is one, exact moments, and a short fit."""

import math
from dataclasses import replace

import jax
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close
from scipy.stats import multivariate_normal

import prodssm as ps
from prodssm.baselines.pac_bayes import RECIPE, BoundTask, EPACBayes, NeuralSDE, complexity, window_score
from prodssm.data.scaling import Standardiser
from prodssm.datasets import kink

SLOPE, SHIFT, SHIFT_VAR, DIFFUSION, R = -0.4, 0.3, 0.2, 0.1, 0.25


def linear_sde():
    """dx = (slope x + shift) dt + g dB with a random shift, so that all paths are jointly Gaussian."""
    drift = ps.Network.from_arrays(
        [array([[SLOPE]])], [array([SHIFT])], weight_vars=[array([[0.0]])], bias_vars=[array([SHIFT_VAR])]
    )
    return NeuralSDE(drift, array([math.log(DIFFUSION)]))


def neural_sde(hidden=7, log_var=-2.0):
    return NeuralSDE(ps.Network.mlp((1, hidden, 1), key=jr.key(0), log_var=log_var), array([math.log(DIFFUSION)]))


def path_moments(first, first_var, steps):
    """Mean and covariance of (x_1, shift, x_2, ..., x_steps+1) of the linear SDE."""
    mean, cov = np.array([first, SHIFT]), np.diag([first_var, SHIFT_VAR])
    for k in range(steps):
        row = np.zeros(2 + k)
        row[-1 if k else 0], row[1] = 1.0 + SLOPE, 1.0
        mean = np.append(mean, row @ mean)
        cross = cov @ row
        cov = np.block([[cov, cross[:, None]], [cross[None, :], np.array([[row @ cross + DIFFUSION]])]])
    return mean, cov


def make_task(y, held_out=None, window=3, weight=1.0):
    recipe = replace(RECIPE, prior_weight=weight)
    y = np.asarray(array(y))
    number = np.asarray(R, y.dtype)
    return BoundTask(
        y, held_out, number, jr.key(7), np.asarray(weight, y.dtype), recipe, recipe.pace(y.dtype), window, 16, 0.05
    )


def test_the_marginal_likelihood_is_that_of_the_joint_gaussian():
    y, count = array([[0.7], [0.9], [0.2], [0.6]]), 200
    gain = (1 - R) / 1.0
    mean, cov = path_moments(gain * 0.7, gain * R, 3)
    exact = multivariate_normal(mean[2:], cov[2:, 2:] + R * np.eye(3)).logpdf(np.asarray(y[1:, 0]))
    score = jax.jit(jax.vmap(lambda key: window_score(linear_sde(), y, array(R), 500, key=key)[0]))
    ratios = np.exp(np.asarray(score(jr.split(jr.key(0), count)), float) - exact)
    assert abs(ratios.mean() - 1) < 5 * ratios.std() / math.sqrt(count)


def test_the_divergence_of_paths_is_girsanovs():
    first, steps, count = array([0.4]), 3, 20_000
    sde = linear_sde()
    mean, cov = path_moments(0.4, 0.0, steps)
    exact = 0.0
    for k in range(steps):
        at = k + 1 if k else 0
        force, var = SLOPE * mean[at] + mean[1], SLOPE**2 * cov[at, at] + cov[1, 1] + 2 * SLOPE * cov[at, 1]
        exact += (force**2 + var) / (2 * DIFFUSION)
    paths = jax.jit(jax.vmap(lambda key: sde.sample(first, steps, key=key)))(jr.split(jr.key(0), count))
    found = np.asarray(paths.divergence, float)
    assert abs(found.mean() - exact) < 5 * found.std() / math.sqrt(count)
    # Weights are drawn once per path: the states of one path share their shift.
    states = np.asarray(paths.states[:, :, 0], float)
    assert np.allclose(np.cov(states.T), cov[2:, 2:], atol=6 * cov[2:, 2:].max() * math.sqrt(2 / count))


def test_the_divergence_of_weights_is_that_of_gaussians():
    sde = neural_sde()
    belief = sde.drift.weights
    mean, var = np.asarray(belief.mean, float), np.asarray(belief.var, float)
    assert close(sde.weight_divergence(), 0.5 * (mean**2 + var - 1 - np.log(var)).sum())


def test_complexity_is_the_square_root_term_of_the_bound():
    assert close(complexity(array(0.0), 1, 0.05), math.sqrt(math.log(2 / 0.025) / 2))
    assert close(complexity(array(30.0), 12, 0.1), math.sqrt((30 + math.log(2 * math.sqrt(12) / 0.05)) / 24))


def test_windows_share_their_ends_and_reach_every_transition():
    task = make_task(np.arange(20.0)[:, None], window=4)
    seen = set()
    for seed in range(60):
        windows = np.asarray(task.draw(jr.key(seed)))[:, :, 0]
        assert windows.shape == (task.count, 4)
        assert (np.diff(windows, axis=1) == 1).all()
        assert (windows[1:, 0] == windows[:-1, -1]).all()
        seen |= set(windows[:, :-1].ravel().astype(int).tolist())
    assert seen == set(range(19))


def test_the_objective_is_e_bayes_minus_the_weighted_complexity():
    y, sde = np.random.default_rng(0).normal(size=(15, 1)), neural_sde()
    values = {weight: make_task(y, weight=weight).objective(sde, jr.key(3)) for weight in (0.0, 1.0, 2.0)}
    assert close(values[0.0] - values[2.0], 2 * (values[0.0] - values[1.0]))
    task = make_task(y)
    window_key, path_key = jr.split(jr.key(3))
    scores, divergences = task.scores(sde, task.draw(window_key), 16, path_key)
    penalty = complexity(divergences.mean() + sde.weight_divergence(), task.count, 0.05)
    assert close(values[0.0], scores.mean() / 2)
    assert close(values[1.0], (scores.mean() - penalty) / 2)


def test_moments_of_the_transition_are_those_of_sampled_weights():
    model = EPACBayes(0.1)
    model.sde_, model.scaling_ = neural_sde(log_var=-1.0), Standardiser(*np.asarray(array([[0.5], [2.0]])))
    x, count = np.array([[-1.0], [0.4], [3.0]]), 20_000
    found = model.transition(x)
    standard = array((x - 0.5) / 2.0)
    draw = jax.jit(jax.vmap(lambda key: standard + jax.vmap(model.sde_.drift.sample(key))(standard)))
    samples = 2.0 * np.asarray(draw(jr.split(jr.key(1), count)), float) + 0.5
    assert found.mean.shape == found.var.shape == (3, 1)
    assert (np.abs(samples.mean(axis=0) - found.mean) < 5 * samples.std(axis=0) / math.sqrt(count)).all()
    fourth = ((samples - samples.mean(axis=0)) ** 4).mean(axis=0)
    assert (np.abs(samples.var(axis=0) - found.var) < 5 * np.sqrt((fourth - samples.var(axis=0) ** 2) / count)).all()


@pytest.mark.usefixtures("standard_promotion")
def test_a_short_fit_learns_the_kink_and_keeps_the_best_number_of_iterations():
    data = kink.simulate(0.008, seed=9000)
    recipe = ps.Recipe(iterations=200, learning_rate=0.02)
    model = EPACBayes(0.008, hidden=20, samples=16, recipe=recipe, progress=False).fit(data.y)
    assert model.history_.iterations[-1] in range(25, 201, 25)
    grid = kink.grid(data)[:, None]
    found, truth = model.transition(grid), kink.kink(grid)
    # The prior of the paths has no drift: it stays where it is.
    assert ps.metrics.mse(truth, found.mean) < 0.05 * ps.metrics.mse(truth, grid)
    assert (found.var > 0).all()


@pytest.mark.usefixtures("standard_promotion")
def test_without_validation_the_iterations_are_a_budget():
    y = kink.simulate(0.08, seed=9000, steps=30).y
    model = EPACBayes(0.08, hidden=4, samples=4, recipe=ps.Recipe(iterations=30, validation=0.0), progress=False).fit(y)
    assert model.history_.iterations[-1] == 30
    assert not model.history_.validation


@pytest.mark.parametrize("y", [np.zeros((4, 1)), np.zeros((30, 2))])
def test_too_little_data_or_several_columns_are_refused(y):
    with pytest.raises(ValueError, match="one column"):
        EPACBayes(0.1, progress=False).fit(y)


def test_settings_are_checked():
    with pytest.raises(ValueError, match="r must be positive"):
        EPACBayes(0.0)
    with pytest.raises(ValueError, match="delta"):
        EPACBayes(0.1, delta=1.5)
