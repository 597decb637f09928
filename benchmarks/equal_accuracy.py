"""How many samples does Monte Carlo need to be as accurate as moment matching ("the rule"), and what does that cost?

Random networks with local weights are iterated from a Gaussian belief. The reference is a very large Monte Carlo run. The
error of the mean is relative to the standard deviation of the state, that of the covariance is relative in Frobenius norm.
`cost_ratio` is the cost of Monte Carlo with the rule's error in both moments, `easier_ratio` with the rule's error in the one
that needs fewer samples, as multiples of the cost of the rule. The Monte Carlo that is timed is the cheapest: it samples layer
outputs, never weights. Both methods process the same batch of beliefs, so that dispatch overhead dominates neither.

The rule approximates the state by a Gaussian after every step. For contractive networks that is nearly exact. For expanding
ones it is not, and the last table shows how the error grows with the number of steps.
"""

import math
from functools import partial
from itertools import pairwise
from typing import Any

import common
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps

PROCESS_VAR = 0.01
BATCH = 8


def network(sizes: tuple[int, ...], gain: float, spread: float, seed: int) -> ps.Network:
    """A random ReLU network whose mean weights have `gain` times the standard deviation that preserves the scale of a signal.

    The variance of each weight is `spread` times `gain` squared over the fan-in.
    """
    keys = jr.split(jr.key(seed), 2 * len(sizes))
    weights, biases = [], []
    for l, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        std = gain * math.sqrt((2 if l else 1) / fan_in)
        weights.append(std * jr.normal(keys[2 * l], (fan_out, fan_in)))
        biases.append(0.3 * jr.normal(keys[2 * l + 1], (fan_out,)))
    variances = [jnp.full_like(w, spread * gain**2 / w.shape[1]) for w in weights]
    return ps.Network.from_arrays(weights, biases, "relu", variances, [jnp.full_like(b, 0.01 * spread) for b in biases])


def start(size: int, count: int) -> tuple[jax.Array, jax.Array]:
    """A batch of beliefs."""
    factors = jr.normal(jr.key(7), (count, size, size)) / math.sqrt(size)
    means = 0.5 * jr.normal(jr.key(8), (count, size))
    return means, 0.3 * factors @ jnp.swapaxes(factors, 1, 2) + 0.1 * jnp.eye(size)[None]


@partial(jax.jit, static_argnames=("steps",))
def by_rule(net: ps.Network, means: jax.Array, covs: jax.Array, *, steps: int) -> tuple[jax.Array, jax.Array]:
    """Moments after each step, for a batch of beliefs: (batch, steps, ...)."""

    def iterate(mean, cov):
        def step(belief, _):
            _, predicted = ps.Moments().propagate(net, belief)
            following = predicted.plus(jnp.full(mean.shape, PROCESS_VAR))
            return following, (following.mean, following.cov)

        return jax.lax.scan(step, ps.Gaussian(mean, cov), length=steps)[1]

    return jax.vmap(iterate)(means, covs)


@partial(jax.jit, static_argnames=("steps", "samples"))
def by_sampling(net: ps.Network, means, covs, key, *, steps: int, samples: int) -> tuple[jax.Array, jax.Array]:
    """The same by particles, with sampled layer outputs."""

    def iterate(mean, cov, key):
        first, *later = jr.split(key, steps + 1)
        particles = ps.Gaussian(mean, cov).sample(key=first, shape=(samples,))

        def step(x, key):
            for l, layer in enumerate(net.linears):
                var = x**2 @ jnp.exp(layer.weight_log_var).T + jnp.exp(layer.bias_log_var)[None, :]
                var = var + (PROCESS_VAR if l + 1 == len(net.linears) else 0.0)
                x = x @ layer.weight.T + layer.bias[None, :] + jnp.sqrt(var) * jr.normal(jr.fold_in(key, l), var.shape)
                x = x if l + 1 == len(net.linears) else jax.nn.relu(x)
            centred = x - x.mean(axis=0)[None, :]
            return x, (x.mean(axis=0), centred.T @ centred / (samples - 1))

        return jax.lax.scan(step, particles, jnp.stack(later))[1]

    return jax.vmap(iterate)(means, covs, jr.split(key, len(means)))


def truth(net: ps.Network, means, covs, *, steps: int, samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Reference moments from many particles, in chunks that fit the memory, pooled in double precision."""
    chunk = 8192
    first, second = 0.0, 0.0
    chunks = max(1, samples // chunk)
    for c in range(chunks):
        mean, cov = (
            np.asarray(part, float) for part in by_sampling(net, means, covs, jr.key(1000 + c), steps=steps, samples=chunk)
        )
        first = first + mean / chunks
        second = second + (cov * (chunk - 1) / chunk + mean[..., :, None] * mean[..., None, :]) / chunks
    return first, second - first[..., :, None] * first[..., None, :]


def squared_errors(got: Any, mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Squared relative errors of mean and covariance, averaged over the batch: one number per step."""
    scale = np.trace(cov, axis1=-2, axis2=-1)
    mean_error = ((np.asarray(got[0], float) - mean) ** 2).sum(-1) / scale
    cov_error = ((np.asarray(got[1], float) - cov) ** 2).sum((-2, -1)) / (cov**2).sum((-2, -1))
    return mean_error.mean(0), cov_error.mean(0)


def compare(sizes: tuple[int, ...], gain: float, spread: float, seed: int, steps: int, samples: int) -> dict[str, np.ndarray]:
    """Errors of the rule and of Monte Carlo with 1024 samples, per step, corrected for the noise of the reference."""
    net = network(sizes, gain, spread, seed)
    means, covs = start(sizes[0], BATCH)
    mean, cov = truth(net, means, covs, steps=steps, samples=samples)
    rule = squared_errors(by_rule(net, means, covs, steps=steps), mean, cov)
    tries = [squared_errors(by_sampling(net, means, covs, jr.key(s), steps=steps, samples=1024), mean, cov) for s in range(4)]
    sampled = np.mean([t[0] for t in tries], axis=0), np.mean([t[1] for t in tries], axis=0)
    blur = 1024 / samples  # squared error of the reference, as a fraction of that of 1024 samples
    return {
        "rule_mean": np.sqrt(np.maximum(rule[0] - blur * sampled[0], 0)),
        "rule_cov": np.sqrt(np.maximum(rule[1] - blur * sampled[1], 0)),
        "blur_mean": np.sqrt(blur * sampled[0]),
        "blur_cov": np.sqrt(blur * sampled[1]),
        "mc_mean": np.sqrt(sampled[0]),
        "mc_cov": np.sqrt(sampled[1]),
    }


def samples_needed(found: dict[str, np.ndarray], step: int) -> dict[str, float]:
    """Number of samples at which Monte Carlo has the rule's error, for each of the two moments.

    An error below the noise of the reference counts as that noise: the result is then a lower bound.
    """
    needed = {}
    for moment in ("mean", "cov"):
        error = max(found[f"rule_{moment}"][step], found[f"blur_{moment}"][step])
        needed[moment] = 1024 * (found[f"mc_{moment}"][step] / error) ** 2
    return needed


def price(sizes: tuple[int, ...], steps: int, seconds: float) -> tuple[float, float]:
    """Seconds per belief of the rule, and seconds per belief and sample of Monte Carlo."""
    net = network(sizes, 0.7, 0.05, 0)
    means, covs = start(sizes[0], BATCH)
    runs = {
        "rule": lambda: by_rule(net, means, covs, steps=steps),
        "samples": lambda: by_sampling(net, means, covs, jr.key(0), steps=steps, samples=1024),
    }
    times = common.interleaved(runs, seconds=seconds)
    return times["rule"] / BATCH, times["samples"] / BATCH / 1024


def main() -> None:
    """Measure, print, plot."""
    chosen = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(chosen)
    printer.row(benchmark="equal_accuracy", dtype="float32", batch=BATCH, process_var=PROCESS_VAR, **common.machine())
    shapes = ((2, 30, 2),) if chosen.quick else ((1, 50, 1), (2, 30, 2), (6, 30, 30, 6), (13, 40, 13))
    samples = 2**14 if chosen.quick else 2**17
    seeds = 1 if chosen.quick else 3
    kinds = [("contractive", 0.5), ("contractive", 0.7), ("neutral", 1.0), ("expanding", 1.4)]
    kinds = kinds[1::2] if chosen.quick else kinds
    growth: list[dict[str, Any]] = []
    for sizes in shapes:
        prices = {steps: price(sizes, steps, 0.3 if chosen.quick else 1.0) for steps in (1, 20)}
        for kind, gain in kinds:
            runs = [compare(sizes, gain, 0.05, seed, 20, samples) for seed in range(seeds)]
            found = {name: np.sqrt(np.mean([run[name] ** 2 for run in runs], axis=0)) for name in runs[0]}
            label = "-".join(map(str, sizes))
            for steps in (1, 20):
                needed = samples_needed(found, steps - 1)
                rule, each = prices[steps]
                row = {
                    "net": label, "kind": kind, "gain": gain, "steps": steps,
                    "mean_error": float(found["rule_mean"][steps - 1]), "cov_error": float(found["rule_cov"][steps - 1]),
                    "samples_for_mean": needed["mean"], "samples_for_cov": needed["cov"],
                    "cost_ratio": max(needed.values()) * each / rule, "easier_ratio": min(needed.values()) * each / rule,
                }  # fmt: skip
                if kind == "contractive":
                    row["holds"] = bool(row["cost_ratio"] >= 100)
                    row["easier_holds"] = bool(row["easier_ratio"] >= 100)
                printer.row(**row)
            for step in (1, 2, 5, 10, 20):
                growth.append({"net": label, "gain": gain, "step": step, "cov_error": float(found["rule_cov"][step - 1])})
                growth[-1]["mean_error"] = float(found["rule_mean"][step - 1])
    printer.text("how the error grows with the steps (relative, after k steps):")
    for row in growth:
        printer.row(table="growth", **row)
    deep = [row for row in growth if row["step"] == 1 and row["net"].count("-") > 2]
    if deep:
        printer.text(
            "With two hidden layers the second one no longer sees a Gaussian: the covariance of a single step is off by "
            + ", ".join(f"{100 * row['cov_error']:.0f} % at gain {row['gain']}" for row in deep)
            + f" ({deep[0]['net']})."
        )
    worst = max(growth, key=lambda row: row["cov_error"])
    printer.text(
        f"The Gaussian assumption is worst for {worst['net']} at gain {worst['gain']}: after {worst['step']} steps the "
        f"covariance is off by {100 * worst['cov_error']:.0f} %. Check long forecasts of expanding systems against sampling."
    )
    if chosen.plot:
        plot(growth, chosen.plot)
        printer.text(f"figure: {chosen.plot}")


def plot(growth: list[dict[str, Any]], path: Any) -> None:
    """Error of the covariance against steps."""
    import matplotlib.pyplot as plt

    nets = sorted({row["net"] for row in growth})
    figure, axes = plt.subplots(1, len(nets), figsize=(4 * len(nets), 4), sharey=True, squeeze=False, layout="constrained")
    for axis, net in zip(axes[0], nets, strict=True):
        for gain in sorted({row["gain"] for row in growth}):
            rows = [row for row in growth if row["net"] == net and row["gain"] == gain]
            axis.loglog([r["step"] for r in rows], [max(r["cov_error"], 1e-4) for r in rows], marker="o", label=f"gain {gain}")
        axis.set(title=net, xlabel="steps", ylabel="relative error of the covariance")
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
