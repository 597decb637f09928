"""Calibration finds the factor that was planted, keeps means, and scales every part of a forecast alike."""

import pickle

import numpy as np
import pytest
from small_models import fit_untrained, wave

import prodssm as ps
from prodssm.data.folds import Block
from prodssm.estimators.calibration import LARGEST_FACTOR, SHRINKAGE, Calibration
from prodssm.estimators.held_out import DISAGREEMENT, BlockForecast, _out_of_fold


def forecasts(blocks, steps, width, seed=0, outputs=2):
    """Forecasts of zero with unit standard deviation, of observations whose standard deviation is another one."""
    rng = np.random.default_rng(seed)
    shape = steps, outputs
    size = width(np.arange(1.0, steps + 1))[:, None] * np.ones(shape)
    rest = np.zeros(shape), np.ones(shape), np.zeros(shape), np.zeros(shape)
    return [BlockForecast(Block(0, 0, steps), n % 4, size * rng.normal(size=shape), *rest) for n in range(blocks)]


def test_the_factor_of_each_horizon_is_found():
    blocks = 400
    found = Calibration.fit(forecasts(blocks, 64, lambda h: 1 + np.log2(h) / 3))
    at = np.array([1.0, 8.0, 64.0])
    # At least as many values as blocks; a factor is the root of a mean square, whose relative error is sqrt(2 / n) / 2.
    assert np.abs(found.at(at) / (1 + np.log2(at) / 3)[:, None] - 1).max() < 4 * np.sqrt(1 / (2 * blocks)) + SHRINKAGE / blocks
    assert (found.at([1000.0]) == found.at([64.0])).all()  # what no block reaches is as the last one


def test_each_output_has_its_own_factor_and_missing_values_have_none():
    given = forecasts(400, 4, lambda h: np.ones_like(h), outputs=3)
    for each in given:
        each.truth[:, 0] *= 3
        each.truth[:2, 2] = np.nan
    found = Calibration.fit(given).at([3.0])[0]
    assert np.abs(found / [3.0, 1.0, 1.0] - 1).max() < 0.1
    assert np.isfinite(Calibration.fit(given).factors).all()


def test_few_blocks_share_their_factors_and_these_are_bounded():
    few, many = (Calibration.fit(forecasts(n, 64, lambda h: np.where(h < 8, 0.5, 2.0))).at([1.0, 64.0]) for n in (1, 400))
    assert (few[1] / few[0] < many[1] / many[0]).all()
    wild = Calibration.fit(forecasts(100, 8, lambda h: 1e6 * np.ones_like(h)))
    assert (wild.factors == LARGEST_FACTOR).all()


@pytest.fixture(scope="module")
def ensemble():
    return fit_untrained(wave(60), n_estimators=2, emission="linear", latent_dim=2)


def test_disagreement_is_not_counted_twice():
    """Members err by a shared part of variance 1 and a part of their own of variance 3, and say 4."""
    rng, members, steps = np.random.default_rng(0), 4, 8
    given, errors, widths = [], [], []
    for n in range(4000):
        truth, own = rng.normal(size=(steps, 1)), np.sqrt(3) * rng.normal(size=(members, steps, 1))
        stds = np.full((members, 1, steps, 1), 4.0)
        parts = [part[0] for part in _out_of_fold(own[:, None], stds, n % members)]
        given.append(BlockForecast(Block(0, 0, steps), n % members, truth, *parts))
        errors.append(truth - own.mean(axis=0))
        widths.append(own.var(axis=0, ddof=1))
    factors = Calibration.fit(given).at([1.0])
    assert np.abs(4 * factors**2 - 1).max() < 0.1
    # Cautious: here, where the parts of their own are independent, the error of the mean of four is 1 + 3 / 4.
    assert np.mean(np.square(errors)) < 4 * factors.mean() ** 2 + DISAGREEMENT * np.mean(widths) < 1.05 * (1 + 3 * DISAGREEMENT)


def test_forecasts_keep_their_means_and_say_that_they_are_calibrated(ensemble):
    plain = ensemble.forecast(wave(), 5)
    assert not plain.calibrated
    rule = Calibration(np.array([1.0, 4.0]), np.array([[2.0], [0.5]]))
    found, factors = rule.apply(plain), rule.at(np.arange(1, 6))
    assert found.calibrated
    assert (found.mean == plain.mean).all()
    means, variances = (np.stack([part(each) for each in plain.members]) for part in (lambda m: m.mean, lambda m: m.std**2))
    assert np.allclose(found.std**2, factors**2 * variances.mean(axis=0) + DISAGREEMENT * means.var(axis=0, ddof=1), rtol=1e-5)
    parts = found.decompose()
    assert np.allclose(parts.epistemic + parts.aleatoric + parts.measurement, found.std**2, rtol=1e-5)
    assert (pickle.loads(pickle.dumps(found)).std == found.std).all()
    low, high = found.interval(0.9)
    assert (low < found.mean).all()
    assert (found.mean < high).all()


def test_the_forecast_of_a_single_model_is_stretched_about_its_mean(local_model):
    plain = local_model.forecast(wave(), 5)
    rule = Calibration(np.array([1.0, 4.0]), np.array([[2.0], [0.5]]))
    found, factors = rule.apply(plain), rule.at(np.arange(1, 6))
    for p in (0.025, 0.5, 0.9):
        assert np.allclose(found.quantile(p), plain.mean + factors * (plain.quantile(p) - plain.mean), rtol=1e-5, atol=1e-6)
    y = plain.mean + 0.3
    inner = plain.mean + (y - plain.mean) / factors
    assert np.allclose(found.log_prob(y), plain.log_prob(inner) - np.log(factors).sum(axis=1), rtol=1e-5, atol=1e-5)


def test_calibrate_makes_untrained_forecasts_cover_new_data(ensemble, tmp_path):
    rng = np.random.default_rng(1)
    data = [10 * rng.normal(size=(60, 1)) for _ in range(12)]
    before = ensemble.forecast(wave(), 3)
    assert ensemble.calibrate(data) is ensemble
    after, now = ensemble.forecast(wave(), 3), ensemble.step(ensemble.start(), wave()[0])[1]
    assert after.calibrated
    assert (after.std > before.std).all()
    ensemble.save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert (loaded.forecast(wave(), 3).cov == after.cov).all()
    assert (loaded.step(loaded.start(), wave()[0])[1].cov == now.cov).all()
    one = ensemble.forecast(wave(), 1)
    assert np.allclose(one.std[0], after.std[0])
    with pytest.raises(ValueError, match="at least 5 time steps"):
        ensemble.calibrate(wave()[:3])


def test_a_stream_predicts_the_next_observation_as_a_forecast_does(ensemble):
    y = wave()
    state, now = ensemble.step(ensemble.start(), y[0])
    for row in y[1:]:
        state, now = ensemble.step(state, row)
    assert np.allclose(now.cov, ensemble.forecast(y, 1).cov[0], rtol=1e-6)
