"""Weights with a full covariance matrix: the right choice for a few hundred of them."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from prodssm._validation import require_shape
from prodssm.beliefs.linalg import cholesky, frobenius_inner, fusion_barrier, solve_psd
from prodssm.beliefs.weights.base import Shapes, WeightBelief
from prodssm.beliefs.weights.cross import LayerCross

UNROLLED_INPUTS = 4  # up to here a contraction over inputs is an unrolled sum


class DenseWeights(WeightBelief):
    """Weights with a full covariance.

    Attributes:
        mean: Means.
        covariance: The covariance, weight by weight.
        shapes: Shape of each layer's matrix.

    Example:
        >>> weights = DenseWeights(jnp.zeros(2), jnp.array([[1.0, 0.5], [0.5, 2.0]]), shapes=((1, 2),))
        >>> weights.var.tolist()
        [1.0, 2.0]
    """

    mean: Float[Array, " w"]
    covariance: Float[Array, "w w"]
    shapes: Shapes = eqx.field(static=True)

    def __check_init__(self):
        self.require_size("mean", self.mean, 1)
        self.require_size("covariance", self.covariance, 2)
        require_shape("covariance", self.covariance, (self.mean.size, self.mean.size))

    @property
    def var(self) -> Float[Array, " w"]:
        """Variance of each weight."""
        return jnp.diag(self.covariance)

    def cov(self):
        return self.covariance

    def times(self, rows):
        return rows @ self.covariance

    def solve(self, rows):
        return solve_psd(self.covariance, rows.T).T

    def sample(self, *, key):
        return self.mean + cholesky(self.covariance) @ jr.normal(key, self.mean.shape, self.mean.dtype)

    def downdate(self, shift, factor):
        factor = fusion_barrier(factor)  # or XLA would recompute two of its rows for every entry of the product
        return DenseWeights(self.mean + shift, covariance=self.covariance - factor @ factor.T, shapes=self.shapes)

    def contract(self, l, moment):
        block = self.covariance[self.slice(l), self.slice(l)].reshape(*self.shapes[l], *self.shapes[l])
        block = block[:, : len(moment), :, : len(moment)]
        if len(moment) == 1:
            return block[:, 0, :, 0] * moment
        if len(block) == 1:
            return frobenius_inner(block[0, :, 0], moment)[None, None]
        return jnp.einsum("imjn,mn->ij", block, moment)

    def scalar_output_var(self, l, inputs, cov, cross):
        # One pass over pairs of inputs for all terms, because each pass costs as much as its arithmetic.
        size, weight = len(cov), self.layer_mean(l)[0, : len(cov)]
        mean, certain = inputs[:size], inputs[size:]
        own, basis = self.covariance[self.slice(l), self.slice(l)], cross.basis[:, 0]
        toward = basis[:, :size]
        pairs = own[:size, :size] * (cov + mean[:, None] * mean[None, :]) + toward * toward.T
        rows = pairs @ jnp.ones_like(mean) + weight * (cov @ weight + 2 * (basis @ inputs))
        rows = rows + 2 * mean * (own[:size, size:] @ certain)
        return (rows.sum() + certain @ own[size:, size:] @ certain)[None, None]

    def initial_loading(self, cross):
        return cross

    def own_loading(self, l, inputs, loading):
        block = self.covariance[self.slice(l)].reshape(*self.shapes[l], -1)
        # Neither form transposes the block, as a plain contraction of its middle axis would.
        if inputs.size <= UNROLLED_INPUTS:
            added = sum((inputs[i] * block[:, i] for i in range(1, inputs.size)), inputs[0] * block[:, 0])
        else:
            added = (jnp.broadcast_to(inputs, (len(block), 1, inputs.size)) @ block)[:, 0]
        columns = added[:, self.slice(l)].reshape(-1, *self.shapes[l])
        if inputs.size <= UNROLLED_INPUTS:
            return added, sum((inputs[i] * columns[:, :, i] for i in range(1, inputs.size)), inputs[0] * columns[:, :, 0])
        return added, columns @ inputs

    def hidden_cross(self, l, state_cross, loading):
        return LayerCross(None, fusion_barrier(loading[:, self.slice(l)]).reshape(-1, *self.shapes[l]))

    def output_cross(self, slope, weight_slope, cross, loading, factors):
        # For one output a product with the whole covariance is cheaper than to carry all weights through the layers.
        return loading if len(slope) > 1 else self.predict_cross(cross, slope, weight_slope, factors)
