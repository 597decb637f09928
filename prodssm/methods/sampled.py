"""Monte Carlo: sample the belief, evaluate the network, regress its outputs on the samples."""

from typing import ClassVar, Literal

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import plain, require_integer, require_key
from prodssm.beliefs.channel import Channel
from prodssm.beliefs.gaussian import Belief
from prodssm.beliefs.linalg import cholesky, solve_psd, symmetrise, unwhiten
from prodssm.methods.base import Method
from prodssm.networks.base import Function


class Sampled(Method):
    """Least squares on Monte Carlo samples of the belief.

    Attributes:
        samples: Number of samples; it must exceed the number of carried coordinates by two.
        key: Randomness; required wherever the method is used directly. Estimators supply it from their `random_state`.
        draw: For local weights: "outputs" draws each layer's outputs given its inputs (local reparametrisation), which has the
            same distribution as drawing "weights" and is far cheaper.

    Example:
        >>> ps.channel(net, belief, method=Sampled(samples=100, key=jr.key(0))).noise.shape
        (1, 1)
    """

    forms_joint_cov: ClassVar[bool] = True
    samples: int = eqx.field(static=True, default=1024, converter=plain)
    key: PRNGKeyArray | None = None
    draw: Literal["outputs", "weights"] = eqx.field(static=True, default="outputs")

    def __check_init__(self):
        require_integer("samples", self.samples, least=2)
        if self.draw not in ("outputs", "weights"):
            raise ValueError(f"draw must be 'outputs' or 'weights', got {self.draw!r}")

    @property
    def random(self) -> bool:
        """Whether the method draws random numbers: yes."""
        return True

    def seeded(self, key: PRNGKeyArray) -> "Sampled":
        """The same method with this key."""
        return Sampled(self.samples, key, self.draw)

    def at(self, t: Array | int, salt: int) -> "Sampled":
        """The method with a key of its own for each time step and use."""
        return self.seeded(jr.fold_in(jr.fold_in(self._required_key(), t), salt))

    def channel(self, network: Function, belief: Belief, control: Float[Array, " u"] | None = None) -> Channel:
        """The channel by regression on samples."""
        carried = belief.weights is not None
        joint = belief.dense() if carried else belief.state  # type: ignore[attr-defined]
        x_size = belief.mean.size
        if self.samples <= joint.mean.size + 1:
            raise ValueError(f"samples must exceed the {joint.mean.size} carried coordinates by two, got {self.samples}")
        white_key, weight_key = jr.split(self._required_key())
        white = jr.normal(white_key, (self.samples, joint.mean.size), joint.mean.dtype)
        chol = cholesky(joint.cov)
        points = joint.mean[None, :] + white @ chol.T

        def output(point: Array, one: PRNGKeyArray) -> Array:
            chosen = network.with_weights(point[x_size:]) if carried else network
            chosen, x = chosen.given(control), point[:x_size]
            return chosen.sample(one)(x) if self.draw == "weights" else chosen.sample_output(x, key=one)

        values = jax.vmap(output)(points, jr.split(weight_key, self.samples))
        # Least squares on the whitened samples, whose true mean is known, so that linear networks are exact. The noise is the
        # covariance of sample residuals, hence positive semi-definite.
        offsets = white - white.mean(axis=0)[None, :]
        centred = values - values.mean(axis=0)[None, :]
        white_slope = solve_psd(offsets.T @ offsets, offsets.T @ centred).T
        mean = values.mean(axis=0) - white_slope @ white.mean(axis=0)
        residual = centred - offsets @ white_slope.T
        # Not divided by the residual degrees of freedom: the slope's estimation error is already counted in its square.
        noise = residual.T @ residual / (self.samples - 1)
        slope = unwhiten(white_slope, chol, joint.var)
        return Channel(mean, slope[:, :x_size], symmetrise(noise), slope[:, x_size:] if carried else None)

    def _required_key(self) -> PRNGKeyArray:
        require_key("key of the method Sampled", self.key)
        assert self.key is not None
        return self.key
