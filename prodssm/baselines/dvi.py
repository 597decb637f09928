r"""Deterministic variational inference (Wu et al., ICLR 2019): a Bayesian network whose bound is found without sampling.

All weights have independent Gaussian posteriors. For one row of inputs the two outputs of the network, the mean m and the log
variance l of the target, are jointly Gaussian by moment matching, so that $E[\log N(y; m, e^l)]$ has a closed form. For one
hidden layer and certain inputs the hidden units are independent, and the moments of the outputs are exact.

The prior of each weight matrix and each bias vector is $N(0, s I)$ with $s \sim InverseGamma(\alpha, \beta)$. Empirical Bayes
sets s to the maximum of the bound. With K weights of means $\mu$ and variances v,
$-KL + \log p(s) = -\frac{K}{2} \log s - \frac{1}{2s} \sum (\mu^2 + v) - (\alpha + 1) \log s - \beta / s + \dots$ has its
maximum at $s = (\sum (\mu^2 + v) + 2 \beta) / (K + 2 \alpha + 2)$.

From the paper: one hidden layer of 50 ReLU units (100 for the largest sets), mean and log variance of the target as outputs,
their full covariance, the hyper-prior and its optimum, Adam, a weight of the KL divergence that rises at the beginning. The
numbers alpha = 4.4798 and beta = 10 are the paper's as we remember them; its text was not at hand.

Not stated in the paper, or not known to us: the initial posterior; here the means of `Network.mlp` and variances of exp(-6).
Learning rate, minibatches and iterations; here 40,000 steps of Adam with a rate of 0.01 that decays to a hundredth by a cosine,
on 32 rows, or 256 if there are more than 2,000, drawn with replacement. On two of the sets twice as many steps or three times
the rate changed the mean bound of the training rows by 0.02 or less: different starts find different local maxima. The warm-up;
here linear over the first fifth of the steps. Whether log p(s) is part of the bound; here it is, so that weights and prior
variances maximise the same objective. There are no validation rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from prodssm._compilation import compiled
from prodssm.baselines.standardised import StandardisedRegressor, hidden_units
from prodssm.beliefs.gaussian import Gaussian
from prodssm.beliefs.linalg import safe_sqrt
from prodssm.data.rows import Rows
from prodssm.data.series import Values
from prodssm.methods.moments import Moments
from prodssm.models.regression import in_chunks
from prodssm.networks.network import Network
from prodssm.training.loop import Task, maximise
from prodssm.training.recipe import Pace, Recipe

ALPHA, BETA = 4.4798, 10.0  # of the hyper-prior
ITERATIONS, LEARNING_RATE = 40_000, 0.01
MANY_ROWS = 2_000  # above which minibatches are larger
WARM_UP = 0.2  # of the iterations
NODES = 32  # of the quadrature over the log variance
# Independent hidden units need no covariance between them: order 1 is exact.
METHOD = Moments(order=1)


def output_belief(network: Network, x: Float[Array, " i"]) -> Gaussian:
    """The joint belief about mean and log variance of the target of one row."""
    # Known inputs are folded into the biases: a covariance of zeros over all of them would be multiplied out.
    return METHOD.propagate(network, Gaussian.certain(x[:1]), x[1:] if x.size > 1 else None)[1].state


def expected_log_likelihood(output: Gaussian, y: Float[Array, ""]) -> Float[Array, ""]:
    r"""$E[\log N(y; m, e^l)]$ for jointly Gaussian (m, l).

    The factor $e^{-l}$ has the mean $e^{-E[l] + Var[l]/2}$, and weighting with it shifts the mean of m by $-Cov[m, l]$.
    """
    (m, l), cov = output.mean, output.cov
    squares = cov[0, 0] + (y - m + cov[0, 1]) ** 2
    return -0.5 * (math.log(2 * math.pi) + l + squares * jnp.exp(cov[1, 1] / 2 - l))


def predictive_log_prob(output: Gaussian, y: Float[Array, ""]) -> Float[Array, ""]:
    """Log density of a target: given the log variance it is Gaussian, and over that by Gauss-Hermite quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    (m, l), cov = output.mean, output.cov
    std, steps = safe_sqrt(cov[1, 1]), jnp.asarray(nodes, m.dtype)
    slope = jnp.where(std > 0, cov[0, 1] / jnp.where(std > 0, std, 1.0), 0.0)
    means, log_vars = m + slope * steps, l + std * steps
    var = jnp.maximum(cov[0, 0] - slope**2, 0.0) + jnp.exp(log_vars)
    found = -0.5 * (jnp.log(2 * math.pi * var) + (y - means) ** 2 / var)
    return jax.scipy.special.logsumexp(found + jnp.asarray(np.log(weights / weights.sum()), m.dtype))


def best_prior_variance(squares: Float[Array, ""], count: int, alpha: float, beta: float) -> Float[Array, ""]:
    """The prior variance at which the bound is largest.

    Args:
        squares: Expected sum of the squared weights.
        count: Number of weights.
        alpha: Shape of the inverse Gamma distribution of the variance.
        beta: Its scale.
    """
    return (squares + 2 * beta) / (count + 2 * alpha + 2)


def prior_term(mean: Float[Array, "..."], log_var: Float[Array, "..."], alpha: float, beta: float) -> Float[Array, ""]:
    r"""$\max_s -KL(q \| N(0, s I)) + \log p(s)$ for one matrix or vector of weights."""
    squares = (mean**2 + jnp.exp(log_var)).sum()
    s = best_prior_variance(squares, mean.size, alpha, beta)
    kl = 0.5 * (squares / s + mean.size * (jnp.log(s) - 1) - log_var.sum())
    log_density = alpha * math.log(beta) - math.lgamma(alpha) - (alpha + 1) * jnp.log(s) - beta / s
    return log_density - kl


def network_prior_term(network: Network, alpha: float, beta: float) -> Float[Array, ""]:
    """The prior terms of all weight matrices and bias vectors, each of which has its own prior variance."""
    groups = [(layer.weight, layer.weight_log_var) for layer in network.linears]
    groups += [(layer.bias, layer.bias_log_var) for layer in network.linears]
    return jnp.stack([prior_term(mean, log_var, alpha, beta) for mean, log_var in groups if log_var is not None]).sum()


class Learned(eqx.Module):
    """The network, and the weight of the prior term in the bound, which the optimiser raises step by step."""

    network: Network
    prior_share: Float[Array, ""]


class BoundTask(Task):
    """The variational bound per row, for `prodssm.training.loop.maximise`."""

    averaged = True
    rows: Rows
    rise: Float[Values, ""]  # of the weight of the prior term, per step until it is 1
    prior_weight: Float[Values, ""]
    recipe: Recipe = eqx.field(static=True)
    pace: Pace
    alpha: float = eqx.field(static=True, default=ALPHA)
    beta: float = eqx.field(static=True, default=BETA)

    def objective(self, learned: Learned, key: PRNGKeyArray) -> Float[Array, ""]:
        """The bound per row, estimated from one minibatch."""
        rows, size = self.rows, self.recipe.batch_size
        assert size is not None
        members = jr.randint(key, (size,), 0, rows.training, jnp.int32)
        outputs = jax.vmap(lambda x: output_belief(learned.network, x))(rows.x[members])
        fit = jax.vmap(expected_log_likelihood)(outputs, rows.y[members, 0]).mean()
        share = self.prior_weight * jnp.minimum(jax.lax.stop_gradient(learned.prior_share), 1.0)
        return fit + share * network_prior_term(learned.network, self.alpha, self.beta) / rows.training.astype(fit.dtype)

    def optimiser(self) -> optax.GradientTransformation:
        """Adam, and the warm-up of the prior term."""

        def warm(updates: Any, _: Any = None) -> Any:
            return Learned(updates.network, jnp.asarray(self.rise))

        return optax.chain(super().optimiser(), optax.stateless(warm))

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        return ("dvi", str(self.alpha), str(self.beta)), (self.rows, self.rise)


@compiled
def _mean_outputs(network: Network, x: Float[Array, "n i"]) -> Float[Array, " n"]:
    return jax.vmap(lambda row: output_belief(network, row).mean[0])(x)


@compiled
def _log_probs(network: Network, x: Float[Array, "n i"], y: Float[Array, " n"]) -> Float[Array, " n"]:
    return jax.vmap(lambda row, y: predictive_log_prob(output_belief(network, row), y))(x, y)


class DVIRegressor(StandardisedRegressor):
    """A Bayesian network with one hidden layer, trained by deterministic variational inference.

    Args:
        hidden: Number of hidden units; None: 50, or 100 for more than 20,000 rows.
        iterations: Steps of the optimiser.
        batch: Rows per step; None: 32, or 256 for more than 2,000 rows.
        learning_rate: Of Adam, at the beginning.
        warm_up: Fraction of the iterations over which the weight of the prior term rises to 1.
        alpha: Shape of the inverse Gamma distribution of the prior variances.
        beta: Its scale.
        random_state: Seed of all randomness.
        progress: Show a progress bar.

    Attributes:
        network_: The network with its Gaussian weights, in standardised units.
        history_: What training recorded.
        n_features_in_: Number of inputs.

    Example:
        >>> found = DVIRegressor(hidden=5, iterations=5, progress=False).fit(X, targets)
        >>> found.predict(X).shape, found.log_prob(X, targets).shape
        ((20,), (20,))
    """

    def __init__(
        self,
        hidden: int | None = None,
        iterations: int = ITERATIONS,
        batch: int | None = None,
        learning_rate: float = LEARNING_RATE,
        warm_up: float = WARM_UP,
        alpha: float = ALPHA,
        beta: float = BETA,
        random_state: int = 0,
        progress: bool = True,
    ):
        self.hidden = hidden
        self.iterations = iterations
        self.batch = batch
        self.learning_rate = learning_rate
        self.warm_up = warm_up
        self.alpha = alpha
        self.beta = beta
        self.random_state = random_state
        self.progress = progress

    def fit(self, x: Any, y: Any) -> "DVIRegressor":
        """Maximise the bound of all rows."""
        x, y = self._standardise(x, y, least=2)
        hidden = hidden_units(len(x)) if self.hidden is None else self.hidden
        start_key, key = jr.split(jr.key(self.random_state))
        network = Network.mlp((x.shape[1], hidden, 2), "relu", key=start_key)
        start = Learned(network, jnp.zeros((), jnp.result_type(float)))
        found, self.history_ = maximise(self._task(Rows.padded(x, y)), start, key=key, progress=self.progress)
        if self.history_.interrupted:
            raise KeyboardInterrupt
        self.network_ = found.network
        return self

    def _task(self, rows: Rows) -> BoundTask:
        many, dtype = int(rows.training) > MANY_ROWS, rows.x.dtype
        recipe = Recipe(
            iterations=self.iterations,
            learning_rate=self.learning_rate,
            schedule="cosine",
            variance_rate=1.0,
            clip=math.inf,
            batch=(256 if many else 32) if self.batch is None else self.batch,
            patience=self.iterations,
        )
        rise, whole = (np.asarray(share, dtype) for share in (1 / max(1.0, self.warm_up * self.iterations), 1.0))
        return BoundTask(
            rows=rows,
            rise=rise,
            prior_weight=whole,
            recipe=recipe,
            pace=recipe.pace(dtype),
            alpha=self.alpha,
            beta=self.beta,
        )

    def _means(self, x: Float[np.ndarray, "n i"]) -> Float[np.ndarray, " n"]:
        return in_chunks(lambda x: _mean_outputs(self.network_, x), x)

    def _log_densities(self, x: Float[np.ndarray, "n i"], y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return in_chunks(lambda x, y: _log_probs(self.network_, x, y), x, y)
