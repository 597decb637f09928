"""Files in the safetensors format: named arrays and a JSON description. Nothing in them is ever executed.

A file holds a kind ("checkpoint", the name of an estimator), a JSON configuration and named arrays. `flatten` and `restore`
turn models, optimiser states and random keys into named arrays and back, bit by bit.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import safetensors
import safetensors.numpy

from prodssm._files import checked_target, replace_at_once

FORMAT_VERSION = 2
DTYPES = {"bool", "float16", "float32", "float64"} | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}

Tree = TypeVar("Tree")


class FileError(ValueError):
    """A file that cannot be used: what is wrong with it, and what to do."""


@dataclass(frozen=True, eq=False)
class Stored:
    """What was read from a file.

    Attributes:
        kind: What the file holds.
        config: Its description; tuples come back as lists.
        arrays: NumPy arrays with the type and shape that they were written with, whatever JAX is set to.
        library_version: Version of prodssm that wrote it.
        format_version: Version of the file format.
    """

    kind: str
    config: dict[str, Any]
    arrays: dict[str, np.ndarray]
    library_version: str
    format_version: int = FORMAT_VERSION


def write(
    path: str | os.PathLike[str], kind: str, config: dict[str, Any], arrays: dict[str, Any], *, overwrite: bool = True
) -> None:
    """Write one file, all of it or nothing: under its name there is never half a file, even if the process is killed.

    Args:
        path: Where; the folder must exist.
        kind: What the file holds.
        config: Its description: whatever JSON can say, with string keys and finite numbers.
        arrays: Numbers or booleans by name; type and shape are kept exactly.
        overwrite: Whether a file that is already there may be replaced.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write(f"{folder}/a.safetensors", "note", {"unit": "m"}, {"x": np.arange(2.0)})
        ...     read(f"{folder}/a.safetensors").arrays["x"].tolist()
        [0.0, 1.0]
    """
    target = checked_target(path)
    if target.exists() and not overwrite:
        raise FileExistsError(f"{target} is already there; choose another path or say overwrite=True")
    header = {
        "format": "prodssm",
        "format_version": str(FORMAT_VERSION),
        "library_version": _library_version(),
        "kind": _checked_kind(kind),
        "config": _as_json(config),
    }
    checked = _checked_arrays(arrays)
    replace_at_once(target, safetensors.numpy.save(checked, metadata=header))


def read(path: str | os.PathLike[str]) -> Stored:
    """Read what `write` has written.

    Args:
        path: The file.

    Returns:
        Its content.

    Raises:
        FileNotFoundError: There is no such file.
        FileError: The file is damaged, of another library, or of a newer version of this one.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path, or save to it first")
    if not path.is_file():
        raise FileError(f"{path} is not a file; give the path of a file that prodssm has saved")
    with path.open("rb") as file:
        start = file.read(9)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            header = file.metadata() or {}
            description = _checked_header(path, header)
            arrays = {name: _array(path, file, name) for name in file.keys()}
    except safetensors.SafetensorError as error:
        raise FileError(f"{path} {_diagnosis(start)} ({error})") from error
    return Stored(header["kind"], description, arrays, header["library_version"], int(header["format_version"]))


def flatten(tree: Any) -> dict[str, np.ndarray]:
    """The arrays in a model, an optimiser state or any other tree, named by where they stand in it.

    Numbers and booleans in JAX or NumPy arrays are taken, random keys as their data. All else (functions, text, Python numbers)
    is left to the template that `restore` is given.

    Args:
        tree: Any JAX or equinox tree.

    Returns:
        Copies of the arrays by name, such as `layers.0.weight`.

    Example:
        >>> flatten({"a": [jnp.ones(2), "text"], "b": np.arange(3)}).keys()
        dict_keys(['a.0', 'b'])
    """
    return {name: np.array(_data(leaf)) for name, leaf in _named_leaves("tree", tree).items()}


def restore(template: Tree, arrays: dict[str, np.ndarray]) -> Tree:
    """A tree like the template, with its arrays replaced by those that `flatten` took from another one.

    The stored types win over those of the template, so that every bit is as it was.

    Args:
        template: A tree of the same structure; what is not an array is taken from it.
        arrays: By name, as `flatten` has made them.

    Returns:
        The tree.
    """
    wanted = _named_leaves("template", template)
    missing, unknown = (sorted(a - b) for a, b in ((wanted.keys(), arrays.keys()), (arrays.keys(), wanted.keys())))
    if missing or unknown:
        raise ValueError(f"arrays must have the names of the template; missing: {_some(missing)}; unknown: {_some(unknown)}")
    new = iter([_like(name, leaf, np.asarray(arrays[name])) for name, leaf in wanted.items()])
    return jax.tree.map(lambda leaf: next(new) if _is_stored(leaf) else leaf, template)


# ---------------------------------------------------------------- leaves of trees


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_stored(leaf: Any) -> bool:
    """Whether a leaf is an array of numbers or booleans, or a random key."""
    if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
        return False
    return _is_key(leaf) or jnp.issubdtype(leaf.dtype, np.number) or leaf.dtype == bool


def _named_leaves(argument: str, tree: Any) -> dict[str, Any]:
    """Leaves that are stored, by name and in the order of the tree."""
    found = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        if _is_stored(leaf):
            # A tree that is nothing but one array has an empty path.
            name = jax.tree_util.keystr(path, simple=True, separator=".") or "value"
            if name in found:
                raise ValueError(f"{argument} must have a name of its own for every array, got two called {name!r}")
            found[name] = leaf
    return found


def _data(leaf: Any) -> Any:
    """The numbers of a leaf."""
    return jr.key_data(leaf) if _is_key(leaf) else leaf


def _like(name: str, leaf: Any, array: np.ndarray) -> Any:
    """A stored array as a leaf of the template's kind."""
    data = _data(leaf)
    if array.shape != data.shape:
        raise ValueError(f"{name} must have shape {data.shape} like the template, got {array.shape}")
    if array.dtype.kind != data.dtype.kind or (_is_key(leaf) and array.dtype != data.dtype):
        raise ValueError(f"{name} must be of the kind of {data.dtype} like the template, got {array.dtype}")
    if not isinstance(leaf, jax.Array):
        # [()] makes a scalar of an array without axes.
        return array.copy() if isinstance(leaf, np.ndarray) else array.copy()[()]
    if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype:
        raise ValueError(
            f"{name} is {array.dtype}, which JAX would round now; "
            "say jax.config.update('jax_enable_x64', True) before anything else, or convert the arrays first"
        )
    copied = jnp.array(array)
    return jr.wrap_key_data(copied, impl=jr.key_impl(leaf)) if _is_key(leaf) else copied


def _some(names: list[str]) -> str:
    """The first few names, for error messages."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "") if names else "none"


# ---------------------------------------------------------------- what is written


def _library_version() -> str:
    # Submodules do not import the package itself, but it is always loaded when one of them is.
    return str(sys.modules["prodssm"].__version__)


def _checked_kind(kind: Any) -> str:
    if not isinstance(kind, str) or not kind:
        raise TypeError(f"kind must be a word, got {kind!r}")
    return kind


def _as_json(config: Any) -> str:
    if not isinstance(config, dict):
        raise TypeError(f"config must be a dictionary, got {type(config).__name__}")
    try:
        text = json.dumps(config, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"config must be made of what JSON can say: {error}; put other numbers into arrays") from error
    # JSON would make words of other keys, without a word.
    if not _has_words_as_keys(config):
        raise TypeError("config must have strings as keys, also in the dictionaries inside it")
    return text


def _has_words_as_keys(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) and _has_words_as_keys(inner) for key, inner in value.items())
    return not isinstance(value, list | tuple) or all(_has_words_as_keys(inner) for inner in value)


def _checked_arrays(arrays: Any) -> dict[str, np.ndarray]:
    """Arrays with their numbers in a row."""
    if not isinstance(arrays, dict):
        raise TypeError(f"arrays must be a dictionary, got {type(arrays).__name__}")
    checked = {}
    for name, value in arrays.items():
        if not isinstance(name, str) or name in ("", "__metadata__"):
            raise ValueError(f"arrays must have words as names, got {name!r}")
        array = np.asarray(value)
        if array.dtype.name not in DTYPES:
            raise TypeError(f"arrays[{name!r}] must be real numbers or booleans, got dtype {array.dtype}")
        # The format writes memory as it lies there: anything but C order would come back scrambled.
        checked[name] = np.array(array, order="C")
    return checked


# ---------------------------------------------------------------- what is read


def _diagnosis(start: bytes) -> str:
    """What is wrong with an unreadable file, by its first bytes: a safetensors header opens with a brace."""
    if not start:
        return "is empty; take another copy, or save again"
    if start[8:] == b"{":
        return "is damaged or was cut short; take another copy, or save again"
    return "is not a safetensors file; give the path of a file that prodssm has saved"


def _array(path: Path, file: Any, name: str) -> np.ndarray:
    """One array of an open file."""
    try:
        return file.get_tensor(name)
    except (AttributeError, TypeError) as error:
        raise FileError(f"{path} has numbers in {name!r} of a type that prodssm does not write; save again") from error


def _checked_header(path: Path, header: dict[str, str]) -> dict[str, Any]:
    """The description in a header, after a look at everything else in it."""
    if header.get("format") != "prodssm":
        raise FileError(f"{path} was not written by prodssm; load it with the library that wrote it")
    damaged = f"{path} has a damaged header; take another copy, or save again"
    try:
        version = int(header.get("format_version", ""))
    except ValueError:
        version = 0
    if version < 1:
        raise FileError(f"{damaged} (format_version is not a positive number)")
    if version > FORMAT_VERSION:
        raise FileError(
            f"{path} was written by a newer prodssm ({header.get('library_version', 'unknown')}, file format {version}; "
            f"this one reads up to {FORMAT_VERSION}); upgrade prodssm"
        )
    absent = [key for key in ("library_version", "kind", "config") if key not in header]
    if absent:
        raise FileError(f"{damaged} (without {', '.join(absent)})")
    try:
        config = json.loads(header["config"])
    except (ValueError, RecursionError) as error:
        raise FileError(f"{damaged} (config is not JSON: {error})") from error
    if not isinstance(config, dict):
        raise FileError(f"{damaged} (config is not a dictionary)")
    return config
