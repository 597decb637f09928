"""Known functions: exact where they are affine, a sum keeps what its network is, and bad functions are refused by name."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps
from prodssm.beliefs.linalg import largest_eigenvalue_bound
from prodssm.methods.known import by_points, rule
from prodssm.training.series_task import trainable

METHODS = ["moments", "linearised", "unscented", "cubature"]


def affine_pair(problem):
    """The linear problem of the other tests, and the same one with its functions handed in as functions."""
    a, b, c, h, d = (array(getattr(problem, name)) for name in "abchd")

    def move(x, u, params):
        return params["a"] @ x + b @ u + c

    model = problem.model
    parts = {
        "initial": model.initial,
        "process_noise": array(problem.q),
        "measurement_noise": array(problem.r),
        "residual": problem.residual,
    }
    known = ps.Known(move, {"a": a}, x_size=3, u_size=1)
    return model, ps.StateSpaceModel(transition=known, emission=lambda x, u: h @ x + d, **parts)


@pytest.mark.float64
@pytest.mark.parametrize("how", METHODS)
def test_a_linear_function_equals_the_linear_network(problem, how):
    network, known = affine_pair(problem)
    assert not known.feedthrough
    for run in (ps.filter_states, ps.smooth_states):
        first, second = run(network, problem.series, how), run(known, problem.series, how)
        for name in ("mean", "cov", "log_evidence"):
            assert np.abs(getattr(first, name) - getattr(second, name)).max() < 1e-10
    ahead = [ps.forecast(model, problem.series, problem.ahead, how, u=problem.future_u) for model in (network, known)]
    assert np.abs(ahead[0].mean - ahead[1].mean).max() < 1e-10
    assert np.abs(ahead[0].cov - ahead[1].cov).max() < 1e-10


@pytest.mark.float64
def test_gradients_of_a_linear_function_equal_those_of_the_linear_network(problem):
    network, known = affine_pair(problem)

    def evidence(model):
        return ps.filter_states(model, problem.series).log_likelihood

    first, second = (eqx.filter_jit(eqx.filter_grad(evidence))(model) for model in (network, known))
    wanted = first.transition.linears[0].weight[:, :3]
    assert np.abs(second.transition.params["a"] - wanted).max() < 1e-10 * max(1, float(np.abs(wanted).max()))
    assert np.abs(second.initial_mean - first.initial_mean).max() < 1e-10


@pytest.fixture(scope="module")
def network():
    return ps.Network.mlp((3, 6, 2), "erf", key=jr.key(0), log_var=-2.0)


BELIEF = ([0.3, -0.2], [[0.5, 0.1], [0.1, 0.3]])


@pytest.mark.parametrize("how", [*METHODS, ps.Sampled(50, jr.key(1))])
@pytest.mark.parametrize("weights", ["local", "global", "point"])
def test_a_sum_with_zero_is_the_network(network, how, weights):
    belief, u = ps.Gaussian(*BELIEF), array([0.7])
    both = ps.Sum(lambda x, u: jnp.zeros(2), network)
    first, second = (ps.channel(each, belief, how, weights, control=u) for each in (network, both))
    for name in ("mean", "slope", "noise") + (("weight_slope",) if weights == "global" else ()):
        assert close(getattr(second, name), getattr(first, name))


@pytest.mark.parametrize("weights", ["local", "global"])
def test_a_model_with_a_sum_with_zero_is_that_of_the_network(network, weights):
    rng = np.random.default_rng(0)
    series = ps.Series(array(rng.normal(size=(8, 2))), array(rng.normal(size=(8, 1))))
    found = []
    for transition in (network, ps.Sum(lambda x, u: 0 * x, network)):
        model = ps.StateSpaceModel(
            initial=ps.Gaussian(*BELIEF), transition=transition, process_noise=[0.1, 0.2], measurement_noise=[0.1, 0.1],
            weights=weights, residual=True,
        )  # fmt: skip
        found.append(ps.smooth_states(model, series))
    assert close(found[1].mean, found[0].mean)
    assert close(found[1].cov, found[0].cov)


def pendulum(x, u):
    return jnp.stack([x[1], -2 * jnp.sin(x[0]) * (1 + x[1]) + u[0]])


def test_a_sum_of_curved_functions_keeps_their_cross_covariance(network):
    # With certain weights one hidden layer has exact moments; with local ones its pre-activations are not Gaussian.
    belief, u, key, network = ps.Gaussian(*BELIEF), array([0.7]), jr.key(3), network.at_mean()
    channel = ps.channel(ps.Sum(pendulum, network), belief, control=u)
    alone = [ps.channel(part, belief, control=u) for part in (ps.Known(pendulum, x_size=2, u_size=1), network)]
    assert close(channel.mean, alone[0].mean + alone[1].mean)
    assert close(channel.slope, alone[0].slope + alone[1].slope)
    assert np.linalg.eigvalsh(channel.noise).min() > 0
    count = 400_000
    x = belief.sample(key=key, shape=(count,))
    values = np.asarray(jax.vmap(lambda x: pendulum(x, u) + network(jnp.concatenate([x, u])))(x), float)
    cov = np.asarray(belief.predict(channel).cov, float)
    apart = cov - np.asarray(channel.noise - alone[0].noise - alone[1].noise, float)
    error, without = (np.abs(np.cov(values.T) - found).max() for found in (cov, apart))
    assert error < 6 * np.abs(cov).max() * (2 / count) ** 0.5
    assert error < 0.4 * without


def test_noise_is_positive_semi_definite_where_the_parts_cancel():
    up = ps.Network.from_arrays([[[2.0]], [[1.0]]], [[0.0], [0.0]], "square")
    for scale in (0.0, 1e-6, 0.3, 1.0):
        belief = ps.Gaussian([0.5], [[scale]])
        channel = ps.channel(ps.Sum(lambda x, u: -4 * x**2, up), belief)
        assert channel.noise[0, 0] >= -1e-5
        assert close(channel.mean, [0.0])
        assert close(channel.noise, [[0.0]])


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 9])
def test_quadrature_is_exact_for_its_degree(n):
    points, weights = rule(n)
    assert (weights > 0).all()
    moments = [weights.sum(), *(weights @ points**2), weights @ points[:, 0] ** 3]
    assert np.allclose(moments, [1.0, *np.ones(n), 0.0])
    if n <= 8:
        assert np.isclose(weights @ points[:, -1] ** 4, 3.0)
        assert n == 1 or np.isclose(weights @ (points[:, 0] * points[:, -1]) ** 2, 1.0)


def test_a_certain_coordinate_has_the_slope_at_the_mean():
    channel, _ = by_points(lambda x: jnp.stack([x[0] ** 2 * x[1]]), ps.Gaussian([2.0, 3.0], [[0.0, 0.0], [0.0, 1.0]]))
    assert close(channel.slope, [[12.0, 4.0]])
    assert close(channel.noise, [[0.0]])


def test_the_bound_of_the_largest_eigenvalue_is_tight():
    root = np.random.default_rng(0).normal(size=(5, 5))
    psd = root @ root.T
    largest = np.linalg.eigvalsh(psd).max()
    assert largest <= largest_eigenvalue_bound(array(psd)) * 1.0001 <= largest * 1.01


def test_gradients_are_finite_and_programs_vmap(network):
    def noise(params, cov):
        both = ps.Sum(ps.Known(lambda x, u, p: p * jnp.sin(x), params, x_size=2, u_size=1), network)
        return ps.channel(both, ps.Gaussian(jnp.zeros(2), cov), control=array([0.1])).noise.sum()

    for scale in (0.0, 1e-12, 1.0):
        for slope in jax.jit(jax.grad(noise, argnums=(0, 1)))(array([1.0, 2.0]), scale * jnp.eye(2)):
            assert np.isfinite(slope).all()
    many = jax.vmap(noise, in_axes=(0, None))(jnp.ones((3, 2)), jnp.eye(2))
    assert close(many, jnp.full(3, noise(jnp.ones(2), jnp.eye(2))))


def test_only_parameters_that_are_learned_are_trained(network):
    known = ps.Known(
        lambda x, u, p: p["a"] * x + p["b"], {"a": 1.0, "b": 2.0}, x_size=2, u_size=1, learned={"a": True, "b": False}
    )
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(*BELIEF), transition=ps.Sum(known, network), process_noise=[0.1, 0.1], measurement_noise=[0.1, 0.1]
    )
    spec = trainable(model).transition
    assert spec.physics.params == {"a": True, "b": False}
    assert all(jax.tree.leaves(spec.network))


def test_models_of_known_functions_simulate_and_refuse_global_weights():
    parts = {"initial": ps.Gaussian([0.0], [[1.0]]), "process_noise": [0.1], "measurement_noise": [0.1]}
    model = ps.StateSpaceModel(transition=lambda x, u: 0.9 * x + u, controls=1, **parts)
    assert model.u_size == 1
    assert ps.simulate(model, 4, key=jr.key(0), u=jnp.ones((4, 1)))[1].shape == (4, 1)
    with pytest.raises(ValueError, match="weights='global' needs a transition with a network"):
        ps.StateSpaceModel(transition=lambda x, u: x, weights="global", **parts)


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x, u: x[:1], ValueError, "transition must map at least 2 inputs"),
        (lambda x, u: x.sum(), ValueError, r"transition: <lambda> must return one vector, of shape \(n,\), .*got shape \(\)"),
        (lambda x, u: (x, x), TypeError, "must return one array"),
        (lambda x: x, TypeError, r"transition: <lambda> must be a function of \(x, u\), got \(x\)"),
        (lambda x, u, p: x, TypeError, "parameters are given with it: prodssm.Known"),
        (lambda x, u: x if x[0] > 0 else -x, TypeError, "must be a function that JAX can trace"),
        (lambda x, u: x + u, ValueError, "u = None; it raised TypeError"),
        (3.0, TypeError, "transition must be a Network, Known, Sum or a function"),
    ],
)
def test_functions_that_cannot_be_used_are_refused(function, error, message):
    with pytest.raises(error, match=message):
        ps.StateSpaceModel(
            initial=ps.Gaussian(*BELIEF), transition=function, process_noise=[0.1, 0.1], measurement_noise=[0.1, 0.1]
        )


def test_wrong_parts_of_a_sum_and_parameters_are_refused(network):
    for make, error, message in [
        (lambda: ps.Sum(lambda x, u: x[:1], network), ValueError, "network must take the 3 inputs of physics to its 1 outputs"),
        (lambda: ps.Sum(lambda x, u: x, 3.0), TypeError, "network must be a prodssm.Network"),
        (lambda: ps.Known(lambda x, u, p: x, {"a": "b"}, x_size=1), TypeError, "params"),
        (lambda: ps.Known(lambda x, u, p: x, {"a": 1.0}, x_size=1, learned={"b": True}), ValueError, "learned must be"),
    ]:
        with pytest.raises(error, match=message):
            make()
