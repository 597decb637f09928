"""A stream of readings, an alarm with a known rate of false alarms, and two faults of a sensor."""

# %% [markdown]
# # Streaming with alarms
#
# Readings come one at a time, and an unusual one shall raise an alarm at once. A fixed limit on the reading does not do: the
# level of a tank may be anywhere, depending on the pump. What is unusual is a reading that does not follow from those before
# it and from what the pump did. The system is the lower one of two tanks; a reading comes every 4 s.

# %%
import matplotlib.pyplot as plt
import numpy as np

import prodssm as ps

healthy = [ps.datasets.tanks.simulate(seed=seed, steps=300) for seed in range(6)]
recipe = ps.Recipe(iterations=100, window=100, batch=6)
model = ps.ProDSSM(hidden=(20,), latent_dim=4, n_estimators=1, recipe=recipe, progress=False)
model.fit([ps.Series(run.y, u=run.u) for run in healthy[:3]])

# %% [markdown]
# ## One reading at a time
#
# `start` gives the state of a stream, and `step` takes in a reading and returns the new state, with the prediction of the
# next reading. Time and memory per step do not grow. The state is a plain value: keep it, copy it, run a thousand streams
# beside each other.

# %%
stream = model.start()
for y, u in zip(healthy[3].y[:5], healthy[3].u[:5], strict=True):
    stream, now = model.step(stream, y, u)
    low, high = now.interval(0.95)
    print(f"read {y[0]:.3f} m; next {now.mean[0]:.3f} m, 95 % from {low[0]:.3f} to {high[0]:.3f}")

# %% [markdown]
# ## From readings to alarms
#
# The error of a prediction in its standard deviations, `z`, says how unusual a reading is. For a fault that is small but
# stays, `drift` adds up errors of one sign and forgets a share of them at each step.


# %%
def watch(y, u, forget=0.9):
    """Two alarm scores for each reading of a stream: the size of the error, and that of its running sum."""
    stream, now = model.start(), None
    scores, drift = np.zeros((len(y), 2)), 0.0
    for n in range(len(y)):
        if now is not None and not np.isnan(y[n, 0]):
            z = (y[n, 0] - now.mean[0]) / now.std[0]
            drift = forget * drift + np.sqrt(1 - forget**2) * z
            scores[n] = abs(z), abs(drift)
        stream, now = model.step(stream, y[n], u[n])
    return scores


# %% [markdown]
# The limit of each score is a quantile of it on records without faults that the model was not fitted to. Then the rate of
# false alarms is known, if the future is like them, whether the model is right or not. A third record checks it.

# %%
quiet = [watch(run.y, run.u) for run in healthy[3:]]
limits = np.quantile(np.concatenate(quiet[:2]), 0.998, axis=0)
false = (quiet[2] > limits).sum(axis=0)
print(f"limits: single error {limits[0]:.1f}, running sum {limits[1]:.1f} standard deviations")
print(f"false alarms in {len(quiet[2])} further readings: single error {false[0]}, running sum {false[1]}")

# %% [markdown]
# For a record that is complete `model.residuals(record).score` has the scores at once; 3 there means a reading that the model
# finds as unusual as one in a thousand.
#
# ## Two faults
#
# At reading 200 the sensor jumps by 4 cm and stays there; or it begins to creep, by 0.5 mm per reading. Its noise is 5 mm.

# %%
FAULT = 200
run = ps.datasets.tanks.simulate(seed=7, steps=400)
late = np.maximum(np.arange(400) - FAULT, 0)[:, None]
faults = {"jump of 4 cm": 0.04 * (late > 0), "creep of 0.5 mm per reading": 0.0005 * late}
watched = {name: watch(run.y + offset, run.u) for name, offset in faults.items()}
for name, scores in watched.items():
    alarms = scores > limits
    early = alarms[: FAULT + 1].any(axis=1).sum()
    print(f"{name}: {early} alarms before the fault")
    for which, label in enumerate(("single error", "running sum")):
        after = np.flatnonzero(alarms[FAULT + 1 :, which])
        print(f"  {label}: " + (f"alarm {after[0] + 1} readings after it" if len(after) else "no alarm"))

# %%
figure, axes = plt.subplots(2, 2, figsize=(10.5, 4.6), sharex=True, sharey="row", layout="constrained")
for (level, score), (name, offset) in zip(axes.T, faults.items(), strict=True):
    level.plot(run.y + offset, "C0.", ms=3, label="read")
    level.plot(run.levels[:, 1], "k--", lw=0.8, label="true level")
    level.set(title=name)
    level.legend(frameon=False, fontsize=8)
    for which, label in enumerate(("single error", "running sum")):
        score.plot(watched[name][:, which], color=f"C{which}", lw=0.8, label=label)
        score.axhline(limits[which], color=f"C{which}", ls=":", lw=1)
    for axis in (level, score):
        axis.axvline(FAULT, color="C3", lw=0.8)
    score.set(xlabel="reading", ylim=(0, 12))
    score.legend(frameon=False, fontsize=8, loc="upper left")
axes[0, 0].set_ylabel("level in m")
axes[1, 0].set_ylabel("score")

# %% [markdown]
# The jump is seen at once by the single error. Then the filter believes the sensor again and the errors become small: note
# the time of an alarm, it may not repeat itself. The creep takes longer. The filter goes along with it, and for a while every
# reading is nearly as expected; what gives it away is that the level no longer answers the pump as it should. The single
# error passes its limit first, for moments; the running sum comes later and stays above it.
#
# ## When the sensor is off
#
# A missing reading is `NaN`, and the prediction goes on with a growing band. An alarm that nothing came is yours to raise.

# %%
stream = model.start()
for y, u in zip(run.y[:200], run.u[:200], strict=True):
    stream, now = model.step(stream, y, u)
widths = [now.std[0]]
for u in run.u[200:220]:
    stream, now = model.step(stream, [np.nan], u)
    widths.append(now.std[0])
print(f"standard deviation of the next reading: {1000 * widths[0]:.1f} mm; after 20 missing ones {1000 * widths[-1]:.1f} mm")
