"""How `ProDSSM` trains a member: stages, initialisation, validation data, interruptions and checkpoints."""

import itertools

import equinox as eqx
import numpy as np
import pytest
from oracles import close
from small_models import TIME, fit_unchecked, fit_untrained, linear_prodssm, no_check, same, wave

import prodssm as ps
from prodssm.data.batching import SeriesBatch
from prodssm.data.splitting import Split
from prodssm.estimators import fitting
from prodssm.training import loop
from prodssm.training.history import History, StopReason
from prodssm.training.objectives import mean_log_score
from prodssm.training.recipe import SERIES_RECIPE


def trained(data=None, **settings):
    """A linear model that was really trained, without the check at the end."""
    return fit_unchecked(linear_prodssm(**settings), wave() if data is None else data)


@pytest.fixture
def recorded(monkeypatch):
    """What `train` was called with; it returns the initial model."""
    calls = []

    def train(start, series, recipe, *, validation, checkpoint, **_):
        calls.append({"series": series, "recipe": recipe, "validation": validation, "checkpoint": checkpoint, "start": start})
        return start, History([25], [0.0], [] if validation is None else [0.0])

    monkeypatch.setattr(fitting, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
    return calls


# ---------------------------------------------------------------- training


def test_fit_learns_returns_itself_and_is_repeatable():
    model = linear_prodssm()
    assert fit_unchecked(model, wave()) is model
    again, other = trained(), trained(random_state=1)
    assert same(model.ssm_, again.ssm_)
    assert not same(model.ssm_, other.ssm_)
    assert model.history_.iterations == [25, 50]
    assert model.history_.objective[1] > model.history_.objective[0]
    assert model.history_.stop_reason is StopReason.COMPLETED


@pytest.mark.slow
def test_every_method_learns_the_same_linear_model():
    methods = ps.Linearised(), ps.Unscented(), ps.Sampled(samples=16)
    first, *others = [trained(method=method, weights="point", iterations=25).forecast(wave(), 3) for method in methods]
    for other in others:
        assert close(other.mean, first.mean, scale=10)
        assert close(other.cov, first.cov, scale=10)


def test_divergence_is_warned_of(monkeypatch):
    monkeypatch.setattr(
        fitting, "train", lambda start, *_, **__: (start, History([25, 50], [1.0, np.nan], stop_reason=StopReason.DIVERGED))
    )
    monkeypatch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
    with pytest.warns(UserWarning, match="training: the objective was no longer finite.*smaller learning_rate"):
        linear_prodssm().fit(wave())


# ---------------------------------------------------------------- stages and initialisation


def test_global_weights_are_trained_as_local_ones_first_and_then_fine_tuned(tmp_path, monkeypatch):
    plain, tuned = trained(), trained(weights="global", fine_tune=1)
    assert tuned.ssm_.weights == "global"
    assert tuned.history_.iterations == [*plain.history_.iterations, 51]
    assert tuned.history_.objective[:-1] == plain.history_.objective
    moved = np.abs(tuned.ssm_.transition.weights.mean - plain.ssm_.transition.weights.mean).max()
    assert 0 < moved < 0.01
    # A fit that is killed before it is fine-tuned resumes to the same bits.
    settings, original = {"weights": "global", "fine_tune": 1, "checkpoint": tmp_path / "run"}, loop.write_checkpoint

    def killed(path, state, history, identity):
        original(path, state, history, identity)
        if history.iterations == [25, 50]:
            raise SystemExit

    monkeypatch.setattr(loop, "write_checkpoint", killed)
    with pytest.raises(SystemExit):
        trained(**settings)
    monkeypatch.setattr(loop, "write_checkpoint", original)
    assert same(trained(**settings).ssm_, tuned.ssm_)


def test_no_fine_tuning_trains_global_weights_from_the_start(recorded):
    for fine_tune, modes in ((1, ["local", "global"]), (0, ["global"])):
        recorded.clear()
        model = linear_prodssm(weights="global", fine_tune=fine_tune, checkpoint="run").fit(wave())
        assert [call["start"].weights for call in recorded] == modes
        assert [call["checkpoint"] for call in recorded] == ["run", "run.fine_tune"][: len(modes)]
        assert len(model.history_.iterations) == len(modes)
    assert recorded[0]["recipe"].learning_rate == SERIES_RECIPE.learning_rate


@pytest.mark.parametrize(
    ("settings", "started", "warm_up"),
    [
        ({}, True, fitting.FITTED_START_WARM_UP),
        ({"warm_up": 0.5}, True, 0.5),
        ({"warm_up": 0.0}, True, 0.0),
        ({"linear_start": False}, False, None),
        ({"emission": "identity", "latent_dim": None}, False, None),
    ],
)
def test_a_linear_emission_starts_from_a_linear_model_and_warms_up(settings, started, warm_up, recorded, monkeypatch):
    starts, linear_start = [], fitting.linear_start
    monkeypatch.setattr(fitting, "linear_start", lambda model, series: starts.append(1) or linear_start(model, series))
    linear_prodssm(**({"emission": "linear", "latent_dim": 2} | settings)).fit(wave())
    assert bool(starts) == started
    assert recorded[0]["recipe"].warm_up == warm_up


@pytest.mark.slow
def test_global_weights_can_be_trained_at_several_horizons():
    model = linear_prodssm(weights="global", fine_tune=1, iterations=1, horizons=(1, 2)).fit(wave())
    assert np.isfinite(model.history_.objective).all()
    assert model.check_.mean_gap.shape[1] == 1


# ---------------------------------------------------------------- interruptions and checkpoints


def test_an_interrupted_fit_keeps_its_best_model_and_resumes_from_its_checkpoint(tmp_path, monkeypatch):
    original, calls = loop._run_chunk, itertools.count()

    def interrupted(*args):
        if next(calls) == 1:
            raise KeyboardInterrupt
        return original(*args)

    monkeypatch.setattr(loop, "_run_chunk", interrupted)
    with pytest.warns(UserWarning, match="interrupted after 25 iterations: the best model so far is kept"):
        part = trained(checkpoint=tmp_path / "run")
    assert part.check_ is None
    assert part.history_.stop_reason is StopReason.INTERRUPTED
    assert part.history_.iterations == [25]
    assert [file.name for file in tmp_path.iterdir()] == ["run"]
    monkeypatch.setattr(loop, "_run_chunk", original)
    assert same(trained(checkpoint=tmp_path / "run").ssm_, trained().ssm_)
    with pytest.raises(ValueError, match="belongs to another run"):
        trained(wave(seed=1), checkpoint=tmp_path / "run")


def test_an_interruption_before_anything_was_learned_is_warned_of(monkeypatch):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(loop, "_run_chunk", interrupted)
    with pytest.warns(UserWarning, match="interrupted before anything was learned"):
        trained()


def test_an_interruption_ends_all_stages(monkeypatch):
    calls = []

    def train(start, *_, **__):
        calls.append(start.weights)
        return start, History([25], [0.0], [], [1.0], StopReason.INTERRUPTED)

    monkeypatch.setattr(fitting, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
    with pytest.warns(UserWarning, match="interrupted after 25 iterations"):
        model = linear_prodssm(weights="global", n_estimators=2).fit(wave())
    assert calls == ["local"]
    assert model.ssm_.weights == "global"
    assert model.history_.interrupted


@pytest.mark.parametrize(
    "change",
    [
        {"weights": "global", "fine_tune": 0},
        {"hidden": (5,), "activation": "tanh"},
        {"hidden": (5,), "method": ps.Moments(order=2)},
        {"hidden": (5,), "likelihood": ps.GaussianLikelihood(floor=0.1)},
        {"hidden": (5,), "random_state": 1},
    ],
    ids=str,
)
def test_a_checkpoint_of_another_kind_of_model_is_refused(tmp_path, change, monkeypatch):
    monkeypatch.setattr(loop, "_run_chunk", lambda state, task, *_: (state, task.prior_weight, task.prior_weight))
    settings = {"hidden": change.get("hidden", ()), "method": ps.Moments(order=1), "checkpoint": tmp_path / "run"}
    trained(**settings)
    with pytest.raises(ValueError, match="belongs to another run"):
        trained(**(settings | change))


# ---------------------------------------------------------------- validation data


@pytest.mark.parametrize(("count", "fraction"), [(1, 0.2), (3, 0.5), (6, 0.2), (6, 0.99)])
def test_validation_data_are_not_trained_on(count, fraction, recorded):
    data = [wave(seed=seed)[: TIME - seed] for seed in range(count)]
    model = linear_prodssm(validation=fraction).fit(data)
    values = {float(v) for each in data for v in model.scaling_.transform_series(ps.Series(each)).y[:, 0]}
    seen = {float(v) for each in recorded[0]["series"] for v in each.y[:, 0]}
    held_out = recorded[0]["validation"]
    scored = np.asarray(held_out.scored)[..., None] > 0
    validated = {float(v) for v in np.asarray(held_out.record.y)[scored] if np.isfinite(v)}
    assert seen
    assert validated
    assert not seen & validated
    if count < 5:
        assert seen | validated == values


def test_too_few_data_to_hold_out_a_fraction_are_refused():
    with pytest.raises(ValueError, match="give more data"):
        linear_prodssm(validation=0.2).fit(wave()[:2])


def test_a_slice_can_be_held_out(recorded):
    data = [wave(), wave()[: TIME - 5]]
    for steps, begin, ends in ((slice(10, 15), 10, (15, 15)), (slice(-8, None), -8, (TIME, TIME - 5))):
        recorded.clear()
        linear_prodssm().fit(data, validation_data=steps)
        held_out = recorded[0]["validation"]
        for n, (whole, learned, end) in enumerate(zip(data, recorded[0]["series"], ends, strict=True)):
            held = np.arange(begin % len(whole), end)
            left = np.isfinite(np.asarray(learned.y)[:, 0])
            assert not left[held].any()
            assert left.sum() == len(whole) - len(held)
            scored = np.flatnonzero(np.asarray(held_out.scored[n]) * np.isfinite(held_out.record.y[n, :, 0]))
            assert np.array_equal(scored, held)


@pytest.mark.parametrize(
    ("settings", "validation_data", "said"),
    [
        ({"validation": 0.2}, wave(), r"validation_data takes the place of a fraction; give Recipe\(validation=0\)"),
        ({"validation": 0.2}, slice(3, 9), "validation_data takes the place of a fraction"),
        ({}, np.ones((TIME, 2)), "validation_data: data must have 1 outputs like those of fit, got 2"),
        ({}, np.full(TIME, np.inf), "validation_data: y must be finite"),
        ({}, [], "validation_data: "),
        ({}, np.array([[1.0], [np.nan], [np.nan]]), "what is validation data must have observations"),
        ({"validation_horizons": (400,)}, wave(), "validation_horizons must reach observations of what is validation data"),
        ({"validation": 0.2, "validation_horizons": (400,)}, None, "validation_horizons must reach"),
        ({}, slice(None), "validation_data must be a slice of consecutive time steps that leaves others"),
        ({}, slice(0.5, 3), "validation_data must be a slice with integer bounds"),
    ],
)
def test_bad_validation_data_are_refused_by_name(settings, validation_data, said):
    with pytest.raises((ValueError, TypeError), match=said):
        linear_prodssm(**settings).fit(wave(), validation_data=validation_data)


def validation_score(model, validation, factor=1.0):
    """The mean log score of validation data, with the process noise multiplied by a factor."""
    recipe = model.recipe.filled(SERIES_RECIPE)
    noisier = eqx.tree_at(lambda m: m.log_process_noise, model.ssm_, model.ssm_.log_process_noise + np.log(factor))
    objective, method = recipe.validation_objective, model.members_[0].method
    return mean_log_score(objective, noisier, validation.record, validation.scored, method=method)


def held_out(model, data):
    """The validation data that this model held out of its training data."""
    series = [model.scaling_.transform_series(ps.Series(each)) for each in data]
    return Split.by_fraction(series, model.recipe.validation, model.members_[0].seed).validation


@pytest.mark.parametrize("count", [1, pytest.param(6, marks=pytest.mark.slow)])
def test_early_stopping_returns_the_model_with_the_best_validation_score(count):
    rng = np.random.default_rng(3)
    data = [rng.normal(size=(TIME, 1)) for _ in range(count)]
    settings = {"prior_weight": 0.0, "learning_rate": 0.1, "iterations": 2000, "patience": 50}
    model = trained(data, validation=0.2, calibrate=False, **settings)
    history = model.history_
    assert history.stop_reason is StopReason.EARLY_STOPPING
    assert history.iterations[-1] < 2000
    assert len(history.validation) == len(history.iterations)
    assert np.isclose(validation_score(model, held_out(model, data)), max(history.validation), rtol=1e-4, atol=1e-5)


def test_training_is_validated_on_other_series():
    data, other = wave(), wave(seed=1)
    model = fit_unchecked(linear_prodssm(), data, validation_data=[other])
    validation = SeriesBatch.stack([model.scaling_.transform_series(ps.Series(other))])
    assert np.isclose(validation_score(model, validation), max(model.history_.validation), rtol=1e-4, atol=1e-5)
    assert np.allclose(model.scaling_.y.mean, data.mean(axis=0))  # nothing else is learned from them


def test_validation_data_calibrate_the_process_noise():
    rng = np.random.default_rng(3)
    # Less noisy in the training data than in the validation data.
    data = [np.concatenate([0.1 * rng.normal(size=(40, 1)), 0.3 * rng.normal(size=(10, 1))])]
    settings = {"measurement_noise": 0.01, "validation": 0.2}
    model, overconfident = trained(data, **settings), trained(data, calibrate=False, **settings)
    validation = held_out(model, data)
    scores = {factor: validation_score(model, validation, factor) for factor in (0.25, 1.0, 4.0)}
    assert scores[1.0] == max(scores.values())
    assert np.isclose(scores[1.0], max(model.history_.validation), rtol=1e-4, atol=1e-5)
    assert scores[1.0] > validation_score(overconfident, validation) + 0.5


# ---------------------------------------------------------------- likelihoods


def measurement_variance(model):
    return model.members_[0].measurement_variance(1)[0]


def test_a_given_variance_is_known_and_equals_that_likelihood():
    for noise in (0.25, (0.25,), np.array([0.25])):
        first = trained(measurement_noise=noise, iterations=3)
        second = trained(likelihood=ps.GaussianLikelihood(noise), iterations=3)
        assert same(first.ssm_, second.ssm_)
        assert np.allclose(measurement_variance(first), 0.25, rtol=1e-5)  # training has not changed it
    learned = trained(likelihood=ps.GaussianLikelihood(0.25, learned=True), iterations=3)
    assert not np.allclose(measurement_variance(learned), 0.25, rtol=1e-4)


def test_a_known_variance_is_the_measurement_part_of_a_forecast():
    model = fit_untrained(wave(), weights="point", measurement_noise=0.25)
    assert np.allclose(model.forecast(10 * wave(), 4).decompose().measurement, 0.25, rtol=1e-5)
