"""Monte Carlo: draw the belief, run the network, fit the affine map. The reference, and the rival."""

from typing import Literal

import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.checks import require_integer
from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.linalg import cholesky, solve_psd, symmetrise, unwhiten
from prodssm.network import Network


def sampled(
    network: Network,
    belief: Gaussian | JointGaussian,
    control: Float[Array, " u"] | None = None,
    *,
    key: PRNGKeyArray,
    samples: int = 1024,
    draw: Literal["outputs", "weights"] = "outputs",
) -> Channel:
    """The channel of a network by sampling and regression on what is carried.

    Args:
        network: The network; its weights are redrawn for every sample if they are uncertain and not part of the belief.
        belief: What is believed about its input, joint with its weights if these are drawn once.
        control: Known inputs that follow the state.
        key: Randomness.
        samples: Number of samples; more than the number of carried coordinates.
        draw: For redrawn weights: "outputs" draws each layer's outputs given its inputs, which has the same distribution as
            drawing "weights" and is far cheaper.

    Returns:
        The channel.
    """
    require_integer("samples", samples, least=2)
    joint = isinstance(belief, JointGaussian)
    whole = belief.dense() if joint else belief
    x_size = belief.mean.size
    if samples <= whole.mean.size + 1:
        raise ValueError(f"samples must exceed the {whole.mean.size} carried coordinates by two, got {samples}")
    if draw not in ("outputs", "weights"):
        raise ValueError(f"draw must be 'outputs' or 'weights', got {draw!r}")
    white_key, weight_key = jr.split(key)
    white = jr.normal(white_key, (samples, whole.mean.size), whole.mean.dtype)
    root = cholesky(whole.cov)
    points = whole.mean[None, :] + white @ root.T

    def output(point: Array, one: PRNGKeyArray) -> Array:
        chosen = network.with_weights(point[x_size:]) if joint else network
        chosen = chosen.given(control)
        return chosen.sample(one)(point[:x_size]) if draw == "weights" else chosen.sample_output(point[:x_size], key=one)

    values = jax.vmap(output)(points, jr.split(weight_key, samples))
    # Least squares on the whitened points, whose true mean is known: a linear network is found exactly. The residual is a
    # sample, so its covariance is positive semi-definite.
    offsets = white - white.mean(axis=0)[None, :]
    centred = values - values.mean(axis=0)[None, :]
    white_slope = solve_psd(offsets.T @ offsets, offsets.T @ centred).T
    mean = values.mean(axis=0) - white_slope @ white.mean(axis=0)
    residual = centred - offsets @ white_slope.T
    # Not divided by the degrees of freedom that are left: the slope's own error is already counted in its square.
    noise = residual.T @ residual / (samples - 1)
    slope = unwhiten(white_slope, root, whole.var)
    return Channel(mean, slope[:, :x_size], symmetrise(noise), weight_slope=slope[:, x_size:] if joint else None)
