"""A pendulum whose friction is not what its engineer believes: physics, a network, and both; the errors of three free runs.

The angle is measured, with noise, 200 times. The state is angle and angular rate. The known equation has linear friction; the
true friction is that of the air, quadratic in the rate, and a spring of the cable adds to it.

    python examples/pendulum_physics.py
"""

import warnings

import jax.numpy as jnp
import numpy as np

import prodssm as ps

STEP, TRAINED, AHEAD = 0.1, 200, 200


def believed(x, u):
    """The rate of change of angle and angular rate as the engineer knows it."""
    return jnp.stack([x[1], -4.0 * jnp.sin(x[0]) - 0.1 * x[1]])


def angle(x, u):
    """What the sensor shows."""
    return x[:1]


def trajectory(start, steps, rng):
    """True angles and noisy ones, every tenth of a second; the same Euler steps as the model makes, ten times as fine."""
    x, angles = np.array(start, float), []
    for _ in range(steps):
        angles.append(x[0])
        for _ in range(10):
            rate = np.array([x[1], -4.0 * np.sin(x[0]) - 0.6 * np.abs(x[1]) * x[1]])
            x = x + STEP / 10 * rate
    return np.array(angles), np.array(angles) + 0.02 * rng.normal(size=steps)


def models(iterations, **settings):
    """Physics with a network, the network alone, and the physics alone."""
    shared = {"latent_dim": 2, "residual": True, "recipe": ps.Recipe(iterations=iterations), "progress": False} | settings
    return {
        "physics and network": ps.ProDSSM(physics=believed, emission=angle, hidden=(30,), **shared),
        "network": ps.ProDSSM(emission="linear", hidden=(30,), **shared),
        "physics": ps.ProDSSM(physics=believed, emission=angle, hidden=None, **shared),
    }


def errors(iterations=600, **settings):
    """Root mean squared errors of free runs of each model from the first observations of fresh trajectories on."""
    rng = np.random.default_rng(0)
    time = STEP * np.arange(TRAINED)
    starts = [(2.5, 0.0), (-1.0, 2.0), (1.5, -2.5), (0.5, 3.0)]
    training = [ps.Series(trajectory(start, TRAINED // 4, rng)[1], time=time[: TRAINED // 4]) for start in starts]
    tests = [trajectory(start, 60, rng) for start in [(2.0, 1.0), (-2.2, 0.5), (1.0, 2.0)]]
    found = {}
    for name, model in models(iterations, **settings).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model.fit(training)
        squares = []
        for true, noisy in tests:
            past = ps.Series(noisy[:20], time=STEP * np.arange(20))
            squares.append((model.forecast(past, steps=40).mean[:, 0] - true[20:]) ** 2)
        found[name] = float(np.sqrt(np.mean(squares)))
    return found


if __name__ == "__main__":
    for name, error in errors().items():
        print(f"{name:20s} free-run error {error:.3f} rad")
