"""Moment matching, the paper's method: the channel of every layer in closed form, composed over layers."""

import equinox as eqx
from jaxtyping import Array, Float

from prodssm._validation import plain, require_integer
from prodssm.beliefs.channel import Channel, Link
from prodssm.beliefs.gaussian import Belief
from prodssm.beliefs.mixture import GaussianMixture
from prodssm.methods.base import AUTO, Method
from prodssm.methods.known import known_moments
from prodssm.methods.moments_global import forward
from prodssm.methods.moments_local import local_moments
from prodssm.networks.base import Function
from prodssm.networks.network import Network

DEFAULT_ORDER = 4  # smaller error than the DVI formula everywhere on the grid of benchmarks/covariance_order.py
DEFAULT_ORDER_SCALAR = 8  # for a scalar state without carried weights, where a hidden unit costs O(order)
DEFAULT_ORDER_MIXTURE = 2  # components are narrow, so that higher orders of a correlation are small (benchmarks/mixture.py)


class Moments(Method):
    """Moment matching. The belief decides the rule: a belief that carries weights has global ones, else they are local.

    Attributes:
        order: Truncation order of the covariances between hidden units; `None` takes 8 for a scalar state without carried
            weights, 2 for mixtures and 4 otherwise.
        components: Number of Gaussians in the belief; one is the paper's assumption. More follow states that may be in
            several places, and functions that bend within the belief. With "auto" `ProDSSM.fit` trains one Gaussian and takes
            as many for its answers as `ProDSSM.check` recommends.
        splits: Of several components: into how many narrower ones each is split, on average, before it moves; they share the
            room by their weights and by how much the transition bends. Afterwards they are merged again.

    Example:
        >>> round(ps.channel(net, belief, method=Moments(order=2)).mean.item(), 3)  # E|x|: net is |x|, belief is N(0, 1)
        0.798
    """

    order: int | None = eqx.field(static=True, default=None, converter=plain)
    components: int | str = eqx.field(static=True, default=1, converter=plain)
    splits: int = eqx.field(static=True, default=27, converter=plain)

    def __check_init__(self):
        if self.order is not None:
            require_integer("order", self.order, least=1)
        if isinstance(self.components, str) and self.components != AUTO:
            raise ValueError(f"components must be a number of Gaussians or 'auto', got {self.components!r}")
        if not self.automatic:
            require_integer("components", self.components, least=1)
        require_integer("splits", self.splits, least=1)

    @property
    def automatic(self) -> bool:
        """Whether `ProDSSM.fit` is to choose the number of components."""
        return self.components == AUTO

    @property
    def count(self) -> int:
        """The number of components."""
        assert isinstance(self.components, int), "find_method has refused what is automatic"
        return self.components

    def with_components(self, count: int) -> "Moments":
        """The same method with so many components.

        Example:
            >>> Moments(components="auto").with_components(4)
            Moments(components=4)
        """
        return Moments(order=self.order, components=count, splits=self.splits)

    def start(self, belief: Belief) -> Belief:
        """The belief itself, or in the first slot of a mixture."""
        return belief if self.count == 1 else GaussianMixture.single(belief.state, self.count, self.splits)

    def storage(self, size: int, count: int) -> int:
        """How many numbers `count` mixtures, and the split and the merge of one move, occupy."""
        if not isinstance(self.components, int) or self.components == 1:  # training of "auto" has one Gaussian
            return 0
        children = self.components * self.splits
        each = 1 + size + size**2  # weight, mean, covariance; a child has slope and noise besides, and compares with all slots
        return count * self.components * each + children * (3 * each + self.components * (size + 2))

    def takes(self, weights: str) -> bool:
        """All weights; global ones as one Gaussian, because components of a mixture do not share a belief about weights."""
        return weights != "global" or self.components == 1

    def order_for(self, belief: Belief) -> int:
        """The truncation order around this belief."""
        if self.order is not None:
            return self.order
        if self.count > 1:
            return DEFAULT_ORDER_MIXTURE
        return DEFAULT_ORDER_SCALAR if belief.weights is None and belief.mean.size == 1 else DEFAULT_ORDER

    def channel(self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None) -> Channel:
        """The channel by moment matching; its noise is symmetric up to rounding."""
        return self.propagate(network, belief, control)[0]

    def propagate(
        self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None, link: Link | None = None
    ) -> tuple[Channel, Belief]:
        """The channel and the predicted belief, whose covariance the rule finds on the way."""
        if not isinstance(network, Network):
            return known_moments(self, network, belief, control, link)
        if belief.weights is not None:
            passed = forward(network, belief, control, self.order_for(belief))
            return passed.plain() if link is None else passed.beside(link)
        found, predicted = local_moments(network.given(control), belief.state, self.order_for(belief))
        if link is None:
            return found, predicted
        found = found.beside(link)
        return found, belief.predict(found)
