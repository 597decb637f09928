"""Kill a training run at random moments, resume it, and compare it with one that was not disturbed, bit by bit.

python scripts/kills.py --count 200      prints one line for every ten
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

SCRIPT = Path(__file__).parent.parent / "tests" / "training" / "killed_training.py"


def trained(checkpoint: Path, answer: Path) -> tuple[dict[str, np.ndarray], float]:
    """What an undisturbed process learns, from a checkpoint if there is one, and its seconds."""
    begin = time.monotonic()
    subprocess.run([sys.executable, SCRIPT, checkpoint, answer], check=True, timeout=600)
    with np.load(answer) as found:
        return dict(found), time.monotonic() - begin


def killed_after(seconds: float, checkpoint: Path) -> bool:
    """Whether a process was killed before its end, so many seconds after its beginning."""
    process = subprocess.Popen([sys.executable, SCRIPT, checkpoint])
    try:
        process.wait(timeout=seconds)
        return False
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True


def main() -> int:
    """Return 1 if any resumed run differs, or none was killed in training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, different, in_training = np.random.default_rng(options.seed), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wanted, _ = trained(place / "first.safetensors", place / "first.npz")
        _, seconds = trained(place / "second.safetensors", place / "second.npz")  # with a warm cache of programs
        for n in range(options.count):
            checkpoint = place / f"{n}.safetensors"
            killed = killed_after(rng.uniform(0.3, 1.0) * seconds, checkpoint)
            in_training += killed and checkpoint.exists()
            found, _ = trained(checkpoint, place / f"{n}.npz")
            different += any(not np.array_equal(found[name], wanted[name]) for name in wanted)
            left = [path.name for path in place.glob(".*")]
            if (n + 1) % 10 == 0 or n + 1 == options.count:
                print(
                    f"{n + 1} kills, {in_training} of them after the first checkpoint; {different} differ; left: {left}",
                    flush=True,
                )
    return int(different > 0 or not in_training)


if __name__ == "__main__":
    sys.exit(main())
