"""How the default recipe was found: on random systems that no experiment uses, never on the kink or any real data.

A system is a random sum of hyperbolic tangents whose trajectories spread without gaps. From 120 noisy observations of each, at
three noise levels, a 1-50-1 ReLU model learns the dynamics, and the negative log likelihood of the true function on a grid
under the learned weights is the score. The recipe is the candidate with the smallest median over systems, averaged over the
levels: a mean would be decided by the one or two steepest systems of each level.

    python experiments/recipe.py            runs what is missing in results/recipe.csv, then prints the table
    python experiments/recipe.py --weights global
    python experiments/recipe.py --tries    other ideas on the same systems; rows go to results/recipe_tries.csv
    python experiments/recipe.py --quick    two systems, a few iterations: a smoke run that writes nothing
"""

import itertools
import time

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.inference import Finder
from prodssm.methods.moments import moments
from prodssm.objective import Objective, log_hyper_prior
from prodssm.series import Frames
from prodssm.training import Recipe, trainable

LEVELS = (0.008, 0.08, 0.8)
LENGTH, POINTS, PROCESS_STD, HIDDEN = 120, 70, 0.05, 50
# Warm-up with local weights by the default recipe, then schedule, learning rate and iterations; each with some prior weights.
LOCAL = [(False, "constant", 0.005, 500), (False, "cosine", 0.005, 800), (False, "cosine", 0.01, 500)]
WARM = [(True, "cosine", 0.002, 50), (True, "cosine", 0.002, 150), (True, "cosine", 0.005, 100)]
COLD = [(False, "cosine", 0.02, 500), (False, "cosine", 0.02, 1000)]
TRIED = {
    "local": [*itertools.product(LOCAL, [0.1, 0.2, 0.3, 0.5])],
    "global": [*itertools.product(WARM, [0.1, 0.2, 0.3]), *itertools.product(COLD, [0.1, 0.3])],
}
PLAIN = {"weights": "local", "warm_up": False, "learning_rate": 0.01, "schedule": "cosine", "prior_weight": 0.2, "spread": 1.0}
PLAIN |= {"iterations": 500}
CONSTANT = PLAIN | {"learning_rate": 0.005, "schedule": "constant"}
TRIES: dict[str, dict] = {
    "the recipe": PLAIN,
    **{
        f"constant rate 0.005, weight {weight}, {iterations} iterations": CONSTANT
        | {"prior_weight": weight, "iterations": iterations}
        for weight in (0.1, 0.3, 1.0)
        for iterations in (500, 1000, 2000)
    },
    "four restarts as a mixture": PLAIN | {"restarts": 4},
    "process noise that starts at 1e-4": PLAIN | {"process_var": 1e-4},
    "weight variances learned five times slower, 500 iterations": PLAIN | {"variance_rate": 0.2},
    "weight variances learned five times slower, 1000 iterations": PLAIN | {"variance_rate": 0.2, "iterations": 1000},
    "uncertain output layer only": PLAIN | {"certain": 1},
}
SYSTEMS = {"local": 16, "global": 8}  # a gradient with carried weights costs many times more


def candidates(weights: str) -> list[dict]:
    """What is tried for one kind of weights."""
    return [
        {
            "weights": weights,
            "warm_up": warm_up,
            "iterations": iterations,
            "learning_rate": rate,
            "schedule": schedule,
            "prior_weight": weight,
            "spread": 1.0,
        }
        for (warm_up, schedule, rate, iterations), weight in TRIED[weights]
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


def start(key, noise, candidate: dict):
    """An untrained model in standard units."""
    net = ps.Network.mlp((1, HIDDEN, 1), key=key, spread=candidate["spread"])
    if candidate.get("certain"):
        first = net.layers[0].at_mean()
        nothing = jax.tree.map(
            lambda log_var: jnp.full_like(log_var, -40.0), (net.layers[0].weight_log_var, net.layers[0].bias_log_var)
        )
        net = eqx.tree_at(lambda n: n.layers[0], net, ps.Linear(first.weight, first.bias, *nothing))
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(1), jnp.eye(1)),
        transition=net,
        process_noise=jnp.array([candidate.get("process_var", 0.01)]),
        measurement_noise=noise[None],
    )


def learn(runs: dict[str, np.ndarray], candidate: dict) -> tuple[np.ndarray, np.ndarray]:
    """Mean and variance of the learned function on the grids, under a mixture of all restarts."""
    found = [learn_once(runs, candidate, seed) for seed in range(candidate.get("restarts", 1))]
    mean, var = (np.stack(part)[..., None] for part in zip(*found, strict=True))
    shape = mean.shape[1:-1]
    together = ps.mixture.matched(mean.reshape(len(mean), -1, 1), var.reshape(len(var), -1, 1, 1))
    return together[0].reshape(shape), together[1].reshape(shape)


def learn_once(runs: dict[str, np.ndarray], candidate: dict, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """One restart of all models, which train side by side."""
    center, scale = runs["y"].mean(1), runs["y"].std(1)
    y = jnp.asarray((runs["y"] - center[:, None]) / scale[:, None])[:, :, None]
    grid = jnp.asarray((runs["grid"] - center[:, None]) / scale[:, None])
    noise = jnp.asarray(runs["r"] / scale**2, y.dtype)
    keys = jr.split(jr.key(seed), len(y))
    models = [start(key, r, candidate) for key, r in zip(keys, noise, strict=True)]
    models = jax.tree.map(lambda *leaves: jnp.stack(leaves) if eqx.is_array(leaves[0]) else leaves[0], *models)
    names = ("iterations", "learning_rate", "schedule", "prior_weight")
    recipe = Recipe(**{name: candidate[name] for name in names})
    if candidate["warm_up"]:
        models = improve(models, y, Recipe())
    models = improve(models.with_kind(candidate["weights"]), y, recipe, candidate)

    @eqx.filter_jit
    def at_grid(models):
        def at(model, x):
            found = moments(model.transition, ps.Gaussian.certain(x[None]))
            return found.mean[0], found.cov[0, 0]

        return eqx.filter_vmap(lambda model, xs: jax.vmap(lambda x: at(model, x))(xs))(models, grid)

    mean, var = (np.asarray(part, float) for part in at_grid(models))
    return mean * scale[:, None] + center[:, None], var * scale[:, None] ** 2


def improve(models: ps.StateSpaceModel, y: jax.Array, recipe: Recipe, candidate: dict | None = None) -> ps.StateSpaceModel:
    """Models after training by a recipe, each on its own series."""
    spec, candidate = trainable(models, measurement_noise=False), candidate or {}
    if candidate.get("certain"):
        spec = eqx.tree_at(
            lambda m: (m.transition.layers[0].weight_log_var, m.transition.layers[0].bias_log_var), spec, (False, False)
        )
    learned, fixed = eqx.partition(models, spec)
    optimiser = recipe.optimiser()

    def loss(parameters, fixed, y):
        model = eqx.combine(parameters, fixed)
        foreseen = Objective().foreseen(Finder(model, {}, "moments"), Frames(y, None, jnp.ones(LENGTH, y.dtype)))[0].sum()
        return -(foreseen + recipe.prior_weight * log_hyper_prior(model.transition)) / (LENGTH - 1)

    def slower(path, update):
        return update * (candidate.get("variance_rate", 1.0) if "log_var" in jax.tree_util.keystr(path) else 1.0)

    def one(parameters, state, fixed, y):
        updates, state = optimiser.update(jax.grad(loss)(parameters, fixed, y), state, parameters)
        updates = jax.tree_util.tree_map_with_path(slower, updates)
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


def main() -> None:
    """Run what is missing, print the best."""
    parser = common.parser(__doc__ or "")
    parser.add_argument("--weights", choices=tuple(TRIED), default="local")
    parser.add_argument("--systems", type=int, help="16 with local weights, 8 with global ones")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--tries", action="store_true", help="other ideas, on the same systems")
    chosen = parser.parse_args()
    systems = chosen.systems or SYSTEMS[chosen.weights]
    runs = make_runs(2 if chosen.quick else systems, chosen.seed)
    tried = candidates(chosen.weights)
    if chosen.quick:
        common.say(score(runs, *learn(runs, tried[0] | {"iterations": 2})))
        return
    if chosen.tries:
        other = common.Table("recipe_tries", ["try", "systems", "seed"])
        for name, candidate in TRIES.items():
            if not other.has(**{"try": name, "systems": systems, "seed": chosen.seed}):
                begin = time.monotonic()
                label = {"try": name, "systems": systems, "seed": chosen.seed, **score(runs, *learn(runs, candidate))}
                other.add(label | {"seconds": round(time.monotonic() - begin, 1), "commit": common.commit()})
        return
    table = common.Table("recipe", [*tried[0], "systems", "seed"])
    for candidate in tried:
        label = candidate | {"systems": systems, "seed": chosen.seed}
        if not table.has(**label):
            begin = time.monotonic()
            found = score(runs, *learn(runs, candidate))
            table.add(label | found | {"seconds": round(time.monotonic() - begin, 1), "commit": common.commit()})
    mine = [row for row in table.rows if row["weights"] == chosen.weights]
    for row in sorted(mine, key=lambda row: float(row["score"]))[:8]:
        common.say(row)


if __name__ == "__main__":
    main()
