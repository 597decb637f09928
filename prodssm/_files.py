"""Files are written whole or not at all: beside their targets first, then renamed."""

import os
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def checked_target(path: str | os.PathLike[str]) -> Path:
    """The file that a path stands for, before anything is written to it."""
    # The end of a symbolic link, so that the link itself survives.
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(f"path must be a file, got the folder {target}")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"the folder {target.parent} does not exist; create it first")
    return target


def replace_at_once(target: Path, content: bytes) -> None:
    """Write one file, all of it or nothing."""
    write_files({target: lambda draft: draft.write_bytes(content)})


def write_files(writers: Mapping[Path, Callable[[Path], Any]]) -> None:
    """Write files beside their targets, then rename them, the only step that others can see: all of them, or none if one fails.

    Args:
        writers: What writes each file, given the path of its draft, which ends like the target.

    Raises:
        OSError: A file cannot be written; the message names it and the reason.
    """
    drafts = {target: target.with_name(f".{uuid.uuid4().hex[:8]}{target.suffix}") for target in writers}
    try:
        for target, write_draft in writers.items():
            with _named(target):
                write_draft(drafts[target])
                _flush(drafts[target])
        for target, draft in drafts.items():
            with _named(target):
                os.replace(draft, target)
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Have the content of a file on the disk before its name is."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextmanager
def _named(target: Path) -> Iterator[None]:
    """Errors name the file that was to be written, not its draft."""
    try:
        yield
    except OSError as error:
        number = re.search(r"\[errno (\d+)\]", str(error))  # how pyarrow says it
        reason = os.strerror(int(number[1])) if number else error.strerror or str(error)
        raise OSError(f"{target} could not be written: {reason[:1].lower()}{reason[1:]}") from error
