"""Hourly load with a calendar: a forecast for every hour of tomorrow, and for the energy of the whole day."""

# %% [markdown]
# # Hourly load with a calendar
#
# Electricity is bought a day ahead: for every hour of tomorrow, and as a sum over the day. The load follows the hour, the day
# of the week and the temperature. The data are made in the script, so that it is known what is in them: a profile that
# differs between working days and weekends, heating below 15 °C, and an error that persists for some hours. There are ten
# weeks: seven to learn from, one to calibrate on, and two for the test.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import prodssm as ps

WEEKS, TEST, DAY, WEEK = 10, 14, 24, 168
rng = np.random.default_rng(0)
hours = pd.date_range("2024-01-08", periods=WEEKS * WEEK, freq="h", tz="Europe/Berlin", name="when")


def wander(keep, size):
    """Noise that keeps a share of its value from hour to hour."""
    found = np.zeros(len(hours))
    for n in range(1, len(hours)):
        found[n] = keep * found[n - 1] + size * rng.normal()
    return found


hour, free = hours.hour.to_numpy(), hours.dayofweek.to_numpy() >= 5
temperature = 6 + 3 * np.sin(2 * np.pi * (hour - 9) / DAY) + wander(keep=0.99, size=0.7)
work = 12 * np.exp(-(((hour - 9) / 3) ** 2)) + 14 * np.exp(-(((hour - 18) / 3) ** 2))
rest = 9 * np.exp(-(((hour - 12) / 4) ** 2)) + 9 * np.exp(-(((hour - 19) / 3) ** 2))
load = 45 + np.where(free, rest - 5, work) + 0.9 * np.maximum(15 - temperature, 0) + wander(keep=0.8, size=0.9)
frame = pd.DataFrame({"load": load, "temperature": temperature}, index=hours)
frame.iloc[500:509, 0] = np.nan  # the meter was off
split = len(frame) - TEST * DAY  # where the test begins

# %% [markdown]
# ## Roles of the columns
#
# `series_of` says what the columns are. The index of dates is the time, on the wall clock of its zone. The temperature is a
# control: something that acts on the load and is known in advance. In practice it is a weather forecast with errors of its
# own, which are not in the intervals below. `calendar` adds the hour of the day, as sines and cosines, and the day of the
# week.

# %%
roles = {"controls": "temperature", "calendar": ["hour_of_day", "day_of_week"]}
data = ps.frames.series_of(frame, **roles)
print(data.y.shape, data.u.shape)

# %% [markdown]
# ## Learn
#
# A linear model would add up hour and day, and could not say that a Sunday has another profile. So there is a network, with
# 30 hidden units. `emission="feedthrough"` lets controls act on the load of the same hour. One model and few iterations keep
# this page quick; `ProDSSM()` would choose all of it, take four models, and need some minutes.

# %%
recipe = ps.Recipe(iterations=60, window=WEEK, batch=4)
model = ps.ProDSSM(hidden=(30,), latent_dim=4, emission="feedthrough", n_estimators=1, recipe=recipe, progress=False)
model.fit(ps.frames.series_of(frame[: split - WEEK], **roles))

# %% [markdown]
# ## A test of two weeks
#
# Every midnight a forecast of the next 24 hours. A model with so many weights knows its training data better than what
# follows, so its intervals are too narrow, until a week that it has not seen says how wide they must be. `ProDSSM()` holds
# out such blocks itself; with settings by hand, `calibrate` does it.
#
# Beside it stand the load of a week ago at the same hour, and least squares on the same features.


# %%
def backtest():
    """Forecasts from every midnight of the test."""
    return ps.evaluation.backtest(model, data, horizon=DAY, step=DAY, start=split)


before = backtest()
model.calibrate(frame[split - WEEK : split])
test = backtest()

truth, target = test.truth[..., 0], frame["load"].to_numpy()
features = np.column_stack([data.u, np.ones(len(data.u))])
known = np.isfinite(target) & (np.arange(len(target)) < split)
fitted = features @ np.linalg.lstsq(features[known], target[known])[0]
forecasts = {
    "a week ago": target[split - WEEK : -WEEK].reshape(TEST, DAY),
    "least squares": fitted[split:].reshape(TEST, DAY),
    "this model": test.mean[..., 0],
}
print(f"RMSE over {TEST} days of {DAY} hours, in MW")
for name, mean in forecasts.items():
    print(f"  {name:<15}{ps.metrics.rmse(truth, mean):.2f}")
for name, found in {"before": before, "after": test}.items():
    inside = np.mean((truth >= found.lower[..., 0]) & (truth <= found.upper[..., 0]))
    print(f"95 % intervals cover {100 * inside:.0f} % {name} calibration")

# %% [markdown]
# ## Tomorrow
#
# A forecast needs the temperature of tomorrow and nothing else: the features of the calendar follow from the stamps.

# %%
tomorrow = frame[split : split + DAY]
ahead = model.forecast(frame[:split], steps=DAY, u=tomorrow)
print(ahead.to_frame().iloc[[0, 8, 18]].to_string(float_format="%.1f"))

# %%
figure, (day, by_hour) = plt.subplots(1, 2, figsize=(10.5, 3.4), width_ratios=(3, 2), layout="constrained")
ps.plots.plot_forecast(ahead, history=frame[:split], last=48, ax=day)
day.plot(tomorrow.index.tz_localize(None), tomorrow["load"], "k.", ms=4, label="load, observed later")
day.tick_params(axis="x", rotation=20)
day.legend(frameon=False, fontsize=8)
day.set(ylabel="load in MW", xlabel="")
for name, mean in forecasts.items():
    by_hour.plot(np.arange(1, DAY + 1), np.sqrt(np.mean((truth - mean) ** 2, axis=0)), label=name)
by_hour.set(xlabel="hours ahead", ylabel="RMSE in MW", ylim=(0, None))
by_hour.legend(frameon=False, fontsize=8)

# %% [markdown]
# ## The sum of a day
#
# Errors persist from hour to hour, so those of a day do not cancel as independent ones would. `sample` draws whole paths, and
# each of them has its own sum.

# %%
inside, alone = 0, 0
for n in range(split, len(frame), DAY):
    ahead = model.forecast(frame[:n], steps=DAY, u=frame[n : n + DAY])
    sums = ahead.sample(1000, jax.random.key(n)).sum(axis=(1, 2))
    low, high = np.quantile(sums, [0.05, 0.95])
    radius = 1.645 * np.sqrt((ahead.std**2).sum())  # as if the hours were independent
    true = load[n : n + DAY].sum()
    inside, alone = inside + (low <= true <= high), alone + (abs(true - ahead.mean.sum()) <= radius)
    if n == split:
        print(f"first day {true:.0f} MWh; 90 % interval {low:.0f} to {high:.0f} by paths, ", end="")
        print(f"{ahead.mean.sum() - radius:.0f} to {ahead.mean.sum() + radius:.0f} as if the hours were independent")
print(f"{TEST} days: {inside} within the interval by paths, {alone} within that of independent hours")
