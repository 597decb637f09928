"""A checkpoint belongs to one fit at a time: a lock that ends with the process that holds it, however that ends."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows, where checkpoints are not locked
    fcntl = None


@contextmanager
def claimed(path: str | os.PathLike[str] | None) -> Iterator[None]:
    """A context in which no other process, and no other thread, may use this checkpoint; None claims nothing.

    The lock is one of the operating system on a file beside the checkpoint, which is gone at the end.
    """
    if path is None or fcntl is None:
        yield
        return
    beside = Path(f"{os.fspath(path)}.lock")
    if not beside.parent.is_dir():
        raise FileNotFoundError(f"checkpoint: the folder {beside.parent} does not exist; create it first")
    with beside.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The last owner may have removed the file after it was opened here: then the lock is on nothing.
            held = beside.exists() and os.fstat(file.fileno()).st_ino == beside.stat().st_ino
        except BlockingIOError:
            held = False
        if not held:
            raise ValueError(f"checkpoint {path} is used by another fit that is running; wait for it, or choose another path")
        try:
            yield
        finally:
            beside.unlink(missing_ok=True)
