r"""E-PAC-Bayes without prior knowledge: a Bayesian neural SDE, trained by a PAC-Bayesian bound on its marginal likelihood.

Haussmann et al., "Learning partially known stochastic dynamics with empirical PAC Bayes", 2021. The state follows

    dx = f(x, w) dt + g dB,   w ~ N(m, diag(v)) once per path,   y_k = x(t_k) + N(0, r),

solved by Euler-Maruyama steps of the data. The hyper-parameters m, v and g are learned. From N trajectories they minimise

    -1/N sum_n log 1/S sum_s prod_k N(y_nk; x_k^s, r) + C,   C^2 = (KL + log(2 sqrt(N)) - log(delta / 2)) / (2 N),
    KL = KL(N(m, diag(v)) || N(0, I)) + 1/2 sum_k E[f(x_k, w)^2] / g^2 dt.

The first term is the marginal likelihood over S sampled paths ("E-Bayes"). KL compares the measure of the paths with that of a
prior, whose drift would be the known physics and is zero here: its second part is Girsanov's formula. With z the likelihood
relative to its largest value, 1 - z <= -log z, so that up to constants the sum bounds the risk 1 - E[z] of new trajectories
with probability 1 - delta.

Not stated in the paper (for the kink): how one series becomes N trajectories, the first state, S, delta, the prior of the
weights, optimiser and stopping. Here: windows of three points that share their ends, cut at a random offset in every iteration.
Paths that are sampled blindly lose a chaotic series within a few steps, and their average becomes a poor estimate: ten points
do not train at the lowest noise level, and of 2, 3 and 5 three were best or nearly so in held-out likelihood at each level.
Windows of one series are not independent, so that C regularises but bounds nothing. The first state is drawn given its own
observation and the variance of the data; the others are scored. S = 64, delta = 0.05, the prior of the weights is N(0, 1) in
standardised units as for the other models of the table, and Adam runs at 5e-3. The number of iterations is the best one for the
likelihood of the last quarter of the series, which is held out; then the model is trained anew on all of it for as many.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import compiled, scan
from prodssm._validation import as_values, require_finite, require_integer, require_number, require_probability
from prodssm.beliefs.gaussian import Gaussian
from prodssm.data.scaling import Standardiser
from prodssm.data.series import Values
from prodssm.methods.moments import Moments
from prodssm.networks.network import Network
from prodssm.training.initialisation import transition_network
from prodssm.training.loop import Task, latest_score, maximise
from prodssm.training.objectives import log_hyper_prior
from prodssm.training.recipe import SERIES_RECIPE, Pace, Recipe

HIDDEN = 50
WINDOW = 3
PATHS, VALIDATION_PATHS = 64, 256
DELTA = 0.05
HELD_OUT = 0.25
RECIPE = replace(
    SERIES_RECIPE,
    iterations=3000,
    learning_rate=5e-3,
    schedule="constant",
    prior_weight=1.0,
    validation=HELD_OUT,
    patience=1000,
)
INITIAL_DIFFUSION = 0.05  # variance per step, in standardised units
SMALLEST_STATE_VAR = 0.05  # of the variance of the data, if the measurement noise would explain all of it


class Transition(NamedTuple):
    """Mean and variance of the next state at each of n states."""

    mean: Float[np.ndarray, "n x"]
    var: Float[np.ndarray, "n x"]


class NeuralSDE(eqx.Module):
    """The drift f with Gaussian weights, and the logarithm of the variance g^2 per time step."""

    drift: Network
    log_diffusion: Float[Array, " x"]

    def sample(self, first: Float[Array, " x"], steps: int, *, key: PRNGKeyArray) -> "SDEPath":
        """A path under weights drawn once, from a first state that is not part of it."""
        weight_key, noise_key = jr.split(key)
        drift, var = self.drift.sample(weight_key), jnp.exp(self.log_diffusion)

        def body(x, noise):
            force = drift(x)
            following = x + force + jnp.sqrt(var) * noise
            return following, (following, 0.5 * (force**2 / var).sum())

        states, energies = scan(body, first, jr.normal(noise_key, (steps, first.size), first.dtype))[1]
        return SDEPath(states, energies.sum())

    def weight_divergence(self) -> Float[Array, ""]:
        """Kullback-Leibler divergence of the weights from N(0, I)."""
        return -log_hyper_prior(self.drift) - 0.5 * self.drift.weights.mean.size


class SDEPath(eqx.Module):
    """A path of an SDE.

    Attributes:
        states: After each step.
        divergence: The sum of f^2 / (2 g^2), whose mean is the divergence of the path measure from that of g dB.
    """

    states: Float[Array, "time x"]
    divergence: Float[Array, ""]


def window_score(
    sde: NeuralSDE, y: Float[Array, "time x"], r: Float[Values, ""], samples: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Log marginal likelihood of a standardised window given its first observation, and the divergence of its paths."""
    state_var = jnp.maximum(1.0 - r, SMALLEST_STATE_VAR)
    gain = state_var / (state_var + r)

    def path(key):
        first_key, path_key = jr.split(key)
        first = gain * y[0] + jnp.sqrt(gain * r) * jr.normal(first_key, y[0].shape, y.dtype)
        found = sde.sample(first, y.shape[0] - 1, key=path_key)
        log_probs = -0.5 * (jnp.log(2 * math.pi * r) + (y[1:] - found.states) ** 2 / r)
        return log_probs.sum(), found.divergence

    log_probs, divergences = jax.vmap(path)(jr.split(key, samples))
    return jax.nn.logsumexp(log_probs) - math.log(samples), divergences.mean()


def complexity(divergence: Float[Array, ""], trajectories: int, delta: float) -> Float[Array, ""]:
    """The term C of the bound, for so many trajectories and with confidence 1 - delta."""
    confidence = math.log(2 * math.sqrt(trajectories)) - math.log(delta / 2)
    return jnp.sqrt((divergence + confidence) / (2 * trajectories))


class BoundTask(Task):
    """Maximise minus the bound, per scored value; for `prodssm.training.loop.maximise`.

    Attributes:
        y: The standardised training series.
        held_out: Standardised validation windows.
        r: Variance of the measurement noise, standardised.
        key: Randomness of the validation score, the same in all iterations.
        prior_weight: Weight of the complexity; zero is E-Bayes.
    """

    averaged = True
    y: Float[Values, "time x"]
    held_out: Float[Values, "windows window x"] | None
    r: Float[Values, ""]
    key: PRNGKeyArray
    prior_weight: Float[Values, ""]
    recipe: Recipe = eqx.field(static=True)
    pace: Pace
    window: int = eqx.field(static=True)
    samples: int = eqx.field(static=True)
    delta: float = eqx.field(static=True)

    @property
    def count(self) -> int:
        """Number of windows of an iteration; one less than fit, so that they can be cut at any offset."""
        return max((self.y.shape[0] - 1) // (self.window - 1) - 1, 1)

    def draw(self, key: PRNGKeyArray) -> Float[Array, "n window x"]:
        """Windows that share their ends, from a random offset on."""
        step = self.window - 1
        offset = jr.randint(key, (), 0, self.y.shape[0] - self.count * step)
        starts = offset + step * jnp.arange(self.count)
        return jnp.asarray(self.y)[starts[:, None] + jnp.arange(self.window)[None, :]]

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """Minus the bound of one cut of the series, per scored value."""
        window_key, path_key = jr.split(key)
        scores, divergences = self.scores(learned, self.draw(window_key), self.samples, path_key)
        divergence = divergences.mean() + learned.weight_divergence()
        penalty = self.prior_weight * complexity(divergence, self.count, self.delta)
        return (scores.mean() - penalty) / self.values

    def evaluate(self, learned: Any, objective: Array, done: Array) -> tuple[Any, Float[Array, ""]]:
        """The log marginal likelihood of the validation windows per scored value, or the iteration without any."""
        if self.held_out is None:
            return learned, latest_score(objective, done)
        scores, _ = self.scores(learned, jnp.asarray(self.held_out), VALIDATION_PATHS, self.key)
        return learned, scores.mean() / self.values

    def scores(self, sde: NeuralSDE, windows: Array, samples: int, key: PRNGKeyArray) -> tuple[Array, Array]:
        """Scores and divergences of windows."""
        keys = jr.split(key, windows.shape[0])
        return jax.vmap(lambda window, key: window_score(sde, window, self.r, samples, key=key))(windows, keys)

    @property
    def values(self) -> int:
        """Scored values of a window."""
        return (self.window - 1) * self.y.shape[1]

    @property
    def validated(self) -> bool:
        """Whether there are validation windows."""
        return self.held_out is not None

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        return ("bound", str(self.samples), str(self.delta)), (self.y, self.held_out, self.r, self.prior_weight, self.key)


class EPACBayes:
    """A Bayesian neural SDE of a scalar series with known measurement noise.

    Args:
        r: Variance of the measurement noise.
        hidden: Units of the drift network.
        window: Points of the windows that the series is cut into.
        samples: Paths behind a marginal likelihood.
        delta: One minus the confidence of the bound.
        recipe: How to train; what is None in it is the default of this file. Its prior weight is that of the complexity C.
        random_state: Seed of everything that is drawn.
        progress: Show a progress bar.

    Example:
        >>> recipe = Recipe(iterations=2, validation=0.0)
        >>> found = EPACBayes(0.08, hidden=4, window=10, samples=4, recipe=recipe, progress=False).fit(y)
        >>> found.transition([[0.0], [0.5]]).mean.shape
        (2, 1)
    """

    def __init__(
        self,
        r: float,
        *,
        hidden: int = HIDDEN,
        window: int = WINDOW,
        samples: int = PATHS,
        delta: float = DELTA,
        recipe: Recipe | None = None,
        random_state: int = 0,
        progress: bool = True,
    ):
        require_number("r", r)
        if not r > 0:
            raise ValueError(f"r must be positive, got {r}")
        for name, value, least in (("hidden", hidden, 1), ("window", window, 2), ("samples", samples, 1)):
            require_integer(name, value, least=least)
        require_probability(delta, "delta")
        self.r, self.hidden, self.window, self.samples, self.delta = float(r), hidden, window, samples, float(delta)
        self.recipe, self.random_state, self.progress = (recipe or Recipe()).filled(RECIPE), random_state, progress

    def fit(self, y: Any) -> "EPACBayes":
        """Find the number of iterations on the held-out last part of the series (time, 1), then train on all of it.

        Without validation in the recipe, its iterations are a budget.
        """
        y = np.asarray(as_values("y", y, ndim=2))
        require_finite("y", y)
        held_out = round(self.recipe.validation * len(y))  # type: ignore[operator]
        training = len(y) - held_out
        if y.shape[1] != 1 or training < 2 * self.window or 0 < held_out < self.window:
            raise ValueError(f"y must be one column of at least {2 * self.window} points beside those held out, got {y.shape}")
        self.scaling_ = Standardiser.fit(y)
        standard, recipe = self.scaling_.transform(y), self.recipe
        if held_out:
            windows = np.lib.stride_tricks.sliding_window_view(standard[training:], self.window, axis=0).swapaxes(1, 2)
            _, history = self._train(standard[:training], windows, recipe)
            recipe = replace(recipe, iterations=history.iterations[int(np.nanargmax(history.validation))])
        self.sde_, self.history_ = self._train(standard, None, recipe)
        return self

    def _train(self, y: Values, held_out: Values | None, recipe: Recipe) -> tuple[NeuralSDE, Any]:
        network_key, score_key, key = jr.split(jr.key(self.random_state), 3)
        task = BoundTask(
            y=y,
            held_out=held_out,
            r=np.asarray(self.r / self.scaling_.scale[0] ** 2, y.dtype),
            key=score_key,
            prior_weight=np.asarray(recipe.prior_weight, y.dtype),
            recipe=recipe,
            pace=recipe.pace(y.dtype),
            window=self.window,
            samples=self.samples,
            delta=self.delta,
        )
        return maximise(task, _initial_sde(self.hidden, network_key), key=key, progress=self.progress)

    def transition(self, x: Any) -> Transition:
        """Mean and variance of the state x + f(x, w) one step after states x, (n, 1), without process noise; exact."""
        states = self.scaling_.transform(np.asarray(as_values("x", x, ndim=2)))
        mean, var = _transition(self.sde_, states)
        return Transition(self.scaling_.inverse(np.asarray(mean)), np.asarray(var) * self.scaling_.scale**2)


def _initial_sde(hidden: int, key: PRNGKeyArray) -> NeuralSDE:
    drift = transition_network((1, hidden, 1), "relu", key=key)
    return NeuralSDE(drift, jnp.full(1, math.log(INITIAL_DIFFUSION), drift.linears[0].weight.dtype))


@compiled
def _transition(sde: NeuralSDE, states: Float[Array, "n x"]) -> tuple[Float[Array, "n x"], Float[Array, "n x"]]:
    def at(x):
        drift = Moments(order=1).channel(sde.drift, Gaussian.certain(x))  # exact for one hidden layer
        return x + drift.mean, jnp.diag(drift.noise)

    return jax.vmap(at)(states)
