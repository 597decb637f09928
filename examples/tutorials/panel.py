"""200 cultures that grow to a limit, most of them not there yet: one model of all, forecasts for each."""

# %% [markdown]
# # 200 short series
#
# 200 cultures grow in small vessels. Each is measured every hour, started at another time and from another amount, and is
# kept at one of several temperatures. Most have been seen for less than half of their growth: taken alone, such a series does
# not say where it will end. All obey the same law, so one model can learn it from all of them, and what the old cultures have
# shown helps with the young ones.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.optimize import least_squares

import prodssm as ps

SERIES, AHEAD = 200, 12
rng = np.random.default_rng(0)
rows = []
for n in range(SERIES):
    temperature = rng.choice([25.0, 28.0, 31.0, 34.0])
    rate, limit = 0.12 + 0.025 * (temperature - 25), 2.0 - 0.05 * (temperature - 25)
    density, seen = rng.uniform(0.03, 0.15), int(rng.integers(6, 25))
    for hour in range(seen + AHEAD):
        rows.append((f"vessel {n:03d}", hour, density + 0.02 * rng.normal(), temperature, hour < seen))
        density += rate * density * (1 - density / limit) + 0.01 * density * rng.normal()
everything = pd.DataFrame(rows, columns=["vessel", "hour", "density", "temperature", "seen"])
frame = everything[everything["seen"]].drop(columns="seen")
lengths = frame.groupby("vessel").size()
print(frame.head(3))
print(f"{len(lengths)} vessels, {lengths.min()} to {lengths.max()} hours each, {len(frame)} rows")

# %% [markdown]
# ## One frame, one model
#
# The column of the group says which series a row belongs to. The temperature is a control, here one that never changes within
# a vessel. With so many short series nothing has to be held out in blocks: `validation=0.2` keeps every fifth vessel for
# early stopping. The density is measured, up to noise, so the state is the density itself: `emission="identity"`.

# %%
data = ps.frames.series_of(frame, controls="temperature", time="hour", group="vessel")
recipe = ps.Recipe(iterations=300, batch=32, validation=0.2)
model = ps.ProDSSM(emission="identity", hidden=(20,), residual=True, n_estimators=1, recipe=recipe, progress=False).fit(data)

# %% [markdown]
# ## All forecasts at once
#
# The answer for several series is a panel; `.to_frame()` makes one frame of it, with the names of the vessels. Future
# temperatures are a frame with the same columns.

# %%
later = everything[~everything["seen"]]
ahead = model.forecast(data, steps=AHEAD, u=later[["vessel", "hour", "temperature"]])
table = ahead.to_frame()
print(table.groupby("vessel").tail(1).head(3).to_string(index=False, float_format="%.2f"))

# %% [markdown]
# ## Against one model per series
#
# The rivals know one vessel each: the last value, a straight line through the last five values, and a logistic curve, fitted
# by least squares. The last is the law that the data were made by, so that only its parameters are unknown to it; nobody is
# better informed, but each curve has only its own few points.


# %%
def curve(parameters, hours):
    """Logistic growth in continuous time."""
    start, rate, limit = np.exp(parameters)
    return limit / (1 + (limit / start - 1) * np.exp(-rate * hours))


future = np.arange(AHEAD)
rivals = {"last value": [], "straight line": [], "logistic curve": [], "one model of all": [each.mean[:, 0] for each in ahead]}
for _, part in frame.groupby("vessel"):
    hours, density = part["hour"].to_numpy(), part["density"].to_numpy()
    rivals["last value"].append(np.full(AHEAD, density[-1]))
    rivals["straight line"].append(np.polyval(np.polyfit(hours[-5:], density[-5:], 1), hours[-1] + 1 + future))
    bounds = (np.log([0.001, 0.01, 0.1]), np.log([1.0, 2.0, 5.0]))
    found = least_squares(lambda p: curve(p, hours) - density, np.log([0.08, 0.3, 1.5]), bounds=bounds)  # noqa: B023
    rivals["logistic curve"].append(curve(found.x, hours[-1] + 1 + future))

truth = later["density"].to_numpy().reshape(SERIES, AHEAD)
young = lengths.to_numpy() < 15
print(f"RMSE over {AHEAD} h        {young.sum()} seen < 15 h   {(~young).sum()} seen longer")
for name, means in rivals.items():
    errors = [ps.metrics.rmse(truth[which], np.stack(means)[which]) for which in (young, ~young)]
    print(f"  {name:<20}{errors[0]:>14.3f}{errors[1]:>17.3f}")
low, high = (np.stack(ends)[..., 0] for ends in zip(*(each.interval(0.95) for each in ahead), strict=True))
inside = ((low <= truth) & (truth <= high)).mean()
print(f"95 % intervals of the one model cover {100 * inside:.0f} %")

# %% [markdown]
# A curve of one's own is good once its vessel has passed the bend. Before that nothing in its points says where the limit is,
# while other vessels have shown it. The intervals cover more than they promise, so they are wider than need be.

# %%
figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.2), sharey=True, layout="constrained")
for axis, wanted in zip(axes, (7, 12, 20), strict=True):
    n = int(np.argmin(np.abs(lengths.to_numpy() - wanted)))
    past = frame[frame["vessel"] == lengths.index[n]]
    hours = past["hour"].iloc[-1] + 1 + future
    axis.plot(past["hour"], past["density"], "k.", label="seen")
    axis.fill_between(hours, low[n], high[n], color="C0", alpha=0.25, lw=0)
    axis.plot(hours, ahead[n].mean[:, 0], "C0", label="one model of all, 95 %")
    axis.plot(hours, rivals["logistic curve"][n], "C1", label="logistic curve of its own")
    axis.plot(hours, truth[n], "x", color="0.4", ms=4, label="observed later")
    axis.set(title=f"{lengths.index[n]}, seen for {len(past)} h", xlabel="hour", ylim=(0, 2.5))
axes[0].set_ylabel("density")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)

# %% [markdown]
# ## A vessel that was not there
#
# A new vessel needs no fit. The model conditions on what has been seen of it, if only for three hours.

# %%
new = pd.DataFrame({"hour": [0.0, 1.0, 2.0], "density": [0.10, 0.13, 0.15], "temperature": 31.0, "vessel": "new"})
planned = pd.DataFrame({"hour": np.arange(3.0, 27.0), "temperature": 31.0, "vessel": "new"})
(fresh,) = model.forecast(new, steps=24, u=planned)
print(f"density a day later: {fresh.mean[-1, 0]:.2f}, give or take {fresh.std[-1, 0]:.2f}; its limit is 1.70")
