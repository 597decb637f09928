"""The development suite: 24 simulated systems on which defaults are chosen (odd numbers) and reported (even numbers).

Nothing else is chosen on it or reported from it, and it is not changed. A record is simulated from its number and a seed. The
first half of it trains. Of the second half the first 50 samples (20 if it has fewer than 200) are filtered; the rest is the
free run, of which only the controls are given. Of a panel the first half of the series trains; on each of the others the first
20 samples, or half of a series that is shorter than 40, are filtered. Noise is a share of the standard deviation of an output.
Controls are steps of random height and length unless said. The fastest time constant has 5 to 10 samples.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import prodssm as ps

Draw = np.random.Generator
Field = Callable[[np.ndarray, np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Record:
    """One simulated series: outputs without noise, controls, time stamps."""

    y: np.ndarray
    u: np.ndarray | None = None
    time: np.ndarray | None = None


@dataclass(frozen=True)
class System:
    """One system of the suite.

    Attributes:
        name: What it is.
        simulate: A list of records from a generator of random numbers; one unless it is a panel.
        noise: Share of the standard deviation of each output.
        missing: Share of the values that are not observed.
        df: Degrees of freedom of Student's t noise; None is Gaussian.
    """

    name: str
    simulate: Callable[[Draw], list[Record]]
    noise: float
    missing: float = 0.0
    df: int | None = None


@dataclass(frozen=True)
class Task:
    """Training series, and for each test series its past, the controls and time steps ahead, and the outcome."""

    train: list[ps.Series]
    past: list[ps.Series]
    u: list[np.ndarray | None]
    dt: list[np.ndarray | None]
    truth: list[np.ndarray]


def load(number: int, seed: int) -> Task:
    """The task of one system and seed."""
    system, draw = SYSTEMS[number], np.random.default_rng([number, seed])
    records = [_observed(record, system, draw) for record in system.simulate(draw)]
    if len(records) > 1:
        half = len(records) // 2
        tests = [(record, min(20, len(record.y) // 2)) for record in records[half:]]
        return _task([_series(record, slice(None)) for record in records[:half]], tests)
    half = len(records[0].y) // 2
    second = _part(records[0], slice(half, None))
    return _task([_series(records[0], slice(0, half))], [(second, 50 if len(second.y) >= 200 else 20)])


def _task(train: list[ps.Series], tests: list[tuple[Record, int]]) -> Task:
    past = [_series(record, slice(0, count)) for record, count in tests]
    u = [None if record.u is None else record.u[count:] for record, count in tests]
    dt = [None if record.time is None else np.diff(record.time)[count - 1 :] for record, count in tests]
    return Task(train, past, u, dt, [record.y[count:] for record, count in tests])


def _observed(record: Record, system: System, draw: Draw) -> Record:
    """The record with noise and missing values."""
    shape, scale = record.y.shape, system.noise * record.y.std(axis=0)
    noise = draw.normal(size=shape) if system.df is None else draw.standard_t(system.df, size=shape)
    if system.df is not None:
        noise /= np.sqrt(system.df / (system.df - 2))
    y = record.y + scale * noise
    return Record(np.where(draw.random(shape) < system.missing, np.nan, y), record.u, record.time)


def _part(record: Record, steps: slice) -> Record:
    return Record(*(None if part is None else part[steps] for part in (record.y, record.u, record.time)))  # type: ignore[arg-type]


def _series(record: Record, steps: slice) -> ps.Series:
    part = _part(record, steps)
    return ps.Series(part.y, part.u, part.time)


# ---------------------------------------------------------------- building blocks


def held_steps(
    draw: Draw, length: int, low: float = -1.0, high: float = 1.0, shortest: int = 10, longest: int = 60
) -> np.ndarray:
    """Steps of random height and length, (length, 1)."""
    found = np.empty(0)
    while len(found) < length:
        found = np.append(found, np.full(draw.integers(shortest, longest + 1), draw.uniform(low, high)))
    return found[:length, None]


def multisine(draw: Draw, length: int, lowest: float, highest: float, count: int = 20) -> np.ndarray:
    """A sum of sines of equal amplitude and random phase, of unit variance; frequencies in cycles per sample, (length, 1)."""
    frequencies, phases = np.linspace(lowest, highest, count), draw.uniform(0, 2 * np.pi, count)
    return np.sqrt(2 / count) * np.sin(2 * np.pi * np.arange(length)[:, None] * frequencies + phases).sum(axis=1)[:, None]


def integrate(field: Field, x: Any, u: np.ndarray, dt: float | np.ndarray, inner: int = 10) -> np.ndarray:
    """States at the samples, (length, x), by Runge-Kutta with controls that are held between samples."""
    x, states, steps = np.asarray(x, float), [], np.broadcast_to(dt, len(u))
    for control, step in zip(u, steps, strict=True):
        states.append(x)
        h = step / inner
        for _ in range(inner):
            a = field(x, control)
            b = field(x + h / 2 * a, control)
            c = field(x + h / 2 * b, control)
            x = x + h / 6 * (a + 2 * b + 2 * c + field(x + h * c, control))
    return np.array(states)


def resonator(u: np.ndarray, period: float, damping: float) -> np.ndarray:
    """A linear filter of order two with unit static gain, period in samples, (length, 1)."""
    radius, angle = np.exp(-2 * np.pi * damping / period), 2 * np.pi * np.sqrt(1 - damping**2) / period
    first, second = 2 * radius * np.cos(angle), -(radius**2)
    gain, y = 1 - first - second, np.zeros(len(u) + 2)
    for t in range(len(u)):
        y[t + 2] = first * y[t + 1] + second * y[t] + gain * (u[t - 1, 0] if t else 0.0)
    return y[2:, None]


def without_control(length: int) -> np.ndarray:
    """Controls of a system that has none, for `integrate`."""
    return np.zeros((length, 0))


# ---------------------------------------------------------------- the systems


def pendulum(draw: Draw, length: int, *, rate: bool = False) -> list[Record]:
    """1, 2, 23: a damped pendulum driven by a torque that swings it beyond the linear range."""
    u = held_steps(draw, length, -0.7, 0.7)
    states = integrate(lambda x, v: np.array([x[1], -np.sin(x[0]) - 0.3 * x[1] + v[0]]), [0.0, 0.0], u, 0.15)
    return [Record(states if rate else states[:, :1], u)]


def two_tanks(draw: Draw, length: int, speed: float = 1.0) -> list[Record]:
    """3, 22: two tanks with outflow by the square root of the level; the lower level is seen."""

    def field(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        first, second = np.sqrt(np.maximum(x, 0.0))
        return speed * np.array([0.6 * v[0] - 0.5 * first, 0.5 * first - 0.4 * second])

    u = held_steps(draw, length, 0.1, 1.2, 20, 80)
    return [Record(integrate(field, [0.5, 0.5], u, 0.5)[:, 1:], u)]


def three_tanks(draw: Draw, length: int) -> list[Record]:
    """4: three tanks; the first two overflow at level one, past the next tank; the lowest level is seen."""

    def field(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        out = np.array([0.5, 0.45, 0.4]) * np.sqrt(np.maximum(x, 0.0))
        change = np.array([0.6 * v[0] - out[0], out[0] - out[1], out[1] - out[2]])
        return np.where((x >= 1.0) & (np.arange(3) < 2), np.minimum(change, 0.0), change)

    u = held_steps(draw, length, 0.1, 1.4, 20, 80)
    return [Record(integrate(field, [0.5, 0.5, 0.5], u, 0.5)[:, 2:], u)]


def duffing(draw: Draw, length: int) -> list[Record]:
    """5: a hardening spring under a multisine force."""
    u = 0.6 * multisine(draw, length, 0.004, 0.05)
    states = integrate(lambda x, v: np.array([x[1], -x[0] - x[0] ** 3 - 0.2 * x[1] + v[0]]), [0.0, 0.0], u, 0.15)
    return [Record(states[:, :1], u)]


def van_der_pol(draw: Draw, length: int) -> list[Record]:
    """6: a self-excited oscillator with input."""
    u = held_steps(draw, length)
    states = integrate(lambda x, v: np.array([x[1], (1 - x[0] ** 2) * x[1] - x[0] + v[0]]), [1.0, 0.0], u, 0.1)
    return [Record(states[:, :1], u)]


def wiener_hammerstein(draw: Draw, length: int) -> list[Record]:
    """7: a linear filter, tanh, a linear filter."""
    u = held_steps(draw, length, -2.0, 2.0)
    return [Record(resonator(np.tanh(1.5 * resonator(u, 40, 0.7)), 25, 0.4), u)]


def hammerstein(draw: Draw, length: int) -> list[Record]:
    """8: a dead zone before a linear filter."""
    u = held_steps(draw, length)
    return [Record(resonator(np.sign(u) * np.maximum(np.abs(u) - 0.3, 0.0), 30, 0.5), u)]


def _actuator_field(x: np.ndarray, v: np.ndarray) -> np.ndarray:
    rate = np.clip(2.0 * (np.clip(v[0], -0.7, 0.7) - x[0]), -0.4, 0.4)
    return np.array([rate, x[2], 1.5 * x[0] - x[1] - 0.8 * x[2]])


def actuator(draw: Draw, length: int) -> list[Record]:
    """9: an actuator that saturates and has a rate limit, before a second-order load."""
    u = held_steps(draw, length)
    return [Record(integrate(_actuator_field, np.zeros(3), u, 0.1)[:, 1:2], u)]


def irregular_actuator(draw: Draw, length: int) -> list[Record]:
    """24: the same at irregular times."""
    u, steps = held_steps(draw, length), draw.uniform(0.03, 0.2, length)
    time = np.append(0.0, np.cumsum(steps[:-1]))
    return [Record(integrate(_actuator_field, np.zeros(3), u, steps)[:, 1:2], u, time)]


def bouc_wen(draw: Draw, length: int) -> list[Record]:
    """10: a mass on a spring with hysteresis."""

    def field(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        hysteresis = x[1] - 0.8 * np.abs(x[1]) * x[2] - 0.5 * x[1] * np.abs(x[2])
        return np.array([x[1], v[0] - x[0] - 0.3 * x[1] - x[2], hysteresis])

    u = held_steps(draw, length, -2.0, 2.0)
    return [Record(integrate(field, np.zeros(3), u, 0.12)[:, :1], u)]


def linear(draw: Draw, length: int, *, feedthrough: bool = False) -> list[Record]:
    """11, 12: one resonance; or two in parallel and a part of the control that acts at once."""
    u = held_steps(draw, length)
    if not feedthrough:
        return [Record(resonator(u, 20, 0.1), u)]
    return [Record(resonator(u, 60, 0.1) + 0.5 * resonator(u, 15, 0.05) + 0.4 * u, u)]


def random_walk(draw: Draw, length: int) -> list[Record]:
    """13: a random walk with drift."""
    return [Record(np.cumsum(0.2 + draw.normal(size=(length, 1)), axis=0))]


def autoregression(draw: Draw, length: int) -> list[Record]:
    """14: AR(3)."""
    y = np.zeros(length + 103)
    for t in range(3, len(y)):
        y[t] = 1.5 * y[t - 1] - 0.9 * y[t - 2] + 0.2 * y[t - 3] + draw.normal()
    return [Record(y[103:, None])]


def calendar(hours: np.ndarray, *periods: float) -> np.ndarray:
    """Sines and cosines of the first two harmonics of each period."""
    angles = [2 * np.pi * k * hours / period for period in periods for k in (1, 2)]
    return np.stack([wave(angle) for angle in angles for wave in (np.sin, np.cos)], axis=1)


def _coloured(draw: Draw, length: int, memory: float) -> np.ndarray:
    noise = np.zeros(length)
    for t in range(1, length):
        noise[t] = memory * noise[t - 1] + np.sqrt(1 - memory**2) * draw.normal()
    return noise


def daily(draw: Draw, length: int) -> list[Record]:
    """15: a daily season plus AR(1); the calendar is the control, so that u[t] acts on y[t]."""
    hours = np.arange(length)
    u = calendar(hours, 24.0)
    return [Record((u @ np.array([2.0, -1.0, 0.7, 0.4]) + 0.8 * _coloured(draw, length, 0.9))[:, None], u)]


def weekly(draw: Draw, length: int) -> list[Record]:
    """16: a load with daily and weekly season that also depends on the temperature, linearly above and below 18 degrees."""
    hours = np.arange(length)
    temperature = 15 + 8 * np.sin(2 * np.pi * hours / (24 * 90)) + 4 * np.sin(2 * np.pi * (hours - 9) / 24)
    temperature = temperature + 3 * _coloured(draw, length, 0.98)
    weekend = ((hours // 24) % 7 >= 5).astype(float)
    season = calendar(hours, 24.0) @ np.array([-3.0, -4.0, 1.0, -1.5])
    load = 30 + (1 - 0.4 * weekend) * season - 4 * weekend + 0.5 * np.maximum(18 - temperature, 0)
    load = load + 0.9 * np.maximum(temperature - 18, 0) + 1.5 * _coloured(draw, length, 0.9)
    return [Record(load[:, None], np.column_stack([calendar(hours, 24.0, 168.0), weekend, temperature]))]


def predator_prey(draw: Draw, length: int, capacity: float = 3.0, speed: float = 1.0) -> list[Record]:
    """17, 21: a predator-prey pair on its limit cycle, both seen."""

    def field(x: np.ndarray, _: np.ndarray) -> np.ndarray:
        eaten = x[0] * x[1] / (1 + x[0])
        return speed * np.array([x[0] * (1 - x[0] / capacity) - eaten, 0.6 * eaten - 0.25 * x[1]])

    settled = integrate(field, [1.0, 1.0], without_control(300 + int(draw.integers(100))), 0.4)[-1]
    return [Record(integrate(field, settled, without_control(length), 0.4))]


def fitzhugh_nagumo(draw: Draw, length: int) -> list[Record]:
    """18: an excitable neuron with a current; the potential is seen."""
    u = held_steps(draw, length, -0.2, 1.0)
    states = integrate(
        lambda x, v: np.array([x[0] - x[0] ** 3 / 3 - x[1] + v[0], 0.08 * (x[0] + 0.7 - 0.8 * x[1])]), [-1.0, -0.5], u, 0.2
    )
    return [Record(states[:, :1], u)]


def stirred_tank(draw: Draw, length: int) -> list[Record]:
    """19: an exothermic reaction in a cooled stirred tank: concentration and temperature, without dimensions."""

    def field(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        reaction = 0.072 * (1 - x[0]) * np.exp(x[1] / (1 + x[1] / 20))
        return np.array([-x[0] + reaction, -x[1] + 8 * reaction + 0.3 * (v[0] - x[1])])

    u = held_steps(draw, length, -1.0, 4.0, 20, 80)
    return [Record(integrate(field, [0.15, 0.9], u, 0.1), u)]


def two_link_arm(draw: Draw, length: int) -> list[Record]:
    """20: an arm of two links that hangs, with friction: two angles and two rates, two torques."""

    def field(x: np.ndarray, v: np.ndarray) -> np.ndarray:
        first, second, fast, slow = x
        coupling = 0.5 * np.cos(second)
        inertia = np.array([[1.5 + 2 * coupling, 0.4 + coupling], [0.4 + coupling, 0.4]])
        bend = 0.5 * np.sin(second)
        forces = np.array([-bend * slow * (2 * fast + slow), bend * fast**2])
        gravity = np.array([1.5 * np.sin(first) + 0.5 * np.sin(first + second), 0.5 * np.sin(first + second)])
        turned = np.linalg.solve(inertia, v - forces - gravity - np.array([0.5, 0.3]) * x[2:])
        return np.array([fast, slow, *turned])

    u = np.column_stack([held_steps(draw, length, -1.2, 1.2), held_steps(draw, length, -0.5, 0.5)])
    return [Record(integrate(field, np.zeros(4), u, 0.08), u)]


def predator_prey_panel(draw: Draw) -> list[Record]:
    """21: short series of other capacities and speeds."""
    return [
        predator_prey(draw, int(draw.integers(20, 61)), draw.uniform(2.6, 3.6), draw.uniform(0.8, 1.25))[0] for _ in range(100)
    ]


def tank_panel(draw: Draw) -> list[Record]:
    """22: series of 200 samples of other time constants."""
    return [two_tanks(draw, 200, draw.uniform(0.5, 2.0))[0] for _ in range(50)]


def of_length(simulate: Callable[..., list[Record]], length: int, **settings: Any) -> Callable[[Draw], list[Record]]:
    """The simulation of one record of this length."""
    return lambda draw: simulate(draw, length, **settings)


SYSTEMS = {
    1: System("pendulum, angle", of_length(pendulum, 2000), 0.05),
    2: System("pendulum, angle and rate, gaps", of_length(pendulum, 1000, rate=True), 0.05, missing=0.1),
    3: System("two tanks", of_length(two_tanks, 1500), 0.03),
    4: System("three tanks, overflow", of_length(three_tanks, 2000), 0.02),
    5: System("Duffing", of_length(duffing, 3000), 0.02),
    6: System("Van der Pol", of_length(van_der_pol, 2000), 0.05),
    7: System("Wiener-Hammerstein", of_length(wiener_hammerstein, 2000), 0.01),
    8: System("Hammerstein, dead zone", of_length(hammerstein, 1000), 0.03),
    9: System("actuator", of_length(actuator, 600), 0.03),
    10: System("Bouc-Wen", of_length(bouc_wen, 3000), 0.02),
    11: System("linear resonator", of_length(linear, 500), 0.1),
    12: System("two resonances, feedthrough", of_length(linear, 1500, feedthrough=True), 0.05),
    13: System("random walk", of_length(random_walk, 300), 0.1),
    14: System("AR(3)", of_length(autoregression, 1000), 0.0),
    15: System("daily season", of_length(daily, 4000), 0.05),
    16: System("weekly season, temperature", of_length(weekly, 6000), 0.05),
    17: System("predator and prey", of_length(predator_prey, 800), 0.05),
    18: System("FitzHugh-Nagumo", of_length(fitzhugh_nagumo, 2000), 0.05),
    19: System("stirred tank", of_length(stirred_tank, 1500), 0.02),
    20: System("two-link arm", of_length(two_link_arm, 2000), 0.02),
    21: System("panel of predators and prey", predator_prey_panel, 0.05),
    22: System("panel of tanks", tank_panel, 0.03),
    23: System("pendulum, Student t noise", of_length(pendulum, 1500), 0.1, df=3),
    24: System("actuator, irregular times", of_length(irregular_actuator, 800), 0.03),
}
CHOOSE = tuple(number for number in SYSTEMS if number % 2)
REPORT = tuple(number for number in SYSTEMS if not number % 2)
SEEDS = (0, 1, 2)
