"""A stream whose belief overflows is an error, not an answer."""

from dataclasses import replace

import numpy as np
import pytest
from oracles import array
from small_models import fit_untrained, wave

import prodssm as ps


@pytest.mark.slow
def test_a_stream_that_overflows_is_an_error():
    model = fit_untrained(wave())
    unstable = ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.0]), array([[1.0]])),
        transition=ps.Network.from_arrays([array([[30.0]])], [array([0.0])]),
        process_noise=array([0.1]),
        measurement_noise=array([0.1]),
        weights="point",
    )
    model.members_ = (replace(model.members_[0], ssm=unstable),)

    def run():
        state = model.start()
        for _ in range(400):
            state, _ = model.step(state, [np.nan])

    with pytest.raises(FloatingPointError, match="the stream overflowed"):
        run()
