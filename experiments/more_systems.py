"""Twelve more simulated systems on which defaults are chosen, 101 to 112: hysteresis, friction, oscillators, short records.

The development suite (systems.py) stays as it is; these have what its odd half lacks. Nothing is reported from them.
"""

from collections.abc import Callable

import numpy as np
import systems
from systems import Draw, Record, System, held_steps, integrate, of_length, resonator

Vector = np.ndarray


def play(u: Vector, width: float) -> Vector:
    """Play of a gear: the output rests until the input has crossed the gap, (length, 1)."""
    found, now = np.empty(len(u)), 0.0
    for t, control in enumerate(u[:, 0]):
        now = min(max(now, control - width), control + width)
        found[t] = now
    return found[:, None]


def gear(draw: Draw, length: int) -> list[Record]:
    """101: a filter, play, a filter."""
    u = held_steps(draw, length)
    return [Record(resonator(play(resonator(u, 30, 0.8), 0.25), 25, 0.5), u)]


def brusselator(draw: Draw, length: int) -> list[Record]:
    """102: a chemical oscillator with a controlled feed; one concentration is seen."""

    def field(x: Vector, v: Vector) -> Vector:
        reaction = x[0] ** 2 * x[1]
        return np.array([1 + v[0] - 3.6 * x[0] + reaction, 2.6 * x[0] - reaction])

    u = held_steps(draw, length, -0.4, 0.4)
    return [Record(integrate(field, [1.0, 2.0], u, 0.12)[:, :1], u)]


def dry_friction(draw: Draw, length: int) -> list[Record]:
    """103: a mass on a spring with dry friction."""
    u = held_steps(draw, length)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([x[1], v[0] - x[0] - 0.2 * x[1] - 0.35 * np.tanh(x[1] / 0.02)])

    return [Record(integrate(field, [0.0, 0.0], u, 0.15, inner=20)[:, :1], u)]


def heater(draw: Draw, length: int) -> list[Record]:
    """104: a heater with quadratic power and losses at irregular times."""
    u, steps = held_steps(draw, length, 0.0, 1.0), draw.uniform(0.05, 0.4, length)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([2 * v[0] ** 2 - x[0] - 0.3 * x[0] ** 2, 1.2 * (x[0] - x[1])])

    return [Record(integrate(field, [0.2, 0.2], u, steps)[:, 1:], u, np.append(0.0, np.cumsum(steps[:-1])))]


def motor(draw: Draw, length: int) -> list[Record]:
    """105: a motor with air drag at irregular times."""
    u, steps = held_steps(draw, length), draw.uniform(0.04, 0.25, length)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([v[0] - x[0] - 0.5 * x[0] * np.abs(x[1]), 1.5 * x[0] - 0.6 * x[1] - 0.4 * x[1] * np.abs(x[1])])

    return [Record(integrate(field, [0.0, 0.0], u, steps)[:, 1:], u, np.append(0.0, np.cumsum(steps[:-1])))]


def valve(draw: Draw, length: int) -> list[Record]:
    """106: a tank behind a valve of equal percentage that opens slowly."""
    u = held_steps(draw, length, 0.0, 1.0)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([np.clip(3 * (v[0] - x[0]), -0.25, 0.25), 30 ** (x[0] - 1) - 0.5 * np.sqrt(max(x[1], 0.0))])

    return [Record(integrate(field, [0.5, 0.2], u, 0.2)[:, 1:], u)]


def feedback_loop(draw: Draw, length: int) -> list[Record]:
    """107: three concentrations in a loop of negative feedback that oscillates, with input."""
    u = held_steps(draw, length, -0.3, 0.3)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([3 * (1 + v[0]) / (1 + max(x[2], 0.0) ** 12), x[0], x[1]]) - 0.6 * x

    return [Record(integrate(field, [0.5, 0.8, 1.2], u, 0.35)[:, :1], u)]


def stops(draw: Draw, length: int) -> list[Record]:
    """108: a mass between two elastic stops."""
    u = held_steps(draw, length)

    def field(x: Vector, v: Vector) -> Vector:
        beyond = max(x[0] - 0.6, 0.0) + min(x[0] + 0.6, 0.0)
        return np.array([x[1], v[0] - 0.3 * x[0] - 3 * beyond - 0.4 * x[1]])

    return [Record(integrate(field, [0.0, 0.0], u, 0.15)[:, :1], u)]


def plays(draw: Draw, length: int) -> list[Record]:
    """109: hysteresis as a sum of plays of four widths, before a filter."""
    u = resonator(held_steps(draw, length, -1.5, 1.5), 20, 0.8)
    return [Record(resonator(np.mean([play(u, width) for width in (0.1, 0.3, 0.6, 0.9)], axis=0), 20, 0.3), u)]


def slow_valve(draw: Draw, length: int) -> list[Record]:
    """110: a valve with a rate limit, a saturating characteristic, a first-order load."""
    u = held_steps(draw, length)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([np.clip(2 * (v[0] - x[0]), -0.3, 0.3), np.tanh(2 * x[0]) - x[1]])

    return [Record(integrate(field, [0.0, 0.0], u, 0.12)[:, 1:], u)]


def glucose(draw: Draw, length: int) -> list[Record]:
    """111: glucose under meals and insulin, bilinear."""
    u = np.column_stack([held_steps(draw, length, 0.0, 1.0, 5, 30), held_steps(draw, length, 0.0, 1.0, 10, 40)])

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([0.3 - 0.3 * x[0] - x[1] * x[0] + v[0], -0.5 * x[1] + 0.8 * v[1]])

    return [Record(integrate(field, [1.0, 0.5], u, 0.4)[:, :1], u)]


def harvest(draw: Draw, length: int) -> list[Record]:
    """112: a population that is harvested by a fleet that follows it."""
    u = held_steps(draw, length, 0.0, 0.9)

    def field(x: Vector, v: Vector) -> Vector:
        return np.array([x[0] * (1 - x[0]) - v[0] * x[0] / (1 + 2 * x[0]) * x[1], 0.5 * (0.6 + x[0] - x[1])])

    return [Record(integrate(field, [0.8, 1.2], u, 0.3)[:, :1], u)]


def _system(name: str, simulate: Callable[..., list[Record]], length: int, noise: float) -> System:
    return System(name, of_length(simulate, length), noise)


MORE = {
    101: _system("gear with play", gear, 1000, 0.03),
    102: _system("Brusselator", brusselator, 2000, 0.05),
    103: _system("dry friction", dry_friction, 1000, 0.03),
    104: _system("heater, irregular times", heater, 800, 0.03),
    105: _system("motor, irregular times", motor, 600, 0.03),
    106: _system("valve and tank", valve, 700, 0.03),
    107: _system("feedback loop", feedback_loop, 1500, 0.05),
    108: _system("elastic stops", stops, 800, 0.03),
    109: _system("hysteresis of plays", plays, 2500, 0.02),
    110: _system("slow valve", slow_valve, 600, 0.03),
    111: _system("glucose", glucose, 500, 0.05),
    112: _system("harvest", harvest, 600, 0.05),
}
systems.SYSTEMS.update(MORE)  # what follows reads all systems from one table; the halves of the suite are as they were
