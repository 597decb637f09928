"""Where one Gaussian is not enough: the same learned model, 20 steps ahead, with one Gaussian and with a mixture.

The kink bends so sharply that states which are close now are far apart a few steps later: futures of the learned model gather
in several places. One Gaussian covers them with one broad hump. `Moments(components="auto")` trains one Gaussian and asks the
check how many components a mixture needs; here the two are drawn beside each other, with futures sampled from the model.
"""

import argparse
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.datasets import kink

R = 0.08  # variance of the measurement noise
TRAINING, AHEAD = 120, 20
SHOWN = 20  # of the training points
FUTURES, DOTS = 4000, 100  # sampled, and drawn at each step
STEPS = (1, 3, 5, 20)  # ahead, of the densities
COLOURS = ("C1", "C0")


def main() -> None:
    """Learn, choose the number of components, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/kink_modes.png"))
    parser.add_argument("--quick", action="store_true", help="a few iterations only, to see that everything runs")
    chosen = parser.parse_args()
    y = kink.simulate(R, seed=1, steps=TRAINING).y

    recipe = ps.Recipe(iterations=5 if chosen.quick else 500)
    method = ps.Moments(components="auto")
    model = ps.ProDSSM(emission="identity", measurement_noise=R, recipe=recipe, method=method).fit(y)
    print(model.check_)

    forecasts = [each.forecast(y, AHEAD) for each in (model.with_method("moments"), model)]
    futures = forecasts[1].sample(FUTURES, key=jr.key(0))
    names = "one Gaussian", f"{model.method_.components} components"
    for name, ahead in zip(names, forecasts, strict=True):
        low, high = ahead.interval(0.95)
        inside = ((low < futures) & (futures < high)).mean()
        print(f"{name}: 95 % intervals {np.mean(high - low):.2f} wide on average, {100 * inside:.0f} % of the futures inside.")
    draw(chosen.output, y, dict(zip(names, forecasts, strict=True)), futures[:, :, 0])
    print(f"The picture is in {chosen.output}")


def draw(path: Path, y: np.ndarray, forecasts: dict[str, Any], futures: np.ndarray) -> None:
    """Both forecasts over time with sampled futures behind them, and their densities at some steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11, 6.4), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=(3, 2))
    above, below = parts
    axes = above.subplots(1, 2, sharey=True)
    for ax, colour, (name, ahead) in zip(axes, COLOURS, forecasts.items(), strict=True):
        # Beside each other within their step, so that they show where futures are likely.
        times = TRAINING + np.arange(AHEAD) + np.random.default_rng(0).uniform(-0.4, 0.4, (DOTS, AHEAD))
        ax.plot(times, futures[:DOTS], ".", color="0.55", ms=2.4, mew=0, zorder=0.2)
        ps.plots.plot_forecast(ahead, history=y, ax=ax, last=SHOWN, colour=colour)
        ax.set(title=f"Forecast with {name}", xlim=(TRAINING - SHOWN, TRAINING + AHEAD))
    axes[1].set_ylabel("")
    low, high = np.quantile(futures, [1e-4, 1 - 1e-4])
    grid = np.linspace(low, high, 400)
    for ax, step in zip(below.subplots(1, len(STEPS), sharex=True), STEPS, strict=True):
        ax.hist(futures[:, step - 1], bins=60, density=True, color="0.85", label="sampled futures")
        for colour, (name, ahead) in zip(COLOURS, forecasts.items(), strict=True):
            ax.plot(grid, density(ahead, step, grid), color=colour, label=name)
        ax.set(title=f"{step} step{'s' * (step > 1)} ahead", xlabel="observation", yticks=[], xlim=grid[[0, -1]])
        ax.set_ylim(0, 1.25 * ax.get_ylim()[1])
        ax.spines[["left", "top", "right"]].set_visible(False)
    below.axes[0].set_ylabel("density")
    below.axes[0].legend(frameon=False, fontsize=8, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def density(ahead: Any, step: int, grid: np.ndarray) -> np.ndarray:
    """The predictive density at one step."""
    rows = np.full((len(grid), AHEAD, 1), np.nan)
    rows[:, step - 1, 0] = grid
    return np.exp([ahead.log_prob(each)[step - 1] for each in rows])


if __name__ == "__main__":
    main()
