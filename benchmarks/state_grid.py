"""The exact filter and forecast of a scalar model with one hidden layer of ReLUs, on a grid of states.

Distribution functions on the grid are also what other answers are compared as. Import `common` before this.
"""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from scipy.stats import norm

import prodssm as ps

GRID = np.linspace(-6.0, 3.5, 600)
SPACING = GRID[1] - GRID[0]
DRAWS = 2000  # of the hidden units at each point of the grid


def moves(model: ps.StateSpaceModel) -> np.ndarray:
    """Probabilities of going from each point of the grid to each: an average of the Gaussians given the hidden units."""
    variance = jnp.exp(model.log_process_noise)[0]

    def row(x):
        keys = jr.split(jr.key(1), DRAWS)
        mean, var = jax.vmap(lambda key: last_layer(model, x, key))(keys)
        std = jnp.sqrt(var + variance)
        return jax.scipy.stats.norm.pdf(jnp.asarray(GRID, x.dtype)[None, :], mean[:, None], std[:, None]).mean(axis=0)

    found = np.array(jax.lax.map(jax.jit(row), jnp.asarray(GRID, model.dtype)), float)
    found[found.sum(axis=1) == 0, 0] = 1.0  # whatever leaves the grid from so far out goes to its lower edge
    return found / found.sum(axis=1, keepdims=True)


def last_layer(model: ps.StateSpaceModel, x: jax.Array, key: Any) -> tuple[jax.Array, jax.Array]:
    """Mean and variance of the network's output at a state, given a draw of its hidden units."""
    first, _, last = (model.transition if model.weights == "local" else model.transition.at_mean()).layers
    hidden = first.weight[:, 0] * x + first.bias
    if first.uncertain:
        hidden = hidden + jnp.sqrt(first.output_var(jnp.full(1, x**2))) * jr.normal(key, hidden.shape, hidden.dtype)
    hidden = jax.nn.relu(hidden)
    var = last.output_var(hidden**2)[0] if last.uncertain else jnp.zeros((), x.dtype)
    return last(hidden)[0], var


def filtered(model: ps.StateSpaceModel, moves: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Filtered distribution functions on the grid, time by point, by Bayes' rule."""
    noise, found = float(model.likelihood.variance[0]) ** 0.5, []
    prior = norm.pdf(GRID, model.initial.mean.item(), model.initial.std.item())
    for value in y[:, 0]:
        now = prior * norm.pdf(value, GRID, noise)
        now = now / now.sum()
        found.append(np.cumsum(now) - now / 2)
        prior = now @ moves
    return np.array(found)


def forecast(start: ps.Gaussian, moves: np.ndarray, horizons: tuple[int, ...]) -> np.ndarray:
    """Distribution functions of the state at the horizons, horizon by point."""
    now, found = norm.pdf(GRID, start.mean.item(), start.std.item()), []
    now = now / now.sum()
    for step in range(1, max(horizons) + 1):
        now = now @ moves
        if step in horizons:
            found.append(np.cumsum(now) - now / 2)
    return np.array(found)


def distances(found: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Cramér distance of distribution functions from exact ones, row by row."""
    density = np.diff(exact, axis=1, prepend=0.0)
    mean = density @ GRID
    std = np.sqrt(np.maximum(density @ GRID**2 - mean**2, 0.0))
    return np.sqrt(((found - exact) ** 2).sum(axis=1) * SPACING / std)


def crps(found: np.ndarray, x: np.ndarray) -> float:
    """Continuous ranked probability score of true states."""
    return float((((found - (x[:, None] <= GRID)) ** 2).sum(axis=1) * SPACING).mean())
