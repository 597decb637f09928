"""What does an iteration of training cost, next to the same algorithm in eager PyTorch?

One iteration is the type-II objective of the kink model (1-50-1, ReLU, local weights, closed-form moments at the default order)
on series of 120 observations, its gradient, clipping and Adam. The PyTorch version follows the same formulas, O(units * order)
per step, vectorised over units, orders and series, with as few operations as we could find, because each of them has an
overhead of microseconds. Before anything is timed, loss and gradient of both must agree in double precision.

Times are of float32. Ours is the compiled chunk of iterations that `prodssm.train` runs, per iteration, with its compilation
time reported beside it. Memory is what XLA allocates for a gradient: arguments, results and temporaries.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import kink
import numpy as np

import prodssm as ps
from prodssm.data.batching import SeriesBatch
from prodssm.methods.moments import DEFAULT_ORDER_SCALAR as ORDER
from prodssm.training.checkpoints import TrainingState
from prodssm.training.loop import CHUNK, Slices, _run_chunk
from prodssm.training.recipe import SERIES_RECIPE
from prodssm.training.series_task import SeriesTask, trainable

NOISE = 0.08
LENGTH = 120
RECIPE = ps.Recipe(iterations=CHUNK, learning_rate=5e-3, schedule="constant", clip=1.0, prior_weight=1.0).filled(SERIES_RECIPE)


def ours(weights: str, count: int, length: int = LENGTH) -> tuple[TrainingState, SeriesTask]:
    """The initial training state and the task, as in `prodssm.train`."""
    model = kink.model(ps.Network.mlp((1, kink.HIDDEN, 1), key=jr.key(0)), NOISE, weights=weights)
    data = SeriesBatch.stack([ps.Series(kink.trajectory(length, NOISE, seed)) for seed in range(count)])
    learned, fixed = eqx.partition(model, trainable(model))
    dtype = data.record.y.dtype
    task = SeriesTask(
        fixed=fixed,
        data=data,
        validation=None,
        prior_weight=np.asarray(RECIPE.prior_weight, dtype),
        method=ps.Moments(),
        recipe=RECIPE,
        pace=RECIPE.pace(dtype),
        full_batch=True,
    )
    worst, first = jnp.asarray(-jnp.inf, dtype), jnp.asarray(0, jnp.int32)
    return TrainingState(learned, task.optimiser().init(learned), learned, worst, first), task


def chunk(state: TrainingState, task: SeriesTask) -> tuple[Callable[[], Any], float]:
    """The iterations of a chunk as the library runs them, and their compilation time in seconds."""
    slices = Slices()
    slices.count = CHUNK
    run = partial(_run_chunk, state, task.compiled(), jr.key(0), CHUNK, CHUNK, slices)
    begin = time.perf_counter()
    run()
    return run, time.perf_counter() - begin


def gradient(learned: Any, task: SeriesTask) -> Any:
    """Loss and gradient of one iteration."""
    return jax.value_and_grad(lambda p: -task.objective(p, jr.key(0)))(learned)


def named(model: Any) -> dict[str, np.ndarray]:
    """The learned parameters of a model by name, or their gradients."""
    found = {"start": model.initial_mean, "root": model.initial_chol[0]}
    found |= {"log_process": model.log_process_noise, "log_noise": model.likelihood.log_variance}
    for l, layer in enumerate(model.transition.linears):
        found |= {f"weight_{l}": layer.weight.ravel(), f"bias_{l}": layer.bias}
        found |= {f"weight_log_var_{l}": layer.weight_log_var.ravel(), f"bias_log_var_{l}": layer.bias_log_var}
    return {name: np.array(value) for name, value in found.items()}


# The same algorithm in PyTorch


class Eager:
    """Training of the same model in eager PyTorch, all series at once."""

    def __init__(self, state: TrainingState, task: SeriesTask):
        """Copy parameters and data."""
        import torch

        self.torch = torch
        self.parameters = {n: torch.from_numpy(value).requires_grad_() for n, value in named(state.learned).items()}
        self.y = torch.from_numpy(np.array(task.data.record.y[: int(task.data.count), : task.data.longest, 0])).T.contiguous()
        self.observed = float(task.data.observed)
        self.adam = torch.optim.Adam(self.parameters.values(), lr=RECIPE.learning_rate, fused=True)
        kind = self.y.dtype
        # Row k - 2 is the polynomial (-1)^k He_{k-2} / sqrt(k!): one matrix product gives all coefficients of all units.
        rows = [np.polynomial.hermite_e.herme2poly([0] * (k - 2) + [1]) for k in range(2, ORDER + 1)]
        table = [
            np.pad((-1) ** k * row / math.sqrt(math.factorial(k)), (0, ORDER - 1 - len(row))) for k, row in enumerate(rows, 2)
        ]
        self.table = torch.tensor(np.array(table).T, dtype=kind)
        self.degrees, self.orders = torch.arange(ORDER - 1, dtype=kind), torch.arange(2, ORDER + 1, dtype=kind)

    def constants(self) -> dict[str, Any]:
        """Functions of the parameters that all time steps share."""
        p = self.parameters
        found = p | {n.replace("log_var", "var"): value.exp() for n, value in p.items() if "log_var" in n}
        found |= {"process": p["log_process"].exp(), "noise": p["log_noise"].exp()}
        return found | {"square_0": p["weight_0"] ** 2, "square_1": p["weight_1"] ** 2}

    def move(self, c: dict[str, Any], mean: Any, var: Any) -> tuple[Any, Any]:
        """Moments of the next state, (series,) to (series,): moment matching for a scalar state (MATH 4)."""
        torch = self.torch
        column, spread = mean[:, None], var[:, None]
        center = torch.addcmul(c["bias_0"], column, c["weight_0"])
        own = torch.addcmul(c["bias_var_0"], column**2 + spread, c["weight_var_0"])
        total = torch.addcmul(own, spread, c["square_0"])
        std = total.sqrt()
        ratio = center / std
        below = -ratio.abs()
        outside = 0.5 * torch.erfc(below * -(0.5**0.5))
        cdf = torch.where(ratio > 0, 1 - outside, outside)
        pdf = torch.exp(-0.5 * ratio**2) * (1 / math.sqrt(2 * math.pi))
        bend = std * pdf
        curved = bend[..., None] * (ratio[..., None] ** self.degrees @ self.table)
        short = c["weight_0"] * spread.sqrt() / std
        bent = curved * short[..., None] ** self.orders
        hinge = torch.addcmul(pdf, below, outside)
        beyond = total * ((1 + below**2) * outside + below * pdf - hinge**2 - outside**2)
        unit = center * cdf + bend
        square = cdf**2
        rest = torch.clamp(beyond - (bent**2).sum(-1), min=0)
        slope = (cdf * c["weight_0"]) @ c["weight_1"]
        shared = torch.einsum("bhk,h->bk", bent, c["weight_1"])
        fresh = (square * own + rest) @ c["square_1"] + (square * total + beyond + unit**2) @ c["weight_var_1"]
        following = slope**2 * var + (shared**2).sum(-1) + fresh + (c["bias_var_1"] + c["process"])
        return unit @ c["weight_1"] + c["bias_1"], following

    def loss(self) -> Any:
        """The negative objective per observed value."""
        torch, c, p = self.torch, self.constants(), self.parameters
        mean, var = (value.expand(self.y.shape[1]) for value in (p["start"], p["root"] ** 2))
        gaps, spreads = [], []
        for t, y in enumerate(self.y):
            spread, gap = var + c["noise"], y - mean
            gaps.append(gap)
            spreads.append(spread)
            if t + 1 < len(self.y):
                gain = var / spread
                kept = (1 - gain) ** 2 * var + gain**2 * c["noise"]
                mean, var = self.move(c, mean + gain * gap, kept)
        gaps, spreads = torch.stack(gaps[1:]), torch.stack(spreads[1:])
        evidence = -0.5 * (torch.log(2 * math.pi * spreads) + gaps**2 / spreads).sum()
        prior = sum(
            0.5 * (p[f"{n}_log_var_{l}"] - p[f"{n}_{l}"] ** 2 - c[f"{n}_var_{l}"]).sum()
            for n in ("weight", "bias")
            for l in (0, 1)
        )
        return -(evidence + RECIPE.prior_weight * prior) / self.observed

    def gradient(self) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradient by name."""
        loss = self.loss()
        grads = self.torch.autograd.grad(loss, list(self.parameters.values()))
        return loss.item(), dict(zip(self.parameters, (grad.numpy() for grad in grads), strict=True))

    def iterate(self) -> None:
        """One iteration of training."""
        self.adam.zero_grad()
        self.loss().backward()
        self.torch.nn.utils.clip_grad_norm_(self.parameters.values(), RECIPE.clip)
        self.adam.step()


# Measuring


def require_agreement(printer: common.Printer) -> None:
    """Both implementations must have the same loss and gradient."""
    state, task = ours("local", 3)
    value, grads = jax.jit(gradient)(state.learned, task)
    loss, mirrored = Eager(state, task).gradient()
    off = {"loss": abs(loss - float(value)) / abs(float(value))}
    for name, wanted in named(grads).items():
        off[name] = float(np.linalg.norm(mirrored[name] - wanted) / np.linalg.norm(wanted))
    worst = max(off, key=lambda name: off[name])
    printer.row(table="agreement", parts=len(off), largest_relative_difference=off[worst], where=worst)
    if not off[worst] < 1e-4:
        raise SystemExit(f"PyTorch's {worst} differs by {off[worst]:.3g} from ours: the comparison would be unfair")


def times(printer: common.Printer, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds per iteration of both, and the verdicts."""
    seconds = 0.5 if quick else 3.0
    promised = {"local weights, 1 series": 50.0, "local weights, 10 series": 15.0}
    problems = {"local weights, 1 series": ("local", 1), "local weights, 10 series": ("local", 10)}
    problems |= {} if quick else {"global weights, 1 series": ("global", 1)}
    built = {label: ours(*problem) for label, problem in problems.items()}
    chunks = {label: chunk(*parts) for label, parts in built.items()}
    found = common.interleaved({label: call for label, (call, _) in chunks.items()}, seconds=seconds)
    rows = [{"name": "prodssm", "problem": label, "ms_per_iteration": 1e3 * found[label] / CHUNK} for label in found]
    for row in rows:
        row["compile_seconds"] = chunks[row["problem"]][1]
    # PyTorch's threads keep spinning after a call and would slow down the next contender: it is timed apart.
    slow = common.interleaved({label: Eager(*built[label]).iterate for label in promised}, seconds=seconds)
    rows += [{"name": "PyTorch", "problem": label, "ms_per_iteration": 1e3 * slow[label]} for label in slow]
    for row in rows:
        printer.row(table="times", T=LENGTH, **row)
    for label, least in promised.items():
        ratio = slow[label] / (found[label] / CHUNK)
        printer.row(T=LENGTH, **common.verdict(f"PyTorch / prodssm, {label}", ratio, least=least))
    return rows


def memory(printer: common.Printer, quick: bool) -> list[dict[str, Any]]:
    """Peak memory of a gradient against the length of the series."""
    rows = []
    for weights in ("local",) if quick else ("local", "global"):
        for length in (1000,) if quick else (120, 1000, 10_000):
            state, task = ours(weights, 1, length)
            built = common.compiled(gradient, state.learned, task)
            rows.append({"weights": weights, "T": length, "MiB": built.bytes / 2**20, "compile_seconds": built.seconds})
            rows[-1]["bytes_per_step"] = built.bytes / length
            printer.row(table="memory", **rows[-1])
    return rows


def plot(rows: list[dict[str, Any]], sizes: list[dict[str, Any]], path: Any) -> None:
    """Times as bars, memory against length."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    labels = [f"{row['name']}\n{row['problem']}" for row in rows]
    left.barh(labels[::-1], [row["ms_per_iteration"] for row in rows][::-1])
    left.set(xscale="log", xlabel="milliseconds per iteration")
    for weights in dict.fromkeys(row["weights"] for row in sizes):
        points = [(row["T"], row["MiB"]) for row in sizes if row["weights"] == weights]
        right.loglog(*zip(*points, strict=True), marker="o", label=weights)
    right.set(xlabel="time steps", ylabel="MiB of a gradient")
    right.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Agree, measure, plot."""
    options = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(options)
    printer.row(benchmark="train", order=ORDER, dtype="float32", noise=NOISE, iterations_per_call=CHUNK, **common.machine())
    jax.config.update("jax_enable_x64", True)
    require_agreement(printer)
    jax.config.update("jax_enable_x64", False)
    rows = times(printer, options.quick)
    sizes = memory(printer, options.quick)
    if options.plot:
        plot(rows, sizes, options.plot)
        printer.text(f"figure: {options.plot}")


if __name__ == "__main__":
    main()
