"""A model whose belief is a mixture: every answer of the estimator is that of the mixture, or a sentence."""

import pickle

import jax.random as jr
import numpy as np
import pytest
from oracles import close
from scipy.stats import norm
from small_models import fit_untrained, wave

import prodssm as ps

MIXTURE = ps.Moments(order=1, components=3, splits=3)
STEPS = 4


@pytest.fixture(scope="module")
def model():
    return fit_untrained(50 + 7 * wave(), weights="point").with_method(MIXTURE)


@pytest.fixture(scope="module")
def ahead(model):
    return model.forecast(50 + 7 * wave(), STEPS)


def test_a_forecast_has_the_quantiles_of_its_components_in_its_frame(ahead):
    parts = ahead.components
    assert parts.mean.shape == (3, STEPS, 1)
    frame = ahead.to_frame("pandas", probability=0.9)
    for column, probability in (("y0_lower", 0.05), ("y0_upper", 0.95)):
        below = (parts.weights * norm.cdf((frame[column].to_numpy() - parts.mean[:, :, 0]) / parts.std[:, :, 0])).sum(axis=0)
        assert np.allclose(below, probability, atol=1e-4)
    mean, cov = parts.moments()
    assert np.allclose(frame["y0_mean"], mean[:, 0])
    assert np.allclose(frame["y0_std"], np.sqrt(cov[:, 0, 0]))


def test_the_filter_keeps_the_components_in_the_units_of_the_data(model):
    data = 50 + 7 * wave()
    found = model.filter(data)
    weights = np.exp(np.asarray(found.mixture.log_weights, float))
    assert np.allclose((weights[:, :, None] * found.mixture.means).sum(axis=1), found.mean)
    assert list(found.to_frame("pandas").columns) == ["step", "y0_mean", "y0_std", "y0_lower", "y0_upper"]
    assert found.outputs.mean.shape == data.shape


@pytest.mark.slow
def test_a_stream_is_the_filter_and_its_next_observation_is_the_forecast(model):
    data = 50 + 7 * wave()
    found, (state, now) = model.filter(data), model.step(model.start(), data[0])
    for n in range(1, len(data)):
        state, now = model.step(state, data[n])
        assert close(now.state_mean, found.mean[n])
        assert close(now.state_cov, found.cov[n])
    ahead = model.forecast(data, 1)
    assert close(now.mean, ahead.mean[0], scale=10)
    for end, wanted in zip(now.interval(0.9), ahead.interval(0.9), strict=True):
        assert close(end, wanted[0], scale=10)


def test_point_weights_are_decomposed(ahead):
    parts = ahead.decompose()
    assert (parts.epistemic == 0).all()
    assert (parts.aleatoric > 0).all()
    assert close(np.asarray(parts.aleatoric + parts.measurement, ahead.cov.dtype), ahead.std**2)


def test_local_weights_cannot_be_decomposed(local_model):
    with pytest.raises(ValueError, match=r"local.*Use weights='global', or compare transition"):
        local_model.with_method(MIXTURE).forecast(wave(), STEPS).decompose()


def test_members_that_differ_are_decomposed():
    pair = fit_untrained(wave(), weights="point", n_estimators=2).with_method(MIXTURE)
    ahead = pair.forecast(wave(), STEPS)
    assert ahead.components.mean.shape == (6, STEPS, 1)
    parts = ahead.decompose()
    assert np.allclose(parts.epistemic + parts.aleatoric + parts.measurement, ahead.std**2)
    assert (parts.epistemic > 0).all()


def test_a_file_and_a_pickle_answer_alike(model, ahead, tmp_path):
    model.save(tmp_path / "m.safetensors")
    loaded = ps.load(tmp_path / "m.safetensors")
    assert loaded.method_ == MIXTURE
    again = loaded.forecast(50 + 7 * wave(), STEPS), pickle.loads(pickle.dumps(ahead))
    for each in again:
        assert (each.quantile(0.1) == ahead.quantile(0.1)).all()


def test_paths_are_drawn_from_the_mixture(ahead):
    paths = ahead.sample(4000, key=jr.key(0))
    inside = ((ahead.quantile(0.25) < paths) & (paths < ahead.quantile(0.75))).mean(axis=0)
    # The forecast is close to its paths, not equal: it moves moments, as the check says how well.
    assert np.abs(inside - 0.5).max() < 0.05 + 5 * np.sqrt(0.25 / 4000)


def test_smoothing_says_what_to_use_instead(model):
    with pytest.raises(ValueError, match=r"model.with_method\('moments'\).smooth\(data\)"):
        model.smooth(50 + 7 * wave())
