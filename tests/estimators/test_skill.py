"""Skill: simple forecasts are what their names say, scores are those of the metrics, and what is worse is said."""

from dataclasses import replace

import numpy as np
import pytest
from small_models import fit_untrained, wave

import prodssm as ps
from prodssm.data.folds import Block, folds
from prodssm.estimators.held_out import BlockForecast, pooled_rmse
from prodssm.estimators.skill import (
    LAST,
    LINEAR,
    MODEL,
    SEASONAL,
    calibrated_out_of_fold,
    evident_period,
    measure_skill,
    simple_rules,
)
from prodssm.scoring.metrics import coverage, crps, nll, rmse


def season(length, period=12, noise=0.05):
    rng = np.random.default_rng(0)
    y = np.sin(2 * np.pi * np.arange(length) / period) + np.cos(4 * np.pi * np.arange(length) / period)
    return ps.Series((y / y.std())[:, None] + noise * rng.normal(size=(length, 1)))


def walk(length):
    return ps.Series(np.cumsum(np.random.default_rng(0).normal(size=(length, 1)), axis=0))


def by_truth(series, blocks):
    """Perfect forecasts."""
    truth = [
        (fold, each, np.asarray(series[each.series].y[each.begin : each.end], float))
        for fold, group in blocks
        for each in group
    ]
    return [BlockForecast(each, fold, y, y.copy(), np.full_like(y, 0.1), 0 * y, 0 * y) for fold, each, y in truth]


def test_a_period_is_found_where_there_is_one():
    assert evident_period([season(300)]) == 12
    assert evident_period([walk(300)]) is None
    gappy = np.array(season(300).y)
    gappy[40:60] = np.nan
    assert evident_period([ps.Series(gappy)]) == 12
    assert evident_period([ps.Series(np.arange(10.0))]) is None


def test_simple_forecasts_repeat_the_last_value_or_the_last_period():
    series = [season(240)]
    rules, y = simple_rules(series, 2, False, 12), np.asarray(series[0].y, float)
    assert set(rules) == {LINEAR, LAST, SEASONAL}
    mean, std = rules[LAST](series[0], 200)
    assert (mean == y[199]).all()
    differences = y[3:] - y[:-3]
    assert np.allclose(std[2], np.sqrt((differences**2).mean()))
    mean, std = rules[SEASONAL](series[0], 200)
    assert np.allclose(mean[:12], y[188:200])
    assert np.allclose(mean[12:24], y[188:200])
    assert np.allclose(std[0], np.sqrt(((y[12:] - y[:-12]) ** 2).mean()))


def test_scores_are_those_of_the_metrics_by_range_of_horizons():
    series = [season(400)]
    blocks = folds(series, 4)
    rng = np.random.default_rng(1)
    given = [
        replace(each, mean=each.mean + 0.02 * rng.normal(size=each.mean.shape)) for each in by_truth(series, enumerate(blocks))
    ]
    found = measure_skill(given, series, blocks, linear=2)
    assert found.ranges == ((1, 1), (2, 10), (11, len(given[0].truth)))
    at = slice(1, 10)
    y, mean, std = (np.concatenate([getattr(each, part)[at] for each in given]) for part in ("truth", "mean", "std"))
    expected = {
        "rmse": rmse(y, mean),
        "crps": crps(y, mean, std),
        "nll": nll(y, mean, std**2),
        "coverage": coverage(y, mean, std),
    }
    assert {name: values[1] for name, values in found.scores[MODEL].items()} == pytest.approx(expected)
    assert found.overall[MODEL]["rmse"] == pytest.approx(pooled_rmse(given))
    assert found.period == 12
    assert not found.worse_than
    lines = str(found).split("\n")
    assert len(lines) == 4
    assert "held-out" in lines[0]
    assert len(set(map(len, lines))) == 1


def test_a_model_that_is_worse_than_simple_forecasts_is_told():
    series = [season(400)]
    blocks = folds(series, 4)
    bad = [replace(each, mean=each.truth + 2.0) for each in by_truth(series, enumerate(blocks))]
    assert set(measure_skill(bad, series, blocks, linear=2).worse_than) >= {LINEAR, SEASONAL}


def test_forecasts_are_calibrated_by_the_other_folds():
    rng = np.random.default_rng(0)
    shape = (30, 1)
    rest = np.zeros(shape), np.ones(shape), np.zeros(shape), np.zeros(shape)
    truths = [(100.0 if n % 4 == 0 else 1.0) * rng.normal(size=shape) for n in range(80)]
    given = [BlockForecast(Block(0, 0, 30), n % 4, truth, *rest) for n, truth in enumerate(truths)]
    found = {
        fold: np.mean([each.std.mean() for each in calibrated_out_of_fold(given) if each.fold == fold]) for fold in range(4)
    }
    assert found[0] < 1.2  # the others say that its unit deviations are right
    assert min(found[n] for n in (1, 2, 3)) > 4
    alone = [each for each in given if each.fold == 0]
    assert calibrated_out_of_fold(alone) == alone


def test_every_fit_has_skill_and_one_that_held_nothing_out_says_so():
    model = fit_untrained(wave(60))
    assert model.skill_.in_sample
    assert "data that it was trained on" in str(model.skill_)
    assert model.calibration_ is None


def test_deviations_of_a_repeated_value_are_found_once_for_all_blocks(monkeypatch):
    y = np.cumsum(np.random.default_rng(0).standard_normal((400, 1)), axis=0)
    counted = []
    original = np.isfinite

    def counting(values):
        counted.append(np.shape(values) == (399, 1))
        return original(values)

    rule = simple_rules([ps.Series(y)], 1, False, None)[LAST]
    monkeypatch.setattr(np, "isfinite", counting)
    found = [rule(ps.Series(y[begin : begin + 60]), 50)[1] for begin in range(0, 300, 30)]
    assert sum(counted) == 1
    steps = np.sqrt([((y[gap:] - y[:-gap]) ** 2).mean() for gap in range(1, 11)])
    assert all(np.allclose(std[:, 0], steps, rtol=1e-5) for std in found)
