"""The state-space model: initial belief, transition network with process noise, emission, likelihood."""

import math
import os
from dataclasses import fields
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import (
    as_array,
    require_covariance,
    require_finite,
    require_integer,
    require_shape,
)
from prodssm.beliefs.channel import Channel, Link
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.joint import JointGaussian
from prodssm.beliefs.linalg import cholesky
from prodssm.beliefs.weights.base import WeightBelief
from prodssm.beliefs.weights.dense import DenseWeights
from prodssm.beliefs.weights.low_rank import LowRankWeights
from prodssm.methods.base import Method, require_weight_mode
from prodssm.methods.moments import Moments
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.parts import checked_functions, checked_likelihood, log_variances, require_variance_network
from prodssm.networks.activations import mean_softplus
from prodssm.networks.base import Function
from prodssm.networks.network import Network

VARIANCE_FLOOR = 1e-6  # of a variance network's output
TABLE_BYTES = 64  # of a time step: mean, standard deviation and interval of an output, as numbers and in a table
LARGEST_DENSE = 400  # weights with a dense covariance unless a rank is asked for
DEFAULT_RANK = 64  # of the low-rank part beyond that, see benchmarks/global.py


class StateSpaceModel(eqx.Module):
    r"""$x_{t+1} \sim N(f(x_t, u_t, w), l)$ and $y_t \sim p(y \mid g(x_t, u_t))$, from a belief about the first observed state.

    Args:
        initial: Belief about the state at the first observation.
        transition: The function f of (state, control): a `Network`; a known one, f(x, u), or `Known` if it has parameters to
            learn; or their `Sum`. In residual form it is a rate of change.
        emission: The function g likewise, with point weights, or None for the identity. With inputs for the control behind
            those for the state, the control acts on the observation at once (direct feedthrough); a plain function of (x, u)
            has these if it cannot do with u = None.
        process_noise: Variances l, or a network of (state, control) whose softplus is the variance.
        measurement_noise: Variances r of a Gaussian likelihood; shorthand for `likelihood=GaussianLikelihood(r)`.
        likelihood: The distribution of y given g(x).
        weights: "local" (redrawn at every step), "global" (drawn once) or "point" (means only), for f.
        residual: Whether the transition is x + dt f, with process noise dt l.
        linear: The matrix, (x, state and control), of a linear part that is added to f; it has point weights.
        rank: With global weights, the rank of the downdate that a filter keeps of their covariance; at least the number of
            weights: a dense covariance. None: dense up to 400 weights, 64 beyond.
        controls: Number of controls, if the transition is a plain function of (x, u).

    Example:
        >>> ssm = StateSpaceModel(initial=belief, transition=net, process_noise=[0.1], measurement_noise=[0.1])
        >>> ssm.x_size, ssm.y_size, ssm.u_size
        (1, 1, 0)
    """

    initial_mean: Float[Array, " x"]
    initial_chol: Float[Array, "x x"]
    transition: Function
    linear: Float[Array, "x i"] | None
    emission: Function | None
    log_process_noise: Float[Array, " x"] | None
    process_network: Network | None
    likelihood: Likelihood
    weights: str = eqx.field(static=True)
    residual: bool = eqx.field(static=True)
    rank: int | None = eqx.field(static=True)

    def __init__(
        self,
        *,
        initial: Gaussian,
        transition: Any,
        emission: Any = None,
        process_noise: Any,
        measurement_noise: Any = None,
        likelihood: Likelihood | None = None,
        weights: str = "local",
        residual: bool = False,
        linear: Any = None,
        rank: int | None = None,
        controls: int = 0,
    ):
        """Check that the parts fit, and store what is learned without bounds."""
        if not isinstance(initial, Gaussian):
            raise TypeError(f"initial must be a Gaussian, got {type(initial).__name__}")
        require_weight_mode(weights)
        require_finite("initial.mean", initial.mean)
        require_covariance("initial.cov", initial.cov)
        x = initial.mean.size
        transition, emission, y = checked_functions(transition, emission, x, controls)
        if weights == "global" and not transition.shapes:
            raise ValueError("weights='global' needs a transition with a network, which has weights; got a known function")
        self.linear = None if linear is None else as_array("linear", linear, ndim=2)
        if self.linear is not None:
            require_shape("linear", self.linear, (x, transition.in_size))
            require_finite("linear", self.linear)
        self.initial_mean, self.initial_chol = initial.mean, cholesky(initial.cov)
        self.transition, self.emission = transition, emission
        self.process_network, self.log_process_noise = None, None
        if isinstance(process_noise, Network):
            require_variance_network(process_noise, transition)
            self.process_network = process_noise
        else:
            self.log_process_noise = log_variances("process_noise", process_noise, x)
        self.likelihood = checked_likelihood(measurement_noise, likelihood, y)
        self.weights, self.residual = weights, bool(residual)
        if rank is not None:
            require_integer("rank", rank, least=1)
        self.rank = rank

    @property
    def initial(self) -> Gaussian:
        """Belief about the state at the first observation."""
        return Gaussian(self.initial_mean, self.initial_chol @ self.initial_chol.T)

    @property
    def dtype(self) -> Any:
        """The precision in which the model computes."""
        return self.initial_mean.dtype

    @property
    def x_size(self) -> int:
        """Number of states."""
        return self.initial_mean.size

    @property
    def y_size(self) -> int:
        """Number of outputs."""
        return self.x_size if self.emission is None else self.emission.out_size

    @property
    def u_size(self) -> int:
        """Number of control inputs."""
        return self.transition.in_size - self.x_size

    @property
    def feedthrough(self) -> bool:
        """Whether the control acts on the observation at once."""
        return self.emission is not None and self.emission.in_size > self.x_size

    def with_weight_mode(self, weights: str) -> "StateSpaceModel":
        """The same model with local, global or point weights."""
        require_weight_mode(weights)
        if weights == self.weights:
            return self
        same = object.__new__(StateSpaceModel)
        for part in fields(self):
            object.__setattr__(same, part.name, weights if part.name == "weights" else getattr(self, part.name))
        return same

    # Beliefs

    def initial_belief(self) -> Belief:
        """The belief before the first observation, joint with the weights if these are global."""
        if self.weights != "global":
            return self.initial
        return JointGaussian.independent(self.initial, self._carried_weights())

    def _carried_weights(self) -> WeightBelief:
        """The prior belief about global weights in a form whose shape no observation changes."""
        prior = self.transition.weights
        if self.downdate_rank is None:
            return DenseWeights(prior.mean, covariance=prior.cov(), shapes=prior.shapes)
        return LowRankWeights.bounded(prior, self.downdate_rank, room=self.factor_width - self.downdate_rank)

    @property
    def weight_count(self) -> int:
        """Number of weights and biases of the transition."""
        return sum(rows * columns for rows, columns in self.transition.shapes)

    @property
    def downdate_rank(self) -> int | None:
        """Rank that is kept of what observations take from the covariance of global weights; None if that is dense."""
        if self.rank is None:
            return None if self.weight_count <= LARGEST_DENSE else DEFAULT_RANK
        return None if self.rank >= self.weight_count else int(self.rank)

    @property
    def factor_width(self) -> int:
        """Columns of the covariance's factor: the rank and room between two compressions, or as many as weights if dense."""
        rank = self.downdate_rank
        return self.weight_count if rank is None else rank + max(4 * min(self.x_size, self.y_size), rank // 2)

    # One step of the recursion

    def move(
        self, method: Method, belief: Belief, control: Float[Array, " u"] | None, dt: Array | float = 1.0
    ) -> tuple[Channel, Belief]:
        """The transition channel, process noise included, and the belief that it predicts."""
        network = self.transition.at_mean() if self.weights == "point" else self.transition
        dt = jnp.asarray(dt, self.dtype)
        found, predicted = method.propagate(network, belief, control, self.link(belief.mean, control, dt))
        noise = self.process_variances(belief.state, control)
        noise = dt * noise if self.residual else noise
        return found.plus(noise), predicted.plus(noise)

    def link(self, mean: Float[Array, " x"], control: Float[Array, " u"] | None, dt: Array) -> Link | None:
        """What the transition adds to the network at a state of this mean: x + dt (A x + B u) with a linear part [A, B]."""
        if self.linear is None:
            return Link.residual(mean, dt) if self.residual else None
        at, slope = self.linear_part(mean, control), self.linear[:, : self.x_size]
        if not self.residual:
            return Link(at, slope, jnp.ones((), self.dtype))
        return Link(mean + dt * at, jnp.eye(mean.size, dtype=mean.dtype) + dt * slope, dt)

    def linear_part(self, x: Float[Array, " x"], control: Float[Array, " u"] | None) -> Float[Array, " x"]:
        """A x + B u; zero without a linear part."""
        if self.linear is None:
            return jnp.zeros_like(x)
        return self.linear @ (x if control is None else jnp.concatenate([x, control]))

    def emission_at(self, control: Float[Array, " u"] | None) -> Function | None:
        """The emission as a function of the state."""
        return self.emission if self.emission is None or not self.feedthrough else self.emission.given(control)

    def emit(self, method: Method, state: Gaussian, control: Float[Array, " u"] | None = None) -> tuple[Channel, Gaussian]:
        """The emission channel from the state to g(x, u), without measurement noise, and the belief about g(x, u)."""
        emission = self.emission_at(control)
        if emission is None:
            return Channel.of_affine(state.mean, jnp.eye(state.mean.size, dtype=state.mean.dtype)), state
        if emission.affine:
            # Every method is exact for an affine map, but not every one would know that its noise is zero.
            linear = emission.linears[0]
            found = Channel.of_affine(linear(state.mean), linear.weight)
            return found, state.predict(found)
        found, predicted = method.propagate(emission.at_mean(), state)
        return found, predicted.state

    def output(self, x: Float[Array, " x"], control: Float[Array, " u"] | None = None) -> Float[Array, " y"]:
        """g(x, u) at one state."""
        emission = self.emission_at(control)
        return x if emission is None else emission(x)

    def process_variances(self, state: Gaussian, control: Float[Array, " u"] | None) -> Float[Array, " x"]:
        """Expected variances of the process noise under a belief about the state (law of total covariance)."""
        if self.log_process_noise is not None:
            return jnp.exp(self.log_process_noise)
        assert self.process_network is not None
        _, found = Moments(order=1).propagate(self.process_network, state, control)
        return VARIANCE_FLOOR + mean_softplus(found.mean, jnp.diag(found.cov))

    def sample_process_variances(self, inputs: Float[Array, " i"], *, key: PRNGKeyArray) -> Float[Array, " x"]:
        """Variances of the process noise at one state and control, with the weights of their network drawn."""
        if self.log_process_noise is not None:
            return jnp.exp(self.log_process_noise)
        assert self.process_network is not None
        return VARIANCE_FLOOR + jax.nn.softplus(self.process_network.sample_output(inputs, key=key))


def require_memory(model: StateSpaceModel, count: int, method: Method) -> None:
    """Raise if `count` beliefs, joint with global weights or of components, which a gradient keeps, exceed memory."""
    require_room(method, model.x_size, count, model.dtype.itemsize)
    if model.weights != "global":
        return
    weights, dense = model.weight_count, model.downdate_rank is None
    joint = weights if method.forms_joint_cov or dense else 0
    needed = weights * (count * model.factor_width + joint) * model.dtype.itemsize
    there = _memory()
    if needed > there:
        raise ValueError(
            f"weights='global' would keep {count} covariances of {weights} weights, {needed / 1e9:.3g} GB; this machine has "
            f"{there / 1e9:.3g} GB; use a smaller network, fewer or shorter series or windows, or weights='local'"
        )


def require_room(method: Method, size: int, count: int = 1, itemsize: int = 4) -> None:
    """Raise if the components of `count` beliefs and of one move exceed memory.

    Args:
        method: In whose form the beliefs are.
        size: Number of states.
        count: Number of beliefs that are kept.
        itemsize: Bytes of a number.
    """
    needed, there = method.storage(size, count) * itemsize, _memory()
    if needed > there:
        raise ValueError(
            f"components must fit in memory: {method} needs about {needed / 1e9:.3g} GB for {count} time steps of {size} "
            f"state(s), and this machine has {there / 1e9:.3g} GB; use fewer components or splits"
        )


def require_steps(model: StateSpaceModel, steps: Any, copies: int = 1) -> None:
    """Raise unless `steps` is a number of time steps ahead whose forecasts, as arrays and as a table, fit in memory.

    Args:
        model: The model.
        steps: Number of time steps.
        copies: Number of series, or of series and models.
    """
    require_integer("steps", steps, least=1)
    x, y = model.x_size, model.y_size
    beliefs = 2 * (x + x**2 + y + y**2) * model.dtype.itemsize  # padded, and cut to size
    needed, there = int(steps) * copies * (beliefs + TABLE_BYTES * (1 + y)), _memory()
    if needed > there:
        raise ValueError(
            f"steps must fit in memory: {steps} steps need about {needed / 1e9:.3g} GB, and this machine has "
            f"{there / 1e9:.3g} GB; ask for fewer"
        )


def _memory() -> float:
    """The memory of this machine in bytes; infinite where it is not known."""
    if not hasattr(os, "sysconf"):
        return math.inf
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
