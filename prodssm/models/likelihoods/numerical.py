"""The predictive distribution function of a likelihood that only says its density, by quadrature over g and over y."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from prodssm.models.likelihoods.quantiles import normal_nodes

G_NODES, Y_NODES = 65, 97
NEAREST, FARTHEST = -3.5, 9.5  # logarithms of distances in standard deviations
CHUNK = 256  # counts at once


def expected_cdf(likelihood: Any, mean: np.ndarray, var: np.ndarray, y: np.ndarray) -> Float[np.ndarray, "*any y"]:
    """P(Y <= y) under N(mean, var) beliefs about g, output by output; see `ScalarLikelihood.cdf`."""
    mean, var, y = np.broadcast_arrays(mean, var, y)
    rules = {"real": _real, "counts": _counts, "binary": _binary}
    rule, found = rules[likelihood.support], np.empty(y.shape)
    for n in range(y.shape[-1]):
        one = jax.tree.map(lambda leaf, n=n: leaf[n], likelihood)
        flat = [part[..., n].reshape(-1) for part in (mean, var, y)]
        found[..., n] = rule(one, *flat).reshape(y.shape[:-1])
    return np.clip(found, 0.0, 1.0)


def _densities(one: Any, mean: np.ndarray, var: np.ndarray, y: np.ndarray) -> Float[np.ndarray, "n k"]:
    """Predictive densities of one output at values (n, k), each row under its own belief about g."""
    nodes, weights = normal_nodes(G_NODES)
    g = jnp.asarray(mean[:, None] + np.sqrt(var)[:, None] * nodes[None, :], float)
    row = jax.vmap(one.log_density, in_axes=(None, 0))
    return np.exp(np.asarray(jax.vmap(row)(g, jnp.asarray(y, float)), float)) @ weights


def _counts(one: Any, mean: np.ndarray, var: np.ndarray, y: np.ndarray) -> np.ndarray:
    last, total = np.floor(y), np.zeros(y.shape)
    for first in range(0, int(last.max(initial=-1)) + 1, CHUNK):
        counts = np.broadcast_to(np.arange(first, first + CHUNK, dtype=float), (y.size, CHUNK))
        total += (_densities(one, mean, var, counts) * (counts <= last[:, None])).sum(axis=1)
    return total


def _binary(one: Any, mean: np.ndarray, var: np.ndarray, y: np.ndarray) -> np.ndarray:
    none = _densities(one, mean, var, np.zeros((y.size, 1)))[:, 0]
    return np.where(y < 0, 0.0, np.where(y < 1, none, 1.0))


def _real(one: Any, mean: np.ndarray, var: np.ndarray, y: np.ndarray) -> np.ndarray:
    r"""The integral over the half line below y, whose distances are $w = \exp(u - e^{-u})$ times a standard deviation."""
    nodes, weights = normal_nodes(G_NODES)
    g = jnp.asarray(mean[:, None] + np.sqrt(var)[:, None] * nodes[None, :], float)
    centres, noise = (np.asarray(jax.vmap(rule)(g), float) for rule in (one.mean_given, one.var_given))
    scale = np.sqrt((centres**2) @ weights - (centres @ weights) ** 2 + noise @ weights)
    u = np.linspace(NEAREST, FARTHEST, Y_NODES)
    distance = np.exp(u - np.exp(-u))
    slope = distance * (1 + np.exp(-u)) * (u[1] - u[0])
    at = y[:, None] - scale[:, None] * distance[None, :]
    return (_densities(one, mean, var, at) * slope[None, :]).sum(axis=1) * scale
