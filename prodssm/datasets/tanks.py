"""Two tanks in a cascade with a pump, seen through a noisy sensor (simulated; levels in metres, pump in volts, no file).

The pump fills the upper tank, which drains into the lower one, which drains away; outflows go with the square root of the level
(Torricelli). Only the lower level is measured, so there is a hidden state. Now and then the pump is set to a random voltage.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from prodssm._validation import require_integer, require_number, require_variances

STEP = 4.0  # seconds between samples
INNER = 20  # Euler steps per sample
AREA, OUTLETS, PUMP = 0.02, (1.4e-3, 1.2e-3), 3.2e-4  # m², m^2.5 / s, m³ / (s V)
SHORTEST, LONGEST = 15, 60  # samples between changes of the voltage
LOWEST, HIGHEST = 0.6, 4.0  # volts


@dataclass(frozen=True, eq=False)
class Tanks:
    """One simulated run.

    Attributes:
        levels: True levels of both tanks, the upper one first, in metres.
        y: Measured level of the lower tank, in metres.
        u: Voltage of the pump; `u[t]` acts from sample t to the next.
        time: Seconds.
    """

    levels: Float64[np.ndarray, "time 2"]
    y: Float64[np.ndarray, "time 1"]
    u: Float64[np.ndarray, "time 1"]
    time: Float64[np.ndarray, " time"]


def simulate(*, seed: int, steps: int = 500, noise_std: float = 0.005) -> Tanks:
    """One run of the tanks, from a random pump schedule.

    Args:
        seed: Of NumPy's default generator.
        steps: Number of samples.
        noise_std: Standard deviation of the sensor's noise, in metres.

    Returns:
        The run, in float64.

    Example:
        >>> simulate(seed=0, steps=10).y.shape
        (10, 1)
    """
    require_integer("seed", seed, 0)
    require_integer("steps", steps, 2)
    require_number("noise_std", noise_std)
    require_variances("noise_std", noise_std)
    rng = np.random.default_rng(seed)
    u = np.empty(0)
    while len(u) < steps:
        u = np.append(u, np.full(rng.integers(SHORTEST, LONGEST + 1), rng.uniform(LOWEST, HIGHEST)))
    u = u[:steps]
    levels, now = np.empty((steps, 2)), np.array([0.3, 0.4])
    for t in range(steps):
        levels[t] = now
        for _ in range(INNER):
            upper, lower = OUTLETS * np.sqrt(np.maximum(now, 0.0))
            now = now + STEP / INNER / AREA * np.array([PUMP * u[t] - upper, upper - lower])
    noise = noise_std * rng.standard_normal((steps, 1))
    return Tanks(levels, levels[:, 1:] + noise, u[:, None], STEP * np.arange(steps))
