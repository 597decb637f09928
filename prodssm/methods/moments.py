r"""Moment matching, the paper's method: every layer's own channel in closed form, chained (MATH 1 to 4).

Two rules, by what is carried. Weights that are certain or redrawn at every step leave the belief a `Gaussian` over the state.
Weights that were drawn once are part of a `JointGaussian`, and every layer correlates its output with them.
"""

import math
from itertools import combinations_with_replacement

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from prodssm.activations import Activation, Expansion, is_certain
from prodssm.checks import require_integer
from prodssm.gaussian import Channel, Gaussian, JointGaussian
from prodssm.layers import Linear
from prodssm.linalg import cholesky, sandwich, settle
from prodssm.network import Network
from prodssm.quadrature import powers

DEFAULT_ORDER = 4  # smaller error than the DVI formula everywhere on the grid of benchmarks/covariance_order.py
DEFAULT_ORDER_SCALAR = 8  # for a one-dimensional state alone, where a unit costs O(order) and not O(units * order)


def moments(
    network: Network,
    belief: Gaussian | JointGaussian,
    control: Float[Array, " u"] | None = None,
    *,
    order: int | None = None,
) -> Channel:
    """The channel of a network by moment matching.

    Args:
        network: The network; its weights are redrawn at every step if they are uncertain and not part of the belief.
        belief: What is believed about its input, joint with its weights if these are drawn once.
        control: Known inputs that follow the state.
        order: Truncation order of activation covariances; None takes 8 for a one-dimensional state without carried
            weights and 4 otherwise.

    Returns:
        The channel, with its output covariance. Both matrices are symmetric up to rounding.
    """
    carried = isinstance(belief, JointGaussian)
    order = chosen_order(order, 0 if carried else belief.mean.size)
    if carried:
        return _with_carried_weights(network, belief, control, order)[0]
    return _with_fresh_weights(network.given(control), belief, order)


def chosen_order(order: int | None, alone: int) -> int:
    """The truncation order, where None stands for the default of a state of this size alone; zero if weights are carried."""
    if order is None:
        return DEFAULT_ORDER_SCALAR if alone == 1 else DEFAULT_ORDER
    require_integer("order", order, least=1)
    return order


class Flow(eqx.Module):
    """A hidden vector on its way: h = mean + slope (x - E[x]) + N(0, noise), with noise in the cheapest form it still has.

    The noise is `factor.T @ factor + diag(diagonal)` as long as that is smaller than a matrix, which is what a first layer
    makes of a low-dimensional state; `dense` afterwards. `cov` is the whole covariance, once a matrix was needed.
    """

    mean: Float[Array, " h"]
    slope: Float[Array, "h x"] | None = None  # None: the identity
    diagonal: Float[Array, " h"] | None = None
    factor: Float[Array, "r h"] | None = None
    dense: Float[Array, "h h"] | None = None
    cov: Float[Array, "h h"] | None = None

    def noise(self) -> Float[Array, "h h"]:
        """The noise as a matrix."""
        if self.dense is not None:
            return self.dense
        total = jnp.zeros((self.mean.size, self.mean.size), self.mean.dtype)
        if self.diagonal is not None:
            total = jnp.diag(self.diagonal)
        return total if self.factor is None else total + self.factor.T @ self.factor

    def whole(self, x_cov: Float[Array, "x x"]) -> Float[Array, "h h"]:
        """The covariance as a matrix."""
        if self.cov is not None:
            return self.cov
        if self.slope is None:
            return x_cov
        return sandwich(self.slope, x_cov) + self.noise()

    def var(self, x_cov: Float[Array, "x x"]) -> Float[Array, " h"]:
        """The diagonal of the covariance, without the rest of it."""
        if self.cov is not None or self.slope is None or self.dense is not None:
            return jnp.diag(self.whole(x_cov))
        total = ((self.slope @ x_cov) * self.slope).sum(axis=1)
        if self.diagonal is not None:
            total = total + self.diagonal
        return total if self.factor is None else total + (self.factor**2).sum(axis=0)


def _with_fresh_weights(network: Network, x: Gaussian, order: int) -> Channel:
    flow = Flow(x.mean)
    for layer in network.layers:
        flow = _linear(layer, flow, x.cov) if isinstance(layer, Linear) else _activate(layer, flow, x.cov, order)
    slope = jnp.eye(x.mean.size, dtype=x.mean.dtype) if flow.slope is None else flow.slope
    return Channel(flow.mean, slope, flow.noise(), flow.whole(x.cov))


def _linear(layer: Linear, flow: Flow, x_cov: Array) -> Flow:
    """Certain weights map mean, slope and noise; redrawn weights add independent noise to every output (MATH 2.1, 2.2)."""
    weight = layer.weight
    mean = layer(flow.mean)
    slope = weight if flow.slope is None else weight @ flow.slope
    own = layer.output_var(flow.var(x_cov) + flow.mean**2) if layer.uncertain else None
    if flow.diagonal is None and flow.dense is None:  # the first layer: nothing but the state has spread so far
        return Flow(mean, slope, diagonal=jnp.zeros_like(mean) if own is None else own)
    dense = (weight * flow.diagonal[None, :]) @ weight.T if flow.diagonal is not None else sandwich(weight, flow.noise())
    if flow.factor is not None:
        # In this order a batch of factors and one weight make one product, and nothing has to be turned over for it.
        mapped = flow.factor @ weight.T
        dense = dense + mapped.T @ mapped
    # Mapping the whole covariance besides the noise costs nothing: the compiler drops whichever the caller does not use.
    cov = None if flow.cov is None else sandwich(weight, flow.cov)
    if own is not None:
        dense = dense + jnp.diag(own)
        cov = None if cov is None else cov + jnp.diag(own)
    return Flow(mean, slope, dense=dense, cov=cov)


def _activate(activation: Activation, flow: Flow, x_cov: Array, order: int) -> Flow:
    """Unit by unit: mean, slope and the exact variance; between units a power series in their correlation (MATH 3, 4)."""
    shared = x_cov.shape[0] + (0 if flow.factor is None else flow.factor.shape[0])
    thin = flow.diagonal is not None and math.comb(shared + order, order) - 1 < flow.mean.size
    # A matrix that is needed anyway has the variances on its diagonal.
    whole = x_cov if thin else flow.whole(x_cov)
    var = flow.var(x_cov) if thin else jnp.diag(whole)
    center, var = settle(flow.mean), settle(var)
    found = activation.expand(center, var, order)
    scale = jnp.sqrt(jnp.where(is_certain(flow.mean, var), 1.0, var))
    tilt = found.slope
    slope = jnp.diag(tilt) if flow.slope is None else tilt[:, None] * flow.slope
    if flow.diagonal is None or not thin:
        # Settled, or every pair of units would work out both expansions anew.
        cov, dense = _bend(jax.tree.map(settle, found), scale, whole, flow.noise())
        # For few states slope and noise give the covariance at no more cost, and cancellation cannot set them at odds with it.
        return Flow(found.mean, slope, dense=dense, cov=cov if 2 * x_cov.shape[0] > cov.shape[0] else None)
    diagonal = tilt**2 * flow.diagonal + found.rest
    rows = [] if flow.factor is None else [flow.factor * tilt[None, :]]
    if order > 1:
        features, own = _features(flow, x_cov, scale, found.curved)
        rows, diagonal = [*rows, features], diagonal + own
    return Flow(found.mean, slope, diagonal, jnp.concatenate(rows, axis=0) if rows else None)


def _bend(found: Expansion, scale: Array, whole: Array, noise: Array) -> tuple[Array, Array]:
    """Covariance and noise behind an activation: mapped by its slopes, plus what curvature adds to both.

    That is the sum of (c_k c_k') * R^k from k = 2 on, elementwise, by Horner's rule, and the variance left over.
    """
    inverse = 1 / scale
    added = jnp.diag(found.rest)
    if len(found.curved):
        correlation = jnp.clip(whole * inverse[:, None] * inverse[None, :], -1.0, 1.0)
        total = found.curved[-1][:, None] * found.curved[-1][None, :]
        for c in found.curved[-2::-1]:
            total = c[:, None] * c[None, :] + correlation * total
        added = added + correlation**2 * total
    tilts = found.slope[:, None] * found.slope[None, :]
    return tilts * whole + added, tilts * noise + added


def _features(flow: Flow, x_cov: Array, scale: Array, coefficients: Float[Array, "k h"]) -> tuple[Array, Array]:
    """The same sum as factor.T @ factor + diag(own), for units that share only a few directions.

    Correlations are then inner products of short vectors u, and powers of inner products are inner products of monomials.
    """
    assert flow.slope is not None
    # A little jitter where directions can be singular: without it their gradient would be lost, or drowned in rounding.
    jitter = float(jnp.finfo(x_cov.dtype).eps) ** 0.5 if x_cov.shape[0] > 1 else 0.0
    root = (flow.slope @ cholesky(x_cov, jitter=jitter)).T
    if flow.factor is not None:
        root = jnp.concatenate([root, flow.factor], axis=0)
    short = root / scale[None, :]
    length = jnp.minimum((short**2).sum(axis=0), 1.0)
    orders = range(2, len(coefficients) + 2)
    monomials = [
        tuple(chosen.count(d) for d in range(len(short)))
        for k in orders
        for chosen in combinations_with_replacement(range(len(short)), k)
    ]
    count = [math.factorial(sum(m)) / math.prod(math.factorial(e) for e in m) for m in monomials]
    features = jnp.sqrt(jnp.asarray(count, short.dtype))[:, None] * coefficients[np.array([sum(m) - 2 for m in monomials])]
    for d, direction in enumerate(short):
        features = features * powers(direction, tuple(m[d] for m in monomials))
    own = (coefficients**2 * (1 - powers(length, tuple(orders)))).sum(axis=0)
    return features, own


def _with_carried_weights(
    network: Network, z: JointGaussian, control: Array | None, order: int, twins: Array | None = None
) -> tuple[Channel, Array]:
    """Weights drawn once (MATH 2.3 to 2.5). Slopes meet the axis of all weights only in the backward sweep at the end.

    `twins` is the covariance of the state with that of a twin: another run of the system with the same weights (MATH 7.3). All
    that two runs share moves like the covariance itself; what is drawn anew for each of them they do not share.
    """
    weights = z.weights
    mean, cov = z.mean, z.cov
    between = jnp.zeros_like(cov) if twins is None else twins
    slope, noise = jnp.eye(mean.size, dtype=mean.dtype), jnp.zeros_like(cov)
    reach, links = weights.start(z.cross), weights.links(z.cross)
    together, alone = jnp.zeros_like(cov), jnp.zeros_like(cov)  # what weights share with the state, what they add themselves
    certain = jnp.ones(1, mean.dtype)
    known = certain if control is None else jnp.concatenate([control, certain])
    trail: list[tuple[Array, Array | None]] = []
    depth = 0
    for layer in network.layers:
        if isinstance(layer, Linear):
            inputs = jnp.concatenate([mean, known])
            matrix = weights.layer(depth)
            weight = matrix[:, : mean.size]
            # The state itself meets its first layer as the belief says.
            link = weights.meet(depth, links[depth], reach) if trail else links[depth]
            # Products of two deviations are uncorrelated with all that is Gaussian here (Isserlis): pure noise.
            drift, crossed = link.crossed(mean.size)
            through = weight if link.reach is None else weight @ link.reach
            shared = through @ link.seen(inputs)
            fresh = weights.spread(depth, cov) + crossed
            entered, own = weights.enter(depth, inputs, reach)
            common = shared + shared.T + own
            between = sandwich(weight, between) + common + weights.spread(depth, between) + crossed
            only = weights.only_var(depth, inputs, cov, link) if len(weight) == 1 else None
            reach = weight @ reach + entered
            mean = matrix @ inputs + drift
            cov = sandwich(weight, cov) + common + fresh if only is None else only
            slope, noise = weight @ slope, sandwich(weight, noise) + fresh
            together, alone = weight @ together + links[depth].seen(inputs).T, sandwich(weight, alone) + own
            trail.append((weight, inputs))
            depth, known = depth + 1, certain
        else:
            var = jnp.diag(cov)
            found = jax.tree.map(settle, layer.expand(mean, var, order))
            tilt, scale = found.slope, jnp.sqrt(jnp.where(is_certain(mean, var), 1.0, var))
            cov, noise = jax.tree.map(settle, _bend(found, scale, cov, noise))
            between = _bend_twins(found, scale, between)
            mean = found.mean
            slope, reach, together = (tilt[:, None] * part for part in (slope, reach, together))
            alone = tilt[:, None] * tilt[None, :] * alone
            trail.append((tilt, None))
    factors = _factors(trail, mean.size)
    blocks = [(behind[:, :, None] * inputs[None, None, :]).reshape(mean.size, -1) for behind, inputs in factors]
    weight_slope = jnp.concatenate(blocks, axis=1)
    cross = weights.arrive(slope, weight_slope, z.cross, reach, factors)
    spread = alone if weights.independent else None
    return Channel(mean, slope, noise, cov, weight_slope, cross, together, spread, factors), between


def _bend_twins(found: Expansion, scale: Array, twins: Array) -> Array:
    """The covariance between twins behind an activation: the same sum, without the variance that each unit has for itself."""
    shared = Expansion(found.mean, found.slope, found.curved, jnp.zeros_like(found.rest))
    return _bend(shared, scale, twins, twins)[0]


def twin_moments(
    network: Network, belief: JointGaussian, twins: Float[Array, "x x"], control: Float[Array, " u"] | None, order: int | None
) -> tuple[Channel, Float[Array, "y y"]]:
    """As `moments` under a joint belief, together with the covariance between the outputs of twins (MATH 7.3)."""
    return _with_carried_weights(network, belief, control, chosen_order(order, 0), twins)


def twin_outputs(network: Network, x: Gaussian, twins: Float[Array, "x x"], order: int | None) -> Float[Array, "y y"]:
    """Covariance between the outputs of twins behind a network with certain weights, given that between their states."""
    mean, cov = x.mean, x.cov
    order = chosen_order(order, mean.size)
    for layer in network.layers:
        if isinstance(layer, Linear):
            mean, cov, twins = layer(mean), sandwich(layer.weight, cov), sandwich(layer.weight, twins)
        else:
            var = jnp.diag(cov)
            found = layer.expand(mean, var, order)
            scale = jnp.sqrt(jnp.where(is_certain(mean, var), 1.0, var))
            mean, cov, twins = found.mean, _bend(found, scale, cov, cov)[0], _bend_twins(found, scale, twins)
    return twins


def _factors(trail: list[tuple[Array, Array | None]], outputs: int) -> tuple[tuple[Array, Array], ...]:
    """The slope with respect to a layer's weights is (slope behind the layer) times (mean of its input): both, per layer."""
    behind = jnp.eye(outputs, dtype=trail[0][0].dtype)
    found: list[tuple[Array, Array]] = []
    for step, inputs in reversed(trail):
        if inputs is None:
            behind = behind * step[None, :]
        else:
            found.append((behind, inputs))
            behind = behind @ step
    return tuple(found[::-1])
