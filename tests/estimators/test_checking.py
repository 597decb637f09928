"""The check says how many components a mixture needs, and components="auto" takes that number for the answers."""

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import array
from small_models import fit_untrained, linear_prodssm, small_prodssm, wave, without_training

import prodssm as ps
from prodssm.estimators import checking, fitting
from prodssm.estimators.fitted import FittedModel
from prodssm.scoring.diagnostics import GaussianCheck
from prodssm.training.history import History

AUTO = ps.Moments(order=1, components="auto")


def checks_that_hold(*holding, overflow=()):
    """A check by the number of components alone: these hold at all steps, others for as many steps as components."""

    def check(self, standard, steps, samples):
        count = self.components
        if count in overflow:
            raise FloatingPointError("the forecast overflows")
        gap, trusted = np.zeros((steps, 1)), steps if count in holding else min(count, steps - 1)
        found = count if count in holding else None
        return GaussianCheck(gap, gap, gap, gap, trusted, samples, f"{count} compared.", found, (count,))

    return check


@pytest.fixture
def told(monkeypatch):
    def tell(*holding, **options):
        monkeypatch.setattr(FittedModel, "check", checks_that_hold(*holding, **options))

    return tell


@pytest.mark.parametrize(
    ("holding", "tried", "advice"),
    [
        ((1, 2), (1,), "1 compared."),
        ((4, 8), (1, 2, 4), "1 compared. Moments(components=4) agrees with them at all steps."),
        ((), (1, 2, 4, 8, 16), "1 compared. Moments(components=16) agrees with them for 9 steps. Forecast fewer steps."),
    ],
)
def test_more_components_are_tried_until_some_hold(local_model, told, holding, tried, advice):
    told(*holding)
    found = local_model.check(wave(), steps=10)
    assert found.tried == tried
    assert found.components == (holding[0] if holding else None)
    assert found.verdict == advice
    assert found.holds == (1 in holding)


def test_the_check_of_a_mixture_begins_with_its_own_components(local_model, told):
    told(1, 8)
    found = local_model.with_method(ps.Moments(components=4)).check(wave(), steps=10)
    assert (found.tried, found.components) == ((4, 8), 8)
    found = local_model.with_method("unscented").check(wave(), steps=10)
    assert (found.tried, found.components) == ((1,), 1)


def test_numbers_that_overflow_are_left_out(local_model, told):
    told(8, overflow=(2, 4))
    assert local_model.check(wave(), steps=10).tried == (1, 8)


def test_global_weights_have_no_mixtures_to_try(global_model, told):
    told(2)
    found = global_model.check(wave(), steps=10)
    assert (found.tried, found.components) == ((1,), None)
    assert "a mixture has no rule for weights='global'" in found.verdict


def test_the_number_keeps_the_order_of_moment_matching():
    assert checking.with_components(ps.Moments(order=3, splits=9), 4) == ps.Moments(order=3, components=4, splits=9)
    assert checking.with_components(ps.Unscented(), 4) == ps.Moments(components=4)


# ---------------------------------------------------------------- components="auto"


def fit_auto(data, **settings):
    """A model that was not trained, and the methods with which skill and calibration were to be found."""
    methods = []
    with without_training(check=True) as patch:
        patch.setattr(ps.ProDSSM, "_evaluate", lambda self, series, blocks: methods.append(self.method_))
        patch.setattr(ps.ProDSSM, "skill_", None, raising=False)
        return small_prodssm(method=AUTO, **settings).fit(data), methods


@pytest.mark.parametrize(
    ("holding", "chosen", "reason"),
    [
        ((1,), 1, "12 with one Gaussian"),
        ((4,), 4, "1 with one Gaussian, 2 with 2 components, 12 with 4 components"),
        (
            (),
            16,
            "1 with one Gaussian, 2 with 2 components, 4 with 4 components, 8 with 8 components, "
            "11 with 16 components, so none holds",
        ),
    ],
)
def test_auto_answers_with_what_the_check_recommends(told, holding, chosen, reason):
    told(*holding)
    model, evaluated = fit_auto(wave())
    assert model.choices_.components == chosen
    assert model.choices_.reasons["components"] == f"steps of 12 that agree with sampled futures: {reason}"
    assert f"components={chosen}" in str(model.choices_)
    assert model.method_ == ps.Moments(order=1, components=chosen)
    assert evaluated == [model.method_]  # skill and calibration are those of the answers
    assert model.method == AUTO
    assert model.check_.tried == (chosen,)


def test_training_with_auto_moves_one_gaussian():
    methods = []

    def train(start, *_, method, **__):
        methods.append(method)
        return start, History([1], [0.0])

    with without_training() as patch:
        patch.setattr(fitting, "train", train)
        model = linear_prodssm(method=AUTO).fit(wave())
        model.choices_ = model.choices_.checked({4: checks_that_hold(4)(model.members_[0], None, 3, 10)})
        model.update(wave(), iterations=1)
    assert methods == [ps.Moments(order=1)] * 2
    assert model.choose(wave()).components == 1


def test_the_number_that_was_chosen_is_saved(told, tmp_path):
    told(4)
    model, _ = fit_auto(wave())
    model.save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert loaded.method == AUTO
    assert loaded.method_ == model.method_ == ps.Moments(order=1, components=4)
    assert loaded.choices_ == model.choices_


def test_what_is_automatic_is_refused_where_nothing_chooses(local_model):
    y, why = wave(), r"Moments\(order=1, components='auto'\) leaves a number to ProDSSM.fit; give it here"
    for use in (
        lambda: ps.filter_states(local_model.ssm_, y, AUTO),
        lambda: ps.forecast(local_model.ssm_, y, 3, AUTO),
        lambda: ps.channel(local_model.ssm_.transition, ps.Gaussian(jnp.zeros(1), jnp.eye(1)), AUTO),
        lambda: local_model.with_method(AUTO),
        lambda: ps.DeepStochasticRegressor(method=AUTO, progress=False).fit(y, y[:, 0]),
    ):
        with pytest.raises(ValueError, match=why):
            use()
    with pytest.raises(ValueError, match=r"components='auto'\) has no rule for weights='global'"):
        small_prodssm(method=AUTO, weights="global").fit(y)


@pytest.mark.parametrize(
    ("components", "error", "why"),
    [
        ("many", ValueError, "components must be a number of Gaussians or 'auto', got 'many'"),
        (0, ValueError, "components must be at least 1"),
        (True, TypeError, "components must be an integer, got True"),
    ],
)
def test_a_wrong_number_of_components_is_refused(components, error, why, without_type_checks):
    with pytest.raises(error, match=why):
        ps.Moments(components=components)


# ---------------------------------------------------------------- a real check


def switch():
    """A model that moves any state close to -1 or 1, which one Gaussian cannot say."""
    weights = [array([[8.0], [8.0]]), array([[1.0, -1.0]])]
    network = ps.Network.from_arrays(weights, [array([1.0, -1.0]), array([-1.0])], "relu")  # 8 x, clipped
    model = fit_untrained(np.tile([[-1.0], [1.0]], (10, 1)), weights="point", measurement_noise=0.01)
    small = jnp.log(jnp.full(1, 0.01, model.ssm_.dtype))
    changed = network, small, small
    ssm = eqx.tree_at(lambda m: (m.transition, m.log_process_noise, m.likelihood.log_variance), model.ssm_, changed)
    return replace(model.members_[0], ssm=ssm)


@pytest.mark.slow
def test_a_mixture_follows_two_places_that_one_gaussian_cannot():
    checks = checking.check_components(switch(), ps.Series(np.full((8, 1), np.nan)), 4, 4000)
    assert not checks[1].holds
    count, last = list(checks.items())[-1]
    assert count in (2, 4)
    assert last.cdf_gap.max() < 0.05 < 0.15 < checks[1].cdf_gap.max()
