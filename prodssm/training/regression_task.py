"""Training on rows: the log density of the targets of minibatches, scored on validation rows."""

from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from prodssm.data.rows import Rows
from prodssm.data.series import Values
from prodssm.models.regression import ROWS_PER_CHUNK, LayerStack, row_log_probs
from prodssm.models.state_space import StateSpaceModel
from prodssm.training.checkpoints import describe_method, describe_model
from prodssm.training.loop import Task, latest_score
from prodssm.training.objectives import model_hyper_prior
from prodssm.training.recipe import Pace, Recipe
from prodssm.training.series_task import trainable


class RegressionTask(Task):
    """Training on rows, for `prodssm.training.loop.maximise`."""

    averaged = True
    fixed: Any
    rows: Rows
    prior_weight: Float[Values, ""]
    key: PRNGKeyArray
    stack: LayerStack
    recipe: Recipe = eqx.field(static=True)
    pace: Pace

    @classmethod
    def of(
        cls, model: StateSpaceModel, rows: Rows, recipe: Recipe, stack: LayerStack, *, key: PRNGKeyArray
    ) -> tuple["RegressionTask", Any]:
        """The task, and the learned parameters of the model."""
        learned, fixed = eqx.partition(model, trainable(model, initial=False))
        weight, pace = np.asarray(recipe.prior_weight, rows.x.dtype), recipe.pace(rows.x.dtype)
        task = cls(fixed=fixed, rows=rows, prior_weight=weight, key=key, recipe=recipe, stack=stack, pace=pace)
        return task, learned

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective of one batch, per target value."""
        model, rows = eqx.combine(learned, self.fixed), self.rows
        draw_key, method_key = jr.split(key)
        size = min(self.recipe.batch_size or rows.x.shape[0], rows.x.shape[0])
        members, counts = rows.draw(size, key=draw_key)
        found = row_log_probs(model, self.stack, rows.x[members], rows.y[members], key=method_key)
        score = jnp.where(counts, found, 0.0).sum() / (counts.sum(dtype=found.dtype) * model.y_size)
        values = rows.training.astype(found.dtype) * model.y_size
        return score + self.prior_weight * model_hyper_prior(model).astype(found.dtype) / values

    def evaluate(self, learned: Any, objective: Float[Array, ""], done: Int[Array, ""]) -> tuple[Any, Float[Array, ""]]:
        """The validation score, or the iteration without validation rows."""
        latest = latest_score(objective, done)
        return learned, jax.lax.cond(self.rows.validation > 0, lambda: self.validation_score(learned), lambda: latest)

    def validation_score(self, learned: Any) -> Float[Array, ""]:
        """Mean log density of the validation rows, per target value."""
        model, rows = eqx.combine(learned, self.fixed), self.rows
        end = rows.training + rows.validation

        def body(n, total):
            members = rows.training + n * ROWS_PER_CHUNK + jnp.arange(ROWS_PER_CHUNK, dtype=jnp.int32)
            here = jnp.minimum(members, rows.x.shape[0] - 1)
            found = row_log_probs(model, self.stack, rows.x[here], rows.y[here], key=jr.fold_in(self.key, n))
            return total + jnp.where(members < end, found, 0.0).sum()

        # The number of chunks is traced: another number of validation rows triggers no recompilation.
        chunks = (rows.validation + ROWS_PER_CHUNK - 1) // ROWS_PER_CHUNK
        total = jax.lax.fori_loop(0, chunks, body, jnp.zeros((), rows.x.dtype))
        return total / (rows.validation.astype(total.dtype) * model.y_size)

    @property
    def validated(self) -> bool:
        """Whether there are validation rows."""
        return bool(self.rows.validation > 0)

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        words = ("rows", str(self.stack.steps), describe_method(self.stack.method), *describe_model(self.fixed))
        return words, (self.fixed, self.rows, self.prior_weight, self.key)
