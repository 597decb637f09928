"""Functions that the user knows: `Known`, with parameters that may be learned, and its `Sum` with a network."""

import inspect
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import require_finite, require_integer
from prodssm.networks.base import Function
from prodssm.networks.network import Network


class Units(eqx.Module):
    """Affine maps between the units in which a function is known and those in which a model computes; never learned.

    Attributes:
        x_mean: What is added to a scaled state.
        x_scale: What the state of the model is multiplied by first.
        u_mean: As for the state, of the control; None without controls.
        u_scale: Likewise.
        out_mean: What is subtracted from the output.
        out_scale: What it is divided by then.
    """

    x_mean: Float[Array, " x"]
    x_scale: Float[Array, " x"]
    u_mean: Float[Array, " u"] | None
    u_scale: Float[Array, " u"] | None
    out_mean: Float[Array, " o"]
    out_scale: Float[Array, " o"]


class Known(Function):
    """A known function f(x, u) or f(x, u, params) of state and control, which JAX can trace; u is None without controls.

    Args:
        function: The function; its result is one vector.
        params: Its parameters, any tree of numbers and arrays; None for a function of (x, u).
        x_size: Number of states.
        u_size: Number of controls.
        learned: Whether training changes the parameters: one answer, or a tree of answers like `params`.

    Example:
        >>> decay = Known(lambda x, u, rate: -rate * x, params=0.5, x_size=1)
        >>> decay(jnp.array([2.0])).item(), decay.out_size
        (-1.0, 1)
    """

    function: Callable[..., Any] = eqx.field(static=True)
    params: Any
    control: Float[Array, " u"] | None
    units: Units | None
    x_size: int = eqx.field(static=True)
    u_size: int = eqx.field(static=True)
    size: int = eqx.field(static=True)
    learned: tuple[bool, ...] = eqx.field(static=True)

    def __init__(self, function: Any, params: Any = None, *, x_size: int, u_size: int = 0, learned: Any = True):
        """Check that the function takes these arguments, can be traced and returns a vector."""
        require_integer("x_size", x_size, least=1)
        require_integer("u_size", u_size, least=0)
        self.function, self.x_size, self.u_size = function, int(x_size), int(u_size)
        self.params = None if params is None else jax.tree.map(_as_parameter, params)
        self.control = self.units = None
        self.learned = _answers(learned, self.params)
        _require_arguments(function, params is not None)
        self.size = self._traced_size()

    @property
    def in_size(self) -> int:
        """Number of inputs, controls included unless they are given."""
        return self.x_size + (self.u_size if self.control is None else 0)

    @property
    def out_size(self) -> int:
        """Number of outputs."""
        return self.size

    @property
    def words(self) -> tuple[str, ...]:
        """Its name, and what is learned."""
        return (name_of(self.function), str(self.learned))

    @property
    def parts(self) -> tuple["Known", None]:
        """Itself, and no network."""
        return self, None

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """F at one vector of state and control."""
        if x.shape != (self.in_size,):
            raise ValueError(f"x must be one vector of shape {(self.in_size,)}, got {x.shape}; use jax.vmap for a batch")
        state, control = x[: self.x_size], self.control
        if self.u_size and control is None:
            control = x[self.x_size :]
        if self.units is None:
            return jnp.asarray(self._value(state, control), x.dtype)
        units = self.units
        if control is not None:
            assert units.u_mean is not None
            assert units.u_scale is not None
            control = units.u_mean + units.u_scale * control
        found = jnp.asarray(self._value(units.x_mean + units.x_scale * state, control), x.dtype)
        return (found - units.out_mean) / units.out_scale

    def _value(self, x: Array, u: Array | None) -> Any:
        return self.function(x, u) if self.params is None else self.function(x, u, self.params)

    def given(self, control: Float[Array, " u"] | None) -> "Known":
        """The function of the state alone, at a known control."""
        if control is None:
            return self
        if control.shape != (self.u_size,):
            raise ValueError(f"control must have shape {(self.u_size,)}, got {control.shape}")
        return eqx.tree_at(lambda known: known.control, self, control, is_leaf=lambda leaf: leaf is None)

    def in_units(self, units: Units) -> "Known":
        """The same function in the units of a model."""
        return eqx.tree_at(lambda known: known.units, self, units, is_leaf=lambda leaf: leaf is None)

    def trainable(self) -> "Known":
        """The parameters that are learned; controls and units are not."""
        found = jax.tree.map(lambda _: False, self)
        if self.params is None:
            return found
        structure = jax.tree.structure(self.params)
        return eqx.tree_at(lambda known: known.params, found, jax.tree.unflatten(structure, self.learned))

    def _traced_size(self) -> int:
        """Number of outputs, or an error that says what is wrong with the function."""
        dtype, name = jnp.result_type(float), name_of(self.function)
        x = jax.ShapeDtypeStruct((self.x_size,), dtype)
        u = jax.ShapeDtypeStruct((self.u_size,), dtype) if self.u_size else None
        about = f"for a state of shape ({self.x_size},) and " + (f"a control of shape ({self.u_size},)" if u else "u = None")
        try:
            found = jax.eval_shape(lambda x, u: self._value(x, u), x, u)
        except jax.errors.JAXTypeError as error:
            advice = "write it with jax.numpy, without `if` or `float` on its values"
            raise TypeError(f"{name} must be a function that JAX can trace: {advice} ({_first_line(error)})") from error
        except Exception as error:
            raise ValueError(f"{name} must return a vector {about}; it raised {type(error).__name__}: {error}") from error
        shape = getattr(found, "shape", None)
        if shape is None:
            raise TypeError(f"{name} must return one array of shape (n,) {about}, got {type(found).__name__}")
        if len(shape) != 1 or not shape[0]:
            raise ValueError(f"{name} must return one vector, of shape (n,), {about}, got shape {shape}")
        return int(shape[0])


class Sum(Function):
    """A known function plus a network with uncertain weights that learns what the function leaves out.

    Args:
        physics: A `Known`, or a function of (x, u) for states of the size of the network's outputs.
        network: Of the same inputs and outputs.

    Example:
        >>> half = Sum(lambda x, u: -0.5 * x, net)  # net is |x|
        >>> half(jnp.array([2.0])).item()
        1.0
    """

    physics: Known
    network: Network

    def __init__(self, physics: Any, network: Any):
        """Check that both have the same inputs and outputs."""
        if not isinstance(network, Network):
            raise TypeError(f"network must be a prodssm.Network, got {type(network).__name__}")
        if not isinstance(physics, Known):
            physics = as_known("physics", physics, network.out_size, network.in_size - network.out_size)
        sizes = [(part.in_size, part.out_size) for part in (physics, network)]
        if sizes[0] != sizes[1]:
            raise ValueError(
                f"network must take the {sizes[0][0]} inputs of physics to its {sizes[0][1]} outputs, "
                f"got a network of {sizes[1][0]} inputs and {sizes[1][1]} outputs"
            )
        self.physics, self.network = physics, network

    @property
    def in_size(self) -> int:
        """Number of inputs, controls included."""
        return self.network.in_size

    @property
    def out_size(self) -> int:
        """Number of outputs."""
        return self.network.out_size

    @property
    def words(self) -> tuple[str, ...]:
        """Those of both parts."""
        return (*self.physics.words, *self.network.words)

    @property
    def parts(self) -> tuple[Known, Network]:
        """Both."""
        return self.physics, self.network

    @property
    def uncertain(self) -> bool:
        """Whether the network's weights have a variance."""
        return self.network.uncertain

    @property
    def linears(self) -> tuple[Any, ...]:
        """The linear layers of the network."""
        return self.network.linears

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Of the network."""
        return self.network.shapes

    @property
    def weights(self) -> Any:
        """Of the network."""
        return self.network.weights

    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The sum at the mean weights."""
        return self.physics(x) + self.network(x)

    def given(self, control: Float[Array, " u"] | None) -> "Sum":
        """Both as functions of the state alone."""
        return self if control is None else Sum(self.physics.given(control), self.network.given(control))

    def with_weights(self, flat: Any) -> "Sum":
        """With these weights of the network."""
        return Sum(self.physics, self.network.with_weights(flat))

    def at_mean(self) -> "Sum":
        """With the network at its mean weights."""
        return Sum(self.physics, self.network.at_mean())

    def sample(self, key: PRNGKeyArray) -> "Sum":
        """With weights of the network drawn from their distribution."""
        return Sum(self.physics, self.network.sample(key))

    def sample_output(self, x: Float[Array, " i"], *, key: PRNGKeyArray) -> Float[Array, " o"]:
        """One output under weights drawn for this call."""
        return self.physics(x) + self.network.sample_output(x, key=key)

    def trainable(self) -> "Sum":
        """Those of both parts."""
        parts = self.physics.trainable(), self.network.trainable()
        return eqx.tree_at(lambda both: (both.physics, both.network), self, parts)


def as_known(name: str, function: Any, x_size: int, u_size: int) -> Known:
    """A function of (x, u) as `Known`; errors name the argument that it was given as."""
    try:
        return Known(function, x_size=x_size, u_size=u_size)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error


def name_of(function: Any) -> str:
    """The name by which errors and files call a function."""
    return getattr(function, "__name__", type(function).__name__)


def _as_parameter(value: Any) -> Array:
    try:
        array = jnp.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"params must be a tree of numbers, got {value!r}") from error
    require_finite("params", array)
    return array if jnp.issubdtype(array.dtype, jnp.floating) and not array.weak_type else jnp.asarray(array, float)


def _answers(learned: Any, params: Any) -> tuple[bool, ...]:
    """Whether each parameter is learned."""
    leaves, structure = jax.tree.flatten(params)
    if isinstance(learned, bool):
        return (learned,) * len(leaves)
    answers, given = jax.tree.flatten(learned)
    if given != structure or not all(isinstance(each, bool) for each in answers):
        raise ValueError(f"learned must be True, False, or a tree of these like params, got {learned!r}")
    return tuple(answers)


def _require_arguments(function: Any, with_params: bool) -> None:
    """Raise unless the function can be called as f(x, u), or as f(x, u, params) with parameters."""
    form = "(x, u, params)" if with_params else "(x, u)"
    if not callable(function):
        raise TypeError(f"a known function must be a function of {form}, got {type(function).__name__}")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some built-in functions it is not known
        return
    try:
        signature.bind(*form.split(","))
    except TypeError as error:
        advice = "" if with_params else "; parameters are given with it: prodssm.Known(function, params, x_size=...)"
        raise TypeError(f"{name_of(function)} must be a function of {form}, got {signature}{advice}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
