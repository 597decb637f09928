import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from conftest import LinearProblem
from linear_oracles import linear_state_space, random_linear_model, random_observations, textbook_kalman_filter
from mixture_oracles import (
    GRID,
    SPACING,
    cramer_distance,
    double_well,
    grid_filter,
    moves,
    sampled_states,
    trained,
    two_particles,
)
from oracles import close
from scipy.stats import norm
from small_models import standard_promotion

import prodssm as ps
from prodssm.datasets import kink
from prodssm.models.filtering import Recursion
from prodssm.models.free_run import free_run
from prodssm.models.state_space import require_memory


def say(text):
    """Shown by pytest -rP."""
    sys.stdout.write(f"{text}\n")


FEW = ps.Moments(components=3, splits=5)
ENDLESS = ps.Moments(components=10**7)


@pytest.fixture(scope="module")
def bent():
    """A small model whose transition bends, and observations."""
    net = ps.Network.mlp((1, 8, 1), key=jr.key(0))
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([0.5], [[1.0]]), transition=net, process_noise=[0.01], measurement_noise=[0.1]
    )
    return model, np.random.default_rng(0).normal(size=(12, 1)).astype(model.dtype)


@pytest.mark.float64
def test_a_linear_model_has_the_answers_of_the_kalman_filter():
    problem = LinearProblem(0, missing=True)
    wanted, found = (ps.filter_states(problem.model, problem.series, method) for method in ("moments", FEW))
    assert np.allclose(found.mean, wanted.mean, atol=1e-12)
    assert np.allclose(found.cov, wanted.cov, atol=1e-12)
    assert np.allclose(found.log_evidence, wanted.log_evidence, atol=1e-12)
    ahead = [ps.forecast(problem.model, problem.series, 3, m, u=problem.future_u) for m in ("moments", FEW)]
    assert np.allclose(ahead[0].mean, ahead[1].mean, atol=1e-12)
    assert np.allclose(ahead[0].cov, ahead[1].cov, atol=1e-12)
    assert np.allclose(ahead[0].interval(0.9), ahead[1].interval(0.9), atol=1e-9)


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("components", [1, 2, 8, 16])
def test_a_linear_model_has_the_answers_of_the_kalman_filter_with_any_number_of_components(components):
    linear = random_linear_model(1)
    noises = {name: np.diag(np.diag(getattr(linear, name))) for name in ("process_noise", "measurement_noise")}
    linear = linear._replace(**noises)
    y = random_observations(linear, 12, seed=1)
    found = ps.filter_states(linear_state_space(linear), y, ps.Moments(components=components))
    for got, wanted in zip((found.mean, found.cov, found.log_evidence), textbook_kalman_filter(linear, y), strict=True):
        assert np.allclose(got, wanted, rtol=0, atol=1e-12)


@pytest.mark.float64
@pytest.mark.parametrize(("components", "splits"), [(1, 1), (1, 27), (2, 1), (8, 1)])
def test_one_component_without_splits_is_the_gaussian_filter(bent, components, splits):
    model, y = bent
    wanted = ps.filter_states(model, y, ps.Moments(order=2))
    found = ps.filter_states(model, y, ps.Moments(order=2, components=components, splits=splits))
    for name in ("mean", "cov", "log_evidence"):
        assert np.allclose(getattr(found, name), getattr(wanted, name), rtol=0, atol=1e-12)
    if components > 1:
        assert np.allclose(np.exp(found.mixture.log_weights).sum(axis=1), 1.0, rtol=0, atol=1e-12)


def test_weights_sum_to_one_at_every_step(bent):
    model, y = bent
    weights = np.exp(ps.filter_states(model, y, FEW).mixture.log_weights)
    ahead = np.exp(ps.forecast(model, y, 4, FEW).about.mixture.log_weights)
    rounding = 100 * np.finfo(weights.dtype).eps
    assert (np.abs(np.concatenate([weights, ahead]).sum(axis=1) - 1) < rounding).all()


@pytest.mark.slow
def test_a_mixture_filter_under_transformations_is_the_plain_one(bent):
    model, y = bent

    def answers(y):
        found = ps.filter_states(model, y, FEW)
        # Empty slots have the logarithm of zero.
        parts = found.mixture.means, found.mixture.covs, jnp.exp(found.mixture.log_weights)
        return found.mean, found.cov, found.log_evidence, *parts

    many = jnp.stack([jnp.asarray(y), jnp.asarray(y[::-1])])
    plain, jitted, mapped = answers(y), jax.jit(answers)(many[0]), jax.vmap(answers)(many)
    for wanted, compiled, first in zip(*(jax.tree.leaves(each) for each in (plain, jitted, mapped)), strict=True):
        assert close(compiled, wanted)
        assert close(first[0], wanted)
    for wanted, second in zip(*(jax.tree.leaves(each) for each in (answers(y[::-1]), mapped)), strict=True):
        assert close(second[1], wanted)


@pytest.mark.slow
@pytest.mark.float64
def test_the_gradient_of_a_mixture_filter_is_the_slope_of_plain_calls(bent):
    """In one dimension directions are fixed; numbers of children and clusters are constants between jumps."""
    model, y = bent

    def evidence(scale):
        scaled = eqx.tree_at(lambda m: m.transition, model, jax.tree.map(lambda leaf: leaf * scale, model.transition))
        return ps.filter_states(scaled, y, FEW).log_likelihood

    step, scales = 1e-5, jnp.array([1.0, 1.1])
    found = [jax.grad(evidence)(scale) for scale in scales]
    for scale, gradient in zip(scales, found, strict=True):
        slope = (evidence(scale + step) - evidence(scale - step)) / (2 * step)
        assert np.isclose(gradient, slope, rtol=1e-6)
    assert close(jax.jit(jax.grad(evidence))(scales[0]), np.asarray(found[0]))
    assert close(jax.vmap(jax.grad(evidence))(scales), np.asarray(found))


def test_more_components_than_memory_are_refused_before_any_work(bent):
    model, y = bent
    asks = [
        lambda: ps.filter_states(model, y, ENDLESS),
        lambda: ps.forecast(model, y, 3, ENDLESS),
        lambda: ps.ProDSSM(method=ENDLESS).fit(y),
        lambda: ps.train(model, [ps.Series(y)], key=jr.key(0), method=ENDLESS),
        lambda: require_memory(model, 10**9, ps.Moments(components=10)),
    ]
    for ask in asks:
        with pytest.raises(ValueError, match=r"components must fit in memory: Moments\(components=10+\) .* GB.*; use fewer"):
            ask()
    require_memory(model, 10**4, ps.Moments(components=8))


@pytest.mark.slow
def test_a_fitted_model_refuses_more_components_than_memory(bent):
    y = bent[1]
    plain = ps.ProDSSM(latent_dim=1, hidden=(2,), recipe=ps.Recipe(iterations=1), n_estimators=1, progress=False)
    with standard_promotion():
        many = plain.fit(y).with_method(ENDLESS)
    for ask in (lambda: many.filter(y), lambda: many.forecast(y, 3), many.start):
        with pytest.raises(ValueError, match="components must fit in memory"):
            ask()


def test_beliefs_hold_the_components_and_their_moments(bent):
    model, y = bent
    found = ps.filter_states(model, y, FEW)
    weights = np.exp(found.mixture.log_weights)
    assert found.mixture.means.shape == (12, 3, 1)
    assert close(found.mean, (weights[:, :, None] * found.mixture.means).sum(axis=1))
    assert ps.filter_states(model, y).mixture is None


def test_a_forecast_has_the_quantiles_of_its_mixture(bent):
    model, y = bent
    ahead = ps.forecast(model, y, 4, FEW)
    low, high = ahead.interval(0.9)
    mixture = ahead.about.mixture
    weights, std = np.exp(mixture.log_weights), np.sqrt(mixture.covs[:, :, 0, 0])
    for end, probability in ((low, 0.05), (high, 0.95)):
        below = (weights * norm.cdf((end - mixture.means[:, :, 0]) / std)).sum(axis=1)
        assert np.allclose(below, probability, atol=1e-4)


def test_a_free_run_is_a_filter_and_a_forecast(bent):
    model, y = bent
    recursion, series = Recursion(model, FEW), ps.Series(y)
    mean, _ = free_run(recursion, series.record, jnp.arange(12) < 8)
    assert close(mean[8:], np.asarray(ps.forecast(model, y[:8], 4, FEW).mean), scale=10)


def test_training_through_a_mixture_improves_its_evidence(bent):
    model, y = bent
    recipe = ps.Recipe(iterations=5, learning_rate=1e-2, prior_weight=0.0)
    with standard_promotion():
        better, _ = ps.train(model, [ps.Series(y)], recipe, key=jr.key(0), method=FEW, progress=False)
    before, after = (ps.filter_states(each, y, FEW).log_likelihood for each in (model, better))
    assert after > before


def test_smoothing_and_global_weights_are_refused(bent):
    model, y = bent
    with pytest.raises(ValueError, match="must carry one Gaussian to smooth, got components"):
        ps.smooth_states(model, y, FEW)
    with pytest.raises(ValueError, match=r"Moments\(components=3, splits=5\) has no rule for weights='global'"):
        ps.filter_states(model.with_weight_mode("global"), y, FEW)
    with pytest.raises(ValueError, match="components must be at least 1"):
        ps.Moments(components=0)


@pytest.mark.slow
@pytest.mark.float64
def test_a_forecast_of_the_kink_is_ten_times_closer_to_sampled_futures_than_one_gaussian():
    model, y = trained(0.08), kink.simulate(0.08, seed=7, steps=60).y
    last = ps.filter_states(model, y)
    belief = ps.Gaussian(last.mean[-1], last.cov[-1])
    futures = sampled_states(model, belief, 20, 200_000, jr.key(2))[:, :, 0]
    noise = np.sqrt(0.08) * np.random.default_rng(0).standard_normal(futures.shape)
    fresh = ps.StateSpaceModel(
        initial=belief,
        transition=model.transition,
        process_noise=jnp.exp(model.log_process_noise),
        measurement_noise=[0.08],
    )
    nothing = np.full((1, 1), np.nan)
    one, many = (ps.forecast(fresh, nothing, 20, method) for method in ("moments", ps.Moments(components=8)))
    weights, means = np.exp(many.about.mixture.log_weights), many.about.mixture.means[:, :, 0]
    observed = many.about.mixture.covs[:, :, 0, 0]
    for what, seen, var, own in (
        ("observation", futures + noise, observed, one.cov[:, 0, 0]),
        ("state", futures, observed - 0.08, one.state_cov[:, 0, 0]),
    ):
        for n in (2, 4, 9, 19):
            gaussian = cramer_distance(np.ones(1), one.mean[n], np.sqrt(own[n]), seen[:, n])
            mixture = cramer_distance(weights[n], means[n], np.sqrt(var[n]), seen[:, n])
            say(f"{what}, step {n + 1}: one Gaussian {gaussian:.4f}, eight components {mixture:.4f}")
            assert mixture < gaussian / 10


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("r", [0.08, 0.8])
def test_the_filter_of_the_kink_is_as_good_as_one_on_a_grid(r):
    model = trained(r)
    transition = moves(model)
    scores = []
    for seed in range(10):
        run = kink.simulate(r, seed=200 + seed)
        exact = grid_filter(model, transition, run.y)
        at = [np.interp(x, GRID, each / SPACING) for x, each in zip(run.x, exact, strict=True)]
        found = ps.filter_states(model, run.y, ps.Moments(components=8)).mixture
        ours = [each.log_prob(x[None]) for each, x in zip(_steps(found), jnp.asarray(run.x), strict=True)]
        one = ps.filter_states(model, run.y)
        gaussian = norm.logpdf(run.x, one.mean[:, 0], one.std[:, 0])
        scores.append([-np.mean(np.log(at)), -np.mean(ours), -np.mean(gaussian)])
    grid, ours, gaussian = np.mean(scores, axis=0)
    say(f"r = {r}: NLL of the true state, grid {grid:.4f}, eight components {ours:.4f}, one Gaussian {gaussian:.4f}")
    assert ours < grid + 0.01


def _steps(beliefs):
    return [jax.tree.map(lambda leaf, t=t: leaf[t], beliefs) for t in range(len(beliefs.log_weights))]


@pytest.mark.slow
@pytest.mark.float64
@pytest.mark.parametrize("components", [8, 16])
def test_both_wells_are_found_with_their_probabilities(components):
    model = double_well()
    ahead = ps.forecast(model, np.full((1, 1), np.nan), 40, ps.Moments(components=components))
    futures = sampled_states(model, model.initial, 40, 100_000, jr.key(0))[:, :, 0]
    mixture = ahead.about.mixture
    for n in (9, 19, 39):
        std = np.sqrt(mixture.covs[n, :, 0, 0] - 0.01)
        left = (np.exp(mixture.log_weights[n]) * norm.cdf(-mixture.means[n, :, 0] / std)).sum()
        say(f"step {n + 1}: left {left:.3f}, of samples {(futures[:, n] < 0).mean():.3f}")
        assert abs(left - (futures[:, n] < 0).mean()) < 0.02
        assert mixture.means[n].min() < -0.5 < 0.5 < mixture.means[n].max()


@pytest.mark.slow
@pytest.mark.float64
def test_four_places_of_four_states_are_found():
    """One Gaussian is wrong by up to 0.14 of the mass of a place, eight components by 0.03."""
    model, nothing = two_particles(), np.full((1, 2), np.nan)
    futures = sampled_states(model, model.initial, 20, 100_000, jr.key(1))[:, -1, ::2]
    futures = futures + 0.1 * np.random.default_rng(0).standard_normal(futures.shape)  # with measurement noise
    one, many = (ps.forecast(model, nothing, 20, method) for method in ("moments", ps.Moments(components=8)))
    beliefs = (
        ps.GaussianMixture.single(ps.Gaussian(one.mean[-1], one.cov[-1]), 1, 1),
        jax.tree.map(lambda leaf: jnp.asarray(leaf[-1]), many.about.mixture),
    )

    def shares(places):
        return np.bincount((places < 0) @ np.array([1, 2]), minlength=4) / len(places)

    wanted, errors = shares(futures), []
    for belief in beliefs:
        drawn = jax.vmap(lambda key, belief=belief: belief.draw(key=key)[0])(jr.split(jr.key(3), 100_000))
        errors.append(np.abs(shares(np.asarray(drawn)) - wanted).max())
    say(f"largest error of the mass of a place: one Gaussian {errors[0]:.3f}, eight components {errors[1]:.3f}")
    assert errors[1] < 0.05 < errors[0] / 2


@pytest.mark.slow
def test_gradients_stay_finite_over_ten_thousand_steps_in_single_precision():
    with jax.enable_x64(False):
        _assert_finite_gradient(np.sin(np.arange(10_000, dtype=np.float32))[:, None])


def _assert_finite_gradient(y):
    net = ps.Network.mlp((1, 8, 1), key=jr.key(0))

    def evidence(scale):
        model = ps.StateSpaceModel(
            initial=ps.Gaussian([0.0], [[1.0]]),
            transition=jax.tree.map(lambda leaf: leaf * scale, net),
            process_noise=[0.01],
            measurement_noise=[0.1],
        )
        return ps.filter_states(model, y, FEW).log_likelihood

    value, gradient = jax.value_and_grad(evidence)(jnp.ones(()))
    assert value.dtype == gradient.dtype == jnp.float32
    assert np.isfinite(value)
    assert np.isfinite(gradient)
    assert gradient != 0
