"""Ways to find the channel of a network around a belief. They differ in accuracy and cost, never in what they return."""

from collections.abc import Callable
from typing import Any, Literal

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.checks import as_array, require_covariance, require_finite, require_number, require_variances, values_of
from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.linalg import symmetrise
from prodssm.methods.linearised import linearised
from prodssm.methods.moments import moments
from prodssm.methods.sampled import sampled
from prodssm.methods.unscented import unscented
from prodssm.network import Network

Method = Literal["moments", "linearised", "unscented", "sampled"]
Weights = Literal["local", "global", "point"]

METHODS: dict[str, Callable[..., Channel]] = {
    "moments": moments,
    "linearised": linearised,
    "unscented": unscented,
    "sampled": sampled,
}
WEIGHTS = ("local", "global", "point")


def channel(
    network: Network,
    belief: Gaussian | JointGaussian,
    method: Method = "moments",
    weights: Weights = "local",
    *,
    control: Float[Array, " u"] | None = None,
    residual: bool = False,
    dt: float | Array = 1.0,
    **options: Any,
) -> Channel:
    """What a network does to a belief, as an affine Gaussian channel.

    Args:
        network: The network.
        belief: What is believed about its input; for global weights it may already be joint with the weights.
        method: "moments" (closed form), "linearised" (EKF), "unscented" (UKF) or "sampled" (Monte Carlo).
        weights: "local": redrawn at every step. "global": drawn once, so that the channel has a slope in them too.
            "point": the mean weights, whatever their variances.
        control: Known inputs of the network that follow the state.
        residual: The channel of `x + dt network(x)` instead.
        dt: Time step of the residual form.
        **options: For the method: `order`; `alpha`, `beta`, `kappa`; `key`, `samples`, `draw`.

    Returns:
        The channel. Its `mean` and `cov` are the moments of the output, `slope` and `noise` say how it moves with the input;
        for global weights `weight_slope` says how it moves with them.

    Example:
        >>> net = Network.from_arrays([[[2.0]]], [[1.0]])
        >>> c = channel(net, Gaussian([3.0], [[0.25]]))
        >>> c.mean.item(), c.cov.item()
        (7.0, 1.0)
    """
    if not isinstance(network, Network):
        raise TypeError(f"network must be a prodssm.Network, got {type(network).__name__}")
    if not isinstance(belief, Gaussian | JointGaussian):
        raise TypeError(f"belief must be a prodssm.Gaussian or JointGaussian, got {type(belief).__name__}")
    if method not in METHODS:
        raise ValueError(f"method must be one of {', '.join(METHODS)}; got {method!r}")
    if weights not in WEIGHTS:
        raise ValueError(f"weights must be one of {', '.join(WEIGHTS)}; got {weights!r}")
    control = None if control is None else as_array("control", control, ndim=1)
    dt = _time_step(dt, residual, belief.mean.dtype)
    # NumPy's and JAX's scalars are numbers like any other; what is compiled must know them.
    options = {name: value.item() if _is_scalar(value) else value for name, value in options.items()}
    _check(network, belief, control, weights, residual)
    found = _channel(network, belief, control, dt, method, weights, residual, options)
    values = values_of(found.mean), values_of(found.noise)
    if not all(value is None or np.isfinite(value).all() for value in values):
        raise FloatingPointError(
            "the moments of this network's output do not fit the floating point type; "
            "standardise the data, use smaller weights or variances, or use float64"
        )
    return found


def _time_step(dt: Any, residual: bool, dtype: Any) -> Array:
    require_number("dt", dt)
    if isinstance(dt, jax.core.Tracer) and dt.shape != ():
        raise ValueError(f"dt must be one number, got shape {dt.shape}")
    value = values_of(dt)
    if value is not None and value <= 0:
        raise ValueError(f"dt must be positive, got {dt}")
    if value is not None and value != 1 and not residual:
        raise ValueError(f"dt={dt} needs residual=True: only a residual transition scales with time")
    # An array, so that another time step does not compile anew.
    return jnp.asarray(dt, dtype)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, np.generic) or (
        isinstance(value, jax.Array)
        and not isinstance(value, jax.core.Tracer)
        and value.shape == ()
        and not jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    )


@eqx.filter_jit
def _channel(network, belief, control, dt, method, weights, residual, options) -> Channel:
    if weights == "point":
        network = network.at_mean()
    if weights == "global" and isinstance(belief, Gaussian):
        belief = JointGaussian.independent(belief, network.weights)
    found = METHODS[method](network, belief, control, **options)
    if residual:
        found = found.residual(belief.mean, dt)
    cov = symmetrise(belief.advance(found).cov)
    return Channel(found.mean, found.slope, symmetrise(found.noise), cov, found.weight_slope)


def _check(network: Network, belief: Gaussian | JointGaussian, control: Array | None, weights: str, residual: bool) -> None:
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
