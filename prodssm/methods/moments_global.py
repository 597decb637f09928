r"""Moments of a network with global weights: the belief is joint over the state and the weights.

A linear layer with inputs h, weights A and biases b that are jointly Gaussian has, with deviations $\delta A$, $\delta h$,

$$y = E[y] + \bar A\,\delta h + \delta A\,E[h] + \delta b + (\delta A\,\delta h - E[\delta A\,\delta h])$$

By Isserlis' theorem the last bracket is uncorrelated with every jointly Gaussian variable: it is pure channel noise.
`reference` writes this down with dense covariances. `forward` is the same rule for any structure of the weight covariance: the
weight belief answers what it asks, and the weight slope, a Kronecker product per layer, is formed once at the end.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from prodssm.beliefs.channel import Channel, Link
from prodssm.beliefs.gaussian import Belief, Gaussian
from prodssm.beliefs.joint import JointGaussian
from prodssm.beliefs.linalg import fusion_barrier, sandwich, symmetrise
from prodssm.beliefs.weights.base import Factors, WeightBelief, layer_slice
from prodssm.methods.moments_local import activation_moments
from prodssm.networks.expansions import Expansion, is_certain
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network


def reference(network: Network, belief: JointGaussian, control: Float[Array, " u"] | None, order: int) -> Channel:
    """The channel with every covariance written out, layer by layer: O(O^2 I^2) per layer, for tests and small networks."""
    joint, x = belief.dense(), belief.mean.size
    cov_w, weight_means, shapes = joint.cov[x:, x:], joint.mean[x:], belief.weights.shapes
    mean, slope, noise = joint.mean[:x], jnp.eye(x, joint.mean.size, dtype=joint.mean.dtype), jnp.zeros_like(belief.cov)
    known = jnp.ones(1, mean.dtype) if control is None else jnp.append(control, 1.0)
    depth = 0
    for layer in network.layers:
        cov = sandwich(slope, joint.cov) + noise
        if isinstance(layer, Linear):
            part, (outputs, inputs), size = layer_slice(shapes, depth), shapes[depth], mean.size
            matrix = weight_means[part].reshape(outputs, inputs)
            cov_aa = cov_w[part, part].reshape(outputs, inputs, outputs, inputs)[:, :size, :, :size]
            cov_ah = (slope @ joint.cov[:, x:])[:, part].reshape(size, outputs, inputs)[:, :, :size]
            products = jnp.einsum("imjn,mn->ij", cov_aa, cov) + jnp.einsum("nim,mjn->ij", cov_ah, cov_ah)
            full = jnp.append(mean, known)
            jacobian = jnp.zeros((outputs, joint.mean.size), mean.dtype)
            columns = slice(x + part.start, x + part.stop)
            jacobian = jacobian.at[:, columns].set(jnp.kron(jnp.eye(outputs, dtype=mean.dtype), full[None, :]))
            mean = matrix @ full + jnp.einsum("mim->i", cov_ah)
            slope, noise = matrix[:, :size] @ slope + jacobian, sandwich(matrix[:, :size], noise) + products
            depth, known = depth + 1, jnp.ones(1, mean.dtype)
        else:
            found = layer.expand(mean, jnp.diag(cov), order)
            std = jnp.sqrt(jnp.where(is_certain(mean, jnp.diag(cov)), 1.0, jnp.diag(cov)))
            noise = activation_moments(found, std, cov, noise)[1]
            mean, slope = found.mean, found.slope[:, None] * slope
    return Channel(mean, slope[:, :x], noise, slope[:, x:])


class LinearTrace(eqx.Module):
    """What a linear layer did to the moments.

    Attributes:
        weight: Mean of the weights on the random inputs.
        inputs: Mean of all inputs, the certain ones last.
        shared: Covariance of the output that its own weights add, alone and through their cross-covariance with the inputs.
        products: Covariance of the products of deviations that the cross-covariance adds.
    """

    weight: Float[Array, "o h"]
    inputs: Float[Array, " i"]
    shared: Float[Array, "o o"]
    products: Float[Array, "o o"]


class ActivationTrace(eqx.Module):
    """The expansion of an activation, and the standard deviations (one where certain) of its pre-activations."""

    expansion: Expansion
    std: Float[Array, " h"]


class GlobalPass(eqx.Module):
    """The moments of a network's output with global weights, and the trace of its layers.

    Attributes:
        belief: The belief that went in.
        mean: Mean of the output.
        cov: Its covariance.
        slope: Slope with respect to the state.
        noise: Channel noise.
        loading: The loading of its cross-covariance with the weights, see `prodssm.beliefs.weights.base`.
        mixed: `weight_slope @ cross.T`, the part of Cov[f, x] that comes through the weights.
        own: `weight_slope @ diag(var) @ weight_slope.T`, accumulated over layers; meaningful for independent weights.
        trace: Layer by layer.
    """

    belief: Any
    mean: Float[Array, " y"]
    cov: Float[Array, "y y"]
    slope: Float[Array, "y x"]
    noise: Float[Array, "y y"]
    loading: Float[Array, "y r"]
    mixed: Float[Array, "y x"]
    own: Float[Array, "y y"]
    trace: tuple[LinearTrace | ActivationTrace, ...]

    @property
    def weights(self) -> WeightBelief:
        """The belief about the weights."""
        return self.belief.weights

    def plain(self) -> tuple[Channel, JointGaussian]:
        """The channel of f(x), and the predicted belief."""
        factors = self.factors()
        weight_slope = written_out(factors)
        cross = self.weights.output_cross(self.slope, weight_slope, self.belief.cross, self.loading, factors)
        predicted = JointGaussian(Gaussian(self.mean, self.cov), cross, self.weights)
        return Channel(self.mean, self.slope, self.noise, weight_slope), predicted

    def beside(self, link: Link) -> tuple[Channel, JointGaussian]:
        """The channel of link(x) + dt f(x), and the predicted belief."""
        x, dt = self.belief.state, link.dt
        factors = tuple((dt * behind, inputs) for behind, inputs in self.factors())
        weight_slope = written_out(factors)
        mean, slope, noise = link.mean + dt * self.mean, link.slope + dt * self.slope, dt**2 * self.noise
        mixed = slope @ (dt * self.mixed).T
        cov = sandwich(slope, x.cov) + noise + mixed + mixed.T + self.weights.slope_cov(weight_slope, dt**2 * self.own)
        cross = self.weights.predict_cross(self.belief.cross, slope, weight_slope, factors)
        predicted = JointGaussian(Gaussian(mean, symmetrise(cov)), cross, self.weights)
        return Channel(mean, slope, noise, weight_slope), predicted

    def factors(self) -> Factors:
        """The Kronecker factors of the weight slope, by one backward sweep over the layers."""
        behind = jnp.eye(self.mean.size, dtype=self.mean.dtype)
        found = []
        for layer in reversed(self.trace):
            if isinstance(layer, ActivationTrace):
                behind = behind * layer.expansion.slope[None, :]
            else:
                found.append((behind, layer.inputs))
                behind = behind @ layer.weight
        return tuple(found[::-1])


def written_out(factors: Factors) -> Float[Array, "y w"]:
    """The weight slope as a matrix, from its Kronecker factors."""
    blocks = [(behind[:, :, None] * inputs[None, None, :]).reshape(len(behind), -1) for behind, inputs in factors]
    return jnp.concatenate(blocks, axis=1)


def forward(network: Network, belief: Belief, control: Float[Array, " u"] | None, order: int) -> GlobalPass:
    """Moments through all layers, for a belief that carries the network's weights in any covariance structure."""
    weights: WeightBelief = belief.weights
    mean, cov = belief.mean, belief.cov
    slope, noise = jnp.eye(mean.size, dtype=mean.dtype), jnp.zeros_like(cov)
    cross = belief.cross  # type: ignore[attr-defined]
    loading, state_crosses = weights.initial_loading(cross), weights.layer_crosses(cross)
    mixed, own = jnp.zeros_like(cov), jnp.zeros_like(cov)
    one = jnp.ones(1, mean.dtype)
    known = one if control is None else jnp.concatenate([control, one])
    trace: list[LinearTrace | ActivationTrace] = []
    depth = 0
    for layer in network.layers:
        if isinstance(layer, Linear):
            inputs = jnp.concatenate([mean, known])
            matrix = weights.layer_mean(depth)
            weight = matrix[:, : mean.size]
            # The state meets its first layer with the cross-covariance of the belief itself.
            hidden = weights.hidden_cross(depth, state_crosses[depth], loading) if trace else state_crosses[depth]
            shift, products = hidden.product_moments(mean.size)
            through = weight if hidden.loading is None else weight @ hidden.loading
            with_inputs = through @ hidden.times_inputs(inputs)
            added, own_cov = weights.own_loading(depth, inputs, loading)
            shared = with_inputs + with_inputs.T + own_cov
            fresh = weights.contract(depth, cov) + products
            scalar = weights.scalar_output_var(depth, inputs, cov, hidden) if len(weight) == 1 else None
            loading = weight @ loading + added
            mean = matrix @ inputs + shift
            cov = sandwich(weight, cov) + shared + fresh if scalar is None else scalar
            slope, noise = weight @ slope, sandwich(weight, noise) + fresh
            mixed = weight @ mixed + state_crosses[depth].times_inputs(inputs).T
            own = sandwich(weight, own) + own_cov
            trace.append(LinearTrace(weight, inputs, shared, products))
            depth, known = depth + 1, one
        else:
            var = jnp.diag(cov)
            found = jax.tree.map(fusion_barrier, layer.expand(mean, var, order))
            tilt, std = found.slope, jnp.sqrt(jnp.where(is_certain(mean, var), 1.0, var))
            cov, noise = jax.tree.map(fusion_barrier, activation_moments(found, std, cov, noise))
            mean = found.mean
            slope, loading, mixed = (tilt[:, None] * part for part in (slope, loading, mixed))
            own = tilt[:, None] * tilt[None, :] * own
            trace.append(ActivationTrace(found, std))
    return GlobalPass(belief, mean, cov, slope, noise, loading, mixed, own, tuple(trace))
