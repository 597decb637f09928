r"""Activations and their Gaussian-Hermite expansions, unit by unit.

For $x \sim N(m, v)$ with $s = \sqrt v$ and orthonormal Hermite polynomials $he_k = He_k / \sqrt{k!}$, an activation is
$f(x) = \sum_k c_k\, he_k((x - m)/s)$ with $c_k = E[f(m + s e)\, he_k(e)]$. The mean is $c_0$, the slope $E[f'] = c_1 / s$, the
variance $\sum_{k \ge 1} c_k^2$. An expansion of order K keeps $c_0 \dots c_K$ and the variance that is left over, so that a
covariance built from it is positive semi-definite and has the exact diagonal at every order.

Closed forms are used where they exist. Any other elementwise function is integrated: `from_function(f)`.
"""

import math
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf, erfc, log_ndtr, ndtr
from jaxtyping import Array, Float

from prodssm.checks import require_finite, require_integer
from prodssm.linalg import settle
from prodssm.quadrature import (
    Units,
    derivative,
    hermite,
    hermite_grid,
    hermite_rows,
    logistic_mixture,
    normal_pdf,
    smooth_expectation,
    soft_grid,
    split_grid,
)

LOGISTIC_NODES = 12  # relative error below 3e-5 of softplus itself from -13 on

Coefficients = Float[Array, "k n"]


class Expansion(eqx.Module):
    """An activation seen by independent unit beliefs: f = mean + slope (x - m) + curved terms + what is left over."""

    mean: Units
    slope: Units
    curved: Coefficients  # c_2 ... c_K
    rest: Units  # variance beyond order K, never negative


class Activation(eqx.Module):
    """An elementwise function and its expansion around a Gaussian.

    Attributes:
        name: What it is called in `Network.mlp(..., activation=name)`.
        function: The function of an array, elementwise.
        rule: `(mean, std, order) -> Expansion` for units with positive standard deviation.
    """

    name: str = eqx.field(static=True)
    function: Callable[[Array], Array] = eqx.field(static=True)
    rule: Callable[[Units, Units, int], Expansion] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The function itself."""
        return self.function(x)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """What pickle takes along: of a known activation its name, because functions of JAX cannot travel."""
        known = ACTIVATIONS.get(self.name)
        if known is not None and known.function is self.function:
            return find_activation, (self.name,)
        return super().__reduce_ex__(protocol)

    def expand(self, mean: Units, var: Units, order: int) -> Expansion:
        """The expansion at these moments; a unit without variance is an ordinary function value and derivative."""
        require_integer("order", order, least=1)
        certain = is_certain(mean, var)
        # Both branches must be finite, or the unused one would poison the gradient of the used one.
        found = self.rule(mean, jnp.sqrt(jnp.where(certain, 1.0, var)), order)
        value, derivative = jax.jvp(self.function, (mean,), (jnp.ones_like(mean),))
        return Expansion(
            jnp.where(certain, value, found.mean),
            jnp.where(certain, derivative, found.slope),
            jnp.where(certain[None, :], 0.0, found.curved),
            jnp.where(certain, 0.0, found.rest),
        )


def is_certain(mean: Units, var: Units) -> Array:
    """Units whose spread cannot be told from zero in this precision: their own rounding is larger."""
    kind = jnp.finfo(mean.dtype)
    least = 1e-30 if kind.bits == 32 else 1e-280
    return var <= float(kind.eps) ** 2 * mean**2 + least


def _limit(x: Array) -> float:
    """Where the normal density underflows."""
    return 13.0 if jnp.finfo(x.dtype).bits == 32 else 38.0


def _clip(ratio: Array) -> Array:
    """Keep polynomials of a ratio finite where the density that multiplies them is zero."""
    return jnp.clip(ratio, -_limit(ratio), _limit(ratio))


def _root_factorial(k: int) -> float:
    return math.sqrt(math.factorial(k))


def _stack(coefficients: list[Array], like: Units) -> Coefficients:
    return jnp.stack(coefficients) if coefficients else jnp.zeros((0, like.size), like.dtype)


def _close(mean: Units, slope: Units, std: Units, curved: list[Array], var: Units) -> Expansion:
    """The expansion whose left-over is the difference of a known variance and its coefficients."""
    rest = var - (slope * std) ** 2 - sum(c**2 for c in curved)
    return Expansion(mean, slope, _stack(curved, mean), jnp.maximum(rest, 0.0))


# Closed forms (MATH 3.1, 3.4)


def _identity(mean, std, order):
    nothing = jnp.zeros_like(mean)
    return Expansion(mean, jnp.ones_like(mean), _stack([nothing] * (order - 1), mean), nothing)


@partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def _relu(mean, std, order, leak=0.0):
    r"""max(0, x) + leak min(0, x).

    Beyond the slope everything is even in $a = m/s$, because relu(x) = x + relu(-x). With $b = -|a|$ no two large numbers are
    subtracted, so float32 keeps its digits.
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
    ratio = _clip(mean / std)
    below = -jnp.abs(ratio)
    outside = 0.5 * erfc(-below / math.sqrt(2))
    cdf, pdf = jnp.where(ratio > 0, 1 - outside, outside), normal_pdf(ratio)
    signs = np.array([(1 - leak) * (-1) ** k / _root_factorial(k) for k in range(2, order + 1)])
    curved = settle(hermite_rows(ratio, signs) * pdf[None, :])
    hinge = pdf + below * outside
    beyond_slope = (1 + below**2) * outside + below * pdf - hinge**2 - outside**2
    rest = jnp.maximum((1 - leak) ** 2 * beyond_slope - (curved**2).sum(axis=0), 0.0)
    return _ReluShape(ratio, cdf, pdf, curved, rest)


@_relu.defjvp
def _(order, leak, primals, tangents):
    r"""With $c_k = s h_k(a)$ the derivative is a shift of the expansion itself: $h_k' = \sqrt{k+1}\, h_{k+1}$ (MATH 3)."""
    (mean, std), (mean_dot, std_dot) = primals, tangents
    found, further = _relu(mean, std, order, leak), _relu_shape(mean, std, order + 1, leak)
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


def _leaky_relu(mean, std, order):
    return _relu(mean, std, order, leak=0.01)


def _sine(mean, std, order, shift=0.0):
    """sin(x + shift)."""
    std = jnp.minimum(std, _limit(mean) * math.sqrt(1.2))  # beyond this exp(-var / 2) is zero, and its factors would overflow
    var = std**2
    damp = jnp.exp(-var / 2)
    turned = [damp * jnp.sin(mean + (shift + k * math.pi / 2)) for k in range(order + 1)]
    curved = [std**k * turned[k] / _root_factorial(k) for k in range(2, order + 1)]
    faded = -jnp.expm1(-var)
    return _close(turned[0], turned[1], std, curved, faded * ((1 - faded) * jnp.cos(mean + shift) ** 2 + faded / 2))


def _cosine(mean, std, order):
    return _sine(mean, std, order, shift=math.pi / 2)


def _highest_exponent(x: Array) -> float:
    """Beyond this moments of exp(x) would leave the range of the type: exp saturates instead."""
    return 16.0 if jnp.finfo(x.dtype).bits == 32 else 150.0


def saturating_exp(x: Array) -> Array:
    """exp(x), held at exp(16) in float32 and exp(150) in float64: moments, and their gradients through layers, stay finite."""
    return jnp.exp(jnp.minimum(x, _highest_exponent(x)))


def _exponential(mean, std, order):
    most = _highest_exponent(mean)
    held = jnp.minimum(std, math.sqrt(most))
    mean = jnp.clip(mean, -4 * most, most - held**2)
    level = jnp.exp(mean + held**2 / 2)
    curved = [held**k * level / _root_factorial(k) for k in range(2, order + 1)]
    return _close(level, level * (held / std), std, curved, level**2 * jnp.expm1(held**2))


def _square(mean, std, order):
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
    """By the end of the integral and under it: nothing is exponentiated again on the way back."""
    (u, correlation), (along, across) = primals, tangents
    squares, heights, weights = _probit_integral(u, correlation)
    # The slope at one is infinite, which rounding can reach.
    held = jnp.minimum(correlation, 1 - 4 * float(jnp.finfo(u.dtype).eps))
    last = jnp.exp(-(u**2) / (1 + held)) / jnp.sqrt((1 - held) * (1 + held)) / (2 * math.pi)
    return (weights * heights / squares).sum(axis=0), last * across - u * (weights * heights).sum(axis=0) * along


def _probit_terms(mean, std, order, scale):
    var = (scale * std) ** 2
    stretch = jnp.sqrt(1 + var)
    u = _clip(scale * mean / stretch)
    return u, stretch, ndtr(u), normal_pdf(u), hermite(u, order), _probit_variance(u, var / stretch**2)


def _erf(mean, std, order):
    """erf(x) = 2 Phi(sqrt2 x) - 1."""
    scale = math.sqrt(2)
    _, stretch, cdf, pdf, polynomials, var = _probit_terms(mean, std, order, scale)
    step = scale * std / stretch
    curved = [2 * (-1) ** (k - 1) * step**k * polynomials[k - 1] * pdf / _root_factorial(k) for k in range(2, order + 1)]
    return _close(2 * cdf - 1, 2 * scale / stretch * pdf, std, curved, 4 * var)


def _gelu(mean, std, order):
    """X Phi(x)."""
    u, stretch, cdf, pdf, polynomials, var = _probit_terms(mean, std, order, 1.0)
    v, inner = std**2, jnp.sqrt(1 + 2 * std**2)
    q = mean / (stretch * inner)
    # E[f^2] - E[f]^2 with the leading parts of both already cancelled: every term carries a factor v.
    first = pdf / stretch * (2 * ndtr(q) - cdf)
    second = 2 * pdf / stretch**2 * (normal_pdf(q) / inner - u * ndtr(q)) - (pdf / stretch) ** 2
    total = mean**2 * var + v * (var + cdf**2) + 2 * mean * v * first + v**2 * second
    curved = [
        (-1) ** k
        * (std / stretch) ** k
        * stretch
        * pdf
        * (polynomials[k - 2] - polynomials[k] / stretch**2)
        / _root_factorial(k)
        for k in range(2, order + 1)
    ]
    return _close(mean * cdf + v / stretch * pdf, cdf + u * pdf / stretch**2, std, curved, total)


# Integrals


def _project(function, mean, std, order, grid, center=None, slope=None):
    """Coefficients by quadrature. What is left over is the mean square of a residual, so it cannot be negative."""
    nodes, weights = grid(mean, std)
    base = function(mean)
    # Differences from the value at the mean: the constant part would drown the rest when the variance is tiny.
    values = function(mean[None, :] + std[None, :] * nodes) - base[None, :]
    basis = [p / _root_factorial(k) for k, p in enumerate(hermite(nodes, order))]
    offset = (weights * values).sum(axis=0) if center is None else center - base
    slope = (weights * values * nodes).sum(axis=0) / std if slope is None else slope
    curved = [(weights * values * basis[k]).sum(axis=0) for k in range(2, order + 1)]
    residual = values - offset[None, :] - (slope * std)[None, :] * nodes
    for k, coefficient in enumerate(curved, start=2):
        residual = residual - coefficient[None, :] * basis[k]
    return Expansion(base + offset, slope, _stack(curved, mean), (weights * residual**2).sum(axis=0))


def _smooth_rule(function, width):
    grid = soft_grid(width)

    def rule(mean, std, order):
        center = smooth_expectation(function, grid, mean, std)
        slope = smooth_expectation(derivative(function), grid, mean, std)
        return _project(function, mean, std, order, grid, center, slope)

    return rule


def _mills(z):
    """(1 - Phi(z)) / phi(z) for z >= -8, without overflow."""
    near = jnp.clip(z, -8.0, 4.0)
    far = jnp.maximum(z, 4.0)
    fraction = far
    for k in range(24, 0, -1):
        fraction = far + k / fraction
    return jnp.where(z > 4.0, 1 / fraction, jnp.exp(log_ndtr(-near) + near**2 / 2) * math.sqrt(2 * math.pi))


def _below_zero(mean, std):
    """E[exp(x); x < 0], which is also E[f''] of elu: two forms of one number, each safe on its own side."""
    shifted = mean / std + std
    right = normal_pdf(_clip(mean / std)) * _mills(jnp.maximum(shifted, -1.0))
    left = jnp.exp(jnp.minimum(mean + std**2 / 2, 1.0)) * ndtr(-jnp.minimum(shifted, 1.0))
    return jnp.where(shifted > 0, right, left)


@jax.custom_jvp
def _elu_slope(mean, std):
    return ndtr(_clip(mean / std)) + _below_zero(mean, std)


@_elu_slope.defjvp
def _(primals, tangents):
    mean, std = primals
    second = _below_zero(mean, std)
    return _elu_slope(mean, std), second * tangents[0] + (std * second - normal_pdf(_clip(mean / std))) * tangents[1]


@jax.custom_jvp
def _elu_center(mean, std):
    ratio = _clip(mean / std)
    return mean * ndtr(ratio) + std * normal_pdf(ratio) + _below_zero(mean, std) - ndtr(-ratio)


@_elu_center.defjvp
def _(primals, tangents):
    # Stein and Price; differentiating the formula would subtract numbers of size 1/std.
    slope, curvature = _elu_slope(*primals), _below_zero(*primals)
    return _elu_center(*primals), slope * tangents[0] + primals[1] * curvature * tangents[1]


def _elu(mean, std, order):
    """The identity above zero, exp(x) - 1 below."""
    center, slope = _elu_center(mean, std), _elu_slope(mean, std)
    return _project(jax.nn.elu, mean, std, order, split_grid((0.0,), 20), center, slope)


def from_function(
    function: Callable[[Array], Array], *, kinks: tuple[float, ...] = (), nodes: int = 32, name: str | None = None
) -> Activation:
    """An activation from any elementwise function, by quadrature.

    Args:
        function: Maps an array to an array of the same shape, element by element, in JAX.
        kinks: Places where the function or its derivative jumps; the integral is split there.
        nodes: Number of quadrature nodes (between kinks, if there are any).
        name: What to call it; the function's own name by default.

    Returns:
        An activation for `Network.mlp(..., activation=...)`.

    Example:
        >>> hard = from_function(lambda x: jnp.clip(x, -1, 1), kinks=(-1.0, 1.0))
        >>> round(hard.expand(jnp.zeros(1), jnp.ones(1), order=1).slope.item(), 4)
        0.6827
    """
    if not callable(function):
        raise TypeError(f"function must be callable, got {type(function).__name__}")
    if nodes < 2:
        raise ValueError(f"nodes must be at least 2, got {nodes}")
    require_finite("kinks", np.asarray(kinks, float))

    rule = partial(_by_quadrature, function, tuple(float(kink) for kink in kinks), nodes)  # pickle takes no closures along
    return Activation(name or getattr(function, "__name__", "function"), function, rule)


def _by_quadrature(function, kinks, nodes, mean, std, order):
    grid = split_grid(kinks, nodes) if kinks else hermite_grid(nodes)
    if order >= nodes:
        raise ValueError(f"order must be below the {nodes} quadrature nodes of this activation, got {order}")
    return _project(function, mean, std, order, grid)


_RULES: dict[str, tuple[Callable, Callable]] = {
    "identity": (lambda x: x, _identity),
    "relu": (jax.nn.relu, _relu),
    "leaky_relu": (jax.nn.leaky_relu, _leaky_relu),
    "elu": (jax.nn.elu, _elu),
    "tanh": (jnp.tanh, _smooth_rule(jnp.tanh, width=4.0)),
    "sigmoid": (jax.nn.sigmoid, _smooth_rule(jax.nn.sigmoid, width=8.0)),
    "erf": (erf, _erf),
    "gelu": (partial(jax.nn.gelu, approximate=False), _gelu),
    "silu": (jax.nn.silu, _smooth_rule(jax.nn.silu, width=8.0)),
    "softplus": (jax.nn.softplus, _smooth_rule(jax.nn.softplus, width=8.0)),
    "sin": (jnp.sin, _sine),
    "cos": (jnp.cos, _cosine),
    "exp": (saturating_exp, _exponential),
    "square": (jnp.square, _square),
}
ACTIVATIONS: dict[str, Activation] = {name: Activation(name, *parts) for name, parts in _RULES.items()}


# One activation per function: a new one would have everything compiled anew.
_from_function = lru_cache(maxsize=None)(from_function)


def mean_softplus(mean: Units, var: Units) -> Units:
    r"""$E[\log(1 + e^x)]$ for $x \sim N(m, v)$, without the quadrature of the whole expansion.

    Softplus is what ReLU makes of its argument plus logistic noise, and that noise is a mixture of normals: a short sum of the
    closed form of ReLU, at variances that are never zero.
    """
    spread, share = (jnp.asarray(part, mean.dtype)[:, None] for part in logistic_mixture(LOGISTIC_NODES))
    scale = jnp.sqrt(var[None, :] + spread**2)
    at = mean[None, :] / scale
    return (share * scale * (at * ndtr(at) + normal_pdf(at))).sum(axis=0)


def find_activation(activation: str | Activation | Callable[[Array], Array]) -> Activation:
    """The activation of this name; any elementwise function is taken as it is and integrated."""
    if isinstance(activation, Activation):
        return activation
    if isinstance(activation, str):
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, or a function; got {activation!r}")
        return ACTIVATIONS[activation]
    for known in ACTIVATIONS.values():
        if activation is known.function:
            return known
    if callable(activation):
        return _from_function(activation)
    raise TypeError(f"activation must be a name or a function, got {type(activation).__name__}")
