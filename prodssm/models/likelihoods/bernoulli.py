"""Events: a probit model of the emission's output."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.special import log_ndtr, ndtr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.linalg import symmetrise
from prodssm.models.likelihoods.bivariate import threshold_cov
from prodssm.models.likelihoods.scalar import ScalarLikelihood
from prodssm.models.likelihoods.support import require_labels
from prodssm.models.likelihoods.tilted import HALF_LOG_TAU, Tilted

SMOOTHING = 11  # labels whose mean stands for a probability


class Bernoulli(ScalarLikelihood):
    r"""$P(y = 1) = \Phi(g)$, for events.

    Under a Gaussian belief about g, with $t = m / \sqrt{1 + s^2}$: probability $p = \Phi(t)$, variance $p (1 - p)$, covariances
    $\Phi_2(t_i, t_j; \rho) - p_i p_j$; and the moments of g given y are known in closed form.

    Example:
        >>> ps.Bernoulli().predict(belief).mean.tolist()
        [0.5]
    """

    support = "binary"

    def require_data(self, y: Any, names: Sequence[str] | None = None) -> None:
        """Raise unless all observations are labels 0 and 1."""
        require_labels("Bernoulli", y, names)

    def link(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
        """The probit of a moving mean of the labels, missing where they are."""
        seen = np.isfinite(y)
        window = np.ones(min(SMOOTHING, len(y)))

        def moving(column: np.ndarray) -> np.ndarray:
            return np.convolve(column, window, mode="same")

        from scipy.special import ndtri  # slow to import

        events = np.stack([moving(column) for column in np.where(seen, y, 0.0).T], axis=1)
        count = np.stack([moving(column) for column in (seen * 1.0).T], axis=1)
        return np.where(seen, ndtri((events + 0.5) / (count + 1)), np.nan).astype(y.dtype)

    def offset(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, " y"]:
        """The probit of the mean event rate, with half an event and half a non-event on top."""
        seen = np.isfinite(y)
        from scipy.special import ndtri  # slow to import

        rate = (np.where(seen, y, 0.0).sum(axis=0) + 0.5) / (seen.sum(axis=0) + 1)
        return ndtri(rate).astype(y.dtype)

    def log_density(self, g: Float[Array, " q"], y: Float[Array, ""]) -> Float[Array, " q"]:
        r"""$\log \Phi(\pm g)$."""
        return log_ndtr((2 * y - 1) * g)

    def mean_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """The probability."""
        return ndtr(g)

    def var_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """The probability times its complement."""
        return ndtr(g) * ndtr(-g)

    def tilt(self, mean: Float[Array, ""], var: Float[Array, ""], y: Float[Array, ""]) -> Tilted:
        r"""In closed form, with the ratio $r = \varphi(z) / \Phi(z)$ at $z = \pm m / \sqrt{1 + s^2}$."""
        sign, total = 2 * y - 1, 1 + var
        z = sign * mean / jnp.sqrt(total)
        log_evidence = log_ndtr(z)
        ratio = jnp.exp(-0.5 * z**2 - HALF_LOG_TAU - log_evidence)
        # In (0, 1); far out rounding of the difference of z and the ratio would make it leave.
        fall = jnp.clip(ratio * (z + ratio), 0.0, 1.0)
        return Tilted(log_evidence, mean + sign * var * ratio / jnp.sqrt(total), var - var * (var / total) * fall)

    def predict(self, g: Gaussian) -> Gaussian:
        """Probabilities and covariances of labels."""
        total = 1 + g.var
        t, n = g.mean / jnp.sqrt(total), g.mean.size
        inverse = 1 / jnp.sqrt(total)
        rows, columns = (jnp.broadcast_to(part, (n, n)) for part in (t[:, None], t[None, :]))
        between = threshold_cov(rows, columns, g.cov * inverse[:, None] * inverse[None, :])
        diagonal = jnp.eye(n, dtype=bool)
        return Gaussian(ndtr(t), symmetrise(jnp.where(diagonal, jnp.diag(ndtr(t) * ndtr(-t)), between)))

    def shared_var(self, g: Gaussian, shared: Float[Array, " y"]) -> Float[Array, " y"]:
        """Covariance of two labels whose g have this covariance."""
        t = g.mean / jnp.sqrt(1 + g.var)
        return threshold_cov(t, t, shared / (1 + g.var))

    def conditional_var(self, g: Gaussian) -> Float[Array, " y"]:
        """E[p (1 - p)]: the variance of a label less that of the probability."""
        t = g.mean / jnp.sqrt(1 + g.var)
        return ndtr(t) * ndtr(-t) - self.shared_var(g, g.var)

    def cdf(self, mean: Any, var: Any, y: Any) -> Float[np.ndarray, "*any y"]:
        """0 below 0, the probability of no event below 1, then 1."""
        mean, var, y = (np.asarray(part, float) for part in (mean, var, y))
        from scipy import special  # slow to import

        none = special.ndtr(-mean / np.sqrt(1 + var))
        return np.where(y < 0, 0.0, np.where(y < 1, none, 1.0))

    def sample(self, g: Float[Array, "... y"], *, key: PRNGKeyArray) -> Float[Array, "... y"]:
        """Labels drawn with the probabilities of g."""
        return (jr.normal(key, g.shape, g.dtype) < g).astype(g.dtype)
