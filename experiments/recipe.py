"""How the default recipe was chosen: on random systems that no experiment uses, never on the kink or on measured data.

A system is a random sum of hyperbolic tangents whose trajectories have no gaps. From 120 noisy observations of each, at three
noise levels, a 1-50-1 ReLU model learns the dynamics, and the negative log likelihood of the true function on a grid under the
learned weights is the score. The recipe is the candidate with the smallest median over systems, averaged over the levels: a
mean would be decided by the one or two steepest systems of each level. Candidates with `warm_up` are trained with local
weights by the default recipe first, then with global ones. Candidates with several members, trained from other seeds, are
scored by the moments of their mixture; the best of them is the ensemble of kink.py.

    python experiments/recipe.py      resumes; rows go to results/recipe.csv
    python experiments/recipe.py --quick
"""

import itertools
import time
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.data.series import Record
from prodssm.models.filtering import Recursion
from prodssm.training.initialisation import transition_network
from prodssm.training.objectives import Objective, log_hyper_prior
from prodssm.training.recipe import SERIES_RECIPE
from prodssm.training.series_task import trainable

NAME = "recipe"
LEVELS = (0.008, 0.08, 0.8)
LENGTH, POINTS, PROCESS_STD, HIDDEN = 120, 70, 0.05, 50


@dataclass(frozen=True)
class Spec:
    """One candidate, on so many systems of one seed; `spread` is the scale of the points where first-layer units bend."""

    weights: str
    warm_up: bool
    iterations: int
    learning_rate: float
    schedule: str
    prior_weight: float
    spread: float = 1.0
    systems: int = 16
    seed: int = 2
    members: int = 1


LOCAL = [("constant", 0.005, 500), ("cosine", 0.005, 800), ("cosine", 0.01, 500)]
FINE_TUNED = [("cosine", 0.002, 50), ("cosine", 0.002, 150), ("cosine", 0.005, 100)]
FROM_SCRATCH = [("cosine", 0.02, 500), ("cosine", 0.02, 1000)]
# A gradient with global weights costs many times one with local weights: fewer systems.
SPECS = [Spec("local", False, n, rate, kind, w) for (kind, rate, n), w in itertools.product(LOCAL, (0.1, 0.2, 0.3, 0.5))]
SPECS += [Spec("local", False, 500, 0.01, "cosine", w, members=5) for w in (0.02, 0.05, 0.1, 0.2)]
SPECS += [
    Spec("global", warm_up, n, rate, kind, w, systems=8)
    for warm_up, candidates, weights in ((True, FINE_TUNED, (0.1, 0.2, 0.3)), (False, FROM_SCRATCH, (0.1, 0.3)))
    for (kind, rate, n), w in itertools.product(candidates, weights)
]


def random_system(draw: np.random.Generator):
    """A bounded map of the line whose trajectories leave no gap of more than an eighth of their range."""
    while True:
        count = draw.integers(2, 5)
        places, heights = draw.uniform(-2.5, 2.5, count), draw.uniform(0.6, 2.5, count)
        slopes = draw.uniform(0.5, 3.0, count) * draw.choice([-1, 1], count)
        tilt = draw.uniform(-0.6, 0.6)

        def move(x, tilt=tilt, places=places, heights=heights, slopes=slopes):
            return tilt * x + (heights * np.tanh(slopes * (np.asarray(x)[..., None] - places))).sum(-1)

        path = trajectory(move, draw, 0.5, 300)[100:]
        ordered = np.sort(path[:LENGTH])
        if np.abs(path).max() < 8 and 0.7 < path.std() < 2.0 and np.diff(ordered).max() < np.ptp(ordered) / 8:
            return move


def trajectory(move, draw: np.random.Generator, x: float, steps: int) -> np.ndarray:
    """States of a system with process noise."""
    states = [x]
    for _ in range(steps - 1):
        following = float(move(np.asarray(states[-1]))) + PROCESS_STD * draw.standard_normal()
        states.append(float(np.clip(following, -50, 50)))
    return np.array(states)


@lru_cache
def make_runs(systems: int, seed: int) -> dict[str, np.ndarray]:
    """Observations, noise levels, grids and true values, one row per run."""
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(systems):
        move = random_system(draw)
        for r in LEVELS:
            x = trajectory(move, draw, draw.uniform(-1, 1), LENGTH + 50)[50:]
            grid = np.linspace(x.min(), x.max(), POINTS)
            rows.append((x + np.sqrt(r) * draw.standard_normal(LENGTH), r, grid, move(grid)))
    y, r, grid, truth = (np.stack([np.asarray(row[n]) for row in rows]) for n in range(4))
    return {"y": y, "r": r, "grid": grid, "truth": truth}


def initial(key: jax.Array, variance: jax.Array) -> ps.StateSpaceModel:
    """An untrained model in standardised units, with known measurement noise."""
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(1), jnp.eye(1)),
        transition=transition_network((1, HIDDEN, 1), "relu", key=key),
        process_noise=jnp.array([0.01]),
        likelihood=ps.GaussianLikelihood(variance[None], learned=False),
    )


def learn(runs: dict[str, np.ndarray], spec: Spec) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the learned functions on the grids, under the mixture of several members."""
    mean, var = (np.stack(parts) for parts in zip(*(learn_member(runs, spec, n) for n in range(spec.members)), strict=True))
    return mean.mean(axis=0), var.mean(axis=0) + mean.var(axis=0)


def learn_member(runs: dict[str, np.ndarray], spec: Spec, member: int) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the learned functions on the grids; the models of all runs train side by side."""
    centre, scale = runs["y"].mean(1), runs["y"].std(1)
    y = jnp.asarray((runs["y"] - centre[:, None]) / scale[:, None])[:, :, None]
    grid = jnp.asarray((runs["grid"] - centre[:, None]) / scale[:, None])
    noise = jnp.asarray(runs["r"] / scale**2, y.dtype)
    models = [initial(key, r) for key, r in zip(jr.split(jr.key(member), len(y)), noise, strict=True)]
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models)
    names = ("iterations", "learning_rate", "schedule", "prior_weight")
    if spec.warm_up:
        models = train(models, y, SERIES_RECIPE)
    recipe = ps.Recipe(**{name: getattr(spec, name) for name in names}).filled(SERIES_RECIPE)
    models = train(models.with_weight_mode(spec.weights), y, recipe)

    @eqx.filter_jit
    def at_grid(models):
        def at(model, x):
            _, found = ps.Moments().propagate(model.transition, ps.Gaussian.certain(x[None]))
            return found.mean[0], found.cov[0, 0]

        return eqx.filter_vmap(lambda model, xs: jax.vmap(lambda x: at(model, x))(xs))(models, grid)

    mean, var = (np.asarray(part, float) for part in at_grid(models))
    return mean * scale[:, None] + centre[:, None], var * scale[:, None] ** 2


def train(models: ps.StateSpaceModel, y: jax.Array, recipe: ps.Recipe) -> ps.StateSpaceModel:
    """Models after training by a recipe, each on its own series."""
    learned, fixed = eqx.partition(models, trainable(models))
    optimiser = recipe.pace(jnp.result_type(float)).optimiser(recipe.schedule)

    def loss(parameters, fixed, y):
        model = eqx.combine(parameters, fixed)
        record = Record(y, None, jnp.ones(LENGTH, y.dtype))
        score = Objective().log_scores(Recursion(model, ps.Moments()), record)[0].sum()
        return -(score + recipe.prior_weight * log_hyper_prior(model.transition)) / (LENGTH - 1)

    def one(parameters, state, fixed, y):
        updates, state = optimiser.update(jax.grad(loss)(parameters, fixed, y), state, parameters)
        return eqx.apply_updates(parameters, updates), state

    @eqx.filter_jit
    def run(learned, state):
        body = lambda _, carry: jax.vmap(one)(*carry, fixed, y)  # noqa: E731
        return jax.lax.fori_loop(0, recipe.iterations, body, (learned, state))[0]

    return eqx.combine(run(learned, jax.vmap(optimiser.init)(learned)), fixed)


def score(runs: dict[str, np.ndarray], mean: np.ndarray, var: np.ndarray) -> dict[str, float]:
    """Negative log likelihood and squared error of the true function, by noise level."""
    square = (runs["truth"] - mean) ** 2
    nll = (0.5 * np.log(2 * np.pi * var) + square / (2 * var)).mean(1)
    row = {"score": np.mean([np.median(nll[runs["r"] == r]) for r in LEVELS]), "nll": nll.mean()}
    for r in LEVELS:
        at = runs["r"] == r
        row |= {
            f"median_{r}": np.median(nll[at]),
            f"nll_{r}": nll[at].mean(),
            f"se_{r}": nll[at].std(ddof=1) / np.sqrt(at.sum()),
            f"mse_{r}": square[at].mean(),
        }
    return {name: round(float(value), 4) for name, value in row.items()}


def run(spec: Spec) -> dict[str, Any]:
    """One row of the table."""
    runs, begin = make_runs(spec.systems, spec.seed), time.monotonic()
    found = score(runs, *learn(runs, spec))
    return asdict(spec) | found | {"seconds": round(time.monotonic() - begin, 1), "commit": common.commit()}


def tables() -> dict[str, str]:
    """The tables of docs/recipe.md, best candidates first."""
    found = {}
    for weights, extra in (("local", ["members"]), ("global", ["warm_up"])):
        columns = [*extra, "schedule", "learning_rate", "iterations", "prior_weight", "score"]
        columns += [f"median_{r}" for r in LEVELS]
        rows = sorted((row for row in common.rows(NAME) if row["weights"] == weights), key=lambda row: float(row["score"]))
        found[f"recipe {weights}"] = common.markdown(columns, [[row[column] for column in columns] for row in rows])
    return found


QUICK = [(Spec("local", False, 2, 0.01, "cosine", 0.2, systems=2), {})]

if __name__ == "__main__":
    common.main(__file__)
