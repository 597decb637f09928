"""The evidence over draws of global weights is that of the filter that carries them, where that is exact."""

import jax
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.baselines.monte_carlo import drawn_log_evidence, train_by_draws

Y = array(np.sin(0.7 * np.arange(12.0))[:, None])


def model(bias_var, weights="global", weight_var=0.0):
    """x + 1 with an unknown constant: linear in state and weights together, so that the joint filter is exact."""
    network = ps.Network.from_arrays(
        [array([[0.8]])], [array([0.1])], weight_vars=[array([[weight_var]])], bias_vars=[array([bias_var])]
    )
    return ps.StateSpaceModel(
        initial=ps.Gaussian(array([0.0]), array([[1.0]])),
        transition=network,
        process_noise=array([0.1]),
        measurement_noise=array([0.2]),
        weights=weights,
    )


def found(chosen, samples, seed=0):
    record, scored = ps.Series(Y).record, array(np.r_[0.0, np.ones(11)])
    return drawn_log_evidence(chosen, record, scored, samples, method=ps.Moments(), key=jr.key(seed))


def test_certain_weights_have_the_evidence_of_point_weights():
    exact = ps.filter_states(model(0.0, "point"), Y).log_evidence[1:].sum()
    assert close(found(model(0.0), 3), exact, scale=10)


def test_many_draws_have_the_evidence_of_the_joint_filter():
    exact, count = float(ps.filter_states(model(0.3), Y).log_evidence[1:].sum()), 4000
    several = np.array([float(found(model(0.3), count, seed)) for seed in range(8)])
    assert abs(several.mean() - exact) < 5 * several.std(ddof=1) / np.sqrt(8)
    assert several.std(ddof=1) < 0.1


@pytest.mark.usefixtures("standard_promotion")
def test_training_raises_the_evidence():
    start = model(0.3, weight_var=1e-3).with_weight_mode("local")
    recipe = ps.Recipe(iterations=50, learning_rate=0.03, prior_weight=0.0)
    learned, history = train_by_draws(start, [ps.Series(Y)], recipe, samples=16, key=jr.key(1), progress=False)
    assert history.iterations[-1] == 50
    assert ps.filter_states(learned, Y).log_likelihood > ps.filter_states(start, Y).log_likelihood
    assert all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(learned))
