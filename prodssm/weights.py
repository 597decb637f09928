r"""Beliefs about the weights of a network: diagonal, dense, and diagonal minus low rank.

Weights are one flat vector, layer after layer; a layer is its matrix `[weight, bias]` row by row, so that a bias is the weight
of an input that is always one. Each class answers the same questions about its covariance $\Sigma$ (MATH 2.3 to 2.5), so that
the rule for global weights is written once:

* `layer(l)`: the mean of layer l, as a matrix;
* `times(rows)`: $rows\,\Sigma$;
* `links`, `start`, `meet`, `enter`, `arrive`: the covariance between a hidden vector and weights, on its way through layers;
* `follow`: the same for a state that moves by given slopes;
* `spread(l, moment)`: $\sum_{mn} Cov[a_{im}, a_{jn}]\,moment_{mn}$ for layer l and its first inputs;
* `only_var(l, inputs, cov, link)`: the variance of a layer's only output at once, where that is cheaper than in parts;
* `learn(shift, removed)`: the belief after its mean moved and its covariance lost `removed @ removed.T`.
"""

import math
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from prodssm.checks import require_shape
from prodssm.linalg import eigh, inner, leading, settle, solve_psd
from prodssm.links import Link, SteppedCross, SteppedLink

Shapes = tuple[tuple[int, int], ...]

FEW = 4  # inputs that are added up one by one
ALMOST_NOTHING = 1e-6  # share of a variance below which a square root is a straight line


def slice_of(shapes: Shapes, l: int) -> slice:
    """Where layer l stands in the flat vector of all weights."""
    begin = sum(math.prod(shape) for shape in shapes[:l])
    return slice(begin, begin + math.prod(shapes[l]))


class WeightBelief(eqx.Module):
    """A Gaussian belief about all weights and biases of a network."""

    mean: eqx.AbstractVar[Float[Array, " w"]]
    shapes: eqx.AbstractVar[Shapes]
    independent: ClassVar[bool] = False  # whether no weight is correlated with another

    def require_size(self, name: str, array: Array, ndim: int) -> None:
        """One entry, or one row, per weight."""
        wanted = sum(math.prod(shape) for shape in self.shapes)
        if array.ndim != ndim or array.shape[0] != wanted:
            raise ValueError(f"{name} must have {ndim} axes, the first of length {wanted} as shapes say, got {array.shape}")

    def slice(self, l: int) -> slice:
        """Where layer l stands in the flat vector."""
        return slice_of(self.shapes, l)

    def layer(self, l: int) -> Float[Array, "o i"]:
        """Mean of layer l as the matrix [weight, bias]."""
        return self.mean[self.slice(l)].reshape(self.shapes[l])

    def links(self, cross: Any) -> list[Any]:
        """Covariance of the state with each layer's weights."""
        # All cut at once: cuts one by one would make a gradient add up padded copies.
        parts = jax.lax.split(cross, [math.prod(shape) for shape in self.shapes], axis=1)
        return [Link(None, part.reshape(-1, *shape)) for part, shape in zip(parts, self.shapes, strict=True)]

    def follow(self, cross: Any, slope: Float[Array, "y x"], weight_slope: Float[Array, "y w"] | None, factors: Any) -> Any:
        """Covariance with the weights of what a state becomes that moves by these slopes."""
        moved = slope @ cross
        return moved if weight_slope is None else moved + self.times(weight_slope)

    @abstractmethod
    def cov(self) -> Float[Array, "w w"]:
        """The covariance written out; for small networks and tests."""

    @abstractmethod
    def times(self, rows: Float[Array, "k w"]) -> Float[Array, "k w"]:
        """`rows @ cov`."""

    @abstractmethod
    def solve(self, rows: Float[Array, "k w"]) -> Float[Array, "k w"]:
        """`rows @ inverse(cov)`; weights without variance have none and count as zero."""

    @abstractmethod
    def start(self, cross: Float[Array, "x w"]) -> Float[Array, "x r"]:
        """The reach of the state itself: what a step carries along to know its covariance with the weights."""

    @abstractmethod
    def enter(
        self, l: int, inputs: Float[Array, " i"], reach: Float[Array, "h r"]
    ) -> tuple[Float[Array, "o r"], Float[Array, "o o"]]:
        """What layer l's own weights, seen through inputs of this mean, add to the reach and to the covariance."""

    @abstractmethod
    def meet(self, l: int, link: Any, reach: Float[Array, "h r"]) -> Any:
        """Covariance of a hidden vector of this reach with layer l's weights, given that of the state."""

    @abstractmethod
    def arrive(
        self,
        slope: Float[Array, "y x"],
        weight_slope: Float[Array, "y w"],
        cross: Any,
        reach: Float[Array, "y r"],
        factors: Any,
    ) -> Any:
        """Covariance of an output of this reach, and of these slopes (see `Channel.factors`), with all weights."""

    @abstractmethod
    def spread(self, l: int, moment: Float[Array, "m m"]) -> Float[Array, "o o"]:
        """Covariance that layer l's weights give to its output per second moment of its first inputs."""

    def only_var(self, l: int, inputs: Float[Array, " i"], cov: Float[Array, "m m"], link: Any) -> Float[Array, "1 1"] | None:
        """Variance of layer l's only output, whose first inputs have this covariance; None where nothing is saved by it."""
        return None

    @abstractmethod
    def learn(self, shift: Float[Array, " w"], removed: Float[Array, "w k"]) -> "WeightBelief":
        """The belief after an observation."""


class DiagonalWeights(WeightBelief):
    """Independent weights, as before any observation. Nothing of size weights by weights is ever formed."""

    independent: ClassVar[bool] = True
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
        return rows * _inverse(self.var)[None, :]

    def start(self, cross):
        return jnp.eye(cross.shape[0], dtype=self.mean.dtype)

    def enter(self, l, inputs, reach):
        # A layer's own weights are independent of those still to come.
        return jnp.zeros((self.shapes[l][0], reach.shape[1]), reach.dtype), _alone(self.var, self, l, inputs**2)

    def links(self, cross):
        if not isinstance(cross, SteppedCross):
            return super().links(cross)
        variances = (self.var[self.slice(l)].reshape(shape) for l, shape in enumerate(self.shapes))
        return [SteppedLink(None, *parts) for parts in zip(cross.left, cross.right, variances, strict=True)]

    def follow(self, cross, slope, weight_slope, factors):
        if isinstance(cross, SteppedCross):
            if factors is None:
                raise ValueError("a covariance that is kept step by step needs a channel by moment matching, with its factors")
            return cross.moved(slope, factors)
        return super().follow(cross, slope, weight_slope, factors)

    def meet(self, l, link, reach):
        if isinstance(link, Link) and reach.shape[0] < reach.shape[1]:  # multiplied out where that is shorter
            return Link(None, jnp.einsum("hr,roi->hoi", reach, link.shared))
        return replace(link, reach=reach)

    def arrive(self, slope, weight_slope, cross, reach, factors):
        return self.follow(cross, slope, weight_slope, factors)

    def spread(self, l, moment):
        return _alone(self.var, self, l, jnp.diag(moment))

    def learn(self, shift, removed):
        return LowRankWeights(self.mean + shift, prior_var=self.var, factor=removed, shapes=self.shapes)


class LowRankWeights(WeightBelief):
    r"""Independent weights minus what was learned: $\Sigma = diag(v) - U U'$. Each observation adds columns to U.

    Where the number of columns is bounded, U has all of them from the start and fills up. When it is full, it is compressed to
    `rank` columns: those directions are kept whose variance fell by the largest share. What is forgotten makes $\Sigma$ larger,
    so that it stays positive semi-definite, and so does any joint covariance that it is part of.

    Attributes:
        mean: Means.
        prior_var: The diagonal v.
        factor: The columns U.
        shapes: Shape of each layer's matrix.
        used: How many columns are taken; `None` if their number is not bounded.
        rank: To how many columns a full factor is compressed.
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
    def bounded(cls, prior: DiagonalWeights, rank: int, room: int) -> "LowRankWeights":
        """Nothing learned yet, and a bound on what can be remembered: this rank, and room between two compressions."""
        empty = jnp.zeros((prior.mean.size, rank + room), prior.mean.dtype)
        none = jnp.zeros((), jnp.int32)
        return cls(prior.mean, prior_var=prior.var, factor=empty, shapes=prior.shapes, used=none, rank=rank)

    @property
    def var(self) -> Float[Array, " w"]:
        """Variance of each weight."""
        return jnp.maximum(self.prior_var - (self.factor**2).sum(axis=1), 0.0)

    def cov(self):
        return jnp.diag(self.prior_var) - self.factor @ self.factor.T

    def times(self, rows):
        return rows * self.prior_var[None, :] - (rows @ self.factor) @ self.factor.T

    def solve(self, rows):
        # Woodbury: the only system to solve has the size of what was learned.
        scaled = _inverse(self.prior_var)[:, None] * self.factor
        inner = jnp.eye(self.factor.shape[1], dtype=self.factor.dtype) - self.factor.T @ scaled
        return rows * _inverse(self.prior_var)[None, :] + solve_psd(inner, (rows @ scaled).T).T @ scaled.T

    def start(self, cross):
        x = cross.shape[0]
        return jnp.eye(x, x + self.factor.shape[1], dtype=cross.dtype)

    def enter(self, l, inputs, reach):
        seen = self._columns(l) @ inputs
        entered = jnp.concatenate([jnp.zeros((len(seen), reach.shape[1] - seen.shape[1]), reach.dtype), -seen], axis=1)
        return entered, _alone(self.prior_var, self, l, inputs**2) - seen @ seen.T

    def meet(self, l, link, reach):
        x, flat, learned = len(link.shared), link.shared.reshape(len(link.shared), -1), self.factor[self.slice(l)].T
        if reach.shape[0] < reach.shape[1]:
            return Link(None, (reach[:, :x] @ flat + reach[:, x:] @ learned).reshape(-1, *self.shapes[l]))
        return Link(reach, jnp.concatenate([flat, learned]).reshape(-1, *self.shapes[l]))

    def arrive(self, slope, weight_slope, cross, reach, factors):
        x = cross.shape[0]
        return reach[:, :x] @ cross + reach[:, x:] @ self.factor.T + weight_slope * self.prior_var[None, :]

    def spread(self, l, moment):
        columns = self._columns(l)[:, :, : len(moment)]
        flat = columns.reshape(len(columns), -1)
        # One product with the moment for all columns at once, one between all outputs.
        known = (columns.reshape(-1, len(moment)) @ moment).reshape(flat.shape) @ flat.T
        return _alone(self.prior_var, self, l, jnp.diag(moment)) - known

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " w"]:
        """Weights drawn from the belief; the only matrix to factorise has the size of what was learned."""
        scaled = jnp.sqrt(_inverse(self.prior_var))[:, None] * self.factor
        # In units of the prior the covariance is I - S S', and its root differs from I only in the span of S.
        values, turn = eigh(scaled.T @ scaled)
        values = jnp.clip(values, 0.0, 1.0)
        safe = jnp.where(values > ALMOST_NOTHING, values, 1.0)
        shrink = jnp.where(values > ALMOST_NOTHING, (jnp.sqrt(1 - safe) - 1) / safe, -0.5)
        white = jr.normal(key, self.mean.shape, self.mean.dtype)
        known = turn @ (shrink * (turn.T @ (scaled.T @ white)))
        return self.mean + jnp.sqrt(self.prior_var) * (white + scaled @ known)

    def learn(self, shift, removed):
        if self.used is None:
            factor, used = jnp.concatenate([self.factor, removed], axis=1), None
        else:
            count, capacity = removed.shape[1], self.factor.shape[1]
            full = self.used + count > capacity
            factor, used = jax.lax.cond(full, lambda: self._compress(), lambda: (self.factor, self.used))
            factor = jax.lax.dynamic_update_slice(factor, removed, (jnp.zeros_like(used), used))
            used = used + count
        mean, rank = self.mean + shift, self.rank
        return LowRankWeights(mean, prior_var=self.prior_var, factor=factor, shapes=self.shapes, used=used, rank=rank)

    def _compress(self) -> tuple[Float[Array, "w r"], Int[Array, ""]]:
        scaled = jnp.sqrt(_inverse(self.prior_var))[:, None] * self.factor
        kept = self.factor @ leading(scaled.T @ scaled, self.rank)
        return jnp.pad(kept, ((0, 0), (0, self.factor.shape[1] - self.rank))), jnp.full((), self.rank, jnp.int32)

    def _columns(self, l: int) -> Float[Array, "o r i"]:
        """What was learned about layer l, output by output."""
        return jnp.swapaxes(self.factor[self.slice(l)].reshape(*self.shapes[l], -1), 1, 2)


class DenseWeights(WeightBelief):
    """Weights with a full covariance matrix: the reference, and the right choice for a few hundred weights."""

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

    def start(self, cross):
        return cross

    def enter(self, l, inputs, reach):
        block = self.covariance[self.slice(l)].reshape(*self.shapes[l], -1)
        # In both forms nothing turns the block over first, as a plain contraction of its middle axis would.
        if inputs.size <= FEW:
            entered = sum((inputs[i] * block[:, i] for i in range(1, inputs.size)), inputs[0] * block[:, 0])
        else:
            entered = (jnp.broadcast_to(inputs, (len(block), 1, inputs.size)) @ block)[:, 0]
        columns = entered[:, self.slice(l)].reshape(-1, *self.shapes[l])
        if inputs.size <= FEW:
            return entered, sum((inputs[i] * columns[:, :, i] for i in range(1, inputs.size)), inputs[0] * columns[:, :, 0])
        return entered, columns @ inputs

    def meet(self, l, link, reach):
        return Link(None, settle(reach[:, self.slice(l)]).reshape(-1, *self.shapes[l]))

    def arrive(self, slope, weight_slope, cross, reach, factors):
        # One product with the whole covariance is cheaper for one output than to carry all weights through the layers.
        return reach if len(slope) > 1 else self.follow(cross, slope, weight_slope, factors)

    def spread(self, l, moment):
        block = self.covariance[self.slice(l), self.slice(l)].reshape(*self.shapes[l], *self.shapes[l])
        block = block[:, : len(moment), :, : len(moment)]
        if len(moment) == 1:
            return block[:, 0, :, 0] * moment
        if len(block) == 1:
            return inner(block[0, :, 0], moment)[None, None]
        return jnp.einsum("imjn,mn->ij", block, moment)

    def only_var(self, l, inputs, cov, link):
        # All sums over pairs of inputs in one pass, because each of them costs as much as what it adds up.
        size, weight = len(cov), self.layer(l)[0, : len(cov)]
        mean, certain = inputs[:size], inputs[size:]
        own, shared = self.covariance[self.slice(l), self.slice(l)], link.shared[:, 0]
        toward = shared[:, :size]
        pairs = own[:size, :size] * (cov + mean[:, None] * mean[None, :]) + toward * toward.T
        rows = pairs @ jnp.ones_like(mean) + weight * (cov @ weight + 2 * (shared @ inputs))
        rows = rows + 2 * mean * (own[:size, size:] @ certain)
        return (rows.sum() + certain @ own[size:, size:] @ certain)[None, None]

    def learn(self, shift, removed):
        removed = settle(removed)  # or every entry of the product would work out both of its rows anew
        covariance = self.covariance - removed @ removed.T
        return DenseWeights(self.mean + shift, covariance=covariance, shapes=self.shapes)


def _alone(var: Float[Array, " w"], belief: WeightBelief, l: int, moments: Float[Array, " m"]) -> Float[Array, "o o"]:
    """Covariance that independent weights give to layer l's output per second moment of its first inputs: a diagonal."""
    return jnp.diag(var[belief.slice(l)].reshape(belief.shapes[l])[:, : moments.size] @ moments)


def _inverse(var: Float[Array, " w"]) -> Float[Array, " w"]:
    # A variance whose inverse is out of range is none.
    there = var > 4 * jnp.finfo(var.dtype).tiny
    return jnp.where(there, 1 / jnp.where(there, var, 1.0), 0.0)
