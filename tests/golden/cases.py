"""Fixed models whose every answer is written down in golden.npz: a change of shape must not change a number.

    python tests/golden/cases.py write      computes all answers anew and overwrites the file
    python tests/golden/cases.py check      compares with the file and prints the largest relative difference

Gradients are with respect to plain arrays from which the model is built, so that they do not depend on how a model stores them.
"""

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import prodssm as ps

FILE = Path(__file__).with_name("golden.npz")
METHODS = ("moments", "linearised", "unscented", "sampled")
STEPS, AHEAD = 12, 5
X, Y, U = 2, 3, 1


def cases() -> dict[str, dict[str, Any]]:
    """Thirty models: methods x weights, and within them residual, controls, missing values, noise networks and emissions."""
    found: dict[str, dict[str, Any]] = {}
    for m, method in enumerate(METHODS):
        for w, weights in enumerate(("local", "global", "point")):
            for k in range(2):
                number = 6 * m + 2 * w + k
                found[f"{method}-{weights}-{k}"] = {
                    "method": method,
                    "weights": weights,
                    "residual": bool((m + w + k) % 2),
                    "controls": bool((number // 2 + k) % 2),
                    "missing": bool((m + k) % 2),
                    "emission": ("identity", "linear", "network")[number % 3],
                    "seed": number,
                }
    usual = {
        "method": "moments",
        "weights": "global",
        "residual": True,
        "controls": True,
        "missing": True,
        "emission": "linear",
    }
    found["low-rank"] = usual | {"rank": 4, "seed": 100}
    found["low-rank-plain"] = usual | {"rank": 6, "residual": False, "missing": False, "emission": "identity", "seed": 101}
    found["noise-network"] = usual | {"weights": "local", "noise_network": True, "seed": 102}
    found["irregular"] = usual | {"weights": "local", "irregular": True, "order": 2, "seed": 103}
    found["scalar"] = usual | {"weights": "local", "scalar": True, "emission": "identity", "seed": 104}
    found["scalar-global"] = usual | {"scalar": True, "emission": "identity", "residual": False, "seed": 105}
    return found


def parameters(case: dict[str, Any]) -> dict[str, Any]:
    """Plain arrays that a model of the case is built from."""
    draw = np.random.default_rng(case["seed"])
    x = 1 if case.get("scalar") else X
    u = U if case["controls"] else 0
    sizes = (x + u, 5, 4, x)

    def network(sizes: tuple[int, ...], scale: float) -> dict[str, list[np.ndarray]]:
        pairs = list(zip(sizes[1:], sizes[:-1], strict=True))
        return {
            "weights": [scale * draw.normal(size=pair) / pair[1] ** 0.5 for pair in pairs],
            "biases": [0.3 * draw.normal(size=pair[0]) for pair in pairs],
            "weight_vars": [draw.uniform(0.01, 0.05, size=pair) for pair in pairs],
            "bias_vars": [draw.uniform(0.01, 0.05, size=pair[0]) for pair in pairs],
        }

    def certain(sizes: tuple[int, ...]) -> dict[str, list[np.ndarray]]:
        return {name: part for name, part in network(sizes, 0.9).items() if name in ("weights", "biases")}

    y = x if case["emission"] == "identity" else Y
    root = np.eye(x) + 0.3 * np.tril(draw.normal(size=(x, x)), -1)
    found: dict[str, Any] = {
        "transition": network(sizes, 0.4 if case["residual"] else 0.8),
        "initial_mean": draw.normal(size=x),
        "initial_cov": root @ root.T,
        "process_noise": draw.uniform(0.02, 0.1, size=x),
        "measurement_noise": draw.uniform(0.05, 0.2, size=y),
    }
    if case.get("noise_network"):
        found["process_noise"] = network((x + u, 3, x), 0.5)
    if case["emission"] == "linear":
        found["emission"] = certain((x, y))
    if case["emission"] == "network":
        found["emission"] = certain((x, 4, y))
    return jax.tree.map(jnp.asarray, found)


def data(case: dict[str, Any]) -> tuple[ps.Series, Any]:
    """A series, and the controls that follow it."""
    draw = np.random.default_rng(1000 + case["seed"])
    x = 1 if case.get("scalar") else X
    y = draw.normal(size=(STEPS, x if case["emission"] == "identity" else Y))
    if case["missing"]:
        y[3] = np.nan
        y[6, 0] = np.nan
    u = draw.normal(size=(STEPS + AHEAD, U)) if case["controls"] else None
    time = np.cumsum(draw.uniform(0.5, 1.5, size=STEPS)) if case.get("irregular") else None
    return ps.Series(y, None if u is None else u[:STEPS], time), None if u is None else u[STEPS:]


def build(case: dict[str, Any], parts: dict[str, Any]) -> ps.StateSpaceModel:
    """The model."""
    activation = ("relu", "tanh", "gelu", "erf")[case["seed"] % 4]
    noise = parts["process_noise"]
    if isinstance(noise, dict):
        noise = ps.Network.from_arrays(activation="relu", **noise)
    emission = ps.Network.from_arrays(activation="tanh", **parts["emission"]) if "emission" in parts else None
    return ps.StateSpaceModel(
        initial=ps.Gaussian(parts["initial_mean"], parts["initial_cov"]),
        transition=ps.Network.from_arrays(activation=activation, **parts["transition"]),
        emission=emission,
        process_noise=noise,
        measurement_noise=parts["measurement_noise"],
        weights=case["weights"],
        residual=case["residual"],
        rank=case.get("rank"),
    )


def method_of(case: dict[str, Any]) -> dict[str, Any]:
    """The method as keyword arguments of the inference functions."""
    key = jr.key(case["seed"])
    if not hasattr(ps, "Moments"):  # names and options, as the first version had them
        options = {"sampled": {"key": key, "samples": 200}, "moments": {"order": case.get("order")}}
        return {"method": case["method"]} | options.get(case["method"], {})
    found = {
        "moments": lambda: ps.Moments(order=case.get("order")),
        "linearised": lambda: ps.Linearised(),
        "unscented": lambda: ps.Unscented(),
        "sampled": lambda: ps.Sampled(samples=200, key=key),
    }
    return {"method": found[case["method"]]()}


def answers(case: dict[str, Any]) -> dict[str, np.ndarray]:
    """Filter, smoother, forecast, evidence and its gradients."""
    parts, (series, u), method = parameters(case), data(case), method_of(case)
    model = build(case, parts)
    filtered, smoothed = ps.filter_states(model, series, **method), ps.smooth_states(model, series, **method)
    ahead = ps.forecast(model, series, AHEAD, u=u, **method)
    found = {
        "filter.mean": filtered.mean,
        "filter.cov": filtered.cov,
        "filter.log_evidence": filtered.log_evidence,
        "smooth.mean": smoothed.mean,
        "smooth.cov": smoothed.cov,
        "forecast.mean": ahead.mean,
        "forecast.cov": ahead.cov,
    }
    gradients = jax.jit(jax.grad(lambda p: ps.filter_states(build(case, p), series, **method).log_likelihood))(parts)
    for path, leaf in jax.tree_util.tree_leaves_with_path(gradients):
        found["gradient." + jax.tree_util.keystr(path, simple=True, separator=".")] = leaf
    return {name: np.asarray(value, float) for name, value in found.items()}


def time_series() -> np.ndarray:
    """A driven oscillation with noise and a gap: y in the first two columns, the control in the last."""
    draw = np.random.default_rng(7)
    u, x, rows = draw.normal(size=60), np.zeros(2), []
    for control in u:
        x = np.array([0.9 * x[0] + 0.3 * x[1], -0.3 * x[0] + 0.85 * x[1] + 0.4 * np.tanh(control)])
        rows.append([*(x + 0.1 * draw.normal(size=2)), control])
    found = np.array(rows)
    found[20:23, 0] = np.nan
    return found


def fits() -> dict[str, np.ndarray]:
    """Forecasts and predictions of short fits of both estimators."""
    rows = time_series()
    series = ps.Series(rows[:, :2], rows[:, 2:])
    draw = np.random.default_rng(8)
    inputs = draw.uniform(-2, 2, size=(60, 2))
    target = np.sin(2 * inputs[:, 0]) + 0.5 * inputs[:, 1] + 0.1 * draw.normal(size=60)
    found: dict[str, Any] = {}
    for weights in ("local", "global"):
        shape = {"latent_dim": 3, "hidden": (8,), "weights": weights, "residual": True, "emission": "linear", "progress": False}
        training = {"iterations": 30, "horizons": (1, 3), "validation": 0.2, "window": 30, "batch": 2}
        if hasattr(ps, "Moments"):
            recipe = ps.Recipe(fine_tune=10, **training)
            model = ps.ProDSSM(recipe=recipe, random_state=3, **shape)
        else:
            model = ps.ProDSSM(refine=10, seed=3, **shape, **training)
        ahead = model.fit(series).forecast(series, steps=6, u=rows[:6, 2:])
        states = model.filter(series)
        found |= {f"prodssm-{weights}.mean": ahead.mean, f"prodssm-{weights}.cov": ahead.cov}
        found |= {f"prodssm-{weights}.filter": states.mean, f"prodssm-{weights}.evidence": states.log_evidence}
        if weights == "global":
            parts = ahead.decompose()
            found |= {f"prodssm-{weights}.epistemic": parts.epistemic, f"prodssm-{weights}.aleatoric": parts.aleatoric}
        layers = {"hidden": (8,), "noise_hidden": (4,), "steps": 2, "weights": weights, "random_state": 5}
        if hasattr(ps, "Moments"):
            recipe = ps.Recipe(iterations=30, fine_tune=10)
            reg = ps.DeepStochasticRegressor(n_estimators=2, recipe=recipe, **layers)
        else:
            reg = ps.DeepStochasticRegressor(members=2, iterations=30, refine=10, **layers)
        mean, std = reg.fit(inputs, target).predict(inputs, return_std=True)
        found |= {f"regressor-{weights}.mean": mean, f"regressor-{weights}.std": std}
        found[f"regressor-{weights}.log_prob"] = reg.log_prob(inputs, target)
    plain = {"weights": "local", "progress": False, "emission": "identity"}
    if hasattr(ps, "Moments"):
        model = ps.ProDSSM(recipe=ps.Recipe(iterations=25), random_state=0, measurement_noise=0.01, **plain)
    else:
        model = ps.ProDSSM(iterations=25, seed=0, measurement_noise=0.01, **plain)
    ahead = model.fit(rows[:, :2]).forecast(rows[:, :2], steps=4)
    found |= {"prodssm-identity.mean": ahead.mean, "prodssm-identity.cov": ahead.cov}
    return {name: np.asarray(value, float) for name, value in found.items()}


def everything() -> dict[str, np.ndarray]:
    """All answers by name."""
    found = {f"{name}/{part}": value for name, case in cases().items() for part, value in answers(case).items()}
    return found | {f"fit/{name}": value for name, value in fits().items()}


def difference(new: np.ndarray, old: np.ndarray) -> float:
    """Largest difference, relative to the largest entry of the answer."""
    return float(np.abs(new - old).max() / max(np.abs(old).max(), 1e-12))


def main() -> None:
    """Write or check."""
    jax.config.update("jax_enable_x64", True)
    found = everything()
    if sys.argv[1:] == ["write"]:
        np.savez_compressed(FILE, **found)
        return
    old = dict(np.load(FILE))
    assert found.keys() == old.keys(), found.keys() ^ old.keys()
    off = sorted(((difference(found[name], old[name]), name) for name in old), reverse=True)
    for worst, name in off[:5]:
        sys.stdout.write(f"{worst:.3g}  {name}\n")
    sys.stdout.write(f"{len(off)} arrays, {sum(o <= 1e-9 for o, _ in off)} within 1e-9\n")
    sys.exit(off[0][0] > 1e-9)


if __name__ == "__main__":
    main()
