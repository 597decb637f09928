"""The `Likelihood` plug: the distribution p(y | g) of an observation given the emission's output g(x)."""

import inspect
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import require_probability
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.data.scaling import Standardiser
from prodssm.models.likelihoods.quantiles import find_quantile


class Likelihood(eqx.Module):
    """The distribution p(y | g) of an observation y given the emission's output g(x).

    An instance that a user makes describes the likelihood in the units of the data; `for_data` turns it into the one that a
    model is trained with, in standardised units and with one entry per output. A subclass is known by its class name in snake
    case wherever an estimator asks for a likelihood: `StudentT` is "student_t", `GaussianLikelihood` is "gaussian".

    Example:
        >>> likelihood: Likelihood = ps.GaussianLikelihood(variance=1.0)
        >>> likelihood.predict(Gaussian([0.0], [[3.0]])).std.item()
        2.0
    """

    registry: ClassVar[dict[str, type["Likelihood"]]] = {}
    support: ClassVar[str] = "real"  # of an observation: "real", "counts" or "binary"
    gaussian: ClassVar[bool] = False  # whether y is Gaussian given a Gaussian belief about g
    scaled: ClassVar[bool] = True  # whether models are trained on standardised data
    constant_noise: ClassVar[bool] = False  # whether Var[y | g] is the same at all g

    def __init_subclass__(cls, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        Likelihood.registry[cls.__name__] = cls

    def constructor_params(self) -> dict[str, Any]:
        """The constructor's arguments, by name."""
        return {name: getattr(self, name) for name in inspect.signature(type(self)).parameters}

    @property
    @abstractmethod
    def size(self) -> int | None:
        """Number of outputs; None if any number will do."""

    @abstractmethod
    def for_data(self, scaling: Standardiser) -> "Likelihood":
        """The likelihood in standardised units, ready for a model of data with this scaling."""

    @property
    def has_variance(self) -> bool:
        """Whether observations have a variance."""
        return True

    def require_data(self, y: Any, names: Sequence[str] | None = None) -> None:
        """Raise if there are observations, (time, y), that the likelihood does not allow; NaN is missing.

        Args:
            y: In the units of the data.
            names: Of the outputs.
        """

    def expected(self, g: Gaussian) -> Gaussian:
        """Mean and covariance of E[y | g] under a belief about g; by default E[y | g] is g."""
        return g

    def expected_at(self, g: Float[np.ndarray, "*any y"]) -> Float[np.ndarray, "*any y"]:
        """E[y | g] at values of g, increasing in each of them; in NumPy."""
        return g

    def link(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
        """Values of g that an initial model is fitted to in place of observations; by default these themselves."""
        return y

    def offset(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, " y"]:
        """Where g starts; by default at zero, the mean of standardised data."""
        return np.zeros(y.shape[1], y.dtype)

    def standardiser(self, columns: Float[np.ndarray, "time y"]) -> Standardiser:
        """How observations are scaled; by default to mean zero and standard deviation one."""
        return Standardiser.fit(columns)

    def with_initial_variance(self, variance: Float[np.ndarray, " y"]) -> "Likelihood":
        """The likelihood with a learned variance that starts at this one, in standardised units; by default itself."""
        return self

    def trainable(self) -> Any:
        """Which leaves are learned, as a tree of booleans; by default all arrays."""
        return jax.tree.map(eqx.is_inexact_array, self)

    @abstractmethod
    def predict(self, g: Gaussian) -> Gaussian:
        """Mean and covariance of y under a belief about g."""

    @abstractmethod
    def condition(self, belief: Belief, emission: Channel, y: Float[Array, " y"]) -> tuple[Belief, Float[Array, ""]]:
        """The posterior given y, and its log evidence.

        Args:
            belief: The predicted belief about the state.
            emission: The channel from the state to g.
            y: The observation; NaN where it is missing.
        """

    @abstractmethod
    def log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        """Log predictive density of y under a belief about g; NaN is missing."""

    @abstractmethod
    def expected_log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        """E[log p(y | g)] under a belief about g, the term of the evidence lower bound; NaN is missing."""

    def require_bound(self) -> None:
        """Raise where `expected_log_prob` is not finite, so that the evidence lower bound cannot be the objective."""

    @abstractmethod
    def conditional_var(self, g: Gaussian) -> Float[Array, " y"]:
        """E[Var[y | g]], the part of the predictive variance that is measurement noise."""

    def shared_var(self, g: Gaussian, shared: Float[Array, " y"]) -> Float[Array, " y"]:
        """Var[E[y | w]] where w contributes this much to the variance of each g; by default E[y | g] is g."""
        return shared

    def cdf(self, mean: Any, var: Any, y: Any) -> Float[np.ndarray, "*any y"]:
        """Marginal predictive probabilities P(Y <= y), output by output, in NumPy.

        Args:
            mean: Means of g, (..., y).
            var: Variances of g.
            y: Where.
        """
        raise NotImplementedError(f"{type(self).__name__} has no predictive distribution function: define cdf")

    def quantile(self, mean: Any, var: Any, probability: float) -> Float[np.ndarray, "*any y"]:
        """Marginal predictive quantiles, the smallest values with P(Y <= y) of at least this, output by output, in NumPy.

        Args:
            mean: Means of g, (..., y).
            var: Variances of g.
            probability: Strictly between 0 and 1.
        """
        require_probability(probability)
        mean, var = np.broadcast_arrays(np.asarray(mean, float), np.asarray(var, float))
        return find_quantile(lambda y: self.cdf(mean, var, y), self.support, float(probability), mean, np.sqrt(var) + 1.0)

    @abstractmethod
    def sample(self, g: Float[Array, "... y"], *, key: PRNGKeyArray) -> Float[Array, "... y"]:
        """Observations drawn given outputs g."""


def find_likelihood(likelihood: "str | Likelihood | None") -> Likelihood:
    """The likelihood of this name with its default parameters, or the likelihood itself; None is Gaussian.

    Example:
        >>> find_likelihood("student_t").df
        4.0
    """
    if isinstance(likelihood, Likelihood):
        return likelihood
    if likelihood is not None and not isinstance(likelihood, str):
        raise TypeError(f"likelihood must be a name, a prodssm likelihood or None, got {type(likelihood).__name__}")
    named = {_name_of(cls): cls for cls in Likelihood.registry.values() if not inspect.isabstract(cls)}
    name = "gaussian" if likelihood is None else likelihood
    if name not in named:
        raise ValueError(f"likelihood must be one of {', '.join(named)}; got {name!r}")
    return named[name]()


def _name_of(likelihood: type[Likelihood]) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", likelihood.__name__.removesuffix("Likelihood")).lower()
