"""Quadrature against a normal density, unit by unit: nodes, weights, and expectations with stable derivatives."""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Units = Float[Array, " n"]
# A quadrature rule for the density of N(mean, std^2): standard normal nodes and their weights, unit by unit.
Grid = Callable[[Units, Units], tuple[Float[Array, "q n"], Float[Array, "q n"]]]


def hermite_grid(count: int) -> Grid:
    """Gauss-Hermite nodes, for functions that are smooth on the scale of the belief."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(count)

    def grid(mean, std):
        shape = (count, mean.size)
        parts = (nodes, weights / math.sqrt(2 * math.pi))
        at, weight = (jnp.broadcast_to(jnp.asarray(part, mean.dtype)[:, None], shape) for part in parts)
        return at, weight

    return grid


def split_grid(kinks: tuple[float, ...], count: int) -> Grid:
    """Gauss-Legendre nodes between the kinks, for piecewise smooth functions."""
    nodes, weights = np.polynomial.legendre.leggauss(count)

    def grid(mean, std):
        fixed = [jnp.full_like(mean, edge) for edge in (-9.0, -3.0, 3.0, 9.0)]
        inner = [jnp.clip((kink - mean) / std, -9.0, 9.0) for kink in kinks]
        edges = jnp.sort(jnp.stack([*fixed, *inner]), axis=0)
        return _panels(edges, nodes, weights)

    return grid


def soft_grid(width: float, count: int = 10) -> Grid:
    """Nodes for functions that bend within `width` of zero and are affine beyond.

    Gauss-Hermite for beliefs that are narrower than the bend, Gauss-Legendre panels around zero for wider ones: at a standard
    deviation of 30 Gauss-Hermite alone misses most of the slope of tanh, these panels have an error of 1e-3.
    """
    nodes, weights = np.polynomial.legendre.leggauss(count)
    narrow = hermite_grid(6 * count)

    def grid(mean, std):
        # Within three standard deviations the panels end where the bend does; outside there is little mass.
        inner = [jnp.clip((edge - mean) / std, -3.0, 3.0) for edge in (-width, 0.0, width)]
        outer = [jnp.full_like(mean, edge) for edge in (-9.0, -3.0, 3.0, 9.0)]
        at, weight = _panels(jnp.stack([*outer[:2], *inner, *outer[2:]]), nodes, weights)
        wide = (std > width / 4)[None, :]
        near, near_weight = narrow(mean, std)
        return jnp.where(wide, at, near), jnp.where(wide, weight, near_weight)

    return grid


def _panels(edges: Float[Array, "e n"], nodes: np.ndarray, weights: np.ndarray) -> tuple[Array, Array]:
    dtype, units = edges.dtype, edges.shape[1]
    half, middle = (edges[1:] - edges[:-1]) / 2, (edges[1:] + edges[:-1]) / 2
    at = middle[:, None, :] + half[:, None, :] * jnp.asarray(nodes, dtype)[None, :, None]
    weight = half[:, None, :] * jnp.asarray(weights, dtype)[None, :, None] * normal_pdf(at)
    at, weight = at.reshape(-1, units), weight.reshape(-1, units)
    return at, weight / weight.sum(axis=0)[None, :]


def hermite(x: Array, order: int) -> list[Array]:
    """Probabilists' Hermite polynomials He_0 ... He_order."""
    values = [jnp.ones_like(x), x]
    for k in range(2, order + 1):
        values.append(x * values[-1] - (k - 1) * values[-2])
    return values[: order + 1]


def hermite_rows(x: Float[Array, " n"], factors: np.ndarray) -> Float[Array, "k n"]:
    """Hermite polynomials He_0, He_1, ... as rows, each times its factor: Horner's rule for all rows at once.

    One expression on a matrix is one fused loop; the three-term recursion would be one loop per row.
    """
    count = len(factors)
    table = np.zeros((count, max(count, 1)))
    for k in range(count):
        table[k, : k + 1] = factors[k] * np.polynomial.hermite_e.herme2poly([0.0] * k + [1.0])
    table = jnp.asarray(table, x.dtype)
    total = jnp.broadcast_to(table[:, -1:], (count, x.size))
    for power in range(count - 2, -1, -1):
        total = total * x[None, :] + table[:, power : power + 1]
    return total


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def powers(x: Float[Array, " n"], exponents: tuple[int, ...]) -> Float[Array, "k n"]:
    """Integer powers of x as rows, by repeated squaring: one fused expression on a matrix."""
    bits = np.asarray(exponents)[:, None]
    total = jnp.ones((len(exponents), x.size), x.dtype)
    square = x
    for bit in range(max(exponents, default=0).bit_length()):
        total = total * jnp.where(jnp.asarray(bits >> bit & 1 == 1), square[None, :], 1.0)
        square = square * square
    return total


@powers.defjvp
def _(exponents, primals, tangents):
    lower = powers(primals[0], tuple(max(e - 1, 0) for e in exponents))
    times = jnp.asarray(exponents, primals[0].dtype)[:, None]
    return powers(primals[0], exponents), times * lower * tangents[0][None, :]


def normal_pdf(x: Array) -> Array:
    """Standard normal density."""
    return jnp.exp(-0.5 * x**2) * (1 / math.sqrt(2 * math.pi))


def derivative(function: Callable) -> Callable:
    """The derivative of an elementwise function."""
    return lambda x: jax.jvp(function, (x,), (jnp.ones_like(x),))[1]


def smooth_expectation(function: Callable, grid: Grid, mean: Units, std: Units) -> Units:
    r"""$E[f(m + s e)]$ for smooth f, with derivatives by Stein's lemma and Price's theorem: $E[f']$ in m, $s\,E[f'']$ in s.

    Differentiating the quadrature itself would divide rounding errors by s.
    """

    @jax.custom_jvp
    def expect(m, s):
        nodes, weights = grid(m, s)
        base = function(m)
        return base + (weights * (function(m[None, :] + s[None, :] * nodes) - base[None, :])).sum(axis=0)

    @expect.defjvp
    def _(primals, tangents):
        first = smooth_expectation(derivative(function), grid, *primals)
        second = smooth_expectation(derivative(derivative(function)), grid, *primals)
        return expect(*primals), first * tangents[0] + primals[1] * second * tangents[1]

    return expect(mean, std)


@lru_cache
def logistic_mixture(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Standard deviations and probabilities of normals whose mixture is the standard logistic distribution.

    A logistic variable is 2 K times a normal one, with K from the limit law of Kolmogorov's statistic. These are the Gauss
    nodes of log 2K, by Lanczos' recursion on a fine grid.
    """
    from scipy.stats import kstwobign  # slow to import

    k = np.linspace(0.15, 5.0, 20_001)
    weight = kstwobign.pdf(k)
    weight, x = weight / weight.sum(), np.log(2 * k)
    diagonal, beside, before, now = [], [0.0], np.zeros_like(x), np.ones_like(x)
    for _ in range(count):
        diagonal.append((weight * x * now**2).sum())
        rest = (x - diagonal[-1]) * now - beside[-1] * before
        beside.append(np.sqrt((weight * rest**2).sum()))
        before, now = now, rest / beside[-1]
    inner = beside[1:-1]
    nodes, vectors = np.linalg.eigh(np.diag(diagonal) + np.diag(inner, 1) + np.diag(inner, -1))
    return np.exp(nodes), vectors[0] ** 2
