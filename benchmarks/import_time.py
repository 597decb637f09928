"""How long does `import prodssm` take, as a multiple of importing JAX and equinox alone?

Every import runs in a fresh process; the processes alternate, and medians are compared. Each is run once before, so that its
byte code is written. Seconds of the processor vary less than those of the clock on a busy machine. `--before PATH` measures the
package of another checkout too.

    python benchmarks/import_time.py --before ../older_checkout
"""

import os
import statistics
import subprocess
import sys
from pathlib import Path

import common

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = """
import time
clock, processor = time.perf_counter(), time.process_time()
import {what}
print(time.perf_counter() - clock, time.process_time() - processor)
"""


def seconds(what: str, checkout: Path) -> tuple[float, float]:
    """Seconds of the clock and of the processor that an import takes in a fresh process."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    command = [sys.executable, "-c", PROGRAM.format(what=what)]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    clock, processor = done.stdout.split()
    return float(clock), float(processor)


def main() -> None:
    """Print medians and the promised ratio."""
    options = common.parser(__doc__ or "")
    options.add_argument("--before", metavar="PATH", type=Path, help="another checkout to compare with")
    options = options.parse_args()
    printer = common.Printer(options)
    imports = {"JAX and equinox": ("jax, equinox", ROOT), "prodssm": ("prodssm", ROOT)}
    if options.before:
        imports["prodssm before"] = ("prodssm", options.before.resolve())
    for arguments in imports.values():
        seconds(*arguments)
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in imports}
    for _ in range(3 if options.quick else 15):
        for name, arguments in imports.items():
            found[name].append(seconds(*arguments))
    medians = {name: [statistics.median(column) for column in zip(*times, strict=True)] for name, times in found.items()}
    clock, processor = medians["JAX and equinox"]
    for name, times in medians.items():
        ratios = {"ratio": times[0] / clock, "cpu_ratio": times[1] / processor}
        printer.row(imported=name, seconds=times[0], cpu_seconds=times[1], **ratios)
    bound = common.verdict("import prodssm / import jax, equinox", medians["prodssm"][0] / clock, most=2.0)
    printer.row(**bound, cpu_ratio=medians["prodssm"][1] / processor, **common.machine())


if __name__ == "__main__":
    main()
