"""A checkpoint belongs to one fit at a time: a lock that ends with the process that holds it, however that ends."""

import errno
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows, where checkpoints are not locked
    fcntl = None

RETRIES = 10


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
    for _ in range(RETRIES):
        with beside.open("a") as file:
            if not _locked(file, path):
                raise ValueError(
                    f"checkpoint {path} is used by another fit that is running; wait for it, or choose another path"
                )
            if not _is_at(file, beside):  # the last owner has removed the file after it was opened here: the lock is on nothing
                continue
            try:
                yield
            finally:
                beside.unlink(missing_ok=True)
            return
    raise ValueError(f"checkpoint {path} is used by other fits that begin and end; choose another path")


def _locked(file: Any, path: Any) -> bool:
    """Whether this process has the lock, or the file system knows none, which is a warning."""
    assert fcntl is not None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        warnings.warn(f"checkpoint {path}: two fits are not kept apart here ({error.strerror})", UserWarning, stacklevel=6)
    return True


def _is_at(file: Any, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    try:
        return os.fstat(file.fileno()).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False
