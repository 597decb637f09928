"""A free run over a record equals a forecast from what precedes it."""

import jax
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.data.batching import SeriesBatch
from prodssm.data.folds import Block
from prodssm.models.filtering import Recursion
from prodssm.models.free_run import free_runs
from prodssm.training.objectives import mean_squared_error


@pytest.mark.parametrize("controls", [False, True])
def test_free_runs_equal_forecasts(controls):
    rng = np.random.default_rng(0)
    inputs = 3 if controls else 2
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([0.0, 0.0], np.eye(2)),
        transition=ps.Network.mlp((inputs, 5, 2), key=jax.random.key(0)),
        emission=ps.Network.from_arrays([array(rng.normal(size=(1, inputs)))], [array(np.zeros(1))]),
        process_noise=array([0.1, 0.2]),
        measurement_noise=array([0.3]),
    )
    series = [
        ps.Series(array(rng.normal(size=(length, 1))), array(rng.normal(size=(length, 1))) if controls else None)
        for length in (20, 14)
    ]
    blocks = [Block(0, 12, 20), Block(1, 9, 14)]
    batch = SeriesBatch.of_blocks(series, blocks)
    mean, cov = free_runs(Recursion(model, ps.Moments()), batch.record, batch.given)
    squares = []
    for row, block in enumerate(blocks):
        whole = series[block.series]
        past = ps.Series(whole.y[: block.begin], None if whole.u is None else whole.u[: block.begin])
        u = None if whole.u is None else whole.u[block.begin : block.end]
        ahead = ps.forecast(model, past, block.end - block.begin, u=u)
        assert close(np.asarray(mean)[row, block.begin : block.end], ahead.mean)
        assert close(np.asarray(cov)[row, block.begin : block.end], ahead.cov)
        squares.append(np.square(np.asarray(ahead.mean) - whole.y[block.begin : block.end]))
    error = mean_squared_error(model, batch.record, batch.scored, batch.given, method=ps.Moments())
    assert close(error, np.concatenate(squares).mean())
