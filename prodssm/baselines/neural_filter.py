r"""The neural filter: an inference network that is trained by the evidence lower bound of a fixed state-space model.

The forward variant of Krishnan, Shalit and Sontag, "Structured inference networks for nonlinear state space models", 2017:

    q(x_t | x_{t-1}, y_1..y_t) = N(W_m c_t + b_m, softplus(W_v c_t + b_v)),   c_t = (tanh(W x_{t-1} + b) + h_t) / 2

with h_t the state of a recurrent network that has read y_1..y_t. Its parameters maximise the expected bound of trajectories of
the model, with one reparametrised path per trajectory, log p(y_t | x_t) at the path, and Kullback-Leibler divergences from the
transition in closed form.

Not stated in the paper: sizes, training data, optimiser, how a filtered density is formed. Here: a GRU of 64 units; fresh
trajectories of the model in every iteration, so that nothing can be overfitted; Adam at 1e-3 with a cosine schedule; a warm-up
of the divergences in the first two fifths of the iterations, or q would settle on paths of the model that ignore the
observations; states and observations standardised by simulated ones; the moments of the mixture of q along 256 sampled paths.
The first state, which has no x_{t-1}, has output layers of its own, in units of the initial belief.

The bound compares a path with the posterior given all observations, also future ones, which this q does not see. Even the best
q is therefore overconfident where future observations say much about the present state, or where little process noise ties it
to a state that was drawn before its observation (Bayer et al., "Mind the gap when conditioning amortised inference in
sequential latent-variable models", 2021). For a linear model of one state its variance is that of the smoother.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import bucket, compiled, pad, scan
from prodssm._validation import require_finite, require_integer
from prodssm.beliefs.gaussian import Gaussian
from prodssm.data.scaling import Standardiser
from prodssm.data.series import Values
from prodssm.models.filtering import checked_input
from prodssm.models.simulation import simulate
from prodssm.models.state_space import StateSpaceModel
from prodssm.training.checkpoints import describe_model
from prodssm.training.history import History
from prodssm.training.loop import Task, maximise
from prodssm.training.recipe import SERIES_RECIPE, Pace, Recipe

HIDDEN = 64
LENGTH = 120
PATHS = 256
RECIPE = replace(SERIES_RECIPE, iterations=4000, learning_rate=1e-3, batch=32, clip=10.0, prior_weight=1.0)
WARM_UP = 0.4  # of the iterations
WARM_UP_WEIGHTS = (0.01, 0.03, 0.1, 0.3)  # of the divergences meanwhile, one after the other
SCALING_TRAJECTORIES = 100
VARIANCE_FLOOR = 1e-6  # of q, in standardised units


class FilteredStates(NamedTuple):
    """The filtered Gaussian at every time step."""

    mean: Float[np.ndarray, "time x"]
    cov: Float[np.ndarray, "time x x"]


class InferenceNetwork(eqx.Module):
    """What is learned: the recurrent network, the combiner, and the output layers, all in standardised units."""

    cell: eqx.nn.GRUCell
    from_state: eqx.nn.Linear
    to_mean: eqx.nn.Linear
    to_var: eqx.nn.Linear
    to_first_mean: eqx.nn.Linear
    to_first_var: eqx.nn.Linear

    @classmethod
    def random(cls, x: int, y: int, hidden: int, dtype: Any, *, key: PRNGKeyArray) -> "InferenceNetwork":
        """A network with random weights."""
        cell_key, state_key, *output_keys = jr.split(key, 6)
        return cls(
            eqx.nn.GRUCell(y, hidden, dtype=dtype, key=cell_key),
            eqx.nn.Linear(x, hidden, dtype=dtype, key=state_key),
            *(eqx.nn.Linear(hidden, x, dtype=dtype, key=output_key) for output_key in output_keys),
        )

    def read(self, y: Float[Array, "time y"]) -> Float[Array, "time h"]:
        """The states of the recurrent network."""

        def body(h, now):
            h = self.cell(now, h)
            return h, h

        return scan(body, jnp.zeros(self.cell.hidden_size, y.dtype), y)[1]

    def first(self, h: Float[Array, " h"]) -> tuple[Float[Array, " x"], Float[Array, " x"]]:
        """Mean and variances of the first state."""
        return self.to_first_mean(h), VARIANCE_FLOOR + jax.nn.softplus(self.to_first_var(h))

    def conditional(self, x: Float[Array, " x"], h: Float[Array, " h"]) -> tuple[Float[Array, " x"], Float[Array, " x"]]:
        """Mean and variances of the state given the previous one."""
        combined = (jnp.tanh(self.from_state(x)) + h) / 2
        return self.to_mean(combined), VARIANCE_FLOOR + jax.nn.softplus(self.to_var(combined))


class Path(eqx.Module):
    """A path drawn from q.

    Attributes:
        states: The states.
        means: Mean that each state was drawn with, given the one before.
        covs: Covariance that each state was drawn with.
        divergences: Kullback-Leibler divergence of each of these Gaussians from that of the model, given the same state before.
    """

    states: Float[Array, "time x"]
    means: Float[Array, "time x"]
    covs: Float[Array, "time x x"]
    divergences: Float[Array, " time"]


class Posterior(eqx.Module):
    """The distribution q of paths given observations, in the units of the model."""

    network: InferenceNetwork
    x_scaling: Standardiser
    y_scaling: Standardiser

    def sample(self, model: StateSpaceModel, y: Float[Array, "time y"], *, key: PRNGKeyArray) -> Path:
        """A path given observations of the model."""
        seen = self.network.read((y - self.y_scaling.mean[None]) / self.y_scaling.scale[None])
        noise = jr.normal(key, (y.shape[0], model.x_size), y.dtype)
        # Whitened by the initial belief, whose covariance may be close to singular.
        white, var = self.network.first(seen[0])
        chol, begin = model.initial_chol, model.initial_mean
        mean, first = begin + chol @ white, begin + chol @ (white + jnp.sqrt(var) * noise[0])
        divergence = diagonal_divergence(white, var, jnp.zeros_like(white), jnp.ones_like(var))
        start = first, mean, chol @ jnp.diag(var) @ chol.T, divergence

        def body(x, now):
            mean, var = self.network.conditional(self.x_scaling.transform(x), now[0])
            mean, var = self.x_scaling.inverse(mean), jnp.asarray(self.x_scaling.scale) ** 2 * var
            following = mean + jnp.sqrt(var) * now[1]
            return following, (following, mean, jnp.diag(var), diagonal_divergence(mean, var, *_transition(model, x)))

        rest = scan(body, first, (seen[1:], noise[1:]))[1]
        return Path(*(jnp.concatenate([one[None], others]) for one, others in zip(start, rest, strict=True)))


def diagonal_divergence(
    mean: Float[Array, " x"], var: Float[Array, " x"], other_mean: Float[Array, " x"], other_var: Float[Array, " x"]
) -> Float[Array, ""]:
    """Kullback-Leibler divergence of N(mean, diag(var)) from N(other_mean, diag(other_var))."""
    ratio = var / other_var
    return 0.5 * (ratio + (mean - other_mean) ** 2 / other_var - 1.0 - jnp.log(ratio)).sum()


def _transition(model: StateSpaceModel, x: Float[Array, " x"]) -> tuple[Float[Array, " x"], Float[Array, " x"]]:
    """Mean and variances of the next state given this one."""
    moved = model.transition.at_mean()(x) + model.linear_part(x, None)
    return x + moved if model.residual else moved, model.process_variances(Gaussian.certain(x), None)


def lower_bound(
    posterior: Posterior,
    model: StateSpaceModel,
    y: Float[Array, "time y"],
    weight: Float[Values, ""] | float = 1.0,
    *,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """The evidence lower bound of one series, its divergences weighted, estimated without bias along one path."""
    path = posterior.sample(model, y, key=key)

    def log_prob(x, y):
        return model.likelihood.expected_log_prob(Gaussian.certain(model.output(x)), y)

    return jax.vmap(log_prob)(path.states, y).sum() - weight * path.divergences.sum()


def _stages(recipe: Recipe) -> list[Recipe]:
    """Training stage by stage: the warm-up of the divergences, then their whole weight."""
    iterations: Any = recipe.iterations
    weight: Any = recipe.prior_weight
    rising = max(1, round(WARM_UP * iterations / len(WARM_UP_WEIGHTS)))
    rest = max(1, iterations - rising * len(WARM_UP_WEIGHTS))
    warm_up = replace(recipe, iterations=rising, schedule="constant")
    return [*(replace(warm_up, prior_weight=share * weight) for share in WARM_UP_WEIGHTS), replace(recipe, iterations=rest)]


class FilterTask(Task):
    """Maximise the mean bound of simulated trajectories, per observed value; the prior weight is that of the divergences."""

    averaged = True
    recipe: Recipe = eqx.field(static=True)
    pace: Pace
    prior_weight: Float[Values, ""]
    model: StateSpaceModel
    x_scaling: Standardiser
    y_scaling: Standardiser
    length: int = eqx.field(static=True)
    batch: int = eqx.field(static=True)

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """The bound of fresh trajectories, per observed value."""
        posterior = Posterior(learned, self.x_scaling, self.y_scaling)

        def bound(key):
            data_key, path_key = jr.split(key)
            y = simulate(self.model, self.length, key=data_key)[1]
            return lower_bound(posterior, self.model, jnp.asarray(y), self.prior_weight, key=path_key)

        return jax.vmap(bound)(jr.split(key, self.batch)).mean() / (self.length * self.model.y_size)

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        return ("neural filter", str(self.length), *describe_model(self.model)), (self.model, self.x_scaling, self.y_scaling)


class NeuralFilter:
    """Filtering with a learned inference network; the generative model is fixed.

    Args:
        model: The model, with point weights and without controls.
        hidden: Units of the recurrent network.
        length: Time steps of the trajectories that it is trained on.
        recipe: How to train; what is None in it is the default of this file. Its prior weight is that of the divergences.
        samples: Paths behind a filtered density.
        random_state: Seed of everything that is drawn.
        progress: Show a progress bar.

    Example:
        >>> recipe, point = Recipe(iterations=2, batch=4), ssm.with_weight_mode("point")
        >>> found = NeuralFilter(point, hidden=4, length=10, recipe=recipe, samples=20, progress=False).fit()
        >>> found.filter(y).mean.shape
        (60, 1)
    """

    def __init__(
        self,
        model: StateSpaceModel,
        *,
        hidden: int = HIDDEN,
        length: int = LENGTH,
        recipe: Recipe | None = None,
        samples: int = PATHS,
        random_state: int = 0,
        progress: bool = True,
    ):
        for name, value, least in (("hidden", hidden, 1), ("length", length, 2), ("samples", samples, 2)):
            require_integer(name, value, least=least)
        _require_gaussian(model)
        self.model, self.hidden, self.length, self.samples = model, hidden, length, samples
        self.recipe, self.random_state, self.progress = (recipe or Recipe()).filled(RECIPE), random_state, progress
        if self.recipe.batch_size is None:
            raise ValueError("batch must be the number of trajectories of an iteration, got 'all'")
        self.batch = self.recipe.batch_size

    def fit(self) -> "NeuralFilter":
        """Train the inference network on trajectories of the model."""
        model, dtype = self.model, self.model.dtype
        scaling_key, network_key, key = jr.split(jr.key(self.random_state), 3)
        states, y = _simulate_many(model, self.length, SCALING_TRAJECTORIES, scaling_key)
        x_scaling, y_scaling = (Standardiser.fit(np.asarray(part).reshape(-1, part.shape[-1])) for part in (states, y))
        network = InferenceNetwork.random(model.x_size, model.y_size, self.hidden, dtype, key=network_key)
        self.history_ = History()
        for stage, recipe in enumerate(_stages(self.recipe)):
            pace, weight = recipe.pace(dtype), np.asarray(recipe.prior_weight, dtype)
            task = FilterTask(recipe, pace, weight, model, x_scaling, y_scaling, self.length, self.batch)
            network, history = maximise(task, network, key=jr.fold_in(key, stage), progress=self.progress)
            self.history_ = self.history_.followed_by(history)
            if history.interrupted:
                break
        self.posterior_ = Posterior(network, x_scaling, y_scaling)
        return self

    def filter(self, y: Any) -> FilteredStates:
        """Mean (time, x) and covariance (time, x, x) of the state at each time given the observations up to then."""
        y = self._checked(y)
        # What follows an observation has no effect on it, so that padding changes nothing.
        found = _moments(self.posterior_, self.model, pad(y, bucket(len(y))), self.samples, self._path_key)
        return FilteredStates(*(np.asarray(part)[: len(y)] for part in found))

    def bounds(self, y: Any) -> Float[np.ndarray, " samples"]:
        """Unbiased estimates of the evidence lower bound of the whole series, one per path."""
        return np.asarray(_bounds(self.posterior_, self.model, self._checked(y), self.samples, self._path_key))

    def _checked(self, y: Any) -> Float[np.ndarray, "time y"]:
        series, _ = checked_input(self.model, y, "moments")
        require_finite("y", series.y)
        return np.asarray(series.y)

    @property
    def _path_key(self) -> PRNGKeyArray:
        return jr.fold_in(jr.key(self.random_state), 1)


def _require_gaussian(model: StateSpaceModel) -> None:
    """Raise unless the transition density of the model is a Gaussian that an inference network can be compared with."""
    if model.weights != "point":
        raise ValueError(f"model must have weights='point' for a neural filter, got {model.weights!r}")
    if model.u_size:
        raise ValueError(f"model must not have controls for a neural filter, got {model.u_size}")
    noise = model.log_process_noise
    if noise is not None and not np.isfinite(np.asarray(noise)).all():
        raise ValueError("process_noise must be positive for a neural filter: its bound divides by it")


@compiled
def _simulate_many(model: StateSpaceModel, steps: int, count: int, key: PRNGKeyArray) -> tuple[Values, Values]:
    return jax.vmap(lambda key: simulate(model, steps, key=key))(jr.split(key, count))


@compiled
def _moments(posterior: Posterior, model: StateSpaceModel, y: Array, samples: int, key: PRNGKeyArray) -> tuple[Array, Array]:
    """Moments of the mixture of q along the paths: mean of the means; mean of the covariances plus covariance of the means."""
    paths = jax.vmap(lambda key: posterior.sample(model, y, key=key))(jr.split(key, samples))
    mean = paths.means.mean(axis=0)
    offsets = paths.means - mean[None]
    return mean, paths.covs.mean(axis=0) + jnp.einsum("sti,stj->tij", offsets, offsets) / samples


@compiled
def _bounds(
    posterior: Posterior, model: StateSpaceModel, y: Array, samples: int, key: PRNGKeyArray
) -> Float[Array, " samples"]:
    return jax.vmap(lambda key: lower_bound(posterior, model, y, key=key))(jr.split(key, samples))
