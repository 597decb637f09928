r"""Gaussian-Hermite expansions of activations, unit by unit, and those that have a closed form.

For $x \sim N(m, v)$ with $s = \sqrt v$ and orthonormal Hermite polynomials $he_k = He_k / \sqrt{k!}$, an activation is
$f(x) = \sum_k c_k\, he_k((x - m)/s)$ with $c_k = E[f(m + s e)\, he_k(e)]$. The mean is $c_0$, the slope $E[f'] = c_1 / s$, the
variance $\sum_{k \ge 1} c_k^2$. An expansion of order K keeps $c_0 \dots c_K$ and the remaining variance, so that a covariance
built from it is positive semi-definite and has the exact diagonal at every order.
"""

import math
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erfc, ndtr
from jaxtyping import Array, Float

from prodssm.beliefs.linalg import fusion_barrier
from prodssm.networks.quadrature import Units, hermite, hermite_rows, normal_pdf

Coefficients = Float[Array, "k n"]


class Expansion(eqx.Module):
    """The expansion of an activation at independent hidden units: f = mean + slope (x - m) + higher orders + remainder."""

    mean: Units
    slope: Units
    curved: Coefficients  # c_2 ... c_K
    rest: Units  # variance beyond order K, non-negative


def is_certain(mean: Units, var: Units) -> Array:
    """Units whose standard deviation is below the rounding error of their mean."""
    kind = jnp.finfo(mean.dtype)
    least = 1e-30 if kind.bits == 32 else 1e-280
    return var <= float(kind.eps) ** 2 * mean**2 + least


def _limit(x: Array) -> float:
    """Argument at which the normal density underflows."""
    return 13.0 if jnp.finfo(x.dtype).bits == 32 else 38.0


def clip_ratio(ratio: Array) -> Array:
    """The ratio, clipped where the density underflows, so that polynomials of it stay finite."""
    return jnp.clip(ratio, -_limit(ratio), _limit(ratio))


def root_factorial(k: int) -> float:
    """The square root of k!."""
    return math.sqrt(math.factorial(k))


def stack_coefficients(coefficients: list[Array], like: Units) -> Coefficients:
    """Coefficients as rows, also if there are none."""
    return jnp.stack(coefficients) if coefficients else jnp.zeros((0, like.size), like.dtype)


def _close(mean: Units, slope: Units, std: Units, curved: list[Array], var: Units) -> Expansion:
    """The expansion of a known variance: the remainder is that variance minus the squared coefficients."""
    rest = var - (slope * std) ** 2 - sum(c**2 for c in curved)
    return Expansion(mean, slope, stack_coefficients(curved, mean), jnp.maximum(rest, 0.0))


def identity_rule(mean, std, order):
    """X."""
    nothing = jnp.zeros_like(mean)
    return Expansion(mean, jnp.ones_like(mean), stack_coefficients([nothing] * (order - 1), mean), nothing)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def relu_rule(mean, std, order, leak=0.0):
    r"""max(0, x) + leak min(0, x).

    Beyond the slope everything is even in $a = m/s$, because relu(x) = x + relu(-x). With $b = -|a|$ no two large numbers are
    subtracted, so float32 does not cancel.
    """
    shape = _relu_shape(mean, std, order, leak)
    slope = leak + (1 - leak) * shape.cdf
    return Expansion(mean * slope + (1 - leak) * std * shape.pdf, slope, std[None, :] * shape.curved, std**2 * shape.rest)


class _ReluShape(NamedTuple):
    """The parts of the expansion that depend on the ratio a = mean / std alone."""

    ratio: Units
    cdf: Units
    pdf: Units
    curved: Coefficients  # c_2 ... c_K of a unit with std one
    rest: Units


def _relu_shape(mean, std, order, leak) -> _ReluShape:
    ratio = clip_ratio(mean / std)
    below = -jnp.abs(ratio)
    outside = 0.5 * erfc(-below / math.sqrt(2))
    cdf, pdf = jnp.where(ratio > 0, 1 - outside, outside), normal_pdf(ratio)
    signs = np.array([(1 - leak) * (-1) ** k / root_factorial(k) for k in range(2, order + 1)])
    curved = fusion_barrier(hermite_rows(ratio, signs) * pdf[None, :])
    hinge = pdf + below * outside
    beyond_slope = (1 + below**2) * outside + below * pdf - hinge**2 - outside**2
    rest = jnp.maximum((1 - leak) ** 2 * beyond_slope - (curved**2).sum(axis=0), 0.0)
    return _ReluShape(ratio, cdf, pdf, curved, rest)


@relu_rule.defjvp
def _(order, leak, primals, tangents):
    r"""With $c_k = s h_k(a)$ the derivative is a shift of the expansion itself: $h_k' = \sqrt{k+1}\, h_{k+1}$."""
    (mean, std), (mean_dot, std_dot) = primals, tangents
    found, further = relu_rule(mean, std, order, leak), _relu_shape(mean, std, order + 1, leak)
    ratio, cdf, pdf, curved = further.ratio, further.cdf, further.pdf, further.curved[:-1]
    raised = further.curved[1:] * jnp.sqrt(jnp.arange(3, order + 2, dtype=mean.dtype))[:, None]
    outside = jnp.minimum(cdf, 1 - cdf)
    hinge = pdf - jnp.abs(ratio) * outside
    falling = -jnp.sign(ratio) * 2 * (hinge * (1 - outside) - outside * pdf)
    rest = further.rest + further.curved[-1] ** 2
    rest_slope = jnp.where(found.rest > 0, (1 - leak) ** 2 * falling - 2 * (curved * raised).sum(axis=0), 0.0)
    moved = mean_dot - ratio * std_dot
    return found, Expansion(
        found.slope * mean_dot + (1 - leak) * pdf * std_dot,
        (1 - leak) * pdf / std * moved,
        curved * std_dot[None, :] + raised * moved[None, :],
        std * (2 * rest * std_dot + rest_slope * moved),
    )


def leaky_relu_rule(mean, std, order):
    """max(0, x) + 0.01 min(0, x)."""
    return relu_rule(mean, std, order, leak=0.01)


def sine_rule(mean, std, order, shift=0.0):
    """sin(x + shift)."""
    std = jnp.minimum(std, _limit(mean) * math.sqrt(1.2))  # beyond this exp(-var / 2) underflows and its factors overflow
    var = std**2
    damp = jnp.exp(-var / 2)
    turned = [damp * jnp.sin(mean + (shift + k * math.pi / 2)) for k in range(order + 1)]
    curved = [std**k * turned[k] / root_factorial(k) for k in range(2, order + 1)]
    faded = -jnp.expm1(-var)
    return _close(turned[0], turned[1], std, curved, faded * ((1 - faded) * jnp.cos(mean + shift) ** 2 + faded / 2))


def cosine_rule(mean, std, order):
    """cos(x)."""
    return sine_rule(mean, std, order, shift=math.pi / 2)


def _highest_exponent(x: Array) -> float:
    """Largest exponent for which the moments of exp(x) fit the dtype."""
    return 16.0 if jnp.finfo(x.dtype).bits == 32 else 150.0


def saturating_exp(x: Array) -> Array:
    """exp(x), saturating at exp(16) in float32 and exp(150) in float64, so that moments and their gradients stay finite."""
    return jnp.exp(jnp.minimum(x, _highest_exponent(x)))


def exponential_rule(mean, std, order):
    """exp(x), saturating as `saturating_exp`."""
    most = _highest_exponent(mean)
    held = jnp.minimum(std, math.sqrt(most))
    mean = jnp.clip(mean, -4 * most, most - held**2)
    level = jnp.exp(mean + held**2 / 2)
    curved = [held**k * level / root_factorial(k) for k in range(2, order + 1)]
    return _close(level, level * (held / std), std, curved, level**2 * jnp.expm1(held**2))


def square_rule(mean, std, order):
    """X squared."""
    nothing = jnp.zeros_like(mean)
    curved = [math.sqrt(2) * std**2, *[nothing] * (order - 2)][: order - 1]
    return _close(mean**2 + std**2, 2 * mean, std, curved, 4 * (mean * std) ** 2 + 2 * std**4)


def _probit_integral(u, correlation):
    r"""$\frac{1}{\pi} \int_k^1 h\, dt$, $h = \exp(-u^2 (1 + t^2) / 2)$, $k^2 = (1 - \rho) / (1 + \rho)$, as parts."""
    nodes, weights = np.polynomial.legendre.leggauss(16)
    least = jnp.sqrt((1 - correlation) / (1 + correlation))
    width = correlation / ((1 + correlation) * (1 + least))  # half of 1 - k, which would cancel
    squares = 1 + (1 - width[None, :] * jnp.asarray(nodes + 1, u.dtype)[:, None]) ** 2
    return squares, jnp.exp(-(u[None, :] ** 2) * squares / 2), width[None, :] * jnp.asarray(weights, u.dtype)[:, None] / math.pi


@jax.custom_jvp
def _probit_variance(u, correlation):
    r"""Variance of $\Phi(bx)$: $\frac{1}{2\pi} \int_0^{\arcsin\rho} \exp(-u^2 / (1 + \sin\theta))\, d\theta$.

    With $t = \tan(\pi/4 - \theta/2)$ no sine is left.
    """
    squares, heights, weights = _probit_integral(u, correlation)
    return (weights * heights / squares).sum(axis=0)


@_probit_variance.defjvp
def _(primals, tangents):
    """Leibniz' rule: derivatives of the limit of integration and of the integrand reuse its exponentials."""
    (u, correlation), (along, across) = primals, tangents
    squares, heights, weights = _probit_integral(u, correlation)
    # The derivative at correlation one is infinite, and rounding can reach it.
    held = jnp.minimum(correlation, 1 - 4 * float(jnp.finfo(u.dtype).eps))
    last = jnp.exp(-(u**2) / (1 + held)) / jnp.sqrt((1 - held) * (1 + held)) / (2 * math.pi)
    return (weights * heights / squares).sum(axis=0), last * across - u * (weights * heights).sum(axis=0) * along


def _probit_terms(mean, std, order, scale):
    var = (scale * std) ** 2
    stretch = jnp.sqrt(1 + var)
    u = clip_ratio(scale * mean / stretch)
    return u, stretch, ndtr(u), normal_pdf(u), hermite(u, order), _probit_variance(u, var / stretch**2)


def erf_rule(mean, std, order):
    """erf(x) = 2 Phi(sqrt2 x) - 1."""
    scale = math.sqrt(2)
    _, stretch, cdf, pdf, polynomials, var = _probit_terms(mean, std, order, scale)
    step = scale * std / stretch
    curved = [2 * (-1) ** (k - 1) * step**k * polynomials[k - 1] * pdf / root_factorial(k) for k in range(2, order + 1)]
    return _close(2 * cdf - 1, 2 * scale / stretch * pdf, std, curved, 4 * var)


def gelu_rule(mean, std, order):
    """X Phi(x)."""
    u, stretch, cdf, pdf, polynomials, var = _probit_terms(mean, std, order, 1.0)
    v, inner = std**2, jnp.sqrt(1 + 2 * std**2)
    q = mean / (stretch * inner)
    # E[f^2] - E[f]^2 with the leading terms cancelled analytically: every term carries a factor v.
    first = pdf / stretch * (2 * ndtr(q) - cdf)
    second = 2 * pdf / stretch**2 * (normal_pdf(q) / inner - u * ndtr(q)) - (pdf / stretch) ** 2
    total = mean**2 * var + v * (var + cdf**2) + 2 * mean * v * first + v**2 * second
    curved = [
        (-1) ** k
        * (std / stretch) ** k
        * stretch
        * pdf
        * (polynomials[k - 2] - polynomials[k] / stretch**2)
        / root_factorial(k)
        for k in range(2, order + 1)
    ]
    return _close(mean * cdf + v / stretch * pdf, cdf + u * pdf / stretch**2, std, curved, total)
