"""What does one step cost? The runtime figure of the paper, both panels, with time and memory.

One call maps the moments of the state to the moments of the next observation: transition network, process noise, emission
network, each with one hidden layer, and D = state = observation = hidden width. The transition has uncertain weights, the
emission point weights. Compilation is not timed, and all contenders of one D are interleaved. Below D = 128 a call does 16
steps, as a filter does many, and a sixteenth of its time is printed: the dispatch overhead of a JAX call exceeds such a step
and depends on the machine (`--single` includes it). PyTorch is called step by step, as it is used.

There are three variants of Monte Carlo. `weights` samples S particles from the moments and weights for each of them; `fixed` is
given the sampled weights; `outputs` samples the layers' outputs instead (local reparametrisation), which has the same
distribution, is given the particles of the last step as well, and is the cheapest Monte Carlo there is.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import common
import jax
import jax.numpy as jnp
import jax.random as jr

import prodssm as ps
from prodssm.methods.moments import DEFAULT_ORDER

PROCESS_VAR = 0.01
SIZES = (8, 16, 32, 64, 128, 256, 512)
LARGEST_BYTES = 3 * 2**30
STEPS = 16  # per call, where a step takes less time than the dispatch of a call
LITTLE = 1e-6  # factor on the moments that make a step depend on the one before


def problem(size: int) -> tuple[ps.Network, ps.Network, ps.Gaussian]:
    """Random networks and a belief of this size."""
    keys = jr.split(jr.key(size), 3)
    shape = (size, size, size)
    transition = ps.Network.mlp(shape, key=keys[0], log_var=math.log(0.1 / size))
    emission = ps.Network.mlp(shape, uncertain=False, key=keys[1])
    factor = jr.normal(keys[2], (size, size)) / math.sqrt(size)
    return transition, emission, ps.Gaussian(jnp.full(size, 0.1), factor @ factor.T * 0.5 + 0.1 * jnp.eye(size))


def deterministic(transition: ps.Network, emission: ps.Network, belief: Any, *, order: int = DEFAULT_ORDER) -> Any:
    """Moments of the next observation; for global weights the predicted joint belief as well."""
    method = ps.Moments(order)
    _, predicted = method.propagate(transition, belief)
    following = predicted.plus(jnp.full(belief.mean.shape, PROCESS_VAR))
    _, y = method.propagate(emission, following.state)
    return (y.mean, y.cov) if isinstance(belief, ps.Gaussian) else (y.mean, y.cov, following.state, following.cross)


def correlated(belief: ps.Gaussian, weights: Any) -> ps.JointGaussian:
    """A joint belief with a nonzero cross-covariance of state and weights, as after a first step."""
    cross = 0.05 * weights.times(jr.normal(jr.key(5), (belief.mean.size, weights.mean.size)))
    return ps.JointGaussian(belief, cross, weights)


# Monte Carlo in JAX


def relu_net(matrices: list[tuple[jax.Array, jax.Array]], x: jax.Array) -> jax.Array:
    """Particles through one network, or each through a network of its own."""
    each = matrices[0][0].ndim == 3
    for l, (weight, bias) in enumerate(matrices):
        x = jnp.einsum("soi,si->so", weight, x) + bias if each else x @ weight.T + bias[None, :]
        x = jax.nn.relu(x) if l == 0 else x
    return x


def draw_weights(transition: ps.Network, count: int, key: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
    """Sampled weights for every particle."""
    drawn = jax.vmap(transition.sample)(jr.split(key, count))
    return [(layer.weight, layer.bias) for layer in drawn.linears]


def outputs(transition: ps.Network, x: jax.Array, key: jax.Array) -> jax.Array:
    """Particles through layers whose outputs are sampled given their inputs (local reparametrisation)."""
    for l, layer in enumerate(transition.linears):
        var = x**2 @ jnp.exp(layer.weight_log_var).T + jnp.exp(layer.bias_log_var)[None, :]
        x = x @ layer.weight.T + layer.bias[None, :] + jnp.sqrt(var) * jr.normal(jr.fold_in(key, l), var.shape)
        x = jax.nn.relu(x) if l == 0 else x
    return x


def monte_carlo(transition, emission, start, key, drawn=None, *, how: str, samples: int) -> tuple[jax.Array, jax.Array]:
    """Moments of the next observation from particles, which are given or sampled from a belief."""
    keys = jr.split(key, 3)
    if how == "outputs":
        x = outputs(transition, start, keys[0])
    else:
        x = start.sample(key=keys[2], shape=(samples,))
        x = relu_net(draw_weights(transition, samples, keys[0]) if how == "weights" else drawn, x)
    x = x + math.sqrt(PROCESS_VAR) * jr.normal(keys[1], x.shape)
    y = relu_net([(layer.weight, layer.bias) for layer in emission.linears], x)
    centred = y - y.mean(axis=0)[None, :]
    return y.mean(axis=0), centred.T @ centred / len(y)


# Monte Carlo in PyTorch


def torch_monte_carlo(
    transition: ps.Network, emission: ps.Network, belief: ps.Gaussian, particles: jax.Array, how: str
) -> Callable[[], Any]:
    """The same in eager PyTorch on the CPU."""
    import numpy as np
    import torch

    def tensor(array):
        return torch.from_numpy(np.array(array))

    variances = [(jnp.exp(l.weight_log_var), jnp.exp(l.bias_log_var)) for l in transition.linears]
    trans = [
        (*map(tensor, (l.weight, l.bias)), *map(tensor, var)) for l, var in zip(transition.linears, variances, strict=True)
    ]
    emit = [(tensor(l.weight), tensor(l.bias)) for l in emission.linears]
    start, mean, cov = tensor(particles), tensor(belief.mean), tensor(belief.cov)
    count = len(start)

    def draw():
        return [
            (w + torch.randn(count, *w.shape) * v.sqrt(), b + torch.randn(count, *b.shape) * c.sqrt()) for w, b, v, c in trans
        ]

    drawn = draw() if how == "fixed" else None

    @torch.no_grad()
    def run():
        x = start
        if how == "outputs":
            for l, (w, b, v, c) in enumerate(trans):
                centre, var = torch.addmm(b, x, w.T), torch.addmm(c, x * x, v.T)
                x = torch.addcmul(centre, var.sqrt(), torch.randn(count, len(b)))
                x = x.relu() if l == 0 else x
        else:
            x = torch.addmm(mean, torch.randn(count, len(mean)), torch.linalg.cholesky(cov).T)
            for l, (w, b) in enumerate(draw() if how == "weights" else drawn):
                x = torch.bmm(w, x[:, :, None])[:, :, 0] + b
                x = x.relu() if l == 0 else x
        x = x + math.sqrt(PROCESS_VAR) * torch.randn_like(x)
        (w1, b1), (w2, b2) = emit
        y = torch.addmm(b2, torch.addmm(b1, x, w1.T).relu(), w2.T)
        centred = y - y.mean(0)
        return y.mean(0), centred.T @ centred / count

    return run


def matrix_chain(matrix: jax.Array, *, count: int) -> jax.Array:
    """A chain of matrix products: a lower bound on the time for the same FLOPs."""
    for _ in range(count):
        matrix = matrix @ matrix
    return matrix


def nudged(start: Any, found: Any) -> Any:
    """The start of the next step of a call: a data dependency on the last step, with almost the same values."""
    mean, cov = LITTLE * found[0], LITTLE * found[1]
    if isinstance(start, ps.JointGaussian):
        return ps.JointGaussian(nudged(start.state, found), start.cross, start.weights)
    return ps.Gaussian(start.mean + mean, start.cov + cov) if isinstance(start, ps.Gaussian) else start + mean[None, :]


def ready(
    function: Callable, networks: tuple[ps.Network, ...], start: Any, *more: Any, steps: int
) -> tuple[Callable[[], Any], int]:
    """A compiled function of plain arrays that does a number of steps, and its peak memory in bytes.

    The networks are constants of the compiled function, as in any loop over time, so that no contender is timed flattening
    Python objects or exponentiating its log variances.
    """
    leaves, tree = jax.tree.flatten((start, more))

    def call(*flat: Any) -> Any:
        start, more = jax.tree.unflatten(tree, flat)
        found = function(*networks, start, *more)
        return jax.lax.fori_loop(1, steps, lambda n, found: function(*networks, *after(n, start, found, more)), found)

    def after(n: jax.Array, start: Any, found: Any, more: Any) -> Any:
        if not networks:
            return (found,)
        return nudged(start, found), *(jr.fold_in(each, n) if _is_key(each) else each for each in more)

    compiled = jax.jit(call)
    found = compiled.lower(*leaves).compile().memory_analysis()
    constants = sum(leaf.nbytes for leaf in jax.tree.leaves(networks) if hasattr(leaf, "nbytes"))
    peak = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes + constants
    return lambda: compiled(*leaves), peak


def _is_key(value: Any) -> bool:
    return isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)


def contenders(size: int, steps: int, *, with_torch: bool, quick: bool) -> dict[str, tuple[Callable[[], Any], int | None]]:
    """All contenders of one size, each with its peak memory in bytes."""
    transition, emission, belief = problem(size)
    networks, made = (transition, emission), partial(ready, steps=steps)
    found: dict[str, tuple[Callable[[], Any], int | None]] = {}
    found["limit"] = made(partial(matrix_chain, count=8), (), jnp.eye(size) * 0.9 + 0.1 / size)
    for order in [DEFAULT_ORDER] if quick else sorted({1, 2, DEFAULT_ORDER}):
        name = "local" if order == DEFAULT_ORDER else f"local, order {order}"
        found[name] = made(partial(deterministic, order=order), networks, belief)
    if size <= 256:
        joint = correlated(belief, transition.weights)
        found["global"] = made(deterministic, networks, joint)
    if size <= 32 and not quick:
        weights = transition.weights
        dense = ps.DenseWeights(weights.mean, covariance=weights.cov(), shapes=weights.shapes)
        found["global, dense"] = made(deterministic, networks, correlated(belief, dense))
    for samples in [size] if quick else sorted({size, 128, 1024}):
        particles = belief.sample(key=jr.key(1), shape=(samples,))
        label = "D" if samples == size else str(samples)
        for how in ("outputs", "fixed", "weights"):
            # The weights of all particles, and as much again while they are sampled.
            if how != "outputs" and 4 * samples * 2 * size**2 * 2 > LARGEST_BYTES:
                continue
            drawn = draw_weights(transition, samples, jr.key(2)) if how == "fixed" else None
            step = partial(monte_carlo, how=how, samples=samples)
            begin = particles if how == "outputs" else belief
            found[f"jax {how}, S={label}"] = made(step, networks, begin, jr.key(3), drawn)
            if with_torch:
                found[f"torch {how}, S={label}"] = torch_monte_carlo(transition, emission, belief, particles, how), None
    return found


def claims(size: int, times: dict[str, float]) -> list[dict[str, Any]]:
    """Ratios of times, each with its promised bounds."""

    def best(how: str, library: str = "") -> float:
        return min(t for name, t in times.items() if name.endswith(f"{how}, S=D") and name.startswith(library))

    least = 100.0 if size >= 128 else 10.0 if size >= 32 else 3.0 if size >= 16 else None
    rows: list[dict[str, Any]] = []

    def add(claim: str, ratio: float, **bounds: float | None) -> None:
        rows.append({"claim": claim, "ratio": ratio} | bounds)

    # At 512 the weights of S = D particles exceed the memory limit.
    if "jax weights, S=D" in times:
        add("JAX Monte Carlo S=D with weight sampling / local", best("weights", "jax") / times["local"], least=least)
        if "torch weights, S=D" in times:
            add("PyTorch Monte Carlo S=D with weight sampling / local", best("weights", "torch") / times["local"], least=least)
        add("any Monte Carlo S=D without weight sampling / local", best("fixed") / times["local"], least=1.0)
    add("local / cheapest Monte Carlo S=D", times["local"] / best("outputs"), most=1.3)
    add("local / matrix products", times["local"] / times["limit"], most=1.5 if size >= 128 else None)
    for row in rows:
        kept = row.get("least") is None or row["ratio"] >= row["least"]
        row["holds"] = kept and (row.get("most") is None or row["ratio"] <= row["most"])
    return rows


def plot(rows: list[dict[str, Any]], path: Any) -> None:
    """Both panels of the paper's figure, with and without weight sampling, and peak memory."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(15, 4.5), layout="constrained")
    panels = [(axes[0], "weights", "weight sampling counted"), (axes[1], "fixed", "weight sampling left out")]
    for axis, how, title in panels:
        rivals = [f"{lib} {how}, S={s}" for lib in ("jax", "torch") for s in ("D", 128, 1024)]
        shown = ["limit", "local", "global", "global, dense", *rivals]
        for name in [*shown, "jax outputs, S=D"]:
            points = [(row["D"], row["seconds"]) for row in rows if row["name"] == name]
            if points:
                style = {"linewidth": 2.5} if name in ("local", "global") else {"linestyle": "--", "alpha": 0.7}
                axis.loglog(*zip(*points, strict=True), marker=".", label=name, **style)
        axis.set(title=title, xlabel="D = state = observation = hidden width", ylabel="seconds per call")
        axis.legend(fontsize=7)
    for name in ("local", "global", "global, dense", "jax weights, S=D", "jax outputs, S=D"):
        points = [(row["D"], row["bytes"] / 2**20) for row in rows if row["name"] == name and row["bytes"]]
        axes[2].loglog(*zip(*points, strict=True), marker=".", label=name)
    axes[2].set(title="peak memory", xlabel="D", ylabel="MiB")
    axes[2].legend(fontsize=7)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, plot."""
    options = common.parser(__doc__ or "")
    options.add_argument("--no-torch", action="store_true", help="leave PyTorch out")
    options.add_argument("--single", action="store_true", help="one step per call at every D")
    options.add_argument("--sizes", type=int, nargs="+", help="values of D")
    chosen = options.parse_args()
    printer = common.Printer(chosen)
    sizes = chosen.sizes or ((8, 32, 128) if chosen.quick else SIZES)
    printer.row(benchmark="one_step", order=DEFAULT_ORDER, dtype="float32", **common.machine())
    rows: list[dict[str, Any]] = []
    for size in sizes:
        steps = STEPS if size < 128 and not chosen.single else 1
        found = contenders(size, steps, with_torch=not chosen.no_torch, quick=chosen.quick)
        # PyTorch's threads keep spinning after a call and would slow down the next contender: JAX and PyTorch are timed apart.
        times: dict[str, float] = {}
        for ours in (True, False):
            group = {name: run for name, (run, _) in found.items() if name.startswith("torch") != ours}
            measured = common.interleaved(group, seconds=0.2 if chosen.quick else 0.5) if group else {}
            times |= {name: seconds / (steps if ours else 1) for name, seconds in measured.items()}
        for name, seconds in times.items():
            rows.append({"D": size, "name": name, "seconds": seconds, "bytes": found[name][1]})
            printer.row(**rows[-1])
        for claim in claims(size, times):
            printer.row(D=size, **claim)
    for name in ("local", "global"):
        grown = [row for row in rows if row["name"] == name and row["D"] >= 32]
        if len(grown) > 1:
            printer.row(
                growth=name,
                time_exponent=common.exponent([r["D"] for r in grown], [r["seconds"] for r in grown]),
                memory_exponent=common.exponent([r["D"] for r in grown], [r["bytes"] for r in grown]),
                largest_D=grown[-1]["D"],
                peak_GiB=grown[-1]["bytes"] / 2**30,
            )
    if chosen.plot:
        plot(rows, chosen.plot)
        printer.text(f"figure: {chosen.plot}")


if __name__ == "__main__":
    main()
