"""Ctrl-C and SIGTERM during training: at once in one process, at the end of a chunk in several, which stop together."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Signals that have come to this process.

    Attributes:
        noted: Whether one has come that was not acted on.
    """

    def __init__(self):
        self.noted = False

    def note(self, *_: Any) -> None:
        """Take in a signal; the next one ends the process, whatever the others do."""
        self.noted = True
        for each in SIGNALS:
            signal.signal(each, signal.SIG_DFL)

    def raise_together(self) -> None:
        """Raise KeyboardInterrupt in all processes if a signal has come to one of them.

        A process that stopped alone would leave the others waiting in a collective.
        """
        if jax.process_count() > 1 and multihost_utils.process_allgather(np.asarray(self.noted)).any():
            raise KeyboardInterrupt


@contextmanager
def interrupts() -> Iterator[Interrupts]:
    """A context in which SIGTERM is like Ctrl-C unless the process handles it already; in several processes both are noted."""
    found = Interrupts()
    if threading.current_thread() is not threading.main_thread():
        yield found
        return
    before = {each: signal.getsignal(each) for each in SIGNALS}
    if jax.process_count() > 1:
        for each in SIGNALS:
            signal.signal(each, found.note)
    elif before[signal.SIGTERM] is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield found
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
