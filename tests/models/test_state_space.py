"""A state-space model holds parts that fit together, and carries global weights in a form that its rank decides."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.models.state_space import VARIANCE_FLOOR, require_memory, require_steps


def build(**changes) -> Any:
    """A model of two states, three outputs and one control, with changes."""
    parts = {
        "initial": ps.Gaussian(jnp.zeros(2), jnp.eye(2)),
        "transition": ps.Network.mlp((3, 4, 2), key=jr.key(0)),
        "emission": ps.Network.mlp((2, 3), uncertain=False, key=jr.key(1)),
        "process_noise": [0.1, 0.2],
        "measurement_noise": [0.1, 0.2, 0.3],
    }
    return ps.StateSpaceModel(**(parts | changes))


def test_the_parts_of_a_model_are_as_given():
    model = build()
    assert (model.x_size, model.y_size, model.u_size) == (2, 3, 1)
    assert close(model.initial.cov, np.eye(2))
    assert close(model.likelihood.variance, [0.1, 0.2, 0.3])
    assert close(jnp.exp(model.log_process_noise), [0.1, 0.2])
    assert close(model.process_variances(model.initial, jnp.zeros(1)), [0.1, 0.2])
    assert model.initial_belief().weights is None
    x = array([0.3, -0.4])
    assert close(model.output(x), model.emission(x))
    assert close(build(emission=None, measurement_noise=[0.1, 0.2]).output(x), x)


def test_noise_may_be_zero_and_a_likelihood_may_be_given_in_place_of_it():
    model = build(process_noise=[0.0, 0.1], measurement_noise=None, likelihood=ps.GaussianLikelihood(np.zeros(3)))
    assert close(model.likelihood.variance, np.zeros(3))
    assert not model.likelihood.learned
    assert build().likelihood.learned
    assert close(model.process_variances(model.initial, None), [0.0, 0.1])


def test_a_variance_network_gives_the_variances_at_a_certain_state():
    network = ps.Network.mlp((3, 4, 2), uncertain=False, key=jr.key(2))
    model = build(process_noise=network)
    x, u = array([0.5, -1.0]), array([0.3])
    wanted = VARIANCE_FLOOR + np.log1p(np.exp(np.asarray(network(jnp.concatenate([x, u])), float)))
    assert close(eqx.filter_jit(model.process_variances)(ps.Gaussian.certain(x), u), wanted)
    assert close(model.sample_process_variances(jnp.concatenate([x, u]), key=jr.key(0)), wanted)


def test_another_weight_mode_changes_nothing_else():
    model = build(residual=True, rank=3)
    same = model.with_weight_mode("global")
    assert (same.weights, same.residual, same.rank) == ("global", True, 3)
    assert same.transition is model.transition
    assert model.with_weight_mode("local") is model
    with pytest.raises(ValueError, match="weights must be one of local, global, point; got 'shared'"):
        model.with_weight_mode("shared")


def test_the_rank_decides_the_structure_of_the_weight_covariance(global_problem):
    count = 6 * 3 + 2 * 7
    for rank, hidden, structure in [
        (None, 6, ps.DenseWeights),
        (count, 6, ps.DenseWeights),
        (count - 1, 6, ps.LowRankWeights),
        (None, 100, ps.LowRankWeights),
    ]:
        belief = global_problem(rank, (hidden,))[0].initial_belief()
        assert isinstance(belief, ps.JointGaussian)
        assert isinstance(belief.weights, structure)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        global_problem(0)


def test_global_weights_are_refused_where_memory_cannot_hold_them(global_problem):
    model, _ = global_problem(None)
    require_memory(model, 24, ps.Moments())
    # A gradient or a smoother keeps one covariance of all weights for every step.
    with pytest.raises(
        ValueError, match=r"weights='global' would keep 10+ covariances of 32 weights, .* GB; .*weights='local'"
    ):
        require_memory(model, 10**12, ps.Moments())
    require_memory(model.with_weight_mode("local"), 10**12, ps.Moments())
    # A method that forms the covariance of state and weights needs it once, whatever its rank.
    monstrous = global_problem(1, (10**5,))[0]
    require_memory(monstrous, 1, ps.Moments())
    with pytest.raises(ValueError, match="would keep 1 covariances"):
        require_memory(monstrous, 1, ps.Unscented())


def test_steps_that_no_memory_holds_are_refused_before_any_work(global_problem):
    model, y = global_problem(None)
    require_steps(model, 1000)
    for ask in (lambda n: require_steps(model, n), lambda n: ps.forecast(model, y, n)):
        with pytest.raises(ValueError, match=r"steps must fit in memory: 10+ steps need about .* GB, .* ask for fewer"):
            ask(10**12)


NETWORK = ps.Network.mlp((2, 4), key=jr.key(0))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"initial": ps.Gaussian([0.0], [[-1.0]])}, r"initial\.cov must be positive semi-definite"),
        ({"initial": ps.Gaussian([np.nan, 0.0], np.eye(2))}, r"initial\.mean must be finite"),
        ({"transition": NETWORK}, r"transition must map at least 2 inputs \(state and control\) to 2 outputs, got 2 to 4"),
        (
            {"emission": ps.Network.mlp((4, 3), key=jr.key(0))},
            "emission must take the 2 states, or these and the 1 controls, got",
        ),
        ({"process_noise": [0.1]}, "process_noise must have 2 variances"),
        ({"process_noise": [0.1, -0.1]}, "process_noise must not be negative"),
        ({"process_noise": NETWORK}, "process_noise must be a network of 3 inputs and 2 outputs, got 2 and 4"),
        ({"measurement_noise": [0.1, 0.2]}, "measurement_noise must be for 3 outputs, got 2"),
        ({"measurement_noise": [0.1, 0.2, -0.3]}, "measurement_noise must not be negative"),
        ({"measurement_noise": None}, "give either measurement_noise or likelihood"),
        ({"likelihood": ps.GaussianLikelihood([1.0])}, "give either measurement_noise or likelihood"),
        ({"measurement_noise": None, "likelihood": ps.GaussianLikelihood([1.0])}, "likelihood must be for 3 outputs, got 1"),
        ({"weights": "shared"}, "weights must be one of local, global, point; got 'shared'"),
    ],
)
def test_parts_that_do_not_fit_are_refused_by_name(changes, said):
    with pytest.raises(ValueError, match=said):
        build(**changes)
