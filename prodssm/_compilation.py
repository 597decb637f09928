"""Compiled programs: a bounded cache, one BLAS thread while they run, an interruptible call, buckets, a cache on disk.

Compilation takes seconds where a call takes milliseconds, and every program holds hundreds of memory maps, of which a process
has at most 65,530 on Linux. So arrays are padded to few lengths (`bucket`), and only the latest programs are kept.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import cache, update_wrapper
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from threadpoolctl import ThreadpoolController

QUICK = 0.2  # seconds of a call that need not be interruptible
# Batched solves that XLA:CPU runs at the same time can wait for each other's threads forever (scripts/xla_deadlock.py).
ONE_AT_A_TIME: dict[str, Any] = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
MOST_PROGRAMS = 32
"""Compiled programs of this library that are kept, the least recently used one is released first; see `keep_programs`."""

Answer = TypeVar("Answer")


def bucket(count: int) -> int:
    """The padded length of an axis: four lengths per power of two, at most a quarter more than `count`.

    Example:
        >>> [bucket(n) for n in (1, 7, 9, 100, 120, 1000)]
        [1, 7, 10, 112, 128, 1024]
    """
    step = 1 << max((count - 1).bit_length() - 3, 0)
    return -(-count // step) * step


def pad(array: np.ndarray, length: int, fill: float = 0.0) -> np.ndarray:
    """A NumPy array with its first axis padded to a length."""
    rows = [(0, length - array.shape[0]), *[(0, 0)] * (array.ndim - 1)]
    return np.pad(array, rows, constant_values=fill)


def scan(body: Callable[[Any, Any], tuple[Any, Any]], first: Any, inputs: Any, **options: Any) -> tuple[Any, Any]:
    """`jax.lax.scan`, but a scan of length one is a plain call: XLA:CPU unrolls it and may then read uninitialised memory."""
    if jax.tree.leaves(inputs)[0].shape[0] != 1:
        return jax.lax.scan(body, first, inputs, **options)
    last, found = body(first, jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], inputs))
    return last, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], found)


def is_traced(tree: Any) -> bool:
    """Whether any leaf is a tracer: then a caller compiles, or differentiates, and lengths are static."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(tree))


# ---------------------------------------------------------------- programs


class _Programs:
    """Compiled programs by function, structure and types of the arguments; the least recently used one is released."""

    def __init__(self):
        self.lock, self.most = threading.Lock(), MOST_PROGRAMS
        self.kept: OrderedDict[Any, tuple[Any, Any]] = OrderedDict()

    def get(self, key: Any) -> tuple[Any, Any] | None:
        with self.lock:
            if key in self.kept:
                self.kept.move_to_end(key)
            return self.kept.get(key)

    def add(self, key: Any, program: tuple[Any, Any]) -> None:
        with self.lock:
            self.kept[key] = program
            self.shrink()

    def shrink(self) -> None:
        while len(self.kept) > self.most:
            self.kept.popitem(last=False)


_programs = _Programs()


def keep_programs(most: int) -> int:
    """Set how many compiled programs of this library are kept, and return how many were kept before.

    The default, 32, needs at most some 40,000 memory maps. Programs of other JAX functions are not touched.

    Example:
        >>> before = keep_programs(64)
        >>> keep_programs(before)
        64
    """
    if isinstance(most, bool) or not isinstance(most, int) or most < 1:
        raise ValueError(f"most must be a positive integer, got {most!r}")
    with _programs.lock:
        before, _programs.most = _programs.most, most
        _programs.shrink()
    return before


class _Compiled(Generic[Answer]):
    """A function of trees that is compiled once per structure and types of its arguments; see `compiled`."""

    def __init__(self, function: Callable[..., Answer]):
        self.function = function
        update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Answer:
        leaves, structure = jax.tree.flatten((args, kwargs))
        if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
            args, kwargs = jax.tree.unflatten(structure, [jnp.asarray(leaf) if _is_array(leaf) else leaf for leaf in leaves])
            return self.function(*args, **kwargs)
        with one_blas_thread():
            program, answer = self._program(leaves, structure, lambda lowered: lowered.compile())
            return answer.merge(jax.block_until_ready(program(_arrays(leaves))))

    def interruptible(self, *args: Any, **kwargs: Any) -> Answer:
        """The same, but an exception that a signal raises, such as KeyboardInterrupt, ends the call at once.

        Compilation and execution go on in a thread, whose result is then dropped. A program that was quick the last
        time is not worth a thread.
        """
        leaves, structure = jax.tree.flatten((args, kwargs))
        with one_blas_thread():
            program, answer = self._program(leaves, structure, lambda lowered: _in_thread(lowered.compile))
            begin = time.monotonic()

            def run() -> list[Any]:
                return jax.block_until_ready(program(_arrays(leaves)))

            arrays = run() if answer.seconds < QUICK else _in_thread(run)
            answer.seconds = time.monotonic() - begin
            return answer.merge(arrays)

    def _program(self, leaves: list[Any], structure: Any, compile_: Callable[[Any], Any]) -> tuple[Any, "_Split"]:
        """The compiled program, and the part of its answer that is not arrays."""
        key = (self, structure, jax.config.jax_enable_x64, *map(_type_of, leaves))  # type: ignore[attr-defined]
        found = _programs.get(key)
        if found is None:
            fixed, answer = [None if _is_array(leaf) else leaf for leaf in leaves], _Split()

            def run(arrays: list[Any]) -> list[Any]:
                args, kwargs = jax.tree.unflatten(structure, _merged(arrays, fixed))
                return answer.split(self.function(*args, **kwargs))

            # Ahead of time: a program that belongs to nobody but this cache is released with its entry.
            found = compile_(jax.jit(run, compiler_options=_options()).lower(_arrays(leaves))), answer
            _programs.add(key, found)
        return found


@cache
def _options() -> dict[str, Any] | None:
    """Options of the compiler, as far as it knows them."""
    if jax.default_backend() != "cpu":
        return None
    try:
        jax.jit(lambda: 0, compiler_options=ONE_AT_A_TIME).lower().compile()
    except jax.errors.JaxRuntimeError:  # an older compiler, which has no such option
        return None
    return ONE_AT_A_TIME


class _Split:
    """A tree as its arrays, which a program returns, and all else, which is known once it was traced.

    Attributes:
        seconds: What the last interruptible call of the program took.
    """

    def __init__(self):
        self.seconds = float("inf")

    def split(self, tree: Any) -> list[Any]:
        leaves, self.structure = jax.tree.flatten(tree)
        self.fixed = [None if _is_array(leaf) else leaf for leaf in leaves]
        return [leaf if _is_array(leaf) else None for leaf in leaves]

    def merge(self, arrays: list[Any]) -> Any:
        return jax.tree.unflatten(self.structure, _merged(arrays, self.fixed))


def _merged(arrays: list[Any], fixed: list[Any]) -> list[Any]:
    return [leaf if array is None else array for array, leaf in zip(arrays, fixed, strict=True)]


def compiled(function: Callable[..., Answer]) -> _Compiled[Answer]:
    """Compile a function of trees once per structure, static leaves, shapes and types of its arguments.

    Leaves that are arrays of NumPy or JAX are traced, all others are static. BLAS has one thread while it runs, and the answer
    is ready when it returns. Within another traced function it is that function's part.
    """
    return _Compiled(function)


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array | np.ndarray | np.generic)


def _arrays(leaves: list[Any]) -> list[Any]:
    """The leaves that are traced, in JAX's precision; None in place of the others."""
    return [leaf if isinstance(leaf, jax.Array) else _in_precision(leaf) for leaf in leaves]


def _in_precision(leaf: Any) -> np.ndarray | None:
    return np.asarray(leaf, _precision(leaf.dtype)) if isinstance(leaf, np.ndarray | np.generic) else None


def _type_of(leaf: Any) -> Any:
    """What a program depends on: shape and type of an array and, where there are several, its device; or the static leaf."""
    if isinstance(leaf, jax.Array):
        weak = getattr(leaf, "weak_type", False)  # keys have none
        return (leaf.shape, leaf.dtype, weak) if _one_device() else (leaf.shape, leaf.dtype, weak, leaf.sharding)
    return (leaf.shape, _precision(leaf.dtype), False) if _is_array(leaf) else leaf


@cache
def _one_device() -> bool:
    return jax.device_count() == 1


def _precision(dtype: Any) -> Any:
    return jax.dtypes.canonicalize_dtype(dtype)


def _in_thread(function: Callable[[], Answer]) -> Answer:
    """Run a function in a thread; the main thread, which alone receives signals, waits in Python."""
    answers: list[Answer] = []
    errors: list[BaseException] = []
    finished = threading.Event()

    def run() -> None:
        try:
            answers.append(function())
        except BaseException as error:
            errors.append(error)
        finally:
            finished.set()

    # Not a daemon: these are killed at the end of the process, inside of XLA, which aborts.
    threading.Thread(target=run, name="prodssm").start()
    # Not by `join`: a thread whose join is interrupted counts as ended in Python 3.11, and is not waited for at the end.
    while not finished.wait(0.05):
        pass
    if errors:
        raise errors[0]
    return answers[0]


# ---------------------------------------------------------------- BLAS


class _OneBlasThread:
    """Holds BLAS to one thread while any thread of Python is inside.

    JAX's batched LAPACK calls on the CPU share SciPy's OpenBLAS, whose threads wait for each other actively: with two of them
    on a busy machine small triangular solves take hundreds of times as long. The controller is made once: it searches all
    loaded libraries.
    """

    def __init__(self):
        self.lock, self.inside, self.limit = threading.Lock(), 0, None

    def __enter__(self) -> None:
        with self.lock:
            self.inside += 1
            if self.inside == 1:
                _release_control()
                self.limit = _blas().limit(limits=1)

    def __exit__(self, *_: object) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0 and self.limit is not None:
                _release_control()
                self.limit.restore_original_limits()
                _release_control()


@cache
def _blas() -> ThreadpoolController:
    import scipy.linalg.cython_blas  # noqa: F401  # JAX loads it later, when the search would have missed it

    return ThreadpoolController().select(user_api="blas")


def _release_control() -> None:
    """Let any thread change the limit: from version 3.8 on, threadpoolctl ignores all but the one that has set it."""
    for library in _blas().lib_controllers:
        release = getattr(library, "clear_controlling_thread", None)
        if release is not None:
            release(force=True)


_one_blas_thread = _OneBlasThread()


def one_blas_thread() -> _OneBlasThread:
    """A context in which BLAS has one thread; it may be entered by several threads, and again inside."""
    return _one_blas_thread


# ---------------------------------------------------------------- compilation on disk


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs on disk, so that the next process starts without compiling them again.

    Sets JAX's own persistent compilation cache for this process, hence for all of its JAX functions.

    Args:
        folder: Where; by default `prodssm` in the user's cache folder (`XDG_CACHE_HOME`, else `~/.cache`).

    Returns:
        The folder.

    Example:
        >>> enable_compilation_cache("programs").name
        'programs'
    """
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(home) / "prodssm"
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path
