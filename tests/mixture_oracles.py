"""What mixtures are compared with: a filter on a grid, sampled futures, and systems with two attractors."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.stats import norm
from small_models import standard_promotion

import prodssm as ps
from prodssm.datasets import kink

GRID = np.linspace(-6.0, 3.5, 600)
SPACING = GRID[1] - GRID[0]
DRAWS = 4000  # of the network's weights at each point of the grid


@cache
def trained(r):
    """A model of the kink with local weights, trained on one trajectory."""
    network = ps.Network.mlp((1, 50, 1), key=jr.key(0))
    initial = ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.full(1, 0.5), jnp.ones((1, 1))),
        transition=network,
        process_noise=jnp.full(1, 0.0025),
        likelihood=ps.GaussianLikelihood(jnp.full(1, r), floor=0.0, learned=False),
    )
    series = [ps.Series(kink.simulate(r, seed=100).y.astype(initial.dtype))]
    recipe = ps.Recipe(iterations=400, learning_rate=5e-3, prior_weight=0.3)
    with standard_promotion():
        found = ps.train(initial, series, recipe, key=jr.key(0), progress=False)[0]
    # Other trajectories do not start where training has learned that this one did.
    return eqx.tree_at(lambda m: (m.initial_mean, m.initial_chol), found, (initial.initial_mean, initial.initial_chol))


def moves(model):
    """Probabilities of going from each point of the grid to each, with weights drawn for every move."""
    variance = float(jnp.exp(model.log_process_noise)[0])
    keys = jr.split(jr.key(1), DRAWS)
    found = np.empty((len(GRID), len(GRID)))
    draw = jax.jit(lambda x: jax.vmap(lambda key: model.transition.sample_output(x, key=key))(keys)[:, 0])
    edges = np.append(GRID - SPACING / 2, GRID[-1] + SPACING / 2)
    kernel = norm.pdf(np.arange(-60, 61) * SPACING, scale=variance**0.5)
    for n, x in enumerate(GRID):
        counts = np.histogram(np.asarray(draw(jnp.full(1, x, model.dtype))), edges)[0]
        found[n] = np.convolve(counts, kernel / kernel.sum(), "same") / DRAWS
    return found


def grid_filter(model, transition, y):
    """Filtered probabilities of the points of the grid, time by point, by Bayes' rule."""
    prior = norm.pdf(GRID, model.initial.mean.item(), model.initial.std.item())
    r, found = float(model.likelihood.variance[0]), []
    for value in np.asarray(y)[:, 0]:
        now = prior * norm.pdf(value, GRID, r**0.5)
        now = now / now.sum()
        found.append(now)
        prior = now @ transition
    return np.array(found)


def sampled_states(model, belief, steps, count, key):
    """States of sampled futures of a belief, count by steps by state."""

    def path(key):
        start, *keys = jr.split(key, steps + 1)

        def body(x, key):
            move, noise = jr.split(key)
            moved = model.transition.sample_output(x, key=move)
            moved = x + moved if model.residual else moved
            x = moved + jnp.exp(model.log_process_noise / 2) * jr.normal(noise, x.shape, x.dtype)
            return x, x

        return jax.lax.scan(body, belief.sample(key=start), jnp.stack(keys))[1]

    return np.asarray(jax.jit(jax.vmap(path))(jr.split(key, count)))


def cramer_distance(weights, means, stds, samples):
    """Distance of the distribution function of a mixture from that of samples, over the root of their standard deviation."""
    ordered = np.sort(samples)
    points = np.linspace(ordered[0] - 1, ordered[-1] + 1, 4001)
    empirical = np.searchsorted(ordered, points) / len(ordered)
    found = (weights * norm.cdf((points[:, None] - means) / stds)).sum(axis=1)
    return np.sqrt(((found - empirical) ** 2).sum() * (points[1] - points[0]) / samples.std())


def double_well(noise=1e-4):
    """A particle between two wells with friction, x'' = x - x^3 - x'/2, as a network; it starts near the top between them."""
    from scipy.special import erf

    rng = np.random.default_rng(0)
    weights, biases = rng.normal(size=(60, 2)) * [1.2, 0.6], rng.uniform(-2, 2, 60)
    x = rng.uniform(-2.2, 2.2, (4000, 2))
    features = np.column_stack([erf(x @ weights.T + biases), np.ones(len(x))])
    force = 0.25 * np.column_stack([x[:, 1], x[:, 0] - x[:, 0] ** 3 - 0.5 * x[:, 1]])
    last = np.linalg.solve(features.T @ features + 1e-3 * np.eye(61), features.T @ force)
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.array([0.05, 0.0]), 0.01 * jnp.eye(2)),
        transition=ps.Network.from_arrays([weights, last[:-1].T], [biases, last[-1]], activation="erf"),
        emission=ps.Network.from_arrays([[[1.0, 0.0]]], [[0.0]]),
        process_noise=[noise, noise],
        measurement_noise=[0.01],
        weights="point",
        residual=True,
    )


def two_particles():
    """Two such particles that do not see each other: four states, four places; both positions are measured."""
    one = double_well().transition
    weights = [np.kron(np.eye(2), np.asarray(layer.weight)) for layer in one.linears]
    biases = [np.tile(np.asarray(layer.bias), 2) for layer in one.linears]
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.array([0.05, 0.0, -0.1, 0.0]), 0.01 * jnp.eye(4)),
        transition=ps.Network.from_arrays(weights, biases, activation="erf"),
        emission=ps.Network.from_arrays([[[1.0, 0, 0, 0], [0, 0, 1.0, 0]]], [[0.0, 0.0]]),
        process_noise=[1e-4] * 4,
        measurement_noise=[0.01, 0.01],
        weights="point",
        residual=True,
    )
