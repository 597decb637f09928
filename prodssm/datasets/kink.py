"""The kink: a scalar system with a sharp bend, seen through noise (simulated, no units, no file).

x[t+1] = kink(x[t]) + N(0, process_std²) and y[t] = x[t] + N(0, r). Source: Ialongo et al., "Overcoming mean-field
approximations in recurrent Gaussian process models", 2019; length and start are those of public implementations. Trap: `r` is
a variance, the process noise is given by its standard deviation.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64

from prodssm._validation import require_integer, require_number, require_variances

NOISE_LEVELS = (0.008, 0.08, 0.8)
"""Variances r of the paper."""


@dataclass(frozen=True, eq=False)
class Kink:
    """One simulated run.

    Attributes:
        x: True latent trajectory.
        y: Observations.
        r: Variance of the measurement noise.
    """

    x: Float64[np.ndarray, " time"]
    y: Float64[np.ndarray, "time 1"]
    r: float


def kink(x: Float[np.ndarray, "*any"] | float) -> Float[np.ndarray, "*any"] | float:
    r"""The true dynamics, $0.8 + (x + 0.2) (1 - 5 / (1 + e^{-2x}))$.

    Example:
        >>> float(kink(0.0))
        0.5
    """
    # The logistic function of 2x, written so that no exponential overflows.
    logistic = 0.5 * (1.0 + np.tanh(x))
    return 0.8 + (x + 0.2) * (1.0 - 5.0 * logistic)


def simulate(r: float, *, seed: int, steps: int = 120, process_std: float = 0.05, start: float = 0.5) -> Kink:
    """One run of the system.

    Runs of one seed share their noise: the latent trajectory is the same for every `r`, and a long run continues a short one.

    Args:
        r: Variance of the measurement noise.
        seed: Of NumPy's default generator.
        steps: Number of time steps.
        process_std: Standard deviation of the process noise.
        start: First state, certain.

    Returns:
        The run, in float64.

    Example:
        >>> simulate(0.08, seed=0, steps=10).y.shape
        (10, 1)
    """
    require_number("r", r)
    require_variances("r", r)
    require_number("process_std", process_std)
    require_variances("process_std", process_std)
    require_number("start", start)
    require_integer("seed", seed, 0)
    require_integer("steps", steps, 2)
    noise = np.random.default_rng(seed).standard_normal((steps, 2))
    x = np.empty(steps)
    x[0] = start
    for t in range(steps - 1):
        x[t + 1] = kink(x[t]) + process_std * noise[t, 0]
    return Kink(x, (x + np.sqrt(r) * noise[:, 1])[:, None], float(r))


def grid(run: Kink, points: int = 70) -> Float64[np.ndarray, " points"]:
    """States at which learned dynamics are scored: equally spaced over the range of the true trajectory of the run.

    Example:
        >>> grid(simulate(0.08, seed=0), points=5).shape
        (5,)
    """
    require_integer("points", points, 2)
    return np.linspace(run.x.min(), run.x.max(), points)
