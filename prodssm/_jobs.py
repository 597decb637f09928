"""Independent jobs, one after the other or as joblib is configured.

`with joblib.parallel_config("loky", n_jobs=4)`, `("dask")` or `("ray")` around a fit or a backtest is all that a user changes.
"""

import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any

import jax

ATTEMPTS = 3  # at the jobs that a lost worker took with it


def in_parallel(n_jobs: int | None = None) -> bool:
    """Whether joblib would do several jobs at a time."""
    import joblib  # slow to import

    return joblib.effective_n_jobs(n_jobs) > 1  # type: ignore[arg-type]


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

    left = dict(enumerate(calls))
    for attempt in range(1, ATTEMPTS + 1):
        # As bytes: the worker sets its precision before it makes arrays of them. One by one, because each may hold all data.
        jobs = (joblib.delayed(_answer)(number, _pickled((function, call)), _precise()) for number, call in list(left.items()))
        answers: Any = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered")  # type: ignore[arg-type]
        try:
            for number, answer in answers(jobs):
                del left[number]
                yield number, answer
            return
        except BrokenProcessPool:
            if attempt == ATTEMPTS:
                raise


def _answer(number: int, call: bytes, precise: bool) -> tuple[int, Any]:
    """The answer of a pickled call in the precision of the process that asks for it, whatever that of the worker is."""
    with _precision(precise):
        function, arguments = pickle.loads(call)
        return number, function(*arguments)


def _pickled(value: Any) -> bytes:
    """Bytes of anything, functions of a notebook included."""
    try:
        import cloudpickle
    except ImportError:  # older versions of joblib bring their own
        from joblib.externals import cloudpickle  # type: ignore[no-redef, attr-defined]
    return cloudpickle.dumps(value)


@contextmanager
def _precision(precise: bool) -> Iterator[None]:
    before = _precise()
    # For all threads, because programs run in one of their own; restored, because the worker belongs to others as well.
    if before != precise:
        jax.config.update("jax_enable_x64", precise)
    try:
        yield
    finally:
        if before != precise:
            jax.config.update("jax_enable_x64", before)


def _precise() -> bool:
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
