"""Write docs/benchmarks.md, and the tables of docs/scale.md, from the saved results of the benchmarks."""

import json
import re
from pathlib import Path
from typing import Any

from benchmark_text import TEXT

from prodssm.methods.moments import DEFAULT_ORDER_MIXTURE

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def load(name: str) -> list[dict[str, Any]]:
    """Rows of one benchmark."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def short(value: Any) -> str:
    """A cell of a table, with three significant digits."""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:.0f}" if 1e3 <= abs(value) < 1e6 else f"{value:.3g}"
    return "" if value is None else str(value)


def table(header: list[str], rows: list[list[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(short(cell) for cell in row) + " |" for row in rows])


def section(name: str) -> str:
    """The tables and the figure of one benchmark, or a line that says that it was not run."""
    if not (RESULTS / f"{name}.jsonl").exists():
        return f"`benchmarks/{name}.py` was not run for this page."
    figure = f"![{FIGURES[name]}](images/{name}.png)"
    return "\n\n".join([SECTIONS[name](), *([figure] if (ROOT / "docs" / "images" / f"{name}.png").exists() else [])])


def claims(rows: list[dict[str, Any]], *columns: str) -> str:
    """The promised bounds and the measured ratios."""
    found = [row for row in rows if "claim" in row]
    # A row may have a lower bound, an upper bound, or both.
    bounds = [" and ".join(f"at {side} {short(row[side])}" for side in ("least", "most") if side in row) for row in found]
    body = [
        [row["claim"], *[row.get(c) for c in columns], row["ratio"], b, row.get("holds")]
        for row, b in zip(found, bounds, strict=True)
    ]
    return table(["claim", *columns, "measured", "promised", "holds"], body)


def chosen(rows: list[dict[str, Any]], name: str, columns: list[str]) -> str:
    """Some columns of the rows of one table."""
    body = [[row.get(column) for column in columns] for row in rows if row.get("table") == name]
    return table([column.replace("_", " ") for column in columns], body)


def filtering() -> str:
    """Times per step by length, promised bounds, negative log densities of the true state, endurance."""
    rows = load("filter")
    timed = [row for row in rows if "us_per_step" in row]
    lengths = sorted({row["T"] for row in timed})
    kinds = ("net", "weights", "what", "dtype", "name")
    found = {(*(row[kind] for kind in kinds), row["T"]): row["us_per_step"] for row in timed}
    labels = list(dict.fromkeys(tuple(row[kind] for kind in kinds) for row in timed))
    body = [[*label, *[found.get((*label, length)) for length in lengths]] for label in labels]
    scores = [row for row in rows if row.get("table") == "nll"]
    names = [name for name in scores[0] if name not in ("table", "net", "noise")] if scores else []
    nll = table(
        ["network", "noise", *[name.replace("_", " ") for name in names]],
        [[row["net"], row["noise"], *[row.get(n) for n in names]] for row in scores],
    )
    endurance = ["net", "what", "T", "dtype", "MiB", "finite", "lowest_to_highest_eigenvalue", "holds"]
    return "\n\n".join(
        [
            f"Microseconds per step, {rows[0]['cores']} core(s), JAX {rows[0]['jax']}; empty where a call would take too long.",
            table([*kinds, *[f"T = {length}" for length in lengths]], body),
            claims(rows, "net", "weights", "dtype", "T", "noise", "worst"),
            "Mean negative log density of the true state. The loss of an extended filter depends on the network as much as on\n"
            "the noise: it is negligible for some of the trained ones and many nats for others.",
            nll,
            "A million steps:",
            chosen(rows, "endurance", endurance),
        ]
    )


def training() -> str:
    """Times per iteration, promised bounds, memory."""
    rows = load("train")
    return "\n\n".join(
        [
            f"{rows[0]['dtype']}, order {rows[0]['order']}, {rows[0]['cores']} core(s), JAX {rows[0]['jax']}.",
            chosen(rows, "times", ["name", "problem", "T", "ms_per_iteration", "compile_seconds"]),
            claims(rows, "T"),
            chosen(rows, "memory", ["weights", "T", "MiB", "bytes_per_step", "compile_seconds"]),
        ]
    )


def streaming() -> str:
    """Times and memory by calls, promised bounds, the long filter."""
    rows = load("stream")
    calls = ["weights", "dtype", "calls", "us_per_call", "cpu_us_per_call", "MiB", "compilations", "finite"]
    steps = ["net", "weights", "T", "dtype", "us_per_step", "not_finite", "lowest_eigenvalue_to_trace"]
    return "\n\n".join(
        [
            f"{rows[0]['net']}, {rows[0]['cores']} core(s), JAX {rows[0]['jax']}.",
            chosen(rows, "stream", calls),
            claims(rows, "weights", "calls"),
            chosen(rows, "long filter", [*steps, "weights_lowest_eigenvalue_to_trace", "holds"]),
        ]
    )


def one_step() -> str:
    """Claims by size, then growth."""
    rows = load("one_step")
    sizes = sorted({row["D"] for row in rows if "claim" in row})
    claims = list(dict.fromkeys(row["claim"] for row in rows if "claim" in row))
    found = {(row["claim"], row["D"]): row for row in rows if "claim" in row}
    body = [[claim, *[found.get((claim, size), {}).get("ratio") for size in sizes]] for claim in claims]
    failed = [f"{claim} at D = {size}" for (claim, size), row in found.items() if not row["holds"]]
    growth = [
        [row["growth"], row["time_exponent"], row["memory_exponent"], row["largest_D"], row["peak_GiB"] * 1024]
        for row in rows
        if "growth" in row
    ]
    head = f"float32, order {rows[0]['order']}, {rows[0]['cores']} core(s), JAX {rows[0]['jax']}."
    verdict = f"Promised ratios that did not hold in this run: {'; '.join(failed) or 'none'}."
    return "\n\n".join(
        [
            head,
            table(["ratio of times", *[f"D = {size}" for size in sizes]], body),
            verdict,
            table(["weights", "time grows like D to the", "memory like D to the", "largest D", "peak MiB there"], growth),
        ]
    )


def covariance_order() -> str:
    """Errors on the grid, errors in networks, costs."""
    rows = load("covariance_order")
    grid = [row for row in rows if row.get("table") == "grid"]
    columns = [name for name in grid[0] if name not in ("table", "rule")]
    parts = [table(["rule", *columns], [[row["rule"], *[row[c] for c in columns]] for row in grid])]
    nets = [row for row in rows if row.get("table") == "networks"]
    labels = list(dict.fromkeys((row["net"], row["weights"]) for row in nets))
    found = {(row["rule"], row["net"], row["weights"]): row["mean"] for row in nets}
    names = list(dict.fromkeys(row["rule"] for row in nets))
    body = [[name, *[found[(name, *label)] for label in labels]] for name in names]
    parts.append(table(["mean relative error", *[" ".join(label) for label in labels]], body))
    costs = [row for row in rows if row.get("table") == "cost"]
    body = [[row["rule"], row["forward_to_order_1"], row["gradient_to_order_1"]] for row in costs]
    parts.append(table(["time over that of order 1", "forward", "with gradient"], body))
    return "\n\n".join(parts)


def equal_accuracy() -> str:
    """Samples needed and cost ratios, then growth."""
    rows = load("equal_accuracy")
    main = [row for row in rows if "cost_ratio" in row]
    for row in main:
        if "easier_ratio" not in row:  # rows of runs before the two ratios were distinguished
            row["easier_ratio"], row["easier_holds"] = row.pop("cost_ratio"), row.pop("holds", None)
    keys = ["net", "kind", "gain", "steps", "mean_error", "cov_error", "samples_for_mean", "samples_for_cov"]
    keys += ["cost_ratio", "holds", "easier_ratio", "easier_holds"]
    parts = [table([key.replace("_", " ") for key in keys], [[row.get(key) for key in keys] for row in main])]
    growth = [row for row in rows if row.get("table") == "growth"]
    steps = sorted({row["step"] for row in growth})
    labels = list(dict.fromkeys((row["net"], row["gain"]) for row in growth))
    found = {(row["net"], row["gain"], row["step"]): row["cov_error"] for row in growth}
    body = [[net, gain, *[found[net, gain, step] for step in steps]] for net, gain in labels]
    parts.append(table(["relative error of the covariance", "gain", *[f"step {step}" for step in steps]], body))
    return "\n\n".join(parts)


def global_weights() -> str:
    """Gradients with global weights: filter by rank, regression by width and steps, promised bounds."""
    rows = load("global")
    names = {"filter": ["weights", "ms", "mib", "ratio", "log_likelihood_error"]}
    names["regression"] = ["weights", "width", "steps", "weight_count", "ms", "mib", "ratio"]
    parts = []
    for part, columns in names.items():
        body = [[row.get(column) for column in columns] for row in rows if row.get("part") == part and "ms" in row]
        parts.append(table([part if column == "weights" else column.replace("_", " ") for column in columns], body))
    return "\n\n".join([*parts, claims(rows)])


def compilation() -> str:
    """What every part measured, with the package of another checkout where one was given; promised bounds."""
    rows = load("compile")
    packages = {"before": "an older checkout", "this": "this checkout"}
    skipped = ("part", "package", "cache")
    body = [
        [
            row["part"] + (f", cache on disk {row['cache']}" if "cache" in row else ""),
            packages[row["package"]],
            ", ".join(f"{name.replace('_', ' ')} {short(value)}" for name, value in row.items() if name not in skipped),
        ]
        for row in rows
        if "part" in row
    ]
    return "\n\n".join([table(["part", "package", "measured"], body), claims(rows)])


def import_time() -> str:
    """Median times of the imports, promised bound."""
    rows = load("import_time")
    head = f"Medians of fresh processes that alternate, {rows[-1]['cores']} core(s), JAX {rows[-1]['jax']}."
    imports = [row for row in rows if "imported" in row]
    body = [[row["imported"], row["seconds"], row["cpu_seconds"], row["ratio"], row["cpu_ratio"]] for row in imports]
    return "\n\n".join([head, table(["import", "seconds", "CPU seconds", "ratio", "CPU ratio"], body), claims(rows)])


def mixture() -> str:
    """Times by components and splits, errors beside particles, orders, gradients over a long record."""
    rows = load("mixture")
    times = ["states", "what", "components", "splits", "us_per_step", "to_one_gaussian", "compile_seconds"]
    steps = [name for name in next(row for row in rows if row.get("table") == "order") if name.startswith("step_")]
    errors = ["what", "weights", "noise", "name", "us", "distance", *steps, "crps_above_exact"]
    return "\n\n".join(
        [
            f"{rows[0]['dtype']}, {rows[0]['cores']} core(s), JAX {rows[0]['jax']}.",
            chosen(rows, "times", times),
            chosen(rows, "error", errors),
            claims(rows, "what", "weights", "noise"),
            chosen(rows, "networks", ["noise", "seed", *steps, "largest_ratio"]),
            chosen(rows, "order", ["weights", "order", *steps, "time_1_state", "time_4_states"]),
            chosen(rows, "gradient", ["states", "steps", "dtype", "us_per_step", "MiB", "finite"]),
        ]
    )


def scale() -> str:
    """Measured growth; the model that is fitted to it, and what it says of many machines; memory of chunked passes."""
    rows = load("scale")
    model = next(row for row in rows if row.get("table") == "model")
    step, work = (short(1e6 * model[name]) for name in ("seconds_per_step", "seconds_per_step_and_series"))
    exchange = short(1e3 * model["seconds_per_exchange"])
    head = f"{rows[0]['all_cores']} cores, JAX {rows[0]['jax']}."
    constants = (
        f"The model, fitted to the measurements: s = {step} µs, w = {work} µs, e = {exchange} ms; of one machine it "
        f"misses none of them by more than {model['largest_error']:.0%}. **What follows is that model, not measured.**"
    )
    growth = ["what", "against", "first", "last", "exponent"]
    steps = ["machines", "devices", "series", "length", "seconds"]
    return "\n\n".join(
        [
            f"Measured: {head}",
            chosen(rows, "growth", growth),
            chosen(rows, "iteration", steps),
            constants,
            chosen(rows, "machines", ["series", "length", "machines", "seconds", "times_faster"]),
            "Measured: the chunked filter and forecast of a series on disk.",
            chosen(rows, "chunks", ["steps", "outputs", "filter_seconds", "forecast_seconds", "MiB"]),
        ]
    )


SECTIONS = {
    "one_step": one_step,
    "covariance_order": covariance_order,
    "equal_accuracy": equal_accuracy,
    "filter": filtering,
    "train": training,
    "stream": streaming,
    "global": global_weights,
    "mixture": mixture,
    "compile": compilation,
    "import_time": import_time,
}
FIGURES = {
    "one_step": "time and memory of one step",
    "covariance_order": "error against cost",
    "equal_accuracy": "growth of the error",
    "filter": "time per step against length",
    "train": "time per iteration, memory against length",
    "stream": "time and memory against calls",
    "global": "cost and error against rank",
    "mixture": "error against time, next to particles",
    "compile": "",
    "import_time": "",
}


def main() -> None:
    """Fill the pages."""
    page = TEXT.format(default_order=DEFAULT_ORDER_MIXTURE, **{name: section(name) for name in SECTIONS})
    (ROOT / "docs" / "benchmarks.md").write_text(page)
    if (RESULTS / "scale.jsonl").exists():
        place = ROOT / "docs" / "scale.md"
        filled = f"<!-- scale -->\n{scale()}\n<!-- end -->"
        place.write_text(re.sub(r"<!-- scale -->.*<!-- end -->", lambda _: filled, place.read_text(), flags=re.S))


if __name__ == "__main__":
    main()
