"""Checkpoints: the whole state of a training run in one file, with a fingerprint of what it belongs to."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from prodssm._storage import FileError, flatten, read, restore, write
from prodssm.methods.base import Method
from prodssm.models.state_space import StateSpaceModel
from prodssm.training.history import History
from prodssm.training.recipe import Recipe

NUMBERS = ("objective", "validation", "seconds")


class TrainingState(eqx.Module):
    """All that a run needs to continue.

    Attributes:
        learned: Parameters.
        opt_state: State of the optimiser.
        best: The best parameters so far.
        best_score: Their score.
        best_iteration: The iteration that they are from.
    """

    learned: Any
    opt_state: Any
    best: Any
    best_score: Array
    best_iteration: Array


def fingerprint(learned: Any, recipe: Recipe, words: Sequence[str], arrays: tuple[Any, ...], key: PRNGKeyArray) -> str:
    """A hash of where a run starts and of its data and settings: a checkpoint of anything else is refused."""
    digest = hashlib.sha256(json.dumps([asdict(recipe), *words], sort_keys=True).encode())
    for name, array in flatten((learned, *arrays, key)).items():
        digest.update(name.encode() + str(array.dtype).encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def describe_model(model: StateSpaceModel) -> tuple[str, ...]:
    """What a model is besides arrays: its static settings, activations and known functions."""
    functions = [each for each in (model.transition, model.emission, model.process_network) if each is not None]
    words = [word for each in functions for word in each.words]
    return model.weights, str(model.residual), str(model.rank), _static_text(model.likelihood), *words


def describe_method(method: Method) -> str:
    """A method and its parameters, its random key left out."""
    return _static_text(method)


def _static_text(module: eqx.Module) -> str:
    """Class and static fields of a module."""
    static = [f"{part.name}={getattr(module, part.name)}" for part in fields(module) if part.metadata.get("static")]
    return f"{type(module).__name__}({', '.join(static)})"


def write_checkpoint(path: str | os.PathLike[str], state: TrainingState, history: History, identity: str) -> None:
    """Write the state of a run."""
    config = {"identity": identity, "iterations": history.iterations}
    numbers = {f"history.{name}": np.asarray(getattr(history, name), float) for name in NUMBERS}
    write(path, "checkpoint", config, flatten(state) | numbers)


def read_checkpoint(path: str | os.PathLike[str], template: TrainingState, identity: str) -> tuple[TrainingState, History]:
    """Read the state of a run, which must be the one that this fingerprint belongs to."""
    try:
        stored = read(path)
    except FileError as error:
        raise FileError(f"checkpoint {error}; delete it to begin anew") from error
    if stored.kind != "checkpoint" or stored.config.get("identity") != identity:
        raise ValueError(
            f"checkpoint {path} belongs to another run (other data, settings or seed); delete it or choose another path"
        )
    numbers = {name: stored.arrays.pop(f"history.{name}").tolist() for name in NUMBERS}
    return restore(template, stored.arrays), History(iterations=stored.config["iterations"], **numbers)
