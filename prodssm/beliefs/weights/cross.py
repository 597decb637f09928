"""Cross-covariances of a state, or of a hidden vector, with global weights, layer by layer, in the cheapest form they have.

A layer's cross-covariance answers two questions of the rule for global weights: its product with the mean input, and the
moments of products of two deviations. Its form is known to the weight belief alone.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.beliefs.linalg import frobenius_inner


class LayerCross(eqx.Module):
    """Cross-covariance of a hidden vector h with one layer's weights: Cov[h, a] = loading @ basis; no loading: identity."""

    loading: Float[Array, "h r"] | None
    basis: Float[Array, "r o i"]

    def times_inputs(self, inputs: Float[Array, " i"]) -> Float[Array, "r o"]:
        """Cross-covariance of the basis with `A inputs`."""
        return self.basis @ inputs

    def product_moments(self, size: int) -> tuple[Float[Array, " o"], Float[Array, "o o"]]:
        r"""Mean and covariance of $\sum_m \delta a_{im}\,\delta h_m$ that the cross-covariance adds (Isserlis' theorem).

        Args:
            size: Number of inputs that are h; the others are certain.
        """
        toward = self.basis[:, :, :size]
        if self.loading is not None:
            toward = jnp.einsum("dim,me->die", toward, self.loading)
        mean = jnp.diagonal(toward, axis1=0, axis2=2).sum(axis=1)
        if toward.shape[1] == 1:
            return mean, frobenius_inner(toward[:, 0], toward[:, 0].T)[None, None]
        return mean, jnp.einsum("die,ejd->ij", toward, toward)


class StepwiseLayerCross(eqx.Module):
    """As `LayerCross`, with the basis a sum over steps of left x right, times the variances of independent weights."""

    loading: Float[Array, "h r"] | None
    left: Float[Array, "t o r"]
    right: Float[Array, "t i"]
    var: Float[Array, "o i"]

    def times_inputs(self, inputs: Float[Array, " i"]) -> Float[Array, "r o"]:
        """As for `LayerCross`."""
        scalars = (self.right * inputs[None, :]) @ self.var.T
        return (self.left * scalars[:, :, None]).sum(axis=0).T

    def product_moments(self, size: int) -> tuple[Float[Array, " o"], Float[Array, "o o"]]:
        """As for `LayerCross`, without an array over all weights."""
        right = self.right[:, None, :size] * self.var[None, :, :size]
        right = right if self.loading is None else right @ self.loading
        mean, (steps, outputs, width) = (self.left * right).sum(axis=(0, 2)), self.left.shape
        # Both forms multiply each matrix out in both orders, which is faster than a transposition. The first has more FLOPs as
        # steps become many; the second does them in small products, each of which is slower.
        if 4 * steps**2 * outputs <= 3 * width * (outputs + 2 * steps):
            left, flat = self.left.reshape(steps * outputs, width), right.reshape(steps * outputs, width)
            products = (left @ flat.T) * (flat @ left.T)
            return mean, products.reshape(steps, outputs, steps, outputs).sum(axis=(0, 2))
        toward, back = jnp.einsum("tor,toe->ore", self.left, right), jnp.einsum("toe,tor->oer", right, self.left)
        return mean, toward.reshape(outputs, -1) @ back.reshape(outputs, -1).T


class StepwiseCross(eqx.Module):
    """Cross-covariance of a state with independent weights after a few transitions without an observation.

    For every layer it is a sum over steps of (slope from the layer's output at that step to the state now) x (mean of the
    layer's input then), times the weights' variances. No array of states by weights exists. It serves prediction by moment
    matching only.
    """

    left: tuple[Float[Array, "t _ x"], ...]  # per layer: step by output by state
    right: tuple[Float[Array, "t _"], ...]  # per layer: step by input

    @classmethod
    def zero(cls, size: int, weights: Any) -> "StepwiseCross":
        """The cross-covariance of a state of this size before the first transition."""
        left = tuple(jnp.zeros((0, o, size), weights.mean.dtype) for o, _ in weights.shapes)
        return cls(left, tuple(jnp.zeros((0, i), weights.mean.dtype) for _, i in weights.shapes))

    @property
    def shape(self) -> tuple[int, int]:
        """Shape of the array that it stands for."""
        weights = sum(left.shape[1] * right.shape[1] for left, right in zip(self.left, self.right, strict=True))
        return self.left[0].shape[2], weights

    def append(self, slope: Float[Array, "x x"], factors: tuple[tuple[Array, Array], ...]) -> "StepwiseCross":
        """After one more transition of this slope, with these Kronecker factors of its weight slope."""
        left = [jnp.concatenate([old @ slope.T, new.T[None]]) for old, (new, _) in zip(self.left, factors, strict=True)]
        right = [jnp.concatenate([old, new[None]]) for old, (_, new) in zip(self.right, factors, strict=True)]
        return StepwiseCross(tuple(left), tuple(right))
