"""Kill a training run at random moments, resume it, and compare it with one that was not disturbed, bit by bit.

python scripts/kills.py --count 200      prints one line for every ten
"""

import argparse
import signal
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
    except subprocess.TimeoutExpired:
        process.kill()
    return process.wait() == -signal.SIGKILL


def main() -> int:
    """Return 1 if any resumed run differs or leaves a lock behind, or none was killed in training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5, help="kills; runs that end before their moment do not count")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng, kills, different, in_training = np.random.default_rng(options.seed), 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        wanted, _ = trained(place / "first.safetensors", place / "first.npz")
        _, seconds = trained(place / "second.safetensors", place / "second.npz")  # with a warm cache of programs
        for n in range(3 * options.count):
            checkpoint = place / f"{n}.safetensors"
            if not killed_after(rng.uniform(0.3, 1.0) * seconds, checkpoint):
                continue
            kills += 1
            in_training += checkpoint.exists()
            found, _ = trained(checkpoint, place / f"{n}.npz")
            different += any(not np.array_equal(found[name], wanted[name]) for name in wanted)
            if kills % 10 == 0 or kills == options.count:
                print(f"{kills} kills, {in_training} of them after the first checkpoint; {different} differ", flush=True)
            if kills == options.count:
                break
        locks, drafts = (len(list(place.glob(pattern))) for pattern in ("*.lock", ".*"))
    good = kills == options.count and not different and not locks and in_training > 0
    print(f"{kills} killed and resumed runs {'equal' if good else 'do NOT all equal'} the undisturbed one")
    print(f"left behind: {locks} locks, {drafts} drafts of checkpoints that were being written")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
