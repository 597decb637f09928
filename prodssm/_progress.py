"""Long work tells the time: a progress bar, and lines with the time left in the log `prodssm`.

import logging
logging.basicConfig(level=logging.INFO)   # or logging.getLogger("prodssm").addHandler(...)
"""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm.auto import tqdm

LOG = logging.getLogger("prodssm")
SECONDS = 10.0  # between two lines of one piece of work


class Progress:
    """How far a piece of work is, on a bar and in the log.

    Attributes:
        done: Units so far.
        total: Units in all.
    """

    def __init__(self, what: str, total: int, unit: str = "it", *, shown: Any = True, initial: int = 0, delay: float = 0.0):
        self.what, self.unit, self.total, self.done, self.first = what, unit, total, initial, initial
        self.bar = tqdm(total=total, initial=initial, disable=not shown, desc=what, unit=unit, delay=delay)
        self.begin = self.said = time.monotonic()

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def update(self, count: int = 1, note: str = "") -> None:
        """Take in that so many units are done."""
        if self.done == self.first:
            self.bar.unpause()  # the first one is compilation, of which no more is to come
        self.done += count
        if note:
            self.bar.set_postfix_str(note, refresh=False)  # a delayed bar is not to be shown before its time
        self.bar.update(count)
        now = time.monotonic()
        if now - self.said >= SECONDS:
            self.said = now
            left = (now - self.begin) / max(self.done - self.first, 1) * (self.total - self.done)
            parts = self.what, self.done, self.total, self.unit, tqdm.format_interval(left), f", {note}" if note else ""
            LOG.info("%s: %d of %d %s, %s left%s", *parts)

    def leave_out(self, count: int) -> None:
        """Take units that are not needed from the total."""
        self.total -= count
        self.bar.total = self.total

    def close(self) -> None:
        """End the bar."""
        spent = tqdm.format_interval(time.monotonic() - self.begin)
        LOG.info("%s: %d of %d %s in %s", self.what, self.done, self.total, self.unit, spent)
        self.bar.close()


_shared: ContextVar[Progress | None] = ContextVar("progress", default=None)


@contextmanager
def shared(progress: Progress | None) -> Iterator[None]:
    """A context in which all training counts on one progress, so that its remaining time is that of all."""
    token = _shared.set(progress)
    try:
        yield
    finally:
        _shared.reset(token)


def shared_progress() -> Progress | None:
    """What all training counts on, if anything."""
    return _shared.get()
