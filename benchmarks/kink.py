"""The kink system and fixed networks that imitate it, shared by the benchmarks of the filter and of training.

Import `common` before this: it must come before JAX.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.training import Recipe, train, trainable

PROCESS_STD = 0.05
NOISES = (0.008, 0.08, 0.8)  # variances of the measurement noise
START = 0.5
RANGE = (-3.5, 1.5)  # a little more than where the system lives
HIDDEN = 50


def kink(x: np.ndarray) -> np.ndarray:
    """The function that moves the state (PROTOCOLS 3)."""
    return 0.8 + (x + 0.2) * (1 - 5 / (1 + np.exp(-2 * x)))


def trajectory(steps: int, noise: float, seed: int) -> np.ndarray:
    """Noisy observations of the true system, (steps, 1)."""
    draw = np.random.default_rng(seed)
    states = [START]
    for _ in range(steps - 1):
        states.append(float(kink(np.asarray(states[-1]))) + PROCESS_STD * draw.standard_normal())
    return (np.asarray(states) + noise**0.5 * draw.standard_normal(steps))[:, None]


def fitted(weight_var: float | None = None) -> ps.Network:
    """A 1-50-1 network close to the kink: bends at random places, output weights by ridge regression on noisy samples.

    Args:
        weight_var: Variance of every weight and bias; certain weights if not given.
    """
    draw = np.random.default_rng(0)
    first = draw.choice([-1.0, 1.0], HIDDEN) * draw.uniform(0.5, 1.5, HIDDEN)
    bias = -first * draw.uniform(*RANGE, HIDDEN)
    x = draw.uniform(*RANGE, 2000)
    features = np.column_stack([np.maximum(x[:, None] * first + bias, 0.0), np.ones_like(x)])
    target = kink(x) + PROCESS_STD * draw.standard_normal(x.size)
    last = np.linalg.solve(features.T @ features + 0.1 * np.eye(HIDDEN + 1), features.T @ target)
    weights, biases = [first[:, None], last[None, :-1]], [bias, last[-1:]]
    if weight_var is None:
        return ps.Network.from_arrays(weights, biases)
    variances = [[np.full_like(array, weight_var) for array in part] for part in (weights, biases)]
    return ps.Network.from_arrays(weights, biases, "relu", *variances)


def learned(noise: float, seed: int, iterations: int = 400) -> ps.Network:
    """The mean weights of a network trained by the library on 120 noisy observations, as in the paper."""
    start = model(ps.Network.mlp((1, HIDDEN, 1), key=jr.key(seed)), noise, weights="local")
    spec = trainable(start, measurement_noise=False)
    data = [ps.Series(trajectory(120, noise, seed))]
    # Written out, so that a better default does not move this network.
    recipe = Recipe(iterations=iterations, learning_rate=5e-3, schedule="constant", clip=1.0, prior_weight=1.0)
    found, _ = train(start, data, recipe, key=jr.key(seed), spec=spec, progress=False)
    return found.transition.at_mean()


def model(network: ps.Network, noise: float = 0.08, *, weights: str = "point", start_var: float = 1.0) -> ps.StateSpaceModel:
    """The state-space model around a network, the state itself being observed."""
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.full(1, START), jnp.full((1, 1), start_var)),
        transition=network,
        process_noise=jnp.full(1, PROCESS_STD**2),
        measurement_noise=jnp.full(1, noise),
        weights=weights,
    )
