"""Sigma points: the function at a few chosen places, and the affine map that fits what came out."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.checks import require_number
from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.linalg import cholesky, safe_sqrt, symmetrise, unwhiten
from prodssm.network import Network


def unscented(
    network: Network,
    belief: Gaussian | JointGaussian,
    control: Float[Array, " u"] | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 2.0,
    kappa: float = 0.0,
) -> Channel:
    r"""The channel of a network by the unscented transform, with uncertain weights as extra state.

    With n coordinates and $\lambda = \alpha^2 (n + \kappa) - n$ the centre weighs $\lambda / (n + \lambda)$ in the mean and
    $1 - \alpha^2 + \beta$ more in the covariance; the defaults weigh nothing negatively. `alpha=1, beta=0, kappa=0` is the
    cubature rule.

    Args:
        network: The network; its weights are redrawn at every step if they are uncertain and not part of the belief.
        belief: What is believed about its input, joint with its weights if these are drawn once.
        control: Known inputs that follow the state.
        alpha: Spread of the points.
        beta: Extra weight of the centre in the covariance; 2 suits a Gaussian.
        kappa: Second spread parameter, often 0 or 3 - n.

    Returns:
        The channel. Negative weights (small alpha, or kappa below zero) can leave its noise indefinite.
    """
    for name, value in (("alpha", alpha), ("beta", beta), ("kappa", kappa)):
        require_number(name, value)
    x_size = belief.mean.size
    if isinstance(belief, JointGaussian):
        whole, carried = belief.dense(), x_size + belief.weights.mean.size
        mean, var, root = whole.mean, whole.var, cholesky(whole.cov)
    elif network.uncertain:
        weights, carried = network.weights, x_size
        mean = jnp.concatenate([belief.mean, weights.mean])
        var = jnp.concatenate([belief.var, weights.var])
        root = jax.scipy.linalg.block_diag(cholesky(belief.cov), jnp.diag(safe_sqrt(weights.var)))
    else:
        mean, var, root, carried = belief.mean, belief.var, cholesky(belief.cov), x_size
    n = mean.size
    stretch = alpha**2 * (n + kappa)
    if stretch <= 0:
        raise ValueError(f"alpha**2 * (n + kappa) must be positive for n = {n}, got alpha={alpha}, kappa={kappa}")

    def output(point: Array) -> Array:
        chosen = network.with_weights(point[x_size:]) if n > x_size else network
        return chosen.given(control)(point[:x_size])

    offsets = jnp.sqrt(jnp.asarray(stretch, mean.dtype)) * root.T
    up, down = (jax.vmap(output)(mean[None, :] + sign * offsets) for sign in (1.0, -1.0))
    centre = output(mean)
    share = 1 / (2 * stretch)
    centre_share = 1 - n / stretch
    average = centre_share * centre + share * (up + down).sum(axis=0)
    # Odd parts explain the slope, even parts only the noise; in whitened coordinates no covariance is inverted.
    white_slope = share * jnp.sqrt(jnp.asarray(stretch, mean.dtype)) * (up - down).T
    odd, even = (up - down) / 2, (up + down) / 2 - average[None, :]
    centred = centre - average
    extra = centre_share + 1 - alpha**2 + beta
    noise = 2 * share * (even.T @ even) + extra * jnp.outer(centred, centred)
    unexplained = odd[carried:]
    noise = noise + 2 * share * (unexplained.T @ unexplained)
    slope = unwhiten(white_slope[:, :carried], root[:carried, :carried], var[:carried])
    weight_slope = slope[:, x_size:] if isinstance(belief, JointGaussian) else None
    return Channel(average, slope[:, :x_size], symmetrise(noise), weight_slope=weight_slope)
