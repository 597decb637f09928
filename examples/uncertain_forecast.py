"""A 30-step forecast through a network with uncertain weights, next to Monte Carlo samples of the same system.

The same system twice (figures 1a and 2 of the paper): with weights redrawn at every step (local) and with weights drawn once
(global). The deterministic forecast needs one pass; the grey paths are samples. With global weights the variance is larger:
the deviation of the weights from their mean has the same sign at every step.
"""

import argparse
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr

import prodssm as ps

PROCESS_VAR = jnp.array([4e-4, 4e-4])


def system(key: jax.Array) -> ps.Network:
    """A damped rotation as a residual network of two inputs, 30 ReLU units and two outputs."""
    width = 30
    first_key, bias_key = jr.split(key)
    first = jr.normal(first_key, (width, 2)) / 2**0.5
    bias = jr.uniform(bias_key, (width,), minval=-1.0, maxval=1.0)
    # The output layer by ridge regression on a grid.
    grid = jnp.stack(jnp.meshgrid(jnp.linspace(-2, 2, 21), jnp.linspace(-2, 2, 21)), axis=-1).reshape(-1, 2)
    hidden = jax.nn.relu(grid @ first.T + bias[None, :])
    wanted = grid @ jnp.array([[-0.12, 0.30], [-0.30, -0.12]])
    design = jnp.concatenate([hidden, jnp.ones((len(grid), 1))], axis=1)
    ridge = 1e-3 * len(grid) * jnp.eye(width + 1)
    solved = jnp.linalg.solve(design.T @ design + ridge, design.T @ wanted).T
    weights, biases = [first, solved[:, :-1]], [bias, solved[:, -1]]
    small = [jnp.full_like(w, 1e-4) for w in weights], [jnp.full_like(b, 1e-4) for b in biases]
    return ps.Network.from_arrays(weights, biases, "relu", *small)


def forecast(net: ps.Network, start: ps.Gaussian, weights: str, steps: int) -> tuple[jax.Array, jax.Array]:
    """Means and standard deviations of the state after each step, in closed form."""
    belief = ps.JointGaussian.independent(start, net.weights) if weights == "global" else start
    means, stds = [start.mean], [start.std]
    for _ in range(steps):
        belief = belief.predict(ps.channel(net, belief, weights=weights, residual=True).plus(PROCESS_VAR))
        means.append(belief.mean)
        stds.append(belief.state.std)
    return jnp.stack(means), jnp.stack(stds)


def paths(net: ps.Network, start: ps.Gaussian, weights: str, steps: int, count: int, key: jax.Array) -> jax.Array:
    """Sampled paths of the same system: (count, steps + 1, 2)."""

    def path(key):
        start_key, weight_key, walk_key = jr.split(key, 3)
        drawn = net.sample(weight_key) if weights == "global" else net

        def step(x, key):
            output_key, noise_key = jr.split(key)
            x = x + drawn.sample_output(x, key=output_key) + jnp.sqrt(PROCESS_VAR) * jr.normal(noise_key, x.shape)
            return x, x

        first = start.sample(key=start_key)
        return jnp.concatenate([first[None], jax.lax.scan(step, first, jr.split(walk_key, steps))[1]])

    return jax.jit(jax.vmap(path))(jr.split(key, count))


def draw(results: dict[str, tuple], path: Path) -> None:
    """One column per weight mode, one row per state."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 2, figsize=(10, 6), sharex=True, sharey="row", layout="constrained")
    for column, (weights, (means, stds, sampled)) in enumerate(results.items()):
        for row in range(2):
            axis, time_axis = axes[row, column], jnp.arange(len(means))
            axis.plot(time_axis, sampled[:60, :, row].T, color="0.75", linewidth=0.5)
            low, high = jnp.quantile(sampled[:, :, row], jnp.array([0.025, 0.975]), axis=0)
            axis.plot(time_axis, low, "k--", linewidth=1, label="95 % of the sampled paths")
            axis.plot(time_axis, high, "k--", linewidth=1)
            band = (means[:, row] - 1.96 * stds[:, row], means[:, row] + 1.96 * stds[:, row])
            axis.fill_between(time_axis, *band, color="tab:orange", alpha=0.35, label="95 % band, no sampling")
            axis.plot(time_axis, means[:, row], color="tab:orange")
            axis.set_ylabel(f"state {row + 1}")
        drawn = {"local": "redrawn at every step", "global": "drawn once"}[weights]
        axes[0, column].set_title(f"{weights} weights: {drawn}")
        axes[1, column].set_xlabel("step")
    axes[0, 0].legend(loc="upper right", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main() -> None:
    """Forecast, sample, compare, draw."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true", help="few steps and samples")
    options.add_argument("--output", type=Path, default=Path("output/uncertain_forecast.png"), help="where to save the picture")
    chosen = options.parse_args()
    steps, count = (3, 200) if chosen.quick else (30, 20_000)
    net = system(jr.key(1))
    start = ps.Gaussian(jnp.array([1.2, 0.0]), 0.01 * jnp.eye(2))
    results = {}
    for weights in ("local", "global"):
        begin = time.perf_counter()
        means, stds = forecast(net, start, weights, steps)
        seconds = time.perf_counter() - begin
        sampled = paths(net, start, weights, steps, count, jr.key(2))
        results[weights] = means, stds, sampled
        ratio = float(jnp.mean(stds[-1] / sampled[:, -1].std(axis=0)))
        print(
            f"{weights:>6} weights: {steps} steps in {seconds:.1f} s, compilation included. The standard deviation at the end "
            f"is {float(stds[-1].mean()):.3f}, {ratio:.2f} times that of {count} sampled paths."
        )
    draw(results, chosen.output)
    print(f"The picture is in {chosen.output}")


if __name__ == "__main__":
    main()
