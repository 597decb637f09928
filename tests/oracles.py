"""What the library should compute, found in other ways: quadrature, dense algebra and sampling in plain NumPy, float64.

The library appears only where arrays are handed to it. Sections are those of docs/math.md.
"""

import itertools
import math
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from scipy import special

import prodssm as ps
from prodssm.beliefs.channel import Link

# ---------------------------------------------------------------- comparisons


def close(a, b, scale=1.0):
    """Whether a and b agree to the square root of a's rounding error, relative to the largest entry of b (or to one)."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape:
        raise AssertionError(f"shapes differ: {a.shape} and {b.shape}")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    if a.size == 0:
        return True
    size = max(1.0, np.abs(b).max())
    return bool(np.abs(a.astype(float) - b.astype(float)).max() <= scale * root_eps(a) * size)


def root_eps(a):
    """Square root of the rounding error of a's type."""
    dtype = np.asarray(a).dtype
    return math.sqrt(np.finfo(dtype if dtype.kind == "f" else float).eps)


def array(values):
    """An array in the precision under test."""
    return jnp.asarray(values, dtype=float)


def smallest_eigenvalue(matrix):
    """Smallest eigenvalue of a symmetric matrix relative to its trace (0 for the zero matrix)."""
    matrix = np.asarray(matrix, float)
    trace = np.trace(matrix)
    return np.linalg.eigvalsh((matrix + matrix.T) / 2).min() / trace if trace > 0 else np.linalg.eigvalsh(matrix).min()


class SampleMoments(NamedTuple):
    """Sample means and covariances of one vector with another, and the standard error of each."""

    mean: np.ndarray
    mean_error: np.ndarray
    cov: np.ndarray
    cov_error: np.ndarray

    @classmethod
    def of(cls, rows, columns, batches=50):
        """From samples (s, a) and (s, b); errors from how much batches of samples differ."""
        size = len(rows) // batches
        pairs = [(rows[k * size : (k + 1) * size], columns[k * size : (k + 1) * size]) for k in range(batches)]
        return cls.over(pairs)

    @classmethod
    def over(cls, batches):
        """From many (rows, columns) batches, none of which is kept."""
        means, covs = [], []
        for rows, columns in batches:
            centre = rows.mean(axis=0)
            means.append(centre)
            covs.append((rows - centre).T @ (columns - columns.mean(axis=0)) / (len(rows) - 1))
        return cls(np.mean(means, 0), standard_error(means), np.mean(covs, 0), standard_error(covs))


def standard_error(batches):
    """Standard error of the mean of independent batches."""
    return np.std(batches, axis=0, ddof=1) / math.sqrt(len(batches))


def assert_mean_matches(expected, moments, *, sigmas=5.0):
    """Sample means lie within a few standard errors of what is expected."""
    _assert_within(expected, moments.mean, moments.mean_error, sigmas, "mean")


def assert_cov_matches(expected, moments, *, sigmas=5.0):
    """Sample covariances lie within a few standard errors of what is expected."""
    _assert_within(expected, moments.cov, moments.cov_error, sigmas, "covariance")


def _assert_within(expected, found, error, sigmas, what):
    expected = np.asarray(expected, float)
    assert expected.shape == found.shape, f"{what}: shapes {expected.shape} and {found.shape}"
    # Rounding is the error of what does not vary at all.
    error = error + 1e-12 * (1 + np.abs(found))
    worst = (np.abs(expected - found) / error).max()
    assert worst < sigmas, f"{what} is {worst:.1f} standard errors from the samples"


# ---------------------------------------------------------------- activations


def _elu(x):
    return np.where(x > 0, x, np.expm1(np.minimum(x, 0.0)))


class ActivationOracle(NamedTuple):
    """An activation in NumPy; without a closed form, `errors` of mean and variance by 32 Gauss-Hermite nodes at s <= 2."""

    function: Callable
    derivative: Callable
    kinks: tuple[float, ...] = ()
    errors: tuple[float, float] | None = None


# A new activation joins all contract tests by one entry.
ACTIVATION_ORACLES = {
    "identity": ActivationOracle(lambda x: x, np.ones_like),
    "relu": ActivationOracle(lambda x: np.maximum(x, 0.0), lambda x: (x > 0) * 1.0, (0.0,)),
    "leaky_relu": ActivationOracle(lambda x: np.where(x > 0, x, 0.01 * x), lambda x: np.where(x > 0, 1.0, 0.01), (0.0,)),
    "elu": ActivationOracle(_elu, lambda x: np.where(x > 0, 1.0, np.exp(np.minimum(x, 0.0))), (0.0,)),
    "tanh": ActivationOracle(np.tanh, lambda x: 1 / np.cosh(x) ** 2, errors=(3e-4, 2e-3)),
    "sigmoid": ActivationOracle(special.expit, lambda x: special.expit(x) * special.expit(-x), errors=(3e-4, 2e-3)),
    "erf": ActivationOracle(special.erf, lambda x: 2 / math.sqrt(math.pi) * np.exp(-(x**2))),
    "gelu": ActivationOracle(lambda x: x * special.ndtr(x), lambda x: special.ndtr(x) + x * _normal_pdf(x)),
    "silu": ActivationOracle(
        lambda x: x * special.expit(x), lambda x: special.expit(x) * (1 + x * special.expit(-x)), errors=(4e-7, 6e-6)
    ),
    "softplus": ActivationOracle(lambda x: np.logaddexp(x, 0.0), special.expit, errors=(3e-8, 2e-7)),
    "sin": ActivationOracle(np.sin, np.cos),
    "cos": ActivationOracle(np.cos, lambda x: -np.sin(x)),
    "exp": ActivationOracle(np.exp, np.exp),
    "square": ActivationOracle(np.square, lambda x: 2 * x),
}
FUNCTIONS = {name: oracle[:3] for name, oracle in ACTIVATION_ORACLES.items()}
GAUSS_HERMITE_ERROR = {name: oracle.errors for name, oracle in ACTIVATION_ORACLES.items() if oracle.errors is not None}


def _normal_pdf(x):
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)


@cache
def legendre(nodes):
    """Gauss-Legendre nodes and weights on [-1, 1]."""
    return np.polynomial.legendre.leggauss(nodes)


def expectation(function, kinks=(), reach=14.0, nodes=160):
    """E[function(e)] for e ~ N(0, 1): Gauss-Legendre on pieces between the kinks, for functions of arrays (q,) -> (k, q)."""
    edges = sorted({-reach, -reach / 3, 0.0, reach / 3, reach, *(k for k in kinks if abs(k) < reach)})
    unit, weight = legendre(nodes)
    total = 0.0
    for low, high in itertools.pairwise(edges):
        e = (high + low) / 2 + (high - low) / 2 * unit
        total = total + function(e) @ (weight * _normal_pdf(e)) * (high - low) / 2
    return total


def hermite_coefficients(function, kinks, mean, std, order):
    """c_0..c_order and the variance of function(mean + std e), one column per unit, by quadrature split at the kinks."""

    def unit(m, s):
        def integrands(e):
            value = function(m + s * e)
            he = normalised_hermite(e, order)
            return np.stack([*(value * he), value**2])

        found = expectation(integrands, [(k - m) / s for k in kinks])
        return np.append(found[:-1], found[-1] - found[0] ** 2)

    columns = np.stack([unit(m, s) for m, s in zip(np.atleast_1d(mean), np.atleast_1d(std), strict=True)], axis=1)
    return columns[:-1], columns[-1]


def normalised_hermite(e, order):
    """He_k(e) / sqrt(k!) for k = 0..order."""
    he = [np.ones_like(e), e]
    for k in range(1, order):
        he.append((e * he[k] - math.sqrt(k) * he[k - 1]) / math.sqrt(k + 1))
    return np.stack(he[: order + 1])


# ---------------------------------------------------------------- channels of networks, everything dense


class Reference(NamedTuple):
    """A channel around (state, weights): mean, slope over all that is carried, noise, and the output covariance."""

    mean: np.ndarray
    slope: np.ndarray
    noise: np.ndarray
    cov: np.ndarray


def dense_channel(matrices, names, mean, cov, *, order, local_vars=None, control=()):
    """The moment-matching channel written out: 2.1 or 2.2 if cov is of the state, 2.3 if it is of (state, weights).

    Args:
        matrices: Mean of [W, b] of each layer.
        names: Activation between them, one name per hidden layer.
        mean: Mean of the state.
        cov: Covariance of what is carried: the state, or the state and all weights in the flat order.
        order: Truncation order of the activation covariances.
        local_vars: Variances of [W, b] of each layer, if the weights are local.
        control: Known inputs after the state.
    """
    mean, cov, size = np.asarray(mean, float), np.asarray(cov, float), len(mean)
    h = np.concatenate([mean, np.asarray(control, float)])
    slope = np.zeros((len(h), len(cov)))
    slope[:size, :size] = np.eye(size)
    noise = np.zeros((len(h), len(h)))
    first = size
    for layer, matrix in enumerate(np.asarray(m, float) for m in matrices):
        a, b = matrix[:, :-1], matrix[:, -1]
        hidden_cov = slope @ cov @ slope.T + noise
        extra, jacobian, shift = np.zeros((len(b), len(b))), np.zeros((len(b), len(cov))), 0.0
        if local_vars is not None:
            v = np.asarray(local_vars[layer], float)
            extra = np.diag(v[:, :-1] @ (np.diag(hidden_cov) + h**2) + v[:, -1])
        elif len(cov) > size:
            where = first + np.arange(matrix.size).reshape(matrix.shape)
            first += matrix.size
            with_input = cov[where[:, :-1]] @ slope.T
            with_weights = cov[where[:, :-1]][:, :, where[:, :-1]]
            shift = np.einsum("imm->i", with_input)
            extra = np.einsum("imjn,mn->ij", with_weights, hidden_cov) + np.einsum("imn,jnm->ij", with_input, with_input)
            for i in range(len(b)):
                jacobian[i, where[i]] = np.append(h, 1.0)
        h, slope, noise = a @ h + b + shift, a @ slope + jacobian, a @ noise @ a.T + extra
        if layer < len(names):
            h, gain, curved = _dense_activation(names[layer], h, slope @ cov @ slope.T + noise, order)
            slope, noise = gain[:, None] * slope, gain[:, None] * noise * gain + curved
    return Reference(h, slope, noise, slope @ cov @ slope.T + noise)


def _dense_activation(name, mean, cov, order):
    function, _, kinks = FUNCTIONS[name]
    std = np.sqrt(np.diag(cov))
    c, var = hermite_coefficients(function, kinks, mean, std, order)
    correlation = cov / np.outer(std, std)
    curved = sum((np.outer(c[k], c[k]) * correlation**k for k in range(2, order + 1)), np.zeros_like(cov))
    return c[0], c[1] / std, curved + np.diag(var - (c[1:] ** 2).sum(axis=0))


def relu_covariance(a, b, rho, nodes=400):
    """Cov[relu(x), relu(y)] at unit variances, means a and b, correlation rho: Price's integral (3.2)."""
    unit, weight = legendre(nodes)
    half = math.asin(rho) / 2
    angle = half + half * unit
    a, b = np.asarray(a, float)[..., None], np.asarray(b, float)[..., None]
    exponent = -(a**2 + b**2 - 2 * a * b * np.sin(angle)) / (2 * np.cos(angle) ** 2)
    integral = ((rho - np.sin(angle)) * np.exp(exponent)) @ weight * half
    return rho * special.ndtr(a[..., 0]) * special.ndtr(b[..., 0]) + integral / (2 * math.pi)


def relu_covariance_dvi(a, b, rho):
    """The approximation of Wu et al. to the same (3.2)."""
    q = 1 + math.sqrt(1 - rho**2)
    big_a = math.asin(rho) - rho / q
    big_b = abs(big_a) * q / abs(rho)
    big_c = (math.asin(rho) - rho) / (abs(big_a) * abs(rho))
    tail = big_a / (2 * math.pi) * np.exp(-(a**2 + b**2) / (2 * big_b) + big_c * a * b)
    return rho * (special.ndtr(a) * special.ndtr(b) + tail)


# ---------------------------------------------------------------- sampling networks


def run_layers(x, matrices, functions):
    """The network at fixed matrices [W, b], for samples (s, i)."""
    for layer, matrix in enumerate(matrices):
        x = x @ matrix[:, :-1].T + matrix[:, -1]
        x = functions[layer](x) if layer < len(functions) else x
    return x


def run_layers_sampling_outputs(x, matrices, variances, functions, noises):
    """The same with local weights, one draw per sample: given its inputs an output is Gaussian, so the output is drawn."""
    for layer, (matrix, var) in enumerate(zip(matrices, variances, strict=True)):
        std = np.sqrt(x**2 @ var[:, :-1].T + var[:, -1])
        x = x @ matrix[:, :-1].T + matrix[:, -1] + std * noises[layer]
        x = functions[layer](x) if layer < len(functions) else x
    return x


def run_layers_at(x, weights, shapes, functions):
    """The same with weights (s, w) that come with each sample."""
    first = 0
    for layer, (rows, columns) in enumerate(shapes):
        matrix = weights[:, first : first + rows * columns].reshape(-1, rows, columns)
        first += rows * columns
        x = np.einsum("soi,si->so", matrix[:, :, :-1], x) + matrix[:, :, -1]
        x = functions[layer](x) if layer < len(functions) else x
    return x


def sample_networks(matrices, variances, activations, mean, cov, *, seed, samples=1_000_000, batches=50):
    """Moments of outputs with (outputs, state) for many choices of activations, from the same draws.

    Args:
        matrices: Means of [W, b] of each layer.
        variances: Variances of [W, b] of each layer.
        activations: For each wanted network, a list with a name per hidden layer.
        mean: Mean of the state.
        cov: Covariance of the state.
        seed: Randomness.
        samples: How many.
        batches: In how many batches.

    Returns:
        For each choice a pair (point weights, local weights) of `SampleMoments`.
    """
    rng, root = np.random.default_rng(seed), np.linalg.cholesky(cov)
    draws = [([], []) for _ in activations]
    for _ in range(batches):
        size = samples // batches
        x = mean + rng.standard_normal((size, len(mean))) @ root.T
        noises = [rng.standard_normal((size, len(m))) for m in matrices]
        for (point, drawn), names in zip(draws, activations, strict=True):
            functions = [FUNCTIONS[name][0] for name in names]
            point.append(_summarise(run_layers(x, matrices, functions), x))
            drawn.append(_summarise(run_layers_sampling_outputs(x, matrices, variances, functions, noises), x))
    return [(_gather(point), _gather(drawn)) for point, drawn in draws]


def sample_joint(mean, cov, shapes, names, size, *, seed, control=(), samples=1_000_000, batches=50):
    """Moments of outputs with (outputs, state, weights) when (state, weights) is Gaussian with this mean and covariance."""
    rng, functions = np.random.default_rng(seed), [FUNCTIONS[name][0] for name in names]
    values, vectors = np.linalg.eigh(cov)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    found = []
    for _ in range(batches):
        z = mean + rng.standard_normal((samples // batches, len(mean))) @ root.T
        x = np.concatenate([z[:, :size], np.broadcast_to(control, (len(z), len(control)))], axis=1)
        found.append(_summarise(run_layers_at(x, z[:, size:], shapes, functions), z))
    return _gather(found)


def _summarise(f, carried):
    columns = np.concatenate([f, carried], axis=1)
    return f.mean(axis=0), (f - f.mean(axis=0)).T @ (columns - columns.mean(axis=0)) / (len(f) - 1)


def _gather(batches):
    means, covs = zip(*batches, strict=True)
    return SampleMoments(np.mean(means, 0), standard_error(means), np.mean(covs, 0), standard_error(covs))


# ---------------------------------------------------------------- random problems


def random_cov(rng, size, rank=None):
    """A covariance with entries of order one; singular if the rank is smaller than the size."""
    root = rng.normal(size=(size, rank or size + 2))
    return root @ root.T / root.shape[1]


def random_matrices(seed, sizes, scale=1.0, var=0.05):
    """Means and variances of [W, b] for each layer of these sizes."""
    rng = np.random.default_rng(seed)
    pairs = list(itertools.pairwise(sizes))
    means = [scale * rng.normal(size=(o, i + 1)) / math.sqrt(i) for i, o in pairs]
    return means, [var * rng.uniform(0.5, 1.5, size=m.shape) for m in means]


def as_arrays(matrices, variances=None):
    """Keywords for `Network.from_arrays`."""
    parts = {"weights": [array(m[:, :-1]) for m in matrices], "biases": [array(m[:, -1]) for m in matrices]}
    if variances is not None:
        parts["weight_vars"] = [array(v[:, :-1]) for v in variances]
        parts["bias_vars"] = [array(v[:, -1]) for v in variances]
    return parts


def build_network(matrices, variances, names):
    """A network with these means and variances of [W, b], and an activation of its own after each hidden layer."""
    plain = ps.Network.from_arrays(**as_arrays(matrices, variances), activation="relu")
    layers = [plain.linears[0]]
    for name, linear in zip(names, plain.linears[1:], strict=True):
        layers += [ps.ACTIVATIONS[name], linear]
    return ps.Network(tuple(layers))


@eqx.filter_jit
def propagate(method, network, belief, *, weights="local", control=None, dt=None):
    """The channel and the predicted belief that a method finds, compiled; a plain belief is made joint for global weights.

    Args:
        method: The method.
        network: The network.
        belief: The belief about its input.
        weights: "local", "global" or "point".
        control: Known inputs after the state.
        dt: Time step of the residual form; None for f(x).
    """
    if weights == "global" and belief.weights is None:
        belief = ps.JointGaussian.independent(belief, network.weights)
    network = network.at_mean() if weights == "point" else network
    control = None if control is None else array(control)
    return method.propagate(network, belief, control, None if dt is None else Link.residual(belief.mean, array(dt)))


def flatten(matrices):
    """Layer after layer, row by row."""
    return np.concatenate([np.asarray(m, float).reshape(-1) for m in matrices])


def random_joint_cov(seed, x, var, correlation=0.5, rank=0):
    """Covariance of (state, weights) with state block of order one and weight block diag(var) - U U'.

    Returns:
        The covariance and U (w, rank).
    """
    rng = np.random.default_rng(seed)
    w = len(var)
    basis = np.linalg.qr(rng.normal(size=(w, rank + x)))[0]
    # Along `rank` directions observations took most of the prior variance; the state is correlated with others.
    factor = 0.8 * np.sqrt(var)[:, None] * basis[:, :rank]
    state = random_cov(rng, x)
    cross = correlation * np.linalg.cholesky(state) @ (np.sqrt(var)[:, None] * basis[:, rank:]).T
    weights = np.diag(var) - factor @ factor.T
    return np.block([[state, cross], [cross.T, weights]]), factor
