"""Several models as one: their answers are the mixture of the members, which disagree on what is epistemic."""

import pickle
from functools import partial
from typing import Any

import jax.random as jr
import numpy as np
import pandas as pd
import pytest
from oracles import array
from scipy.stats import norm
from small_models import fit_unchecked, fit_untrained, linear_prodssm, no_check, same, wave

import prodssm as ps
from prodssm.beliefs.mixture_scores import mixture_log_prob, mixture_moments, mixture_quantile
from prodssm.estimators import fitting
from prodssm.estimators.ensemble import EnsemblePrediction, mix_transitions
from prodssm.estimators.results import Transition
from prodssm.training import loop
from prodssm.training.history import History, StopReason

Y, STEPS = wave(40), 5
LINEAR = {"emission": "linear", "latent_dim": 2, "linear_start": False}  # a linear start is the same for all members

SMALLEST = {"hidden": (), "method": "moments"}


def fit(data=Y, **settings):
    return fit_unchecked(linear_prodssm(**({"iterations": 3} | settings)), data)


@pytest.fixture(scope="module", params=[{}, LINEAR], ids=["identity", "linear"])
def pair(request):
    """An ensemble of two, and two models with the seeds of its members."""
    return fit(n_estimators=2, random_state=5, **request.param), [fit(random_state=seed, **request.param) for seed in (5, 6)]


@pytest.fixture(scope="module")
def trio():
    return fit(n_estimators=3)


def stacked(answers, name):
    return np.stack([np.asarray(getattr(each, name), float) for each in answers])


# ---------------------------------------------------------------- an ensemble is the mixture of separate fits


def test_members_are_the_models_of_consecutive_seeds(pair):
    ensemble, singles = pair
    assert [member.seed for member in ensemble.members_] == [5, 6]
    for member, single in zip(ensemble.members_, singles, strict=True):
        assert same(member.ssm, single.ssm_)
    assert not same(*(member.ssm for member in ensemble.members_))
    assert same(ensemble.ssm_, singles[0].ssm_)
    assert ensemble.history_.iterations == [3, 6]
    assert ensemble.history_.objective == [value for single in singles for value in single.history_.objective]


def test_the_forecast_is_exactly_the_mixture_of_two_fits(pair):
    ensemble, singles = pair
    found, alone = ensemble.forecast(Y, STEPS), [single.forecast(Y, STEPS) for single in singles]
    mean, cov = mixture_moments(stacked(alone, "mean"), stacked(alone, "cov"))
    dtype = found.mean.dtype
    assert isinstance(found, EnsemblePrediction)
    assert np.array_equal(found.mean, mean.astype(dtype))
    assert np.array_equal(found.cov, cov.astype(dtype))
    for probability in (0.025, 0.5, 0.9):
        wanted = mixture_quantile(probability, stacked(alone, "mean"), stacked(alone, "std"))
        assert np.array_equal(found.quantile(probability), wanted.astype(dtype))
    truth = Y[:STEPS]
    wanted = mixture_log_prob(np.stack([np.asarray(each.log_prob(truth), float) for each in alone]))
    assert np.allclose(found.log_prob(truth), wanted.astype(dtype), rtol=1e-6 if dtype == np.float32 else 1e-12)
    assert same(found.state_mean, alone[0].state_mean)


@pytest.mark.parametrize("verb", ["filter", "smooth"])
def test_evidence_is_the_mixtures_and_states_are_if_all_members_have_the_same(pair, verb):
    ensemble, singles = pair
    found, alone = getattr(ensemble, verb)(Y), [getattr(single, verb)(Y) for single in singles]
    dtype = found.mean.dtype
    assert np.array_equal(found.log_evidence, mixture_log_prob(stacked(alone, "log_evidence")).astype(dtype))
    if ensemble.emission == "identity":
        mean, cov = mixture_moments(stacked(alone, "mean"), stacked(alone, "cov"))
        assert np.array_equal(found.mean, mean.astype(dtype))
        assert np.array_equal(found.cov, cov.astype(dtype))
    else:  # latent coordinates differ between members
        assert same((found.mean, found.cov), (alone[0].mean, alone[0].cov))


def test_a_stream_is_the_mixture_of_streams(pair):
    ensemble, singles = pair
    state, states = ensemble.start(), [single.start() for single in singles]
    assert len(state) == 2
    for y in Y[:4]:
        state, found = ensemble.step(state, y)
        pairs = [single.step(each, y) for single, each in zip(singles, states, strict=True)]
        states, alone = [each[0] for each in pairs], [each[1] for each in pairs]
        mean, cov = (part[0] for part in mixture_moments(stacked(alone, "mean")[:, None], stacked(alone, "cov")[:, None]))
        assert np.array_equal(found.mean, mean.astype(found.mean.dtype))
        assert np.array_equal(found.cov, cov.astype(found.cov.dtype))
        wanted = stacked(alone, "state_mean")
        wanted = wanted.mean(axis=0) if ensemble.emission == "identity" else wanted[0]
        assert np.allclose(found.state_mean, wanted, rtol=1e-6)
    with pytest.raises(ValueError, match="with 2 parts, got 1"):
        ensemble.step(states[0], Y[0])


def test_a_transition_is_the_mixtures_or_that_of_the_first_member(pair):
    ensemble, singles = pair
    x = np.linspace(-1, 1, 3)[:, None] * np.ones((1, ensemble.ssm_.x_size))
    found, alone = ensemble.transition(x), [single.transition(x) for single in singles]
    if ensemble.emission == "identity":
        means, variances = stacked(alone, "mean"), stacked(alone, "var")
        assert np.allclose(found.mean, means.mean(axis=0), rtol=1e-6)
        assert np.allclose(found.var, variances.mean(axis=0) + means.var(axis=0), rtol=1e-6)
    else:
        assert same((found.mean, found.var), (alone[0].mean, alone[0].var))


def test_a_simulation_is_one_of_a_random_member(pair):
    ensemble, singles = pair
    chosen = set()
    for n in range(8):
        states, y = ensemble.simulate(4, jr.key(n))
        matches = [same((states, y), single.simulate(4, jr.key(n))) for single in singles]
        assert sum(matches) == 1
        chosen.add(matches.index(True))
    assert chosen == {0, 1}
    with pytest.raises(TypeError, match="key must be a key"):
        ensemble.simulate(4, 0)


def test_a_saved_ensemble_comes_back_bit_by_bit(pair, tmp_path):
    ensemble, _ = pair
    ensemble.save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert [member.seed for member in loaded.members_] == [5, 6]
    assert [member.history for member in loaded.members_] == [member.history for member in ensemble.members_]
    assert same([member.ssm for member in loaded.members_], [member.ssm for member in ensemble.members_])
    first, second = ensemble.forecast(Y, STEPS), loaded.forecast(Y, STEPS)
    assert same((first.mean, first.cov, first.interval()), (second.mean, second.cov, second.interval()))
    assert same(ensemble.filter(Y), loaded.filter(Y))
    assert loaded.score(Y) == ensemble.score(Y)


# ---------------------------------------------------------------- mixtures of forecasts


def test_intervals_and_densities_are_those_of_the_mixture(trio):
    ahead = trio.forecast(Y, STEPS)
    means, stds = (stacked(ahead.members, name) for name in ("mean", "std"))
    assert np.allclose(ahead.mean, means.mean(axis=0))
    assert np.allclose(ahead.std**2, (stds**2).mean(axis=0) + means.var(axis=0))
    lower, upper = ahead.interval(0.95)
    for end, probability in ((lower, 0.025), (ahead.quantile(0.5), 0.5), (upper, 0.975)):
        assert np.allclose(norm.cdf((np.asarray(end) - means) / stds).mean(axis=0), probability, atol=1e-6)
    truth = np.where(np.arange(STEPS)[:, None] == 3, np.nan, 0.3)
    expected = np.log(norm.pdf(truth, means, stds).mean(axis=0))[:, 0]
    assert np.allclose(ahead.log_prob(truth), np.where(np.isnan(expected), 0.0, expected), atol=1e-6)
    with pytest.raises(ValueError, match="y must have shape"):
        ahead.log_prob(Y[:3])
    with pytest.raises(ValueError, match="infinite"):
        ahead.log_prob(np.full((STEPS, 1), np.inf))
    for wrong in (0.0, 1.5, np.nan):
        with pytest.raises(ValueError, match="probability"):
            ahead.quantile(wrong)


def test_one_model_is_its_own_mixture():
    model = fit()
    assert not isinstance(model.forecast(Y, STEPS), EnsemblePrediction)
    alone = Transition(array(Y), array(Y))
    assert mix_transitions([alone]) is alone


def test_disagreement_between_members_is_epistemic(trio):
    ahead = trio.forecast(Y, STEPS)
    parts = ahead.decompose()
    assert np.allclose(parts.epistemic, stacked(ahead.members, "mean").var(axis=0))
    assert np.allclose(parts.epistemic + parts.aleatoric + parts.measurement, ahead.std**2)
    assert (parts.aleatoric > 0).all()
    noise = np.mean([np.asarray(member.measurement_variance(STEPS)) for member in trio.members_], axis=0)
    assert np.allclose(parts.measurement, noise)


@pytest.mark.parametrize("settings", [{}, LINEAR], ids=["identity", "linear"])
def test_global_weights_add_the_epistemic_variance_within_members(settings):
    ahead: Any = fit_untrained(Y, **SMALLEST, n_estimators=2, weights="global", **settings).forecast(Y, STEPS)
    parts, within = ahead.decompose(), [each.decompose() for each in ahead.members]
    between = stacked(ahead.members, "mean").var(axis=0)
    assert np.allclose(parts.epistemic, between + stacked(within, "epistemic").mean(axis=0))
    assert np.allclose(parts.epistemic + parts.aleatoric + parts.measurement, ahead.std**2)
    assert (parts.epistemic > between).all()


def test_the_forecast_of_an_ensemble_can_be_pickled(trio):
    ahead = trio.forecast(Y, STEPS)
    back = pickle.loads(pickle.dumps(ahead))
    assert np.array_equal(back.quantile(0.1), ahead.quantile(0.1))
    assert np.array_equal(back.decompose().epistemic, ahead.decompose().epistemic)


def test_outcomes_may_be_a_frame_with_its_columns_in_any_order():
    values = np.stack([Y[:, 0], 10 + Y[:, 0] ** 2], axis=1)
    frame = pd.DataFrame(values, columns=["a", "b"])
    ahead: Any = fit_untrained(frame, **SMALLEST, n_estimators=2).forecast(frame, STEPS)
    truth = frame[:STEPS]
    assert ahead.names == ("a", "b")
    for answer in (ahead, ahead.members[0]):
        assert np.array_equal(answer.log_prob(truth), answer.log_prob(values[:STEPS]))
        assert np.array_equal(answer.log_prob(truth[["b", "a"]]), answer.log_prob(values[:STEPS]))


def test_the_parts_of_a_forecast_survive_the_next_fit():
    model = fit(n_estimators=2)
    ahead, same_again = model.forecast(Y, STEPS), model.forecast(Y, STEPS)
    wanted = same_again.decompose()
    fit_unchecked(model, 100 * Y)
    found = ahead.decompose()
    assert np.allclose(found.measurement, wanted.measurement)
    assert np.allclose(found.aleatoric, wanted.aleatoric)


# ---------------------------------------------------------------- training of members


def test_ctrl_c_in_the_second_member_keeps_the_first(monkeypatch):
    single, chunks, run_chunk = fit(random_state=5), [], loop._run_chunk

    def interrupted(*args):
        chunks.append(1)
        if len(chunks) == 2:  # each member has one chunk
            raise KeyboardInterrupt
        return run_chunk(*args)

    monkeypatch.setattr(loop, "_run_chunk", interrupted)
    with pytest.warns(UserWarning, match="interrupted: the 1 of 3 models that are complete are kept"):
        model = fit(n_estimators=3, random_state=5)
    assert len(chunks) == 2
    assert [member.seed for member in model.members_] == [5]
    assert same(model.ssm_, single.ssm_)
    assert same(model.forecast(Y, STEPS).mean, single.forecast(Y, STEPS).mean)


def test_ctrl_c_in_an_early_stage_of_a_later_member_keeps_the_complete_one(monkeypatch):
    left = [3]

    def train(start, *_, **__):
        left[0] -= 1
        reason = StopReason.COMPLETED if left[0] else StopReason.INTERRUPTED
        # The last call is the first stage of the second member, with the best objective.
        return start, History([25], [0.0 if left[0] else 9.0], [], [1.0], reason)

    monkeypatch.setattr(fitting, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
    with pytest.warns(UserWarning, match="interrupted: the 1 of 2 models"):
        model = linear_prodssm(weights="global", fine_tune=5, n_estimators=2).fit(Y)
    assert left == [0]
    assert model.history_.objective == [0.0, 0.0]


def train_with(objectives, start, *_, **__):
    return start, History([25], [next(objectives)])


def test_members_without_a_finite_objective_are_left_out(monkeypatch):
    monkeypatch.setattr(fitting, "train", partial(train_with, iter([1.0, np.nan, 2.0])))
    monkeypatch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
    with pytest.warns(UserWarning, match="1 of 3 models never had a finite objective and were left out"):
        model = linear_prodssm(n_estimators=3).fit(Y)
    assert [member.seed for member in model.members_] == [0, 2]
    assert model.history_.objective == [1.0, 2.0]


def test_every_member_has_a_checkpoint_of_its_own(tmp_path, monkeypatch):
    first = fit(n_estimators=2, checkpoint=tmp_path / "run")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "run.1"]
    monkeypatch.setattr(loop, "_run_chunk", None)  # all is done already
    again = fit(n_estimators=2, checkpoint=tmp_path / "run")
    assert same([member.ssm for member in again.members_], [member.ssm for member in first.members_])
