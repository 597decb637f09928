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
from prodssm.datasets import kink

R = 0.08  # variance of the measurement noise
TRAINING, AHEAD = 120, 20


def main() -> None:
    """Learn, say what was learned, draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("output/learn_kink.png"))
    parser.add_argument("--quick", action="store_true", help="a few iterations only, to see that everything runs")
    chosen = parser.parse_args()
    run = kink.simulate(R, seed=1, steps=TRAINING + AHEAD)
    seen, hidden = run.y[:TRAINING], run.x[:TRAINING]

    begin = time.monotonic()
    model = ps.ProDSSM(latent_dim=1, hidden=(50,), weights="local", measurement_noise=R, iterations=5 if chosen.quick else 500)
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
    grid = np.linspace(run.x.min() - 0.3, run.x.max() + 0.3, 200)
    learned = model.transition(grid[:, None])
    mean, std = np.asarray(learned.mean)[:, 0], np.sqrt(np.asarray(learned.var)[:, 0])
    left.plot(run.y[: TRAINING - 1, 0], run.y[1:TRAINING, 0], ".", color="0.7", ms=4, label="observed pairs")
    left.fill_between(grid, mean - 1.96 * std, mean + 1.96 * std, color="C0", alpha=0.25, lw=0, label="95 % of f(x, w)")
    left.plot(grid, mean, color="C0", label="learned")
    left.plot(grid, kink.kink(grid), "k--", lw=1, label="truth")
    left.set(xlabel="state", ylabel="next state", title="Dynamics learned from 120 noisy points")
    left.legend(frameon=False, fontsize=8)

    shown = slice(TRAINING - 50, TRAINING)
    time_axis, future = np.arange(TRAINING)[shown], np.arange(TRAINING, TRAINING + AHEAD)
    for beliefs, colour, label in ((filtered, "C1", "filtered"), (smoothed, "C2", "smoothed")):
        centre, spread = np.asarray(beliefs.mean)[shown, 0], 1.96 * np.asarray(beliefs.std)[shown, 0]
        right.fill_between(time_axis, centre - spread, centre + spread, color=colour, alpha=0.2, lw=0)
        right.plot(time_axis, centre, color=colour, lw=1.2, label=f"{label}, 95 %")
    low, high = (np.asarray(end)[:, 0] for end in ahead.interval(0.95))
    right.fill_between(future, low, high, color="C0", alpha=0.2, lw=0)
    right.plot(future, np.asarray(ahead.mean)[:, 0], color="C0", lw=1.2, label="forecast of y, 95 %")
    right.plot(np.arange(TRAINING - 50, TRAINING + AHEAD), run.x[TRAINING - 50 :], "k--", lw=0.8, label="true state")
    right.plot(np.arange(TRAINING - 50, TRAINING + AHEAD), run.y[TRAINING - 50 :, 0], ".", color="0.5", ms=4, label="observed")
    right.axvline(TRAINING - 0.5, color="0.6", lw=0.8)
    right.set(xlabel="time step", ylabel="state", title="Filter, smoother and forecast")
    right.legend(frameon=False, fontsize=8, ncol=3, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
