"""The `Method` plug: network + belief -> channel. Methods differ in accuracy and cost, never in what they return."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import compiled
from prodssm._validation import (
    as_array,
    require_covariance,
    require_finite,
    require_number,
    require_variances,
    values_of,
)
from prodssm.beliefs.channel import Channel, Link
from prodssm.beliefs.gaussian import Belief
from prodssm.beliefs.joint import JointGaussian
from prodssm.beliefs.linalg import symmetrise
from prodssm.networks.base import Function

Weights = Literal["local", "global", "point"]
WEIGHTS = ("local", "global", "point")
AUTO = "auto"


class Method(eqx.Module):
    """A way to find the affine Gaussian channel of a network around a belief; its fields are its parameters.

    A subclass is known by its class name in lower case wherever a method is asked for: `Moments` is "moments".

    Example:
        >>> type(find_method("moments")).__name__
        'Moments'
    """

    registry: ClassVar[dict[str, type["Method"]]] = {}
    forms_joint_cov: ClassVar[bool] = False  # whether the covariance of state and carried weights is written out
    carries_weights: ClassVar[bool] = True  # whether it has a rule for beliefs joint with global weights

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        Method.registry[cls.__name__.lower()] = cls

    @abstractmethod
    def channel(self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None) -> Channel:
        """The channel of a network around a belief.

        Args:
            network: The network. Its uncertain weights are local unless the belief carries them.
            belief: The belief about the input, joint with the weights if these are global.
            control: Known inputs of the network that follow the state.
        """

    def propagate(
        self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None, link: Link | None = None
    ) -> tuple[Channel, Belief]:
        """The channel, and the belief that it predicts.

        A method that knows the predicted moments already overrides this; they travel with the channel and never in it.

        Args:
            network: The network.
            belief: The belief about the input.
            control: Known inputs that follow the state.
            link: What `dt` times the network is added to, as in the residual form x + dt f(x); `None` for f(x).
        """
        found = self.channel(network, belief, control)
        found = found if link is None else found.beside(link)
        return found, belief.predict(found)

    def start(self, belief: Belief) -> Belief:
        """The initial belief in the form in which this method carries it through time; a mixture of one Gaussian, or itself."""
        return belief

    def storage(self, size: int, count: int) -> int:
        """How many numbers `count` beliefs about a state of this size, and one move, occupy; 0: no more than Gaussians do."""
        return 0

    def at(self, t: Array | int, salt: int) -> "Method":
        """The method at time step t; a random one overrides this to draw anew for each use."""
        return self

    def seeded(self, key: PRNGKeyArray) -> "Method":
        """The method with its randomness from this key; deterministic ones return themselves."""
        return self

    def takes(self, weights: str) -> bool:
        """Whether it has a rule for weights of this mode."""
        return weights != "global" or self.carries_weights

    @property
    def automatic(self) -> bool:
        """Whether it leaves something to `ProDSSM.fit`, until which it cannot be used."""
        return False

    @property
    def random(self) -> bool:
        """Whether the method draws random numbers."""
        return False


def find_method(method: "str | Method", *, automatic: bool = False) -> Method:
    """The method of this name with its default parameters, or the method itself.

    Args:
        method: A name or a method.
        automatic: Whether it may leave something to `ProDSSM.fit`.
    """
    if isinstance(method, Method):
        if method.automatic and not automatic:
            raise ValueError(f"{method} leaves a number to ProDSSM.fit; give it here, as in Moments(components=8)")
        return method
    if not isinstance(method, str):
        raise TypeError(f"method must be a name or a prodssm method such as prodssm.Moments(), got {type(method).__name__}")
    if method not in Method.registry:
        raise ValueError(f"method must be one of {', '.join(Method.registry)}; got {method!r}")
    return Method.registry[method]()


def channel(
    network: Function,
    belief: Belief,
    method: str | Method = "moments",
    weights: Weights = "local",
    *,
    control: Float[Array, " u"] | None = None,
    residual: bool = False,
    dt: float | Array = 1.0,
) -> Channel:
    """The affine Gaussian channel of a network around a belief.

    Args:
        network: The network.
        belief: The belief about its input; for global weights it may already be joint with the weights.
        method: A name ("moments", "linearised", "unscented", "cubature") or a `Method` such as `Unscented(alpha=1e-3)`.
        weights: "local": redrawn at every step. "global": drawn once, so that the channel has a weight slope.
            "point": fixed at their means.
        control: Known inputs of the network that follow the state.
        residual: Return the channel of `x + dt network(x)` instead.
        dt: Time step of the residual form.

    Returns:
        The channel: `Cov[f] = slope @ cov @ slope.T + noise` for local and point weights; `belief.predict(channel)` is the
        belief about the output.

    Example:
        >>> import prodssm as ps
        >>> net = ps.Network.from_arrays([[[2.0]]], [[1.0]])
        >>> c = ps.channel(net, ps.Gaussian([3.0], [[0.25]]))
        >>> c.mean.item(), c.slope.item()
        (7.0, 2.0)
    """
    if not isinstance(network, Function):
        raise TypeError(f"network must be a prodssm.Network, Known or Sum, got {type(network).__name__}")
    if not isinstance(belief, Belief):
        raise TypeError(f"belief must be a prodssm.Gaussian or JointGaussian, got {type(belief).__name__}")
    found = find_method(method)
    require_weight_mode(weights, found)
    control = None if control is None else as_array("control", control, ndim=1)
    dt = _time_step(dt, residual, belief.mean.dtype)
    _check(network, belief, control, weights, residual)
    answer = _channel(network, belief, control, dt, found, weights, residual)
    values = values_of(answer.mean), values_of(answer.noise)
    if not all(value is None or np.isfinite(value).all() for value in values):
        raise FloatingPointError(
            "the moments of this network's output overflow; standardise the data, use smaller weights or variances, or float64"
        )
    return answer


def require_weight_mode(weights: Any, method: Method | None = None) -> None:
    """Raise unless weights is "local", "global" or "point", and the method, if given, has a rule for it."""
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {weights!r}")
    if method is not None and not method.takes(weights):
        raise ValueError(
            f"{str(method).removesuffix('()')} has no rule for weights='global'; use method='moments', or weights='local'"
        )


def _time_step(dt: Any, residual: bool, dtype: Any) -> Array:
    require_number("dt", dt)
    if isinstance(dt, jax.core.Tracer) and dt.shape != ():
        raise ValueError(f"dt must be one number, got shape {dt.shape}")
    value = values_of(dt)
    if value is not None and value <= 0:
        raise ValueError(f"dt must be positive, got {dt}")
    if value is not None and value != 1 and not residual:
        raise ValueError(f"dt={dt} needs residual=True: only a residual transition scales with time")
    # An array, so that another time step does not trigger recompilation.
    return jnp.asarray(dt, dtype)


@compiled
def _channel(network, belief, control, dt, method, weights, residual) -> Channel:
    if weights == "point":
        network = network.at_mean()
    if weights == "global" and belief.weights is None:
        belief = JointGaussian.independent(belief, network.weights)
    found = method.channel(network, belief, control)
    if residual:
        found = found.residual(belief.mean, dt)
    return Channel(found.mean, found.slope, symmetrise(found.noise), found.weight_slope)


def _check(network: Function, belief: Belief, control: Array | None, weights: str, residual: bool) -> None:
    given = 0 if control is None else control.size
    if belief.mean.size + given != network.in_size:
        parts = f"{belief.mean.size} from belief and {given} from control"
        raise ValueError(f"network takes {network.in_size} inputs, got {parts}")
    if residual and network.out_size != belief.mean.size:
        raise ValueError(f"residual needs as many outputs as states, got {network.out_size} for {belief.mean.size}")
    require_finite("belief.mean", belief.mean)
    require_covariance("belief.cov", belief.cov)
    if control is not None:
        require_finite("control", control)
    if isinstance(belief, JointGaussian):
        if weights != "global":
            raise ValueError(f"a belief joint with the weights needs weights='global', got {weights!r}")
        if belief.weights.shapes != network.shapes:
            raise ValueError(f"belief.weights must have layer shapes {network.shapes}, got {belief.weights.shapes}")
        require_finite("belief.cross", belief.cross)
        require_finite("belief.weights.mean", belief.weights.mean)
        require_variances("belief.weights.var", belief.weights.var)
    for l, layer in enumerate(network.linears):
        for name in ("weight", "bias"):
            require_finite(f"network.linears[{l}].{name}", getattr(layer, name))
            log_var = getattr(layer, f"{name}_log_var")
            values = None if log_var is None else values_of(log_var)
            if values is not None and not (values < np.log(np.finfo(values.dtype).max)).all():
                raise ValueError(f"{name}_log_var of network.linears[{l}] must be the logarithm of a finite variance")
