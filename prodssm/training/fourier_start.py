r"""The start of a regressor on few rows: Bayesian linear regression on inputs and random Fourier features.

With frequencies $w \sim N(0, I / \ell^2)$ and pairs of phases $b$, $b + \pi/2$, the units $\sin(w^T x + b)$ have on average the
kernel $\exp(-|x - x'|^2 / 2 \ell^2)$: beside a linear map, a layer of them is a Gaussian process in weight space. Its scales
maximise the evidence on a grid, which has no local optimum to be caught in. Cubic in the number of rows.
"""

import itertools
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float
from scipy.special import ndtri

from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.layers import Linear
from prodssm.networks.network import Network
from prodssm.training.initialisation import NOISE_SHARE, RESIDUAL_GAIN, SMALLEST_NOISE, scale_output

LENGTHS = np.geomspace(0.15, 6.0, 10)  # length scales in standard deviations of one input
LINEAR_VARS = (0.0, 0.1, 1.0, 10.0)  # variances of the linear map over that of the nonlinear part
LEAST_SLOPE = 0.1  # of an emission
FREQUENCY_VAR = 1e-4  # initial variance of frequencies and phases
NOISES = np.geomspace(1e-4, 1e3, 22)  # variances of the noise, likewise


class Scales(NamedTuple):
    """The Gaussian process of largest evidence.

    Attributes:
        length: Length scale of the nonlinear part.
        linear: Variance of the linear map over that of the nonlinear part.
        noise: Variance of the noise, likewise.
        noise_var: Variance of the noise, output by output.
        function_var: Posterior variance of the function at a row that is left out, mean over rows, output by output.
    """

    length: float
    linear: float
    noise: float
    noise_var: Float[np.ndarray, " y"]
    function_var: Float[np.ndarray, " y"]


class Features(NamedTuple):
    """The map slope x + coefficients sin(weight x + bias)."""

    slope: Float[np.ndarray, "y x"]
    weight: Float[np.ndarray, "h x"]
    bias: Float[np.ndarray, " h"]
    coefficients: Float[np.ndarray, "y h"]


def fit_scales(x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"]) -> Scales:
    r"""The scales of largest evidence; outputs share all but the amplitude.

    With kernel $a (K + \lambda I)$ the amplitude has the closed form $a = y^T (K + \lambda I)^{-1} y / n$, and one
    eigendecomposition of $K$ serves all $\lambda$.
    """
    rows, inputs = x.shape
    squares = ((x[:, None, :] - x[None, :, :]) ** 2).sum(axis=2) / inputs
    found: list[tuple[float, Scales]] = []
    for length, linear in itertools.product(LENGTHS, LINEAR_VARS):
        values, vectors = np.linalg.eigh(np.exp(-0.5 * squares / length**2) + linear * x @ x.T / inputs)
        spectrum = np.maximum(values, 0.0)[:, None] + NOISES[None, :]
        amplitudes = np.einsum("nl,ny->ly", 1 / spectrum, (vectors.T @ y) ** 2) / rows
        evidence = -0.5 * rows * np.log(np.maximum(amplitudes, 1e-12)).sum(axis=1)
        evidence -= 0.5 * y.shape[1] * np.log(spectrum).sum(axis=0)
        best = int(np.argmax(evidence))
        noise, amplitude = NOISES[best], np.maximum(amplitudes[best], 1e-12)
        left_out = 1 / (vectors**2 / spectrum[:, best]).sum(axis=1) - noise
        scales = Scales(length * inputs**0.5, linear, noise, amplitude * noise, amplitude * np.maximum(left_out, 0.0).mean())
        found.append((float(evidence[best]), scales))
    return max(found, key=lambda pair: pair[0])[1]


def fit_features(
    scales: Scales, x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"], units: int, rng: np.random.Generator
) -> Features:
    """Features of the process with the posterior means of slope and coefficients.

    The slope becomes the emission, through which the features act as well: its singular values are at least `LEAST_SLOPE`, and
    the coefficients are fitted to what it leaves.
    """
    inputs, pairs = x.shape[1], -(-units // 2)
    frequencies = ndtri(low_discrepancy(pairs, inputs, rng)) / scales.length
    phases = rng.uniform(-np.pi, np.pi, pairs)
    weight = np.repeat(frequencies, 2, axis=0)[:units]
    bias = np.stack([phases, (phases + 1.5 * np.pi) % (2 * np.pi) - np.pi], axis=1).reshape(-1)[:units]
    waves = np.sqrt(2 / units) * np.sin(x @ weight.T + bias)
    gain = np.sqrt(scales.linear / inputs)
    slope = gain * _posterior_mean(np.concatenate([gain * x, waves], axis=1), y, scales.noise)[:, :inputs]
    left, values, right = np.linalg.svd(slope, full_matrices=False)
    slope = (left * np.maximum(values, LEAST_SLOPE)) @ right
    return Features(slope, weight, bias, np.sqrt(2 / units) * _posterior_mean(waves, y - x @ slope.T, scales.noise))


def _posterior_mean(columns: Float[np.ndarray, "n h"], y: Float[np.ndarray, "n y"], noise: float) -> Float[np.ndarray, "y h"]:
    """Posterior mean of the coefficients of Bayesian linear regression with a standard normal prior."""
    return np.linalg.solve(columns.T @ columns + noise * np.eye(columns.shape[1]), columns.T @ y).T


def with_features(
    model: StateSpaceModel, x: Float[np.ndarray, "n x"], y: Float[np.ndarray, "n y"], *, seed: int
) -> StateSpaceModel:
    """A model of one transition with one hidden layer of sines, with the weights of the Gaussian process of these rows.

    The noise is divided between measurement and process noise; the variance of the function goes to the last weights.
    """
    scales = fit_scales(x, y)
    network: Any = model.transition
    output: Any = model.emission
    hidden, last = network.linears
    (emission,) = output.linears
    features = fit_features(scales, x, y, hidden.bias.size, np.random.default_rng(seed))
    size = float((features.slope**2).sum(axis=1).mean())
    function_var = float(scales.function_var.mean()) / (size * hidden.bias.size / 2)
    weights = np.linalg.pinv(features.slope) @ features.coefficients
    transition = network.with_linears(
        [
            _layer(features.weight, features.bias, FREQUENCY_VAR, hidden),
            _layer(weights, np.zeros(last.bias.size), function_var, last),
        ]
    )
    changes: dict[str, Any] = {
        "transition": transition,
        "emission": output.with_linears([_layer(features.slope, np.zeros(len(features.slope)), 0.0, emission)]),
        "likelihood": model.likelihood.with_initial_variance(NOISE_SHARE * scales.noise_var),
    }
    if model.process_network is not None:
        level = max(NOISE_SHARE * float(scales.noise_var.mean()) / size, SMALLEST_NOISE)
        changes["process_network"] = _constant(model.process_network, level)
    return eqx.tree_at(lambda m: [getattr(m, name) for name in changes], model, list(changes.values()))


def _layer(weight: Float[np.ndarray, "o i"], bias: Float[np.ndarray, " o"], var: float, like: Linear) -> Linear:
    """A layer with these means and one variance, if the given one has any."""
    dtype = like.weight.dtype
    means = jnp.asarray(weight, dtype), jnp.asarray(bias, dtype)
    if not like.uncertain:
        return Linear(*means)
    return Linear(*means, *(jnp.full_like(mean, np.log(max(var, SMALLEST_NOISE))) for mean in means))


def _constant(network: Network, variance: float) -> Network:
    """The network of variances, nearly constant."""
    *inner, last = scale_output(network, RESIDUAL_GAIN).linears
    level = jnp.full_like(last.bias, np.log(np.expm1(variance)))
    return network.with_linears([*inner, Linear(last.weight, level, last.weight_log_var, last.bias_log_var)])


def low_discrepancy(count: int, dimensions: int, rng: np.random.Generator) -> Float[np.ndarray, "n d"]:
    """Points of an additive recurrence in the unit cube with a random shift; they fill it more evenly than random ones."""
    ratio = 2.0
    for _ in range(50):  # the root of ratio^(d + 1) = ratio + 1, the golden ratio for d = 1
        ratio = (1 + ratio) ** (1 / (dimensions + 1))
    steps = np.arange(1, count + 1)[:, None] * ratio ** -np.arange(1, dimensions + 1)
    return np.clip((rng.uniform(size=dimensions) + steps) % 1, 1e-6, 1 - 1e-6)
