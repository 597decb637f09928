"""Linear models over time: textbook Kalman filter and smoother, and conditioning of the joint Gaussian, in NumPy."""

import math
from typing import NamedTuple

import numpy as np
from oracles import array, random_cov

import prodssm as ps


class LinearModel(NamedTuple):
    """x_1 ~ N(mean, cov); x_{t+1} = shift + F x_t + N(0, process_noise); y_t = offset + H x_t + N(0, measurement_noise)."""

    mean: np.ndarray
    cov: np.ndarray
    shift: np.ndarray
    transition: np.ndarray  # F
    process_noise: np.ndarray
    offset: np.ndarray
    emission: np.ndarray  # H
    measurement_noise: np.ndarray


def random_linear_model(seed, x=3, y=2):
    """A stable model with state size x and observation size y."""
    rng = np.random.default_rng(seed)
    return LinearModel(
        rng.normal(size=x),
        random_cov(rng, x),
        rng.normal(size=x),
        0.9 * np.linalg.qr(rng.normal(size=(x, x)))[0],
        0.3 * random_cov(rng, x),
        rng.normal(size=y),
        rng.normal(size=(y, x)),
        0.5 * random_cov(rng, y),
    )


def random_observations(model, time, seed, missing=0.3):
    """Observations of the model, some coordinates and one whole time step (the third) of them missing (NaN)."""
    rng = np.random.default_rng(seed)
    state, observations = rng.multivariate_normal(model.mean, model.cov), []
    for _ in range(time):
        observations.append(rng.multivariate_normal(model.offset + model.emission @ state, model.measurement_noise))
        state = rng.multivariate_normal(model.shift + model.transition @ state, model.process_noise)
    observations = np.where(rng.random((time, len(model.offset))) < missing, np.nan, np.array(observations))
    observations[2] = np.nan
    return observations


def joint_posterior(model, observations):
    """All states given all observations, by one big joint Gaussian: means (t, x), covariances (t, x, x), log evidence."""
    time, x, y = len(observations), len(model.mean), len(model.offset)
    means, blocks = [model.mean], {(0, 0): model.cov}
    for t in range(1, time):
        means.append(model.shift + model.transition @ means[-1])
        for s in range(t):
            blocks[t, s] = model.transition @ blocks[t - 1, s]
            blocks[s, t] = blocks[t, s].T
        blocks[t, t] = model.transition @ blocks[t - 1, t - 1] @ model.transition.T + model.process_noise
    prior = np.block([[blocks[t, s] for s in range(time)] for t in range(time)])
    prior_mean = np.concatenate(means)
    emission = np.kron(np.eye(time), model.emission)
    noise = np.kron(np.eye(time), model.measurement_noise)
    observed = ~np.isnan(observations.reshape(-1))
    emission, noise = emission[observed], noise[np.ix_(observed, observed)]
    innovation = observations.reshape(-1)[observed] - (emission @ prior_mean + np.tile(model.offset, time)[observed])
    innovation_cov = emission @ prior @ emission.T + noise
    gain = prior @ emission.T @ np.linalg.inv(innovation_cov)
    mean, cov = prior_mean + gain @ innovation, prior - gain @ emission @ prior
    covs = np.stack([cov[t * x : (t + 1) * x, t * x : (t + 1) * x] for t in range(time)])
    assert y == observations.shape[1]
    return mean.reshape(time, x), covs, _log_density(innovation, innovation_cov)


def textbook_kalman_filter(model, observations, shifts=None):
    """Filtered means and covariances and each step's log evidence, with inverses written out and missing rows cut away.

    Args:
        model: The linear model.
        observations: Observations (time, y), NaN where missing.
        shifts: What stands in for `model.shift` at each time step, as a control input does.
    """
    shifts = _shifts(model, observations, shifts)
    mean, cov, means, covs, evidence = model.mean, model.cov, [], [], []
    for y, shift in zip(observations, shifts, strict=True):
        observed = ~np.isnan(y)
        emission = model.emission[observed]
        innovation_cov = emission @ cov @ emission.T + model.measurement_noise[np.ix_(observed, observed)]
        innovation = y[observed] - model.offset[observed] - emission @ mean
        gain = cov @ emission.T @ np.linalg.inv(innovation_cov)
        mean, cov = mean + gain @ innovation, cov - gain @ innovation_cov @ gain.T
        evidence.append(_log_density(innovation, innovation_cov))
        means.append(mean)
        covs.append(cov)
        mean, cov = shift + model.transition @ mean, model.transition @ cov @ model.transition.T + model.process_noise
    return np.stack(means), np.stack(covs), np.array(evidence)


def textbook_smoother(model, observations, shifts=None):
    """Smoothed means and covariances by the Rauch-Tung-Striebel recursion, with inverses written out."""
    shifts = _shifts(model, observations, shifts)
    filtered_means, filtered_covs, _ = textbook_kalman_filter(model, observations, shifts)
    means, covs = [filtered_means[-1]], [filtered_covs[-1]]
    for mean, cov, shift in zip(filtered_means[-2::-1], filtered_covs[-2::-1], shifts[-2::-1], strict=True):
        predicted_cov = model.transition @ cov @ model.transition.T + model.process_noise
        gain = cov @ model.transition.T @ np.linalg.inv(predicted_cov)
        means.insert(0, mean + gain @ (means[0] - shift - model.transition @ mean))
        covs.insert(0, cov + gain @ (covs[0] - predicted_cov) @ gain.T)
    return np.stack(means), np.stack(covs)


def _shifts(model, observations, shifts):
    return np.tile(model.shift, (len(observations), 1)) if shifts is None else np.asarray(shifts, float)


def _log_density(innovation, cov):
    return -(innovation @ np.linalg.solve(cov, innovation) + np.linalg.slogdet(2 * math.pi * cov)[1]) / 2


def linear_state_space(model, control_gain=None, **settings):
    """The `StateSpaceModel` of a linear model with diagonal noises, whose transition adds control_gain u if that is given."""
    slope = model.transition if control_gain is None else np.hstack([model.transition, control_gain])
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(model.mean), array(model.cov)),
        transition=ps.Network.from_arrays([array(slope)], [array(model.shift)]),
        emission=ps.Network.from_arrays([array(model.emission)], [array(model.offset)]),
        process_noise=array(np.diag(model.process_noise)),
        measurement_noise=array(np.diag(model.measurement_noise)),
        **settings,
    )


def unstable_model():
    """A linear model of gain 30, whose beliefs overflow within 400 steps without an observation."""
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.0]), array([[1.0]])),
        transition=ps.Network.from_arrays([array([[30.0]])], [array([0.0])]),
        process_noise=array([0.1]),
        measurement_noise=array([0.1]),
        weights="point",
    )
