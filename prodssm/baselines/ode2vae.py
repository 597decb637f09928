r"""ODE2VAE (Yıldız, Heinonen, Lähdesmäki, NeurIPS 2019): a latent second-order ODE whose force is a Bayesian neural network.

Position s and velocity v follow $ds/dt = v$, $dv/dt = f_W(s, v)$ with $W \sim q(W)$, drawn once per path; an encoder gives
$q(s_0|y_0)\,q(v_0|y_0 \ldots y_{M-1})$, a decoder the mean of y from s. Along a path the density of $z = (s, v)$ changes by
$d \log q/dt = -\mathrm{tr}(\partial f/\partial v)$. Training maximises, over subsequences,

$$ E\Big[\sum_i \log p(y_i|s_i) + \log \frac{N(z_i; 0, I)}{q_{ode}(z_i)} - \gamma \log \frac{q_{ode}(z_i)}{q_{enc}(z_i)}\Big]
   - \beta\, KL(q(W) \| N(0, I)),\qquad \beta = \dim z / \dim W. $$

From the paper: the objective, beta, Adam at 3e-3 times .995 every 200 steps, and for motion capture two hidden layers of 30
tanh units, three positions, three frames for the encoder, a variance of the observations within (1, e). Not stated there:
gamma (cross-validated; here 1); the solver (here Runge-Kutta of order 4, one step of length 0.1 per frame); how subsequences
count (here as if the data were cut into disjoint ones: the divergence of the weights is divided by the number of observed
values, all else is a mean over drawn subsequences); their length and number (here 16 of 100 frames); the encoder (here like the
other networks; all outputs are divided by one number, because small ones would be overfitted otherwise); stopping (here the
best squared error of forecasts within disjoint subsequences of the validation sequences: over a whole walk the phase is lost,
and models that hardly move have the smallest error).

`order=1` is our reading for a map such as the kink, on which ODE2VAE was scored later without saying how. The flow of a scalar
ODE is increasing, and the kink is not, so no $dx/dt = f(x)$ can learn it; hence one Euler step, $x_{t+1} = x_t + h f_W(x_t)$.
It need not be invertible, so the formula for the density does not hold; what remains is the exact bound, in which $x_0$ alone
has a divergence from N(0, I). States are what is observed. The encoder of $x_0$ sees all M observations, because no velocity
does, and corrects $y_0$ by multiples of the noise; otherwise some fits place states far from the observations. For the kink:
`ODE2VAE(latent=1, context=2, order=1, noise=r, step=1.0, recipe=KINK_RECIPE)`.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.scipy.stats import norm
from jaxtyping import Array, Float, Int, Key, PRNGKeyArray

from prodssm._compilation import compiled, scan
from prodssm._validation import as_values, require_finite
from prodssm.data.scaling import Standardiser
from prodssm.data.series import Values
from prodssm.networks.network import Network
from prodssm.training.history import History
from prodssm.training.loop import Task, latest_score, maximise
from prodssm.training.objectives import log_hyper_prior
from prodssm.training.recipe import SERIES_RECIPE, Pace, Recipe

DECAY, DECAY_STEPS = 0.995, 200  # of the learning rate
INITIAL_LOG_STD, VALIDATION_SAMPLES = -2.0, 16  # of the encoder; paths behind a validation score
RECIPE = Recipe(iterations=3000, learning_rate=3e-3, schedule="constant", clip=10.0, prior_weight="auto")
RECIPE = replace(RECIPE, batch=16, window=100, patience=1000).filled(SERIES_RECIPE)  # prior_weight is beta
KINK_RECIPE = Recipe(iterations=2000, window=2, batch=64)  # a chaotic path with process noise cannot be followed

# Position and velocity, and the log density of their distribution there.
State = tuple[Float[Array, " z"], Float[Array, ""]]
Path = tuple[Float[Array, "length z"], Float[Array, " length"]]
Moments = tuple[Float[np.ndarray, "n y"], Float[np.ndarray, "n y ..."]]  # means, and covariances or variances


class LatentODE(eqx.Module):
    """The model of one standardised sequence.

    Attributes:
        dynamics: f; its weights have a mean and a variance.
        position_encoder: Mean and log standard deviation of the position.
        velocity_encoder: Likewise of the velocity; None for a map.
        decoder: Position to the mean of the observation; None, hence the identity, for a map.
        noise_logit: Where the log variance of an observation is between its bounds.
        log_noise_bounds: Smallest and largest log variance; equal where the variance is known.
        step: Length of the data's time step.
        context: Frames that the encoder sees.
    """

    dynamics: Network
    position_encoder: Network
    velocity_encoder: Network | None
    decoder: Network | None
    noise_logit: Float[Array, " y"]
    log_noise_bounds: Float[Array, "2 y"]
    step: float = eqx.field(static=True)
    context: int = eqx.field(static=True)

    @property
    def noise(self) -> Float[Array, " y"]:
        """Variance of an observation."""
        low, high = self.log_noise_bounds
        return jnp.exp(low + (high - low) * jax.nn.sigmoid(self.noise_logit))

    def encode(self, y: Float[Array, "m y"]) -> tuple[Float[Array, " z"], Float[Array, " z"]]:
        """Mean and standard deviation of the state at the first of some frames."""
        if self.velocity_encoder is None:
            mean, log_std = jnp.split(self.position_encoder(y.ravel()), 2)
            return y[0] + jnp.sqrt(self.noise) * mean, jnp.sqrt(self.noise) * jnp.exp(log_std + INITIAL_LOG_STD)
        parts = self.position_encoder(y[0]), self.velocity_encoder(y.ravel())
        mean, log_std = jnp.concatenate([part.reshape(2, -1) for part in parts], axis=1)
        return mean, jnp.exp(log_std + INITIAL_LOG_STD)

    def decode(self, z: Float[Array, " z"]) -> Float[Array, " y"]:
        """Mean of the observation."""
        return z if self.decoder is None else self.decoder(z[: z.size // 2])

    def derivative(self, force: Network, z: Float[Array, " z"]) -> State:
        """Time derivatives of state and log density, given drawn weights."""
        velocity = z[z.size // 2 :]
        value, push = jax.linearize(force, z)
        along_velocities = jax.vmap(push)(jnp.eye(z.size, dtype=z.dtype)[velocity.size :])
        return jnp.concatenate([velocity, value]), -jnp.trace(along_velocities)

    def advance(self, force: Network, state: State) -> State:
        """State and log density one time step later; a map leaves the density as it is."""
        (z, log_q), h = state, self.step
        if self.velocity_encoder is None:
            return z + h * force(z), log_q
        a, da = self.derivative(force, z)
        b, db = self.derivative(force, z + h / 2 * a)
        c, dc = self.derivative(force, z + h / 2 * b)
        d, dd = self.derivative(force, z + h * c)
        return z + h / 6 * (a + 2 * b + 2 * c + d), log_q + h / 6 * (da + 2 * db + 2 * dc + dd)

    def path(self, force: Network, first: State, length: int) -> Path:
        """States and log densities at so many time steps, the first included."""

        def body(state: State, _: Any) -> tuple[State, State]:
            return self.advance(force, state), state

        return scan(body, first, jnp.arange(length))[1]

    def draw_path(self, y: Float[Array, "m y"], length: int, *, key: PRNGKeyArray) -> Path:
        """A path under drawn weights, from a state that is drawn from the encoder at the first of some frames."""
        weight_key, state_key = jr.split(key)
        mean, std = self.encode(y)
        z = mean + std * jr.normal(state_key, mean.shape, mean.dtype)
        return self.path(self.dynamics.sample(weight_key), (z, norm.logpdf(z, mean, std).sum()), length)

    def bound(self, y: Float[Array, "time y"], gamma: Float[Values, ""], *, key: PRNGKeyArray) -> Float[Array, ""]:
        """One sample of the bound for one subsequence, without the divergence of the weights."""
        states, log_q = self.draw_path(y[: self.context], len(y), key=key)
        fit = norm.logpdf(y, jax.vmap(self.decode)(states), jnp.sqrt(self.noise)[None]).sum()
        if self.velocity_encoder is None:
            return fit + norm.logpdf(states[0]).sum() - log_q[0]
        frames = jnp.arange(len(y) - self.context + 1)[:, None] + jnp.arange(self.context)[None]
        means, stds = jax.vmap(self.encode)(y[frames])
        gap = log_q[: len(frames)].sum() - norm.logpdf(states[: len(frames)], means, stds).sum()
        return fit + norm.logpdf(states).sum() - log_q.sum() - gamma * gap


class PathTask(Task):
    """Training on subsequences, for `prodssm.training.loop.maximise`; `prior_weight` is beta."""

    fixed: Any
    train: Float[Values, "n time y"]
    validation: Float[Values, "m length y"] | None
    gamma: Float[Values, ""]
    prior_weight: Float[Values, ""]
    key: PRNGKeyArray
    pace: Pace
    recipe: Recipe = eqx.field(static=True)

    def objective(self, learned: Any, key: PRNGKeyArray) -> Float[Array, ""]:
        """The objective of some subsequences, per observed value."""
        model, data = eqx.combine(learned, self.fixed), jnp.asarray(self.train)
        count, time, outputs = data.shape
        window, batch = min(self.recipe.window_length or time, time), self.recipe.batch_size or count
        member_key, begin_key, path_key = jr.split(key, 3)
        members = jr.randint(member_key, (batch,), 0, count)
        begins = jr.randint(begin_key, (batch,), 0, time - window + 1)

        def bound(member: Array, begin: Array, key: PRNGKeyArray) -> Array:
            return model.bound(jax.lax.dynamic_slice_in_dim(data[member], begin, window), self.gamma, key=key)

        found = jax.vmap(bound)(members, begins, jr.split(path_key, batch)).mean() / (window * outputs)
        return found + self.prior_weight * log_hyper_prior(model.dynamics).astype(found.dtype) / data.size

    def evaluate(self, learned: Any, objective: Float[Array, ""], done: Int[Array, ""]) -> tuple[Any, Float[Array, ""]]:
        """Minus the mean squared error of forecasts of validation data, standardised; without any, the iteration."""
        if self.validation is None:
            return learned, latest_score(objective, done)
        model, keys = eqx.combine(learned, self.fixed), jr.split(self.key, VALIDATION_SAMPLES)

        def error(y: Array) -> Array:
            return ((_observations(model, y[: model.context], len(y), keys).mean(axis=0) - y)[model.context :]) ** 2

        return learned, -jax.vmap(error)(jnp.asarray(self.validation)).mean()

    def optimiser(self) -> optax.GradientTransformation:
        """Adam with the decay of the paper."""
        decay = optax.exponential_decay(1.0, DECAY_STEPS, DECAY, staircase=True)
        return optax.chain(self.pace.optimiser(self.recipe.schedule), optax.scale_by_schedule(decay))

    @property
    def validated(self) -> bool:
        """Whether there are validation sequences."""
        return self.validation is not None

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        return ("ode2vae",), (self.fixed, self.train, self.validation, self.gamma, self.prior_weight, self.key)


@dataclass
class ODE2VAE:
    """ODE2VAE for sequences of equal length without missing values.

    Attributes:
        latent: Number of positions.
        hidden: Hidden layers of every network.
        context: Frames that the encoder sees, from which a forecast starts.
        order: 2 for an ODE, 1 for a map of what is observed.
        noise: Known variance of an observation, or the bounds of a learned one, in the units of the data squared.
        gamma: Weight of the divergence of the path from the encoder, of an ODE.
        step: Length of the data's time step in the time of the dynamics.
        recipe: How to train; what is None in it is that of `RECIPE`.
        random_state: Seed of all randomness in `fit`.
        progress: Show a progress bar.

    Example:
        >>> ODE2VAE(recipe=Recipe(iterations=2), progress=False).fit(y.reshape(3, 20, 1)).paths(y[:20], 5, key=jr.key(0)).shape
        (256, 5, 1)
    """

    latent: int = 3
    hidden: tuple[int, ...] = (30, 30)
    context: int = 3
    order: int = 2
    noise: float | tuple[float, float] = (1.0, math.e)
    gamma: float = 1.0
    step: float = 0.1
    recipe: Recipe | None = None
    random_state: int = 0
    progress: bool = True
    model_: LatentODE = field(init=False)
    scaling_: Standardiser = field(init=False)
    history_: History = field(init=False)

    def fit(self, train: Any, validation: Any = None) -> "ODE2VAE":
        """Train on sequences, (n, time, y); without validation sequences, for all iterations."""
        recipe, dtype = (self.recipe or Recipe()).filled(RECIPE), jnp.result_type(float)
        train, _ = _sequences("train", train, recipe.window_length, self.context)
        if self.order != 2 and (self.order, self.latent) != (1, train.shape[2]):
            raise ValueError(f"order must be 2, or 1 with latent={train.shape[2]}, got {self.order} with latent={self.latent}")
        scale = np.sqrt(train.var(axis=(0, 1), dtype=float).mean())
        self.scaling_ = Standardiser(train.mean(axis=(0, 1)).astype(dtype), np.full(train.shape[2], scale, dtype))
        model_key, training_key, validation_key = jr.split(jr.key(self.random_state), 3)
        model = self._initial_model(train.shape[2], key=model_key)
        spec = eqx.tree_at(lambda m: m.log_noise_bounds, jax.tree.map(eqx.is_inexact_array, model), False)
        learned, fixed = eqx.partition(model, spec)
        force, beta = model.dynamics, recipe.prior_weight
        task = PathTask(
            fixed=fixed,
            train=self._standardised(train),
            validation=None if validation is None else self._pieces(validation, recipe.window_length),
            gamma=np.asarray(self.gamma, dtype),
            prior_weight=np.asarray(force.in_size / force.weights.mean.size if beta == "auto" else beta, dtype),
            key=validation_key,
            pace=recipe.pace(dtype),
            recipe=recipe,
        )
        best, self.history_ = maximise(task, learned, key=training_key, progress=self.progress)
        self.model_ = eqx.combine(best, fixed)
        return self

    def _standardised(self, values: Float[np.ndarray, "*any y"]) -> Float[np.ndarray, "*any y"]:
        """Centred values, divided by one number."""
        return self.scaling_.transform(values).astype(self.scaling_.scale.dtype)

    def _pieces(self, validation: Any, window: int | None) -> Float[np.ndarray, "m window y"]:
        """Validation sequences in disjoint pieces as long as the subsequences of training, standardised."""
        values, length = _sequences("validation", validation, window, self.context + 1)
        whole = values[:, : values.shape[1] // length * length]
        return self._standardised(whole.reshape(-1, length, values.shape[2]))

    def _initial_model(self, outputs: int, *, key: PRNGKeyArray) -> LatentODE:
        """A model with random weights."""
        k, keys = self.latent, jr.split(key, 4)
        low, high = self.noise if isinstance(self.noise, tuple) else (self.noise, self.noise)
        bounds = np.log(np.array([[low], [high]]) / np.asarray(self.scaling_.scale, float) ** 2)

        def network(inputs: int, results: int, key: PRNGKeyArray, uncertain: bool = False) -> Network:
            return Network.mlp((inputs, *self.hidden, results), "tanh", uncertain, key=key)

        seen, ode = self.context * outputs, self.order == 2
        return LatentODE(
            dynamics=network(self.order * k, k, keys[0], uncertain=True),
            position_encoder=network(outputs if ode else seen, 2 * k, keys[1]),
            velocity_encoder=network(seen, 2 * k, keys[2]) if ode else None,
            decoder=network(k, outputs, keys[3]) if ode else None,
            noise_logit=jnp.zeros(outputs),
            log_noise_bounds=jnp.asarray(bounds, jnp.result_type(float)),
            step=float(self.step),
            context=self.context,
        )

    def paths(self, past: Any, steps: int, *, samples: int = 256, key: PRNGKeyArray) -> Float[np.ndarray, "s steps y"]:
        """Sampled means of the frames that follow a sequence, (time, y), of which the last `context` frames are used."""
        past = as_values("past", past, ndim=2)
        if len(past) < self.context:
            raise ValueError(f"past must have at least {self.context} frames, got {len(past)}")
        context = self._standardised(past[-self.context :])
        found = _observations(self.model_, context, self.context + steps, jr.split(key, samples))
        return self.scaling_.inverse(np.asarray(found, float)[:, self.context :])

    def forecast(self, past: Any, steps: int, *, samples: int = 256, key: PRNGKeyArray) -> Moments:
        """Means and covariances of the frames that follow a sequence, over weights, initial states and observation noise."""
        paths = self.paths(past, steps, samples=samples, key=key)
        mean, noise = paths.mean(axis=0), np.asarray(self.model_.noise, float) * np.asarray(self.scaling_.scale, float) ** 2
        cov = np.einsum("sti,stj->tij", paths - mean, paths - mean) / samples
        return mean, cov + np.diag(noise)

    def transition(self, x: Float[np.ndarray, "n x"], *, samples: int = 256, key: PRNGKeyArray) -> Moments:
        """Mean and variance over the weights of the next state after given states, for order 1."""
        if self.order != 1:
            raise ValueError(f"transition needs order=1, got order={self.order}")
        states = self._standardised(as_values("x", x, ndim=2))
        found = self.scaling_.inverse(np.asarray(_next_states(self.model_, states, jr.split(key, samples)), float))
        return found.mean(axis=0), found.var(axis=0)


@compiled
def _observations(model: LatentODE, y: Float[Array, "m y"], length: int, keys: Key[Array, " s"]) -> Float[Array, "s length y"]:
    """Mean observations along sampled paths from the first of some frames."""

    def sample(key: PRNGKeyArray) -> Array:
        return jax.vmap(model.decode)(model.draw_path(y, length, key=key)[0])

    return jax.vmap(sample)(keys)


@compiled
def _next_states(model: LatentODE, x: Float[Array, "n x"], keys: Key[Array, " s"]) -> Float[Array, "s n x"]:
    """The states one time step later, under weights that are drawn for every key."""

    def sample(key: PRNGKeyArray) -> Array:
        force = model.dynamics.sample(key)
        return jax.vmap(lambda z: model.advance(force, (z, jnp.zeros((), z.dtype)))[0])(x)

    return jax.vmap(sample)(keys)


def _sequences(name: str, values: Any, window: int | None, least: int) -> tuple[Float[np.ndarray, "n time y"], int]:
    """Checked sequences, and the length of their subsequences, which is at least `least`."""
    values = as_values(name, values, ndim=3)
    require_finite(name, values)
    length = min(window or values.shape[1], values.shape[1])
    if length < least:
        raise ValueError(f"{name} needs sequences and a window of at least {least} frames, got {length}")
    return values, length
