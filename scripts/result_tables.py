"""Write docs/results.md and the table of docs/recipe.md from the rows in experiments/results; no number is typed by hand."""

import csv
import importlib
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
ROWS = ROOT / "experiments" / "results"
LARGE = ("kin8nm", "naval", "protein")
sys.path.insert(0, str(ROOT / "experiments"))

PAPER_KINK = {
    ("local", "0.008"): ("-1.50 (.03)", ".00 (.00)"),
    ("local", "0.08"): ("-.41 (.07)", ".04 (.01)"),
    ("local", "0.8"): (".54 (.07)", ".22 (.04)"),
    ("global", "0.008"): ("-1.53 (.03)", ".00 (.00)"),
    ("global", "0.08"): ("-.47 (.07)", ".03 (.01)"),
    ("global", "0.8"): (".72 (.17)", ".22 (.05)"),
}


def rows(name: str) -> list[dict[str, str]]:
    """Rows of one experiment; none if it has not run."""
    path = ROWS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def summary(found: list[dict[str, str]], column: str) -> str:
    """Mean and standard error."""
    values = np.array([float(row[column]) for row in found])
    if len(values) == 1:
        return f"{values[0]:.3f}" if abs(values[0]) >= 0.01 else f"{values[0]:.3g}"
    return f"{values.mean():.3f} ({values.std(ddof=1) / np.sqrt(len(values)):.3f})"


def table(head: list[str], body: list[list[str]]) -> str:
    """Markdown; nothing without rows."""
    if not body:
        return ""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def kink() -> str:
    """The dynamical modelling table, left."""
    body = []
    for (weights, r), (paper_nll, paper_mse) in PAPER_KINK.items():
        found = [row for row in rows("kink") if (row["weights"], row["r"]) == (weights, r)]
        if found:
            cells = [summary(found, "nll"), paper_nll, summary(found, "mse"), paper_mse, summary(found, "weight_var")]
            body.append([weights, r, str(len(found)), *cells, summary(found, "process_var"), summary(found, "seconds")])
    head = ["weights", "r", "runs", "NLL", "paper", "MSE", "paper", "weight variance", "process variance", "seconds per fit"]
    return table(head, body)


def filtering() -> str:
    """The filtering table."""
    body = [
        [
            row["weights"],
            row["r"],
            row["filter"],
            *[f"{float(row[c]):.3f} ({float(row[c + '_se']):.3f})" for c in ("mse", "nll", "behind")],
            row["failed"],
        ]
        for row in rows("filtering")
    ]
    return table(["weights", "r", "filter", "MSE", "NLL", "NLL behind ours", "failed"], body)


SEEN: dict[str, tuple[str, dict[str, str]]] = {
    "a fifth held out": ("sysid_fifth", {}),
    "a tenth held out": ("sysid_tenth", {}),
    "a fifth held out, weight 1": ("sysid_heavy", {}),
    "a fifth held out, variances five times faster": ("sysid_hurried", {}),
    "what quarters chose, as a mixture": ("sysid_mixture", {}),
    "given back, mixture": ("sysid_given_back", {"pool": "mixture"}),
    "given back, mean of quantiles": ("sysid_given_back", {"pool": "mean of quantiles"}),
    "what both judges chose, not blended": ("sysid_shares", {"blended": "no"}),
    "what both judges chose, one share for all steps": ("sysid_shares", {"blended": "yes"}),
    "what both judges chose, a share that grows": ("sysid", {"blended": "yes"}),
}


def seen() -> str:
    """What all candidates do that ever met the test halves: error and coverage of the networks."""
    sets, body = sorted({row["data"] for row in rows("sysid_fifth")}), []
    for candidate, (name, which) in SEEN.items():
        found = {row["data"]: row for row in rows(name) if row["kind"] == "network" and which.items() <= row.items()}
        cells = [f"{float(found[n]['rmse']):.3f}, {float(found[n]['coverage']):.3f}" if n in found else "" for n in sets]
        body.append([candidate, *cells])
    return table(["candidate", *sets], body)


def sysid() -> str:
    """Real systems with controls."""
    columns = ("rmse", "alone_rmse", "constant_rmse", "nll", "alone_nll", "coverage", "seconds")
    head = ["data", "model", "lasts", "RMSE", "alone", "constant", "NLL", "alone", "coverage of 95 %", "seconds"]
    kinds = ["network", "linear", "usual"]
    ordered = sorted(rows("sysid"), key=lambda row: (row["data"], kinds.index(row["kind"]), row["blended"] == "no"))
    body = [
        [
            row["data"],
            row["kind"],
            {"yes": row["lasts"], "no": "not blended", "": ""}[row["blended"]],
            *[row[column] for column in columns],
        ]
        for row in ordered
    ]
    return table(head, body)


def blended() -> str:
    """Forecasts with what is usual blended in, by quarters and blocks: score, coverage, steps; as the rule orders them."""
    found = [row for row in rows("sysid_blended") if row["kind"] == "network"]
    sets, body = sorted({row["data"] for row in found}), []
    for called in dict.fromkeys((row["candidate"], row["pool"]) for row in found):
        mine = {row["data"]: row for row in found if (row["candidate"], row["pool"]) == called}
        if len(mine) == len(sets):
            asked = all(0.85 <= float(row["coverage"]) <= 0.99 for row in mine.values())
            mean = np.mean([float(row["crps"]) for row in mine.values()])
            cells = [
                f"{float(row['crps']):.3f}, {float(row['coverage']):.3f}, {row['lasts']}"
                for row in (mine[name] for name in sets)
            ]
            body.append((not asked, mean, [", ".join(called), *cells, f"{mean:.4f}", "yes" if asked else "no"]))
    body = [cells for _, _, cells in sorted(body, key=lambda row: row[:2])]
    return table(["one forecast of several", *sets, "all", "covers as asked for"], body)


def forms() -> str:
    """How often a share of the usual that grows scores better than one for all steps, and than none."""
    keys = ("candidate", "pool", "data")
    now, before = (
        {tuple(row[key] for key in keys): row for row in rows(file) if row["kind"] == "network"}
        for file in ("sysid_blended", "sysid_blended_shares")
    )
    body = []
    for name in sorted({row["data"] for row in now.values()}):
        mine = [(row, before[key]) for key, row in now.items() if row["data"] == name and key in before]
        gaps = [float(row["crps"]) - float(row["plain_crps"]) for row, _ in mine]
        gains = [float(row["crps"]) - float(old["crps"]) for row, old in mine]
        counts = [f"{sum(gap < 0 for gap in each)} better, {sum(gap > 0 for gap in each)} worse" for each in (gains, gaps)]
        body.append([name, str(len(mine)), *counts])
    return table(["data", "forecasts", "growing, against one share for all steps", "growing, against none"], body)


def settings(file: str) -> str:
    """Candidates for system identification, by their free runs over quarters of the training halves."""
    found, body = rows(file), []
    sets = sorted({row["data"] for row in found})
    for candidate in dict.fromkeys(row["candidate"] for row in found):
        mine = [row for row in found if row["candidate"] == candidate]
        each = [[row for row in mine if row["data"] == name] for name in sets]
        body.append(
            [
                candidate,
                *[summary(part, "standard_nll") if part else "" for part in each],
                summary(mine, "standard_nll"),
                str(len(mine)),
            ]
        )
    return table(["candidate", *sets, "all", "runs"], body)


def behind(file: str) -> str:
    """How far candidates for system identification are behind the best, run by run; only those with all sixteen runs."""
    scores: dict[str, dict[tuple[str, str], float]] = {}
    for row in rows(file):
        scores.setdefault(row["candidate"], {})[row["data"], row["quarter"]] = float(row["standard_nll"])
    whole = {name: found for name, found in scores.items() if len(found) == 16}
    if not whole:
        return ""
    best = min(whole, key=lambda name: sum(whole[name].values()))
    gaps = {name: [{"gap": str(found[run] - whole[best][run])} for run in found] for name, found in whole.items()}
    return table(["candidate", f"behind “{best}”"], [[name, summary(gap, "gap")] for name, gap in gaps.items() if name != best])


def pools(file: str) -> str:
    """Ways to make one forecast of several models: negative log likelihood per standard unit, and coverage."""
    found, body = rows(file), []
    sets = sorted({row["data"] for row in found})
    for row in found:  # where models differ as well, their name comes first
        row["candidate"] += f", {row['pool']}" if "pool" in row else ""
    for candidate in dict.fromkeys(row["candidate"] for row in found):
        mine = [row for row in found if row["candidate"] == candidate]
        if len(mine) < len(sets) * 4:  # not run to the end
            continue
        each = [[row for row in mine if row["data"] == name] for name in sets]
        means = [[np.mean([float(row[column]) for row in part]) for column in ("standard_nll", "coverage")] for part in each]
        body.append([candidate, *[f"{nll:.3f}, {covered:.3f}" for nll, covered in means], summary(mine, "standard_nll")])
    return table(["one forecast of several", *sets, "all"], body)


def uci(file: str) -> str:
    """Regression with deep stochastic layers."""
    experiment, body = importlib.import_module("uci"), []
    for name, weights in dict.fromkeys((row["set"], row["weights"]) for row in rows(file)):
        found = [row for row in rows(file) if (row["set"], row["weights"]) == (name, weights)]
        nll, rmse = (str(value) for value in experiment.PAPER[weights][name])
        cells = [summary(found, "nll"), nll, summary(found, "rmse"), rmse, summary(found, "seconds")]
        body.append([name, weights, str(len(found)), *cells])
    return table(["data", "weights", "splits", "NLL", "paper", "RMSE", "paper", "seconds per fit"], body)


def uci_curves() -> str:
    """How flat the validation curves of the large sets were at their end, runs of the same length together."""
    body = []
    for file, called in (("uci_curves", "usual"), ("uci_long_curves", "250 passes")):
        found = [row for row in rows(file) if row["set"] in LARGE]
        for name, weights in dict.fromkeys((row["set"], row["weights"]) for row in found):
            mine = [row for row in found if (row["set"], row["weights"]) == (name, weights)]
            for length in dict.fromkeys(_length(row) for row in mine):
                runs = [row for row in mine if _length(row) == length]
                gain = max(float(row["gain"]) for row in runs)
                body.append([name, called, weights, str(len(runs)), length, summary(runs, "best"), f"{gain:.3f}"])
    return table(["data", "training", "weights", "runs", "iterations", "held out", "largest gain of a last fifth"], body)


def _length(row: dict[str, str]) -> str:
    return row["iterations"] if row["stopped"] == "all iterations done" else "until nothing was gained"


def uci_settings() -> str:
    """Candidates for regression, by held-out training rows of the first split; the better of two prior weights."""
    found, body = [*rows("uci_settings_first"), *rows("uci_settings")], []
    sets = list(dict.fromkeys(row["set"] for row in found))
    for candidate in dict.fromkeys(row["candidate"] for row in found):
        mine = [row for row in found if row["candidate"] == candidate]
        best = [max(float(row["log_density"]) for row in mine if row["set"] == name) for name in sets]
        seconds = sum(float(row["seconds"]) for row in mine)
        body.append([candidate, *[f"{score:.3f}" for score in best], f"{np.mean(best):.3f}", f"{seconds:.0f}"])
    return table(["candidate", *sets, "mean", "seconds"], body)


def uci_members() -> str:
    """Numbers of members, by the negative log likelihood of training rows that nothing was chosen on."""
    found, body = rows("uci_members"), []
    sets = list(dict.fromkeys(row["set"] for row in found))
    for members in dict.fromkeys(row["members"] for row in found):
        each = [[row for row in found if (row["set"], row["members"]) == (name, members)] for name in sets]
        body.append([members, *[summary(part, "standard_nll") if part else "" for part in each]])
    return table(["members", *sets], body)


def recipe(weights: str) -> str:
    """Candidates for one kind of weights, best first."""
    ordered = sorted((row for row in rows("recipe") if row["weights"] == weights), key=lambda row: float(row["score"]))
    columns = ["schedule", "learning_rate", "iterations", "prior_weight", "score", "median_0.008", "median_0.08", "median_0.8"]
    columns = columns if weights == "local" else ["warm_up", *columns]
    return table(columns, [[row[c] for c in columns] for row in ordered])


def tries() -> str:
    """Other ideas for the recipe, on the same systems."""
    columns = ["try", "score", "median_0.008", "median_0.08", "median_0.8"]
    return table(columns, [[row[c] for c in columns] for row in rows("recipe_tries")])


TABLES: dict[str, Callable[[], str]] = {
    "kink": kink,
    "filtering": filtering,
    "sysid": sysid,
    "sysid seen": seen,
    "blended": blended,
    "forms": forms,
    "settings": partial(settings, "sysid_settings"),
    "quarters": partial(settings, "sysid_quarters"),
    "behind": partial(behind, "sysid_quarters"),
    "mixed": partial(settings, "sysid_mixed"),
    "mixed behind": partial(behind, "sysid_mixed"),
    "pools": partial(pools, "sysid_pools"),
    "pools eighths": partial(pools, "sysid_pools_eighths"),
    "pools blocks": partial(pools, "sysid_blocks"),
    "sysid tries": partial(settings, "sysid_tries"),
    "uci": partial(uci, "uci"),
    "uci long": partial(uci, "uci_long"),
    "uci curves": uci_curves,
    "uci first": partial(uci, "uci_first"),
    "uci settings": uci_settings,
    "uci second": partial(uci, "uci_second"),
    "uci members": uci_members,
    "recipe": partial(recipe, "local"),
    "recipe global": partial(recipe, "global"),
    "tries": tries,
}


def main() -> None:
    """Replace what stands between the markers of each page."""
    for page in ("results", "recipe"):
        path = ROOT / "docs" / f"{page}.md"
        text = path.read_text(encoding="utf-8")
        for name, make in TABLES.items():
            pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
            text = re.sub(pattern, lambda m, make=make: f"{m.group(1)}{make()}\n{m.group(2)}", text, flags=re.S)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
