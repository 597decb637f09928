"""What is left to choice is chosen from the data, and said."""

import numpy as np
import pytest
from small_models import fit_unchecked, small_prodssm, wave, without_training

import prodssm as ps
from prodssm.estimators import choices
from prodssm.estimators.choices import LONG, MEMBERS, choose, held_out_error


def driven(steps, *, direct=0.0, seed=0):
    """A standardised resonator, perhaps with a control that acts at once."""
    rng = np.random.default_rng(seed)
    u, x = np.repeat(rng.normal(size=(steps // 5 + 1, 1)), 5, axis=0)[:steps], np.zeros((steps, 2))
    for t in range(steps - 1):
        x[t + 1] = np.array([[0.9, 0.3], [-0.3, 0.9]]) @ x[t] + np.array([0.0, 0.5]) * u[t]
    y = x[:, :1] / x[:, 0].std() + direct * u
    return ps.Series(y / y.std() + 0.05 * rng.normal(size=y.shape), u)


def chosen(series, **params):
    params = ps.ProDSSM(**params).get_params(deep=False)
    return choose([series] if isinstance(series, ps.Series) else series, params, linear_start=True, validated=False)


@pytest.mark.parametrize("direct", [0.0, 1.0])
def test_the_ladder_finds_states_and_feedthrough(direct):
    found = chosen(driven(400, direct=direct))
    assert found.emission == ("feedthrough" if direct else "linear")
    assert (found.latent_dim, found.n_estimators, found.residual, found.activation) == (4, MEMBERS, True, "erf")
    assert found.linear
    assert found.held_out
    assert found.reasons["latent_dim"] == "a linear model needs 2"
    assert "latent_dim=4 (a linear model needs 2)" in str(found)
    assert found.scores["2 linear"] == held_out_error([driven(400, direct=direct)], 2, feedthrough=False)


@pytest.mark.parametrize("seconds", [0.0, 1000.0])
def test_long_choosing_shows_a_bar_and_short_choosing_does_not(seconds, monkeypatch, capsys):
    monkeypatch.setattr(choices, "QUIET", seconds)
    small_prodssm(emission="auto", progress=True).choose(driven(100))
    assert ("choosing: 100%" in capsys.readouterr().err) == (seconds == 0.0)


def test_what_is_given_is_not_chosen():
    given = {"latent_dim": 3, "emission": "linear", "residual": False, "activation": "gelu", "n_estimators": 2}
    found = chosen(driven(200), **given)
    assert {name: getattr(found, name) for name in given} == given
    assert str(found) == "nothing was left to choose"
    assert not found.held_out
    assert chosen(driven(200), emission="identity").n_estimators == 1


def test_few_data_have_one_member_and_many_have_windows():
    few = chosen(ps.Series(wave()[:10]))
    assert (few.n_estimators, few.held_out) == (1, False)
    many = chosen(driven(LONG + 1))
    assert (many.n_estimators, many.window, many.batch, many.held_out) == (1, 200, 32, True)


@pytest.mark.slow
def test_on_linear_data_a_model_without_hidden_layers_wins_and_forecasts_are_calibrated(tmp_path):
    recipe = ps.Recipe(iterations=50, free_run=0)
    model = fit_unchecked(ps.ProDSSM(recipe=recipe, method=ps.Moments(order=1), progress=False), driven(300))
    chosen = model.choices_
    assert (chosen.hidden, chosen.latent_dim, chosen.linear_dim) == ((), 2, 2)
    assert "without hidden layers" in chosen.reasons["hidden"]
    assert not model.skill_.in_sample
    assert not model.skill_.worse_than
    ahead = model.forecast(driven(300), 5, u=np.zeros((5, 1)))
    assert ahead.calibrated
    model.save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert loaded.skill_ == model.skill_
    assert (loaded.forecast(driven(300), 5, u=np.zeros((5, 1))).cov == ahead.cov).all()


def test_choices_are_saved_and_an_unknown_word_is_refused(tmp_path):
    with without_training(), pytest.warns(UserWarning, match="predicts better than this model"):
        model = small_prodssm(emission="auto", method="moments").fit(driven(120))
    model.save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert loaded.choices_ == model.choices_
    ahead = [each.forecast(driven(120), 3, u=np.zeros((3, 1))).mean for each in (model, loaded)]
    assert (ahead[0] == ahead[1]).all()
    with pytest.raises(ValueError, match="emission must be"):
        ps.ProDSSM(emission="automatic").fit(wave())
