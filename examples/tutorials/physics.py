"""Known physics: a pendulum with the wrong friction, a known sensor, parameters that are learned, and posterior paths."""

# %% [markdown]
# # Known physics
#
# An engineer knows the equation of a pendulum and its gravity, but not its friction. Four short swings were recorded, each of
# five seconds: the angle, ten times a second, with noise. Asked for are swings twice as large. A network alone would have to
# learn the pendulum from 200 numbers; physics alone has the wrong friction. `physics=` adds the two: the network learns what
# the equation leaves out.

# %%
import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import prodssm as ps

STEP, LENGTH, PAST, AHEAD, NOISE = 0.1, 50, 20, 40, 0.02
GRAVITY, FRICTION = 4.0, 0.6  # of the true pendulum
rng = np.random.default_rng(0)


def swing(angle, rate, steps):
    """True angles and rates of a swing, in steps of a hundredth of a second."""
    x, found = np.array([angle, rate]), []
    for _ in range(steps):
        found.append(x)
        for _ in range(10):
            x = x + STEP / 10 * np.array([x[1], -GRAVITY * np.sin(x[0]) - FRICTION * x[1]])
    return np.array(found)


def measured(states):
    """What the sensor shows: the angle with noise."""
    angles = states[:, 0] + NOISE * rng.normal(size=len(states))
    return ps.Series(angles, time=STEP * np.arange(len(states)))


training = [measured(swing(*start, LENGTH)) for start in ((1.2, 0.0), (-1.0, 1.0), (0.5, -1.5), (-0.3, -1.8))]
asked = [swing(*start, PAST + AHEAD) for start in ((2.5, 0.0), (-2.2, -1.0), (2.0, 2.0))]
pasts = [measured(each[:PAST]) for each in asked]

# %% [markdown]
# ## What is known, as functions
#
# Both functions take the state x and the control u (here None), are written with `jax.numpy`, and speak the units of the
# data. With `residual=True` physics is the rate dx/dt, per unit of the time stamps. The emission is what the sensor shows:
# the first of two states. So the states have a meaning, an angle and a rate, and their number is `latent_dim`.


# %%
def believed(x, u):
    """The rate of change of angle and rate, with a sixth of the true friction."""
    return jnp.stack([x[1], -GRAVITY * jnp.sin(x[0]) - 0.1 * x[1]])


def angle(x, u):
    """What the sensor shows."""
    return x[:1]


shared = {"latent_dim": 2, "residual": True, "recipe": ps.Recipe(iterations=300), "progress": False}
models = {
    "physics and network": ps.ProDSSM(physics=believed, emission=angle, hidden=(20,), **shared),
    "network": ps.ProDSSM(emission="linear", hidden=(20,), **shared),
    "physics": ps.ProDSSM(physics=believed, emission=angle, hidden=None, **shared),
}

# %% [markdown]
# ## Free runs
#
# Each model sees the first two seconds of a large swing and forecasts four more.


# %%
def errors(model):
    """Errors of the free runs over all swings that are asked for."""
    runs = [model.forecast(past, AHEAD) for past in pasts]
    return runs, np.stack([run.mean[:, 0] - true[PAST:, 0] for run, true in zip(runs, asked, strict=True)])


runs = {}
for name, model in models.items():
    runs[name], missed = errors(model.fit(training))
    print(f"{name:20} error of free runs {np.sqrt(np.mean(missed**2)):.3f} rad")

# %%
figure, axes = plt.subplots(1, 3, figsize=(9, 2.8), sharey=True, layout="constrained")
time, later = STEP * np.arange(PAST + AHEAD), STEP * np.arange(PAST, PAST + AHEAD)
for axis, (name, found) in zip(axes, runs.items(), strict=True):
    lower, upper = found[0].interval(0.95)
    axis.fill_between(later, lower[:, 0], upper[:, 0], alpha=0.3)
    axis.plot(later, found[0].mean[:, 0], label="forecast")
    axis.plot(time, asked[0][:, 0], "k", lw=0.8, label="true angle")
    axis.plot(time[:PAST], pasts[0].y[:, 0], "k.", ms=4, label="measured")
    axis.set(title=name, xlabel="seconds", ylim=(-4, 4))
axes[0].set(ylabel="angle in rad")
axes[0].legend(frameon=False, fontsize=8)

# %% [markdown]
# Without the equation the network is off at once, and its band, too narrow to be seen, does not say so: nothing in the data
# showed it how wide swings behave. With the equation it has little left to learn, and the equation alone loses hardly any
# energy.
#
# ## Parameters that are learned
#
# Who knows the form of the friction needs no network. `Known` takes parameters with their first guesses; what `learned` says
# may change. Here the friction is learned and gravity is not.
#
# A rate is added as x + dt f(x), one Euler step, which makes a pendulum swing wider than its equation. Beside a network that
# is one more thing to learn; a learned friction would make up for it and come out too large. So the function below takes a
# Runge-Kutta step and returns the next state itself: `residual=False`.


# %%
def next_state(x, u, params):
    """Angle and rate after one time step."""

    def rate(x):
        return jnp.stack([x[1], -params["gravity"] * jnp.sin(x[0]) - params["friction"] * x[1]])

    first = rate(x)
    second = rate(x + STEP / 2 * first)
    third = rate(x + STEP / 2 * second)
    last = rate(x + STEP * third)
    return x + STEP / 6 * (first + 2 * second + 2 * third + last)


known = ps.Known(next_state, {"gravity": 4.0, "friction": 0.1}, x_size=2, learned={"gravity": False, "friction": True})
fitted = ps.ProDSSM(physics=known, emission=angle, hidden=None, **shared | {"residual": False}).fit(training)
found = fitted.ssm_.transition.params
print(f"friction {float(found['friction']):.2f} (true {FRICTION}), gravity {float(found['gravity']):.2f}")
print(f"error of free runs {np.sqrt(np.mean(errors(fitted)[1] ** 2)):.3f} rad")

# %% [markdown]
# ## Where was the pendulum, and how fast?
#
# The rate was never measured; the smoother knows it from the angles and the equation. `iterations` repeats the smoother with
# its linearisation around the last answer, until it stands still. `sample` draws whole paths of the states from the posterior:
# for what depends on several times, such as the highest speed of a swing, the ends of pointwise intervals would not do.

# %%
truth = asked[0][: PAST + 20]
smoothed = fitted.smooth(measured(truth), iterations=200)
paths = smoothed.sample(500, jax.random.key(0))
print(f"fixed point: {bool(smoothed.convergence.converged)}, after {int(smoothed.convergence.passes)} passes")
fastest = np.abs(paths[:, :, 1]).max(axis=1)
low, high = np.quantile(fastest, [0.05, 0.95])
print(f"highest speed: 90 % interval {low:.2f} to {high:.2f} rad/s, true {np.abs(truth[:, 1]).max():.2f}")

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 2.8), layout="constrained")
for n, (axis, name) in enumerate(zip(axes, ("angle in rad", "rate in rad/s"), strict=True)):
    axis.plot(time[: len(truth)], paths[:30, :, n].T, color="C0", lw=0.5, alpha=0.4)
    axis.plot(time[: len(truth)], truth[:, n], "k", lw=1)
    axis.set(xlabel="seconds", ylabel=name)
axes[0].set(title="30 posterior paths")
axes[1].set(title="never measured")
