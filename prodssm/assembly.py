"""From a few settings and the shape of the data to a state-space model that is ready to learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.activations import find_activation
from prodssm.checks import require_integer
from prodssm.gaussian import Gaussian
from prodssm.linalg import bounded_growth, ridge
from prodssm.methods import WEIGHTS
from prodssm.methods.moments import moments
from prodssm.model import StateSpaceModel
from prodssm.network import Network
from prodssm.series import Series
from prodssm.subspace import guess_states

# In units of the standardised data.
START_PROCESS_VAR = 0.01
START_MEASUREMENT_VAR = 0.1
RESIDUAL_SCALE = 0.1  # a residual network starts close to standing still
LEAST_NOISE = 1e-6
QUIET = 0.5  # share of the noise that a linear model leaves which goes to weights, and to process noise
BEYOND, CLOUD = 3.0, 2000  # how far, in standard units, and at how many points a network starts as a linear map


@dataclass(frozen=True)
class Settings:
    """The shape of a model, as `ProDSSM` describes it; anything until it is checked."""

    latent_dim: Any
    hidden: Any
    activation: Any
    weights: Any
    residual: bool
    process_noise: Any
    emission: Any
    noise_floor: Any
    rank: Any = None

    def check(self, y_size: int) -> "Settings":
        """Itself, or an error."""
        require_integer("latent_dim", self.latent_dim, least=1)
        find_activation(self.activation)
        if self.weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {self.weights!r}")
        for name, words in (("hidden", ()), ("process_noise", ("constant",)), ("emission", ("identity", "linear"))):
            _require_sizes(name, getattr(self, name), words)
        if self.emission == "identity" and self.latent_dim != y_size:
            raise ValueError(
                f"latent_dim must equal the {y_size} observed channels for emission='identity', got {self.latent_dim}; "
                "use emission='linear' or hidden sizes such as (30,)"
            )
        return self


def _require_sizes(name: str, value: Any, words: tuple[str, ...]) -> None:
    named = " or ".join([*[repr(word) for word in words], "a tuple of hidden sizes"])
    if isinstance(value, str):
        if value not in words:
            raise ValueError(f"{name} must be {named}, got {value!r}")
        return
    if not isinstance(value, tuple | list) or any(isinstance(n, bool) or not isinstance(n, int | np.integer) for n in value):
        raise TypeError(f"{name} must be {named}, got {value!r}")
    if any(n < 1 for n in value):
        raise ValueError(f"{name} must have positive sizes, got {value}")


def assemble(
    settings: Settings, y: Float[Array, "time y"], u_size: int, measurement_var: Float[Array, " y"] | None, *, key: PRNGKeyArray
) -> StateSpaceModel:
    """A model with random weights for standardised data.

    Args:
        settings: Its shape.
        y: Standardised observations, which a linear emission starts from.
        u_size: Number of controls.
        measurement_var: Variances of the measurement noise, if they are known.
        key: Randomness of the weights.
    """
    settings.check(y.shape[1])
    keys = jr.split(key, 3)
    x, dtype = settings.latent_dim, y.dtype
    transition = Network.mlp((x + u_size, *settings.hidden, x), settings.activation, key=keys[0], spread=1.0)
    if settings.residual:
        transition = transition.scaled(RESIDUAL_SCALE)
    noise: Any = jnp.full(x, START_PROCESS_VAR, dtype)
    if not isinstance(settings.process_noise, str):
        sizes, uncertain = (x + u_size, *settings.process_noise, x), settings.weights != "point"
        noise = Network.mlp(sizes, settings.activation, uncertain=uncertain, key=keys[1])
        noise = noise.shifted(float(np.log(np.expm1(START_PROCESS_VAR))))
    return StateSpaceModel(
        initial=Gaussian(jnp.zeros(x, dtype), jnp.eye(x, dtype=dtype)),
        transition=transition,
        emission=_emission(settings, y, key=keys[2]),
        process_noise=noise,
        measurement_noise=jnp.full(y.shape[1], START_MEASUREMENT_VAR, dtype) if measurement_var is None else measurement_var,
        weights=settings.weights,
        residual=settings.residual,
        measurement_floor=settings.noise_floor if measurement_var is None else 0.0,
        rank=settings.rank,
    )


def _emission(settings: Settings, y: Float[Array, "time y"], *, key: PRNGKeyArray) -> Network | None:
    """Nothing for the identity; principal axes for a linear map; a random network with certain weights otherwise."""
    if settings.emission == "identity":
        return None
    x, channels = settings.latent_dim, y.shape[1]
    if not isinstance(settings.emission, str):
        return Network.mlp((x, *settings.emission, channels), settings.activation, uncertain=False, key=key)
    axes = np.zeros((channels, x))
    filled = np.nan_to_num(np.asarray(y, float))
    values, vectors = np.linalg.eigh(filled.T @ filled / len(filled))
    kept = min(x, channels)
    axes[:, :kept] = (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :kept]
    # States beyond the channels are not seen at first, but must not be stuck there.
    axes[:, kept:] = 0.1 * np.asarray(jr.normal(key, (channels, x - kept)))
    return Network.from_arrays([jnp.asarray(axes, y.dtype)], [jnp.zeros(channels, y.dtype)])


def acquainted(model: StateSpaceModel, series: Sequence[Series]) -> StateSpaceModel:
    """The same model, moved to the linear one that subspace identification finds: its means, and how far off these are.

    Args:
        model: With a linear emission; half of the hidden units of its transition stay as they were drawn.
        series: Standardised. If they are too short to tell anything, the model stays as it is.
    """
    found = guess_states(series, model.x_size)
    if found is None:
        return model
    emission = cast(Network, model.emission).fitted(*found.seen)
    inputs, following = found.moves
    states = inputs[:, : model.x_size]
    moves = (following - states) / found.dt[:, None] if model.residual else following
    slope, bias = ridge(inputs, moves)
    # Data are no proof of growth.
    still = np.eye(len(slope), slope.shape[1]) * model.residual
    slope[:, : model.x_size] = bounded_growth((slope + still)[:, : model.x_size], 1.0) - still[:, : model.x_size]
    rest = moves - inputs @ slope.T - bias
    noise = np.maximum((rest * found.dt[:, None] ** 0.5 if model.residual else rest).var(axis=0), LEAST_NOISE)
    # Told at random points that reach beyond the data, or a network would swing between and behind them.
    cloud = BEYOND * np.random.default_rng(0).normal(size=(CLOUD, slope.shape[1]))
    transition = model.transition.mirrored().fitted(cloud, cloud @ slope.T + bias)
    transition = _as_sure_as(transition, inputs, QUIET * noise)
    parts: Any = [emission, transition]
    where = [lambda m: m.emission, lambda m: m.transition]
    if model.log_process_noise is not None:
        parts.append(jnp.asarray(np.log(QUIET * noise), model.log_process_noise.dtype))
        where.append(lambda m: m.log_process_noise)
    return eqx.tree_at(lambda m: [part(m) for part in where], model, parts)


def _as_sure_as(network: Network, inputs: Float[np.ndarray, "n i"], noise: Float[np.ndarray, " o"]) -> Network:
    """The same network, its weights so sure that no output is noisier than this on average."""
    if not network.uncertain:
        return network
    # Some of the points tell the mean; all of a long series would need memory for each.
    points = jnp.asarray(inputs[:: max(1, len(inputs) // CLOUD)], network.linears[0].weight.dtype)
    worst = float((np.asarray(_noises(network, points), float).mean(axis=0) / noise).max())
    return network.calmer(min(1.0, 1 / worst))


@eqx.filter_jit
def _noises(network: Network, points: Float[Array, "n i"]) -> Float[Array, "n o"]:
    """How noisy the outputs of a network are at certain inputs."""
    return jax.vmap(lambda at: jnp.diag(moments(network, Gaussian.certain(at)).noise))(points)
