"""Likelihoods of independent outputs, p(y | g) a product of densities p(y_i | g_i): all that follows from these."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm._compilation import scan
from prodssm._validation import as_array, require_shape, values_of
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.linalg import symmetrise
from prodssm.data.scaling import Standardiser
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.likelihoods.numerical import expected_cdf
from prodssm.models.likelihoods.tilted import Tilted, tilted_moments
from prodssm.networks.quadrature import hermite

NODES = 64  # of Gauss-Hermite quadrature
HERMITE_ORDER = 16  # of the expansion of E[y | g] behind covariances between outputs
ALLOWED_ANYWHERE = 1.0  # an observation in every support, in place of a missing one


class ScalarLikelihood(Likelihood):
    r"""Outputs that are independent given g, each with a density p(y | g) of two numbers.

    A subclass says `log_density(g, y)`, `mean_given(g)`, `var_given(g)`, `sample(g, key)`, and its `support` if that is not the
    real line; what is learned are arrays with one entry per output, and the three functions are called with the entries of one
    output. The data are not scaled unless it also says `standardiser` and `for_data`. An update conditions by the moments of
    $p(y_i \mid g_i) N(g_i)$, output after output (docs/math.md, section 7.8).

    Example:
        >>> class Laplace(ps.ScalarLikelihood):
        ...     def log_density(self, g, y):
        ...         return -jnp.abs(y - g) - jnp.log(2.0)
        ...     def mean_given(self, g):
        ...         return g
        ...     def var_given(self, g):
        ...         return jnp.full_like(g, 2.0)
        ...     def sample(self, g, *, key):
        ...         return g + jr.laplace(key, g.shape, g.dtype)
        >>> Laplace().predict(belief).var.round(3).tolist()
        [3.0]
    """

    scaled = False

    @property
    def size(self) -> int | None:
        """Any number of outputs, unless a subclass says otherwise."""
        return None

    @abstractmethod
    def log_density(self, g: Float[Array, " q"], y: Float[Array, ""]) -> Float[Array, " q"]:
        """Log p(y | g) of one output at an array of g; smooth, and NaN or minus infinity only where g is impossible."""

    @abstractmethod
    def mean_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """E[y | g] of one output."""

    @abstractmethod
    def var_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """Var[y | g] of one output."""

    def for_data(self, scaling: Standardiser) -> "ScalarLikelihood":
        """Itself: the data are not scaled."""
        return self

    def standardiser(self, columns: Float[np.ndarray, "time y"]) -> Standardiser:
        """The identity: what p(y | g) describes is in the units of the data."""
        self.require_data(columns)
        return Standardiser.identity(columns.shape[1], columns.dtype)

    # Moments

    def _at_nodes(self, function: Callable[[Any, Array], Array], g: Gaussian) -> tuple[np.ndarray, Float[Array, "y q"]]:
        """Gauss-Hermite weights, and a function of one output's likelihood and g at the nodes, output by output."""
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        at = g.mean[:, None] + g.std[:, None] * jnp.asarray(nodes, g.mean.dtype)[None, :]
        return weights / weights.sum(), jax.vmap(function)(self, at)

    def _expected(self, function: Callable[[Any, Array], Array], g: Gaussian) -> Float[Array, " y"]:
        weights, values = self._at_nodes(function, g)
        return values @ jnp.asarray(weights, values.dtype)

    def predict(self, g: Gaussian) -> Gaussian:
        r"""Mean and covariance of y: $Cov[y_i, y_j] = \sum_k c_{k,i} c_{k,j} \rho_{ij}^k$ from Hermite coefficients."""
        weights, values = self._at_nodes(lambda one, at: one.mean_given(at), g)
        weights = jnp.asarray(weights, values.dtype)
        mean = values @ weights
        centred = values - mean[:, None]
        nodes = jnp.asarray(np.polynomial.hermite_e.hermegauss(NODES)[0], values.dtype)
        alive = g.std > 0
        inverse = jnp.where(alive, 1 / jnp.where(alive, g.std, 1.0), 0.0)
        correlation = g.cov * inverse[:, None] * inverse[None, :]
        total, power, factorial = jnp.zeros_like(correlation), jnp.ones_like(correlation), 1.0
        for k, polynomial in enumerate(hermite(nodes, HERMITE_ORDER)[1:], start=1):
            factorial, power = factorial * k, power * correlation
            c = centred @ (weights * polynomial) / factorial**0.5
            total = total + c[:, None] * c[None, :] * power
        spread = (centred**2) @ weights + self._expected(lambda one, at: one.var_given(at), g)
        diagonal = jnp.eye(mean.size, dtype=bool)
        return Gaussian(mean, symmetrise(jnp.where(diagonal, jnp.diag(spread), total)))

    def expected(self, g: Gaussian) -> Gaussian:
        """Mean and covariance of E[y | g]: those of y, without the noise of y given g in the variances."""
        seen, diagonal = self.predict(g), jnp.eye(g.mean.size, dtype=bool)
        return Gaussian(seen.mean, jnp.where(diagonal, jnp.diag(self.shared_var(g, g.var)), seen.cov))

    def expected_at(self, g: Float[np.ndarray, "*any y"]) -> Float[np.ndarray, "*any y"]:
        """E[y | g] at values of g."""
        columns = np.asarray(g).reshape(-1, np.shape(g)[-1]).T
        found = jax.vmap(lambda one, at: one.mean_given(at))(self, jnp.asarray(columns))
        return np.asarray(found, columns.dtype).T.reshape(np.shape(g))

    def conditional_var(self, g: Gaussian) -> Float[Array, " y"]:
        """E[Var[y | g]]."""
        return self._expected(lambda one, at: one.var_given(at), g)

    def shared_var(self, g: Gaussian, shared: Float[Array, " y"]) -> Float[Array, " y"]:
        """Cov[y, y'] of two outputs whose g have this covariance."""

        def pair(one: "ScalarLikelihood", m: Array, v: Array, c: Array) -> Array:
            two = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), one)
            return two.predict(Gaussian(jnp.stack([m, m]), jnp.stack([jnp.stack([v, c]), jnp.stack([c, v])]))).cov[0, 1]

        return jax.vmap(pair)(self, g.mean, g.var, shared)

    def expected_log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        """The sum over observed outputs of E[log p(y | g)], by Gauss-Hermite quadrature."""
        seen, y = self.observed(y, g.mean)
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        nodes, weights = (jnp.asarray(part, g.mean.dtype) for part in (nodes, weights / weights.sum()))

        def one_output(one: "ScalarLikelihood", m: Array, s: Array, value: Array) -> Array:
            return one.log_density(m + s * nodes, value) @ weights

        return jnp.where(seen, jax.vmap(one_output)(self, g.mean, g.std, y), 0.0).sum()

    # Bayes' rule

    def observed(self, y: Float[Array, " y"], like: Float[Array, " y"]) -> tuple[Array, Array]:
        """Which outputs are there, and y with a legal value where they are not; raises for values that are not allowed."""
        y = as_array("y", y, ndim=1).astype(like.dtype)
        require_shape("y", y, like.shape)
        values = values_of(y)
        if values is not None:
            if np.isinf(values).any():
                raise ValueError(f"y must be finite, or NaN where it is missing; got {values}")
            self.require_data(values[None])
        seen = ~jnp.isnan(y)
        return seen, jnp.where(seen, y, ALLOWED_ANYWHERE)

    def tilt(self, mean: Float[Array, ""], var: Float[Array, ""], y: Float[Array, ""]) -> Tilted:
        """Log evidence, mean and variance of g of one output given y; a subclass may know a closed form."""
        frozen, value = jax.lax.stop_gradient((self, y))
        return tilted_moments(lambda g: self.log_density(g, value), mean, var, constant=lambda g: frozen.log_density(g, value))

    def condition_outputs(self, g: Gaussian, y: Float[Array, " y"]) -> tuple[Gaussian, Float[Array, ""]]:
        """The belief about g given y, output after output, and the log evidence of y."""
        seen, y = self.observed(y, g.mean)

        def body(carry, now):
            mean, cov, total = carry
            one, n, known, value = now
            found = one.tilt(mean[n], cov[n, n], value)
            used = known & (cov[n, n] > 0)
            gain = jnp.where(used, cov[:, n] / jnp.where(used, cov[n, n], 1.0), 0.0)
            # Jeffrey's rule for one coordinate: given g_n the others stay as they were.
            cov = cov + gain[:, None] * gain[None, :] * (found.var - cov[n, n])
            return (mean + gain * (found.mean - mean[n]), cov, total + jnp.where(known, found.log_evidence, 0.0)), None

        numbers = jnp.arange(y.size, dtype=jnp.int32)
        start = (g.mean, g.cov, jnp.zeros((), g.mean.dtype))
        (mean, cov, total), _ = scan(body, start, (self, numbers, seen, y))
        return Gaussian(mean, symmetrise(cov)), total

    def condition(self, belief: Belief, emission: Channel, y: Float[Array, " y"]) -> tuple[Belief, Float[Array, ""]]:
        """The belief whose marginal about g is the one given y, and the log evidence of y."""
        marginal, log_evidence = self.condition_outputs(belief.state.predict(emission), y)
        return belief.revise(emission, marginal), log_evidence

    def log_prob(self, g: Gaussian, y: Float[Array, " y"]) -> Float[Array, ""]:
        """Log predictive density; exact for one output, and for more of them by the same sequence of updates."""
        return self.condition_outputs(g, y)[1]

    # The predictive distribution

    def cdf(self, mean: Any, var: Any, y: Any) -> Float[np.ndarray, "*any y"]:
        """Marginal predictive probabilities P(Y <= y), output by output, by quadrature of the density."""
        return expected_cdf(self, *(np.asarray(part, float) for part in (mean, var, y)))
