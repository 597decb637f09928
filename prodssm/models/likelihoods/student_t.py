"""Outliers: Student t measurement noise, independent between outputs."""

import math
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import as_array, require_number
from prodssm.beliefs.gaussian import Gaussian
from prodssm.data.scaling import Standardiser
from prodssm.models.likelihoods.quantiles import normal_nodes, step
from prodssm.models.likelihoods.scalar import ScalarLikelihood

INITIAL_VARIANCE = 0.1  # of learned measurement noise, in standardised units
SMALLEST_SCALE = 1e-3  # that is learned, in standardised units
LEAST_SHARE = 0.1  # of a standard deviation that the robust scale of an output has
FARTHEST = 6.0  # robust standard deviations within which an initial model is fitted


class StudentT(ScalarLikelihood):
    r"""$y = g + scale \cdot e$ with e of Student's t distribution: the noise of sensors that are far off now and then.

    Args:
        df: Degrees of freedom, positive and not learned; the fewer, the less an outlier counts. With two or less the noise has
            no variance: such a model filters, and has quantiles and densities, but no covariances of observations.
        scale: Scale of the noise, one number or one per output, in the units of the data; it is then known and not learned.
            `None` learns it.
        learned: Whether training changes a given scale.

    Example:
        >>> ps.StudentT(df=4, scale=1.0).predict(belief).var.tolist()
        [3.0]
    """

    scaled = True
    constant_noise = True

    log_scale: Float[Array, " y"] | None
    df: float = eqx.field(static=True)
    scalar: bool = eqx.field(static=True)
    learned: bool = eqx.field(static=True)

    def __init__(self, df: Any = 4.0, scale: Any = None, learned: bool | None = None):
        """Check the values and store what is learned without bounds."""
        require_number("df", df)
        if df <= 0:
            raise ValueError(f"df must be positive, got {df}")
        self.df = float(df)
        self.scalar = scale is not None and np.ndim(scale) == 0
        self.learned = scale is None if learned is None else bool(learned)
        self.log_scale = None
        if scale is not None:
            values = np.atleast_1d(np.asarray(as_array("scale", scale, ndim=np.ndim(scale))))
            if values.ndim != 1:
                raise ValueError(f"scale must be one number or one per output, got shape {values.shape}")
            if not (np.isfinite(values) & (values > 0)).all():
                raise ValueError(f"scale must be positive and finite, got {values}")
            # What is learned lies above the smallest scale.
            above = np.maximum(values - SMALLEST_SCALE, 1e-3 * SMALLEST_SCALE) if self.learned else values
            self.log_scale = jnp.log(jnp.asarray(above, values.dtype))

    def __repr__(self) -> str:
        """The constructor's arguments."""
        return f"StudentT(df={self.df}, scale={self.scale}, learned={self.learned})"

    def constructor_params(self) -> dict[str, Any]:
        """The constructor's arguments, by name: the scale as it was given."""
        given = self.scale
        learned = None if self.learned == (given is None) else self.learned
        return {"df": self.df, "scale": given[0] if self.scalar and given is not None else given, "learned": learned}

    @property
    def scale(self) -> Float[Array, " y"] | None:
        """Scales of the noise; `None` until they are learned."""
        return None if self.log_scale is None else self._scale

    @property
    def size(self) -> int:
        """Number of outputs."""
        return self._log_scale.size

    @property
    def has_variance(self) -> bool:
        """Whether df exceeds two."""
        return self.df > 2

    @property
    def _log_scale(self) -> Array:
        if self.log_scale is None:
            raise ValueError("scale must be given where nothing is fitted: StudentT(df, scale=...)")
        return self.log_scale

    @property
    def _scale(self) -> Array:
        found = jnp.exp(self._log_scale)
        return found + SMALLEST_SCALE if self.learned else found

    @property
    def _inflation(self) -> float:
        """The variance of the noise over its squared scale."""
        if self.df <= 2:
            raise ValueError(
                f"df must be larger than 2 for a variance, got {self.df}: Student t noise has none. Use quantiles and "
                "densities, which every df has, or a larger df"
            )
        return self.df / (self.df - 2)

    # Scaling and initialisation

    def standardiser(self, columns: Float[np.ndarray, "time y"]) -> Standardiser:
        """To median zero and an interquartile range like that of a standard normal variable: outliers have no say in it."""
        usual, values = Standardiser.fit(columns), np.asarray(columns, float)
        low, middle, high = np.nanquantile(values, (0.25, 0.5, 0.75), axis=0)
        scale = np.maximum((high - low) / (2 * NormalDist().inv_cdf(0.75)), LEAST_SHARE * np.asarray(usual.scale, float))
        return Standardiser(middle.astype(columns.dtype), scale.astype(columns.dtype))

    def link(self, y: Float[np.ndarray, "time y"]) -> Float[np.ndarray, "time y"]:
        """The observations without their largest deviations."""
        return np.clip(y, -FARTHEST, FARTHEST)

    def for_data(self, scaling: Standardiser) -> "StudentT":
        """The likelihood in standardised units; a learned scale starts where its variance is a tenth of an output's."""
        size, dtype = scaling.scale.size, scaling.scale.dtype
        if self.log_scale is None:
            return StudentT(self.df, np.full(size, self._scale_of(INITIAL_VARIANCE), dtype), learned=True)
        given = np.asarray(self._scale, float)
        if not self.scalar and given.size != size:
            raise ValueError(f"the scale of the measurement noise must be one number or {size}, got {given.size}")
        scaled = np.broadcast_to(given, (size,)) / np.asarray(scaling.scale, float)
        return StudentT(self.df, scaled.astype(dtype), learned=self.learned)

    def _scale_of(self, variance: Any) -> Any:
        """The scale of noise with this variance; without variances, as if df were 3."""
        return np.sqrt(variance * (1 - 2 / max(self.df, 3.0)))

    def with_initial_variance(self, variance: Float[np.ndarray, " y"]) -> "StudentT":
        """The likelihood with a learned scale that starts at this variance."""
        if not self.learned:
            return self
        log_scale = np.log(np.maximum(self._scale_of(variance) - SMALLEST_SCALE, SMALLEST_SCALE))
        return eqx.tree_at(lambda noise: noise.log_scale, self, jnp.asarray(log_scale, self._log_scale.dtype))

    def trainable(self) -> Any:
        """The scale, if it is learned."""
        return eqx.tree_at(lambda noise: noise.log_scale, self, self.learned)

    # The distribution

    def log_density(self, g: Float[Array, " q"], y: Float[Array, ""]) -> Float[Array, " q"]:
        """The log density of Student's t distribution."""
        peak = math.lgamma((self.df + 1) / 2) - math.lgamma(self.df / 2) - 0.5 * math.log(self.df * math.pi)
        error = (y - g) / self._scale
        return peak - jnp.log(self._scale) - (self.df + 1) / 2 * jnp.log1p(error**2 / self.df)

    def mean_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """The output, the median if there is no mean."""
        return g

    def var_given(self, g: Float[Array, " q"]) -> Float[Array, " q"]:
        """scale^2 df / (df - 2)."""
        return jnp.full_like(g, 1.0) * self._scale**2 * self._inflation

    def predict(self, g: Gaussian) -> Gaussian:
        """N(g.mean, g.cov + diag(scale^2 df / (df - 2)))."""
        return g.plus(self._scale**2 * self._inflation)

    def expected(self, g: Gaussian) -> Gaussian:
        """E[y | g] is g."""
        return g

    def conditional_var(self, g: Gaussian) -> Float[Array, " y"]:
        """The variance of the measurement noise."""
        return self._scale**2 * self._inflation

    def shared_var(self, g: Gaussian, shared: Float[Array, " y"]) -> Float[Array, " y"]:
        """E[y | g] is g."""
        return shared

    def cdf(self, mean: Any, var: Any, y: Any) -> Float[np.ndarray, "*any y"]:
        """P(Y <= y), by quadrature over the narrower of g and the noise."""
        mean, var, y = np.broadcast_arrays(*(np.asarray(part, float) for part in (mean, var, y)))
        from scipy import special  # slow to import

        scale, std = np.asarray(self._scale, float)[..., None], np.sqrt(var)[..., None]
        nodes, weights = normal_nodes()
        gap = (y - mean)[..., None]
        # Quantiles from the lower half, which keeps its digits.
        noise = -np.sign(nodes) * special.stdtrit(self.df, special.ndtr(-np.abs(nodes)))
        over_noise = step(gap - scale * noise, std) @ weights
        over_g = special.stdtr(self.df, (gap - std * nodes) / scale) @ weights
        return np.where(std[..., 0] > np.broadcast_to(scale, std.shape)[..., 0], over_noise, over_g)

    def sample(self, g: Float[Array, "... y"], *, key: PRNGKeyArray) -> Float[Array, "... y"]:
        """Outputs plus measurement noise."""
        noise = jr.t(key, jnp.asarray(self.df, g.dtype), g.shape, g.dtype)
        return g + noise * jnp.broadcast_to(self._scale, g.shape)
