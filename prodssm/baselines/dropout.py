r"""MC dropout (Gal and Ghahramani, 2016): a network with dropout whose stochastic passes are draws of its predictions.

Weights are $W_i = M_i\, diag(z_i)$ with Bernoulli variables z that keep a unit with probability p. The variational bound of a
Gaussian likelihood of precision $\tau$ and a prior of length scale l is, up to a factor, minus the loss
$\frac{1}{N} \sum_n \frac12 (y_n - \hat y_n)^2 + \frac{l^2}{2 N \tau} \sum_i (p |M_i|^2 + |b_i|^2)$. The density of a target
is the mean of $N(y; \hat y_s, 1/\tau)$ over stochastic passes s.

From the paper: one hidden layer of 50 ReLU units (100 for the largest sets), dropout on inputs and hidden units, length scale
0.01, Adam, minibatches of 32 rows, 400 passes over the rows (ten times the 40 of its search), hyper-parameters by the
log likelihood of validation rows.

Not stated in the paper: the learning rate; here 0.001, the default of Adam. The initialisation; here that of `Network.mlp`. The
validation rows; here the last fifth of the given rows. The grid of the search, there Bayesian optimisation; here four rates,
each trained as long as the final network. There $\tau$ is fixed before training; here it maximises the log likelihood of the
validation rows after training, on a fine grid: with this length scale the weight decay, through which alone it enters the loss,
is below 1e-6. In the search the decay is that of a precision of 10, afterwards that of the $\tau$ that was found. Minibatches
are drawn with replacement.
"""

import math
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Key, PRNGKeyArray

from prodssm._compilation import compiled
from prodssm._progress import Progress, shared
from prodssm.baselines.standardised import StandardisedRegressor, hidden_units
from prodssm.data.rows import Rows
from prodssm.data.series import Values
from prodssm.models.regression import in_chunks
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network
from prodssm.training.history import History
from prodssm.training.loop import Task, maximise
from prodssm.training.recipe import Pace, Recipe

RATES = (0.005, 0.01, 0.05, 0.1)
EPOCHS, BATCH, LEARNING_RATE, LENGTH_SCALE = 400, 32, 0.001, 0.01
PASSES = 1000  # of a prediction
VALIDATION = 0.2  # of the rows
FIRST_PRECISION = 10.0  # of the standardised target, for the weight decay of the search
PRECISIONS = np.geomspace(0.1, 1e6, 140)  # of the standardised target, a factor of 1.12 apart


def draw_output(network: Network, x: Float[Array, " i"], rate: Float[Values, ""], *, key: PRNGKeyArray) -> Float[Array, " o"]:
    """One stochastic pass: each input of a linear layer is dropped with probability `rate`."""
    for layer, layer_key in zip(network.layers, jr.split(key, len(network.layers)), strict=True):
        if isinstance(layer, Linear):
            x = jnp.where(jr.uniform(layer_key, x.shape, x.dtype) < rate, 0.0, x)
        x = layer(x)
    return x


def weight_penalty(network: Network, rate: Float[Values, ""]) -> Float[Array, ""]:
    r"""$\sum_i p |M_i|^2 + |b_i|^2$, where p = 1 - rate is the probability that a unit is kept."""
    parts = [(1 - rate) * (layer.weight**2).sum() + (layer.bias**2).sum() for layer in network.linears]
    return jnp.stack(parts).sum()


def log_mean_density(drawn: Float[Array, "s n"], y: Float[Array, " n"], precision: Float[Array, ""]) -> Float[Array, " n"]:
    """Log of the mean over passes of the Gaussian density of each target around the output of the pass."""
    exponents = -precision / 2 * (y[None, :] - drawn) ** 2
    constant = 0.5 * jnp.log(precision / (2 * math.pi)) - math.log(drawn.shape[0])
    return jax.scipy.special.logsumexp(exponents, axis=0) + constant


class DropoutTask(Task):
    """Training with dropout, for `prodssm.training.loop.maximise`: the objective is minus the loss."""

    rows: Rows
    rate: Float[Values, ""]
    decay: Float[Values, ""]  # l^2 / (2 N tau)
    prior_weight: Float[Values, ""]
    recipe: Recipe = eqx.field(static=True)
    pace: Pace

    @classmethod
    def of(cls, rows: Rows, recipe: Recipe, *, rate: float, precision: float, length_scale: float) -> "DropoutTask":
        """The task of these rows and hyper-parameters."""
        decay = length_scale**2 / (2 * float(rows.training) * precision)
        numbers = {"rate": rate, "decay": decay, "prior_weight": 1.0}
        arrays = {name: np.asarray(number, rows.x.dtype) for name, number in numbers.items()}
        return cls(rows=rows, recipe=recipe, pace=recipe.pace(rows.x.dtype), **arrays)

    def objective(self, learned: Network, key: PRNGKeyArray) -> Float[Array, ""]:
        """Minus the loss of one minibatch; every row has its own pass."""
        rows_key, pass_key = jr.split(key)
        size = self.recipe.batch_size
        assert size is not None
        members = jr.randint(rows_key, (size,), 0, self.rows.training, jnp.int32)
        drawn = jax.vmap(lambda x, key: draw_output(learned, x, self.rate, key=key))(
            self.rows.x[members], jr.split(pass_key, size)
        )
        penalty = self.prior_weight * self.decay * weight_penalty(learned, self.rate)
        return -0.5 * ((self.rows.y[members] - drawn) ** 2).mean() - penalty

    @property
    def identity(self) -> tuple[Sequence[str], tuple[Any, ...]]:
        """Words and arrays that tell this task from another."""
        return ("dropout",), (self.rows, self.rate, self.decay)


def _passes(network: Network, x: Float[Array, "n i"], rate: Float[Array, ""], keys: Key[Array, " s"]) -> Float[Array, "s n"]:
    """Outputs of many passes. Each drops the same units for all rows, hence no row depends on its neighbours."""
    return jax.lax.map(lambda key: jax.vmap(lambda row: draw_output(network, row, rate, key=key)[0])(x), keys)


@compiled
def _mean_outputs(
    network: Network, x: Float[Array, "n i"], rate: Float[Array, ""], keys: Key[Array, " s"]
) -> Float[Array, " n"]:
    return _passes(network, x, rate, keys).mean(axis=0)


@compiled
def _log_probs(
    network: Network,
    x: Float[Array, "n i"],
    y: Float[Array, " n"],
    rate: Float[Array, ""],
    precisions: Float[Array, " k"],
    keys: Key[Array, " s"],
) -> Float[Array, "n k"]:
    """Log density of each target for each precision."""
    drawn = _passes(network, x, rate, keys)
    return jax.lax.map(lambda precision: log_mean_density(drawn, y, precision), precisions).T


class DropoutRegressor(StandardisedRegressor):
    """MC dropout with one hidden layer.

    Rate and precision are chosen on the last fifth of the given rows, which should be in random order; then all are fitted.

    Args:
        hidden: Number of hidden units; None: 50, or 100 for more than 20,000 rows.
        rates: Dropout rates to choose from.
        epochs: Passes over the training rows, in the search and in the final fit.
        batch: Rows per step.
        learning_rate: Of Adam.
        length_scale: Of the prior; decides the weight decay.
        passes: Stochastic passes of a prediction.
        random_state: Seed of all randomness.
        progress: Show a progress bar.

    Attributes:
        rate_: The dropout rate that was chosen.
        precision_: The precision that was chosen, of the target in its units.
        validation_: Mean log density of the validation rows for each rate at its best precision, in the units of the target.
        network_: The trained network, in standardised units.
        history_: What the final fit recorded.
        n_features_in_: Number of inputs.

    Example:
        >>> found = DropoutRegressor(hidden=5, epochs=2, rates=(0.05,), passes=10, progress=False).fit(X, targets)
        >>> found.predict(X).shape, found.rate_
        ((20,), 0.05)
    """

    def __init__(
        self,
        hidden: int | None = None,
        rates: Sequence[float] = RATES,
        epochs: int = EPOCHS,
        batch: int = BATCH,
        learning_rate: float = LEARNING_RATE,
        length_scale: float = LENGTH_SCALE,
        passes: int = PASSES,
        random_state: int = 0,
        progress: bool = True,
    ):
        self.hidden = hidden
        self.rates = rates
        self.epochs = epochs
        self.batch = batch
        self.learning_rate = learning_rate
        self.length_scale = length_scale
        self.passes = passes
        self.random_state = random_state
        self.progress = progress

    def fit(self, x: Any, y: Any) -> "DropoutRegressor":
        """Choose rate and precision, then fit all rows."""
        x, y = self._standardise(x, y, least=5)
        held_out = round(VALIDATION * len(x))
        total = len(self.rates) * self._iterations(len(x) - held_out) + self._iterations(len(x))
        with Progress("training", total, shown=self.progress) as bar:
            scores = np.stack([self._validate(x, y, held_out, rate, bar) for rate in self.rates])
            best, chosen = divmod(int(np.argmax(scores)), len(PRECISIONS))
            self.rate_, self._precision = self.rates[best], float(PRECISIONS[chosen])
            self.network_, self.history_ = self._train(Rows.padded(x, y), self.rate_, self._precision, bar)
        scale = float(self._y_scaling.scale[0])
        self.precision_ = self._precision / scale**2
        self.validation_ = scores.max(axis=1) - np.log(scale)
        return self

    def _iterations(self, rows: int) -> int:
        return max(1, round(self.epochs * rows / self.batch))

    def _validate(
        self, x: Float[np.ndarray, "n i"], y: Float[np.ndarray, "n 1"], held_out: int, rate: float, bar: Progress
    ) -> Float[np.ndarray, " k"]:
        """Mean log density of the last rows after training on the others, for each precision."""
        network, _ = self._train(Rows.padded(x, y, held_out), rate, FIRST_PRECISION, bar)
        return self._densities(network, x[-held_out:], y[-held_out:, 0], rate, PRECISIONS).mean(axis=0)

    def _train(self, rows: Rows, rate: float, precision: float, bar: Progress) -> tuple[Network, History]:
        """A network trained on the training rows; all rates have the same start and minibatches."""
        iterations, hidden = self._iterations(int(rows.training)), self.hidden
        hidden = hidden_units(int(rows.training + rows.validation)) if hidden is None else hidden
        settings: dict[str, Any] = {"schedule": "constant", "variance_rate": 1.0, "clip": math.inf, "patience": iterations}
        recipe = Recipe(iterations=iterations, learning_rate=self.learning_rate, batch=self.batch, **settings)
        start_key, key = jr.split(jr.key(self.random_state))
        network = Network.mlp((rows.x.shape[1], hidden, 1), "relu", uncertain=False, key=start_key)
        task = DropoutTask.of(rows, recipe, rate=rate, precision=precision, length_scale=self.length_scale)
        with shared(bar):
            network, history = maximise(task, network, key=key)
        if history.interrupted:
            raise KeyboardInterrupt
        return network, history

    def _means(self, x: Float[np.ndarray, "n i"]) -> Float[np.ndarray, " n"]:
        rate, keys = np.asarray(self.rate_), self._pass_keys()
        return in_chunks(lambda x: _mean_outputs(self.network_, x, rate, keys), x)

    def _log_densities(self, x: Float[np.ndarray, "n i"], y: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
        return self._densities(self.network_, x, y, self.rate_, np.array([self._precision]))[:, 0]

    def _densities(self, network: Network, x: Any, y: Any, rate: float, precisions: Any) -> Float[np.ndarray, "n k"]:
        """Log densities in standardised units for each precision."""
        at, keys = np.asarray(rate), self._pass_keys()
        return in_chunks(lambda x, y: _log_probs(network, x, y, at, precisions, keys), x, y)

    def _pass_keys(self) -> Key[Array, " s"]:
        return jr.split(jr.fold_in(jr.key(self.random_state), 1), self.passes)
