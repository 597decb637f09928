r"""A mixture of Gaussians as a belief, $p(x) = \sum_k w_k N(m_k, P_k)$ in a fixed number of slots, of which some may be empty.

Around each component a function is an affine Gaussian channel of its own, so a mixture follows what one Gaussian cannot: a
function that bends within the belief, states in several places. Before a move components are split where the transition bends
(`splitting`), behind it they are merged again (`merging`).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import require_finite, require_variances, values_of
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.linalg import fusion_barrier, symmetrise
from prodssm.beliefs.merging import clusters, merged
from prodssm.beliefs.splitting import split


class GaussianMixture(Belief):
    """A mixture of Gaussian beliefs about one state.

    Attributes:
        log_weights: Logarithms of the weights, which sum to one; minus infinity in an empty slot.
        means: Means of the components.
        covs: Covariances of the components.
        splits: Before a nonlinear move a component is split into so many on average; 1 for none.

    Example:
        >>> two = GaussianMixture.of([0.5, 0.5], [[-1.0], [1.0]], [[[0.1]], [[0.1]]])
        >>> two.mean.item(), round(two.var.item(), 6)
        (0.0, 1.1)
    """

    log_weights: Float[Array, " k"]
    means: Float[Array, "k x"]
    covs: Float[Array, "k x x"]
    splits: int = eqx.field(static=True, default=1)

    if TYPE_CHECKING:  # the abstract variables of Belief are no constructor arguments

        def __init__(self, log_weights: Any, means: Any, covs: Any, splits: int = 1): ...

    @classmethod
    def of(cls, weights: Any, means: Any, covs: Any, splits: int = 1) -> "GaussianMixture":
        """A mixture of these components; its weights, zero or more, are made to sum to one."""
        weights, means, covs = (jnp.asarray(part, jnp.result_type(float)) for part in (weights, means, covs))
        if means.ndim != 2 or weights.shape != means.shape[:1] or covs.shape != (*means.shape, means.shape[-1]):
            shapes = f"{weights.shape}, {means.shape}, {covs.shape}"
            raise ValueError(f"weights, means and covs must have shapes (k,), (k, x) and (k, x, x), got {shapes}")
        for name, part in (("means", means), ("covs", covs)):
            require_finite(name, part)
        require_variances("weights", weights)
        if (shares := values_of(weights)) is not None and not shares.any():
            raise ValueError("weights must have a positive sum, got zeros")
        return cls(safe_log(weights / weights.sum()), means, covs, splits)

    @classmethod
    def single(cls, belief: Gaussian, slots: int, splits: int) -> "GaussianMixture":
        """One Gaussian in the first of so many slots."""
        mean, cov = belief.mean, belief.cov
        log_weights = jnp.full(slots, -jnp.inf, mean.dtype).at[0].set(0.0)
        return cls(log_weights, jnp.tile(mean, (slots, 1)), jnp.tile(cov, (slots, 1, 1)), splits)

    @property
    def components(self) -> Gaussian:
        """The components, stacked."""
        return jax.vmap(Gaussian)(self.means, self.covs)

    @property
    def gaussian(self) -> Gaussian:
        """The Gaussian with the same mean and covariance."""
        weights = jnp.exp(self.log_weights)
        mean = weights @ self.means
        gap = self.means - mean[None, :]
        spread = self.covs + gap[:, :, None] * gap[:, None, :]
        return Gaussian(mean, symmetrise((weights[:, None, None] * spread).sum(axis=0)))

    @property
    def mean(self) -> Float[Array, " x"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Mean of the mixture."""
        return self.gaussian.mean

    @property
    def cov(self) -> Float[Array, "x x"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Covariance of the mixture, by the law of total covariance."""
        return self.gaussian.cov

    @property
    def state(self) -> "GaussianMixture":  # pyright: ignore[reportIncompatibleVariableOverride]
        """The belief itself."""
        return self

    @property
    def weights(self) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """No network weights are carried."""
        return None

    @property
    def mixture(self) -> "GaussianMixture":
        """The belief itself."""
        return self

    # ------------------------------------------------------------------ component by component

    def each(self, rule: Callable[[Gaussian], Gaussian]) -> "GaussianMixture":
        """The mixture of what a rule makes of each component."""
        return self._with(jax.vmap(rule)(self.components))

    def updated(self, rule: Callable[[Gaussian], tuple[Gaussian, Array]]) -> tuple["GaussianMixture", Float[Array, ""]]:
        """Bayes' rule: each component by the rule, its weight by its evidence."""
        found, log_evidence = jax.vmap(rule)(self.components)
        joint = self.log_weights + log_evidence
        total = jax.nn.logsumexp(joint)
        return GaussianMixture(joint - total, found.mean, found.cov, self.splits), total

    def log_mean(self, rule: Callable[[Gaussian], Array]) -> Float[Array, ""]:
        """Logarithm of the mean of a density over components, of which the rule finds the logarithm."""
        return jax.nn.logsumexp(self.log_weights + jax.vmap(rule)(self.components))

    def average(self, rule: Callable[[Gaussian], Array]) -> Array:
        """The mean over components of what a rule finds for one."""
        return jnp.tensordot(jnp.exp(self.log_weights), jax.vmap(rule)(self.components), axes=1)

    def moved(self, rule: Callable[[Gaussian], tuple[Channel, Gaussian]]) -> tuple[Channel, "GaussianMixture"]:
        """Components are split where the rule's channel bends, moved, and merged into the slots; with their channels."""
        # Fusion barriers, or XLA would recompute the split in every consumer, and takes minutes to compile that.
        finer = jax.tree.map(fusion_barrier, self.split(rule)) if self.splits > 1 else self
        channels, found = jax.vmap(rule)(finer.components)
        moved = jax.tree.map(fusion_barrier, finer._with(found))
        return channels, moved.merge(self.log_weights.size)

    def split(self, rule: Callable[[Gaussian], tuple[Channel, Gaussian]]) -> "GaussianMixture":
        """The same mean and covariance in more components, where the channel of the rule changes within a component."""
        slots = self.log_weights.size * self.splits
        return GaussianMixture(*split(self.log_weights, self.means, self.covs, rule, slots), self.splits)

    def merge(self, slots: int) -> "GaussianMixture":
        """The same mean and covariance in fewer components."""
        if self.log_weights.size <= slots:
            return self
        labels = jax.lax.stop_gradient(clusters(self.log_weights, self.means, self.covs, slots))
        return GaussianMixture(*merged(self.log_weights, self.means, self.covs, labels), self.splits)

    def _with(self, components: Gaussian) -> "GaussianMixture":
        return GaussianMixture(self.log_weights, components.mean, components.cov, self.splits)

    # ------------------------------------------------------------------ Belief

    def predict(self, channel: Channel) -> "GaussianMixture":
        """The belief about the output of one channel, which is the same for all components: an affine function."""
        mean = self.mean

        def rule(component: Gaussian) -> Gaussian:
            moved = component.predict(channel)
            return Gaussian(moved.mean + channel.slope @ (component.mean - mean), moved.cov)

        return self.each(rule)

    def plus(self, variances: Float[Array, " x"]) -> "GaussianMixture":
        """The belief about the state plus independent noise of these variances."""
        return self.each(lambda component: component.plus(variances))

    def condition(
        self, channel: Channel, y: Float[Array, " y"], variance: Float[Array, " y"] | None = None
    ) -> tuple["GaussianMixture", Float[Array, ""]]:
        """The posterior given y through one channel of an affine function, and the log evidence of y."""
        mean = self.mean

        def rule(component: Gaussian) -> tuple[Gaussian, Array]:
            shifted = channel.mean + channel.slope @ (component.mean - mean)
            own = eqx.tree_at(lambda c: c.mean, channel, shifted)
            return component.condition(own, y, variance)

        return self.updated(rule)

    def revise(self, channel: Channel, marginal: Gaussian) -> "GaussianMixture":
        """Raise: likelihoods revise each component, in `updated`."""
        raise ValueError("a mixture is revised component by component: use updated(lambda component: ...)")

    def smooth(self, channel: Channel, following: Any) -> "GaussianMixture":
        """Raise: the backward pass would divide by a mixture."""
        raise ValueError(
            "a mixture has no smoother in closed form: smooth with one Gaussian, as model.with_method('moments').smooth(data)"
        )

    def draw(self, *, key: PRNGKeyArray) -> tuple[Float[Array, " x"], None]:
        """A state, and no weights."""
        choice_key, draw_key = jr.split(key)
        chosen = jr.categorical(choice_key, self.log_weights)
        return Gaussian(self.means[chosen], self.covs[chosen]).sample(key=draw_key), None

    def log_prob(self, x: Float[Array, " x"]) -> Float[Array, ""]:
        """Log density at x; coordinates that are NaN are marginalised."""
        return self.log_mean(lambda component: component.log_prob(x))


def safe_log(weights: Float[Array, " k"]) -> Float[Array, " k"]:
    """Logarithms of weights; minus infinity, without gradient, of zero."""
    positive = weights > 0
    return jnp.where(positive, jnp.log(jnp.where(positive, weights, 1.0)), -jnp.inf)
