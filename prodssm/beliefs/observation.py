"""Bayes' rule for one observation y = expected + slope (x - mean) + noise of a Gaussian state, in one of two spaces.

Coordinates of y that are NaN are missing: their rows of the slope, their noise and their innovation are taken as zero.
"""

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from prodssm._validation import require_shape, values_of
from prodssm.beliefs.linalg import (
    cholesky,
    matmul,
    positive_part,
    rounding_error,
    sandwich,
    solve_lower,
    solve_upper,
    symmetrise,
    whiten_plus_identity,
)


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
    gain = solve_upper(chol, matmul(white_slope, cov)).T
    keep = jnp.eye(mean.size, dtype=cov.dtype) - matmul(gain, slope)
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
    n = mean.size
    seen, innovation = _innovation(expected, y)
    variance = jnp.maximum(variance, math.sqrt(float(jnp.finfo(variance.dtype).tiny)))  # a learned one may underflow
    precision = jnp.where(seen, 1 / variance, 0.0)
    # H' D^-1 H as a product with all pairs of columns, which do not depend on what is missing: XLA takes them out of a scan.
    pairs = (slope[:, :, None] * slope[:, None, :]).reshape(-1, n * n)
    information = (precision @ pairs).reshape(n, n)
    root = cholesky(cov)
    right = jnp.concatenate([information, ((precision * innovation) @ slope)[:, None]], axis=1)
    pulled = matmul(root.T, right)
    rows = jnp.concatenate([pulled[:, n:], root.T, jnp.eye(n, dtype=cov.dtype)], axis=1)
    white, log_det = whiten_plus_identity(symmetrise(matmul(pulled[:, :n], root)), rows)
    solved = matmul(white[:, 1:].T, white[:, : n + 1])  # [L; I] A^-1 [b, L']
    shift, z = solved[:n, 0], solved[n:, 0]
    # The textbook's quadratic form subtracts two large numbers; these two terms are positive.
    left = innovation - slope @ shift
    square = (precision * left**2).sum() + (z**2).sum()
    log_det = log_det + jnp.where(seen, jnp.log(variance), 0.0).sum()
    # H' S^-1 H = C (I + C' P C)^-1 C' with C C' = H' D^-1 H.
    chol = cholesky(information)
    return Observation(
        mean=mean + shift,
        cov=symmetrise(solved[:n, 1:]),
        innovation=(precision * left) @ slope,
        factor=whiten_plus_identity(symmetrise(sandwich(chol.T, cov)), chol.T)[0].T,
        log_evidence=-0.5 * (square + log_det + math.log(2 * math.pi) * seen.sum(dtype=cov.dtype)),
    )


def revise_in_output_space(
    mean: Float[Array, " x"],
    cov: Float[Array, "x x"],
    expected: Float[Array, " y"],
    slope: Float[Array, "y x"],
    noise: Float[Array, "y y"],
    revised_mean: Float[Array, " y"],
    revised_cov: Float[Array, "y y"],
) -> Observation:
    r"""Jeffrey's rule: what the state becomes when the marginal of y, $N(E[y], S)$, is replaced by another one, $N(m', S')$.

    Given y the state stays as it was, so that with the gain $K = P H^\top S^{-1}$ its covariance is
    $(I - K H) P (I - K H)^\top + K (R + S') K^\top$. The factor is that of the fall $S - S'$ alone: where the marginal has
    become wider, as after an outlier, the rise is taken to be independent of all else. The log evidence is left at zero.
    """
    before = symmetrise(sandwich(slope, cov) + noise)
    chol = cholesky(before, definite=True)
    white_slope, shift = solve_lower(chol, slope), revised_mean - expected
    gain = solve_upper(chol, matmul(white_slope, cov)).T
    keep = jnp.eye(mean.size, dtype=cov.dtype) - matmul(gain, slope)
    white_cov = solve_lower(chol, solve_lower(chol, revised_cov).T)
    random = jnp.diag(before) > 0
    fall = jnp.where(random[:, None] & random[None, :], jnp.eye(expected.size, dtype=cov.dtype) - symmetrise(white_cov), 0.0)
    fall = jnp.where(jnp.abs(fall) > rounding_error(before), fall, 0.0)  # what was not observed stays as it was
    fall = positive_part(fall) if expected.size > 1 else jnp.maximum(fall, 0.0)
    factor = white_slope.T @ cholesky(fall)
    return Observation(
        mean=mean + gain @ shift,
        cov=symmetrise(sandwich(keep, cov) + sandwich(gain, noise + revised_cov)),
        innovation=white_slope.T @ solve_lower(chol, shift[:, None])[:, 0],
        factor=factor if expected.size <= mean.size else cholesky(factor @ factor.T),
        log_evidence=jnp.zeros((), cov.dtype),
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
