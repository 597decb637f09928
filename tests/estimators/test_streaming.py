"""A stream is the filter, one observation at a time, in constant memory and without recompilation."""

import logging
from dataclasses import replace

import jax
import numpy as np
import pytest
from linear_oracles import unstable_model
from oracles import array, close
from scipy import stats
from small_models import fit_untrained, rich, wave

import prodssm as ps


def assert_stream_is_filter(model, series):
    """Every state of a stream is that of the filter, and its prediction of the next observation has the filter's evidence."""
    found = model.filter(series)
    state = model.start()
    for t in range(len(series)):
        control = None if series.u is None else series.u[t]
        state, now = model.step(state, series.y[t], control, float(series.dt[t]))
        assert close(now.state_mean, found.mean[t], scale=3)
        assert close(now.state_cov, found.cov[t], scale=3)
        if t + 1 == len(series):
            break
        y, mean, cov = (np.asarray(part, float) for part in (series.y[t + 1], now.mean, now.cov))
        seen = np.isfinite(y)
        log_prob = stats.multivariate_normal(mean[seen], cov[np.ix_(seen, seen)]).logpdf(y[seen]) if seen.any() else 0.0
        assert np.isclose(log_prob, found.log_evidence[t + 1], rtol=1e-3, atol=1e-3)
    assert [int(each.count) for each in state] == [len(series)]


def test_a_stream_equals_the_filter_with_missing_values_controls_and_irregular_time(rich_model):
    assert_stream_is_filter(rich_model, rich(0, 14))


def test_a_stream_with_global_weights_equals_the_filter_and_learns_them(global_model):
    assert_stream_is_filter(global_model, ps.Series(array(wave())))
    state = global_model.start()
    before = state[0].belief.weights.var.sum()
    for y in wave():
        state, _ = global_model.step(state, y)
    assert state[0].belief.weights.var.sum() < before


def test_a_long_stream_compiles_once_and_keeps_its_memory(rich_model, caplog):
    rng = np.random.default_rng(0)
    y, u, dt = rng.normal(size=(600, 2)), rng.normal(size=(600, 1)), rng.uniform(0.1, 1.0, 600)
    y[rng.random(y.shape) < 0.3] = np.nan
    rich_model.step(rich_model.start(), y[0], u[0])  # compiled here, if not before
    state, now, sizes = rich_model.start(), None, []
    with jax.log_compiles(), caplog.at_level(logging.WARNING, logger="jax"):
        for t in range(600):
            state, now = rich_model.step(state, y[t], u[t], dt[t])
            if t in (100, 599):
                sizes.append(sum(live.nbytes for live in jax.live_arrays()))
    assert not [record for record in caplog.records if "Compiling" in record.getMessage()]
    assert sizes[1] <= sizes[0]
    assert np.isfinite(now.mean).all()


def test_masked_observations_are_missing(local_model):
    answers = [local_model.step(local_model.start(), y)[1] for y in (np.ma.array([-999.0], mask=[True]), [np.nan])]
    assert close(answers[0].state_mean, answers[1].state_mean)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda m: m.step(None, [0.0]), r"state must be what start\(\) or the last step has returned"),
        (lambda m: m.step(m.start() * 2, [0.0]), "state must be that of a stream of this model, with 1 parts, got 2"),
        (lambda m: m.step(m.start(), 0.0), r"y must have shape \(1,\)"),
        (lambda m: m.step(m.start(), [0.0, 0.0]), r"y must have shape \(1,\)"),
        (lambda m: m.step(m.start(), [np.inf]), "y must be finite"),
        (lambda m: m.step(m.start(), [0.0], u=[0.0]), "u must not be given, as in fit"),
        (lambda m: m.step(m.start(), [0.0], dt=0.0), "dt must be positive"),
        (lambda m: m.step(m.start(), [0.0], dt=np.nan), "dt must be finite"),
        (lambda m: m.step(m.start(), [0.0], dt=2.0), "needs residual=True"),
    ],
)
def test_bad_observations_are_refused_by_name(use, said, local_model):
    with pytest.raises((ValueError, TypeError), match=said):
        use(local_model)


@pytest.mark.parametrize(
    ("use", "said"),
    [
        (lambda m, s: m.step(m.start(), s.y[0]), "u must be given, as in fit"),
        (lambda m, s: m.step(m.start(), s.y[0], u=[np.nan]), "u must be 1 finite numbers"),
        (lambda m, s: m.step(m.start(), s.y[0], u=[0.0, 0.0]), "u must be 1 finite numbers"),
    ],
)
def test_bad_controls_of_a_stream_are_refused_by_name(use, said, rich_model):
    with pytest.raises((ValueError, TypeError), match=said):
        use(rich_model, rich(0, 14))


@pytest.mark.slow
def test_a_stream_that_overflows_is_an_error():
    model = fit_untrained(wave())
    model.members_ = (replace(model.members_[0], ssm=unstable_model()),)

    def run():
        state = model.start()
        for _ in range(400):
            state, _ = model.step(state, [np.nan])

    with pytest.raises(FloatingPointError, match="the stream overflowed"):
        run()
