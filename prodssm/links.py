"""What a state, or a hidden vector, shares with weights that were drawn once: layer by layer, in the cheapest form it has.

A link answers two questions of the rule for carried weights (MATH 2.3 to 2.5), and keeps the form of the covariance to itself.
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.linalg import inner


class Link(eqx.Module):
    """Covariance of a hidden vector h with one layer's weights: Cov[h, a] = reach @ shared, where no reach is the identity."""

    reach: Float[Array, "h r"] | None
    shared: Float[Array, "r o i"]

    def seen(self, inputs: Float[Array, " i"]) -> Float[Array, "r o"]:
        """What is shared with the layer's output, through inputs of this mean."""
        return self.shared @ inputs

    def crossed(self, size: int) -> tuple[Float[Array, " o"], Float[Array, "o o"]]:
        """What deviations of the weights and of their inputs, the first of which are h, do together (Isserlis).

        Returns:
            Mean and covariance of their products, summed over inputs.
        """
        toward = self.shared[:, :, :size]
        if self.reach is not None:
            toward = jnp.einsum("dim,me->die", toward, self.reach)
        mean = jnp.diagonal(toward, axis1=0, axis2=2).sum(axis=1)
        if toward.shape[1] == 1:
            return mean, inner(toward[:, 0], toward[:, 0].T)[None, None]
        return mean, jnp.einsum("die,ejd->ij", toward, toward)


class SteppedLink(eqx.Module):
    """As `Link`, where what is shared is a sum over steps of left x right, times the variances of the weights."""

    reach: Float[Array, "h r"] | None
    left: Float[Array, "t o r"]
    right: Float[Array, "t i"]
    var: Float[Array, "o i"]

    def seen(self, inputs: Float[Array, " i"]) -> Float[Array, "r o"]:
        """As for `Link`."""
        met = (self.right * inputs[None, :]) @ self.var.T
        return (self.left * met[:, :, None]).sum(axis=0).T

    def crossed(self, size: int) -> tuple[Float[Array, " o"], Float[Array, "o o"]]:
        """As for `Link`, without an array over all weights."""
        right = self.right[:, None, :size] * self.var[None, :, :size]
        right = right if self.reach is None else right @ self.reach
        mean, (steps, outputs, width) = (self.left * right).sum(axis=(0, 2)), self.left.shape
        # In both forms each matrix is multiplied out both ways round, which is faster than to turn it over. The first has more
        # multiplications as steps become many; the second makes them in small products, where each takes longer.
        if 4 * steps**2 * outputs <= 3 * width * (outputs + 2 * steps):
            left, flat = self.left.reshape(steps * outputs, width), right.reshape(steps * outputs, width)
            products = (left @ flat.T) * (flat @ left.T)
            return mean, products.reshape(steps, outputs, steps, outputs).sum(axis=(0, 2))
        toward, back = jnp.einsum("tor,toe->ore", self.left, right), jnp.einsum("toe,tor->oer", right, self.left)
        return mean, toward.reshape(outputs, -1) @ back.reshape(outputs, -1).T


class SteppedCross(eqx.Module):
    """Covariance of a state with independent weights that it met in a few steps, as long as nothing was observed.

    It is what MATH 2.3 makes of none, step after step: for every layer a sum over steps of how the state moves with the layer's
    output at that step (left), times the mean of the layer's input then (right), times the weights' variances. There is no
    array of states by weights. Of a joint belief it lets only `advance` work, with channels by moment matching.
    """

    left: tuple[Float[Array, "t _ x"], ...]  # outputs of each layer
    right: tuple[Float[Array, "t _"], ...]  # its inputs

    @classmethod
    def none(cls, size: int, weights: Any) -> "SteppedCross":
        """A state of this size that has met no weights of this belief yet."""
        left = tuple(jnp.zeros((0, o, size), weights.mean.dtype) for o, _ in weights.shapes)
        return cls(left, tuple(jnp.zeros((0, i), weights.mean.dtype) for _, i in weights.shapes))

    @property
    def shape(self) -> tuple[int, int]:
        """That of the array which it stands for."""
        weights = sum(left.shape[1] * right.shape[1] for left, right in zip(self.left, self.right, strict=True))
        return self.left[0].shape[2], weights

    def moved(self, slope: Float[Array, "x x"], factors: tuple[tuple[Array, Array], ...]) -> "SteppedCross":
        """After one more step, in which the state also moved with the weights by these factors (see `Channel`)."""
        left = [jnp.concatenate([old @ slope.T, new.T[None]]) for old, (new, _) in zip(self.left, factors, strict=True)]
        right = [jnp.concatenate([old, new[None]]) for old, (_, new) in zip(self.right, factors, strict=True)]
        return SteppedCross(tuple(left), tuple(right))
