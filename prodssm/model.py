"""The state-space model: an initial belief, a transition network with process noise, an emission with measurement noise."""

from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.activations import mean_softplus
from prodssm.checks import as_array, require_covariance, require_finite, require_integer, require_variances
from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.linalg import cholesky
from prodssm.methods import METHODS, WEIGHTS
from prodssm.methods.moments import moments
from prodssm.network import Network
from prodssm.weights import DenseWeights, LowRankWeights, WeightBelief

VARIANCE_FLOOR = 1e-6  # of a variance network's output
LARGEST_DENSE = 400  # weights whose covariance is written out unless a rank is asked for
DEFAULT_RANK = 64  # of what is remembered about more weights than that, see benchmarks/global.py


class StateSpaceModel(eqx.Module):
    r"""$x_{t+1} \sim N(f(x_t, u_t, w), l)$ and $y_t \sim N(g(x_t), r)$, from an initial belief about the first observed state.

    Args:
        initial: Belief about the state at the first observation.
        transition: The network f of (state, control).
        emission: The network g, or None for the identity.
        process_noise: Variances l, or a network of (state, control) whose softplus is the variance.
        measurement_noise: Variances r.
        weights: "local" (redrawn at every step), "global" (drawn once) or "point" (means only), for f.
        residual: Whether the transition is x + dt f, with process noise dt l.
        rank: How many directions of what was learned about weights that are drawn once are remembered for good. As many as
            weights or more: all of them, as a dense covariance. None: dense up to 400 weights, 64 directions beyond.
    """

    initial_mean: Float[Array, " x"]
    initial_root: Float[Array, "x x"]
    transition: Network
    emission: Network | None
    log_process_noise: Float[Array, " x"] | None
    process_network: Network | None
    log_measurement_noise: Float[Array, " y"]
    weights: str = eqx.field(static=True)
    residual: bool = eqx.field(static=True)
    measurement_floor: float = eqx.field(static=True)
    rank: int | None = eqx.field(static=True)

    def __init__(
        self,
        *,
        initial: Gaussian,
        transition: Network,
        emission: Network | None = None,
        process_noise: Any,
        measurement_noise: Any,
        weights: str = "local",
        residual: bool = False,
        measurement_floor: float = 0.0,
        rank: int | None = None,
    ):
        """Check that the parts fit, and store what can be learned without bounds."""
        if not isinstance(initial, Gaussian):
            raise TypeError(f"initial must be a Gaussian, got {type(initial).__name__}")
        if not isinstance(transition, Network):
            raise TypeError(f"transition must be a Network, got {type(transition).__name__}")
        if emission is not None and not isinstance(emission, Network):
            raise TypeError(f"emission must be a Network or None, got {type(emission).__name__}")
        if weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {weights!r}")
        require_finite("initial.mean", initial.mean)
        require_covariance("initial.cov", initial.cov)
        x = initial.mean.size
        if transition.out_size != x or transition.in_size < x:
            raise ValueError(
                f"transition must map at least {x} inputs (state and control) to {x} outputs, "
                f"got {transition.in_size} to {transition.out_size}"
            )
        if emission is not None and emission.in_size != x:
            raise ValueError(f"emission must take the {x} states, got a network of {emission.in_size} inputs")
        self.initial_mean, self.initial_root = initial.mean, cholesky(initial.cov)
        self.transition, self.emission = transition, emission
        if isinstance(process_noise, Network):
            if (process_noise.in_size, process_noise.out_size) != (transition.in_size, x):
                raise ValueError(
                    f"process_noise must be a network of {transition.in_size} inputs and {x} outputs, "
                    f"got {process_noise.in_size} and {process_noise.out_size}"
                )
            self.process_network, self.log_process_noise = process_noise, None
        else:
            self.process_network, self.log_process_noise = None, _log_variances("process_noise", process_noise, x)
        y = x if emission is None else emission.out_size
        self.log_measurement_noise = _log_variances("measurement_noise", measurement_noise, y)
        self.weights, self.residual, self.measurement_floor = weights, bool(residual), float(measurement_floor)
        if rank is not None:
            require_integer("rank", rank, least=1)
        self.rank = rank

    @property
    def initial(self) -> Gaussian:
        """Belief about the state at the first observation."""
        return Gaussian(self.initial_mean, self.initial_root @ self.initial_root.T)

    @property
    def x_size(self) -> int:
        """Number of states."""
        return self.initial_mean.size

    @property
    def y_size(self) -> int:
        """Number of observed channels."""
        return self.log_measurement_noise.size

    @property
    def u_size(self) -> int:
        """Number of control inputs."""
        return self.transition.in_size - self.x_size

    @property
    def measurement_noise(self) -> Float[Array, " y"]:
        """Variances of the measurement noise."""
        return self.measurement_floor + jnp.exp(self.log_measurement_noise)

    def with_kind(self, weights: str) -> "StateSpaceModel":
        """The same model with weights of another kind."""
        if weights not in WEIGHTS:
            raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {weights!r}")
        if weights == self.weights:
            return self
        same = object.__new__(StateSpaceModel)
        for part in fields(self):
            object.__setattr__(same, part.name, weights if part.name == "weights" else getattr(self, part.name))
        return same

    def start(self) -> Gaussian | JointGaussian:
        """The belief before the first observation, joint with the weights if these are drawn once."""
        if self.weights != "global":
            return self.initial
        return JointGaussian.independent(self.initial, self._carried())

    def _carried(self) -> WeightBelief:
        """The belief about the weights in a form that keeps its shape whatever is learned."""
        prior = self.transition.weights
        if self.directions is None:
            return DenseWeights(prior.mean, covariance=prior.cov(), shapes=prior.shapes)
        assert self.width is not None
        return LowRankWeights.bounded(prior, self.directions, room=self.width - self.directions)

    @property
    def directions(self) -> int | None:
        """How many directions of what was learned about carried weights are remembered; None for a dense covariance."""
        weights = sum(rows * columns for rows, columns in self.transition.shapes)
        if self.rank is None:
            return None if weights <= LARGEST_DENSE else DEFAULT_RANK
        return None if self.rank >= weights else int(self.rank)

    @property
    def width(self) -> int | None:
        """Columns of the factor that remembers these directions, with room for some observations between two compressions."""
        if self.directions is None:
            return None
        return self.directions + max(4 * min(self.x_size, self.y_size), self.directions // 2)

    def process_variances(self, state: Gaussian, control: Float[Array, " u"] | None) -> Float[Array, " x"]:
        """Expected variances of the process noise under a belief about the state (law of total covariance)."""
        if self.log_process_noise is not None:
            return jnp.exp(self.log_process_noise)
        assert self.process_network is not None
        c = moments(self.process_network, state, control, order=1)
        assert c.cov is not None
        return VARIANCE_FLOOR + mean_softplus(c.mean, jnp.diag(c.cov))

    def sample_process_variances(self, inputs: Float[Array, " i"], *, key: PRNGKeyArray) -> Float[Array, " x"]:
        """Variances of the process noise at one state and control, with the weights of their network drawn."""
        if self.log_process_noise is not None:
            return jnp.exp(self.log_process_noise)
        assert self.process_network is not None
        return VARIANCE_FLOOR + jax.nn.softplus(self.process_network.sample_output(inputs, key=key))

    def transition_channel(
        self,
        belief: Gaussian | JointGaussian,
        control: Float[Array, " u"] | None,
        dt: Float[Array, ""] | float = 1.0,
        *,
        method: str = "moments",
        **options: Any,
    ) -> Channel:
        """What one step does to a belief, process noise included."""
        network = self.transition.at_mean() if self.weights == "point" else self.transition
        found = METHODS[method](network, belief, control, **options)
        noise = self.process_variances(belief.state, control)
        if self.residual:
            return found.residual(belief.mean, dt).plus(dt * noise)
        return found.plus(noise)

    def emission_channel(self, state: Gaussian, *, method: str = "moments", **options: Any) -> Channel:
        """What an observation shows of a state, measurement noise included."""
        if self.emission is None:
            n = state.mean.size
            found = Channel(state.mean, jnp.eye(n, dtype=state.mean.dtype), jnp.zeros_like(state.cov), state.cov)
        else:
            found = METHODS[method](self.emission.at_mean(), state, **options)
        return found.plus(self.measurement_noise)


def _log_variances(name: str, values: Any, size: int) -> Array:
    values = as_array(name, values, ndim=1)
    if values.shape != (size,):
        raise ValueError(f"{name} must have {size} variances, got shape {values.shape}")
    require_variances(name, values)
    return jnp.where(values > 0, jnp.log(jnp.where(values > 0, values, 1.0)), -jnp.inf)
