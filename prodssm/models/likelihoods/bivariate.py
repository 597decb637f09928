r"""The bivariate normal distribution function, as the covariance of two thresholded normal variables."""

import math

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

NODES = 48
LARGEST = 1 - 1e-6  # correlation; at one itself the gradient would be infinite


def threshold_cov(h: Float[Array, "*n"], k: Float[Array, "*n"], correlation: Float[Array, "*n"]) -> Float[Array, "*n"]:
    r"""Covariance of [a < h] and [b < k] for standard normal a, b of this correlation: $\Phi_2(h, k; \rho) - \Phi(h) \Phi(k)$.

    It is the integral of Drezner and Wesolowsky with Genz's substitution, by Gauss-Legendre quadrature:
    $\frac{1}{2 \pi} \int_0^{\arcsin \rho} \exp\left(-\frac{h^2 + k^2 - 2 h k \sin t}{2 \cos^2 t}\right) dt$.

    Example:
        >>> round(threshold_cov(jnp.zeros(1), jnp.zeros(1), jnp.array([0.5])).item(), 6)
        0.083333
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    end = jnp.arcsin(jnp.clip(correlation, -LARGEST, LARGEST))[..., None]
    nodes, weights = (jnp.asarray(part, h.dtype).reshape((1,) * h.ndim + (NODES,)) for part in (nodes, weights))
    # Nodes crowd towards the end, where the integrand falls fast if the correlation is close to one.
    share = jnp.sin(math.pi / 4 * (nodes + 1))
    angle, slope = end * share, math.pi / 4 * jnp.cos(math.pi / 4 * (nodes + 1))
    h, k, cosine = h[..., None], k[..., None], jnp.cos(angle)
    # (h - k)^2 / 2 cos^2 + h k / (1 + sin): the form in the docstring would divide a difference of large numbers.
    exponent = 0.5 * ((h - k) / cosine) ** 2 + h * k / (1 + jnp.sin(angle))
    return (weights * slope * end * jnp.exp(-exponent)).sum(axis=-1) / (2 * math.pi)
