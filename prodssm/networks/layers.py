"""The linear layer, with point or Gaussian weights."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._validation import require_shape
from prodssm.beliefs.linalg import safe_sqrt


class Linear(eqx.Module):
    """`W h + b`, where weights and biases are points or independent Gaussian variables.

    Attributes:
        weight: Mean of W, output by input.
        bias: Mean of b.
        weight_log_var: Log variance of each weight; `None` for point weights.
        bias_log_var: Log variance of each bias; `None` for point weights.

    Example:
        >>> Linear(jnp.array([[2.0]]), jnp.array([1.0]))(jnp.array([3.0])).item()
        7.0
    """

    weight: Float[Array, "o i"]
    bias: Float[Array, " o"]
    weight_log_var: Float[Array, "o i"] | None = None
    bias_log_var: Float[Array, " o"] | None = None

    def __check_init__(self):
        if self.weight.ndim != 2:
            raise ValueError(f"weight must have shape (outputs, inputs), got {self.weight.shape}")
        require_shape("bias", self.bias, self.weight.shape[:1])
        if (self.weight_log_var is None) != (self.bias_log_var is None):
            raise ValueError("weight_log_var and bias_log_var must be given together, or neither for point weights")
        if self.weight_log_var is not None:
            require_shape("weight_log_var", self.weight_log_var, self.weight.shape)
            require_shape("bias_log_var", self.bias_log_var, self.bias.shape)

    @property
    def uncertain(self) -> bool:
        """Whether the weights have a variance."""
        return self.weight_log_var is not None

    @property
    def mean_matrix(self) -> Float[Array, "o j"]:
        """Means as one matrix [W, b]: a bias is the weight of an input that is always one."""
        return jnp.concatenate([self.weight, self.bias[:, None]], axis=1)

    @property
    def var_matrix(self) -> Float[Array, "o j"]:
        """Variances as one matrix like `mean_matrix`."""
        if self.weight_log_var is None or self.bias_log_var is None:
            return jnp.zeros_like(self.mean_matrix)
        return jnp.exp(jnp.concatenate([self.weight_log_var, self.bias_log_var[:, None]], axis=1))

    def __call__(self, h: Float[Array, " i"]) -> Float[Array, " o"]:
        """The output at the mean weights."""
        return self.weight @ h + self.bias

    def output_var(self, second_moments: Float[Array, " i"]) -> Float[Array, " o"]:
        """Variance that local weights add to each output, given the second moments of the input."""
        if self.weight_log_var is None or self.bias_log_var is None:
            return jnp.zeros_like(self.bias)
        return jnp.exp(self.weight_log_var) @ second_moments + jnp.exp(self.bias_log_var)

    def given(self, certain: Float[Array, " c"]) -> "Linear":
        """The layer as a function of its first inputs, with the last ones fixed at known values and folded into the bias."""
        split = self.weight.shape[1] - certain.size
        bias = self.bias + self.weight[:, split:] @ certain
        if self.weight_log_var is None or self.bias_log_var is None:
            return Linear(self.weight[:, :split], bias)
        bias_var = jnp.exp(self.bias_log_var) + jnp.exp(self.weight_log_var[:, split:]) @ certain**2
        # The gradient of the logarithm at zero would be infinite.
        log_var = jnp.log(jnp.maximum(bias_var, jnp.finfo(bias_var.dtype).tiny))
        return Linear(self.weight[:, :split], bias, self.weight_log_var[:, :split], log_var)

    def at_mean(self) -> "Linear":
        """The same layer with point weights at their means."""
        return Linear(self.weight, self.bias)

    def sample(self, *, key: PRNGKeyArray) -> "Linear":
        """The same layer with point weights drawn from their distribution."""
        if self.weight_log_var is None or self.bias_log_var is None:
            return self
        matrix = self.mean_matrix
        std = jnp.exp(jnp.concatenate([self.weight_log_var, self.bias_log_var[:, None]], axis=1) / 2)
        drawn = matrix + std * jr.normal(key, matrix.shape, matrix.dtype)
        return Linear(drawn[:, :-1], drawn[:, -1])

    def sample_output(self, h: Float[Array, " i"], *, key: PRNGKeyArray) -> Float[Array, " o"]:
        """The output under weights drawn for this call; given h it is Gaussian and drawn directly (local reparametrisation)."""
        if not self.uncertain:
            return self(h)
        return self(h) + safe_sqrt(self.output_var(h**2)) * jr.normal(key, self.bias.shape, self.bias.dtype)
