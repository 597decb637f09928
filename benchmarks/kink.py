"""The kink system and fixed networks that approximate it, shared by the benchmarks of the filter and of training.

Import `common` before this: it must come before JAX.
"""

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps

PROCESS_STD = 0.05
NOISES = (0.008, 0.08, 0.8)  # variances of the measurement noise
START = 0.5
RANGE = (-3.5, 1.5)  # of states, somewhat wider than the system visits
HIDDEN = 50


def kink(x: np.ndarray) -> np.ndarray:
    """The transition function of the kink system (PROTOCOLS 3)."""
    return 0.8 + (x + 0.2) * (1 - 5 / (1 + np.exp(-2 * x)))


def trajectory(steps: int, noise: float, seed: int) -> np.ndarray:
    """Noisy observations of the true system, (steps, 1)."""
    draw = np.random.default_rng(seed)
    states = [START]
    for _ in range(steps - 1):
        states.append(float(kink(np.asarray(states[-1]))) + PROCESS_STD * draw.standard_normal())
    return (np.asarray(states) + noise**0.5 * draw.standard_normal(steps))[:, None]


def fitted(weight_var: float | None = None) -> ps.Network:
    """A 1-50-1 network close to the kink: random hidden units, output weights by ridge regression on noisy samples.

    Args:
        weight_var: Variance of every weight and bias; point weights if not given.
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
    return uncertain(noise, seed, iterations).at_mean()


def uncertain(noise: float, seed: int, iterations: int = 400, prior_weight: float = 1.0) -> ps.Network:
    """That network with its local weights."""
    initial = model(ps.Network.mlp((1, HIDDEN, 1), key=jr.key(seed)), noise, weights="local", learn_noise=False)
    data = [ps.Series(trajectory(120, noise, seed))]
    # Explicit settings, so that a change of the defaults does not change this network.
    recipe = ps.Recipe(iterations=iterations, learning_rate=5e-3, schedule="constant", clip=1.0, prior_weight=prior_weight)
    found, _ = ps.train(initial, data, recipe, key=jr.key(seed), progress=False)
    return found.transition


def model(
    network: ps.Network, noise: float = 0.08, *, weights: str = "point", start_var: float = 1.0, learn_noise: bool = True
) -> ps.StateSpaceModel:
    """The state-space model with this transition network and the identity as emission.

    Args:
        network: The transition network.
        noise: Variance of the measurement noise.
        weights: "local", "global" or "point".
        start_var: Variance of the initial state.
        learn_noise: Whether training changes the measurement noise.
    """
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.full(1, START), jnp.full((1, 1), start_var)),
        transition=network,
        process_noise=jnp.full(1, PROCESS_STD**2),
        likelihood=ps.GaussianLikelihood(jnp.full(1, noise), floor=0.0, learned=learn_noise),
        weights=weights,
    )
