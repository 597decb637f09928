"""Mistakes of the estimators that a reviewer found once and nobody shall find again, the same in every precision."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import array, close
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

import prodssm as ps
from prodssm import estimators
from prodssm.batches import Data
from prodssm.training import History, later_is_better


@pytest.fixture
def usual_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize("settings", [{"horizons": (30,)}, {"horizons": (15,), "window": 10}])
def test_horizons_that_training_never_reaches_are_refused(settings):
    with pytest.raises(ValueError, match="horizons must reach observations to learn from"):
        ps.ProDSSM(hidden=(), iterations=1, progress=False, **settings).fit(np.sin(np.arange(24.0)))


def softsign(x):
    return x / (1 + jnp.abs(x))


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize("activation", ["relu", softsign])
def test_a_fitted_model_can_be_pickled(activation):
    y = np.sin(np.arange(24.0))
    model = ps.ProDSSM(hidden=(3,), activation=activation, iterations=1, progress=False).fit(y)
    again = pickle.loads(pickle.dumps(model))
    assert (again.forecast(y, 3).mean == model.forecast(y, 3).mean).all()


def test_what_only_some_windows_can_judge_is_not_compared_with_what_other_windows_saw():
    data = Data.of([ps.Series(np.sin(np.arange(24.0))), ps.Series(np.cos(np.arange(20.0)))])
    assert data.drawn_whole(None, None)
    assert data.drawn_whole(2, 24)
    assert not data.drawn_whole(1, None)
    assert not data.drawn_whole(None, 10)
    assert later_is_better(array(3.0), jnp.asarray(25)) == 25
    assert later_is_better(array(jnp.nan), jnp.asarray(25)) == -jnp.inf


@pytest.mark.usefixtures("usual_promotion")
def test_ctrl_c_in_an_early_stage_of_a_later_restart_keeps_the_finished_one(monkeypatch):
    left = [3]

    def train(start, series, recipe, **_):
        left[0] -= 1
        stopped = "all iterations done" if left[0] else "interrupted; the best model so far is returned"
        # The last call is the first stage of the second restart, and seems the best.
        return start, History([25], [0.0 if left[0] else 9.0], [], [1.0], stopped)

    monkeypatch.setattr(estimators, "train", train)
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
    model = ps.ProDSSM(hidden=(3,), weights="global", refine=5, restarts=2, progress=False).fit(np.sin(np.arange(24.0)))
    assert left == [0]
    assert model.history_.objective == [0.0, 0.0]


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize(
    ("held_out", "said"),
    [
        (np.ones((24, 2)), "held_out: data must have 1 channels"),
        (np.full(24, np.inf), "held_out: y must be finite"),
        ([], "held_out: "),
    ],
)
def test_errors_about_held_out_series_say_so(held_out, said):
    with pytest.raises(ValueError, match=said):
        ps.ProDSSM(hidden=(), iterations=1, progress=False).fit(np.sin(np.arange(24.0)), held_out=held_out)


@pytest.mark.usefixtures("usual_promotion")
def test_what_is_masked_was_not_observed():
    y = np.sin(0.3 * np.arange(20))
    masked = np.ma.masked_equal(np.where(y > 0.9, -999.0, y), -999.0)
    assert np.array_equal(np.isnan(ps.Series(masked).y[:, 0]), y > 0.9)
    assert float(np.nanmin(ps.Series(np.ma.masked_equal(np.round(y), -1)).y)) == 0.0
    with pytest.raises(ValueError, match="u must be finite"):
        ps.Series(y, u=masked)
    model = ps.ProDSSM(hidden=(), iterations=1, progress=False).fit(y)
    (_, hidden), (_, missing) = (model.step(model.start(), now) for now in (np.ma.array([-999.0], mask=[True]), [np.nan]))
    assert close(hidden.state_mean, missing.state_mean)


@pytest.mark.usefixtures("usual_promotion")
def test_nested_lists_are_rows_as_numpy_reads_them(monkeypatch):
    monkeypatch.setattr(estimators, "train", lambda start, *_, **__: (start, History([25], [0.0])))
    monkeypatch.setattr(ps.ProDSSM, "_check_quietly", lambda self, series: None)
    rows = np.random.default_rng(0).normal(size=(12, 2))
    for data, channels in ((rows.tolist(), 2), ([rows, rows], 2), (rows[:, 0].tolist(), 1)):
        assert ps.ProDSSM(hidden=(), progress=False).fit(data).units_.channels == channels


@pytest.mark.usefixtures("usual_promotion")
def test_a_bound_needs_measurement_noise():
    with pytest.raises(ValueError, match="measurement_noise must be positive for objective='bound'"):
        ps.ProDSSM(hidden=(), iterations=1, progress=False, objective="bound", measurement_noise=0).fit(np.arange(9.0))


@pytest.mark.usefixtures("usual_promotion")
def test_training_that_never_saw_a_number_is_an_error(monkeypatch):
    monkeypatch.setattr(estimators, "train", lambda start, *_, **__: (start, History([25], [np.nan])))
    model = ps.ProDSSM(hidden=(), progress=False)
    with pytest.raises(FloatingPointError, match="nothing was learned"):
        model.fit(np.sin(np.arange(20.0)))
    assert not model.__sklearn_is_fitted__()


@pytest.mark.usefixtures("usual_promotion")
def test_nothing_to_score_is_an_error():
    model = ps.ProDSSM(hidden=(), iterations=1, progress=False).fit(np.sin(0.3 * np.arange(20)))
    with pytest.raises(ValueError, match="to be scored"):
        model.score(np.array([[1.0], [np.nan], [np.nan]]))


@pytest.mark.usefixtures("usual_promotion")
def test_a_fit_that_failed_is_no_fit():
    model = ps.ProDSSM(hidden=(), latent_dim=3, progress=False)
    with pytest.raises(ValueError, match="latent_dim"):
        model.fit(np.sin(0.3 * np.arange(20)))
    with pytest.raises(NotFittedError):
        check_is_fitted(model)


@pytest.mark.usefixtures("usual_promotion")
def test_a_variance_network_of_point_weights_is_certain():
    model = ps.ProDSSM(hidden=(), weights="point", process_noise=(3,), iterations=1, progress=False)
    assert not model.fit(np.sin(0.3 * np.arange(20))).ssm_.process_network.uncertain
