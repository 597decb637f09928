"""The abstract class of what a model is made of: functions of state and control, perhaps with uncertain weights."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.beliefs.weights.diagonal import DiagonalWeights


class Function(eqx.Module):
    """A function of a vector, (state, control), perhaps with uncertain weights: a `Network`, `Known`, or the `Sum` of both.

    What is said here is what a function without uncertain weights answers.

    Example:
        >>> function: Function = net
        >>> function.in_size, function.out_size, function.uncertain
        (1, 1, False)
    """

    @property
    @abstractmethod
    def in_size(self) -> int:
        """Number of inputs, controls included."""

    @property
    @abstractmethod
    def out_size(self) -> int:
        """Number of outputs."""

    @abstractmethod
    def __call__(self, x: Float[Array, " i"]) -> Float[Array, " o"]:
        """The output for one input vector at the mean weights."""

    @abstractmethod
    def given(self, control: Float[Array, " u"] | None) -> Any:
        """The function of the state alone, with its last inputs fixed at a known control."""

    @property
    @abstractmethod
    def words(self) -> tuple[str, ...]:
        """What it is besides arrays, in words that tell it from another."""

    @property
    def parts(self) -> tuple[Any, Any]:
        """A known function and a network whose sum it is; None for a part that it does not have."""
        raise TypeError(f"{type(self).__name__} is no sum of a known function and a network: use another method than 'moments'")

    @property
    def affine(self) -> bool:
        """Whether it is known to be affine."""
        return False

    @property
    def uncertain(self) -> bool:
        """Whether any weight has a variance."""
        return False

    @property
    def linears(self) -> tuple[Any, ...]:
        """The linear layers of its network."""
        return ()

    @property
    def shapes(self) -> tuple[tuple[int, int], ...]:
        """Shape of the matrix [W, b] of each linear layer."""
        return ()

    @property
    def weights(self) -> Any:
        """The prior belief about all weights and biases."""
        dtype = jnp.result_type(float)
        return DiagonalWeights(jnp.zeros(0, dtype), var=jnp.zeros(0, dtype), shapes=())

    def with_weights(self, flat: Any) -> Any:
        """The same function with these flat weights as point weights."""
        return self

    def at_mean(self) -> Any:
        """The same function with point weights at their means."""
        return self

    def sample(self, key: PRNGKeyArray) -> Any:
        """The same function with point weights drawn from their distribution."""
        return self

    def sample_output(self, x: Float[Array, " i"], *, key: PRNGKeyArray) -> Float[Array, " o"]:
        """One output under weights drawn for this call."""
        return self(x)

    def trainable(self) -> Any:
        """Which leaves are learned, as a tree of booleans; by default all arrays."""
        return jax.tree.map(eqx.is_inexact_array, self)
