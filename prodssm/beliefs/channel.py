"""Affine Gaussian channels: `f(x) = mean + slope (x - E[x]) + N(0, noise)`, their composition and residual links."""

from functools import partial
from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm._validation import as_array, require_shape, require_variances
from prodssm.beliefs.linalg import sandwich


class Channel(eqx.Module):
    r"""The affine Gaussian channel of a function around a belief: $f(x) = mean + slope\,(x - E[x]) + e$, $e \sim N(0, noise)$.

    Under a belief that carries weights, `weight_slope (w - E[w])` is added.

    Attributes:
        mean: $E[f(x)]$.
        slope: The expected Jacobian with respect to the state, output by input.
        noise: Covariance of the residual of that regression; positive semi-definite.
        weight_slope: The expected Jacobian with respect to carried weights, output by weight; `None` if none are carried.
        affine: Whether the function is affine, so that the noise is zero by construction; see `Channel.of_affine`.

    Example:
        >>> channel = Channel(mean=[1.0], slope=[[2.0]], noise=[[0.5]])
        >>> ps.Gaussian([0.0], [[1.0]]).predict(channel).var.item()
        4.5
    """

    mean: Float[Array, " y"] = eqx.field(converter=partial(as_array, "mean", ndim=1))
    slope: Float[Array, "y x"] = eqx.field(converter=partial(as_array, "slope", ndim=2))
    noise: Float[Array, "y y"] = eqx.field(converter=partial(as_array, "noise", ndim=2))
    weight_slope: Float[Array, "y w"] | None = None
    affine: bool = eqx.field(static=True, default=False)

    @classmethod
    def of_affine(cls, mean: Float[Array, " y"], slope: Float[Array, "y x"]) -> "Channel":
        """The channel of an affine function, which has no noise."""
        return cls(mean, slope, jnp.zeros((mean.size, mean.size), mean.dtype), affine=True)

    def __check_init__(self):
        n = self.mean.size
        if self.slope.shape[0] != n:
            raise ValueError(f"slope must have shape ({n}, inputs) to match mean, got {self.slope.shape}")
        if self.noise.shape != (n, n):
            raise ValueError(f"noise must have shape {(n, n)} to match mean, got {self.noise.shape}")

    def plus(self, variances: Float[Array, " y"]) -> "Channel":
        """The channel of `f(x) + N(0, diag(variances))`."""
        extra = diagonal(variances, self.mean)
        return Channel(self.mean, self.slope, self.noise + extra, self.weight_slope)

    def residual(self, mean: Float[Array, " y"], dt: Float[Array, ""] | float = 1.0) -> "Channel":
        """The channel of `x + dt f(x)` around a state of this mean: the link adds the identity to the slope."""
        n = self.mean.size
        if self.slope.shape != (n, n):
            raise ValueError(f"a residual link needs as many outputs as states, got a slope of shape {self.slope.shape}")
        require_shape("mean", mean, (n,))
        return self.beside(Link.residual(mean, dt))

    def beside(self, link: "Link") -> "Channel":
        """The channel of `link(x) + dt f(x)`."""
        dt = link.dt
        weight_slope = None if self.weight_slope is None else dt * self.weight_slope
        return Channel(link.mean + dt * self.mean, link.slope + dt * self.slope, dt**2 * self.noise, weight_slope)


class Link(eqx.Module):
    """An affine map of the state to which `dt` times a network is added, around a belief: of a residual transition, x.

    Attributes:
        mean: The map at the mean of the belief.
        slope: Its slope.
        dt: What the network is multiplied by.
    """

    mean: Float[Array, " x"]
    slope: Float[Array, "x x"]
    dt: Float[Array, ""] | float

    @classmethod
    def residual(cls, mean: Float[Array, " x"], dt: Float[Array, ""] | float = 1.0) -> "Link":
        """The identity."""
        return cls(mean, jnp.eye(mean.size, dtype=mean.dtype), dt)


def diagonal(variances: Any, mean: Array) -> Array:
    """Checked variances, one per entry of the mean, as a diagonal matrix."""
    variances = as_array("variances", variances, ndim=1).astype(mean.dtype)
    require_shape("variances", variances, mean.shape)
    require_variances("variances", variances)
    return jnp.diag(variances)


def compose(first: Channel, then: Channel) -> Channel:
    """The channel of `then(first(x))`, where `then` was built around the belief that `first` predicts.

    Example:
        >>> half = Channel(mean=[0.5], slope=[[0.5]], noise=[[0.25]])
        >>> compose(half, half).slope.item()
        0.25
    """
    noise = sandwich(then.slope, first.noise) + then.noise
    weight_slope = first.weight_slope
    if weight_slope is not None:
        weight_slope = then.slope @ weight_slope
    if then.weight_slope is not None:
        weight_slope = then.weight_slope if weight_slope is None else weight_slope + then.weight_slope
    return Channel(then.mean, then.slope @ first.slope, noise, weight_slope)
