"""Weights with a diagonal prior covariance, minus a low-rank matrix: what observations have taken from it."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int

from prodssm.beliefs.linalg import eigh, leading_eigenvectors, solve_psd
from prodssm.beliefs.weights.base import Shapes, WeightBelief, independent_cov, safe_inverse
from prodssm.beliefs.weights.cross import LayerCross

LINEAR_ROOT = 1e-6  # below this eigenvalue sqrt(1 - v) - 1 is replaced by its first-order expansion


class LowRankWeights(WeightBelief):
    r"""Diagonal minus low rank: $\Sigma = diag(v) - U U^\top$. Each observation adds columns to U.

    Where the number of columns is bounded, U has all of them from the start and fills up. When it is full, it is compressed to
    `rank` columns: the directions in which the variance fell by the largest share of its prior. Dropping the others adds a
    positive semi-definite matrix to $\Sigma$, so that every joint covariance stays positive semi-definite.

    Attributes:
        mean: Means.
        prior_var: The diagonal v.
        factor: The columns U.
        shapes: Shape of each layer's matrix.
        used: Number of columns in use; `None` if their number is not bounded.
        rank: Number of columns that a full factor is compressed to.

    Example:
        >>> seen = jnp.array([[0.5], [0.0]])
        >>> LowRankWeights(jnp.zeros(2), prior_var=jnp.ones(2), factor=seen, shapes=((1, 2),)).var.tolist()
        [0.75, 1.0]
    """

    mean: Float[Array, " w"]
    prior_var: Float[Array, " w"]
    factor: Float[Array, "w r"]
    shapes: Shapes = eqx.field(static=True)
    used: Int[Array, ""] | None = None
    rank: int = eqx.field(static=True, default=0)

    def __check_init__(self):
        self.require_size("mean", self.mean, 1)
        self.require_size("prior_var", self.prior_var, 1)
        self.require_size("factor", self.factor, 2)

    @classmethod
    def bounded(cls, prior: WeightBelief, rank: int, room: int) -> "LowRankWeights":
        """An empty factor of bounded width: `rank` columns, and room for more between two compressions."""
        empty = jnp.zeros((prior.mean.size, rank + room), prior.mean.dtype)
        none = jnp.zeros((), jnp.int32)
        var: Array = prior.var  # type: ignore[attr-defined]
        return cls(prior.mean, prior_var=var, factor=empty, shapes=prior.shapes, used=none, rank=rank)

    @property
    def var(self) -> Float[Array, " w"]:
        """Variance of each weight."""
        return jnp.maximum(self.prior_var - (self.factor**2).sum(axis=1), 0.0)

    def cov(self):
        return jnp.diag(self.prior_var) - self.factor @ self.factor.T

    def times(self, rows):
        return rows * self.prior_var[None, :] - (rows @ self.factor) @ self.factor.T

    def solve(self, rows):
        # Woodbury identity: the linear system has the size of the factor's rank.
        scaled = safe_inverse(self.prior_var)[:, None] * self.factor
        inner = jnp.eye(self.factor.shape[1], dtype=self.factor.dtype) - self.factor.T @ scaled
        return rows * safe_inverse(self.prior_var)[None, :] + solve_psd(inner, (rows @ scaled).T).T @ scaled.T

    def sample(self, *, key):
        scaled = jnp.sqrt(safe_inverse(self.prior_var))[:, None] * self.factor
        # In units of the prior the covariance is I - S S', whose square root differs from I in the span of S only.
        values, vectors = eigh(scaled.T @ scaled)
        values = jnp.clip(values, 0.0, 1.0)
        safe = jnp.where(values > LINEAR_ROOT, values, 1.0)
        shrink = jnp.where(values > LINEAR_ROOT, (jnp.sqrt(1 - safe) - 1) / safe, -0.5)
        white = jr.normal(key, self.mean.shape, self.mean.dtype)
        change = vectors @ (shrink * (vectors.T @ (scaled.T @ white)))
        return self.mean + jnp.sqrt(self.prior_var) * (white + scaled @ change)

    def downdate(self, shift, factor):
        if self.used is None:
            columns, used = jnp.concatenate([self.factor, factor], axis=1), None
        else:
            count, capacity = factor.shape[1], self.factor.shape[1]
            full = self.used + count > capacity
            columns, used = jax.lax.cond(full, lambda: self._compress(), lambda: (self.factor, self.used))
            columns = jax.lax.dynamic_update_slice(columns, factor, (jnp.zeros_like(used), used))
            used = used + count
        mean, rank = self.mean + shift, self.rank
        return LowRankWeights(mean, prior_var=self.prior_var, factor=columns, shapes=self.shapes, used=used, rank=rank)

    def _compress(self) -> tuple[Float[Array, "w r"], Int[Array, ""]]:
        scaled = jnp.sqrt(safe_inverse(self.prior_var))[:, None] * self.factor
        kept = self.factor @ leading_eigenvectors(scaled.T @ scaled, self.rank)
        return jnp.pad(kept, ((0, 0), (0, self.factor.shape[1] - self.rank))), jnp.full((), self.rank, jnp.int32)

    def contract(self, l, moment):
        columns = self._columns(l)[:, :, : len(moment)]
        flat = columns.reshape(len(columns), -1)
        # One product with the moment for all columns, one between all outputs.
        removed = (columns.reshape(-1, len(moment)) @ moment).reshape(flat.shape) @ flat.T
        return independent_cov(self.prior_var, self, l, jnp.diag(moment)) - removed

    def initial_loading(self, cross):
        x = cross.shape[0]
        return jnp.eye(x, x + self.factor.shape[1], dtype=cross.dtype)

    def own_loading(self, l, inputs, loading):
        met = self._columns(l) @ inputs
        added = jnp.concatenate([jnp.zeros((len(met), loading.shape[1] - met.shape[1]), loading.dtype), -met], axis=1)
        return added, independent_cov(self.prior_var, self, l, inputs**2) - met @ met.T

    def hidden_cross(self, l, state_cross, loading):
        basis, columns = state_cross.basis, self.factor[self.slice(l)].T
        x, flat = len(basis), basis.reshape(len(basis), -1)
        if loading.shape[0] < loading.shape[1]:
            return LayerCross(None, (loading[:, :x] @ flat + loading[:, x:] @ columns).reshape(-1, *self.shapes[l]))
        return LayerCross(loading, jnp.concatenate([flat, columns]).reshape(-1, *self.shapes[l]))

    def output_cross(self, slope, weight_slope, cross, loading, factors):
        x = cross.shape[0]
        return loading[:, :x] @ cross + loading[:, x:] @ self.factor.T + weight_slope * self.prior_var[None, :]

    def _columns(self, l: int) -> Float[Array, "o r i"]:
        """The columns of layer l, output by output."""
        return jnp.swapaxes(self.factor[self.slice(l)].reshape(*self.shapes[l], -1), 1, 2)
