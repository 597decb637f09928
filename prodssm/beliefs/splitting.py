r"""Splitting Gaussians into narrower ones where a function bends: the same mean and covariance, more channels.

A standard normal is N(0, s²) convolved with N(0, σ²), and the trapezoid rule for that convolution is a mixture of n narrow
Gaussians at equal distances: its error falls exponentially in $(\sigma / h)^2$, so that n children may be about 4 / n wide. In
whitened coordinates $x = m + S z$, $P = S S^\top$, children lie on a grid along orthogonal directions; the spacing along each
of them is as fine as the change of the channel along it deserves, and components share the slots by weight and change.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.linalg import cholesky, eigh, sandwich, solve_lower, symmetrise

COUNTS = np.array([1, 3, 5, 9, 15, 27, 45, 81])  # children along one direction
SPACING = 1.6  # distance of neighbouring children, in their standard deviations
NARROW = 0.5  # standard deviations of the beliefs whose channels are compared, relative to those of the one that is split
LEAST_CHANGE = 0.01  # of the channel, in standard deviations of its output: below it a split would gain nothing

Rule = Callable[[Gaussian], tuple[Channel, Gaussian]]


def _grid(count: int) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"], float]:
    """Weights and offsets of the children of a standard normal, and their variance, which keeps its variance at one."""
    if count == 1:
        return np.ones(1), np.zeros(1), 1.0
    # Of the grid, in standard deviations s: beyond it there is little weight, and three children have known optimal offsets.
    reach = 1.6 if count == 3 else np.sqrt(2 * np.log(count)) + 0.75
    points = np.linspace(-reach, reach, count)
    weights = np.exp(-(points**2) / 2)
    weights = weights / weights.sum()
    square = weights @ points**2
    spread = SPACING**2 / ((2 * reach / (count - 1)) ** 2 + SPACING**2 * square)  # s²
    return weights, np.sqrt(spread) * points, float(1 - spread * square)


LOG_WEIGHTS, OFFSETS = (np.zeros((len(COUNTS), COUNTS[-1])) for _ in range(2))
VARIANCES = np.zeros(len(COUNTS))
for _level, _count in enumerate(COUNTS):
    _weights, OFFSETS[_level, :_count], VARIANCES[_level] = _grid(int(_count))
    LOG_WEIGHTS[_level, :_count] = np.log(_weights)


def split(
    log_weights: Float[Array, " k"], means: Float[Array, "k x"], covs: Float[Array, "k x x"], rule: Rule, slots: int
) -> tuple[Float[Array, " n"], Float[Array, "n x"], Float[Array, "n x x"]]:
    """Log weights, means and covariances of the children of a mixture; those of empty slots have weight zero.

    Args:
        log_weights: Of the components.
        means: Of the components.
        covs: Of the components.
        rule: Finds the channel of the function around a Gaussian.
        slots: Number of children, at least that of the components.
    """
    dtype = means.dtype
    changes, directions = jax.vmap(lambda mean, cov: principal_changes(Gaussian(mean, cov), rule))(means, covs)
    changes, directions = jax.lax.stop_gradient((changes, directions))
    levels = levels_within(slots, jax.lax.stop_gradient(jnp.exp(log_weights)), changes)
    counts = jnp.asarray(COUNTS, jnp.int32)[levels]  # component by direction
    ends = jnp.cumsum(counts.prod(axis=1, dtype=jnp.int32), dtype=jnp.int32)
    child = jnp.arange(slots, dtype=jnp.int32)
    parent = jnp.minimum(jnp.searchsorted(ends, child, side="right"), len(ends) - 1).astype(jnp.int32)
    number = child - jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])[parent]
    # The number of a child among its siblings, in a mixed base, is its place on the grid.
    base = jnp.cumprod(counts, axis=1, dtype=jnp.int32) // counts
    place = number[:, None] // base[parent] % counts[parent]
    shares = jnp.asarray(LOG_WEIGHTS, dtype)[levels[parent], place].sum(axis=1)
    offsets = jnp.asarray(OFFSETS, dtype)[levels[parent], place]
    axes = jax.vmap(cholesky)(covs) @ directions  # as columns, a standard deviation long
    narrow = jax.vmap(lambda own, var: symmetrise(sandwich(own, jnp.diag(var))))(axes, jnp.asarray(VARIANCES, dtype)[levels])
    weights = jnp.where(child < ends[-1], log_weights[parent] + shares, -jnp.inf)
    return weights, means[parent] + jnp.einsum("nxd,nd->nx", axes[parent], offsets), narrow[parent]


def levels_within(slots: int, weights: Float[Array, " k"], changes: Float[Array, "k d"]) -> Int[Array, "k d"]:
    """How finely each component is split along each of its directions, as indices of COUNTS, so that all children fit.

    What a component loses by one channel is about its weight times the sum of change and variance along its directions. Slots
    are spent one refinement after the other, where a child gains most.
    """
    counts, variances = jnp.asarray(COUNTS, jnp.int32), jnp.asarray(VARIANCES, weights.dtype)
    last = len(COUNTS) - 1
    worth = jnp.where(changes > LEAST_CHANGE, weights[:, None] * changes, 0.0)

    def value(levels: Array) -> Array:
        """Gain per child of the next refinement along each direction; zero where it does not fit."""
        above = jnp.minimum(levels + 1, last)
        now = counts[levels]
        children = now.prod(axis=1, dtype=jnp.int32)
        price = children[:, None] // now * (counts[above] - now)
        fits = (levels < last) & (children.sum(dtype=jnp.int32) + price <= slots)
        return jnp.where(fits, worth * (variances[levels] - variances[above]) / jnp.maximum(price, 1).astype(worth.dtype), 0.0)

    def refine(levels: Array) -> Array:
        found = value(levels).reshape(-1)
        return (levels.reshape(-1).at[jnp.argmax(found)].add(1)).reshape(levels.shape)

    start = jnp.zeros(changes.shape, jnp.int32)
    return jax.lax.while_loop(lambda levels: value(levels).max() > 0, refine, start)


def principal_changes(belief: Gaussian, rule: Rule) -> tuple[Float[Array, " x"], Float[Array, "x x"]]:
    r"""How much the channel changes along orthogonal directions of whitened coordinates, and these directions as columns.

    Compared are channels of narrow beliefs at $\pm 1$ on the principal axes of the belief. What changes is the slope, and the
    noise (of weights that are redrawn), in standard deviations of the output. The part that is odd in the displacement is the
    second derivative, which has principal directions of its own; the even part stands for third derivatives.
    """
    n, dtype = belief.mean.size, belief.mean.dtype
    lengths, axes = _eigh(belief.cov)
    axes = axes * jnp.sqrt(jnp.maximum(lengths, 0.0))[None, :]  # as columns, a standard deviation long
    points = jnp.concatenate([jnp.zeros((1, n), dtype), axes.T, -axes.T])
    narrow = NARROW**2 * belief.cov
    channels = jax.vmap(lambda shift: rule(Gaussian(belief.mean + shift, narrow))[0])(points)
    slopes = channels.slope @ axes  # output by principal axis, in standard deviations of the belief
    whiten = cholesky(symmetrise(sandwich(slopes[0], jnp.eye(n, dtype=dtype)) + channels.noise[0]), definite=True)
    slopes = jax.vmap(lambda each: solve_lower(whiten, each))(slopes)
    noises = jax.vmap(lambda each: solve_lower(whiten, solve_lower(whiten, each).T))(channels.noise) / 2**0.5
    parts = jnp.concatenate([slopes.reshape(len(points), -1), noises.reshape(len(points), -1)], axis=1)
    ahead, behind = parts[1 : n + 1] - parts[:1], parts[n + 1 :] - parts[:1]
    odd, even = (ahead - behind) / 2, (ahead + behind) / 2
    squares, turned = _eigh(symmetrise(odd @ odd.T) + jnp.diag((even**2).sum(axis=1)))
    whitened = solve_lower(cholesky(belief.cov, definite=True), axes)
    return jnp.sqrt(jnp.maximum(squares, 0.0)), whitened @ turned


def _eigh(matrix: Float[Array, "n n"]) -> tuple[Float[Array, " n"], Float[Array, "n n"]]:
    return eigh(matrix) if matrix.shape[0] > 1 else (matrix[0], jnp.ones_like(matrix))
