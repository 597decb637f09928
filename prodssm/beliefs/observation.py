"""Bayes' rule for one observation y = expected + slope (x - mean) + noise of a Gaussian state, in one of two spaces.

Coordinates of y that are NaN are missing: their rows of the slope, their noise and their innovation are taken as zero.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from prodssm._validation import require_shape, values_of
from prodssm.beliefs.linalg import cholesky, sandwich, solve_lower, solve_upper, symmetrise


class Observation(eqx.Module):
    r"""What an observation says about the state, with $S = H P H^\top + R$ the covariance of y and H the slope.

    Attributes:
        mean: Posterior mean of the state.
        cov: Posterior covariance of the state.
        innovation: $H^\top S^{-1} (y - E[y])$; its product with a covariance with the state is a shift of the mean.
        factor: L with $L L^\top = H^\top S^{-1} H$; its product with a covariance with the state downdates a covariance.
        log_evidence: Log density of y.
    """

    mean: Float[Array, " x"]
    cov: Float[Array, "x x"]
    innovation: Float[Array, " x"]
    factor: Float[Array, "x k"]
    log_evidence: Float[Array, ""]


def observe_in_output_space(
    mean: Float[Array, " x"],
    cov: Float[Array, "x x"],
    expected: Float[Array, " y"],
    slope: Float[Array, "y x"],
    noise: Float[Array, "y y"],
    y: Float[Array, " y"],
) -> Observation:
    """The Kalman update in Joseph form; factorises the covariance of y."""
    seen, innovation = _innovation(expected, y)
    both = seen[:, None] & seen[None, :]
    slope, noise = jnp.where(seen[:, None], slope, 0.0), jnp.where(both, noise, 0.0)
    chol = _factor_innovation_cov(symmetrise(sandwich(slope, cov) + noise), seen)
    white, white_slope = solve_lower(chol, innovation[:, None])[:, 0], solve_lower(chol, slope)
    gain = solve_upper(chol, white_slope @ cov).T
    keep = jnp.eye(mean.size, dtype=cov.dtype) - gain @ slope
    return Observation(
        mean=mean + gain @ innovation,
        # A sum of two positive semi-definite terms stays so in floating point.
        cov=symmetrise(sandwich(keep, cov) + sandwich(gain, noise)),
        innovation=white_slope.T @ white,
        factor=white_slope.T if y.size <= mean.size else cholesky(white_slope.T @ white_slope),
        log_evidence=_log_density(chol, white, seen),
    )


def observe_in_state_space(
    mean: Float[Array, " x"],
    cov: Float[Array, "x x"],
    expected: Float[Array, " y"],
    slope: Float[Array, "y x"],
    variance: Float[Array, " y"],
    y: Float[Array, " y"],
) -> Observation:
    r"""The same for independent noise of positive variance D, at the cost of matrices of the state's size only.

    With $P = L L^\top$, $A = I + L^\top H^\top D^{-1} H L$ and $z = A^{-1} L^\top H^\top D^{-1} \nu$ the posterior is
    $N(m + L z, L A^{-1} L^\top)$, positive semi-definite by construction, and $|S| = |D| |A|$.
    """
    seen, innovation = _innovation(expected, y)
    variance = jnp.maximum(variance, math.sqrt(float(jnp.finfo(variance.dtype).tiny)))  # a learned one may underflow
    precision = jnp.where(seen, 1 / variance, 0.0)
    slope = jnp.where(seen[:, None], slope, 0.0)
    root, identity = cholesky(cov), jnp.eye(mean.size, dtype=cov.dtype)
    white_slope = slope @ root
    weighted = precision[:, None] * white_slope
    chol = cholesky(identity + white_slope.T @ weighted, definite=True)
    z = solve_upper(chol, solve_lower(chol, (weighted.T @ innovation)[:, None]))[:, 0]
    shrunk = solve_lower(chol, root.T)
    # The textbook's quadratic form subtracts two large numbers; these two terms are positive.
    left = innovation - white_slope @ z
    square = (precision * left**2).sum() + (z**2).sum()
    log_det = jnp.where(seen, jnp.log(variance), 0.0).sum() + 2 * jnp.log(jnp.diag(chol)).sum()
    # H' S^-1 H = C (I + C' P C)^-1 C' with C C' = H' D^-1 H.
    information = cholesky(slope.T @ (precision[:, None] * slope))
    inner = cholesky(identity + symmetrise(sandwich(information.T, cov)), definite=True)
    return Observation(
        mean=mean + root @ z,
        cov=shrunk.T @ shrunk,
        innovation=slope.T @ (precision * left),
        factor=solve_lower(inner, information.T).T,
        log_evidence=-0.5 * (square + log_det + math.log(2 * math.pi) * seen.sum(dtype=cov.dtype)),
    )


def log_density(mean: Float[Array, " y"], cov: Float[Array, "y y"], y: Float[Array, " y"]) -> Float[Array, ""]:
    """Log density of N(mean, cov) at y; missing coordinates are marginalised."""
    seen, innovation = _innovation(mean, y)
    chol = _factor_innovation_cov(cov, seen)
    return _log_density(chol, solve_lower(chol, innovation[:, None])[:, 0], seen)


def _innovation(expected: Float[Array, " y"], y: Float[Array, " y"]) -> tuple[Bool[Array, " y"], Float[Array, " y"]]:
    """Which coordinates are there, and y minus its predicted mean."""
    require_shape("y", y, expected.shape)
    values = values_of(y)
    if values is not None and np.isinf(values).any():
        raise ValueError(f"y must be finite, or NaN where it is missing; got {values}")
    seen = ~jnp.isnan(y)
    return seen, jnp.where(seen, jnp.where(seen, y, 0.0) - expected, 0.0)


def _factor_innovation_cov(cov: Float[Array, "y y"], seen: Bool[Array, " y"]) -> Float[Array, "y y"]:
    both = seen[:, None] & seen[None, :]
    return cholesky(jnp.where(both, cov, jnp.eye(seen.size, dtype=cov.dtype)), definite=True)


def _log_density(chol: Float[Array, "y y"], white: Float[Array, " y"], seen: Bool[Array, " y"]) -> Float[Array, ""]:
    log_scale = jnp.log(jnp.diag(chol)).sum() + 0.5 * math.log(2 * math.pi) * seen.sum(dtype=chol.dtype)
    return -0.5 * (white**2).sum() - log_scale
