"""Write docs/benchmarks.md from the saved results of the benchmarks."""

import json
from pathlib import Path
from typing import Any

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


TEXT = """# Benchmarks

Written by `scripts/benchmark_tables.py` from what `make bench` last measured (`benchmarks/results/`). Ratios are of times
measured in one run, on one core unless `--all-cores` is given: on two cores the start of a second thread takes longer than a
matrix product of 128 by 128, which dominates the small sizes. `python benchmarks/before_after.py --before PATH` compares the
times of another checkout with those of this one.

## One step (`benchmarks/one_step.py`)

The runtime figure of the paper: D = state = observation = hidden width, one hidden layer in transition and emission. Monte
Carlo with S = D particles samples weights for every particle, or is given them ("without weight sampling"), or samples layer
outputs instead, which is the cheapest Monte Carlo there is ("cheapest"). "Matrix products" is a chain of eight products of D
by D matrices, as many as moment matching needs. Below D = 128 a call in JAX does sixteen steps, as a filter does many: the
dispatch overhead of a call exceeds such a step. With one step per call (`--single`) the ratios at small D are those of the
overhead as much as of the steps, and depend on the machine.

{one_step}

## Truncation order (`benchmarks/covariance_order.py`)

Absolute error of the covariance of two ReLUs of unit variance, by correlation; relative error of the output covariance of
random networks; cost for 16 layers of 50 units. The default order is 4, the lowest whose error is below that of the DVI formula
in every column, and 8 for a scalar state, where each order adds only one vector per layer.

{covariance_order}

## Equal accuracy (`benchmarks/equal_accuracy.py`)

How many samples the cheapest Monte Carlo needs for the error of moment matching, in the mean and in the covariance. The cost
ratio is its cost with the same error in both, as a multiple of the cost of moment matching; the easier ratio is its cost with
the same error in the one that needs fewer samples. (The easier ratio was the first criterion of this benchmark. One contractive
network with two hidden layers does not reach 100 there, as its row shows.) `gain` scales the weights: below one the network is
contractive. Where the error of moment matching is below the noise of the reference (2^17 samples), that noise takes its place,
so that the ratio is a lower bound; such an error is shown as 0.

{equal_accuracy}

The Gaussian assumption fails in two cases, at any order of truncation. For expanding networks the first step is accurate and
later ones are not. With two hidden layers the pre-activations of the second are not Gaussian, and the covariance after a single
step from a wide belief has an error of several percent (6-30-30-6 above). Compare long forecasts of such systems with
`method="sampled"`, or call `model.check`.

## Filter and smoother (`benchmarks/filter.py`)

Ours and those of dynamax, cuthbert and filterpy on the same fixed networks, after all of them agreed on a linear model. None of
the others supports uncertain weights, so these are compared with an unscented filter on the state augmented by the weights.

{filter}

## Training (`benchmarks/train.py`)

One iteration on series of 120 observations of the kink, against the same formulas in eager PyTorch after both agreed on loss
and gradient.

{train}

## A long stream (`benchmarks/stream.py`)

Repeated calls of `model.step`. Wall-clock and CPU times are per call since the row before; the first call, which compiles, is
left out. Memory is the resident memory of the process, compilations are counted from the start of the stream. Then a million
steps of `filter_states` in one call: the number of non-finite values, and the lowest eigenvalue of all covariances relative to
the trace, of the state at every step and of global weights after the last.

{stream}

## Global weights (`benchmarks/global.py`)

One gradient of the filter's likelihood of 300 steps (six states, two hidden layers of 30, 50 outputs, 1,326 weights) and of a
minibatch of 32 rows of Boston's shape, order 1, as multiples of the same with local weights. The error is that of the log
likelihood against a dense covariance of all weights, in double precision. Monte Carlo samples the global weights a number of
times and filters the whole series given each draw; in the regression it propagates a number of particles. The measured ratio of
the filter is close to its bound: the time of large matrix products on a shared machine varies from hour to hour.

{global}

## Compilation (`benchmarks/compile.py`)

A backtest that refits over 50 histories of 150 to 299 points and forecasts ten steps; forecasts of 40 growing histories; fits
of 300 hidden sizes in one process and its memory maps; batched triangular solves beside two busy processes and a thousand fits
of a model with 50 outputs there; the time from a signal to the return of a fit; a fit and a forecast in a new process. "First"
is the compilation of one fit and forecast, in seconds.

{compile}

## Import (`benchmarks/import_time.py`)

`import prodssm` against importing JAX and equinox alone, with byte code that is already there. The estimators and SciPy are
imported when they are first used; "before" is the package that imported them at once.

{import_time}
"""

SECTIONS = {
    "one_step": one_step,
    "covariance_order": covariance_order,
    "equal_accuracy": equal_accuracy,
    "filter": filtering,
    "train": training,
    "stream": streaming,
    "global": global_weights,
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
    "compile": "",
    "import_time": "",
}


def main() -> None:
    """Fill the page."""
    page = TEXT.format(**{name: section(name) for name in SECTIONS})
    (ROOT / "docs" / "benchmarks.md").write_text(page)


if __name__ == "__main__":
    main()
