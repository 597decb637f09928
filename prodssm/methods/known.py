r"""Channels of known functions by quadrature, and of their sum with a network whose own moments are kept.

For $f + g$ around a belief means and slopes add. The noise is that of the sum of two residuals, $N_f + N_g + C + C^T$.
C is found on the quadrature's points, where both are evaluated, the network at its mean weights. The points know only the
curvature of the network there, $M = \sum_i w_i r_g r_g^T$, while $N_g$ is the network's own, so that C is shrunk until the sum
is positive semi-definite: by $\rho = \min(1, \lambda_{max}(N_g^{-1} M)^{-1/2})$.
"""

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.beliefs.channel import Channel, Link
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.linalg import cholesky, largest_eigenvalue_bound, solve_lower, symmetrise, unwhiten
from prodssm.networks.base import Function

NODES = {1: 15, 2: 7, 3: 5}  # of the Gauss-Hermite rule along each axis, by number of states
MOST_CORNERS = 8  # states up to which the corners of a cube are used


def known_moments(
    method: Any, function: Function, belief: Belief, control: Float[Array, " u"] | None, link: Link | None
) -> tuple[Channel, Belief]:
    """The channel of a known function, or of its sum with a network, and the predicted belief.

    Args:
        method: How the channel of the network is found.
        function: A sum of known function and network, or either.
        belief: The belief, joint with the weights of the network if these are global.
        control: Known inputs that follow the state.
        link: What `dt` times the function is added to; None for the function itself.
    """
    known, network = function.parts
    found, residuals = by_points(known.given(control), belief.state)
    if network is not None:
        own = method.channel(network, belief, control)
        shape, others = by_points(network.at_mean().given(control), belief.state)
        both = _shrink(own.noise, shape.noise) * residuals.T @ others
        noise = symmetrise(found.noise + own.noise + both + both.T)
        found = Channel(found.mean + own.mean, found.slope + own.slope, noise, own.weight_slope)
    found = found if link is None else found.beside(link)
    return found, belief.predict(found)


def by_points(function: Callable[[Array], Array], x: Gaussian) -> tuple[Channel, Float[Array, "p y"]]:
    """The channel of a function by regression on quadrature points, and the weighted residuals there.

    The noise is the sum of squares of these residuals, hence positive semi-definite; a coordinate of zero variance has the
    slope of the function at the mean.
    """
    points, weights = (jnp.asarray(part, x.mean.dtype) for part in rule(x.mean.size))
    chol = cholesky(x.cov)
    values = jax.vmap(function)(x.mean[None, :] + points @ chol.T)
    mean = weights @ values
    white = (weights[:, None] * (values - mean[None, :])).T @ points
    residuals = jnp.sqrt(weights)[:, None] * (values - mean[None, :] - points @ white.T)
    certain = jnp.where(x.var > 0, 0.0, 1.0)
    slope = unwhiten(white, chol, x.var) + jax.jacfwd(function)(x.mean) * certain[None, :]
    return Channel(mean, slope, residuals.T @ residuals), residuals


@cache
def rule(n: int) -> tuple[Float[np.ndarray, "p n"], Float[np.ndarray, " p"]]:
    """Points and positive weights for N(0, I) in n dimensions.

    Up to three: a Gauss-Hermite product, exact for degree 29, 13 or 9 in each coordinate. Up to eight: points on the axes
    and at the corners of a cube, exact for total degree 5 (Stroud 1971). Beyond: points on the axes, for total degree 3.
    """
    axes, ones = np.concatenate([np.eye(n), -np.eye(n)]), np.ones(2 * n)
    if n in NODES:
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES[n])
        points = np.array(list(itertools.product(nodes, repeat=n)))
        return points, np.array([np.prod(each) for each in itertools.product(weights / weights.sum(), repeat=n)])
    if n > MOST_CORNERS:
        return math.sqrt(n) * axes, ones / (2 * n)
    corners = np.array(list(itertools.product((-1.0, 1.0), repeat=n)))
    points = np.concatenate([math.sqrt((n + 2) / 2) * axes, math.sqrt((n + 2) / (n - 2)) * corners])
    return points, np.concatenate([4 * ones, np.full(len(corners), (n - 2) ** 2 / len(corners))]) / (n + 2) ** 2


def _shrink(own: Float[Array, "y y"], shape: Float[Array, "y y"]) -> Float[Array, ""]:
    """The largest factor, up to one, by which the cross terms leave the noise of a sum positive semi-definite."""
    chol = cholesky(own, definite=True)
    half = solve_lower(chol, solve_lower(chol, shape).T)
    return 1 / jnp.sqrt(jnp.maximum(largest_eigenvalue_bound(half), 1.0))
