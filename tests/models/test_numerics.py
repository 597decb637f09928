"""Models answer in their own precision, in any units, and with an error where numbers overflow."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from linear_oracles import unstable_model
from oracles import array, close

import prodssm as ps
from prodssm.data.scaling import Standardiser


def test_a_model_runs_in_its_own_precision():
    single = ps.StateSpaceModel(
        initial=ps.Gaussian(np.zeros(1, np.float32), np.eye(1, dtype=np.float32)),
        transition=ps.Network.from_arrays([np.full((1, 1), 0.1, np.float32)], [np.zeros(1, np.float32)]),
        process_noise=np.ones(1, np.float32),
        measurement_noise=np.ones(1, np.float32),
        weights="point",
        residual=True,
    )
    y = np.sin(0.3 * np.arange(20))
    for found in (ps.filter_states(single, y), ps.smooth_states(single, y), ps.forecast(single, y, 3)):
        assert found.mean.dtype == jnp.float32


@pytest.mark.parametrize("run", [ps.filter_states, ps.smooth_states])
def test_beliefs_that_overflow_are_an_error(run):
    unstable = unstable_model()
    y = np.full((400, 1), np.nan)
    y[0] = 1.0
    with pytest.raises(FloatingPointError, match=r"the (filter|smoother) overflowed: the system is unstable"):
        run(unstable, y)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "weights", "size"),
    [
        (ps.Moments(), "point", 2),
        (ps.Moments(), "point", 5),
        (ps.Sampled(samples=100, key=jr.key(0)), "local", 5),
    ],
    ids=["moments, unrolled", "moments, LAPACK", "sampled"],
)
def test_gradients_are_finite_where_all_variances_are_zero(method, weights, size):
    series = ps.Series(np.random.default_rng(0).normal(size=(6, size)))
    model = ps.StateSpaceModel(
        initial=ps.Gaussian.certain(jnp.zeros(size)),
        transition=ps.Network.mlp((size, 4, size), key=jr.key(0)),
        process_noise=np.zeros(size),
        measurement_noise=np.full(size, 0.1),
        weights=weights,
    )

    @eqx.filter_jit
    @eqx.filter_grad
    def gradients(model):
        found = ps.smooth_states(model, series, method)
        return found.mean.sum() + found.log_likelihood

    grads = gradients(model)
    grads = eqx.tree_at(lambda m: m.log_process_noise, grads, jnp.zeros(size))  # of the logarithm of zero
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(grads))


def test_a_given_variance_keeps_its_precision_in_small_units():
    y, small = np.sin(0.3 * np.arange(20))[:, None], 1e-12 if array(0.0).dtype == jnp.float32 else 1e-100
    found = [ps.GaussianLikelihood(0.1 * unit**2).for_data(Standardiser.fit(array(unit * y))).variance for unit in (small, 1.0)]
    assert close(found[0], np.asarray(found[1]), scale=100)
