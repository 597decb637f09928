"""Independent jobs, one after the other or as joblib is configured.

`with joblib.parallel_config("loky", n_jobs=4)`, `("dask")` or `("ray")` around a fit or a backtest is all that a user changes.
"""

import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any

import jax

ATTEMPTS = 3  # at the jobs that a lost worker took with it


def in_parallel(n_jobs: int | None = None) -> bool:
    """Whether joblib would do several jobs at a time; not in processes that train together, whose collectives would mix."""
    import joblib  # slow to import

    return joblib.effective_n_jobs(n_jobs) > 1 and jax.process_count() == 1  # type: ignore[arg-type]


def run_jobs(function: Callable[..., Any], calls: Sequence[tuple], n_jobs: int | None = None) -> Iterator[tuple[int, Any]]:
    """The number and the answer of each call as they come; in order and in this process if joblib has one worker.

    A worker that is lost costs the calls that were under way.

    Args:
        function: Of a module, so that other processes can import it.
        calls: Its arguments, call by call.
        n_jobs: Calls at a time; as joblib is configured if not given.
    """
    if not in_parallel(n_jobs):
        for number, call in enumerate(calls):
            yield number, function(*call)
        return
    import joblib

    backend = joblib.parallel.get_active_backend()[0]
    mode = "generator_unordered" if getattr(backend, "supports_return_generator", False) else "list"
    threads = getattr(backend, "supports_sharedmem", False)
    left = dict(enumerate(calls))
    for attempt in range(1, ATTEMPTS + 1):
        # As bytes: the worker sets its precision before it makes arrays of them. One by one, because each may hold all data.
        jobs = (
            joblib.delayed(_answer)(number, _pickled((function, call)), _precise(), copy_context() if threads else None)
            for number, call in list(left.items())
        )
        answers: Any = joblib.Parallel(n_jobs=n_jobs, return_as=mode)  # type: ignore[arg-type]
        try:
            with _replaced_workers():
                for number, answer in answers(jobs):
                    del left[number]
                    yield number, answer
            return
        except BrokenProcessPool:
            if attempt == ATTEMPTS:
                raise


@contextmanager
def _replaced_workers() -> Iterator[None]:
    """A context in which loky may replace workers whose memory has grown, as it does by every compiled program.

    It warns of that in the thread that waits for answers. Where warnings are errors, the thread would end, and no answer come.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        yield


def _answer(number: int, call: bytes, precise: bool, context: Context | None) -> tuple[int, Any]:
    """The answer of a pickled call in the precision of the process that asks for it, whatever that of the worker is."""
    with _precision(precise):
        function, arguments = pickle.loads(call)
        return number, function(*arguments) if context is None else context.run(function, *arguments)


def _pickled(value: Any) -> bytes:
    """Bytes of anything, functions of a notebook included."""
    try:
        import cloudpickle
    except ImportError:  # older versions of joblib bring their own
        from joblib.externals import cloudpickle  # type: ignore[no-redef, attr-defined]
    return cloudpickle.dumps(value)


class _Precision:
    """Holds the precision of this process while jobs are inside; a worker may have several threads, and belongs to others."""

    def __init__(self):
        self.lock, self.inside, self.before = threading.Lock(), 0, False

    @contextmanager
    def __call__(self, precise: bool) -> Iterator[None]:
        with self.lock:
            if self.inside and precise != _precise():
                raise RuntimeError("jobs of different precision meet in one worker; give workers a single thread")
            if not self.inside and precise != _precise():
                self.before = _precise()
                # For all threads, because programs run in one of their own.
                jax.config.update("jax_enable_x64", precise)
            elif not self.inside:
                self.before = precise
            self.inside += 1
        try:
            yield
        finally:
            with self.lock:
                self.inside -= 1
                if not self.inside and self.before != _precise():
                    jax.config.update("jax_enable_x64", self.before)


_precision = _Precision()


def _precise() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
