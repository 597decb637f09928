"""Ctrl-C and SIGTERM during training: at once in one process, at the end of a chunk in several, which stop together."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

SIGNALS = (signal.SIGINT, signal.SIGTERM)
SAME = 2.0  # seconds within which several signals are one: a launcher and a scheduler may both send theirs


class Interrupts:
    """Signals that have come to this process.

    Attributes:
        several: Whether several processes train together.
        noted: When the first one has come that was not acted on.
    """

    def __init__(self, several: bool):
        self.several = several
        self.noted: float | None = None

    def note(self, number: int, *_: Any) -> None:
        """Take in a signal; a later one ends the process, whatever the others do."""
        now = time.monotonic()
        if self.noted is None:
            self.noted = now
            sys.stderr.write("stopping at the end of these iterations\n" if jax.process_index() == 0 else "")
        elif now - self.noted > SAME:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def raise_together(self) -> None:
        """Raise KeyboardInterrupt in all processes if a signal has come to one of them.

        A process that stopped alone would leave the others waiting in a collective.
        """
        if self.several and multihost_utils.process_allgather(np.asarray(self.noted is not None)).any():
            raise KeyboardInterrupt


@contextmanager
def interrupts(several: bool) -> Iterator[Interrupts]:
    """A context in which SIGTERM is like Ctrl-C unless the process handles it already; in several processes both are noted."""
    found, before = Interrupts(several), {}
    if threading.current_thread() is threading.main_thread():
        if several:
            before = {each: signal.signal(each, found.note) for each in SIGNALS}
        elif signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            before = {signal.SIGTERM: signal.signal(signal.SIGTERM, signal.default_int_handler)}
    try:
        yield found
    finally:
        for each, handler in before.items():
            if handler is not None:  # None: it was installed by another language
                signal.signal(each, handler)
