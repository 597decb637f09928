"""Likelihoods as a user would write them, and posterior moments on a fine grid in plain NumPy."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps


class NegativeBinomial(ps.ScalarLikelihood):
    """Counts with mean e^g and variance e^g + e^2g / SIZE: a Poisson distribution with a Gamma distributed rate."""

    support = "counts"
    SIZE = 3.0

    def log_density(self, g, y):
        size = self.SIZE
        ways = jax.lax.lgamma(y + size) - jax.lax.lgamma(y + 1) - jax.lax.lgamma(jnp.full_like(y, size))
        return ways + y * g + size * np.log(size) - (y + size) * jnp.logaddexp(jnp.full_like(g, np.log(size)), g)

    def mean_given(self, g):
        return jnp.exp(g)

    def var_given(self, g):
        return jnp.exp(g) + jnp.exp(2 * g) / self.SIZE

    def sample(self, g, *, key):
        first, second = jr.split(key)
        rate = jnp.exp(g) * jr.gamma(first, jnp.asarray(self.SIZE, g.dtype), g.shape, g.dtype) / self.SIZE
        return jr.poisson(second, rate, g.shape).astype(g.dtype)


class UnitNormal(ps.ScalarLikelihood):
    """N(g, 1), by its log density alone."""

    def log_density(self, g, y):
        return -0.5 * (y - g) ** 2 - 0.5 * np.log(2 * np.pi)

    def mean_given(self, g):
        return g

    def var_given(self, g):
        return jnp.ones_like(g)

    def sample(self, g, *, key):
        return g + jr.normal(key, g.shape, g.dtype)


def tilted_by_grid(log_density, mean, var, points=40_001):
    """Log evidence, mean and variance of p(y | g) N(g; mean, var), on a grid that is narrowed to where the mass is."""
    std = np.sqrt(var)
    z = np.sinh(np.linspace(-16, 16, points))

    def height(z):
        with np.errstate(over="ignore", invalid="ignore"):
            found = log_density(mean + std * z) - z**2 / 2
        return np.where(np.isnan(found), -np.inf, found)

    for _ in range(4):
        tall = height(z)
        alive = np.flatnonzero(tall > tall.max() - 45)
        z = np.linspace(z[max(alive[0] - 1, 0)], z[min(alive[-1] + 1, points - 1)], points)
    tall = height(z)
    share = np.exp(tall - tall.max())
    total = share.sum()
    centre = (share * z).sum() / total
    spread = (share * (z - centre) ** 2).sum() / total
    evidence = np.log(total * (z[1] - z[0])) + tall.max() - 0.5 * np.log(2 * np.pi)
    return evidence, mean + std * centre, var * spread
