"""A saved estimator comes back bit by bit with all of its parameters; files that hold none are refused."""

import json
from copy import copy, deepcopy
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from oracles import array, close
from small_models import fit_untrained, fit_untrained_regressor, rich, same, wave

import prodssm as ps
from prodssm._storage import FileError, flatten, read, write
from prodssm.training.history import History, StopReason

FIXTURES = Path(__file__).parent.parent / "fixtures"
X = np.random.default_rng(0).normal(size=(20, 2))
Y = np.stack([3 * X[:, 0] - X[:, 1], X[:, 1]], axis=1)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "m.safetensors"


def reloaded(model, path):
    model.save(path)
    return ps.load(path)


def with_history(model, history):
    changed = copy(model)
    changed.members_ = tuple(replace(member, history=history) for member in model.members_)
    return changed


# ---------------------------------------------------------------- ProDSSM


def test_a_saved_model_comes_back_bit_by_bit(rich_model, path, tmp_path):
    history = History([25, 50], [1.0, 2.0], [0.5, 0.1], [0.1, 0.2], StopReason.EARLY_STOPPING)
    model = with_history(rich_model, history).set_params(checkpoint=tmp_path / "run")
    loaded, series, u = reloaded(model, path), rich(0, 14), np.ones((5, 1))
    assert same(model.filter(series), loaded.filter(series))
    first, second = (each.forecast(series, 5, u=u) for each in (model, loaded))
    assert same((first.mean, first.cov), (second.mean, second.cov))
    assert loaded.history_ == history
    assert loaded.get_params(deep=False) == model.get_params(deep=False) | {"checkpoint": str(tmp_path / "run")}
    assert loaded.scaling_.time_step == model.scaling_.time_step
    assert loaded.members_[0].seed == model.members_[0].seed
    assert loaded.check_ is None


def test_missing_scores_of_a_history_come_back(local_model, path):
    history = History([25, 50], [1.0, np.nan], [np.nan, 0.25], [0.1, 0.2], StopReason.DIVERGED)
    found = reloaded(with_history(local_model, history), path).history_
    assert found.stop_reason is StopReason.DIVERGED
    for name in ("objective", "validation"):
        assert np.array_equal(getattr(found, name), getattr(history, name), equal_nan=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"weights": "global"},
        {"latent_dim": 3, "emission": (4,), "process_noise": (3,), "weights": "point", "activation": "erf"},
        {"latent_dim": 2, "emission": "linear", "residual": True},
    ],
    ids=str,
)
def test_every_kind_of_model_can_be_saved(settings, path):
    model = fit_untrained(wave(), **settings)
    assert same(reloaded(model, path).ssm_, model.ssm_)


NESTED = [
    {"recipe": None, "method": "moments", "likelihood": None},
    {"recipe": ps.Recipe(iterations=7, horizons=(1, 5), batch="all", prior_weight=0.3, calibrate=False, fine_tune=0)},
    {"method": ps.Moments(order=3)},
    {"method": "cubature"},
    {"method": ps.Linearised()},
    {"method": ps.Unscented(alpha=0.5, beta=1.5, kappa=0.25)},
    {"method": ps.Sampled(samples=16, draw="weights")},
    {"likelihood": ps.GaussianLikelihood(floor=1e-3)},
    {"likelihood": ps.GaussianLikelihood(0.25)},
    {"likelihood": ps.GaussianLikelihood((0.25, 0.5), floor=1e-3)},
    {"likelihood": ps.GaussianLikelihood((0.25, 0.5), floor=0.1, learned=True)},
    {"measurement_noise": 0.25},
    {"measurement_noise": np.array([0.25, 0.0])},
]


def assert_equal_parameter(found, given):
    """Equal up to the rounding of a logarithm and its exponential."""
    assert type(found) is type(given)
    assert jax.tree.structure(found) == jax.tree.structure(given)
    arrays = flatten(given)
    assert all(np.allclose(array, arrays[name], rtol=1e-6) for name, array in flatten(found).items())
    assert isinstance(found, eqx.Module) or found == given


@pytest.mark.parametrize("settings", NESTED, ids=str)
def test_recipe_method_and_likelihood_come_back(settings, path):
    model = fit_untrained([rich(0, 14), rich(1, 10)], residual=True, hidden=(), **settings)
    loaded = reloaded(model, path)
    for name in ("recipe", "method", "likelihood"):
        assert_equal_parameter(getattr(loaded, name), getattr(model, name))
    assert_equal_parameter(loaded.members_[0].method, model.members_[0].method)
    assert same(loaded.ssm_, model.ssm_)
    assert same(reloaded(loaded, path).ssm_, model.ssm_)


@pytest.mark.parametrize("settings", [each for each in NESTED[2:] if "measurement_noise" not in each], ids=str)
def test_recipe_method_and_likelihood_of_a_regressor_come_back(settings, path):
    model = fit_untrained_regressor(X, Y, **settings)
    loaded = reloaded(model, path)
    for name in ("recipe", "method", "likelihood"):
        assert_equal_parameter(getattr(loaded, name), getattr(model, name))
    assert same(loaded.ssms_, model.ssms_)


def test_a_copy_of_a_model_can_be_saved_too(global_model, path):
    assert same(reloaded(deepcopy(global_model), path).ssm_, global_model.ssm_)


@pytest.mark.parametrize(
    "change",
    [
        {"hidden": (6,)},
        {"weights": "global"},
        {"residual": True},
        {"measurement_noise": 0.1},
        {"likelihood__floor": 0.1},
        {"method": "unscented"},
        {"method__order": 2},
    ],
    ids=str,
)
def test_a_model_whose_parameters_were_changed_is_not_saved_as_another(change, local_model, path):
    with pytest.raises(ValueError, match="changed after fit"):
        copy(local_model).set_params(**change).save(path)
    assert not path.exists()


def test_parameters_of_training_may_change_before_save(local_model, path):
    loaded = reloaded(copy(local_model).set_params(recipe__iterations=3, random_state=4, progress=True), path)
    assert (loaded.recipe.iterations, loaded.random_state, loaded.progress) == (3, 4, True)
    assert same(loaded.filter(wave()), local_model.filter(wave()))


def test_a_random_state_that_is_no_integer_is_not_saved(path):
    model = fit_untrained(wave(), random_state=np.random.RandomState(0))
    loaded = reloaded(model, path)
    assert loaded.random_state is None
    assert loaded.members_[0].seed == model.members_[0].seed


@pytest.mark.parametrize("activation", [jnp.tanh, lambda x: x / (1 + x**2), ps.ACTIVATIONS["relu"]])
def test_an_activation_without_a_name_is_not_saved(activation, path):
    for model in (fit_untrained(wave(), activation=activation), fit_untrained_regressor(X, Y, activation=activation)):
        with pytest.raises(ValueError, match=r"activation must be one of .* to be saved"):
            model.save(path)
    assert not list(path.parent.iterdir())


# ---------------------------------------------------------------- DeepStochasticRegressor


def test_a_saved_regressor_comes_back_bit_by_bit(path, tmp_path):
    model = fit_untrained_regressor(X, Y, n_estimators=2, checkpoint=tmp_path / "run", random_state=3)
    back = reloaded(model, path)
    assert isinstance(back, ps.DeepStochasticRegressor)
    assert len(back.ssms_) == 2
    pairs = zip(back.predict(X, return_cov=True), model.predict(X, return_cov=True), strict=True)
    assert all(np.array_equal(*pair) for pair in pairs)
    assert np.array_equal(back.log_prob(X, Y), model.log_prob(X, Y))
    assert back.get_params(deep=False) == model.get_params(deep=False) | {"checkpoint": str(tmp_path / "run")}
    assert (back.history_, back.trials_) == (model.history_, model.trials_)
    assert (back.prior_weight_, back.n_iter_) == (model.prior_weight_, model.n_iter_)


def test_a_saved_regressor_knows_the_names_of_its_features(path):
    frame = pd.DataFrame(X, columns=["a", "b"])
    back = reloaded(fit_untrained_regressor(frame, Y[:, 0]), path)
    assert back.predict(frame).shape == (20,)
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame[["b", "a"]])


@pytest.mark.parametrize(
    "change",
    [{"hidden": (6,)}, {"noise_hidden": (2,)}, {"steps": 2}, {"weights": "point"}, {"method__order": 2}, {"method": "sampled"}],
    ids=str,
)
def test_a_regressor_whose_parameters_were_changed_is_not_saved_as_another(change, path):
    model = fit_untrained_regressor(X, Y)
    model.set_params(**change)
    with pytest.raises(ValueError, match="changed after fit"):
        model.save(path)


# ---------------------------------------------------------------- other files


def test_files_that_hold_no_model_are_refused(local_model, path):
    write(path, "checkpoint", {}, {"a": np.ones(2)})
    with pytest.raises(ValueError, match="holds a checkpoint, which is not a model; expected one of ProDSSM"):
        ps.load(path)
    local_model.save(path)
    stored = read(path)
    write(path, "ProDSSM", {}, stored.arrays)
    with pytest.raises(FileError, match="does not hold a whole ProDSSM"):
        ps.load(path)
    write(path, "ProDSSM", stored.config, {name: value for name, value in stored.arrays.items() if "transition" not in name})
    with pytest.raises(ValueError, match=r"missing: models\.0\.transition"):
        ps.load(path)
    damaged = {
        name: np.full_like(value, np.nan) if name.endswith("log_variance") else value for name, value in stored.arrays.items()
    }
    write(path, "ProDSSM", stored.config, damaged)
    with pytest.raises(FileError, match=r"is damaged: models\.0\.likelihood\.log_variance holds NaN"):
        ps.load(path)
    with pytest.raises(FileNotFoundError, match="does not exist"):
        ps.load(path.with_name("other.safetensors"))


# How tests/fixtures was made, in single precision, with version 0.1.0 before file format 2:
#
#     series, folder = rich(5, 12), Path("tests/fixtures")
#     model = ps.ProDSSM(latent_dim=3, hidden=(5,), residual=True, process_noise=(3,), emission=(4,), activation="erf",
#                        order=1, iterations=25, progress=False, seed=1).fit(series)
#     model.save(folder / "prodssm_v1.safetensors")
#     found = model.filter(series)
#     kept = {"y": series.y, "u": series.u, "time": series.time, "mean": found.mean, "log_evidence": found.log_evidence}
#     text = json.dumps({name: value.tolist() for name, value in kept.items()}).replace("NaN", "null")
#     (folder / "prodssm_v1.json").write_text(text + "\n")
#
#     rng = np.random.default_rng(0)
#     X = rng.normal(size=(40, 2))
#     Y = np.stack([3 * X[:, 0] - X[:, 1], X[:, 1]], axis=1) + 0.3 * rng.normal(size=(40, 2))
#     model = ps.DeepStochasticRegressor(hidden=(3,), noise_hidden=(2,), steps=2, members=2, iterations=25, patience=25,
#                                        batch_size=16, learning_rate=0.03, noise_floor=1e-4, random_state=1).fit(X, Y)
#     model.save(folder / "regressor_v1.safetensors")
#     (mean, std), x, y = model.predict(X[:5], return_std=True), X[:5], Y[:5]
#     kept = {"x": x, "y": y, "mean": mean, "std": std, "log_prob": model.log_prob(x, y)}
#     (folder / "regressor_v1.json").write_text(json.dumps({name: value.tolist() for name, value in kept.items()}) + "\n")


def answers(name):
    return {part: np.array(value, float) for part, value in json.loads((FIXTURES / f"{name}.json").read_text()).items()}


@pytest.mark.parametrize("name", ["prodssm_v1_first", "prodssm_v1"])
def test_a_model_of_file_format_1_answers_the_same(name):
    kept, model = answers(name), ps.load(FIXTURES / f"{name}.safetensors")
    assert model.ssm_.initial_mean.dtype == np.float32
    found = model.filter(ps.Series(array(kept["y"]), array(kept["u"]), array(kept["time"])))
    # In single precision, whatever JAX is set to.
    assert found.mean.dtype == np.float32
    assert close(found.mean, kept["mean"])
    assert close(found.log_evidence, kept["log_evidence"], scale=3)


def test_the_parameters_of_file_format_1_have_their_new_names(path):
    model = ps.load(FIXTURES / "prodssm_v1.safetensors")
    assert (model.method, model.random_state, model.recipe.iterations) == (ps.Moments(order=1), 1, 25)
    assert (model.n_estimators, model.history_.iterations, model.history_.stop_reason) == (1, [25], StopReason.COMPLETED)
    model.save(path)
    assert read(path).format_version == 2
    assert same(ps.load(path).ssm_, model.ssm_)


def test_a_regressor_of_file_format_1_answers_the_same(path):
    kept, model = answers("regressor_v1"), ps.load(FIXTURES / "regressor_v1.safetensors")
    assert model.ssms_[0].dtype == np.float32
    mean, std = model.predict(kept["x"], return_std=True)
    for found, name in ((mean, "mean"), (std, "std"), (model.log_prob(kept["x"], kept["y"]), "log_prob")):
        assert close(found.astype(np.float32), kept[name].astype(np.float32))
    assert (len(model.ssms_), model.n_estimators, model.prior_weight_, model.n_iter_) == (2, 2, 0.1, 50)
    assert (model.recipe.patience, model.recipe.batch, model.recipe.validation) == (25, 16, 0.2)
    assert (model.recipe.prior_weight, model.likelihood.floor) == ("auto", 1e-4)
    assert same(reloaded(model, path).ssms_, model.ssms_)
