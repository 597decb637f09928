r"""Moments of a tilted Gaussian, $p(g \mid y) \propto p(y \mid g)\, N(g; m, s^2)$ for one number g, by quadrature.

Prior and likelihood may disagree by many standard deviations, either may be the narrower one by orders of magnitude, and there
may be two modes. So the nodes are placed in rounds: a grid whose spacing grows with the distance from the mean, up to
$10^7 s$, finds where the integrand is; each further grid has its points where the last one saw mass or change.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.beliefs.linalg import safe_sqrt

FARTHEST = 1e7  # prior standard deviations that the first grid reaches
POINTS, ROUNDS = 41, 6  # of a grid, and how often it is refined
ORDER = 6  # of the Gauss-Legendre rule between two points of the last grid
HALF_LOG_TAU = 0.5 * float(np.log(2 * np.pi))

LogDensity = Callable[[Float[Array, " q"]], Float[Array, " q"]]


class Tilted(NamedTuple):
    """A Gaussian after one factor p(y | g).

    Attributes:
        log_evidence: Log of the integral of p(y | g) N(g; m, s^2).
        mean: E[g | y].
        var: Var[g | y].
    """

    log_evidence: Float[Array, ""]
    mean: Float[Array, ""]
    var: Float[Array, ""]


def tilted_moments(
    log_density: LogDensity, mean: Float[Array, ""], var: Float[Array, ""], *, constant: LogDensity | None = None
) -> Tilted:
    """The log evidence, and the mean and variance of g given y.

    Args:
        log_density: log p(y | g) at an array of g.
        mean: Prior mean of g.
        var: Prior variance of g; at zero the posterior is the prior.
        constant: The same log density without gradients in its parameters, which the search for the mass evaluates.

    Example:
        >>> found = tilted_moments(lambda g: 10 * g - jnp.exp(g), jnp.ones(()), jnp.ones(()))
        >>> round(float(found.mean), 2), round(float(found.var), 3)
        (2.13, 0.106)
    """
    # Below this a cube of 1 / std, which appears in gradients, would overflow.
    random = var > float(jnp.finfo(var.dtype).tiny) ** 0.6
    std = safe_sqrt(jnp.where(random, var, 0.0))
    at, per = jax.lax.stop_gradient((mean, std))
    search = log_density if constant is None else constant
    # The nodes are constants to a gradient: what it differentiates is the integrand.
    z, log_weight = jax.lax.stop_gradient(_place_nodes(lambda z: search(at + per * z), mean.dtype))
    centre = z[z.size // 2]
    # z^2 - c^2 as a product: far from the mean the difference of squares would cancel.
    height = log_density(mean + std * z)
    top = jax.lax.stop_gradient(height.max())
    log_mass = log_weight + (height - top) - 0.5 * (z - centre) * (z + centre)
    log_total = jax.nn.logsumexp(log_mass)
    share = jnp.exp(log_mass - log_total)
    shift = centre + (share * (z - centre)).sum()
    spread = (share * (z - shift) ** 2).sum()
    certain = log_density(mean[None])[0]
    evidence = top + log_total - 0.5 * centre**2 - HALF_LOG_TAU
    return Tilted(jnp.where(random, evidence, certain), mean + std * shift, std**2 * spread)


def _place_nodes(tilt: LogDensity, dtype: Any) -> tuple[Float[Array, " q"], Float[Array, " q"]]:
    """Nodes in prior standard deviations and their log weights, where exp(tilt(z) - z^2 / 2) has its mass."""
    reach = np.arcsinh(FARTHEST)
    first = jnp.asarray(np.sinh(np.linspace(-reach, reach, POINTS)), dtype)
    edges = jax.lax.fori_loop(0, ROUNDS, lambda _, z: _refine(z, _height(tilt, z)), first)
    at, weights = (jnp.asarray(part, dtype) for part in np.polynomial.legendre.leggauss(ORDER))
    half, middle = (edges[1:] - edges[:-1]) / 2, (edges[1:] + edges[:-1]) / 2
    nodes = middle[:, None] + half[:, None] * at[None, :]
    tiny = float(jnp.finfo(dtype).tiny)
    return nodes.reshape(-1), jnp.log(jnp.maximum(half[:, None] * weights[None, :], tiny)).reshape(-1)


def _height(tilt: LogDensity, z: Float[Array, " n"]) -> Float[Array, " n"]:
    """The log integrand relative to its largest value; what overflows has no mass."""
    middle = z[z.size // 2]
    height = tilt(z) - 0.5 * (z - middle) * (z + middle)
    height = jnp.where(jnp.isnan(height) | (height == jnp.inf), -jnp.inf, height)
    top = height.max()
    return height - jnp.where(jnp.isfinite(top), top, 0.0)


def _refine(z: Float[Array, " n"], height: Float[Array, " n"]) -> Float[Array, " n"]:
    """As many points, from the first to the last cell with mass, closer where the integrand is large or changes."""
    depth = 4 - float(np.log(jnp.finfo(z.dtype).eps))
    width, alive = z[1:] - z[:-1], jnp.maximum(height[1:], height[:-1]) > -depth
    root = jnp.exp(jnp.maximum(height, -2 * depth) / 4)
    monitors = (width, jnp.abs(root[1:] - root[:-1]), width * jnp.maximum(root[1:], root[:-1]))
    share = sum((_normalised(jnp.where(alive, monitor, 0.0)) for monitor in monitors), jnp.zeros_like(width))
    share = _normalised(share)
    low, high = jnp.where(alive, z[:-1], jnp.inf).min(), jnp.where(alive, z[1:], -jnp.inf).max()
    inner = (z[:-1] >= low) & (z[1:] <= high)
    # The inverse of the piecewise linear cumulative share: each cell is passed while the share goes through its own.
    goal, passed = jnp.linspace(0.0, 1.0, z.size, dtype=z.dtype), jnp.cumsum(share) - share
    tiny = float(jnp.finfo(z.dtype).eps) ** 2
    fraction = jnp.clip((goal[:, None] - passed[None, :]) / jnp.maximum(share, tiny)[None, :], 0.0, 1.0)
    return low + (fraction * jnp.where(inner, width, 0.0)[None, :]).sum(axis=1)


def _normalised(part: Float[Array, " n"]) -> Float[Array, " n"]:
    total = part.sum()
    return part / jnp.where(total > 0, total, 1.0)
