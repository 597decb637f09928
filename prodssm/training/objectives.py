"""What training maximises: the evidence of the data with the weights integrated out, and the paper's hyper-prior."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from prodssm._compilation import scan
from prodssm.beliefs.gaussian import Belief
from prodssm.beliefs.linalg import fusion_barrier
from prodssm.data.batching import SeriesBatch
from prodssm.data.folds import context
from prodssm.data.series import Record, Values
from prodssm.methods.base import Method
from prodssm.models.filtering import Recursion
from prodssm.models.free_run import free_run
from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.base import Function
from prodssm.networks.layers import Linear
from prodssm.training.devices import total

OBJECTIVES = ("evidence", "bound", "free_run")


def log_hyper_prior(network: Function) -> Float[Array, ""]:
    r"""$\frac12 \sum_i (\log v_i - m_i^2 - v_i)$ over uncertain weights: N(0, 1) on means, Gamma(3/2, 1/2) on variances.

    Up to a constant it is minus the Kullback-Leibler divergence of the weights from N(0, 1).
    """
    return sum((_layer_hyper_prior(layer) for layer in network.linears if layer.uncertain), jnp.zeros(()))


def _layer_hyper_prior(layer: Linear) -> Array:
    found = jnp.zeros((), layer.weight.dtype)
    for mean, log_var in ((layer.weight, layer.weight_log_var), (layer.bias, layer.bias_log_var)):
        assert log_var is not None
        found = found + 0.5 * (log_var - mean**2 - jnp.exp(log_var)).sum()
    return found


def model_hyper_prior(model: StateSpaceModel) -> Float[Array, ""]:
    """The hyper-prior of every network of the model whose weights are random."""
    networks = [model.transition] if model.weights != "point" else []
    networks += [model.process_network] if model.process_network is not None else []
    return sum((log_hyper_prior(network) for network in networks), jnp.zeros(()))


class Objective(NamedTuple):
    """The log score that is maximised besides the hyper-prior.

    Attributes:
        horizons: Steps ahead at which each observation is predicted; several count equally. `(1,)` is the filter's evidence,
            the paper's objective.
        score: "evidence"; "bound" for its lower bound (the paper's appendix); or "free_run", the marginal densities of all
            observations after a context, without conditioning on them. A free run has no horizons.
        stride: Forecasts start at every `stride`-th observation. It does not matter for `(1,)`.
        context: Observations that a free run is conditioned on; None for what `prodssm.data.folds.context` says.
    """

    horizons: tuple[int, ...] = (1,)
    score: str = "evidence"
    stride: int = 1
    context: int | None = None

    @property
    def is_filter_evidence(self) -> bool:
        """Whether one pass of the filter gives all scores."""
        return (self.horizons, self.score) == ((1,), "evidence")

    def log_scores(self, recursion: Recursion, record: Record) -> tuple[Float[Array, " time"], Float[np.ndarray, " time"]]:
        """Log scores of each observation of a record, summed over horizons, and the number of forecasts of each.

        The first observation is never predicted.
        """
        length, longest = record.dt.size, max(self.horizons)
        if self.is_filter_evidence:
            return recursion.scan(record)[1][2].at[0].set(0.0), self.forecast_counts(length)
        if self.score == "free_run":
            given = np.arange(length) < self.known(length)
            return jnp.where(given, 0.0, recursion.scan(record, given=given)[1][2]), self.forecast_counts(length)
        starts = self.starts(length)
        filtered = jax.tree.map(lambda leaf: leaf[starts], recursion.scan(record, keep_channels=True)[1][0])
        ahead = jax.vmap(lambda belief, t: self._scores_ahead(recursion, record, belief, t, longest))
        scores = ahead(filtered, jnp.asarray(starts))
        found = jnp.zeros(length, record.y.dtype)
        for h in self.horizons:
            reached = starts + h < length
            found = found.at[starts[reached] + h].add(scores[reached, h - 1])
        return found, self.forecast_counts(length)

    def known(self, length: int) -> int:
        """How many observations of a record a free run is conditioned on."""
        return context(length) if self.context is None else self.context

    def starts(self, length: int) -> Int[np.ndarray, " starts"]:
        """Time steps at which forecasts start."""
        return np.arange(0, length, self.stride)

    def forecast_counts(self, length: int) -> Float[np.ndarray, " time"]:
        """How many forecasts reach each observation of a record."""
        if self.is_filter_evidence:
            return np.minimum(np.arange(length), 1.0)
        if self.score == "free_run":
            return (np.arange(length) >= self.known(length)).astype(float)
        count = np.zeros(length)
        for h in self.horizons:
            count[(at := self.starts(length) + h)[at < length]] += 1
        return count

    def unreached_horizons(self, data: SeriesBatch, window: int | None = None) -> tuple[int, ...]:
        """Horizons at which no scored observation is predicted, in windows of this length if they are shorter."""
        scored = np.isfinite(np.asarray(data.record.y)).any(axis=-1) * np.asarray(data.scored)

        def reached(single: Objective) -> bool:
            if window is not None and window < data.longest:
                return bool(single.forecast_counts(window).any() and scored.any())
            return bool((scored * single.forecast_counts(scored.shape[1])[None, :]).any())

        return tuple(h for h in self.horizons if not reached(self._replace(horizons=(h,))))

    def _scores_ahead(
        self, recursion: Recursion, record: Record, belief: Belief, start: Array, longest: int
    ) -> Float[Array, " h"]:
        """Log scores of the observations that follow one filtered belief."""
        last, likelihood = record.dt.size - 1, recursion.model.likelihood

        @jax.checkpoint
        def body(belief, t):
            # Past the end the last time step stands in; its score is not used.
            now = jnp.minimum(t, last)
            u = None if record.u is None else jnp.asarray(record.u)[now]
            # A fusion barrier, or XLA recomputes the belief in every consumer, and takes minutes to compile that.
            following = jax.tree.map(fusion_barrier, recursion.move(belief, u, jnp.asarray(record.dt)[now], t)[1])
            after = jnp.minimum(t + 1, last)
            seen_u = None if record.u is None else jnp.asarray(record.u)[after]
            output, y = recursion.emit(following, seen_u, t + 1), jnp.asarray(record.y)[after]
            if self.score == "bound":
                return following, output.average(lambda each: likelihood.expected_log_prob(each, y))
            return following, output.log_mean(lambda each: likelihood.log_prob(each, y))

        return scan(body, belief, start + jnp.arange(longest))[1]


def mean_log_score(
    objective: Objective,
    model: StateSpaceModel,
    batch: Record,
    scored: Float[Values, "batch time"],
    given: Bool[Values, "batch time"] | None = None,
    *,
    method: Method,
    mesh: Mesh | None = None,
) -> Float[Array, ""]:
    """The mean log score of a batch, per observed value.

    Args:
        objective: The log score.
        model: The model.
        batch: Records with a batch axis.
        scored: One where an observation is scored, else zero.
        given: Which observations are conditioned on; with it the score is that of the free run over the others.
        method: How channels are found.
        mesh: Devices that have a share of the batch each; the sum of what they find is the mean log score.
    """
    recursion = Recursion(model, method)
    if given is not None:
        scores = jax.vmap(lambda record, known: recursion.scan(record, given=known)[1][2])(batch, given)
        values = (~jnp.isnan(batch.y)).sum(axis=-1, dtype=scored.dtype) * scored
        return (scores * scored).sum() / jnp.maximum(total(values.sum(), mesh), 1.0)
    counts: list[np.ndarray] = []

    def log_scores(record: Record) -> Array:
        scores, count = objective.log_scores(recursion, record)
        counts.append(count)
        return scores

    scores = jax.vmap(log_scores)(batch)
    values = (~jnp.isnan(batch.y)).sum(axis=-1, dtype=scored.dtype) * scored * jnp.asarray(counts[0], scored.dtype)[None, :]
    return (scores * scored).sum() / jnp.maximum(total(values.sum(), mesh), 1.0)


def mean_squared_error(
    model: StateSpaceModel,
    batch: Record,
    scored: Float[Values, "batch time"],
    given: Bool[Values, "batch time"],
    *,
    method: Method,
    mesh: Mesh | None = None,
) -> Float[Array, ""]:
    """The mean squared error of free runs over a batch, per observed value; arguments as for `mean_log_score`."""
    recursion = Recursion(model, method)
    mean = jax.vmap(lambda record, known: free_run(recursion, record, known)[0])(batch, jnp.asarray(given))
    seen = ~jnp.isnan(batch.y) & (jnp.asarray(scored)[:, :, None] > 0)
    square = jnp.where(seen, (jnp.where(seen, batch.y, 0.0) - mean) ** 2, 0.0)
    return square.sum() / jnp.maximum(total(seen.sum(dtype=square.dtype), mesh), 1.0)
