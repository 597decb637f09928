"""Counts and events: arrivals by hour with a Poisson likelihood, labels with a probit one, outliers with Student t."""

# %% [markdown]
# # Counts and events
#
# Arrivals per hour are whole numbers, many of them zero, and they scatter more where the rate is high. A Gaussian forecast
# knows none of this: its night-time intervals reach below zero and its daytime intervals are too narrow. The data are made in
# the script: a rate with two peaks a day, busy and quiet spells that last for hours, and counts that are drawn from it. There
# are five weeks to learn from and two for the test.

# %%
import jax
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from scipy.stats import norm

import prodssm as ps

DAY, WEEKS, TEST = 24, 7, 14
rng = np.random.default_rng(1)
hours = pd.date_range("2024-01-08", periods=WEEKS * 7 * DAY, freq="h", name="when")
hour = hours.hour.to_numpy()
spell = np.zeros(len(hours))
for n in range(1, len(hours)):
    spell[n] = 0.9 * spell[n - 1] + 0.15 * rng.normal()
profile = 2.4 * np.exp(-(((hour - 9) / 3) ** 2)) + 2.6 * np.exp(-(((hour - 18) / 3) ** 2))
rate = np.exp(-1.0 + profile + spell)
frame = pd.DataFrame({"arrivals": rng.poisson(rate)}, index=hours)
split = len(frame) - TEST * DAY  # where the test begins
y = frame["arrivals"].to_numpy()
print(f"{np.mean(y == 0):.0%} of the hours have no arrival; the busiest has {y.max()}")

# %% [markdown]
# ## Two models that differ in the likelihood
#
# `likelihood="poisson"` says that an observation is a count whose log rate is the output of the emission. All else is as
# for any other series: features of the calendar as controls that act at once (`emission="feedthrough"`), and states for the
# spells. The logarithm of the rate is what is linear here, so effects of the hour multiply the rate. One model and few
# iterations keep this page quick; `ProDSSM(likelihood="poisson")` would choose all of it from the data.

# %%
data = ps.frames.series_of(frame, calendar=["hour_of_day"])
settings = {"hidden": (12,), "latent_dim": 2, "emission": "feedthrough", "weights": "point", "progress": False}
recipe = ps.Recipe(iterations=60, window=3 * DAY, batch=8)
models = {
    "Poisson": ps.ProDSSM(likelihood="poisson", recipe=recipe, n_estimators=1, **settings),
    "Gaussian": ps.ProDSSM(recipe=recipe, n_estimators=1, **settings),
}
past = ps.frames.series_of(frame[:split], calendar=["hour_of_day"])
for model in models.values():
    model.fit(past)

# %% [markdown]
# ## A test of two weeks
#
# Every midnight a forecast of the next 24 hours. The score is the mean log probability of the counts. A Gaussian has
# densities, not probabilities; it is given the mass between k - 1/2 and k + 1/2, and for k = 0 all mass below 1/2.


# %%
def log_score(name, found):
    """Mean log probability of the counts of a backtest."""
    if name == "Poisson":
        return found.log_prob.mean()
    below = np.where(found.truth > 0, norm.cdf((found.truth - 0.5 - found.mean) / found.std), 0.0)
    return np.log(norm.cdf((found.truth + 0.5 - found.mean) / found.std) - below).mean()


tests = {name: ps.evaluation.backtest(model, data, horizon=DAY, step=DAY, start=split) for name, model in models.items()}
print(f"{TEST} days of {DAY} hours")
for name, found in tests.items():
    inside = np.mean((found.lower <= found.truth) & (found.truth <= found.upper))
    print(
        f"{name:9} log score {log_score(name, found):.3f}, CRPS {found.crps.mean():.3f}, 95 % intervals cover {inside:.1%}, "
        f"{np.mean(found.lower < 0):.0%} of them reach below zero"
    )

# %% [markdown]
# ## A day ahead
#
# Ends of intervals are counts themselves. `outputs` of filter and smoother are the rate, with an interval of its own that
# stays positive.

# %%
ahead = {name: model.forecast(frame[:split], steps=DAY, u=frame[split : split + DAY]) for name, model in models.items()}
smoothed = models["Poisson"].smooth(frame).outputs
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), layout="constrained")
for (name, each), colour in zip(ahead.items(), ("C0", "C1"), strict=True):
    lower, upper = each.interval(0.95)
    left.fill_between(np.arange(DAY), lower[:, 0], upper[:, 0], color=colour, alpha=0.25, step="mid", label=f"{name}, 95 %")
left.plot(np.arange(DAY), y[split : split + DAY], "k.", label="observed later")
left.axhline(0, color="grey", lw=0.5)
left.set(xlabel="hour of the day", ylabel="arrivals", ylim=(None, 14))
left.legend(frameon=False, fontsize=8)
week = slice(split, split + 4 * DAY)
low, high = smoothed.interval(0.95)
right.fill_between(np.arange(4 * DAY), low[week, 0], high[week, 0], alpha=0.3, label="rate, smoothed, 95 %")
right.plot(rate[week], "k", lw=1, label="true rate")
right.plot(y[week], "k.", ms=3, label="arrivals")
right.set(xlabel="hours", ylabel="arrivals per hour")
right.legend(frameon=False, fontsize=8)

# %% [markdown]
# Questions about several hours are answered by paths, which are counts as well: how many arrivals in the whole day, and how
# likely is an hour with ten or more?

# %%
inside = 0
for n in range(split, len(frame), DAY):
    following = models["Poisson"].forecast(frame[:n], steps=DAY, u=frame[n : n + DAY])
    paths = following.sample(1000, jax.random.key(n))[:, :, 0]
    low, high = np.quantile(paths.sum(axis=1), [0.05, 0.95])
    inside += low <= y[n : n + DAY].sum() <= high
    if n == split:
        print(f"first day: 90 % interval {low:.0f} to {high:.0f} arrivals, observed {y[n : n + DAY].sum()}; ", end="")
        print(f"an hour with ten or more has probability {np.mean(paths.max(axis=1) >= 10):.2f}")
print(f"{TEST} days: the sum of {inside} is within its interval")

# %% [markdown]
# Most sums should be, and fewer are: intervals of single hours hold, but the sum of a day depends on how long spells last, of
# which this short training has found too little. Held-out data calibrate widths for Gaussian observations only.
#
# ## Events
#
# `likelihood="bernoulli"` is for labels 0 and 1: here, whether an hour had any arrival at all. The mean of a forecast is its
# probability.

# %%
events = (frame > 0) * 1.0
event_model = ps.ProDSSM(likelihood="bernoulli", recipe=recipe, n_estimators=1, **settings | {"hidden": ()})
event_model.fit(ps.frames.series_of(events[:split], calendar=["hour_of_day"]))
found = ps.evaluation.backtest(
    event_model, ps.frames.series_of(events, calendar=["hour_of_day"]), horizon=DAY, step=DAY, start=split
)
share = events[:split].to_numpy().mean()
constant = np.log(np.where(found.truth == 1, share, 1 - share)).mean()
print(f"log score of events {found.log_prob.mean():.3f}; of their share in the training data {constant:.3f}")
for low, high in ((0.0, 0.3), (0.3, 0.7), (0.7, 1.01)):
    chosen = (low <= found.mean) & (found.mean < high)
    print(
        f"forecast {low:.1f} to {min(high, 1):.1f}: {chosen.sum():3d} hours, mean forecast {found.mean[chosen].mean():.2f}, "
        f"events in {found.truth[chosen].mean():.2f} of them"
    )

# %% [markdown]
# ## Outliers
#
# A sensor of a slow level fails now and then and shows a number that is far off. Under Gaussian noise each failure drags the
# filter along, or the noise is learned so large that the filter hardly follows at all. `likelihood="student_t"` expects such
# values: they are all but ignored.

# %%
level = np.cumsum(0.1 * rng.normal(size=300))
measured = level + 0.1 * rng.normal(size=300)
failed = rng.random(300) < 0.04
measured[failed] += 5 * rng.normal(size=failed.sum())
robust = {
    name: ps.ProDSSM(
        likelihood=likelihood, hidden=(), emission="linear", latent_dim=1, recipe=ps.Recipe(iterations=60), progress=False
    ).fit(measured)
    for name, likelihood in (("Gaussian", "gaussian"), ("Student t", "student_t"))
}
figure, axes = plt.subplots(figsize=(8, 2.6), layout="constrained")
for (name, model), colour in zip(robust.items(), ("C1", "C0"), strict=True):
    outputs = model.filter(measured).outputs
    error = np.sqrt(np.mean((outputs.mean[20:, 0] - level[20:]) ** 2))
    print(f"{name:9} filter: RMSE to the true level {error:.3f}")
    axes.plot(outputs.mean[:, 0], color=colour, lw=1, label=name)
axes.plot(level, "k", lw=0.8, label="true level")
axes.plot(np.flatnonzero(failed), np.clip(measured[failed], level.min() - 1, level.max() + 1), "kx", ms=5, label="failures")
axes.set(xlabel="time step", ylabel="level")
axes.legend(frameon=False, fontsize=8, ncols=4)
