"""Ten thousand random networks and beliefs: all moments and gradients are finite, all covariances positive semi-definite.

Depth, widths, activation, truncation order, weight mode and dtype change between groups. Scales from 1e-6 to 1e3, weight
variances from 0 to large, and full, rank-deficient, partly zero and zero covariances change within them. The smallest
eigenvalue of the joint covariance of input and output may not fall below -1e-12 of its trace in float64, -1e-6 in float32.
The property test in tests/methods runs a sample of this in every test run.
"""

import argparse
import sys
import time
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np

import prodssm as ps

FLOORS = {"float64": -1e-12, "float32": -1e-6}
STEEP = ("square",)  # its moments overflow unless the input is moderate


def draw_config(rng: np.random.Generator) -> dict:
    """The static settings of a group, which is compiled once."""
    depth = int(rng.integers(1, 4))
    widths = [int(rng.choice([1, 2, 3, 5, 8, 13])) for _ in range(depth + 2)]
    return {
        "sizes": tuple(widths),
        "activation": str(rng.choice(list(ps.ACTIVATIONS))),
        "order": int(rng.choice([1, 2, 3, 4, 6, 8, 12])),
        "weights": str(rng.choice(["point", "local", "global"])),
        "dtype": str(rng.choice(["float64", "float32"])),
    }


def log_uniform(rng: np.random.Generator, low: float, high: float, size: int) -> np.ndarray:
    """Samples of a log-uniform distribution."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def draw_cases(rng: np.random.Generator, config: dict, count: int) -> tuple[list, np.ndarray, np.ndarray]:
    """Stacked networks, means and covariances of one group."""
    sizes, dtype = config["sizes"], config["dtype"]
    steep = config["activation"] in STEEP
    scale = log_uniform(rng, 1e-6, 3.0 if steep else 1e3, count)
    gain = log_uniform(rng, 0.1, 1.0 if steep else 10.0, count)
    spread = np.where(rng.random(count) < 0.2, 0.0, log_uniform(rng, 1e-12, 1.0, count))
    layers = []
    for fan_in, fan_out in pairwise(sizes):
        std = (gain * np.sqrt(2 / fan_in))[:, None, None]
        weight = std * rng.standard_normal((count, fan_out, fan_in))
        bias = 0.3 * rng.standard_normal((count, fan_out)) * scale[:, None]
        layers.append((weight, bias, np.broadcast_to(spread[:, None, None] * std**2, weight.shape), spread[:, None] * bias**2))
    n = sizes[0]
    factor = rng.standard_normal((count, n, n)) / np.sqrt(n)
    kind = rng.integers(0, 4, count)
    factor[kind == 1, :, (n + 1) // 2 :] = 0.0  # rank-deficient
    factor[kind == 2, : (n + 1) // 2, :] = 0.0  # some coordinates are certain
    factor[kind == 3] = 0.0  # all are
    mean = scale[:, None] * rng.standard_normal((count, n)) * (rng.random(count) < 0.8)[:, None]
    factor = factor * scale[:, None, None]
    cast = lambda array: np.ascontiguousarray(array).astype(dtype)  # noqa: E731
    return [tuple(cast(part) for part in layer) for layer in layers], cast(mean), cast(factor @ np.swapaxes(factor, 1, 2))


def evaluate(config: dict):
    """Values and gradients of one case as a function of arrays."""

    def network(layers):
        weights, biases, weight_vars, bias_vars = zip(*layers, strict=True)
        return ps.Network.from_arrays(weights, biases, config["activation"], weight_vars, bias_vars)

    def run(layers, mean, cov):
        net, belief = network(layers), ps.Gaussian(mean, cov)
        if config["weights"] == "point":
            net = net.at_mean()
        if config["weights"] == "global":
            belief = ps.JointGaussian.independent(belief, net.weights)
        channel = ps.Moments(config["order"]).channel(net, belief)
        following = belief.predict(channel)
        if config["weights"] == "global":
            # The joint covariance of input, output and weights.
            top = jnp.concatenate([belief.cov, (channel.slope @ belief.cov).T, belief.cross], axis=1)
            joint = jnp.block([[following.cov, following.cross], [following.cross.T, belief.weights.cov()]])
            left = jnp.concatenate([channel.slope @ belief.cov, belief.cross.T], axis=0)
            joint = jnp.concatenate([top, jnp.concatenate([left, joint], axis=1)], axis=0)
        else:
            cross = channel.slope @ belief.cov
            joint = jnp.block([[belief.cov, cross.T], [cross, following.cov]])
        return (channel.mean, channel.slope, channel.noise, following.cov), joint

    def loss(layers, mean, cov):
        values, _ = run(layers, mean, cov)
        return sum(value.sum() for value in values)

    def whole(layers, mean, cov):
        values, joint = run(layers, mean, cov)
        grads = jax.grad(loss, argnums=(0, 1, 2))(layers, mean, cov)
        return values, joint, grads

    return jax.jit(jax.vmap(whole))


def lowest(matrices: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Smallest eigenvalue of each matrix over the trace of the whole covariance, in double precision; 0 for a zero matrix."""
    matrices = np.asarray(matrices, float)
    trace = np.trace(np.asarray(whole, float), axis1=1, axis2=2)
    safe = np.where(trace > 0, trace, 1.0)
    # Scaled before the eigendecomposition, so that tiny matrices do not underflow.
    return np.linalg.eigvalsh(matrices / safe[:, None, None])[:, 0]


def main() -> None:
    """Draw cases, evaluate them, count failures."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cases", type=int, default=10_000)
    options.add_argument("--per-group", type=int, default=100, help="cases that share a compilation")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(chosen.seed)
    begin, done, bad = time.perf_counter(), 0, 0
    worst = {"float64": 0.0, "float32": 0.0}
    while done < chosen.cases:
        count = min(chosen.per_group, chosen.cases - done)
        config = draw_config(rng)
        values, joint, grads = evaluate(config)(*draw_cases(rng, config, count))
        finite = np.ones(count, bool)
        for part in jax.tree.leaves((values, joint)):
            finite &= np.isfinite(np.asarray(part)).reshape(count, -1).all(axis=1)
        smooth = np.ones(count, bool)
        for part in jax.tree.leaves(grads):
            smooth &= np.isfinite(np.asarray(part)).reshape(count, -1).all(axis=1)
        low = np.zeros(count)
        joint, noise, cov = (np.asarray(part)[finite] for part in (joint, values[2], values[3]))
        low[finite] = np.minimum(lowest(joint, joint), lowest(noise, cov))
        worst[config["dtype"]] = min(worst[config["dtype"]], float(low.min()))
        failed = ~finite | ~smooth | (low < FLOORS[config["dtype"]])
        bad += int(failed.sum())
        done += count
        if failed.any():
            print(
                f"{config}: {int((~finite).sum())} not finite, {int((~smooth).sum())} gradients not finite, "
                f"lowest eigenvalue {low.min():.2g} of the trace"
            )
    print(
        f"{done} cases in {time.perf_counter() - begin:.0f} s: {bad} bad; lowest eigenvalue over trace "
        f"{worst['float64']:.1e} in float64, {worst['float32']:.1e} in float32"
    )
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
