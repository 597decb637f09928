"""Known functions in an estimator: from the units of the data into those of the model, and into files that hold no code.

If the emission is the identity the state is the outputs, so physics is about states in the units of the data and is wrapped by
their scaling. Otherwise the state is what physics and emission say it is, and has no scaling; observations are scaled behind
the known emission. Controls are always in the units of the data, and rates per unit of its time.
"""

from typing import Any

import numpy as np

from prodssm._validation import as_array
from prodssm.data.scaling import DataScaling, Standardiser
from prodssm.models.parts import checked_functions
from prodssm.networks.base import Function
from prodssm.networks.known import Known, Units, as_known, name_of
from prodssm.training.initialisation import EMISSIONS, KNOWN, KnownParts, require_sizes

AUTO = "auto"


def is_known(emission: Any) -> bool:
    """Whether an emission is a known function or a matrix."""
    return callable(emission) or (not isinstance(emission, str) and np.ndim(emission) == 2)


def in_words(params: dict[str, Any]) -> dict[str, Any]:
    """Parameters of an estimator with a word in place of a known emission, and what physics implies where they say "auto"."""
    found = dict(params)
    if is_known(found["emission"]):
        found["emission"] = KNOWN
    if found.get("physics") is not None:
        found |= {"emission": "identity"} if found["emission"] == AUTO else {}
        # Units that saturate leave the physics in charge far from the data.
        found |= {"activation": "erf"} if isinstance(found["activation"], str) and found["activation"] == AUTO else {}
    return found


def require_known(params: dict[str, Any]) -> None:
    """Raise unless the parameters say what known functions need."""
    physics, emission = params["physics"], params["emission"]
    if isinstance(emission, str) and emission == KNOWN:
        require_sizes("emission", emission, EMISSIONS)
    if physics is None and params["hidden"] is None:
        raise ValueError("hidden must be 'auto' or sizes of hidden layers; None, no network, needs physics")
    if physics is not None and not callable(physics):
        raise TypeError(f"physics must be a function of (x, u), a prodssm.Known, or None, got {type(physics).__name__}")
    if physics is not None and params["residual"] == AUTO:
        raise ValueError(
            "residual must be given with physics: True if it returns the rate dx/dt, False if it returns the next state"
        )
    if is_known(emission) and params["latent_dim"] in (AUTO, None):
        raise ValueError("latent_dim must be given with a known emission: the number of states that it takes")


def known_parts(physics: Any, emission: Any, scaling: DataScaling, size: int, *, residual: bool) -> KnownParts:
    """Known functions of an estimator in the units of its model.

    Args:
        physics: A function of (x, u), `Known`, or None.
        emission: What is given for the emission.
        scaling: Of the data.
        size: Number of states.
        residual: Whether physics is a rate.
    """
    dtype, controls = scaling.y.mean.dtype, scaling.controls
    state = Standardiser.identity(size, dtype) if is_known(emission) or size != scaling.outputs else scaling.y
    u = (None, None) if scaling.u is None else (as_array("u", scaling.u.mean, 1), as_array("u", scaling.u.scale, 1))
    found = KnownParts()
    if is_known(emission):
        function = emission
        if not callable(emission):
            function = Known(_product, np.asarray(emission, dtype), x_size=np.shape(emission)[1], learned=False)
        _, known, outputs = checked_functions(Known(_first, x_size=size, u_size=controls), function, size, controls)
        if outputs != scaling.outputs or not isinstance(known, Known):
            raise ValueError(f"emission must return the {scaling.outputs} outputs of the data, got {outputs}")
        parts = np.zeros(size, dtype), np.ones(size, dtype), *u, scaling.y.mean, scaling.y.scale
        found = found._replace(emission=known.in_units(_units(*parts)))
    if physics is None:
        return found
    known = physics if isinstance(physics, Function) else as_known("physics", physics, size, controls)
    if not isinstance(known, Known):
        raise TypeError(f"physics must be a function of (x, u) or a prodssm.Known, got {type(known).__name__}")
    wanted = size, controls, size
    if (known.x_size, known.u_size, known.out_size) != wanted:
        raise ValueError(
            f"physics must map {size} states and {controls} controls to {size} states, "
            f"got {known.x_size} and {known.u_size} to {known.out_size}"
        )
    outside = (0 * state.mean, state.scale / scaling.time_step) if residual else (state.mean, state.scale)
    return found._replace(physics=known.in_units(_units(state.mean, state.scale, *u, *outside)))


def function_words(value: Any) -> dict[str, str]:
    """What a file holds of a function: its name."""
    return {"function": name_of(value.function if isinstance(value, Known) else value)}


def with_functions(path: Any, config: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The description in a file with the functions that it names, which the caller has to give.

    Args:
        path: Of the file.
        config: Its description.
        given: Functions by the name of their parameter; None for those that are not given.
    """
    params = dict(config.get("params", {}))
    for name, function in given.items():
        words: Any = params.get(name)
        needed = isinstance(words, dict) and "function" in words
        if needed and function is None:
            raise ValueError(
                f"{path} was saved with {name}={words['function']}, and a file holds no code: "
                f"give the function again, prodssm.load(path, {name}={words['function']})"
            )
        if not needed and function is not None:
            raise ValueError(f"{name} must not be given: {path} was saved without a known function there")
        if needed:
            params[name] = function
    return config | {"params": params}


def _units(*parts: Any) -> Units:
    arrays: list[Any] = [None if part is None else as_array("units", part, 1) for part in parts]
    return Units(*arrays)


def _product(x: Any, u: Any, matrix: Any) -> Any:
    return matrix @ x


def _first(x: Any, u: Any) -> Any:
    return x
