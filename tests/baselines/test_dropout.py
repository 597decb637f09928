"""MC dropout: passes against all masks, the loss against the bound, densities against NumPy, and a choice without test data."""

import itertools
import math

import jax
import jax.random as jr
import numpy as np
import pytest
from oracles import SampleMoments, array, assert_cov_matches, assert_mean_matches, close
from scipy import integrate, special, stats

from prodssm._progress import Progress
from prodssm.baselines.dropout import (
    PRECISIONS,
    DropoutRegressor,
    DropoutTask,
    draw_output,
    log_mean_density,
    weight_penalty,
)
from prodssm.baselines.standardised import hidden_units
from prodssm.data.rows import Rows
from prodssm.networks.network import Network
from prodssm.training.recipe import Recipe

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(60, 2)), RNG.normal(size=60)


@pytest.fixture(scope="module")
def network():
    return Network.mlp((3, 4, 1), "relu", uncertain=False, key=jr.key(0))


@pytest.fixture(scope="module")
def fitted():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return small().fit(X, Y)


def small(**settings):
    return DropoutRegressor(**{"hidden": 5, "epochs": 4, "passes": 30, "rates": (0.05, 0.2), "progress": False} | settings)


def task_of(x, y, validation=0, rate=0.0):
    recipe = Recipe(iterations=1, learning_rate=0.1, schedule="constant", variance_rate=1.0, clip=1.0, batch=16)
    return DropoutTask.of(Rows.padded(x, y, validation), recipe, rate=rate, precision=3.0, length_scale=0.5)


def test_passes_have_the_moments_of_all_masks(network):
    x, rate = RNG.normal(size=3), 0.3
    (w1, b1), (w2, b2) = ((np.asarray(layer.weight, float), np.asarray(layer.bias, float)) for layer in network.linears)
    total, squares = 0.0, 0.0
    for mask in itertools.product([0, 1], repeat=7):
        share = math.prod(1 - rate if kept else rate for kept in mask)
        value = w2 @ (np.maximum(w1 @ (x * mask[:3]) + b1, 0) * mask[3:]) + b2
        total, squares = total + share * value, squares + share * value**2
    draw = jax.jit(jax.vmap(lambda key: draw_output(network, array(x), array(rate), key=key)))
    drawn = np.asarray(draw(jr.split(jr.key(1), 20_000)), float)
    moments = SampleMoments.of(drawn, drawn)
    assert_mean_matches(total, moments)
    assert_cov_matches((squares - total**2)[None], moments)


def test_without_dropout_a_pass_is_the_network(network):
    x = array(RNG.normal(size=3))
    assert close(draw_output(network, x, array(0.0), key=jr.key(0)), network(x))


def test_the_objective_is_the_log_posterior_over_n_tau_without_dropout(network):
    x, y = RNG.normal(size=(1, 3)), RNG.normal(size=(1, 1))
    weights = np.concatenate([np.ravel(part) for layer in network.linears for part in (layer.weight, layer.bias)])
    residual = float(y[0, 0] - network(array(x[0]))[0])
    wanted = stats.norm.logpdf(residual, scale=3**-0.5) + stats.norm.logpdf(weights, scale=1 / 0.5).sum()
    constants = stats.norm.logpdf(0, scale=3**-0.5) + weights.size * stats.norm.logpdf(0, scale=1 / 0.5)
    found = task_of(x, y).objective(network, jr.key(0))  # one row, padded to 64
    assert close(found, (wanted - constants) / 3.0)


def test_the_penalty_of_a_matrix_is_times_the_probability_to_keep(network):
    matrices, biases = (
        sum(float((getattr(layer, name) ** 2).sum()) for layer in network.linears) for name in ("weight", "bias")
    )
    assert close(weight_penalty(network, array(0.25)), 0.75 * matrices + biases)


def test_validation_rows_are_not_trained_on(network):
    x, y = RNG.normal(size=(10, 3)), RNG.normal(size=(10, 1))
    y[8:] = np.nan
    values = [task_of(x, y, validation=2, rate=0.1).objective(network, jr.key(k)) for k in range(10)]
    assert np.isfinite(values).all()


def test_the_density_is_a_mixture_of_gaussians_over_passes():
    drawn, y, precision = RNG.normal(size=(7, 4)), RNG.normal(size=4), 2.5
    found = log_mean_density(array(drawn), array(y), array(precision))
    assert close(found, np.log(stats.norm.pdf(y, drawn, precision**-0.5).mean(axis=0)))
    one = log_mean_density(array(drawn[:1]), array(y), array(precision))
    assert close(one, stats.norm.logpdf(y, drawn[0], precision**-0.5))


def test_the_density_of_a_far_target_does_not_underflow():
    found = log_mean_density(array([[0.0], [1.0]]), array([100.0]), array(10.0))
    assert close(found, stats.norm.logpdf([99.0], scale=10**-0.5) - math.log(2))


def scores_in_numpy(model, x, y, held_out, rate):
    """Mean log density of the last rows for each precision, from passes of a network that was trained on the others."""
    with Progress("training", 1, shown=False) as bar:
        network, _ = model._train(Rows.padded(x, y, held_out), rate, 10.0, bar)
    passes = [
        [draw_output(network, array(row), array(rate), key=key)[0].item() for row in x[-held_out:]]
        for key in model._pass_keys()
    ]
    densities = [stats.norm.logpdf(y[-held_out:, 0], np.array(passes), precision**-0.5) for precision in PRECISIONS]
    return [(special.logsumexp(each, axis=0) - math.log(len(passes))).mean() for each in densities]


@pytest.mark.usefixtures("standard_promotion")
def test_rate_and_precision_are_the_best_on_the_last_fifth(fitted):
    x, y = (X - X.mean(axis=0)) / X.std(axis=0), (Y - Y.mean())[:, None] / Y.std()
    scores = np.array([scores_in_numpy(fitted, x, y, 12, rate) for rate in fitted.rates])
    assert np.allclose(fitted.validation_, scores.max(axis=1) - math.log(Y.std()), atol=1e-4)
    rate, precision = np.unravel_index(np.argmax(scores), scores.shape)
    assert fitted.rate_ == fitted.rates[rate]
    assert fitted.precision_ == pytest.approx(PRECISIONS[precision] / Y.var(), rel=0.2)


def test_the_predictive_density_integrates_to_one_and_has_the_predicted_mean(fitted):
    y = np.linspace(-30, 30, 20_001)
    density = np.exp(fitted.log_prob(np.repeat(X[:1], len(y), axis=0), y))
    assert integrate.trapezoid(density, y) == pytest.approx(1.0, abs=1e-4)
    assert integrate.trapezoid(y * density, y) == pytest.approx(fitted.predict(X[:1])[0], abs=1e-4)


def test_no_row_depends_on_its_neighbours(fitted):
    assert close(fitted.predict(X[:3]), fitted.predict(X)[:3], scale=10)
    assert close(fitted.log_prob(X[:3], Y[:3]), fitted.log_prob(X, Y)[:3], scale=10)


@pytest.mark.usefixtures("standard_promotion")
def test_units_of_inputs_and_target_change_nothing(fitted):
    other = small().fit(1e3 * X - 7, 50 * Y + 3)
    assert np.allclose(other.predict(1e3 * X - 7), 50 * fitted.predict(X) + 3, atol=0.05)
    assert np.allclose(other.log_prob(1e3 * X - 7, 50 * Y + 3), fitted.log_prob(X, Y) - math.log(50), atol=1e-2)


def test_large_sets_have_more_hidden_units():
    assert (hidden_units(20_000), hidden_units(20_001)) == (50, 100)


def test_other_numbers_of_columns_are_refused(fitted):
    with pytest.raises(ValueError, match="features"):
        fitted.predict(X[:, :1])
    with pytest.raises(ValueError, match="inconsistent"):
        fitted.log_prob(X, Y[:-1])


@pytest.mark.slow
@pytest.mark.usefixtures("standard_promotion")
def test_a_noisy_function_is_learned():
    draw = np.random.default_rng(3)
    x = draw.uniform(-2, 2, size=(800, 2))
    mean = 10 * np.sin(2 * x[:, 0]) + 5 * x[:, 1]
    y = mean + 2 * draw.normal(size=800)
    model = DropoutRegressor(epochs=120, learning_rate=0.005, rates=(0.005, 0.02), progress=False).fit(x[:600], y[:600])
    assert np.sqrt(((model.predict(x[600:]) - mean[600:]) ** 2).mean()) < 1.5
    truth = stats.norm.logpdf(y[600:], mean[600:], 2)
    assert (truth - model.log_prob(x[600:], y[600:])).mean() < 0.3
    assert len(model.history_.objective)
