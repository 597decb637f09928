"""One model on many devices: each takes a share of every batch of series, and XLA's collectives add up what they find.

All arrays are replicated; what is divided is the work. Every device draws the same batch and takes its own part of it, so the
answer is that of one device up to the order of summation. Devices may belong to several processes (`jax.distributed`), which
run the same code on the same data.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

AXIS = "series"

_chosen: ContextVar[Mesh | None] = ContextVar("mesh", default=None)


@contextmanager
def use_mesh(mesh: Any) -> Iterator[Mesh]:
    """A context in which training uses the devices of a mesh; by default it uses all devices of all processes.

    Args:
        mesh: Of any shape: its devices share the series of a batch.

    Example:
        >>> one = jax.sharding.Mesh(jax.devices()[:1], "series")
        >>> with use_mesh(one):
        ...     model.fit(y).history_.iterations
        [5]
    """
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must be a jax.sharding.Mesh, got {type(mesh).__name__}")
    token = _chosen.set(mesh)
    try:
        yield mesh
    finally:
        _chosen.reset(token)


def training_mesh(series: int) -> Mesh | None:
    """The devices that share so many series; None for the only one, whose programs need no collectives."""
    chosen = _chosen.get()
    devices = list(jax.devices() if chosen is None else chosen.devices.flat)
    if jax.process_count() == 1:
        devices = devices[:series]
    return None if chosen is None and len(devices) == 1 else Mesh(np.array(devices), (AXIS,))


def on_all(mesh: Mesh | None, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as every device of a mesh computes it, from the same arguments to the same answer."""
    if mesh is None:
        return function

    def run(*args: Any) -> Any:
        arrays, rest = eqx.partition(args, eqx.is_array)

        def on_one(arrays: Any) -> Any:
            return function(*eqx.combine(arrays, rest))

        # Not checked: the checker would ask every scan of the recursion to say which of its arrays differ between devices.
        spread = jax.shard_map(on_one, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec(), check_vma=False)
        return spread(arrays)

    return run


def total(value: Any, mesh: Mesh | None) -> Any:
    """The sum over devices of what each of them has found."""
    return value if mesh is None else jax.lax.psum(value, AXIS)


def share_of(members: Any, mesh: Mesh | None) -> tuple[Any, Array | None]:
    """This device's part of the arrays of a batch, and which of its rows count; None for all of them."""
    if mesh is None:
        return members, None
    count = jax.tree.leaves(members)[0].shape[0]
    size = -(-count // mesh.size)
    mine = jax.lax.axis_index(AXIS) * size + jnp.arange(size, dtype=jnp.int32)
    here = jnp.minimum(mine, count - 1)
    return jax.tree.map(lambda part: jnp.asarray(part)[here], members), mine < count


def local(tree: Any, mesh: Mesh | None) -> Any:
    """What all devices hold alike as arrays of one, so that the next call is no other program; without a mesh as it is."""
    return tree if mesh is None else jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), tree)


def together(mesh: Mesh | None) -> bool:
    """Whether several processes take part in a training."""
    return mesh is not None and jax.process_count() > 1


def require_same(mesh: Mesh | None, words: str, why: str) -> None:
    """Raise unless all processes of a training have the same words."""
    if together(mesh):
        mine = np.frombuffer(hashlib.sha256(words.encode()).digest(), np.uint8)
        if not (multihost_utils.process_allgather(mine) == mine).all():
            raise ValueError(f"the processes of this training differ: {why}")


def raise_together(mesh: Mesh | None, error: Exception | None) -> None:
    """Raise the error of this process; without one, raise if another process has one, which would leave this one waiting."""
    failed = together(mesh) and multihost_utils.process_allgather(np.asarray(error is not None)).any()
    if error is not None:
        raise error
    if failed:
        raise ValueError("another process of this training could not begin; it says why")
