"""What does a mixture of Gaussians as a belief cost, and is it worth that, next to particles that take the same time?

Time of a filter step and of a forecast step against components and splits, as multiples of one Gaussian. Error on the kink,
with local and with point weights: filtered beliefs next to a bootstrap particle filter, and forecasts next to sampled futures,
both against a filter on a grid; forecasts with networks of several seeds. The order of the covariance of hidden units: its
error and its cost. The gradient over 10,000 steps in single precision: whether it is finite.

The error is the Cramér distance: of two distribution functions, the root of the integral of their squared difference, over the
root of the standard deviation. That of n samples is about the root of .564 / n. Particles sample the outputs of layers, never
weights. All times are CPU seconds of one core.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import kink
import numpy as np
import state_grid
from state_grid import GRID

import prodssm as ps
from prodssm.datasets.kink import simulate
from prodssm.methods.moments import DEFAULT_ORDER_MIXTURE

LENGTH, LONG = 120, 10_000  # time steps of a filter, and of a gradient
HORIZONS = (3, 5, 10, 20)
PARTICLES = (64, 256, 1024, 4096, 16_384)
ORDERS = (1, 2, 4, 8)
SETTINGS = ((8, 1), (8, 9), (4, 27), (8, 27), (16, 27))
NOTHING = np.full((1, 1), np.nan)
ONE, EIGHT = "one Gaussian", "8 components"


class Problem(NamedTuple):
    """A model of the kink, the moves of its exact state on the grid, trajectories, and a belief to forecast from."""

    label: dict[str, Any]
    model: ps.StateSpaceModel
    moves: np.ndarray
    runs: list[Any]
    start: ps.Gaussian


# ------------------------------------------------------------------ time


def random_model(size: int) -> ps.StateSpaceModel:
    """A random network with local weights; all of its outputs are observed."""
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(size), jnp.eye(size)),
        transition=ps.Network.mlp((size, 50 if size == 1 else 30, size), key=jr.key(size)),
        process_noise=jnp.full(size, 0.01),
        measurement_noise=jnp.full(size, 0.5),
    )


def filtering(model: ps.StateSpaceModel, y: jax.Array, method: ps.Moments) -> common.Compiled:
    """The compiled filter; its answer is the evidence, so that no time is spent on storing."""
    return common.compiled(lambda y: ps.filter_states(model, y, method).log_evidence, y)


def ahead(model: ps.StateSpaceModel, y: jax.Array, method: ps.Moments) -> common.Compiled:
    """The compiled forecast of as many steps, behind one observation."""
    return common.compiled(lambda y: ps.forecast(model, y, LENGTH, method).mean, y[:1])


def times(printer: common.Printer, quick: bool) -> None:
    """CPU time per step against components and splits, as multiples of one Gaussian."""
    for size in (1, 2, 4):
        model = random_model(size)
        y = jnp.asarray(np.random.default_rng(0).normal(size=(LENGTH, size)), model.dtype)
        for what, build in (("filter", filtering), ("forecast", ahead)):
            settings = ((8, 27),) if quick or what == "forecast" else SETTINGS
            chosen = {each: ps.Moments(components=each[0], splits=each[1]) for each in settings}
            built = {(1, 1): build(model, y, ps.Moments())} | {each: build(model, y, m) for each, m in chosen.items()}
            found = timed({str(each): part.run for each, part in built.items()}, quick)
            for (components, splits), part in built.items():
                seconds = found[str((components, splits))]
                label = {"states": size, "what": what, "components": components, "splits": splits}
                row = {"us_per_step": 1e6 * seconds / LENGTH, "to_one_gaussian": seconds / found[str((1, 1))]}
                printer.row(table="times", **label, **row, compile_seconds=part.seconds)


def timed(runs: dict[str, Callable[[], Any]], quick: bool) -> dict[str, float]:
    """Median CPU seconds per call."""
    return common.interleaved(runs, seconds=0.1 if quick else 0.5, clock=time.process_time)


def gradients(printer: common.Printer) -> None:
    """The gradient of the evidence of a long record in all that is learned: whether it is finite, and CPU time per step."""
    for size in (1, 2):
        model = random_model(size)
        y = jnp.asarray(np.random.default_rng(1).normal(size=(LONG, size)), model.dtype)
        learned, fixed = eqx.partition(model, eqx.is_inexact_array)

        def evidence(part: Any, fixed: Any = fixed, y: jax.Array = y) -> jax.Array:
            return ps.filter_states(eqx.combine(part, fixed), y, ps.Moments(components=8)).log_likelihood

        built = common.compiled(jax.value_and_grad(evidence), learned)
        begin = time.process_time()
        value, slopes = jax.block_until_ready(built.run())
        seconds = time.process_time() - begin
        leaves = [np.asarray(leaf) for leaf in jax.tree.leaves((value, slopes))]
        row = {"states": size, "steps": LONG, "dtype": str(value.dtype), "us_per_step": 1e6 * seconds / LONG}
        printer.row(table="gradient", **row, MiB=built.bytes / 2**20, finite=all(np.isfinite(leaf).all() for leaf in leaves))


# ------------------------------------------------------------------ the kink


def problem(noise: float, weights: str, count: int, seed: int = 0) -> Problem:
    """A trained model of the kink with what it is compared with."""
    network = kink.uncertain(noise, seed, prior_weight=0.3)
    model = kink.model(network, noise, weights=weights)
    runs = [simulate(noise, seed=200 + seed) for seed in range(count)]
    last = ps.filter_states(model, simulate(noise, seed=7, steps=60).y.astype(model.dtype))
    start = ps.Gaussian(last.mean[-1], last.cov[-1])
    return Problem({"noise": noise, "weights": weights}, model, state_grid.moves(model), runs, start)


# ------------------------------------------------------------------ contenders, as distribution functions on the grid


def of_beliefs(mean: Any, cov: Any, mixture: Any) -> jax.Array:
    """Distribution functions of beliefs over time."""
    points = jnp.asarray(GRID, mean.dtype)[None, :]
    if mixture is None:
        return jax.scipy.stats.norm.cdf(points, mean, jnp.sqrt(cov[:, 0]))
    std = jnp.sqrt(mixture.covs[:, :, 0, 0])
    each = jax.scipy.stats.norm.cdf(points[:, None, :], mixture.means, std[:, :, None])
    return (jnp.exp(mixture.log_weights)[:, :, None] * each).sum(axis=1)


@jax.jit
def filtered(model: ps.StateSpaceModel, method: ps.Moments, y: jax.Array) -> tuple[Any, ...]:
    """Moments and components of filtered beliefs."""
    found = ps.filter_states(model, y, method)
    return found.mean, found.cov, found.mixture


@jax.jit
def predicted(model: ps.StateSpaceModel, method: ps.Moments, start: ps.Gaussian) -> tuple[Any, ...]:
    """Moments and components of beliefs about the state at all steps up to the last horizon, without measurement noise."""
    quiet = ps.StateSpaceModel(
        initial=start,
        transition=model.transition,
        process_noise=jnp.exp(model.log_process_noise),
        measurement_noise=[1e-9],
        weights=model.weights,
    )
    found = ps.forecast(quiet, NOTHING.astype(model.dtype), max(HORIZONS), method)
    return found.mean, found.cov, found.about.mixture


def moved(model: ps.StateSpaceModel, particles: jax.Array, key: Any) -> jax.Array:
    """Particles one time step later."""
    hidden, output = jr.split(key)
    mean, var = jax.vmap(lambda x, key: state_grid.last_layer(model, x, key))(particles, jr.split(hidden, particles.size))
    var = var + jnp.exp(model.log_process_noise)[0]
    return mean + jnp.sqrt(var) * jr.normal(output, mean.shape, mean.dtype)


@partial(jax.jit, static_argnums=1)
def bootstrap_filter(model: ps.StateSpaceModel, count: int, y: jax.Array, key: Any) -> tuple[jax.Array, jax.Array]:
    """States and weights of particles at every time step; resampled systematically at each."""

    def step(particles, now):
        value, key = now
        resample, move = jr.split(key)
        weights = jax.nn.softmax(-((value - particles) ** 2) / (2 * model.likelihood.variance[0]))
        ticks = (jr.uniform(resample, (), particles.dtype) + jnp.arange(count, dtype=particles.dtype)) / count
        chosen = jnp.minimum(jnp.searchsorted(jnp.cumsum(weights), ticks), count - 1)
        return moved(model, particles[chosen], move), (particles, weights)

    first, later = jr.split(key)
    start = model.initial.mean + model.initial.std * jr.normal(first, (count,), model.dtype)
    return jax.lax.scan(step, start, (y[:, 0], jr.split(later, len(y))))[1]


@partial(jax.jit, static_argnums=1)
def sampled(model: ps.StateSpaceModel, count: int, start: ps.Gaussian, key: Any) -> tuple[jax.Array, jax.Array]:
    """States of sampled futures at all steps up to the last horizon, with equal weights."""
    first, *later = jr.split(key, max(HORIZONS) + 1)
    begin = start.mean + start.std * jr.normal(first, (count,), model.dtype)

    def step(particles, key):
        following = moved(model, particles, key)
        return following, following

    found = jax.lax.scan(step, begin, jnp.stack(later))[1]
    return found, jnp.full_like(found, 1 / count)


def of_particles(states: Any, weights: Any) -> np.ndarray:
    """Distribution functions of weighted particles over time."""
    found = np.zeros((len(states), GRID.size))
    for n, (x, w) in enumerate(zip(np.asarray(states, float), np.asarray(weights, float), strict=True)):
        order = np.argsort(x)
        found[n] = np.append(0.0, np.cumsum(w[order]))[np.searchsorted(x[order], GRID, side="right")]
    return found


# ------------------------------------------------------------------ error at equal time


def contenders(problem: Problem, what: str, counts: tuple[int, ...]) -> dict[str, tuple[Callable, Callable]]:
    """By name: a compiled function of (data, key), and what makes distribution functions of its answer."""
    rule, draws = (filtered, bootstrap_filter) if what == "filter" else (predicted, sampled)
    found: dict[str, tuple[Callable, Callable]] = {}
    for name, method in ((ONE, ps.Moments()), (EIGHT, ps.Moments(components=8))):
        found[name] = (
            lambda data, key, method=method: rule(problem.model, method, data),
            lambda *parts: np.asarray(of_beliefs(*parts), float),
        )
    for count in counts:
        found[f"{count} particles"] = partial(draws, problem.model, count), of_particles
    return found


def compare(printer: common.Printer, problem: Problem, what: str, quick: bool) -> list[dict[str, Any]]:
    """Rows of time and error of all contenders; particles get their error from as many runs as there are trajectories."""
    if what == "filter":
        data = [jnp.asarray(run.y, problem.model.dtype) for run in problem.runs]
        exact, truth = (
            [state_grid.filtered(problem.model, problem.moves, run.y) for run in problem.runs],
            [run.x for run in problem.runs],
        )
    else:
        data, exact, truth = (
            [problem.start] * len(problem.runs),
            [state_grid.forecast(problem.start, problem.moves, HORIZONS)] * len(problem.runs),
            [],
        )
    counts = PARTICLES[::2] if quick else PARTICLES
    able = contenders(problem, what, counts)
    seconds = timed({name: lambda run=run: run(data[0], jr.key(0)) for name, (run, _) in able.items()}, quick)
    rows = []
    for name, (run, functions) in able.items():
        found = [functions(*run(each, jr.key(n))) for n, each in enumerate(data)]
        found = found if what == "filter" else [at_horizons(each) for each in found]
        errors = np.array([state_grid.distances(each, right) for each, right in zip(found, exact, strict=True)])
        row = {"what": what, **problem.label, "name": name, "us": 1e6 * seconds[name], "distance": float(errors.mean())}
        if what == "filter":
            scores = [
                state_grid.crps(each, x) - state_grid.crps(right, x) for each, right, x in zip(found, exact, truth, strict=True)
            ]
            row["crps_above_exact"] = float(np.mean(scores))
        else:
            row |= {f"step_{step}": float(error) for step, error in zip(HORIZONS, errors.mean(axis=0), strict=True)}
        printer.row(table="error", **row)
        rows.append(row)
    same_time(printer, rows)
    return rows


def same_time(printer: common.Printer, rows: list[dict[str, Any]]) -> None:
    """How much closer eight components are than particles that take the same time, interpolated between their numbers."""
    ours = next(row for row in rows if row["name"] == EIGHT)
    particles = [row for row in rows if row["name"].endswith("particles")]
    log_us, log_error = (np.log([row[name] for row in particles]) for name in ("us", "distance"))
    there = float(np.exp(np.interp(np.log(ours["us"]), log_us, log_error)))
    label = {name: ours[name] for name in ("what", "noise", "weights")}
    printer.row(**label, **common.verdict("distance of particles in the same time / 8 components", there / ours["distance"]))


def networks(printer: common.Printer, count: int) -> None:
    """Distances of forecasts with networks trained from several seeds on several trajectories."""
    for noise in (0.08, 0.8):
        for seed in range(count):
            found = problem(noise, "local", 1, seed)
            exact = state_grid.forecast(found.start, found.moves, HORIZONS)
            both = [predicted(found.model, method, found.start) for method in (ps.Moments(), ps.Moments(components=8))]
            one, eight = (state_grid.distances(at_horizons(of_beliefs(*each)), exact) for each in both)
            errors = {f"step_{step}": float(error) for step, error in zip(HORIZONS, eight, strict=True)}
            printer.row(table="networks", noise=noise, seed=seed, **errors, largest_ratio=float((eight / one).max()))


def at_horizons(found: Any) -> np.ndarray:
    """The rows of distribution functions that belong to the horizons."""
    return np.asarray(found, float)[np.array(HORIZONS) - 1]


# ------------------------------------------------------------------ order of the covariance


def orders(printer: common.Printer, problems: list[Problem], quick: bool) -> None:
    """Errors of forecasts of the kink, and times of their step and of one with four states, by the order of the covariance."""
    chosen = {order: ps.Moments(order=order, components=8) for order in (ORDERS[1::2] if quick else ORDERS)}
    model = random_model(4)
    y = jnp.zeros((LENGTH, 4), model.dtype)
    four = timed({str(order): filtering(model, y, method).run for order, method in chosen.items()}, quick)
    for problem in problems:
        exact = state_grid.forecast(problem.start, problem.moves, HORIZONS)
        runs = {str(order): partial(predicted, problem.model, method, problem.start) for order, method in chosen.items()}
        one, base = timed(runs, quick), str(DEFAULT_ORDER_MIXTURE)
        for order, run in runs.items():
            found = state_grid.distances(at_horizons(of_beliefs(*run())), exact)
            errors = {f"step_{step}": float(error) for step, error in zip(HORIZONS, found, strict=True)}
            ratios = {"time_1_state": one[order] / one[base], "time_4_states": four[order] / four[base]}
            printer.row(table="order", weights=problem.label["weights"], order=int(order), **errors, **ratios)


# ------------------------------------------------------------------ all


def main() -> None:
    """Measure, print, plot."""
    options = common.parser(__doc__ or "").parse_args()
    printer, quick = common.Printer(options), options.quick
    printer.row(benchmark="mixture", default_order=DEFAULT_ORDER_MIXTURE, dtype="float32", **common.machine())
    noises, modes = ((0.08,), ("local",)) if quick else ((0.08, 0.8), ("local", "point"))
    problems = [problem(noise, weights, 2 if quick else 10) for noise in noises for weights in modes]
    rows = [row for each in problems for what in ("filter", "forecast") for row in compare(printer, each, what, quick)]
    orders(printer, problems[: len(modes)], quick)
    networks(printer, 1 if quick else 4)
    times(printer, quick)
    gradients(printer)
    if options.plot:
        plot(rows, options.plot)
        printer.text(f"figure: {options.plot}")


def plot(rows: list[dict[str, Any]], path: Any) -> None:
    """Error against time, a panel per problem."""
    import matplotlib.pyplot as plt

    panels = list(dict.fromkeys((row["what"], row["weights"], row["noise"]) for row in rows))
    figure, axes = plt.subplots(2, (len(panels) + 1) // 2, figsize=(16, 7), squeeze=False, layout="constrained")
    for axis, (what, weights, noise) in zip(axes.T.flat, panels, strict=False):
        shown = [row for row in rows if (row["what"], row["weights"], row["noise"]) == (what, weights, noise)]
        drawn = [(row["us"], row["distance"]) for row in shown if row["name"].endswith("particles")]
        axis.loglog(*zip(*drawn, strict=True), "o--", label="particles")
        for name, marker in ((ONE, "s"), (EIGHT, "D")):
            axis.loglog(*next((row["us"], row["distance"]) for row in shown if row["name"] == name), marker, label=name)
        axis.set(title=f"{what}, {weights} weights, r = {noise}", xlabel="microseconds of a call", ylabel="Cramér distance")
        axis.legend(fontsize=8)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main()
