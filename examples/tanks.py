"""The main job: learn a driven system from a noisy record with a gap, fill the gap, and forecast under a known pump schedule.

Two tanks in a cascade; the lower level is measured, the upper one is not. `ProDSSM()` is told nothing else. The picture shows
what the filter and the smoother say of the stretch without data, the forecast, and the skill on blocks that were held out.
"""

import argparse
import time
from pathlib import Path

import numpy as np

import prodssm as ps
from prodssm import plots
from prodssm.datasets import tanks

TRAINING, AHEAD = 400, 100
GAP = slice(300, 340)  # the sensor was off
SHOWN = 200  # of the training points


def main() -> None:
    """Learn, say what was learned, draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/tanks.png"))
    parser.add_argument("--quick", action="store_true", help="a few iterations only, to see that everything runs")
    chosen = parser.parse_args()
    run = tanks.simulate(seed=3, steps=TRAINING + AHEAD)
    y = run.y[:TRAINING].copy()
    y[GAP] = np.nan
    past = ps.Series(y, u=run.u[:TRAINING])

    begin = time.monotonic()
    model = ps.ProDSSM(recipe=ps.Recipe(iterations=5, free_run=5) if chosen.quick else None)
    model.fit(past)
    seconds, seen = time.monotonic() - begin, TRAINING - (GAP.stop - GAP.start)
    print(f"Learned from {seen} noisy levels in {seconds:.0f} s, compilation included.")

    filtered, smoothed = model.filter(past), model.smooth(past)
    ahead = model.forecast(past, steps=AHEAD, u=run.u[TRAINING:])
    true = run.levels[:, 1:]
    errors = [1000 * ps.metrics.rmse(true[GAP], each.outputs.mean[GAP]) for each in (filtered, smoothed)]
    print(f"In the gap the level is known to {errors[0]:.1f} mm by the filter and {errors[1]:.1f} mm by the smoother (RMSE).")
    error = 1000 * ps.metrics.rmse(true[TRAINING:], ahead.mean)
    inside = ps.metrics.coverage(run.y[TRAINING:], ahead.mean, ahead.std)
    print(f"The next {AHEAD} levels are forecast to {error:.1f} mm; 95 % intervals cover {100 * inside:.0f} % of the readings.")
    draw(chosen.output, run, y, model, filtered, smoothed, ahead)
    print(f"The picture is in {chosen.output}")


def draw(path: Path, run: tanks.Tanks, y: np.ndarray, model: ps.ProDSSM, filtered, smoothed, ahead) -> None:
    """One picture of all of it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplot_mosaic(
        [["level", "skill"], ["pump", "skill"]],
        figsize=(12.5, 4.6),
        width_ratios=(2.4, 1),
        height_ratios=(3, 1),
        layout="constrained",
    )
    level, pump = axes["level"], axes["pump"]
    plots.plot_states(filtered.outputs, ax=level, label="filtered", last=SHOWN, colour="C1")
    plots.plot_states(smoothed.outputs, ax=level, label="smoothed", last=SHOWN, colour="C2")
    plots.plot_forecast(ahead, history=y, ax=level, last=SHOWN)
    times = np.arange(TRAINING - SHOWN, TRAINING + AHEAD)
    level.plot(times, run.levels[times, 1], "k--", lw=0.8, label="true level")
    level.axvspan(GAP.start, GAP.stop, color="0.93", zorder=0, label="sensor off")
    level.set(ylabel="lower level in m", xlabel="", title="Learned by ProDSSM() from a noisy record with a gap")
    level.legend(frameon=False, fontsize=8, ncol=3, loc="upper left")
    low, high = level.get_ylim()
    level.set_ylim(low, high + 0.25 * (high - low))
    pump.step(times, run.u[times, 0], where="post", color="0.3")
    pump.set(ylabel="pump in V", xlabel="time step", xlim=level.get_xlim())
    plots.plot_skill(model.skill_, ax=axes["skill"])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
