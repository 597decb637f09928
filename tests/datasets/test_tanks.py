"""The simulated tanks obey their equations, keep water, and are a problem worth learning."""

import numpy as np
import pytest

from prodssm.datasets import tanks


def test_a_run_has_shapes_units_and_the_noise_that_was_asked_for():
    run = tanks.simulate(seed=0, steps=4000, noise_std=0.02)
    assert run.levels.shape == (4000, 2)
    assert run.y.shape == run.u.shape == (4000, 1)
    assert run.time[1] == tanks.STEP
    assert (run.levels > 0).all()
    assert (run.levels < 2).all()
    assert ((run.u >= tanks.LOWEST) & (run.u <= tanks.HIGHEST)).all()
    noise = (run.y - run.levels[:, 1:]) / 0.02
    assert abs(noise.mean()) < 5 / np.sqrt(4000)
    assert abs((noise**2).mean() - 1) < 5 * np.sqrt(2 / 4000)


def test_a_constant_pump_settles_where_inflow_equals_outflow(monkeypatch):
    monkeypatch.setattr(tanks, "LOWEST", 2.0)
    monkeypatch.setattr(tanks, "HIGHEST", 2.0)
    run = tanks.simulate(seed=0, steps=600, noise_std=0.0)
    expected = (tanks.PUMP * 2.0 / np.array(tanks.OUTLETS)) ** 2
    np.testing.assert_allclose(run.levels[-1], expected, rtol=1e-6)
    np.testing.assert_array_equal(run.y, run.levels[:, 1:])


def test_a_seed_fixes_the_run_and_wrong_arguments_are_named():
    np.testing.assert_array_equal(tanks.simulate(seed=1).y, tanks.simulate(seed=1).y)
    assert not np.array_equal(tanks.simulate(seed=1).y, tanks.simulate(seed=2).y)
    for wrong in ({"steps": 1}, {"seed": -1}, {"noise_std": -0.1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tanks.simulate(**{"seed": 0} | wrong)
