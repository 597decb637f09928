"""A fitted model answers in the units of the data, splits its forecast variance, and checks its Gaussian assumption."""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close, root_eps
from small_models import AHEAD, fit_untrained, rich, small_prodssm, wave, without_training

import prodssm as ps
from prodssm.estimators import fitted
from prodssm.models.panels import filter_panel, smooth_panel

# ---------------------------------------------------------------- units

SCALE, SHIFT = np.array([1e6, 1.0]), np.array([-3e6, 5.0])


def other_units(series):
    """The same series with outputs, controls and time in other units; the scales of the outputs are 1e6 apart."""
    assert series.u is not None
    assert series.time is not None
    return ps.Series(series.y * SCALE + SHIFT, 1e-3 * series.u - 7.0, 60.0 * series.time + 100.0)


@pytest.fixture(scope="module")
def rescaled_model():
    """As `rich_model`, from the same data in other units."""
    data = [other_units(rich(0, 14)), other_units(rich(1, 10))]
    return fit_untrained(data, residual=True, measurement_noise=np.array([0.04, 0.01]) * SCALE**2)


def test_training_sees_the_same_numbers_in_any_units(rich_model, rescaled_model):
    for n in range(2):
        one = rich_model.scaling_.transform_series(rich(n, 14 - 4 * n))
        two = rescaled_model.scaling_.transform_series(other_units(rich(n, 14 - 4 * n)))
        for name in ("y", "u", "time"):
            a, b = (np.nan_to_num(np.asarray(getattr(each, name))) for each in (one, two))
            assert close(a, b), name
    assert close(rich_model.ssm_.likelihood.variance, rescaled_model.ssm_.likelihood.variance)


def assert_same_belief(plain, mean, cov):
    """A mean and a covariance in other units equal the plain ones."""
    assert close((np.asarray(mean, float) - SHIFT).astype(mean.dtype) / SCALE.astype(mean.dtype), plain[0], scale=3)
    assert close(cov / np.outer(SCALE, SCALE).astype(cov.dtype), plain[1], scale=3)


def test_filter_smoother_and_score_do_not_depend_on_units(rich_model, rescaled_model):
    series = rich(0, 14)
    observed = np.isfinite(np.asarray(series.y))
    for name in ("filter", "smooth"):
        plain, other = getattr(rich_model, name)(series), getattr(rescaled_model, name)(other_units(series))
        assert_same_belief((plain.mean, plain.cov), other.mean, other.cov)
        lost = (observed * np.log(SCALE)).sum(axis=1)
        assert close(other.log_evidence, np.asarray(plain.log_evidence) - lost, scale=3)
        assert np.isclose(other.log_likelihood, plain.log_likelihood - lost.sum(), rtol=root_eps(plain.mean))
    lost = (observed[1:] * np.log(SCALE)).sum() / observed[1:].sum()
    scores = rich_model.score(series), rescaled_model.score(other_units(series))
    assert np.isclose(scores[1], scores[0] - lost, rtol=root_eps(series.y))


def test_forecast_transition_and_stream_do_not_depend_on_units(rich_model, rescaled_model):
    series, u, dt = rich(0, 14), np.linspace(-1, 1, 5)[:, None], np.array([0.3, 0.8, 0.2, 0.5, 1.0])
    plain = rich_model.forecast(series, 5, u=u, dt=dt)
    other = rescaled_model.forecast(other_units(series), 5, u=1e-3 * u - 7.0, dt=60 * dt)
    assert_same_belief((plain.mean, plain.cov), other.mean, other.cov)
    assert_same_belief((plain.state_mean, plain.state_cov), other.state_mean, other.state_cov)
    assert_same_belief((plain.interval(0.9)[1], plain.cov), other.interval(0.9)[1], other.cov)
    states = np.array([[0.5, -1.0], [2.0, 0.3], [-1.0, 0.0]])
    plain = rich_model.transition(states, u[:3])
    other = rescaled_model.transition(states * SCALE + SHIFT, 1e-3 * u[:3] - 7.0)
    assert_same_belief((plain.mean, jax.vmap(jnp.diag)(plain.var)), other.mean, jax.vmap(jnp.diag)(other.var))
    plain = rich_model.step(rich_model.start(), series.y[0], u[0], dt=0.7)[1]
    other = rescaled_model.step(rescaled_model.start(), other_units(series).y[0], 1e-3 * u[0] - 7.0, dt=42.0)[1]
    assert_same_belief((plain.mean, plain.cov), other.mean, other.cov)


def test_simulation_runs_in_standardised_units_and_answers_in_those_of_the_data(rescaled_model, monkeypatch):
    scaling = rescaled_model.scaling_

    def simulate(model, steps, *, key, u, dt):
        assert np.allclose(u, (np.array([[-7.001], [-6.999]]) - scaling.u.mean) / scaling.u.scale)
        assert np.allclose(dt, np.array([30.0, 60.0]) / scaling.time_step)
        return jnp.zeros((steps, 2)), jnp.ones((steps, 2))

    monkeypatch.setattr(fitted, "simulate", simulate)
    states, y = rescaled_model.simulate(3, jr.key(0), u=[[-7.001], [-6.999]], dt=[30.0, 60.0])
    assert close(states, np.tile(scaling.y.mean, (3, 1)))
    assert close(y, np.tile(scaling.y.mean + scaling.y.scale, (3, 1)))


def test_the_first_future_time_step_can_be_chosen(rich_model):
    series = rich(0, 14)
    late, early = (rich_model.forecast(series, 1, dt=[dt]) for dt in (5.0, 1e-6))
    filtered = rich_model.filter(series)
    # Right after the last observation nothing has moved yet; later the state is less certain.
    assert np.allclose(early.state_mean[0], filtered.mean[-1], atol=1e-3)
    assert np.allclose(early.state_cov[0], filtered.cov[-1], atol=1e-3)
    assert (jnp.diag(late.state_cov[0]) > jnp.diag(early.state_cov[0])).all()


# ---------------------------------------------------------------- decomposition


def test_parts_of_a_forecast_add_up_to_its_variance_and_survive_the_next_fit(global_model):
    model = fit_untrained(wave(), weights="global")
    ahead = model.forecast(10 * wave(), AHEAD)
    with without_training():
        model.fit(100 * wave(seed=1))
    parts = ahead.decompose()
    total = parts.epistemic + parts.aleatoric + parts.measurement
    assert close(np.asarray(total, ahead.cov.dtype), ahead.std**2)
    assert (parts.epistemic > 0).all()
    assert (parts.aleatoric > 0).all()
    noise = global_model.ssm_.likelihood.variance * global_model.scaling_.y.scale**2
    assert np.allclose(parts.measurement, noise)


def test_point_weights_have_no_epistemic_variance():
    model = fit_untrained(wave(), weights="point", method="linearised")
    ahead = model.forecast(wave(), 4)
    parts = ahead.decompose()
    assert (parts.epistemic == 0).all()
    assert close(np.asarray(parts.aleatoric + parts.measurement, ahead.cov.dtype), ahead.std**2)
    assert (model.transition([[0.3]]).var == 0).all()
    assert (model.transition([[0.3]]).std == 0).all()


def test_a_variance_that_cannot_be_decomposed_says_what_to_use_instead(local_model, global_model):
    with pytest.raises(ValueError, match=r"local.*Use weights='global', or compare transition"):
        local_model.forecast(wave(), AHEAD).decompose()
    series = ps.Series(wave())
    linearised = replace(global_model.members_[0], method=ps.Linearised())
    with pytest.raises(ValueError, match="decompose needs method='moments', got Linearised"):
        linearised.forecast([series], AHEAD, [None], [None])[0].decompose()


# ---------------------------------------------------------------- the check of the Gaussian assumption


def with_gain(model, gain, var=0.02):
    """The same model with the network max(0, gain x) gain - max(0, -gain x) gain, whose slope is the gain squared."""
    weights = [gain * np.array([[1.0], [-1.0], [0.0], [0.0], [0.0]]), gain * np.array([[1.0, -1.0, 0.0, 0.0, 0.0]])]
    network = ps.Network.from_arrays(
        [array(w) for w in weights],
        [array(np.zeros(5)), array(np.zeros(1))],
        "relu",
        [array(np.full_like(w, var)) for w in weights],
        [array(np.full(5, var)), array(np.full(1, var))],
    )
    return eqx.tree_at(lambda m: m.transition, model.ssm_, network)


def test_the_check_holds_on_a_contractive_model_and_fails_on_an_expanding_one(global_model):
    member = global_model.members_[0]
    series = global_model.scaling_.transform_series(ps.Series(wave()))
    calm = replace(member, ssm=with_gain(global_model, 0.6)).check(series, AHEAD, 400)
    assert calm.holds, calm
    assert calm.mean_gap.shape == (AHEAD, 1)
    wild = replace(member, ssm=with_gain(global_model, 1.7, var=0.2)).check(series, AHEAD, 400)
    assert 0 < wild.trusted < AHEAD
    assert wild.components is None


def test_fit_warns_when_its_own_check_fails(global_model):
    model = small_prodssm(weights="global")
    expected = pytest.warns(UserWarning, match="The Gaussian forecast agrees with 400 futures .* for . of 12 steps")
    with without_training(found=with_gain(global_model, 1.7, var=0.2), check=True), expected:
        model.fit(wave())
    assert not model.check_.holds
    assert model.check_.verdict.endswith("Forecast fewer steps: a mixture has no rule for weights='global'.")
    with without_training(found=with_gain(global_model, 0.6), check=True):
        assert model.fit(wave()).check_.holds


def test_the_check_forecasts_over_the_observed_time_steps_and_controls(rich_model, monkeypatch):
    given = {}
    monkeypatch.setattr(fitted, "sample_futures", lambda recursion, record, ahead, **_: given.update(u=ahead.u, dt=ahead.dt))
    series = rich(0, 14)
    with pytest.raises((TypeError, AttributeError)):  # nothing was sampled
        rich_model.check(series, steps=5)
    standard = rich_model.scaling_.transform_series(series)
    assert close(given["dt"], standard.dt[8:13])
    assert close(given["u"], standard.u[8:13])


def test_outputs_are_the_emission_of_the_states_in_the_units_of_the_data():
    model = fit_untrained(50 + 7 * wave(), emission="linear", latent_dim=2, n_estimators=2)
    data = 50 + 7 * wave()
    data[5:9] = np.nan
    for found, members in (
        (model.smooth(data), [m.infer(smooth_panel, [ps.Series(data)])[0] for m in model.members_]),
        (model.filter(data), [m.infer(filter_panel, [ps.Series(data)])[0] for m in model.members_]),
    ):
        means, variances = [], []
        for member, beliefs in zip(model.members_, members, strict=True):
            c, offset = (
                np.asarray(part, float) for part in (member.ssm.emission.linears[0].weight, member.ssm.emission.linears[0].bias)
            )
            scale, shift = (np.asarray(part, float) for part in (model.scaling_.y.scale, model.scaling_.y.mean))
            means.append(shift + scale * (beliefs.mean @ c.T + offset))
            variances.append(scale**2 * np.einsum("yi,tij,yj->ty", c, beliefs.cov, c))
        assert close(found.outputs.mean, np.mean(means, axis=0))
        assert close(found.outputs.std**2, np.mean(variances, axis=0) + np.var(means, axis=0))
    with pytest.raises(ValueError, match=r"ProDSSM\.filter"):
        _ = ps.filter_states(model.ssm_, wave()).outputs
