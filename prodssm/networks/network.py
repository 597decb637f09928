"""Feed-forward networks: layers in order, the function at mean weights, weight samples, and the flat view of all weights."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import as_array, require_finite, require_number, require_shape, require_variances
from prodssm.beliefs.weights.base import Shapes, WeightBelief, layer_slice
from prodssm.beliefs.weights.diagonal import DiagonalWeights
from prodssm.networks.activations import Activation, find_activation
from prodssm.networks.base import Function
from prodssm.networks.layers import Linear

INITIAL_LOG_VAR = -6.0


class Network(Function):
    """A feed-forward network with point or Gaussian weights.

    Attributes:
        layers: `Linear` and `Activation` in the order in which they act.

    Example:
        >>> net = Network.from_arrays(weights=[[[2.0]]], biases=[[1.0]], activation="relu")
        >>> net(jnp.array([3.0])).item()
        7.0
    """

    layers: tuple[Linear | Activation, ...]

    @classmethod
    def mlp(
        cls,
        sizes: Sequence[int],
        activation: str | Activation | Callable[[Array], Array] = "relu",
        uncertain: bool = True,
        *,
        key: PRNGKeyArray,
        log_var: float = INITIAL_LOG_VAR,
    ) -> "Network":
        """A network of these layer sizes with random means (He initialisation of the weights, uniform biases).

        Args:
            sizes: Inputs, hidden units..., outputs; at least two numbers.
            activation: A name (see `prodssm.activations.ACTIVATIONS`), an `Activation`, or any elementwise function.
            uncertain: Whether weights and biases have a variance.
            key: Randomness for the means.
            log_var: Initial log variance of every weight and bias.

        Returns:
            The network.
        """
        sizes = tuple(sizes)
        if len(sizes) < 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in sizes):
            raise ValueError(f"sizes must be at least two positive integers (inputs, hidden..., outputs), got {sizes}")
        require_number("log_var", log_var)
        weights, biases = [], []
        for fan_in, fan_out, layer_key in zip(sizes[:-1], sizes[1:], jr.split(key, len(sizes) - 1), strict=True):
            weight_key, bias_key = jr.split(layer_key)
            last = len(weights) == len(sizes) - 2
            weights.append(jr.normal(weight_key, (fan_out, fan_in)) * ((1.0 if last else 2.0) / fan_in) ** 0.5)
            biases.append(jr.uniform(bias_key, (fan_out,), minval=-1.0, maxval=1.0) / fan_in**0.5)
        if not uncertain:
            return cls.from_arrays(weights, biases, activation)
        constant = float(np.exp(log_var))
        weight_vars = [jnp.full_like(w, constant) for w in weights]
        return cls.from_arrays(weights, biases, activation, weight_vars, [jnp.full_like(b, constant) for b in biases])

    @classmethod
    def from_arrays(
        cls,
        weights: Sequence[Any],
        biases: Sequence[Any],
        activation: str | Activation | Callable[[Array], Array] = "relu",
        weight_vars: Sequence[Any] | None = None,
        bias_vars: Sequence[Any] | None = None,
    ) -> "Network":
        """A network from given arrays: weights are (out, in); without variances they are point weights."""
        act = find_activation(activation)
        weights = _arrays("weights", weights, 2)
        biases = _arrays("biases", biases, 1)
        if not weights or len(weights) != len(biases):
            raise ValueError(f"biases must have one array per weight matrix: {len(weights)} weights, {len(biases)} biases")
        for l, (w, b) in enumerate(zip(weights, biases, strict=True)):
            if b.shape != w.shape[:1]:
                raise ValueError(f"biases[{l}] must have shape {w.shape[:1]} to match weights[{l}], got {b.shape}")
            if l and w.shape[1] != weights[l - 1].shape[0]:
                wanted = (w.shape[0], weights[l - 1].shape[0])
                raise ValueError(f"weights[{l}] must have shape {wanted} to follow weights[{l - 1}], got {w.shape}")
        absent: list[Array | None] = [None] * len(weights)
        certain = weight_vars is None and bias_vars is None
        weight_logs = absent if certain else _log_variances("weight_vars", weight_vars, weights)
        bias_logs = absent if certain else _log_variances("bias_vars", bias_vars, biases)
        layers: list[Linear | Activation] = []
        for parts in zip(weights, biases, weight_logs, bias_logs, strict=True):
            layers += [Linear(*parts), act]
        return cls(tuple(layers[:-1]))

    @property
    def linears(self) -> tuple[Linear, ...]:
        """The linear layers alone."""
        return tuple(layer for layer in self.layers if isinstance(layer, Linear))

    @property
    def words(self) -> tuple[str, ...]:
        """The names of its activations."""
        return tuple(layer.name for layer in self.layers if isinstance(layer, Activation))

    @property
    def affine(self) -> bool:
        """Whether it has no hidden layer."""
        return len(self.layers) == 1

    @property
    def in_size(self) -> int:
        """Number of inputs, controls included."""
        return self.linears[0].weight.shape[1]

    @property
    def out_size(self) -> int:
        """Number of outputs."""
        return self.linears[-1].weight.shape[0]

    @property
    def uncertain(self) -> bool:
        """Whether any weight has a variance."""
        return any(layer.uncertain for layer in self.linears)

    @property
    def shapes(self) -> Shapes:
        """Shape of the matrix [W, b] of each linear layer, in the order of the flat view."""
        return tuple((w.shape[0], w.shape[1] + 1) for w in (layer.weight for layer in self.linears))

    @property
    def weights(self) -> DiagonalWeights:
        """The flat view: the prior belief about all weights and biases."""
        mean = jnp.concatenate([layer.mean_matrix.ravel() for layer in self.linears])
        var = jnp.concatenate([layer.var_matrix.ravel() for layer in self.linears])
        return DiagonalWeights(mean, var=var, shapes=self.shapes)

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The output for one input vector at the mean weights; `jax.vmap` it for many."""
        x = as_array("x", x, ndim=1)
        if x.shape != (self.in_size,):
            raise ValueError(f"x must be one vector of shape {(self.in_size,)}, got {x.shape}; use jax.vmap for a batch")
        for layer in self.layers:
            x = layer(x)
        return x

    def with_weights(self, flat: Float[Array, " w"] | WeightBelief) -> "Network":
        """The same network with these flat weights as point weights."""
        if isinstance(flat, WeightBelief):
            if flat.shapes != self.shapes:
                raise ValueError(f"flat must have layer shapes {self.shapes}, got {flat.shapes}")
            flat = flat.mean
        require_shape("flat", flat, (sum(o * i for o, i in self.shapes),))
        matrices = [flat[layer_slice(self.shapes, l)].reshape(shape) for l, shape in enumerate(self.shapes)]
        return self.with_linears([Linear(matrix[:, :-1], matrix[:, -1]) for matrix in matrices])

    def at_mean(self) -> "Network":
        """The same network with point weights at their means."""
        return self.with_linears([layer.at_mean() for layer in self.linears])

    def given(self, control: Float[Array, " u"] | None) -> "Network":
        """The network as a function of the state alone, with its last inputs fixed at a known control."""
        if control is None:
            return self
        control = as_array("control", control, ndim=1)
        if control.size >= self.in_size:
            raise ValueError(f"control must leave inputs for the state: the network takes {self.in_size}, got {control.size}")
        return self.with_linears([self.linears[0].given(control), *self.linears[1:]])

    def sample(self, key: PRNGKeyArray) -> "Network":
        """The same network with point weights drawn from their distribution."""
        keys = jr.split(key, len(self.linears))
        return self.with_linears([layer.sample(key=k) for layer, k in zip(self.linears, keys, strict=True)])

    def sample_output(self, x: Float[Array, " i"], *, key: PRNGKeyArray) -> Float[Array, " o"]:
        """One output under weights drawn for this call, layer by layer by local reparametrisation."""
        for layer, layer_key in zip(self.layers, jr.split(key, len(self.layers)), strict=True):
            x = layer.sample_output(x, key=layer_key) if isinstance(layer, Linear) else layer(x)
        return x

    def with_linears(self, linears: Sequence[Linear]) -> "Network":
        """The same network with its linear layers replaced."""
        fresh = iter(linears)
        return Network(tuple(next(fresh) if isinstance(layer, Linear) else layer for layer in self.layers))


def _arrays(name: str, values: Sequence[Any], ndim: int) -> list[Array]:
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise TypeError(f"{name} must be a list of arrays, one per layer; got {type(values).__name__}")
    found = [as_array(f"{name}[{l}]", value, ndim) for l, value in enumerate(values)]
    for l, value in enumerate(found):
        require_finite(f"{name}[{l}]", value)
    return found


def _log_variances(name: str, values: Sequence[Any] | None, means: Sequence[Array]) -> list[Array]:
    if values is None:
        return [jnp.full_like(mean, -jnp.inf) for mean in means]
    found = _arrays(name, values, means[0].ndim)
    if len(found) != len(means):
        raise ValueError(f"{name} must have one array per layer: expected {len(means)}, got {len(found)}")
    for l, (var, mean) in enumerate(zip(found, means, strict=True)):
        if var.shape != mean.shape:
            raise ValueError(f"{name}[{l}] must have shape {mean.shape} like its means, got {var.shape}")
        require_variances(f"{name}[{l}]", var)
    # Minus infinity is a legal log variance, but the gradient of the logarithm at zero is not finite.
    return [_log(var) for var in found]


@partial(jax.jit, inline=True)
def _log(var: Array) -> Array:
    positive = var > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, var, 1.0)), -jnp.inf)
