"""Files of format 1, read as format 2: other names for the same parameters and arrays."""

from typing import Any

import numpy as np

from prodssm._storage import FileError
from prodssm.training.history import StopReason
from prodssm.training.recipe import Recipe

# By how the text began that format 1 kept.
STOP_REASONS = {
    "no progress": StopReason.EARLY_STOPPING,
    "the objective was no longer": StopReason.DIVERGED,
    "interrupted": StopReason.INTERRUPTED,
}
RECIPE_NAMES = {"refine": "fine_tune", "batch_size": "batch", "validation_fraction": "validation"}
MODEL_NAMES = {"initial_root": "initial_chol", "log_measurement_noise": "likelihood.log_variance"}
Parts = tuple[dict[str, Any], dict[str, np.ndarray]]


def upgrade(kind: str, config: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
    """Configuration and arrays of a file of format 1 as those of format 2."""
    return (_prodssm if kind == "ProDSSM" else _regressor)(config, arrays)


def _prodssm(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
    old = config["params"]
    if old.get("rank") is not None:
        raise FileError(f"this file has rank={old['rank']}, which estimators no longer have; fit and save again")
    shape = ("latent_dim", "hidden", "activation", "weights", "residual", "process_noise", "emission")
    params = {name: old[name] for name in (*shape, "measurement_noise", "checkpoint", "progress")}
    known = old["measurement_noise"] is not None
    params |= {"recipe": _recipe(old), "method": _method(old), "n_estimators": 1, "random_state": old["seed"]}
    params["likelihood"] = None if known else _likelihood(old["noise_floor"])
    numbers = {name: [repr(float(v)) for v in arrays.pop(f"history.{name}")] for name in ("objective", "validation", "seconds")}
    history = {"iterations": config["iterations"], "stop_reason": _stop_reason(config["stopped"])} | numbers
    layout = config.get("layout")
    if layout is not None:
        layout = {("outputs" if name == "channels" else name): value for name, value in layout.items()}
    new = {
        "params": params,
        "time_step": config["time_unit"],
        "controls": config["controls"],
        "outputs": config["channels"],
        "layout": layout,
        "members": [{"seed": old["seed"], "history": history}],
    }
    return new, {_array_name(name): array for name, array in arrays.items()}


def _regressor(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> Parts:
    old = config["params"]
    shape = ("hidden", "noise_hidden", "steps", "activation", "weights", "checkpoint", "progress", "random_state")
    params = {name: old[name] for name in shape}
    recipe = old | ({} if old["early_stopping"] else {"validation_fraction": 0.0})
    params |= {"recipe": _recipe(recipe), "method": _method(old), "n_estimators": old["members"]}
    params["likelihood"] = _likelihood(old["noise_floor"])
    same = ("seed", "features", "feature_names", "targets", "members", "y_ndim", "prior_weight", "n_iter")
    new = {name: config[name] for name in same} | {"params": params, "history": _history(config["history"])}
    new["trials"] = [[weight, _history(history)] for weight, history in config["trials"]]
    scaling = {f"{part}_{kind}": f"{part}_scaling.{kind}" for part in "xy" for kind in ("mean", "scale")}
    return new, {scaling.get(name, _array_name(name)): array for name, array in arrays.items()}


def _array_name(name: str) -> str:
    """The name of an array in format 2."""
    for old, new in (("y_units.", "y_scaling."), ("u_units.", "u_scaling."), ("model.", "models.0.")):
        name = new + name.removeprefix(old) if name.startswith(old) else name
    for old, new in MODEL_NAMES.items():
        name = name.removesuffix(old) + new if name.endswith(f".{old}") else name
    return name


def _recipe(old: dict[str, Any]) -> dict[str, Any]:
    """The settings that are still there; what format 1 called None is a default, or all of the data."""
    named = {RECIPE_NAMES.get(name, name): value for name, value in old.items()}
    known = Recipe.__dataclass_fields__
    given = {name: value for name, value in named.items() if name in known and value is not None}
    given |= {name: "all" for name in ("batch", "window") if named.get(name, 0) is None}
    if "fine_tune" in named and named["fine_tune"] is None:
        given["fine_tune"] = 0
    return {"class": "Recipe", "arguments": given}


def _method(old: dict[str, Any]) -> Any:
    """The method with its parameters."""
    if old["method"] == "moments":
        return {"class": "Moments", "arguments": {"order": old["order"]}}
    return {"class": "Sampled", "arguments": {"samples": old["samples"]}} if old["method"] == "sampled" else old["method"]


def _likelihood(floor: float) -> dict[str, Any]:
    return {"class": "GaussianLikelihood", "arguments": {"variance": None, "floor": floor}}


def _history(old: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in old.items() if name != "stopped"}
    return found | {"stop_reason": _stop_reason(old["stopped"])}


def _stop_reason(text: str) -> str:
    return next((reason.name for begin, reason in STOP_REASONS.items() if text.startswith(begin)), StopReason.COMPLETED.name)
