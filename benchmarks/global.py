"""What do global weights cost, and how large is the error of a bounded rank?

Filtering: six states, two hidden layers of thirty, fifty outputs, about 1,300 weights, 300 steps. One gradient of the filter's
likelihood with local weights, with global weights at several ranks of the covariance downdate, and with Monte Carlo over global
weights, one filter per draw. Time, memory, and the relative error of the log likelihood against a dense covariance, in double
precision.

Regression: one gradient of a minibatch of Boston's shape (13 inputs) with the defaults of `DeepStochasticRegressor` (32 rows,
40 hidden units, a variance network of 10, five steps, order 1) with local weights, with global weights, whose covariance is
diagonal there, and with particles; then against width and against the number of steps.
"""

from collections.abc import Callable
from typing import Any

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.data.scaling import Standardiser
from prodssm.data.series import Record
from prodssm.models.filtering import Recursion
from prodssm.models.regression import LayerStack, row_log_probs
from prodssm.models.state_space import DEFAULT_RANK
from prodssm.training.initialisation import regression_model, scale_output

STATES, HIDDEN, OUTPUTS, STEPS = 6, 30, 50, 300
RANKS = (4, 8, 16, 32, 64, 128)
DRAWS = (32, 128)
DENSE = 10**6  # at least the number of weights: a dense covariance
ROWS, INPUTS, WIDTH, DEPTH, ORDER = 32, 13, 40, 5, 1
MOST_FILTER, MOST_REGRESSION, MOST_BYTES, MOST_ERROR = 20.0, 10.0, 4 * 2**30, 0.01


def filter_model(weights: str, rank: int | None = None) -> ps.StateSpaceModel:
    """The model of the filtering benchmark."""
    keys = jr.split(jr.key(0), 2)
    transition = ps.Network.mlp((STATES, HIDDEN, HIDDEN, STATES), key=keys[0], log_var=-5.0)
    return ps.StateSpaceModel(
        initial=ps.Gaussian(jnp.zeros(STATES), jnp.eye(STATES)),
        transition=scale_output(transition, 0.3),
        emission=ps.Network.from_arrays([jr.normal(keys[1], (OUTPUTS, STATES)) / STATES**0.5], [jnp.zeros(OUTPUTS)]),
        process_noise=jnp.full(STATES, 0.01),
        measurement_noise=jnp.full(OUTPUTS, 0.1),
        weights=weights,
        rank=rank,
    )


def simulated(steps: int) -> Record:
    """A series simulated from the model itself with global weights."""
    _, y = ps.simulate(filter_model("global"), steps, key=jr.key(7))
    return ps.Series(y).record


def gradient(model: Any, loss: Callable[..., jax.Array], *arguments: Any) -> common.Compiled:
    """A loss and its gradient with respect to all parameters of a model."""
    learned, fixed = eqx.partition(model, eqx.is_inexact_array)
    return common.compiled(jax.value_and_grad(lambda p, *rest: loss(eqx.combine(p, fixed), *rest)), learned, *arguments)


def evidence(model: ps.StateSpaceModel, record: Record) -> jax.Array:
    """The filter's log likelihood of a series."""
    return Recursion(model, ps.Moments()).scan(record)[1][2].sum()


def drawn_evidence(draws: int) -> Callable[[ps.StateSpaceModel, Record], jax.Array]:
    """The same by Monte Carlo: the log of the mean likelihood over draws of the global weights."""

    def found(model: ps.StateSpaceModel, record: Record) -> jax.Array:
        def one(key):
            drawn = eqx.tree_at(lambda m: m.transition, model, model.transition.sample(key))
            return evidence(drawn.with_weight_mode("point"), record)

        return jax.nn.logsumexp(jax.vmap(one)(jr.split(jr.key(1), draws))) - jnp.log(float(draws))

    return found


def filtering(printer: common.Printer, *, quick: bool) -> list[dict[str, Any]]:
    """Time and memory of a gradient, and the error of a bounded rank."""
    steps, ranks = (30, (DEFAULT_RANK,)) if quick else (STEPS, RANKS)
    record = simulated(steps)
    draws = () if quick else DRAWS
    contenders = {"local": gradient(filter_model("local"), evidence, record)}
    contenders |= {f"rank {rank}": gradient(filter_model("global", rank), evidence, record) for rank in ranks}
    if not quick:
        contenders["dense"] = gradient(filter_model("global", DENSE), evidence, record)
    contenders |= {f"{count} draws": gradient(filter_model("global"), drawn_evidence(count), record) for count in draws}
    times = common.interleaved({name: found.run for name, found in contenders.items()})
    errors = {} if quick else evidence_errors(steps, ranks, draws)
    rows = []
    for name, found in contenders.items():
        row = {"part": "filter", "steps": steps, "weights": name, "ms": 1e3 * times[name], "mib": found.bytes / 2**20}
        row |= {"ratio": times[name] / times["local"], "compile_s": found.seconds}
        if name in errors:
            row["log_likelihood_error"] = errors[name]
        rows.append(row | ({"rank": int(name.split()[1])} if name.startswith("rank") else {}))
        printer.row(**rows[-1])
    return rows


def evidence_errors(steps: int, ranks: tuple[int, ...], draws: tuple[int, ...]) -> dict[str, float]:
    """Relative errors of the log likelihood against a dense covariance, in double precision."""
    with jax.enable_x64(True):
        record = simulated(steps)

        def found(rule, rank=None):
            return float(eqx.filter_jit(rule)(filter_model("global", rank), record))

        exact = found(evidence, DENSE)
        reached = {f"rank {rank}": found(evidence, rank) for rank in ranks}
        reached |= {f"{count} draws": found(drawn_evidence(count)) for count in draws}
        return {name: abs(value - exact) / abs(exact) for name, value in reached.items()}


def regression_loss(stack: LayerStack) -> Callable[..., jax.Array]:
    """The negative mean log density of a minibatch."""
    return lambda model, x, y: -row_log_probs(model, stack, x, y, key=jr.key(2)).mean()


def regression_case(weights: str, width: int, steps: int, method: ps.Method) -> common.Compiled:
    """The gradient of one minibatch."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, INPUTS)), rng.normal(size=(ROWS, 1))
    likelihood = ps.GaussianLikelihood(floor=1e-6).for_data(Standardiser.identity(1))
    model = regression_model((width,), (10,), "relu", weights, likelihood, x, y, key=jr.key(0))
    return gradient(model, regression_loss(LayerStack(steps, method)), jnp.asarray(x), jnp.asarray(y))


def regression(printer: common.Printer, *, quick: bool) -> list[dict[str, Any]]:
    """Time and memory of a gradient of a minibatch against width and steps, next to particles."""
    cases: dict[tuple[str, int, int], common.Compiled] = {}
    sizes = [(WIDTH, DEPTH)] if quick else [(WIDTH, DEPTH), (20, DEPTH), (80, DEPTH), (WIDTH, 2), (WIDTH, 10)]
    for width, steps in sizes:
        for weights in ("local", "global"):
            cases[weights, width, steps] = regression_case(weights, width, steps, ps.Moments(ORDER))
    for count in () if quick else DRAWS:
        cases[f"{count} particles", WIDTH, DEPTH] = regression_case("global", WIDTH, DEPTH, ps.Sampled(count))
    times = common.interleaved({str(case): found.run for case, found in cases.items()})
    rows = []
    for (weights, width, steps), found in cases.items():
        count = (INPUTS + 1) * width + (width + 1) * INPUTS
        row = {"part": "regression", "weights": weights, "width": width, "steps": steps, "weight_count": count}
        row |= {"ms": 1e3 * times[str((weights, width, steps))], "mib": found.bytes / 2**20, "compile_s": found.seconds}
        rows.append(row | {"ratio": row["ms"] / (1e3 * times[str(("local", width, steps))])})
        printer.row(**rows[-1])
    return rows


def claims(filtered: list[dict[str, Any]], regressed: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The promised bounds and what was measured."""
    default = next(row for row in filtered if row.get("rank") == DEFAULT_RANK)
    boston = next(row for row in regressed if (row["weights"], row["width"], row["steps"]) == ("global", WIDTH, DEPTH))
    promised = [
        common.verdict(f"a gradient of the filter, {default['weights']} / local", default["ratio"], most=MOST_FILTER),
        common.verdict(f"its memory in bytes, {default['weights']}", default["mib"] * 2**20, most=MOST_BYTES),
        common.verdict("a gradient of Boston's shape, global / local", boston["ratio"], most=MOST_REGRESSION),
    ]
    if "log_likelihood_error" in default:  # a quick run leaves it out
        error = default["log_likelihood_error"]
        promised.append(common.verdict(f"log likelihood, {default['weights']}: error", error, most=MOST_ERROR))
    return promised


def plot(filtered: list[dict[str, Any]], path: Any) -> None:
    """Cost and error against rank."""
    import matplotlib.pyplot as plt

    ranked = [row for row in filtered if "rank" in row]
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    axes[0].plot([row["rank"] for row in ranked], [row["ratio"] for row in ranked], "o-", label="bounded rank")
    for row in filtered:
        if row["weights"].endswith("draws"):
            axes[0].axhline(row["ratio"], linestyle=":", color="grey")
            axes[0].text(ranked[0]["rank"], row["ratio"], row["weights"], va="bottom")
    axes[0].axhline(MOST_FILTER, linestyle="--", color="black")
    axes[0].set(xscale="log", yscale="log", xlabel="rank", ylabel="gradient, times that of local weights")
    axes[1].plot([row["rank"] for row in ranked], [row.get("log_likelihood_error", np.nan) for row in ranked], "o-")
    axes[1].axhline(MOST_ERROR, linestyle="--", color="black")
    axes[1].set(xscale="log", yscale="log", xlabel="rank", ylabel="relative error of the log likelihood")
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, compare with the promised bounds, plot."""
    options = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(options)
    printer.row(benchmark="global", dtype="float32", **common.machine())
    filtered = filtering(printer, quick=options.quick)
    regressed = regression(printer, quick=options.quick)
    for row in claims(filtered, regressed):
        printer.row(**row)
    if options.plot:
        plot(filtered, options.plot)


if __name__ == "__main__":
    main()
