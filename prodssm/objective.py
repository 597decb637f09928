"""What training maximises: how well the model foresaw the data with the weights integrated out, and the paper's hyper-prior."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from prodssm.checks import require_integer
from prodssm.gaussian import Gaussian
from prodssm.inference import Belief, Finder, walk
from prodssm.layers import Linear
from prodssm.linalg import settle
from prodssm.model import StateSpaceModel
from prodssm.network import Network
from prodssm.series import Frames

SCORES = ("evidence", "bound")


def log_hyper_prior(network: Network) -> Float[Array, ""]:
    r"""$\frac12 \sum_i (\log v_i - m_i^2 - v_i)$ over uncertain weights: N(0, 1) on means, Gamma(3/2, 1/2) on variances.

    It equals minus the divergence of the weights from N(0, 1), up to a constant.
    """
    return sum((_layer_prior(layer) for layer in network.linears if layer.uncertain), jnp.zeros(()))


def _layer_prior(layer: Linear) -> Array:
    total = jnp.zeros((), layer.weight.dtype)
    for mean, log_var in ((layer.weight, layer.weight_log_var), (layer.bias, layer.bias_log_var)):
        assert log_var is not None
        total = total + 0.5 * (log_var - mean**2 - jnp.exp(log_var)).sum()
    return total


def model_prior(model: StateSpaceModel) -> Float[Array, ""]:
    """The hyper-prior of every network of the model whose weights are random."""
    networks = [model.transition] if model.weights != "point" else []
    networks += [model.process_network] if model.process_network is not None else []
    return sum((log_hyper_prior(network) for network in networks), jnp.zeros(()))


def expected_log_prob(seen: Gaussian, noise: Float[Array, " y"], y: Float[Array, " y"]) -> Float[Array, ""]:
    r"""$E[\log N(y; g, r)]$ for an output $g + N(0, r)$ of this belief: the term of the evidence lower bound (MATH 7.2).

    By Jensen's inequality it is at most the log density itself. Coordinates of y that are NaN are left out.
    """
    there = ~jnp.isnan(y)
    spread = (jnp.where(there, y, 0.0) - seen.mean) ** 2 + seen.var - noise
    return jnp.where(there, -0.5 * (jnp.log(2 * math.pi * noise) + spread / noise), 0.0).sum()


class Objective(NamedTuple):
    """What is maximised besides the hyper-prior.

    Attributes:
        horizons: How far ahead each observation is foreseen, in steps; several count equally. `(1,)` is the filter's own
            evidence, the paper's objective.
        score: "evidence", or "bound" for its lower bound (the paper's appendix).
        stride: Forecasts start at every so many observations; more is cheaper. It does not matter for `(1,)`.
    """

    horizons: tuple[int, ...] = (1,)
    score: str = "evidence"
    stride: int = 1

    def check(self, name: str = "horizons") -> "Objective":
        """Itself, or an error, in which the horizons have this name."""
        if not self.horizons or len(set(self.horizons)) < len(self.horizons):
            raise ValueError(f"{name} must be one or more different numbers of steps, got {self.horizons}")
        for steps in self.horizons:
            require_integer(name, steps, least=1)
        require_integer("stride", self.stride, least=1)
        if self.score not in SCORES:
            raise ValueError(f"score must be one of {', '.join(SCORES)}; got {self.score!r}")
        return self

    def foreseen(self, finder: Finder, frames: Frames) -> tuple[Float[Array, " time"], Float[np.ndarray, " time"]]:
        """How well each observation of one series was foreseen from those before it, and how often it was.

        The former is summed over horizons; the first observation is never foreseen.
        """
        length, longest = frames.dt.size, max(self.horizons)
        if (self.horizons, self.score) == ((1,), "evidence"):
            return walk(finder, frames)[1][2].at[0].set(0.0), self.reach(length)
        starts = self.starts(length)
        filtered = jax.tree.map(lambda leaf: leaf[starts], walk(finder, frames, keep_channels=True)[1][0])
        ahead = jax.vmap(lambda belief, t: self._ahead(finder, frames, belief, t, longest))(filtered, jnp.asarray(starts))
        total = jnp.zeros(length, frames.y.dtype)
        for h in self.horizons:
            reached = starts + h < length
            total = total.at[starts[reached] + h].add(ahead[reached, h - 1])
        return total, self.reach(length)

    def starts(self, length: int) -> Int[np.ndarray, " starts"]:
        """Where forecasts start."""
        return np.arange(0, length, self.stride)

    def reach(self, length: int) -> Float[np.ndarray, " time"]:
        """How often each observation of a series is foreseen."""
        if (self.horizons, self.score) == ((1,), "evidence"):
            return np.minimum(np.arange(length), 1.0)
        count = np.zeros(length)
        for h in self.horizons:
            count[(at := self.starts(length) + h)[at < length]] += 1
        return count

    def _ahead(self, finder: Finder, frames: Frames, belief: Belief, start: Array, longest: int) -> Float[Array, " h"]:
        """How well the observations that follow were foreseen at one time."""
        last = frames.dt.size - 1

        @jax.checkpoint
        def body(belief, t):
            # Past the end there is nothing to foresee; the last frame stands in and its score is not used.
            now = jnp.minimum(t, last)
            u = None if frames.u is None else frames.u[now]
            # Settled, or the compiler works each belief out anew in everything that uses it, and takes minutes to say so.
            following = jax.tree.map(settle, belief.advance(finder.transition(belief, u, frames.dt[now], t)))
            seen = following.state.advance(finder.emission(following, t + 1))
            y = frames.y[jnp.minimum(t + 1, last)]
            if self.score == "bound":
                return following, expected_log_prob(seen, finder.model.measurement_noise, y)
            return following, seen.log_prob(y)

        return jax.lax.scan(body, belief, start + jnp.arange(longest))[1]


def mean_foreseen(
    objective: Objective,
    model: StateSpaceModel,
    batch: Frames,
    scored: Float[Array, "batch time"],
    *,
    method: str,
    options: dict[str, Any],
) -> Float[Array, ""]:
    """How well a batch of series was foreseen, per observed value.

    Args:
        objective: What counts.
        model: The model.
        batch: Frames with a batch axis.
        scored: One where an observation counts, else zero.
        method: How channels are found.
        options: For the method.
    """
    finder = Finder(model, options, method)
    counts: list[np.ndarray] = []

    def foreseen(frames: Frames) -> Array:
        scores, count = objective.foreseen(finder, frames)
        counts.append(count)
        return scores

    scores = jax.vmap(foreseen)(batch)
    values = (~jnp.isnan(batch.y)).sum(axis=-1, dtype=scored.dtype) * scored * jnp.asarray(counts[0], scored.dtype)[None, :]
    return (scores * scored).sum() / jnp.maximum(values.sum(), 1.0)
