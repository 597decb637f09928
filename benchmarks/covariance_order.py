"""At which order should the covariance of activations be truncated? Error and cost, next to the ReLU integral and to DVI.

Three tables: the covariance of two ReLUs on a grid of means and correlations; the output covariance of random networks; the
cost of the covariance of a hidden layer and of its gradient. The default order was chosen from these.
"""

import math
from typing import Any

import common
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps
from prodssm.methods.moments import DEFAULT_ORDER

CORRELATIONS = (0.3, 0.6, 0.9, 0.99, 0.999)
ORDERS = (1, 2, 3, 4, 6, 8, 12)


def series(mean: jax.Array, cov: jax.Array, order: int) -> jax.Array:
    """ReLU covariance by the truncated series of the library."""
    return ps.Moments(order).propagate(ps.Network((ps.ACTIVATIONS["relu"],)), ps.Gaussian(mean, cov))[1].cov


def standardised(mean: jax.Array, cov: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Standard deviations, standardised means, and correlations clipped below one, where both formulas below are singular."""
    std = jnp.sqrt(jnp.diag(cov))
    limit = 1 - (1e-9 if cov.dtype == jnp.float64 else 1e-6)
    return std, mean / std, jnp.clip(cov / jnp.outer(std, std), -limit, limit)


def integral(mean: jax.Array, cov: jax.Array, nodes: int) -> jax.Array:
    """ReLU covariance by Price's theorem and Gauss-Legendre quadrature, with the exact variance on the diagonal."""
    std, ratio, rho = standardised(mean, cov)
    cdf = jax.scipy.special.ndtr(ratio)
    points, weights = (jnp.asarray(part, cov.dtype) for part in np.polynomial.legendre.leggauss(nodes))
    width = jnp.arcsin(rho)
    squares, products = ratio[:, None] ** 2 + ratio[None, :] ** 2, jnp.outer(ratio, ratio)

    def add(total, node):
        sine = jnp.sin(width * (node[0] + 1) / 2)
        height = jnp.exp(-(squares - 2 * products * sine) / (2 * (1 - sine**2)))
        return total + node[1] * (rho - sine) * height, None

    total = jax.lax.scan(add, jnp.zeros_like(rho), (points, weights), unroll=min(nodes, 16))[0]
    off = jnp.outer(std, std) * (rho * jnp.outer(cdf, cdf) + total * width / (4 * math.pi))
    var = jnp.diag(series(mean, cov, 1))
    return jnp.where(jnp.eye(len(mean), dtype=bool), jnp.diag(var), off)


def dvi(mean: jax.Array, cov: jax.Array) -> jax.Array:
    """ReLU covariance by the asymptotic formula of Wu et al. (2019)."""
    std, ratio, rho = standardised(mean, cov)
    rho = jnp.where(jnp.abs(rho) < 1e-4, 1e-4, rho)
    cdf = jax.scipy.special.ndtr(ratio)
    q = 1 + jnp.sqrt(1 - rho**2)
    a = jnp.arcsin(rho) - rho / q
    b, c = jnp.abs(a) * q / jnp.abs(rho), (jnp.arcsin(rho) - rho) / (jnp.abs(a) * jnp.abs(rho))
    squares = ratio[:, None] ** 2 + ratio[None, :] ** 2
    tail = a / (2 * math.pi) * jnp.exp(-squares / (2 * b) + c * jnp.outer(ratio, ratio))
    off = jnp.outer(std, std) * rho * (jnp.outer(cdf, cdf) + tail)
    var = jnp.diag(series(mean, cov, 1))
    return jnp.where(jnp.eye(len(mean), dtype=bool), jnp.diag(var), off)


def rules() -> dict[str, Any]:
    """All rules for the covariance of ReLUs."""
    found: dict[str, Any] = {f"order {k}": lambda m, s, k=k: series(m, s, k) for k in ORDERS}
    return found | {"DVI": dvi} | {f"integral {n}": lambda m, s, n=n: integral(m, s, n) for n in (8, 16)}


def on_the_grid(printer: common.Printer) -> dict[str, dict[str, float]]:
    """Absolute error for two units of variance one; per correlation the larger one of both signs."""
    axis = jnp.linspace(-2.5, 2.5, 41)
    means = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    signed = jnp.array([sign * rho for rho in CORRELATIONS for sign in (1, -1)])

    def table(rule):
        def pair(mean, rho):
            return rule(mean, jnp.array([[1.0, 0.0], [0.0, 1.0]]) + rho * jnp.array([[0.0, 1.0], [1.0, 0.0]]))[0, 1]

        return np.asarray(jax.jit(jax.vmap(jax.vmap(pair, (0, None)), (None, 0)))(means, signed))

    truth = table(lambda m, s: integral(m, s, 400))
    found: dict[str, dict[str, float]] = {}
    for name, rule in rules().items():
        errors = np.abs(table(rule) - truth).reshape(len(CORRELATIONS), -1)
        found[name] = {"max": float(errors.max()), "mean": float(errors.mean())}
        found[name] |= {str(rho): float(error.max()) for rho, error in zip(CORRELATIONS, errors, strict=True)}
        printer.row(table="grid", rule=name, **found[name])
    return found


def hidden_moments(net: ps.Network, x: ps.Gaussian) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean and covariance of the pre-activations, and the second weight matrix: the same for every rule."""
    _, first = ps.Moments().propagate(ps.Network(net.layers[:1]), x)
    return first.mean, first.cov, net.linears[1].weight


def in_networks(printer: common.Printer, nets: int) -> None:
    """Relative error of the output covariance of random networks due to the hidden covariance of each rule."""
    for sizes in ((1, 50), (2, 30), (13, 40))[: 1 if nets < 5 else 3]:
        for weights, log_var in (("point", None), ("local", math.log(0.05))):
            errors: dict[str, list[float]] = {name: [] for name in rules()}
            exact = jax.jit(lambda m, s, w: w @ integral(m, s, 64) @ w.T)
            runs = {name: jax.jit(lambda m, s, w, rule=rule: w @ rule(m, s) @ w.T) for name, rule in rules().items()}
            for seed in range(nets):
                keys = jr.split(jr.key(seed), 2)
                shape = (sizes[0], sizes[1], sizes[0])
                net = ps.Network.mlp(shape, uncertain=log_var is not None, key=keys[0], log_var=log_var or 0.0)
                root = jr.normal(keys[1], (sizes[0], sizes[0])) / math.sqrt(sizes[0])
                state = ps.Gaussian(jnp.zeros(sizes[0]), root @ root.T + 0.1 * jnp.eye(sizes[0]))
                parts = hidden_moments(net, state)
                truth = exact(*parts)
                for name, run in runs.items():
                    errors[name].append(float(jnp.linalg.norm(run(*parts) - truth) / jnp.linalg.norm(truth)))
            for name, found in errors.items():
                label = f"{sizes[0]}-{sizes[1]}-{sizes[0]}"
                average = float(np.mean(found))
                printer.row(table="networks", net=label, weights=weights, rule=name, mean=average, worst=max(found))


def costs(printer: common.Printer, seconds: float) -> dict[str, float]:
    """Milliseconds for a batch of 16 hidden layers of 50 units, forward and with gradient, in float32."""
    keys = jr.split(jr.key(0), 16)
    roots = jax.vmap(lambda key: jr.normal(key, (50, 13), jnp.float32))(keys) / 4
    covs = jax.vmap(lambda root: root @ root.T + 0.1 * jnp.eye(50, dtype=jnp.float32))(roots)
    means = jax.vmap(lambda key: jr.normal(key, (50,), jnp.float32))(keys)
    runs = {}
    for name, rule in rules().items():
        forward = jax.jit(jax.vmap(rule))
        backward = jax.jit(jax.grad(lambda m, s, rule=rule: (jax.vmap(rule)(m, s) ** 2).sum(), argnums=(0, 1)))
        runs[f"{name} forward"] = lambda run=forward: run(means, covs)
        runs[f"{name} gradient"] = lambda run=backward: run(means, covs)
    times = common.interleaved(runs, seconds=seconds)
    base = times["order 1 forward"]
    for name in rules():
        forward, backward = times[f"{name} forward"], times[f"{name} gradient"]
        absolute = {"forward_ms": forward * 1e3, "gradient_ms": backward * 1e3}
        printer.row(table="cost", rule=name, **absolute, forward_to_order_1=forward / base, gradient_to_order_1=backward / base)
    return times


def plot(errors: dict[str, dict[str, float]], times: dict[str, float], path: Any) -> None:
    """Error against cost."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 4.5), layout="constrained")
    for name, error in errors.items():
        cost = times[f"{name} gradient"] * 1e3
        axis.loglog(cost, error["mean"], "o" if name.startswith("order") else "s")
        axis.annotate(name, (cost, error["mean"]), textcoords="offset points", xytext=(5, 4), fontsize=8)
    axis.set(xlabel="milliseconds with gradient (16 layers of 50 units)", ylabel="mean absolute error on the grid")
    axis.set_title("covariance of ReLUs: error against cost")
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure, print, plot."""
    jax.config.update("jax_enable_x64", True)
    chosen = common.parser(__doc__ or "").parse_args()
    printer = common.Printer(chosen)
    printer.row(benchmark="covariance_order", default_order=DEFAULT_ORDER, **common.machine())
    errors = on_the_grid(printer)
    in_networks(printer, nets=3 if chosen.quick else 25)
    times = costs(printer, seconds=0.1 if chosen.quick else 0.5)
    default = f"order {DEFAULT_ORDER}"
    printer.row(
        claim="default order closer than DVI in every column, cheaper than the integral",
        holds=all(errors[default][column] < errors["DVI"][column] for column in errors["DVI"])
        and times[f"{default} gradient"] < times["integral 8 gradient"],
    )
    if chosen.plot:
        plot(errors, times, chosen.plot)
        printer.text(f"figure: {chosen.plot}")


if __name__ == "__main__":
    main()
