"""Linear models against other libraries: the same numbers as dynamax and filterpy, where they are installed (extra `bench`)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import array

import prodssm as ps

RNG = np.random.default_rng(3)
A, B, C = np.array([[0.9, 0.2, 0.0], [-0.1, 0.8, 0.1], [0.0, 0.3, 0.7]]), RNG.normal(size=(3, 1)), RNG.normal(size=(2, 3))
Q, R, OFFSET = np.array([0.1, 0.2, 0.05]), np.array([0.3, 0.4]), np.array([0.1, -0.2, 0.3])
MEAN, COV = np.array([0.5, -0.3, 0.1]), np.diag([1.0, 0.5, 0.8]) + 0.1
Y, U = RNG.normal(size=(25, 2)), RNG.normal(size=(25, 1))
METHODS = ["moments", "linearised", "unscented"]

pytestmark = pytest.mark.skipif(not jax.config.read("jax_enable_x64"), reason="agreement to 1e-8 needs double precision")


def model():
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array(MEAN), array(COV)),
        transition=ps.Network.from_arrays([np.hstack([A, B])], [OFFSET]),
        emission=ps.Network.from_arrays([C], [np.zeros(2)]),
        process_noise=array(Q),
        measurement_noise=array(R),
    )


@pytest.fixture(params=METHODS)
def method(request):
    return request.param


def agree(found, wanted):
    found, wanted = np.asarray(found, float), np.asarray(wanted, float)
    return np.abs(found - wanted).max() < 1e-8 * max(1.0, np.abs(wanted).max())


def test_dynamax_agrees_on_linear_models(method):
    inference = pytest.importorskip("dynamax.linear_gaussian_ssm.inference", reason="needs the extra 'bench'")
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        params = inference.ParamsLGSSM(
            initial=inference.ParamsLGSSMInitial(mean=jnp.asarray(MEAN), cov=jnp.asarray(COV)),
            dynamics=inference.ParamsLGSSMDynamics(
                weights=jnp.asarray(A), bias=jnp.asarray(OFFSET), input_weights=jnp.asarray(B), cov=jnp.diag(jnp.asarray(Q))
            ),
            emissions=inference.ParamsLGSSMEmissions(
                weights=jnp.asarray(C), bias=jnp.zeros(2), input_weights=jnp.zeros((2, 1)), cov=jnp.diag(jnp.asarray(R))
            ),
        )
        # There an input moves the state to its own time, here away from it.
        wanted = inference.lgssm_smoother(params, jnp.asarray(Y), jnp.asarray(np.roll(U, 1, axis=0)))
    series = ps.Series(Y, U)
    filtered, smoothed = ps.filter_states(model(), series, method), ps.smooth_states(model(), series, method)
    assert agree(filtered.log_likelihood, wanted.marginal_loglik)
    assert agree(filtered.mean, wanted.filtered_means)
    assert agree(filtered.cov, wanted.filtered_covariances)
    assert agree(smoothed.mean, wanted.smoothed_means)
    assert agree(smoothed.cov, wanted.smoothed_covariances)


def test_filterpy_agrees_on_linear_models_with_missing_frames(method):
    kalman = pytest.importorskip("filterpy.kalman", reason="needs the extra 'bench'")
    rival = kalman.KalmanFilter(dim_x=3, dim_z=2, dim_u=1)
    rival.F, rival.B, rival.H, rival.Q, rival.R = A, B, C, np.diag(Q), np.diag(R)
    rival.x, rival.P = MEAN[:, None].copy(), COV.copy()
    y = Y.copy()
    y[7:10] = np.nan
    found = ps.filter_states(model(), ps.Series(y, U), method)
    for t in range(len(y)):
        if not np.isnan(y[t]).any():
            rival.update(y[t][:, None])
        assert agree(found.mean[t], rival.x[:, 0])
        assert agree(found.cov[t], rival.P)
        rival.predict(u=U[t][:, None])
        rival.x = rival.x + OFFSET[:, None]
    steps = 4
    ahead = ps.forecast(model(), ps.Series(y, U), steps, method, u=U[: steps - 1])
    for k in range(steps):
        assert agree(ahead.mean[k], C @ rival.x[:, 0])
        assert agree(ahead.cov[k], C @ rival.P @ C.T + np.diag(R))
        rival.predict(u=U[k][:, None])
        rival.x = rival.x + OFFSET[:, None]
