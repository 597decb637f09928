"""The main job: learn a system that nobody wrote down from 120 noisy points, then filter, smooth and forecast it.

The system is the kink function of the paper with process noise; only its noisy observations are handed over. The picture shows
what was learned (the function with its uncertainty), the filtered and smoothed states, and a forecast of the next 20 points.
"""

import argparse
import time
from pathlib import Path

import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm import plots
from prodssm.datasets import kink

R = 0.08  # variance of the measurement noise
TRAINING, AHEAD = 120, 20
SHOWN = 50  # of the training points


def main() -> None:
    """Learn, say what was learned, draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/learn_kink.png"))
    parser.add_argument("--quick", action="store_true", help="a few iterations only, to see that everything runs")
    chosen = parser.parse_args()
    run = kink.simulate(R, seed=1, steps=TRAINING + AHEAD)
    seen, hidden = run.y[:TRAINING], run.x[:TRAINING]

    begin = time.monotonic()
    recipe = ps.Recipe(iterations=5 if chosen.quick else 500)
    model = ps.ProDSSM(emission="identity", hidden=(50,), weights="local", measurement_noise=R, recipe=recipe)
    model.fit(seen)
    print(f"Learned from {TRAINING} noisy points in {time.monotonic() - begin:.1f} s, compilation included.")
    print(model.check_)

    filtered, smoothed, ahead = model.filter(seen), model.smooth(seen), model.forecast(seen, steps=AHEAD)
    raw, found, later = (ps.metrics.rmse(hidden[:, None], np.asarray(guess)) for guess in (seen, filtered.mean, smoothed.mean))
    print(f"Error of the state (RMSE): raw observations {raw:.3f}, filtered {found:.3f}, smoothed {later:.3f}.")
    inside = ps.metrics.coverage(run.y[TRAINING:], ahead.mean, ahead.std)
    print(f"Of the next {AHEAD} observations {100 * inside:.0f} % lie in the forecast's 95 % intervals.")
    states, _ = model.simulate(TRAINING, jr.key(0))
    print(f"A simulation of the learned model stays between {float(states.min()):.1f} and {float(states.max()):.1f}.")
    draw(chosen.output, run, model, filtered, smoothed, ahead)
    print(f"The picture is in {chosen.output}")


def draw(path: Path, run: kink.Kink, model: ps.ProDSSM, filtered, smoothed, ahead) -> None:
    """One picture of all of it."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(12.5, 4.2), width_ratios=(1, 2), constrained_layout=True)
    left.plot(run.y[: TRAINING - 1, 0], run.y[1:TRAINING, 0], ".", color="0.7", ms=4, label="observed pairs")
    grid = np.linspace(run.x.min() - 0.3, run.x.max() + 0.3, 200)
    plots.plot_transition(model, grid, truth=kink.kink, ax=left).set_title("Dynamics learned from 120 noisy points")

    plots.plot_states(filtered, ax=right, label="filtered", last=SHOWN, colour="C1")
    plots.plot_states(smoothed, ax=right, label="smoothed", last=SHOWN, colour="C2")
    plots.plot_forecast(ahead, history=run.y[:TRAINING], ax=right, last=SHOWN)
    times = np.arange(TRAINING - SHOWN, TRAINING + AHEAD)
    right.plot(times, run.x[times], "k--", lw=0.8, label="true state")
    right.plot(times[SHOWN:], run.y[TRAINING:, 0], "x", color="0.4", ms=4, label="observed later")
    right.set(ylabel="state", title="Filter, smoother and forecast")
    right.legend(frameon=False, fontsize=8, ncol=3, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
