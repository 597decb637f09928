"""Figures 1, 2 and 4 of the paper and the curves of budget.py, into docs/images.

1a: a forecast through a network with uncertain weights, and sampled paths. 1b: filtered states, and the true ones. 2: the same
forecast with local and with global weights, which is wider after a few steps. 4: the learned kink function at three noise
levels; the band is the uncertainty of the weights alone. The paper does not give the system of figures 1 and 2; here it is a
random contractive network of two states.

    python experiments/figures.py
    python experiments/figures.py --quick      a few iterations, into a temporary folder
"""

import tempfile
from pathlib import Path
from typing import Any

import budget
import common
import jax
import jax.numpy as jnp
import jax.random as jr
import kink as kink_table
import numpy as np

import prodssm as ps
from prodssm.datasets import kink

IMAGES = Path(__file__).parent.parent / "docs" / "images"
STEPS, PATHS, UNITS = 30, 60, 30
WEIGHT_VAR, PROCESS_VAR, MEASUREMENT_VAR = 2e-4, 4e-4, 0.02
SAMPLED, BAND = {"color": "tab:orange", "linewidth": 0.5, "alpha": 0.5}, {"color": "tab:blue", "alpha": 0.25}


def system(weights: str) -> ps.StateSpaceModel:
    """A damped rotation: random hidden units, and an output layer that is fitted to it by ridge regression."""
    weight_key, bias_key = jr.split(jr.key(4))
    hidden, bias = jr.normal(weight_key, (UNITS, 2)) / 2**0.5, jr.uniform(bias_key, (UNITS,), minval=-1.0, maxval=1.0)
    grid = jnp.stack(jnp.meshgrid(jnp.linspace(-2, 2, 21), jnp.linspace(-2, 2, 21)), axis=-1).reshape(-1, 2)
    design = jnp.concatenate([jax.nn.relu(grid @ hidden.T + bias[None, :]), jnp.ones((len(grid), 1))], axis=1)
    wanted = grid @ jnp.array([[0.88, 0.30], [-0.30, 0.88]])
    solved = jnp.linalg.solve(design.T @ design + 1e-3 * len(grid) * jnp.eye(UNITS + 1), design.T @ wanted).T
    matrices, biases = [hidden, solved[:, :-1]], [bias, solved[:, -1]]
    variances = [[jnp.full_like(part, WEIGHT_VAR) for part in parts] for parts in (matrices, biases)]
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.array([1.0, 0.5]), 0.01 * jnp.eye(2)),
        transition=ps.Network.from_arrays(matrices, biases, "relu", *variances),
        process_noise=jnp.full(2, PROCESS_VAR),
        measurement_noise=jnp.full(2, MEASUREMENT_VAR),
        weights=weights,
    )


def drawn_forecast(axis: Any, weights: str) -> None:
    """The forecast of the first state from the start, and sampled paths."""
    model, times = system(weights), np.arange(STEPS + 1)
    paths = [ps.simulate(model, STEPS + 1, key=jr.key(n))[0][:, 0] for n in range(PATHS)]
    axis.plot(times, np.stack(paths, axis=1), **SAMPLED)
    belief = model.initial_belief()
    means, stds = [belief.mean[0]], [belief.state.std[0]]
    for _ in range(STEPS):
        belief = model.move(ps.Moments(), belief, None)[1]
        means.append(belief.mean[0])
        stds.append(belief.state.std[0])
    mean, std = np.array(means), np.array(stds)
    axis.plot(times, mean, color="tab:blue")
    axis.fill_between(times, mean - 1.96 * std, mean + 1.96 * std, **BAND)
    axis.set(title=f"{weights} weights", xlabel="step")


def figure_1(axes: Any, _: dict[str, Any]) -> None:
    """Forecast and filter."""
    drawn_forecast(axes[0], "local")
    axes[0].set(title="a: forecast and sampled paths", ylabel="state")
    model = system("local")
    states, y = ps.simulate(model, 60, key=jr.key(1))
    found = ps.filter_states(model, y)
    mean, std = np.asarray(found.mean)[:, 0], np.asarray(found.std)[:, 0]
    axes[1].plot(y[:, 0], ".", color="0.6", label="observed")
    axes[1].plot(states[:, 0], color="black", label="true state")
    axes[1].plot(mean, color="tab:blue", label="filtered")
    axes[1].fill_between(np.arange(60), mean - 1.96 * std, mean + 1.96 * std, **BAND)
    axes[1].set(title="b: filter", xlabel="step")
    axes[1].legend()


def figure_2(axes: Any, _: dict[str, Any]) -> None:
    """Local and global weights."""
    for axis, weights in zip(axes, ("local", "global"), strict=True):
        drawn_forecast(axis, weights)


def figure_4(axes: Any, settings: dict[str, Any]) -> None:
    """The learned kink function, run 0 of the table, local weights."""
    for axis, r in zip(axes, kink.NOISE_LEVELS, strict=True):
        model = kink_table.learn("local", r, 0, **settings)
        ps.plots.plot_transition(model, np.linspace(-3.2, 1.1, 100), kink.kink, ax=axis)
        axis.set(title=f"r = {r}")


FIGURES = {"figure_1": (figure_1, 2), "figure_2": (figure_2, 2), "figure_4": (figure_4, 3)}


def main() -> None:
    """Draw all."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    quick = common.arguments(__doc__).parse_args().quick
    folder = Path(tempfile.mkdtemp()) if quick else IMAGES
    for name, (draw, columns) in FIGURES.items():
        figure, axes = plt.subplots(1, columns, figsize=(5 * columns, 3.5), sharey=True, layout="constrained")
        draw(axes, {"recipe": ps.Recipe(iterations=2)} if quick else {})
        figure.savefig(folder / f"{name}.png", dpi=110)
        plt.close(figure)
        common.say(folder / f"{name}.png")
    if not quick:
        budget.draw()


if __name__ == "__main__":
    main()
