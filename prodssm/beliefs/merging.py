r"""Merging the components of a mixture into fewer, so that the mixture changes little.

Clusters minimise $\sum_i w_i KL(N_i \| \bar N_{c(i)})$, where $\bar N_c$ has the moments of its cluster: a bound of the
divergence from the merged mixture (Runnalls 2007; Goldberger and Roweis 2005). They start at components that are far from each
other and alternate between assignment and moments, for all components at once.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from prodssm.beliefs.linalg import cholesky, solve_lower, symmetrise

ROUNDS = 4


def merged(
    log_weights: Float[Array, " n"], means: Float[Array, "n x"], covs: Float[Array, "n x x"], labels: Float[Array, "n k"]
) -> tuple[Float[Array, " k"], Float[Array, "k x"], Float[Array, "k x x"]]:
    """Log weights, means and covariances of the clusters; an empty one has weight zero and the moments of all.

    Args:
        log_weights: Of the components.
        means: Of the components.
        covs: Of the components.
        labels: One where a component belongs to a cluster, else zero.
    """
    weights = jnp.exp(log_weights)
    total = weights @ labels
    alive = total > 0
    shares = jnp.where(alive[None, :], weights[:, None] * labels / jnp.where(alive, total, 1.0)[None, :], weights[:, None])
    mean = shares.T @ means
    gap = means[:, None, :] - mean[None, :, :]
    within = jnp.einsum("nk,nxz->kxz", shares, covs)
    between = jnp.einsum("nk,nkx,nkz->kxz", shares, gap, gap)
    cov = within + between
    log_total = jnp.where(alive, jnp.log(jnp.where(alive, total, 1.0)), -jnp.inf)
    return log_total, mean, (cov + cov.swapaxes(1, 2)) / 2


def clusters(
    log_weights: Float[Array, " n"], means: Float[Array, "n x"], covs: Float[Array, "n x x"], count: int
) -> Float[Array, "n k"]:
    """Which of `count` clusters each component belongs to, one where it does, else zero."""
    weights = jnp.exp(log_weights)
    chosen = _seeds(weights, means, covs, count)
    labels = _nearest(means, covs, means[chosen], covs[chosen])

    def improve(_: Array, labels: Array) -> Array:
        log_total, mean, cov = merged(log_weights, means, covs, labels)
        return _nearest(means, covs, mean, cov, log_total > -jnp.inf)

    return jax.lax.fori_loop(0, ROUNDS, improve, labels)


def _seeds(
    weights: Float[Array, " n"], means: Float[Array, "n x"], covs: Float[Array, "n x x"], count: int
) -> Int[Array, " k"]:
    """The heaviest component, then again and again the one that the chosen ones stand for worst."""
    own = means.shape[1] + jax.vmap(lambda cov: 2 * jnp.log(jnp.diag(_definite_root(cov))).sum())(covs)

    def choose(worst: Array, _: None) -> tuple[Array, Array]:
        chosen = jnp.argmax(weights * (worst - own))
        apart = _divergences(means, covs, means[chosen][None], covs[chosen][None])[:, 0]
        return jnp.minimum(worst, apart), chosen

    return jax.lax.scan(choose, jnp.full_like(weights, jnp.finfo(weights.dtype).max), None, length=count)[1]


def _nearest(means: Array, covs: Array, centres: Array, spreads: Array, alive: Array | None = None) -> Float[Array, "n k"]:
    apart = _divergences(means, covs, centres, spreads)
    apart = apart if alive is None else jnp.where(alive[None, :], apart, jnp.inf)
    return jax.nn.one_hot(jnp.argmin(apart, axis=1), centres.shape[0], dtype=means.dtype)


def _divergences(means: Array, covs: Array, centres: Array, spreads: Array) -> Float[Array, "n k"]:
    """Twice the Kullback-Leibler divergence of each component from each centre, but for a constant of the component.

    Products of all components with all centres at once: of a batch of small ones XLA would make a loop of calls.
    """
    n, k = means.shape[1], centres.shape[0]
    chol = jax.vmap(_definite_root)(spreads)
    inverse = jax.vmap(lambda root: solve_lower(root, jnp.eye(n, dtype=root.dtype)))(chol)
    precision = jnp.einsum("kab,kac->kbc", inverse, inverse)
    origin = means.mean(axis=0)[None, :]  # the means are whitened before they are subtracted
    white = ((means - origin) @ inverse.reshape(k * n, n).T).reshape(-1, k, n)
    apart = white - jnp.einsum("kab,kb->ka", inverse, centres - origin)[None, :, :]
    trace = covs.reshape(-1, n * n) @ precision.reshape(k, n * n).T
    log_det = 2 * jnp.log(jnp.diagonal(chol, axis1=1, axis2=2)).sum(axis=1)
    return trace + (apart**2).sum(axis=2) + log_det[None, :]


def _definite_root(cov: Float[Array, "x x"]) -> Float[Array, "x x"]:
    return cholesky(symmetrise(cov), definite=True)
