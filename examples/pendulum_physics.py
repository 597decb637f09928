"""A pendulum whose friction is not what its engineer believes: physics, a network, and both; the errors of three free runs.

The angle is measured, with noise, 200 times, on four small swings. The state is angle and angular rate. The known equation has
the right gravity and far too little friction. Asked for are swings twice as large as those that were seen: what the network has
to learn is friction alone beside the physics, and without it the pendulum as well.

    python examples/pendulum_physics.py
"""

import warnings

import jax.numpy as jnp
import numpy as np

import prodssm as ps

STEP, LENGTH, PAST, AHEAD = 0.1, 50, 20, 40
SEEN = [(1.2, 0.0), (-1.0, 1.0), (0.5, -1.5), (-0.3, -1.8)]  # angle in rad and rate in rad/s of the first observation
ASKED = [(2.5, 0.0), (-2.2, -1.0), (2.0, 2.0)]


def believed(x, u):
    """The rate of change of angle and angular rate, as the engineer knows it."""
    return jnp.stack([x[1], -4.0 * jnp.sin(x[0]) - 0.1 * x[1]])


def angle(x, u):
    """What the sensor shows."""
    return x[:1]


def swing(start, steps, rng):
    """True angles of a swing with friction 0.6, in steps of a hundredth of a second, and measured ones."""
    x, angles = np.array(start, float), []
    for _ in range(steps):
        angles.append(x[0])
        for _ in range(10):
            x = x + STEP / 10 * np.array([x[1], -4.0 * np.sin(x[0]) - 0.6 * x[1]])
    return np.array(angles), np.array(angles) + 0.02 * rng.normal(size=steps)


def times(count):
    """Time stamps in seconds."""
    return STEP * np.arange(count)


def models(iterations):
    """Physics with a network, the network alone, and the physics alone."""
    shared = {"latent_dim": 2, "residual": True, "recipe": ps.Recipe(iterations=iterations), "progress": False}
    return {
        "physics and network": ps.ProDSSM(physics=believed, emission=angle, hidden=(20,), **shared),
        "network": ps.ProDSSM(emission="linear", hidden=(20,), **shared),
        "physics": ps.ProDSSM(physics=believed, emission=angle, hidden=None, **shared),
    }


def errors(iterations=600, seed=0):
    """Root mean squared errors of free runs of four seconds over fresh swings, by model; of another seed, under other noise."""
    rng, found = np.random.default_rng(seed), {}
    training = [ps.Series(swing(start, LENGTH, rng)[1], time=times(LENGTH)) for start in SEEN]
    asked = [swing(start, PAST + AHEAD, rng) for start in ASKED]
    for name, model in models(iterations).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model.fit(training)
        pasts = [ps.Series(seen[:PAST], time=times(PAST)) for _, seen in asked]
        misses = [model.forecast(past, AHEAD).mean[:, 0] - true[PAST:] for past, (true, _) in zip(pasts, asked, strict=True)]
        found[name] = float(np.sqrt(np.mean(np.square(misses))))
        print(f"{name:20s} free-run error {found[name]:.3f} rad", flush=True)
    return found


if __name__ == "__main__":
    errors()
