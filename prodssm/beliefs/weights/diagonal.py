"""Independent weights: a diagonal covariance, as before any observation."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from prodssm.beliefs.linalg import safe_sqrt
from prodssm.beliefs.weights.base import Shapes, WeightBelief, independent_cov, safe_inverse
from prodssm.beliefs.weights.cross import LayerCross, StepwiseCross, StepwiseLayerCross
from prodssm.beliefs.weights.low_rank import LowRankWeights


class DiagonalWeights(WeightBelief):
    """Independent weights. Nothing of size weights by weights is ever formed.

    Attributes:
        mean: Means.
        var: Variances.
        shapes: Shape of each layer's matrix.

    Example:
        >>> DiagonalWeights(jnp.zeros(2), jnp.array([1.0, 2.0]), shapes=((1, 2),)).cov().tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """

    mean: Float[Array, " w"]
    var: Float[Array, " w"]
    shapes: Shapes = eqx.field(static=True)

    def __check_init__(self):
        self.require_size("mean", self.mean, 1)
        self.require_size("var", self.var, 1)

    def cov(self):
        return jnp.diag(self.var)

    def times(self, rows):
        return rows * self.var[None, :]

    def solve(self, rows):
        return rows * safe_inverse(self.var)[None, :]

    def sample(self, *, key):
        return self.mean + safe_sqrt(self.var) * jr.normal(key, self.mean.shape, self.mean.dtype)

    def downdate(self, shift, factor):
        return LowRankWeights(self.mean + shift, prior_var=self.var, factor=factor, shapes=self.shapes)

    def contract(self, l, moment):
        return independent_cov(self.var, self, l, jnp.diag(moment))

    def layer_crosses(self, cross):
        if not isinstance(cross, StepwiseCross):
            return super().layer_crosses(cross)
        variances = (self.var[self.slice(l)].reshape(shape) for l, shape in enumerate(self.shapes))
        return [StepwiseLayerCross(None, *parts) for parts in zip(cross.left, cross.right, variances, strict=True)]

    def initial_loading(self, cross):
        return jnp.eye(cross.shape[0], dtype=self.mean.dtype)

    def own_loading(self, l, inputs, loading):
        # The weights of a layer are independent of those of later layers.
        return jnp.zeros((self.shapes[l][0], loading.shape[1]), loading.dtype), independent_cov(self.var, self, l, inputs**2)

    def hidden_cross(self, l, state_cross, loading):
        if isinstance(state_cross, LayerCross) and loading.shape[0] < loading.shape[1]:
            # The product is smaller than its factors.
            return LayerCross(None, jnp.einsum("hr,roi->hoi", loading, state_cross.basis))
        return replace(state_cross, loading=loading)

    def output_cross(self, slope, weight_slope, cross, loading, factors):
        return self.predict_cross(cross, slope, weight_slope, factors)

    def predict_cross(self, cross, slope, weight_slope, factors):
        if isinstance(cross, StepwiseCross):
            return cross.append(slope, factors)
        return super().predict_cross(cross, slope, weight_slope, factors)

    def slope_cov(self, weight_slope, own):
        return own
