"""Linear models: the same numbers as filterpy, run here, and as dynamax, whose numbers are in dynamax.npz."""

import sys
from pathlib import Path

import numpy as np
import pytest
from filterpy.kalman import KalmanFilter
from oracles import array

import prodssm as ps

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from problem import COV, MEAN, OFFSET, A, B, C, Q, R, U, Y  # noqa: E402

pytestmark = pytest.mark.float64


@pytest.fixture(scope="module")
def model():
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(MEAN), array(COV)),
        transition=ps.Network.from_arrays([np.hstack([A, B])], [OFFSET]),
        emission=ps.Network.from_arrays([C], [np.zeros(2)]),
        process_noise=array(Q),
        measurement_noise=array(R),
    )


@pytest.fixture(params=["moments", "linearised", "unscented", "cubature"])
def method(request):
    return request.param


def agree(found, wanted):
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    return np.abs(found - wanted).max() < 1e-8 * max(1.0, np.abs(wanted).max())


def test_dynamax_agrees_on_linear_models(model, method):
    wanted = np.load(HERE / "dynamax.npz")
    series = ps.Series(Y, U)
    filtered, smoothed = ps.filter_states(model, series, method), ps.smooth_states(model, series, method)
    assert agree(filtered.log_likelihood, wanted["marginal_loglik"])
    assert agree(filtered.mean, wanted["filtered_means"])
    assert agree(filtered.cov, wanted["filtered_covariances"])
    assert agree(smoothed.mean, wanted["smoothed_means"])
    assert agree(smoothed.cov, wanted["smoothed_covariances"])


def test_filterpy_agrees_on_linear_models_with_missing_observations(model, method):
    rival = KalmanFilter(dim_x=3, dim_z=2, dim_u=1)
    rival.F, rival.B, rival.H, rival.Q, rival.R = A, B, C, np.diag(Q), np.diag(R)
    rival.x, rival.P = MEAN[:, None].copy(), COV.copy()
    y = Y.copy()
    y[7:10] = np.nan
    found = ps.filter_states(model, ps.Series(y, U), method)
    for t in range(len(y)):
        if not np.isnan(y[t]).any():
            rival.update(y[t][:, None])
        assert agree(found.mean[t], rival.x[:, 0])
        assert agree(found.cov[t], rival.P)
        rival.predict(u=U[t][:, None])
        rival.x = rival.x + OFFSET[:, None]
    steps = 4
    ahead = ps.forecast(model, ps.Series(y, U), steps, method, u=U[: steps - 1])
    for k in range(steps):
        assert agree(ahead.mean[k], C @ rival.x[:, 0])
        assert agree(ahead.cov[k], C @ rival.P @ C.T + np.diag(R))
        rival.predict(u=U[k][:, None])
        rival.x = rival.x + OFFSET[:, None]
