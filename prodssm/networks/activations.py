"""Activations by name, each with its Gaussian-Hermite expansion; any other elementwise function through `from_function`."""

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf, ndtr
from jaxtyping import Array, Float

from prodssm._validation import require_finite, require_integer
from prodssm.networks.expansions import (
    Expansion,
    cosine_rule,
    erf_rule,
    exponential_rule,
    gelu_rule,
    identity_rule,
    is_certain,
    leaky_relu_rule,
    relu_rule,
    saturating_exp,
    sine_rule,
    square_rule,
)
from prodssm.networks.projections import elu_rule, quadrature_rule, smooth_rule
from prodssm.networks.quadrature import Units, logistic_mixture, normal_pdf

LOGISTIC_NODES = 12  # relative error below 3e-5 of softplus itself from -13 on


class Activation(eqx.Module):
    """An elementwise function and its expansion around a Gaussian.

    Attributes:
        name: What it is called in `Network.mlp(..., activation=name)`.
        function: The function of an array, elementwise.
        rule: `(mean, std, order) -> Expansion` for units with positive standard deviation.

    Example:
        >>> ACTIVATIONS["relu"](jnp.array([-1.0, 2.0])).tolist()
        [0.0, 2.0]
    """

    name: str = eqx.field(static=True)
    function: Callable[[Array], Array] = eqx.field(static=True)
    rule: Callable[[Units, Units, int], Expansion] = eqx.field(static=True)

    def __call__(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The function itself."""
        return self.function(x)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a registered activation by name, because JAX functions cannot be pickled."""
        known = ACTIVATIONS.get(self.name)
        if known is not None and known.function is self.function:
            return find_activation, (self.name,)
        return super().__reduce_ex__(protocol)

    def expand(self, mean: Units, var: Units, order: int) -> Expansion:
        """The expansion at these moments; a unit of zero variance gets its function value and derivative."""
        require_integer("order", order, least=1)
        certain = is_certain(mean, var)
        # Double where: both branches must be finite, or the gradient of the unused one would be NaN.
        found = self.rule(mean, jnp.sqrt(jnp.where(certain, 1.0, var)), order)
        value, derivative = jax.jvp(self.function, (mean,), (jnp.ones_like(mean),))
        return Expansion(
            jnp.where(certain, value, found.mean),
            jnp.where(certain, derivative, found.slope),
            jnp.where(certain[None, :], 0.0, found.curved),
            jnp.where(certain, 0.0, found.rest),
        )


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

    rule = partial(quadrature_rule, function, tuple(float(kink) for kink in kinks), nodes)  # closures cannot be pickled
    return Activation(name or getattr(function, "__name__", "function"), function, rule)


# A new activation is one entry: the function and its expansion rule (closed form, `smooth_rule`, or `from_function`).
_RULES: dict[str, tuple[Callable, Callable]] = {
    "identity": (lambda x: x, identity_rule),
    "relu": (jax.nn.relu, relu_rule),
    "leaky_relu": (jax.nn.leaky_relu, leaky_relu_rule),
    "elu": (jax.nn.elu, elu_rule),
    "tanh": (jnp.tanh, smooth_rule(jnp.tanh, width=4.0)),
    "sigmoid": (jax.nn.sigmoid, smooth_rule(jax.nn.sigmoid, width=8.0)),
    "erf": (erf, erf_rule),
    "gelu": (partial(jax.nn.gelu, approximate=False), gelu_rule),
    "silu": (jax.nn.silu, smooth_rule(jax.nn.silu, width=8.0)),
    "softplus": (jax.nn.softplus, smooth_rule(jax.nn.softplus, width=8.0)),
    "sin": (jnp.sin, sine_rule),
    "cos": (jnp.cos, cosine_rule),
    "exp": (saturating_exp, exponential_rule),
    "square": (jnp.square, square_rule),
}
ACTIVATIONS: dict[str, Activation] = {name: Activation(name, *parts) for name, parts in _RULES.items()}
"""Activations by the names that estimators and networks take, such as "relu", "tanh" and "erf"."""


# One activation object per function: a new one would trigger recompilation.
_from_function = lru_cache(maxsize=None)(from_function)


def mean_softplus(mean: Units, var: Units) -> Units:
    r"""$E[\log(1 + e^x)]$ for $x \sim N(m, v)$, without the quadrature of the whole expansion.

    Softplus is the expectation of ReLU under additive logistic noise, and the logistic distribution is a scale mixture of
    normals: a short sum of the closed form of ReLU, at variances that are never zero.
    """
    scales, shares = (jnp.asarray(part, mean.dtype)[:, None] for part in logistic_mixture(LOGISTIC_NODES))
    scale = jnp.sqrt(var[None, :] + scales**2)
    at = mean[None, :] / scale
    return (shares * scale * (at * ndtr(at) + normal_pdf(at))).sum(axis=0)


def find_activation(activation: str | Activation | Callable[[Array], Array]) -> Activation:
    """The activation of this name, or that of an elementwise function, by quadrature."""
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
