r"""Stable linear parts: a linear part that starts stable stays so, and beside units that saturate keeps free runs bounded.

The spectral radius $\rho$ of its step matrix $M = I + A$ is estimated from above by $\|M^{k}\|_F^{1/k} \ge \rho$, by repeated
squaring; where the estimate exceeds one, M is divided by it.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.models.state_space import StateSpaceModel

SQUARINGS = 10  # the estimate is too large by a factor of at most (condition of the eigenvectors * states)^(1 / 1024)
TOLERANCE = 1e-3  # by which a spectral radius may exceed one and count as stable: the estimate, and rounding


def is_stable(model: StateSpaceModel) -> bool:
    """Whether the model has a linear part beside its network, and a stable one."""
    if model.linear is None:
        return False
    return bool(np.abs(np.linalg.eigvals(np.asarray(step_matrix(model), float))).max() <= 1 + TOLERANCE)


def stabilised(model: StateSpaceModel) -> StateSpaceModel:
    """The model with its linear part scaled down to a spectral radius of at most one, if it has a larger one."""
    linear: Any = model.linear
    step = step_matrix(model)
    step = step / jnp.maximum(1.0, spectral_radius(step))
    slope = step - jnp.eye(model.x_size, dtype=model.dtype) if model.residual else step
    return eqx.tree_at(lambda m: m.linear, model, jnp.concatenate([slope, linear[:, model.x_size :]], axis=1))


def spectral_radius(matrix: Float[Array, "n n"]) -> Float[Array, ""]:
    """An upper bound of the spectral radius, close to it, with gradients."""
    log_norm = jnp.zeros((), matrix.dtype)
    for n in range(SQUARINGS + 1):
        size = jnp.sqrt((matrix**2).sum() + jnp.finfo(matrix.dtype).tiny)
        matrix, log_norm = matrix / size, log_norm + jnp.log(size) / 2**n
        matrix = matrix @ matrix
    return jnp.exp(log_norm)


def step_matrix(model: StateSpaceModel) -> Float[Array, "x x"]:
    """The matrix of one step of the linear part, of unit length."""
    assert model.linear is not None
    slope = model.linear[:, : model.x_size]
    return slope + jnp.eye(model.x_size, dtype=model.dtype) if model.residual else slope
