"""Regression by deep stochastic layers: a row of inputs is a state that is known exactly; some transitions later it shows as y.

No filter is needed, because nothing is observed on the way. Written for one row; `jax.vmap` at the edge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from prodssm.gaussian import Gaussian, JointGaussian
from prodssm.linalg import symmetrise
from prodssm.links import SteppedCross
from prodssm.model import StateSpaceModel
from prodssm.objective import model_prior
from prodssm.training import Goal, Recipe, described, later_is_better, trainable

METHODS = ("moments", "sampled")
TOGETHER = 128  # rows that are worked on at once where no gradient is asked for
TOGETHER_CARRIED = 32  # rows with carried weights that are worked on at once, with or without a gradient: they need more memory
WRITTEN_OUT = 8  # steps with carried weights up to which each is compiled for itself


@dataclass(frozen=True)
class Plan:
    """How a row becomes a belief about its target.

    Attributes:
        steps: Transitions.
        method: "moments" (closed form) or "sampled" (particles).
        order: Truncation order of the moment method; None chooses.
        samples: Particles while training.
        test_samples: Particles for predictions, and for the held-out part.
    """

    steps: int
    method: str = "moments"
    order: int | None = None
    samples: int = 32
    test_samples: int = 128


def target_belief(
    model: StateSpaceModel,
    plan: Plan,
    x: Float[Array, " x"],
    *,
    key: PRNGKeyArray,
    weights_key: PRNGKeyArray,
    samples: int,
) -> Gaussian:
    """Belief about the target of one row, measurement noise included.

    Args:
        model: Its initial belief is not used: the row takes its place.
        plan: How.
        x: Inputs of the row.
        key: Randomness of this row; only particles use it.
        weights_key: Randomness of weights that are drawn once, which rows may share.
        samples: How many particles.
    """
    if plan.method == "sampled":
        return _by_particles(model, plan.steps, x, key=key, weights_key=weights_key, samples=samples)
    return _by_moments(model, plan.steps, x, order=plan.order)


def _by_moments(model: StateSpaceModel, steps: int, x: Float[Array, " x"], *, order: int | None) -> Gaussian:
    @jax.checkpoint  # a gradient keeps the beliefs between steps and works the rest out again
    def moved(belief):
        return belief.advance(model.transition_channel(belief, None, order=order))

    last: Any = Gaussian.certain(x)
    if model.weights == "global" and steps <= WRITTEN_OUT:
        # Nothing is observed, so weights stay independent, and what the state shares with them is a sum that every step makes
        # longer: a loop would have to carry it at full length from the start.
        weights = model.transition.weights
        last = JointGaussian(last, SteppedCross.none(x.size, weights), weights)
        for _ in range(steps):
            last = moved(last)
    else:
        last = JointGaussian.independent(last, model.transition.weights) if model.weights == "global" else last
        last = jax.lax.scan(lambda belief, _: (moved(belief), None), last, None, length=steps)[0]
    return last.state.advance(model.emission_channel(last.state, order=order))


def _by_particles(
    model: StateSpaceModel,
    steps: int,
    x: Float[Array, " x"],
    *,
    key: PRNGKeyArray,
    weights_key: PRNGKeyArray,
    samples: int,
) -> Gaussian:
    """The Gaussian that fits the ends of many simulated paths; a single path has no spread but the measurement noise."""

    def path(row_key: PRNGKeyArray, weight_key: PRNGKeyArray) -> Float[Array, " y"]:
        drawn = model.transition.sample(weight_key) if model.weights == "global" else model.transition

        def move(state, step_key):
            f_key, l_key, noise_key = jr.split(step_key, 3)
            change = drawn.sample_output(state, key=f_key) if model.weights == "local" else drawn.at_mean()(state)
            var = model.sample_process_variances(state, key=l_key)
            return state + change + jnp.sqrt(var) * jr.normal(noise_key, state.shape, state.dtype), None

        state = jax.lax.scan(move, x, jr.split(row_key, steps))[0]
        return state if model.emission is None else model.emission.at_mean()(state)

    ends = jax.vmap(path)(jr.split(key, samples), jr.split(weights_key, samples))
    mean = ends.mean(axis=0)
    centred = ends - mean[None, :]
    spread = centred.T @ centred / max(samples - 1, 1)
    return Gaussian(mean, symmetrise(spread) + jnp.diag(model.measurement_noise))


def log_probs(
    model: StateSpaceModel,
    plan: Plan,
    x: Float[Array, "n x"],
    y: Float[Array, "n y"],
    *,
    key: PRNGKeyArray,
    samples: int,
) -> Float[Array, " n"]:
    """Log density of the target of each row. Rows draw their own particles, but share weights that are drawn once."""
    rows_key, weights_key = jr.split(key)

    def one(x, y, row_key):
        return target_belief(model, plan, x, key=row_key, weights_key=weights_key, samples=samples).log_prob(y)

    return over_rows(model, plan, one, x, y, jr.split(rows_key, x.shape[0]))


def over_rows(model: StateSpaceModel, plan: Plan, one: Callable[..., Any], *rows: Any) -> Any:
    """What `one` finds for each row, as many of them at once as is fast."""
    if model.weights == "global" and plan.method == "moments":
        return jax.lax.map(lambda row: one(*row), rows, batch_size=TOGETHER_CARRIED)
    return jax.vmap(one)(*rows)


@eqx.filter_jit
def predict_rows(
    model: StateSpaceModel, plan: Plan, x: Float[Array, "n x"], key: PRNGKeyArray
) -> tuple[Float[Array, "n y"], Float[Array, "n y y"]]:
    """Means and covariances of the targets. All rows see the same particles, so that none depends on its neighbours."""
    row_key, weights_key = jr.split(key)
    chosen = {"key": row_key, "weights_key": weights_key, "samples": plan.test_samples}
    found = over_rows(model, plan, lambda row: target_belief(model, plan, row, **chosen), x)
    return found.mean, found.cov


@eqx.filter_jit
def log_densities(mean: Float[Array, "n y"], cov: Float[Array, "n y y"], y: Float[Array, "n y"]) -> Float[Array, " n"]:
    """Log density of the targets of each row, by the rule that training uses."""
    return jax.vmap(lambda m, c, one: Gaussian(m, c).log_prob(one))(mean, cov, y)


class Rows(eqx.Module):
    """Rows to learn from, followed by rows that are held out, followed by nothing that counts.

    Both numbers are data and the arrays have one of few lengths, so that another share, or a few more rows, need no new
    compilation.
    """

    x: Float[Array, "n x"]
    y: Float[Array, "n y"]
    learned: Int[Array, ""]
    held: Int[Array, ""]

    @classmethod
    def of(cls, x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"], held: int = 0) -> "Rows":
        """All rows, the last `held` of them to score and not to learn from."""
        room, dtype = padded(len(x)) - len(x), jnp.result_type(float)
        filled = (jnp.asarray(np.pad(part, ((0, room), (0, 0))), dtype) for part in (x, y))
        return cls(*filled, *(jnp.asarray(np.int32(count)) for count in (len(x) - held, held)))

    def draw(self, size: int, *, key: PRNGKeyArray) -> tuple[Int[Array, " b"], Bool[Array, " b"]]:
        """Rows of one batch, none of them twice, and which of them count: all, unless there are fewer than the batch has."""
        length = self.x.shape[0]
        members = jnp.arange(length, dtype=jnp.int32)
        if size < length:
            lots = jr.uniform(key, (length,), self.x.dtype)
            members = jax.lax.top_k(jnp.where(members < self.learned, lots, -1.0), size)[1]
        return members, members < self.learned


def padded(count: int) -> int:
    """The next power of two, from 64 on."""
    return max(64, 1 << (count - 1).bit_length())


class RowsTask(Goal):
    """Learning from rows, for `prodssm.training.maximise`."""

    averaged = True
    fixed: Any
    rows: Rows
    prior_weight: Float[Array, ""]
    key: PRNGKeyArray
    recipe: Recipe = eqx.field(static=True)
    plan: Plan = eqx.field(static=True)
    pace: Float[Array, "2"]  # learning rate and iterations, as numbers like any other

    @classmethod
    def of(cls, model: StateSpaceModel, rows: Rows, recipe: Recipe, plan: Plan, *, key: PRNGKeyArray) -> tuple["RowsTask", Any]:
        """The task, and the parameters of the model that are to be learned."""
        learned, fixed = eqx.partition(model, trainable(model, initial=False))
        weight, *pace = (
            jnp.asarray(value, rows.x.dtype) for value in (recipe.prior_weight, recipe.learning_rate, recipe.iterations)
        )
        task = cls(fixed=fixed, rows=rows, prior_weight=weight, key=key, recipe=recipe, plan=plan, pace=jnp.stack(pace))
        return task, learned

    def optimiser(self) -> optax.GradientTransformation:
        """As that of the recipe, at a pace that need not be known when it is compiled."""
        highest, iterations = self.pace

        def rate(count):
            if self.recipe.schedule == "constant":
                return highest
            share = jnp.minimum(count.astype(highest.dtype) / iterations, 1.0)
            return highest * (0.01 + 0.99 * 0.5 * (1 + jnp.cos(jnp.pi * share)))

        return optax.chain(optax.clip_by_global_norm(self.recipe.clip), optax.adam(rate))

    def compiled(self) -> "RowsTask":
        """Without the numbers of the recipe that only the loop outside needs, or that stand in `pace`."""
        return replace(self, recipe=Recipe(schedule=self.recipe.schedule, clip=self.recipe.clip, batch=self.recipe.batch))

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """What is maximised, on one batch, per target value."""
        model, rows = eqx.combine(learned, self.fixed), self.rows
        draw_key, method_key = jr.split(key)
        size = min(self.recipe.batch or rows.x.shape[0], rows.x.shape[0])
        members, counts = rows.draw(size, key=draw_key)
        found = log_probs(model, self.plan, rows.x[members], rows.y[members], key=method_key, samples=self.plan.samples)
        foreseen = jnp.where(counts, found, 0.0).sum() / (counts.sum(dtype=found.dtype) * model.y_size)
        values = rows.learned.astype(found.dtype) * model.y_size
        return foreseen + self.prior_weight * model_prior(model).astype(found.dtype) / values

    def worth(self, learned: Any, objective: Float[Array, ""], done: Int[Array, ""]) -> tuple[Any, Float[Array, ""]]:
        """The parameters, and how good they are: by the held-out rows if there are any, else the later the better."""
        later = later_is_better(objective, done)
        return learned, jax.lax.cond(self.rows.held > 0, lambda: self.validation(learned), lambda: later)

    def validation(self, learned: Any) -> Float[Array, ""]:
        """Mean log density of the held-out rows, per target value."""
        model, rows = eqx.combine(learned, self.fixed), self.rows
        end = rows.learned + rows.held

        def body(n, total):
            members = rows.learned + n * TOGETHER + jnp.arange(TOGETHER, dtype=jnp.int32)
            here = jnp.minimum(members, rows.x.shape[0] - 1)
            key = jr.fold_in(self.key, n)
            found = log_probs(model, self.plan, rows.x[here], rows.y[here], key=key, samples=self.plan.test_samples)
            return total + jnp.where(members < end, found, 0.0).sum()

        # As many turns as there are rows held out: a number like any other, so that it needs no compilation of its own.
        turns = (rows.held + TOGETHER - 1) // TOGETHER
        total = jax.lax.fori_loop(0, turns, body, jnp.zeros((), rows.x.dtype))
        return total / (rows.held.astype(total.dtype) * model.y_size)

    @property
    def validated(self) -> bool:
        """Whether rows are held out."""
        return bool(self.rows.held > 0)

    @property
    def substance(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """What tells this task from another: words and numbers."""
        return ("rows", str(self.plan), *described(self.fixed)), (self.fixed, self.rows, self.prior_weight, self.key)
