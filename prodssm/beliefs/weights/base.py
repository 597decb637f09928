r"""The belief about all weights of a network, and the questions that the rule for global weights asks of its covariance.

Weights are one flat vector, layer after layer; a layer is its matrix `[W, b]` row by row, so that a bias is the weight of an
input that is always one. Write $\Sigma$ for the covariance of the flat vector. Each structure of $\Sigma$ (diagonal, diagonal
minus low rank, dense) is one class, and the rule for global weights (`prodssm.methods.moments_global`) is written once.

Within a step the cross-covariance of a hidden vector h with the weights is kept in the coordinates in which $\Sigma$ has its
structure: $Cov[h, w] = loading \cdot basis$, plus the part of the weights that h has met within the step. The basis never
changes; layers act on the loading.
"""

import math
from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.beliefs.weights.cross import LayerCross

Shapes = tuple[tuple[int, int], ...]
Factors = tuple[tuple[Float[Array, "y _"], Float[Array, " _"]], ...]
"""Kronecker factors of a weight slope: per layer the slope from its output to the network's, and the mean of its input."""


def layer_slice(shapes: Shapes, l: int) -> slice:
    """The entries of layer l in the flat vector of all weights."""
    begin = sum(math.prod(shape) for shape in shapes[:l])
    return slice(begin, begin + math.prod(shapes[l]))


class WeightBelief(eqx.Module):
    """A Gaussian belief about all weights and biases of a network.

    Attributes:
        mean: The flat mean.
        shapes: Shape of the matrix `[W, b]` of each layer.
    """

    mean: eqx.AbstractVar[Float[Array, " w"]]
    shapes: eqx.AbstractVar[Shapes]

    def require_size(self, name: str, array: Array, ndim: int) -> None:
        """Raise unless the array has one entry, or one row, per weight."""
        wanted = sum(math.prod(shape) for shape in self.shapes)
        if array.ndim != ndim or array.shape[0] != wanted:
            raise ValueError(f"{name} must have {ndim} axes, the first of length {wanted} as shapes say, got {array.shape}")

    def slice(self, l: int) -> slice:
        """The entries of layer l in the flat vector."""
        return layer_slice(self.shapes, l)

    def layer_mean(self, l: int) -> Float[Array, "o i"]:
        """Mean of layer l as the matrix `[W, b]`."""
        return self.mean[self.slice(l)].reshape(self.shapes[l])

    # Linear algebra with the covariance

    @abstractmethod
    def cov(self) -> Float[Array, "w w"]:
        r"""The covariance $\Sigma$ written out; for small networks and tests."""

    @abstractmethod
    def times(self, rows: Float[Array, "k w"]) -> Float[Array, "k w"]:
        r"""$rows\,\Sigma$."""

    @abstractmethod
    def solve(self, rows: Float[Array, "k w"]) -> Float[Array, "k w"]:
        r"""$rows\,\Sigma^{-1}$; weights of zero variance count as zero."""

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " w"]:
        """Weights drawn from the belief."""

    @abstractmethod
    def downdate(self, shift: Float[Array, " w"], factor: Float[Array, "w k"]) -> "WeightBelief":
        r"""The posterior after an observation: mean plus `shift`, covariance $\Sigma - factor\,factor^\top$."""

    # Moments of a layer's output

    @abstractmethod
    def contract(self, l: int, moment: Float[Array, "m m"]) -> Float[Array, "o o"]:
        r"""$\sum_{mn} Cov[a_{im}, a_{jn}]\,moment_{mn}$ over the first inputs m, n of layer l."""

    def scalar_output_var(
        self, l: int, inputs: Float[Array, " i"], cov: Float[Array, "m m"], cross: Any
    ) -> Float[Array, "1 1"] | None:
        """Variance of the only output of layer l in one pass; `None` where separate terms are as cheap.

        Args:
            l: The layer.
            inputs: Mean of its inputs, the last of which are certain.
            cov: Covariance of its first inputs.
            cross: Their cross-covariance with the layer's weights.
        """
        return None

    # Cross-covariances of hidden vectors with weights

    def layer_crosses(self, cross: Any) -> list[Any]:
        """Cross-covariance of the state with the weights of each layer."""
        # One split for all layers: slice by slice a gradient would add up padded copies.
        parts = jax.lax.split(cross, [math.prod(shape) for shape in self.shapes], axis=1)
        return [LayerCross(None, part.reshape(-1, *shape)) for part, shape in zip(parts, self.shapes, strict=True)]

    @abstractmethod
    def initial_loading(self, cross: Any) -> Float[Array, "x r"]:
        """The loading of the state itself, at the beginning of a step."""

    @abstractmethod
    def own_loading(
        self, l: int, inputs: Float[Array, " i"], loading: Float[Array, "h r"]
    ) -> tuple[Float[Array, "o r"], Float[Array, "o o"]]:
        """What the weights of layer l, at inputs of this mean, add to the loading and to the covariance of its output."""

    @abstractmethod
    def hidden_cross(self, l: int, state_cross: Any, loading: Float[Array, "h r"]) -> Any:
        """Cross-covariance of a hidden vector of this loading with the weights of layer l, given that of the state."""

    @abstractmethod
    def output_cross(
        self,
        slope: Float[Array, "y x"],
        weight_slope: Float[Array, "y w"],
        cross: Any,
        loading: Float[Array, "y r"],
        factors: Factors,
    ) -> Any:
        """Cross-covariance of the network's output with all weights."""

    def predict_cross(self, cross: Any, slope: Float[Array, "y x"], weight_slope: Float[Array, "y w"], factors: Factors) -> Any:
        """Cross-covariance with all weights of `slope x + weight_slope w`."""
        return slope @ cross + self.times(weight_slope)

    def slope_cov(self, weight_slope: Float[Array, "y w"], own: Float[Array, "y y"]) -> Float[Array, "y y"]:
        r"""$weight\_slope\,\Sigma\,weight\_slope^\top$; `own` is its sum over layers if these are independent."""
        return self.times(weight_slope) @ weight_slope.T


def independent_cov(var: Float[Array, " w"], belief: WeightBelief, l: int, moments: Float[Array, " m"]) -> Float[Array, "o o"]:
    """The contraction for independent weights of layer l, a diagonal: variances times second moments of the first inputs."""
    return jnp.diag(var[belief.slice(l)].reshape(belief.shapes[l])[:, : moments.size] @ moments)


def safe_inverse(var: Float[Array, " w"]) -> Float[Array, " w"]:
    """1 / var, and zero where that would overflow."""
    positive = var > 4 * jnp.finfo(var.dtype).tiny
    return jnp.where(positive, 1 / jnp.where(positive, var, 1.0), 0.0)
