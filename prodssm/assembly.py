"""From a few settings and the shape of the data to a state-space model that is ready to learn."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.activations import find_activation
from prodssm.checks import require_integer
from prodssm.gaussian import Gaussian
from prodssm.linalg import ridge
from prodssm.methods import WEIGHTS
from prodssm.model import StateSpaceModel
from prodssm.network import Network
from prodssm.series import Series
from prodssm.subspace import LAGS, guess_states

# In units of the standardised data.
START_PROCESS_VAR = 0.01
START_MEASUREMENT_VAR = 0.1
RESIDUAL_SCALE = 0.1  # a residual network starts close to standing still


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
    mirrored = settings.emission == "linear"  # for `acquainted`
    transition = Network.mlp((x + u_size, *settings.hidden, x), settings.activation, key=keys[0], spread=1.0, mirrored=mirrored)
    if settings.residual:
        transition = transition.scaled(RESIDUAL_SCALE)
    noise: Any = jnp.full(x, START_PROCESS_VAR, dtype)
    if not isinstance(settings.process_noise, str):
        noise = Network.mlp((x + u_size, *settings.process_noise, x), settings.activation, key=keys[1]).shifted(
            float(np.log(np.expm1(START_PROCESS_VAR)))
        )
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
    """The same model, its emission and its last transition layer moved to what linear algebra says about hidden states.

    Args:
        model: With a linear emission; hidden units of its transition stay as they were drawn.
        series: Standardised. If they are too short to tell anything, the model stays as it is.
    """
    states = guess_states(series, model.x_size)
    if states is None:
        return model
    series = [each for each in series if len(each) > 3 * LAGS]
    seen, before, after = [], [], []
    for x, each in zip(states, series, strict=True):
        at = slice(LAGS, LAGS + len(x))
        y, dt = np.asarray(each.y, float)[at], np.asarray(each.dt, float)[at, None]
        whole = np.isfinite(y).all(axis=1)
        seen.append((x[whole], y[whole]))
        before.append((x if each.u is None else np.concatenate([x, np.asarray(each.u, float)[at]], axis=1))[:-1])
        after.append((x[1:] - x[:-1]) / dt[:-1] if model.residual else x[1:])
    emission = model.emission.fitted(*(np.concatenate(part) for part in zip(*seen, strict=True)))
    slope, bias = ridge(np.concatenate(before), np.concatenate(after))
    cloud = 3 * np.random.default_rng(0).normal(size=(2000, slope.shape[1]))
    transition = model.transition.fitted(cloud, cloud @ slope.T + bias)
    return eqx.tree_at(lambda m: (m.emission, m.transition), model, (emission, transition))
