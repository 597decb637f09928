r"""Monte Carlo over global weights, the paper's MC variant: weights are drawn once per particle, each with a filter of its own.

The evidence of a series is $\log \frac1S \sum_s p(y \mid w_s)$ with $w_s \sim p(w)$, differentiated through the draws; the
filter of one draw is moment matching with point weights. Not stated in the paper: the form of the likelihood. The logarithm of
the mean is consistent: with many draws it is the evidence that global weights have.

With local weights `prodssm.Sampled` is the Monte Carlo variant: a Gaussian is fitted to particles at every step.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.data.batching import SeriesBatch
from prodssm.data.series import Record, Series
from prodssm.methods.base import Method, find_method
from prodssm.models.filtering import Recursion
from prodssm.models.state_space import StateSpaceModel
from prodssm.training.history import History
from prodssm.training.loop import maximise
from prodssm.training.objectives import Objective, model_hyper_prior
from prodssm.training.recipe import SERIES_RECIPE, Recipe
from prodssm.training.series_task import SeriesTask, trainable


def drawn_log_evidence(
    model: StateSpaceModel, record: Record, scored: Float[Array, " time"], samples: int, *, method: Method, key: PRNGKeyArray
) -> Float[Array, ""]:
    """The log of the mean likelihood of the scored observations of one record, over draws of the weights."""

    def one(weights_key: PRNGKeyArray) -> Float[Array, ""]:
        drawn = eqx.tree_at(lambda m: m.transition, model, model.transition.sample(weights_key)).with_weight_mode("point")
        return (Objective().log_scores(Recursion(drawn, method), record)[0] * scored).sum()

    found = jax.vmap(one)(jr.split(key, samples))
    return jax.nn.logsumexp(found) - np.log(samples)


class DrawnWeightsTask(SeriesTask):
    """Training on series by the evidence over draws of global weights.

    Attributes:
        samples: Number of draws.
    """

    samples: int = eqx.field(static=True, default=64)

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective of one batch, per observed value."""
        model, recipe = self.model(learned), self.recipe
        draw_key, weights_key = jr.split(key)
        drawn = self.data.draw(draw_key, recipe.batch_size, recipe.window_length)
        batch, scored = self.data.select(*drawn, recipe.window_length)
        score = self._mean_log_evidence(model, batch, scored, weights_key)
        return score + self.prior_weight * model_hyper_prior(model) / self.data.observed

    def validation_score(self, learned: Any) -> Float[Array, ""]:
        """Mean log evidence of the validation data, always with the same draws."""
        held_out = self.validation
        assert held_out is not None
        return self._mean_log_evidence(self.model(learned), held_out.record, jnp.asarray(held_out.scored), jr.key(0))

    def _mean_log_evidence(
        self, model: StateSpaceModel, batch: Record, scored: Float[Array, "batch time"], key: PRNGKeyArray
    ) -> Float[Array, ""]:
        def one(record: Record, counts: Array, series_key: PRNGKeyArray) -> Array:
            return drawn_log_evidence(model, record, counts, self.samples, method=self.method, key=series_key)

        total = jax.vmap(one)(batch, scored, jr.split(key, scored.shape[0])).sum()
        values = (~jnp.isnan(batch.y)).sum(axis=-1, dtype=scored.dtype) * scored
        return total / jnp.maximum(values.sum(), 1.0)


def train_by_draws(
    model: StateSpaceModel,
    series: list[Series],
    recipe: Recipe | None = None,
    *,
    samples: int,
    key: PRNGKeyArray,
    validation: SeriesBatch | None = None,
    progress: bool = True,
) -> tuple[StateSpaceModel, History]:
    """Train a model with global weights by Monte Carlo; arguments as for `prodssm.training.series_task.train`.

    Args:
        model: The initial model.
        series: The training data.
        recipe: How to train.
        samples: Number of draws of the weights, in every iteration.
        key: Randomness of minibatches and weights.
        validation: Data that are not trained on.
        progress: Show a progress bar.

    Example:
        >>> recipe = Recipe(iterations=2)
        >>> trained, history = train_by_draws(ssm, [Series(y)], recipe, samples=4, key=jr.key(0), progress=False)
        >>> trained.weights, history.iterations
        ('global', [2])
    """
    recipe = (recipe or Recipe()).filled(SERIES_RECIPE)
    data = SeriesBatch.stack(series)
    model = model.with_weight_mode("global")
    learned, fixed = eqx.partition(model, trainable(model))
    task = DrawnWeightsTask(
        fixed=fixed,
        data=data,
        validation=validation,
        prior_weight=np.asarray(recipe.prior_weight, data.record.y.dtype),
        method=find_method("moments"),
        recipe=recipe,
        pace=recipe.pace(data.record.y.dtype),
        stable=False,
        full_batch=False,
        samples=samples,
    )
    best, history = maximise(task, learned, key=key, progress=progress)
    return task.model(best), history
