"""The motion capture file is the benchmark's, with the traps that its docstring warns of."""

import numpy as np
import pytest

from prodssm.datasets import mocap


@pytest.fixture
def data(or_skip):
    return or_skip(mocap.load)


def test_sequences_have_the_shapes_of_the_benchmark(data):
    for part, count in ((data.train, 16), (data.validation, 3), (data.test, 4)):
        assert part.shape == (count, 300, 50)
        assert part.dtype == np.float64
        assert np.isfinite(part).all()


def test_no_sequence_is_in_two_parts(data):
    sequences = np.concatenate([data.train, data.validation, data.test])
    for n, sequence in enumerate(sequences):
        gaps = np.sqrt(((sequences[n + 1 :] - sequence) ** 2).mean(axis=(1, 2)))
        assert (gaps > 1.0).all()


def test_four_outputs_are_constant_and_no_other_is(data):
    for part in (data.train, data.validation, data.test):
        std = part.reshape(-1, 50).std(axis=0)
        assert tuple(np.flatnonzero(std < 1e-10)) == mocap.CONSTANT_OUTPUTS
        assert std[std >= 1e-10].min() > 0.01


def test_each_sequence_is_centred_by_its_own_mean(data):
    for part, offset in ((data.train, 1e-5), (data.validation, 1e-5), (data.test, 0.0)):
        np.testing.assert_allclose(part.mean(axis=1), offset, rtol=0, atol=1e-11)


def test_simple_forecasts_have_the_errors_of_the_protocol(data):
    later = data.test[:, 3:]
    assert (later**2).mean() == pytest.approx(33.67, abs=5e-3)
    assert ((later - data.test[:, 2:3]) ** 2).mean() == pytest.approx(61.33, abs=5e-3)
    assert ((later - data.test[:, 2:-1]) ** 2).mean() == pytest.approx(0.275, abs=5e-4)
