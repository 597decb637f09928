"""One fit in several processes: a launcher on this machine, and joining the processes of a cluster."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import IO, Any

PLACE = "PRODSSM_PROCESS"  # address of the first process, number of processes, which one this is
GRACE = 30.0  # seconds that the other processes have to end once one has ended
POLL = 0.1

command_line: ContextVar[Sequence[str]] = ContextVar("command_line", default=())
"""The words of the command that is running."""


def joined(distributed: bool) -> bool:
    """Whether this process is one of several, which it then knows; by the launcher, or by what the cluster says of it.

    Args:
        distributed: Ask the cluster (SLURM, MPI, Kubernetes, or the variables that `jax.distributed.initialize` reads).
    """
    place = os.environ.get(PLACE)
    if place is None and not distributed:
        return False
    import jax

    if place is None:
        try:
            jax.distributed.initialize()
        except (ValueError, RuntimeError) as error:
            raise ValueError(
                f"--distributed found no cluster ({error}); SLURM, MPI and Kubernetes say what JAX needs, --processes starts "
                "processes here"
            ) from error
        return True
    address, count, number = place.rsplit(",", 2)
    threading.Thread(target=_end_with_launcher, daemon=True).start()
    ids = int(number)  # of the one device that each has, where devices are not those of the CPU
    jax.distributed.initialize(address, int(count), ids, local_device_ids=[ids], coordinator_bind_address=address)
    return True


def _end_with_launcher() -> None:
    """Wait until the launcher is gone, whose end of a pipe is then closed, and end like it."""
    # Not by way of sys.stdin: its lock, held by a daemon thread, would abort the interpreter as it shuts down.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def is_first() -> bool:
    """Whether this is the process that prints and writes."""
    import jax

    return jax.process_index() == 0


def launched(count: int) -> int:
    """Run this command in so many processes on this machine, and return the exit code; the first one alone has a voice.

    They end together: if one fails, the others are ended; Ctrl-C and SIGTERM reach all of them.
    """
    words = command_line.get()
    if sys.platform == "win32":
        raise ValueError("--processes needs signals that Windows does not have; use --distributed, or one process")
    place, running = f"127.0.0.1:{_free_port()},{count}", []
    before = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGTERM, signal.SIGHUP)}
    try:
        with tempfile.TemporaryFile() as silent:
            for n in range(count):
                running.append(_started(words, f"{place},{n}", None if n == 0 else silent))
            return _ended_together(running, silent)
    finally:
        for each in running:
            each.kill()
        for number, handler in before.items():
            signal.signal(number, handler)


def _started(words: Sequence[str], place: str, output: IO[bytes] | None) -> Any:
    """One of the processes, in a group of its own, so that the terminal's signals come through the launcher, once."""
    command = [sys.executable, "-P", "-c", "from prodssm.cli import main; main()", *words]
    streams: Any = {} if output is None else {"stdout": output, "stderr": output}
    return subprocess.Popen(command, env=os.environ | {PLACE: place}, start_new_session=True, stdin=subprocess.PIPE, **streams)


def _ended_together(running: Sequence[Any], silent: IO[bytes]) -> int:
    """The exit code of the first process, or that of the first one that fails, whose last words are then printed."""
    deadline, interrupted = None, False
    while any(each.poll() is None for each in running):
        failed = [each for each in running if each.returncode]
        if failed and deadline is None:
            deadline = time.monotonic() + GRACE
        if deadline is not None and time.monotonic() > deadline:
            for each in running:
                each.kill()
        try:
            time.sleep(POLL)
        except KeyboardInterrupt:
            interrupted = True
            for each in running:
                each.send_signal(signal.SIGTERM)
    failed = [each for each in running if each.returncode]
    if interrupted:
        raise KeyboardInterrupt
    if not failed:
        return 0
    if running[0].returncode <= 0:  # the first one has said nothing of its own
        silent.seek(0)
        sys.stderr.write(silent.read()[-2000:].decode(errors="replace"))
    return next((each.returncode for each in failed if each.returncode > 0), 1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
