"""Initial models: random networks for standardised data, and the linear model of subspace identification."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import compiled
from prodssm._validation import require_integer
from prodssm.beliefs.gaussian import Gaussian
from prodssm.data.series import Values
from prodssm.methods.base import require_weight_mode
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.activations import Activation, find_activation
from prodssm.networks.known import Known, Sum
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network

# In standardised units.
INITIAL_PROCESS_VAR = 0.01
RESIDUAL_GAIN = 0.1  # on the output of a residual network: it starts close to the identity
UNSEEN_STATE_GAIN = 0.1  # of a linear emission on states beyond the number of outputs
SMALLEST_NOISE = 1e-6
NOISE_SHARE = 0.5  # of the linear model's residual variance that the weights, and the process noise, start with
CLOUD_SCALE, CLOUD_SIZE = 3.0, 2000  # of the random points at which a network is fitted to a linear map
REGRESSION_RIDGE = 0.1  # of the linear regression that a regressor starts from


EMISSIONS = ("identity", "linear", "feedthrough")
KNOWN = "known"  # the word for an emission that the user knows


class KnownParts(NamedTuple):
    """Functions that the user knows, in the units of the model.

    Attributes:
        physics: To which the transition network is added.
        emission: In place of a network.
    """

    physics: Known | None = None
    emission: Known | None = None


@dataclass(frozen=True)
class Architecture:
    """The architecture of a state-space model, as `ProDSSM` describes it; unchecked until `check`.

    With `linear` a linear part with point weights stands beside the network. Without `hidden` there is no network beside what
    the user knows.
    """

    latent_dim: Any
    hidden: Any
    activation: Any
    weights: Any
    residual: bool
    process_noise: Any
    emission: Any
    linear: bool = False

    def check(self, y_size: int) -> "Architecture":
        """Itself, or an error that names the setting."""
        require_integer("latent_dim", self.latent_dim, least=1)
        find_activation(self.activation)
        require_weight_mode(self.weights)
        for name, words in (
            ("hidden", ()),
            ("process_noise", ("constant",)),
            ("emission", EMISSIONS),
        ):
            if (name, getattr(self, name)) not in (("hidden", None), ("emission", KNOWN)):
                require_sizes(name, getattr(self, name), words)
        if self.emission == "identity" and self.latent_dim != y_size:
            raise ValueError(
                f"latent_dim must equal the {y_size} outputs for emission='identity', got {self.latent_dim}; "
                "use emission='linear' or hidden sizes such as (30,)"
            )
        return self


def require_sizes(name: str, value: Any, words: tuple[str, ...] = ()) -> None:
    """Raise unless the value is one of the words, or a tuple of hidden layer sizes."""
    named = " or ".join([*[repr(word) for word in words], "a tuple of hidden sizes"])
    if isinstance(value, str):
        if value not in words:
            raise ValueError(f"{name} must be {named}, got {value!r}")
        return
    if not isinstance(value, tuple | list) or any(isinstance(n, bool) or not isinstance(n, int | np.integer) for n in value):
        raise TypeError(f"{name} must be {named}, got {value!r}")
    if any(n < 1 for n in value):
        raise ValueError(f"{name} must have positive sizes, got {value}")


def random_model(
    architecture: Architecture,
    y: Float[Values, "time y"],
    u_size: int,
    likelihood: Likelihood,
    *,
    key: PRNGKeyArray,
    known: KnownParts = KnownParts(),  # noqa: B008
) -> StateSpaceModel:
    """A model with random weights for standardised data.

    Args:
        architecture: Its shape.
        y: Standardised observations; a linear emission starts from the principal axes of what the likelihood links to them.
        u_size: Number of control inputs.
        likelihood: In standardised units.
        key: Randomness of the weights.
        known: Functions that the user knows.
    """
    architecture.check(y.shape[1])
    offset, linear = likelihood.offset(np.asarray(y)), architecture.emission in ("linear", "feedthrough")
    axes = _principal_axes(likelihood.link(np.asarray(y)) - offset, architecture.latent_dim) if linear else None
    return _random_model(architecture, axes, offset, u_size, likelihood, key, known)


@compiled
def _random_model(
    architecture: Architecture,
    axes: Float[Array, "y k"] | None,
    offset: Float[Array, " y"],
    u_size: int,
    likelihood: Likelihood,
    key: PRNGKeyArray,
    known: KnownParts,
) -> StateSpaceModel:
    keys, dtype = jr.split(key, 3), offset.dtype
    x = architecture.latent_dim
    transition: Any = known.physics
    if architecture.hidden is not None:
        transition = transition_network((x + u_size, *architecture.hidden, x), architecture.activation, key=keys[0])
        if architecture.residual or known.physics is not None:
            transition = scale_output(transition, RESIDUAL_GAIN)
        transition = transition if known.physics is None else Sum(known.physics, transition)
    noise: Any = jnp.full(x, INITIAL_PROCESS_VAR, dtype)
    if not isinstance(architecture.process_noise, str):
        sizes, uncertain = (x + u_size, *architecture.process_noise, x), architecture.weights != "point"
        noise = variance_network(sizes, architecture.activation, uncertain, key=keys[1])
    return StateSpaceModel(
        initial=Gaussian(offset if architecture.emission == "identity" else jnp.zeros(x, dtype), jnp.eye(x, dtype=dtype)),
        transition=transition,
        emission=known.emission
        or _emission(architecture, axes, offset, u_size if architecture.emission == "feedthrough" else 0, key=keys[2]),
        process_noise=noise,
        likelihood=likelihood,
        weights=architecture.weights,
        residual=architecture.residual,
        linear=jnp.zeros((x, x + u_size), dtype) if architecture.linear else None,
    )


def regression_model(
    hidden: Sequence[int],
    noise_hidden: Sequence[int],
    activation: Any,
    weights: str,
    likelihood: Likelihood,
    x: Float[np.ndarray, "n x"],
    y: Float[np.ndarray, "n y"],
    *,
    key: PRNGKeyArray,
) -> StateSpaceModel:
    """A model for standardised rows: nearly a linear regression, with a residual network on top."""
    size = x.shape[1]
    slope = np.linalg.solve(x.T @ x / len(x) + REGRESSION_RIDGE * np.eye(size), x.T @ y / len(x)).T
    return _regression_model(tuple(hidden), tuple(noise_hidden), find_activation(activation), weights, likelihood, slope, key)


@compiled
def _regression_model(
    hidden: tuple[int, ...],
    noise_hidden: tuple[int, ...],
    activation: Activation,
    weights: str,
    likelihood: Likelihood,
    slope: Float[Array, "y x"],
    key: PRNGKeyArray,
) -> StateSpaceModel:
    outputs, size = slope.shape
    dtype = slope.dtype
    transition_key, noise_key, emission_key = jr.split(key, 3)
    uncertain = weights != "point"
    transition = transition_network((size, *hidden, size), activation, uncertain, key=transition_key)
    # A small random slope on top: a direction of zero slope would have zero gradient.
    slope = slope + 0.1 / size**0.5 * jr.normal(emission_key, slope.shape, dtype)
    return StateSpaceModel(
        initial=Gaussian(jnp.zeros(size, dtype), jnp.eye(size, dtype=dtype)),  # stands in for the row
        transition=scale_output(transition, RESIDUAL_GAIN),
        process_noise=variance_network((size, *noise_hidden, size), activation, uncertain, key=noise_key),
        emission=Network.from_arrays([slope], [jnp.zeros(outputs, dtype)]),
        likelihood=likelihood,
        weights=weights,
        residual=True,
    )


def _emission(
    architecture: Architecture,
    axes: Float[Array, "y k"] | None,
    offset: Float[Array, " y"],
    controls: int,
    *,
    key: PRNGKeyArray,
) -> Network | None:
    """None for the identity; principal axes for a linear map; a random network with point weights otherwise."""
    x, outputs = architecture.latent_dim, offset.size
    if architecture.emission == "identity":
        return None
    if axes is None:
        sizes = (x + controls, *architecture.emission, outputs)
        network = Network.mlp(sizes, architecture.activation, uncertain=False, key=key)
        *inner, last = network.linears
        return network.with_linears([*inner, Linear(last.weight, last.bias + offset)])
    # States beyond the outputs are not observed at first, but their gradient must not be zero.
    unseen = UNSEEN_STATE_GAIN * jr.normal(key, (outputs, x - axes.shape[1]), axes.dtype)
    direct = jnp.zeros((outputs, controls), axes.dtype)
    return Network.from_arrays([jnp.concatenate([axes, unseen, direct], axis=1)], [offset])


def _principal_axes(y: Float[np.ndarray, "time y"], most: int) -> Float[np.ndarray, "y k"]:
    """The largest principal axes of standardised observations, at most so many, scaled by their standard deviations."""
    filled = np.nan_to_num(y.astype(float))
    values, vectors = np.linalg.eigh(filled.T @ filled / len(filled))
    return (vectors * np.sqrt(np.maximum(values, 0.0)))[:, ::-1][:, :most].astype(y.dtype)


# Networks


def transition_network(sizes: Sequence[int], activation: Any, uncertain: bool = True, *, key: PRNGKeyArray) -> Network:
    """A random network whose first-layer units bend where standardised inputs are, at points drawn from N(0, 1)."""
    network = Network.mlp(sizes, activation, uncertain=uncertain, key=key)
    if len(sizes) == 2:
        return network
    first, *rest = network.linears
    points = jr.normal(jr.fold_in(key, len(sizes)), first.weight.shape)
    bias = -(first.weight * points).sum(axis=1)
    return network.with_linears([Linear(first.weight, bias, first.weight_log_var, first.bias_log_var), *rest])


def variance_network(sizes: Sequence[int], activation: Any, uncertain: bool, *, key: PRNGKeyArray) -> Network:
    """A random network whose softplus starts close to the initial process variance."""
    network = Network.mlp(sizes, activation, uncertain=uncertain, key=key)
    *inner, last = network.linears
    level = float(np.log(np.expm1(INITIAL_PROCESS_VAR)))
    return network.with_linears([*inner, Linear(last.weight, last.bias + level, last.weight_log_var, last.bias_log_var)])


def scale_output(network: Network, factor: float) -> Network:
    """The network with the mean weights of its last layer multiplied by a factor."""
    *inner, last = network.linears
    scaled = Linear(factor * last.weight, factor * last.bias, last.weight_log_var, last.bias_log_var)
    return network.with_linears([*inner, scaled])


def scale_variances(network: Network, factor: float) -> Network:
    """The network with the variances of its weights multiplied by a factor."""

    def scaled(layer: Linear) -> Linear:
        if layer.weight_log_var is None or layer.bias_log_var is None:
            return layer
        parts = (np.asarray(part) for part in (layer.weight_log_var, layer.bias_log_var))
        return Linear(layer.weight, layer.bias, *(jnp.asarray(part + part.dtype.type(np.log(factor))) for part in parts))

    return network.with_linears([scaled(layer) for layer in network.linears])
