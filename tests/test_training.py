"""Training raises the objective, keeps what must not move, and gives the same result twice."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.training import train, trainable


@pytest.fixture(autouse=True)
def standard_promotion():
    """The optimiser is not ours: it mixes its step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


CHEAP = {"order": 1}
RNG = np.random.default_rng(0)
SERIES = [ps.Series(array(np.cumsum(RNG.normal(size=(12, 1)), axis=0) * 0.3)) for _ in range(3)]


def model():
    return ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 6, 1), key=jr.key(0)),
        process_noise=jnp.array([0.1]),
        measurement_noise=jnp.array([0.2]),
    )


def test_training_improves_and_leaves_alone_what_is_fixed():
    start = model()
    spec = trainable(start, measurement_noise=False)
    found, history = train(start, SERIES, iterations=60, key=jr.key(1), spec=spec, options=CHEAP, progress=False)
    assert history.objective[-1] > history.objective[0]
    assert history.iterations == [25, 50, 60]
    assert (found.log_measurement_noise == start.log_measurement_noise).all()
    assert (found.log_process_noise != start.log_process_noise).all()


def test_the_same_key_gives_the_same_model():
    first, second = (
        train(model(), SERIES, iterations=5, key=jr.key(1), batch=2, options=CHEAP, progress=False)[0] for _ in range(2)
    )
    assert all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))
