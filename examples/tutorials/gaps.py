"""A buoy whose messages come at irregular times and stop twice: fill the gaps, and say how sure that is."""

# %% [markdown]
# # A sensor with gaps
#
# A moored buoy sends its height and its vertical speed by radio. Messages come when the channel is free, so that their time
# stamps are irregular. For 6 s nothing comes; later, for 20 s, the sensor of the height is off and the speed, which is noisy,
# still comes; and for another 20 s nothing comes again. Wanted is the height at all times, with honest bands.

# %%
import matplotlib.pyplot as plt
import numpy as np

import prodssm as ps

rng = np.random.default_rng(2)
FINE = 0.02  # seconds; the step of the simulation
PERIOD, DAMPING, PUSH = 10.0, 0.05, 0.25


def buoy(seconds):
    """Height in m and speed in m/s: an oscillation that decays and that waves excite again and again."""
    found = np.zeros((round(seconds / FINE), 2))
    for n in range(1, len(found)):
        height, speed = found[n - 1]
        force = -((2 * np.pi / PERIOD) ** 2) * height - 2 * DAMPING * speed
        found[n] = height + FINE * speed, speed + FINE * force + PUSH * np.sqrt(FINE) * rng.normal()
    return found


truth = buoy(240)
rows = np.cumsum(rng.integers(10, 40, size=len(truth)))  # a message every 0.2 to 0.8 s
rows = rows[rows < len(truth)]
stamps = FINE * rows
y = truth[rows] + [0.05, 0.3] * rng.normal(size=(len(rows), 2))

silent = ((stamps > 70) & (stamps < 76)) | ((stamps > 200) & (stamps < 220))
y[silent] = np.nan  # nothing at all
y[(stamps > 130) & (stamps < 150), 0] = np.nan  # no height, but the speed
record = ps.Series(y, time=stamps)
seen = np.isfinite(y).sum(axis=0)
print(
    f"{len(y)} stamps, {seen[0]} heights, {seen[1]} speeds; {np.diff(stamps).min():.2f} to {np.diff(stamps).max():.2f} s apart"
)

# %% [markdown]
# A missing value is `NaN`, coordinate by coordinate, and a row may be empty. In a gap empty rows say when an answer is
# wanted, and they matter for another reason, to which the last section comes.
#
# ## Learn
#
# With irregular stamps the model learns a speed, `x + dt f(x)`. `hidden=()` asks for a linear one, which suits an
# oscillation, and which is learned in seconds. Two states are enough for height and speed.

# %%
model = ps.ProDSSM(hidden=(), latent_dim=2, progress=False, recipe=ps.Recipe(iterations=100)).fit(record)
print(model.skill_)

# %% [markdown]
# ## Fill
#
# The filter knows the past only, and is what a live display could show. The smoother knows both ends of a gap. Both answer in
# `.outputs`: what the sensors would show without their noise, in their units.

# %%
filtered, smoothed = model.filter(record).outputs, model.smooth(record).outputs
height = truth[rows, 0]


def in_gap(begin, end):
    """Rows within a gap."""
    return (stamps > begin) & (stamps < end)


seen = np.isfinite(y[:, 0])
line = np.interp(stamps, stamps[seen], y[seen, 0])
gaps = {"6 s of silence": in_gap(70, 76), "20 s with speed only": in_gap(130, 150), "20 s of silence": in_gap(200, 220)}
print(f"{'RMSE of the height in m':<26}{'straight line':>14}{'filter':>9}{'smoother':>10}{'its band covers':>17}")
for name, there in {**gaps, "no gap": seen}.items():
    errors = [ps.metrics.rmse(height[there], each[there]) for each in (line, filtered.mean[:, 0], smoothed.mean[:, 0])]
    inside = ps.metrics.coverage(height[there], smoothed.mean[there, 0], smoothed.std[there, 0])
    print(f"{name:<26}{errors[0]:>14.2f}{errors[1]:>9.2f}{errors[2]:>10.2f}{100 * inside:>15.0f} %")

# %%
figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), sharey=True, layout="constrained")
for axis, (name, there) in zip(axes, gaps.items(), strict=True):
    shown = (stamps > stamps[there][0] - 12) & (stamps < stamps[there][-1] + 12)
    for colour, label, belief in (("C1", "filter", filtered), ("C0", "smoother", smoothed)):
        middle, radius = belief.mean[shown, 0], 1.96 * belief.std[shown, 0]
        axis.fill_between(stamps[shown], middle - radius, middle + radius, color=colour, alpha=0.25, lw=0)
        axis.plot(stamps[shown], middle, color=colour, label=f"{label}, 95 %")
    axis.plot(stamps[shown], y[shown, 0], ".", color="0.4", ms=4, label="heights that came")
    fine = slice(round(stamps[shown][0] / FINE), round(stamps[shown][-1] / FINE))
    axis.plot(FINE * np.arange(fine.start, fine.stop), truth[fine, 0], "k--", lw=0.8, label="true height")
    axis.set(title=name, xlabel="time in s")
axes[0].set_ylabel("height in m")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)

# %% [markdown]
# ## What a gap does to the uncertainty
#
# The band of the filter grows as long as nothing comes, here a little beyond the spread of the motion itself: then the model
# knows only that the buoy moves. The smoother's band is a lens, narrow at both ends. With the speed alone, the band stays
# about half as wide.

# %%
print("standard deviation of the height in m, at the first, middle and last stamp of the gap")
for name, there in gaps.items():
    at = np.flatnonzero(there)[[0, there.sum() // 2, -1]]
    values = "   ".join(
        f"{label} " + " ".join(f"{belief.std[n, 0]:.2f}" for n in at)
        for label, belief in (("filter", filtered), ("smoother", smoothed))
    )
    print(f"{name:<22}{values}")
print(f"standard deviation of the motion: {truth[:, 0].std():.2f}")

# %% [markdown]
# ## Steps of your own, and how long they may be
#
# The steps of a forecast are yours too: `dt[k]` leads to the k-th one. A step is one move by `x + dt f(x)`, a straight line,
# so it should not be longer than those of the record. Here are forecasts of the same 4 s by one step and by ten, beside what
# came.

# %%
known = stamps < 100
past = ps.Series(y[known], time=stamps[known])
begin = stamps[known][-1]
print(f"true height after 4 s: {truth[round((begin + 4) / FINE), 0]:+.2f}")
for steps in (1, 10):
    ahead = model.forecast(past, steps=steps, dt=np.full(steps, 4 / steps))
    print(f"by {steps:>2} steps: {ahead.mean[-1, 0]:+.2f} m, give or take {ahead.std[-1, 0]:.2f}")

# %% [markdown]
# The same holds for a gap in a record: with empty rows every half second, as here, a gap of 20 s is 40 moves; without them it
# would be one, and a wrong one. Put empty rows where a sensor was off for long.
