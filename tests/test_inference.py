"""Linear models: filter, smoother, evidence and forecast equal one big joint Gaussian, whatever finds the channels."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array, close

import prodssm as ps

X, Y, U, TIME, AHEAD = 3, 2, 1, 12, 4


def linear_problem(seed, *, residual, irregular, missing):
    """A linear model with controls as arrays, as a library model, and a series of it."""
    rng = np.random.default_rng(seed)
    parts = {
        "a": 0.4 * rng.normal(size=(X, X)),
        "b": rng.normal(size=(X, U)),
        "c": rng.normal(size=X),
        "h": rng.normal(size=(Y, X)),
        "d": rng.normal(size=Y),
        "q": np.array([0.1, 0.2, 0.3]),
        "r": np.array([0.3, 0.2]),
        "m": rng.normal(size=X),
        "p": 0.5 * np.eye(X) + 0.2,
    }
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(array(parts["m"]), array(parts["p"])),
        transition=ps.Network.from_arrays([array(np.hstack([parts["a"], parts["b"]]))], [array(parts["c"])]),
        emission=ps.Network.from_arrays([array(parts["h"])], [array(parts["d"])]),
        process_noise=array(parts["q"]),
        measurement_noise=array(parts["r"]),
        residual=residual,
    )
    y, u = rng.normal(size=(TIME, Y)), rng.normal(size=(TIME + AHEAD, U))
    if missing:
        y[3, 0], y[5], y[-1, 1] = np.nan, np.nan, np.nan
    time = np.cumsum(rng.uniform(0.3, 1.5, TIME)) if irregular else np.arange(TIME, dtype=float)
    return parts, model, y, u, time


def joint_answer(parts, y, u, time, *, residual):
    """Log evidence, and mean and covariance of all states, past and future, given all observations."""
    total = TIME + AHEAD
    steps = np.diff(time)
    steps = np.concatenate([steps, np.full(AHEAD, steps[-1])])
    mean, cov = [parts["m"]], np.zeros((total * X, total * X))
    cov[:X, :X] = parts["p"]
    for t in range(total - 1):
        dt = steps[t] if residual else 1.0
        slope = np.eye(X) + dt * parts["a"] if residual else parts["a"]
        mean.append(slope @ mean[-1] + dt * (parts["b"] @ u[t] + parts["c"]))
        now, later = slice(t * X, (t + 1) * X), slice((t + 1) * X, (t + 2) * X)
        before = slice(0, (t + 1) * X)
        cov[later, before] = slope @ cov[now, before]
        cov[before, later] = cov[later, before].T
        cov[later, later] = slope @ cov[now, now] @ slope.T + dt * np.diag(parts["q"])
    mean = np.concatenate(mean)
    seen = ~np.isnan(y.ravel())
    h = np.hstack([np.kron(np.eye(TIME), parts["h"]), np.zeros((TIME * Y, AHEAD * X))])[seen]
    innovation = y.ravel()[seen] - h @ mean - np.tile(parts["d"], TIME)[seen]
    s = h @ cov @ h.T + np.diag(np.tile(parts["r"], TIME)[seen])
    gain = np.linalg.solve(s, h @ cov).T
    evidence = -0.5 * (
        innovation @ np.linalg.solve(s, innovation) + np.linalg.slogdet(s)[1] + len(innovation) * np.log(2 * np.pi)
    )
    return evidence, (mean + gain @ innovation).reshape(total, X), cov - gain @ h @ cov


@pytest.mark.parametrize("method", ["moments", "linearised", "unscented"])
@pytest.mark.parametrize(("residual", "irregular", "missing"), [(False, False, False), (True, True, True)])
def test_linear_models_equal_the_joint_gaussian(method, residual, irregular, missing):
    parts, model, y, u, time = linear_problem(0, residual=residual, irregular=irregular, missing=missing)
    evidence, means, cov = joint_answer(parts, y, u, time, residual=residual)
    series = ps.Series(array(y), array(u[:TIME]), array(time))
    filtered = ps.filter_states(model, series, method)
    smoothed = ps.smooth_states(model, series, method)
    ahead = ps.forecast(model, series, steps=AHEAD, method=method, u=array(u[TIME:]))
    blocks = [cov[t * X : (t + 1) * X, t * X : (t + 1) * X] for t in range(TIME + AHEAD)]
    assert close(filtered.log_likelihood, evidence, scale=5)
    assert close(filtered.mean[-1], means[TIME - 1], scale=5)
    assert close(smoothed.mean, means[:TIME], scale=10)
    assert close(smoothed.cov, np.stack(blocks[:TIME]), scale=10)
    assert close(ahead.state_mean, means[TIME:], scale=50)
    assert close(ahead.mean, means[TIME:] @ parts["h"].T + parts["d"], scale=50)
    wanted = [parts["h"] @ block @ parts["h"].T + np.diag(parts["r"]) for block in blocks[TIME:]]
    assert close(ahead.cov, np.stack(wanted), scale=50)


def bayesian_regression(mean, var, noise, rows, targets):
    """Log evidence of each target, and mean and covariance of the weights: one output, independent weights before."""
    cov, evidence = np.diag(var), []
    for row, target in zip(rows, targets, strict=True):
        spread, gap = row @ cov @ row + noise, target - row @ mean
        evidence.append(-0.5 * (np.log(2 * np.pi * spread) + gap**2 / spread))
        gain = cov @ row / spread
        mean, cov = mean + gain * gap, cov - np.outer(gain, row @ cov)
    precision = np.diag(1 / var) + rows.T @ rows / noise  # the textbook's way, for what came out step by step
    assert np.allclose(cov, np.linalg.inv(precision))
    return np.array(evidence), mean, cov


@pytest.mark.parametrize("method", ["moments", "linearised", "unscented", "sampled"])
def test_one_layer_of_weights_drawn_once_and_states_that_are_seen_is_bayesian_linear_regression(method):
    rng = np.random.default_rng(5)
    weights, variances = 0.5 * rng.normal(size=(2, 4)), rng.uniform(0.02, 0.1, size=(2, 4))
    weight, weight_var = ([array(part[:, :3])] for part in (weights, variances))
    bias, bias_var = ([array(part[:, 3])] for part in (weights, variances))
    noise = np.array([0.09, 0.05])
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(array(np.zeros(2)), array(np.eye(2))),
        transition=ps.Network.from_arrays(weight, bias, "relu", weight_var, bias_var),
        process_noise=array(noise),
        measurement_noise=array(np.zeros(2)),  # nothing between a state and what is seen of it
        weights="global",
    )
    y, u = rng.normal(size=(TIME, 2)), rng.normal(size=(TIME, 1))
    options = {"key": jr.key(0)} if method == "sampled" else {}
    found = ps.filter_states(model, ps.Series(array(y), array(u)), method, **options)
    rows = np.hstack([y, u, np.ones((TIME, 1))])[:-1]
    wanted = [bayesian_regression(weights[o], variances[o], noise[o], rows, y[1:, o]) for o in range(2)]
    # 1e-8 in double precision. In single precision roots of a covariance that keeps losing variance add their rounding up.
    scale = 0.5 if found.mean.dtype == np.float64 else 20.0
    assert close(found.log_evidence[1:], sum(evidence for evidence, _, _ in wanted), scale=scale)
    assert close(found.weights.mean, np.concatenate([mean for _, mean, _ in wanted]), scale=scale)
    spread = np.asarray(found.weights.cov(), float)
    assert close(spread[:4, :4], wanted[0][2], scale=scale)
    assert close(spread[4:, 4:], wanted[1][2], scale=scale)
    assert close(spread[:4, 4:], np.zeros((4, 4)), scale=scale)
    assert close(found.mean, y, scale=scale)
    assert close(found.cov, np.zeros((TIME, 2, 2)), scale=scale)


@pytest.mark.parametrize("method", ["moments", "linearised"])
def test_the_joint_smoother_equals_a_dense_one(method):
    from prodssm.inference import Finder, walk

    net = ps.Network.mlp((3, 4, 2), "tanh", key=jr.key(0), log_var=-2.0)
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(2), 0.5 * jnp.eye(2)),
        transition=net,
        emission=ps.Network.mlp((2, 3, 2), "tanh", uncertain=False, key=jr.key(1)),
        process_noise=jnp.array([0.1, 0.2]),
        measurement_noise=jnp.array([0.1, 0.2]),
        weights="global",
        residual=True,
    )
    rng = np.random.default_rng(3)
    series = ps.Series(array(rng.normal(size=(6, 2))), array(rng.normal(size=(6, 1))))
    smoothed = ps.smooth_states(model, series, method)
    _, (beliefs, channels, _) = jax.jit(lambda f: walk(Finder(model, {}, method), f, keep_channels=True))(series.frames)
    at = lambda tree, t: jax.tree.map(lambda leaf: leaf[t], tree)  # noqa: E731
    last = at(beliefs, 5).dense()
    mean, cov = np.asarray(last.mean, float), np.asarray(last.cov, float)
    size = mean.size
    for t in range(4, -1, -1):
        belief, channel = at(beliefs, t).dense(), at(channels, t)
        f, q = np.eye(size), np.zeros((size, size))
        f[:2, :2], f[:2, 2:], q[:2, :2] = channel.slope, channel.weight_slope, channel.noise
        p = np.asarray(belief.cov, float)
        predicted = f @ p @ f.T + q
        gain = np.linalg.solve(predicted, f @ p).T
        mean = np.asarray(belief.mean, float) + gain @ (mean - np.concatenate([channel.mean, belief.mean[2:]]))
        cov = p + gain @ (cov - predicted) @ gain.T
        assert close(smoothed.mean[t], mean[:2], scale=20)
        assert close(smoothed.cov[t], cov[:2, :2], scale=20)
    assert close(smoothed.weights.mean, mean[2:], scale=20)


def test_padding_a_short_series_leaves_no_trace():
    from prodssm.inference import Finder, walk
    from prodssm.series import stack

    _, model, y, u, _ = linear_problem(1, residual=False, irregular=False, missing=True)
    long, short = ps.Series(array(y), array(u[:TIME])), ps.Series(array(y[:7]), array(u[:7]))
    evidence = jax.vmap(lambda f: walk(Finder(model, {}, "moments"), f)[1][2].sum())(stack([long, short]))
    assert close(evidence[0], ps.filter_states(model, long).log_likelihood)
    assert close(evidence[1], ps.filter_states(model, short).log_likelihood)


def test_simulated_series_have_the_moments_of_the_forecast():
    _, model, _, u, _ = linear_problem(2, residual=True, irregular=False, missing=False)
    keys = jr.split(jr.key(0), 20_000)
    controls = array(u[:3])
    states, _ = jax.vmap(lambda key: ps.simulate(model, 3, key=key, u=controls))(keys)
    nothing = ps.Series(array([[0.0, 0.0], [np.nan, np.nan], [np.nan, np.nan]]), controls)
    blind = ps.StateSpaceModel(
        initial=model.initial, transition=model.transition, emission=model.emission,
        process_noise=jnp.exp(model.log_process_noise), measurement_noise=array([1e12, 1e12]), residual=True,
    )  # fmt: skip
    wanted = ps.filter_states(blind, nothing)
    error = states[:, 2].std(axis=0) / np.sqrt(len(keys))
    assert (jnp.abs(states[:, 2].mean(axis=0) - wanted.mean[2]) < 5 * error + 1e-4).all()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: ps.Series(np.zeros((0, 1))), "y"),
        (lambda: ps.Series([1.0]), "y"),
        (lambda: ps.Series([[1.0], [np.inf]]), "y"),
        (lambda: ps.Series([[1.0, np.nan], [2.0, np.nan]]), "y"),
        (lambda: ps.Series([1.0, 2.0], u=[1.0]), "u"),
        (lambda: ps.Series([1.0, 2.0], u=[1.0, np.nan]), "u"),
        (lambda: ps.Series([1.0, 2.0], time=[1.0, 1.0]), "time"),
        (lambda: ps.Series("abc"), "y"),
    ],
)
def test_bad_series_are_refused_by_name(make, name):
    with pytest.raises((ValueError, TypeError), match=name):
        make()


def test_bad_calls_are_refused_by_name():
    _, model, y, u, _ = linear_problem(4, residual=False, irregular=False, missing=False)
    series = ps.Series(array(y), array(u[:TIME]))
    with pytest.raises(ValueError, match="method"):
        ps.filter_states(model, series, "magic")
    with pytest.raises(ValueError, match="channels"):
        ps.filter_states(model, ps.Series(array(y[:, :1]), array(u[:TIME])))
    with pytest.raises(ValueError, match=r"series\.u"):
        ps.filter_states(model, ps.Series(array(y)))
    with pytest.raises(ValueError, match="u must"):
        ps.forecast(model, series, steps=3)
    with pytest.raises(ValueError, match="u must"):
        ps.forecast(model, series, steps=5, u=array(u[TIME : TIME + 2]))
    with pytest.raises((ValueError, TypeError), match="steps"):
        ps.forecast(model, series, steps=0, u=array(u[TIME:]))


# ---------------------------------------------------------------- carried weights of bounded rank


def carrying(rank, hidden=(6,)):
    """A model whose weights are drawn once, and a series."""
    network = ps.Network.mlp((2, *hidden, 2), key=jr.key(1), log_var=-3.0)
    model = ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(2), jnp.eye(2)),
        transition=network,
        emission=ps.Network.from_arrays([jr.normal(jr.key(2), (3, 2))], [jnp.zeros(3)]),
        process_noise=jnp.full(2, 0.05),
        measurement_noise=jnp.full(3, 0.1),
        weights="global",
        rank=rank,
    )
    return model, np.random.default_rng(0).normal(size=(30, 3)).cumsum(axis=0) * 0.3


def test_the_rank_decides_how_carried_weights_are_remembered():
    count = 6 * 3 + 2 * 7
    for rank, hidden, kind in [
        (None, 6, ps.DenseWeights),
        (count, 6, ps.DenseWeights),
        (count - 1, 6, ps.LowRankWeights),
        (None, 100, ps.LowRankWeights),
    ]:
        belief = carrying(rank, (hidden,))[0].start()
        assert isinstance(belief, ps.JointGaussian)
        assert isinstance(belief.weights, kind)
    with pytest.raises(ValueError, match="rank must be at least 1, got 0"):
        carrying(0)


def test_a_filter_and_a_smoother_of_high_rank_equal_dense_ones_and_of_low_rank_come_close():
    (dense, y), (high, _), (low, _) = carrying(32), carrying(31), carrying(10)
    for run in (ps.filter_states, ps.smooth_states):
        exact, near, far = run(dense, y), run(high, y), run(low, y)
        assert np.allclose(near.mean, exact.mean, atol=1e-3)
        assert np.isclose(near.log_likelihood, exact.log_likelihood, rtol=1e-4)
        assert np.isclose(far.log_likelihood, exact.log_likelihood, rtol=0.01)
        assert np.linalg.eigvalsh(np.asarray(far.weights.cov())).min() > -1e-6
        assert np.linalg.eigvalsh(np.asarray(far.cov)).min() > 0


def test_gradients_pass_through_a_compression_and_a_batch_compresses_too():
    model, y = carrying(4)

    def evidence(log_noise, y):
        return ps.filter_states(eqx.tree_at(lambda m: m.log_process_noise, model, log_noise), y).log_likelihood

    batch = array(np.stack([y, y[::-1]]))
    values, grads = jax.vmap(jax.value_and_grad(evidence), (None, 0))(model.log_process_noise, batch)
    assert np.isclose(values[0], evidence(model.log_process_noise, batch[0]), rtol=1e-3)
    assert jnp.isfinite(grads).all()
