"""What does one step cost? The paper's runtime figure. Timing is a benchmark's work: benchmarks/one_step.py does it.

python experiments/runtime.py      if there are no rows yet: half an hour on a quiet machine
python experiments/runtime.py --quick
"""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import common

ROOT = Path(__file__).parent.parent
BENCHMARK, ROWS = ROOT / "benchmarks" / "one_step.py", ROOT / "benchmarks" / "results" / "one_step.jsonl"
COLUMNS = {
    "Det. local": "local",
    "Det. global": "global",
    "MC, S = D": "jax weights, S=D",
    "MC, S = 128": "jax weights, S=128",
    "MC, S = 1024": "jax weights, S=1024",
    "without sampling of weights, S = D": "jax fixed, S=D",
    "S = 128": "jax fixed, S=128",
    "S = 1024": "jax fixed, S=1024",
}
PICTURE = ROOT / "docs" / "images" / "one_step.png"


def main() -> None:
    """Make the rows and the figure if they are missing."""
    options = common.arguments(__doc__).parse_args()
    if options.quick:
        others = [] if find_spec("torch") else ["--no-torch"]  # it is an extra
        subprocess.run([sys.executable, BENCHMARK, "--quick", *others], check=True)
    elif not ROWS.exists():
        subprocess.run([sys.executable, BENCHMARK, "--save", ROWS, "--plot", PICTURE], check=True)
    for table in tables().values():
        common.say(table)


def tables() -> dict[str, str]:
    """Microseconds of one step, by size; "-" is more memory than the benchmark allows."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    rows = [row for row in map(json.loads, lines) if "name" in row]
    time = {(row["D"], row["name"]): row["seconds"] for row in rows}
    body = []
    for size in sorted({row["D"] for row in rows}):
        cells = [time.get((size, name.replace(f"S={size}", "S=D"))) for name in COLUMNS.values()]
        body.append([size, *("-" if cell is None else f"{1e6 * cell:.0f}" for cell in cells)])
    return {"runtime": common.markdown(["D", *COLUMNS], body)}


if __name__ == "__main__":
    main()
