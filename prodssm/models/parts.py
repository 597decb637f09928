"""Checks of the parts of a state-space model, and what is made of them."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from prodssm._validation import as_array, require_variances
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.likelihoods.gaussian import GaussianLikelihood
from prodssm.networks.base import Function
from prodssm.networks.known import as_known
from prodssm.networks.network import Network


def checked_functions(transition: Any, emission: Any, x: int, controls: int) -> tuple[Function, Function | None, int]:
    """Transition and emission that fit a state of this size, with functions of the user as `Known`; the number of outputs."""
    transition = _as_function("transition", transition, x, controls)
    if transition.out_size != x or transition.in_size < x:
        raise ValueError(
            f"transition must map at least {x} inputs (state and control) to {x} outputs, "
            f"got {transition.in_size} to {transition.out_size}"
        )
    if emission is None:
        return transition, None, x
    emission = _as_function("emission", emission, x, transition.in_size - x)
    if emission.in_size not in (x, transition.in_size):
        controls = transition.in_size - x
        others = f", or these and the {controls} controls" if controls else ""
        raise ValueError(f"emission must take the {x} states{others}, got a network of {emission.in_size} inputs")
    return transition, emission, emission.out_size


def _as_function(name: str, given: Any, x: int, controls: int) -> Function:
    if isinstance(given, Function):
        return given
    if not callable(given):
        kinds = "a Network, Known, Sum or a function of (x, u)" + (", or None" if name == "emission" else "")
        raise TypeError(f"{name} must be {kinds}, got {type(given).__name__}")
    if name == "emission" and controls:
        try:  # without a control the emission has no direct feedthrough
            return as_known(name, given, x, 0)
        except (TypeError, ValueError):
            pass
    return as_known(name, given, x, controls)


def require_variance_network(network: Network, transition: Function) -> None:
    """Raise unless a network for the process noise has the transition's inputs and outputs."""
    if (network.in_size, network.out_size) != (transition.in_size, transition.out_size):
        raise ValueError(
            f"process_noise must be a network of {transition.in_size} inputs and {transition.out_size} outputs, "
            f"got {network.in_size} and {network.out_size}"
        )


def checked_likelihood(measurement_noise: Any, likelihood: Any, size: int) -> Likelihood:
    """The likelihood of so many outputs, or a Gaussian one with these variances."""
    if (measurement_noise is None) == (likelihood is None):
        raise ValueError("give either measurement_noise or likelihood")
    if likelihood is None:
        values = as_array("measurement_noise", measurement_noise, ndim=1)
        require_variances("measurement_noise", values)
        likelihood = GaussianLikelihood(values, floor=0.0, learned=True)
    if not isinstance(likelihood, Likelihood):
        raise TypeError(
            f"likelihood must be a prodssm likelihood such as GaussianLikelihood(r), got {type(likelihood).__name__}"
        )
    if likelihood.size not in (None, size):
        name = "measurement_noise" if measurement_noise is not None else "likelihood"
        raise ValueError(f"{name} must be for {size} outputs, got {likelihood.size}")
    return likelihood


def log_variances(name: str, values: Any, size: int) -> Array:
    """Logarithms of variances; minus infinity of zero."""
    values = as_array(name, values, ndim=1)
    if values.shape != (size,):
        raise ValueError(f"{name} must have {size} variances, got shape {values.shape}")
    require_variances(name, values)
    return jnp.where(values > 0, jnp.log(jnp.where(values > 0, values, 1.0)), -jnp.inf)
