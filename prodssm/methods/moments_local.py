r"""Moments of a network with point or local weights: the belief is a `Gaussian` over the state.

Hidden vectors are $h = mean + slope (x - E[x]) + N(0, noise)$. Behind the first layer of a low-dimensional state the
pre-activations share few directions, so the noise stays a thin factor plus a diagonal as long as that is smaller than a matrix.
"""

import math
from itertools import combinations_with_replacement

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.linalg import cholesky, fusion_barrier, outer_sum, sandwich
from prodssm.networks.activations import Activation
from prodssm.networks.expansions import Expansion, is_certain
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network
from prodssm.networks.quadrature import powers


class HiddenChannel(eqx.Module):
    """The channel from the state to a hidden vector h, with its noise in the cheapest form that it still has.

    The noise is `factor.T @ factor + diag(diagonal)` as long as that is smaller than a matrix, and `dense` afterwards. `cov` is
    the whole covariance of h, once a matrix was needed.
    """

    mean: Float[Array, " h"]
    slope: Float[Array, "h x"] | None = None  # None: the identity
    diagonal: Float[Array, " h"] | None = None
    factor: Float[Array, "r h"] | None = None
    dense: Float[Array, "h h"] | None = None
    cov: Float[Array, "h h"] | None = None

    def noise_matrix(self) -> Float[Array, "h h"]:
        """The noise written out."""
        if self.dense is not None:
            return self.dense
        total = jnp.zeros((self.mean.size, self.mean.size), self.mean.dtype)
        if self.diagonal is not None:
            total = jnp.diag(self.diagonal)
        return total if self.factor is None else total + self.factor.T @ self.factor

    def cov_matrix(self, x_cov: Float[Array, "x x"]) -> Float[Array, "h h"]:
        """The covariance of h written out."""
        if self.cov is not None:
            return self.cov
        if self.slope is None:
            return x_cov
        return sandwich(self.slope, x_cov) + self.noise_matrix()

    def var(self, x_cov: Float[Array, "x x"]) -> Float[Array, " h"]:
        """The variances of h, without the rest of its covariance where possible."""
        if self.cov is not None or self.slope is None or self.dense is not None:
            return jnp.diag(self.cov_matrix(x_cov))
        total = ((self.slope @ x_cov) * self.slope).sum(axis=1)
        if self.diagonal is not None:
            total = total + self.diagonal
        return total if self.factor is None else total + (self.factor**2).sum(axis=0)


def local_moments(network: Network, x: Gaussian, order: int) -> tuple[Channel, Gaussian]:
    """The channel of a network with point or local weights, and the predicted belief."""
    hidden = HiddenChannel(x.mean)
    for layer in network.layers:
        hidden = _linear(layer, hidden, x.cov) if isinstance(layer, Linear) else _activate(layer, hidden, x.cov, order)
    slope = jnp.eye(x.mean.size, dtype=x.mean.dtype) if hidden.slope is None else hidden.slope
    # Two chains, covariance and noise: under jit the compiler removes whichever the caller does not use.
    return Channel(hidden.mean, slope, hidden.noise_matrix()), Gaussian(hidden.mean, hidden.cov_matrix(x.cov))


def _linear(layer: Linear, hidden: HiddenChannel, x_cov: Array) -> HiddenChannel:
    """Point weights map mean, slope and noise; local weights add independent noise to every output."""
    weight = layer.weight
    mean = layer(hidden.mean)
    # In these orders a vmapped batch and one weight matrix are a single matrix product without a transposition.
    slope = weight if hidden.slope is None else (hidden.slope.T @ weight.T).T
    own = layer.output_var(hidden.var(x_cov) + hidden.mean**2) if layer.uncertain else None
    if hidden.diagonal is None and hidden.dense is None:  # the first layer: its input has no noise
        return HiddenChannel(mean, slope, diagonal=jnp.zeros_like(mean) if own is None else own)
    dense = (
        (weight * hidden.diagonal[None, :]) @ weight.T
        if hidden.diagonal is not None
        else sandwich(weight, hidden.noise_matrix())
    )
    if hidden.factor is not None:
        dense = dense + outer_sum(hidden.factor @ weight.T)
    cov = None if hidden.cov is None else sandwich(weight, hidden.cov)
    if own is not None:
        dense = dense + jnp.diag(own)
        cov = None if cov is None else cov + jnp.diag(own)
    return HiddenChannel(mean, slope, dense=dense, cov=cov)


def _activate(activation: Activation, hidden: HiddenChannel, x_cov: Array, order: int) -> HiddenChannel:
    """Unit by unit exact mean, slope and variance; between units the order-K power series in their correlation (Mehler)."""
    directions = x_cov.shape[0] + (0 if hidden.factor is None else hidden.factor.shape[0])
    thin = hidden.diagonal is not None and math.comb(directions + order, order) - 1 < hidden.mean.size
    cov = x_cov if thin else hidden.cov_matrix(x_cov)
    var = hidden.var(x_cov) if thin else jnp.diag(cov)
    mean, var = fusion_barrier(hidden.mean), fusion_barrier(var)
    found = activation.expand(mean, var, order)
    std = jnp.sqrt(jnp.where(is_certain(hidden.mean, var), 1.0, var))
    tilt = found.slope
    slope = jnp.diag(tilt) if hidden.slope is None else tilt[:, None] * hidden.slope
    if hidden.diagonal is None or not thin:
        # A fusion barrier, or XLA would recompute both expansions for every pair of units.
        after, dense = activation_moments(jax.tree.map(fusion_barrier, found), std, cov, hidden.noise_matrix())
        return HiddenChannel(found.mean, slope, dense=dense, cov=after)
    diagonal = tilt**2 * hidden.diagonal + found.rest
    rows = [] if hidden.factor is None else [hidden.factor * tilt[None, :]]
    if order > 1:
        features, own = _monomial_features(hidden, x_cov, std, found.curved)
        rows, diagonal = [*rows, features], diagonal + own
    return HiddenChannel(found.mean, slope, diagonal, jnp.concatenate(rows, axis=0) if rows else None)


def activation_moments(found: Expansion, std: Array, cov: Array, noise: Array) -> tuple[Array, Array]:
    r"""Covariance and noise behind an activation: mapped by its slopes, plus the higher orders of its expansion.

    These are $\sum_{k=2}^K (c_k c_k^\top) \circ R^{\circ k}$ by Horner's rule, and the remaining variance on the diagonal.
    """
    inverse = 1 / std
    added = jnp.diag(found.rest)
    if len(found.curved):
        correlation = jnp.clip(cov * inverse[:, None] * inverse[None, :], -1.0, 1.0)
        total = found.curved[-1][:, None] * found.curved[-1][None, :]
        for c in found.curved[-2::-1]:
            total = c[:, None] * c[None, :] + correlation * total
        added = added + correlation**2 * total
    slopes = found.slope[:, None] * found.slope[None, :]
    return slopes * cov + added, slopes * noise + added


def _monomial_features(
    hidden: HiddenChannel, x_cov: Array, std: Array, coefficients: Float[Array, "k h"]
) -> tuple[Array, Array]:
    """The same sum as factor.T @ factor + diag(own), for units that share only a few directions.

    Correlations are then inner products of short vectors u, and powers of inner products are inner products of monomials.
    """
    assert hidden.slope is not None
    # Jitter where directions can be singular: without it their gradient would be zero, or rounding error.
    jitter = float(jnp.finfo(x_cov.dtype).eps) ** 0.5 if x_cov.shape[0] > 1 else 0.0
    directions = (hidden.slope @ cholesky(x_cov, jitter=jitter)).T
    if hidden.factor is not None:
        directions = jnp.concatenate([directions, hidden.factor], axis=0)
    short = directions / std[None, :]
    length = jnp.minimum((short**2).sum(axis=0), 1.0)
    orders = range(2, len(coefficients) + 2)
    monomials = [
        tuple(chosen.count(d) for d in range(len(short)))
        for k in orders
        for chosen in combinations_with_replacement(range(len(short)), k)
    ]
    count = [math.factorial(sum(m)) / math.prod(math.factorial(e) for e in m) for m in monomials]
    features = jnp.sqrt(jnp.asarray(count, short.dtype))[:, None] * coefficients[np.array([sum(m) - 2 for m in monomials])]
    for d, direction in enumerate(short):
        features = features * powers(direction, tuple(m[d] for m in monomials))
    own = (coefficients**2 * (1 - powers(length, tuple(orders)))).sum(axis=0)
    return features, own
