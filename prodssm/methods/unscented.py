"""Sigma points: the function at deterministic points, and the affine map that regresses its values on them."""

from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm._validation import plain, require_number
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief
from prodssm.beliefs.linalg import cholesky, safe_sqrt, symmetrise, unwhiten
from prodssm.methods.base import Method
from prodssm.networks.base import Function


class Unscented(Method):
    r"""The unscented transform, with uncertain weights as additional state.

    With n coordinates and $\lambda = \alpha^2 (n + \kappa) - n$ the centre has weight $\lambda / (n + \lambda)$ in the mean and
    $1 - \alpha^2 + \beta$ more in the covariance; the defaults give no negative weight. Negative weights (small alpha, or kappa
    below zero) can make the noise indefinite.

    Attributes:
        alpha: Scale of the points around the mean.
        beta: Additional covariance weight of the centre; 2 suits a Gaussian.
        kappa: Second scale parameter, often 0 or 3 - n.

    Example:
        >>> round(ps.channel(net, belief, method=Unscented(kappa=2.0)).mean.item(), 3)  # net is |x|, belief is N(0, 1)
        0.577
    """

    forms_joint_cov: ClassVar[bool] = True
    alpha: float | int = eqx.field(static=True, default=1.0, converter=plain)
    beta: float | int = eqx.field(static=True, default=2.0, converter=plain)
    kappa: float | int = eqx.field(static=True, default=0.0, converter=plain)

    def __check_init__(self):
        for name in ("alpha", "beta", "kappa"):
            require_number(name, getattr(self, name))

    def channel(self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None) -> Channel:
        """The channel by regression on sigma points over the state and all uncertain weights."""
        x_size = belief.mean.size
        mean, var, chol, carried = _augmented(network, belief)
        n = mean.size
        scale = self.alpha**2 * (n + self.kappa)
        if scale <= 0:
            raise ValueError(f"alpha**2 * (n + kappa) must be positive for n = {n}, got alpha={self.alpha}, kappa={self.kappa}")

        def output(point: Array) -> Array:
            chosen = network.with_weights(point[x_size:]) if n > x_size else network
            return chosen.given(control)(point[:x_size])

        offsets = jnp.sqrt(jnp.asarray(scale, mean.dtype)) * chol.T
        up, down = (jax.vmap(output)(mean[None, :] + sign * offsets) for sign in (1.0, -1.0))
        centre = output(mean)
        weight, centre_weight = 1 / (2 * scale), 1 - n / scale
        average = centre_weight * centre + weight * (up + down).sum(axis=0)
        # Odd parts determine the slope, even parts only the noise; in whitened coordinates no covariance is inverted.
        white_slope = weight * jnp.sqrt(jnp.asarray(scale, mean.dtype)) * (up - down).T
        odd, even = (up - down) / 2, (up + down) / 2 - average[None, :]
        centred = centre - average
        extra = centre_weight + 1 - self.alpha**2 + self.beta
        noise = 2 * weight * (even.T @ even) + extra * jnp.outer(centred, centred)
        local = odd[carried:]  # directions of local weights, which no slope may explain
        noise = noise + 2 * weight * (local.T @ local)
        slope = unwhiten(white_slope[:, :carried], chol[:carried, :carried], var[:carried])
        weight_slope = None if belief.weights is None else slope[:, x_size:]
        return Channel(average, slope[:, :x_size], symmetrise(noise), weight_slope)


class Cubature(Method):
    """The third-degree cubature rule: 2n points of equal weight, the unscented transform with alpha = 1, beta = kappa = 0.

    Example:
        >>> round(ps.channel(net, belief, method=Cubature()).mean.item(), 3)  # net is |x|, belief is N(0, 1)
        1.0
    """

    forms_joint_cov: ClassVar[bool] = True

    def channel(self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None) -> Channel:
        """The channel by regression on cubature points."""
        return Unscented(alpha=1.0, beta=0.0, kappa=0.0).channel(network, belief, control)


def _augmented(network: Function, belief: Belief) -> tuple[Array, Array, Array, int]:
    """Mean, variances and Cholesky factor of (state, uncertain weights), and how many coordinates are carried."""
    x_size = belief.mean.size
    if belief.weights is not None:
        joint = belief.dense()  # type: ignore[attr-defined]
        return joint.mean, joint.var, cholesky(joint.cov), joint.mean.size
    if not network.uncertain:
        return belief.mean, belief.var, cholesky(belief.cov), x_size
    weights = network.weights
    mean = jnp.concatenate([belief.mean, weights.mean])
    var = jnp.concatenate([belief.var, weights.var])
    return mean, var, jax.scipy.linalg.block_diag(cholesky(belief.cov), jnp.diag(safe_sqrt(weights.var))), x_size
