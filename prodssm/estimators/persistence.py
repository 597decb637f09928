"""Files of fitted estimators: parameters as JSON, arrays as safetensors, no pickle."""

import os
from dataclasses import asdict, replace
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

from prodssm._storage import FORMAT_VERSION, FileError, flatten, read, restore, write
from prodssm._validation import plain
from prodssm.data.layout import Layout
from prodssm.data.scaling import DataScaling, Standardiser
from prodssm.estimators.calibration import Calibration
from prodssm.estimators.choices import Choices, settings_given
from prodssm.estimators.fitted import FittedModel
from prodssm.estimators.migration import upgrade
from prodssm.estimators.parameters import NestedParameters, constructor_params
from prodssm.estimators.physics import function_words, with_functions
from prodssm.estimators.prodssm import ProDSSM
from prodssm.estimators.regressor import DeepStochasticRegressor
from prodssm.estimators.row_choices import RowChoices
from prodssm.estimators.skill import Skill
from prodssm.methods.base import Method
from prodssm.models.likelihoods.base import Likelihood
from prodssm.models.regression import LayerStack
from prodssm.models.state_space import StateSpaceModel
from prodssm.networks.activations import ACTIVATIONS
from prodssm.training.checkpoints import describe_model
from prodssm.training.history import History, StopReason
from prodssm.training.initialisation import random_model
from prodssm.training.recipe import Recipe

NUMBERS = ("objective", "validation", "seconds")
NESTED = ("recipe", "method", "likelihood")
DAMAGE = (
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    OverflowError,
)  # of a description that lacks, or misplaces, something
SIZES = (
    "outputs",
    "controls",
    "features",
    "targets",
    "members",
    "latent_dim",
    "hidden",
    "noise_hidden",
    "process_noise",
    "emission",
)


def load(path: str | os.PathLike[str], *, physics: Any = None, emission: Any = None) -> Any:
    """A fitted estimator from the file that its `save` has written.

    Args:
        path: The file. It holds no code, so that known functions have to be given again; their parameters are in it.
        physics: That of the model, if it has one.
        emission: Likewise, if it is a function.

    Example:
        >>> model.save("model.safetensors")
        >>> load("model.safetensors").forecast(y, steps=3).mean.shape
        (3, 1)
    """
    stored = read(path)
    if stored.kind not in LOADERS:
        raise ValueError(f"{path} holds a {stored.kind}, which is not a model; expected one of {', '.join(LOADERS)}")
    for name, array in stored.arrays.items():
        # In format 1 a history is an array, and NaN where a run has no validation score.
        if array.dtype.kind == "f" and not name.startswith("history.") and np.isnan(array).any():
            raise FileError(f"{path} is damaged: {name} holds NaN; take another copy, or save again")
    config, arrays = with_functions(path, stored.config, {"physics": physics, "emission": emission}), dict(stored.arrays)
    try:
        if stored.format_version < FORMAT_VERSION:
            config, arrays = upgrade(stored.kind, config, arrays)
        _require_plausible(config, sum(array.size for array in arrays.values()))
        return LOADERS[stored.kind](config, arrays)
    except DAMAGE as error:
        raise FileError(f"{path} does not hold a whole {stored.kind} ({error}); take another copy, or save again") from error


def _require_plausible(config: dict[str, Any], numbers: int) -> None:
    """Raise if a size in the description exceeds the count of numbers in the file: a model of that size may exceed memory."""
    parts = config, config["params"], config.get("choices") or {}
    for part in parts:
        for name in SIZES:
            sizes = part.get(name)
            for size in sizes if isinstance(sizes, list) else [sizes]:
                if isinstance(size, int | float) and not size <= numbers:
                    raise KeyError(f"{name} is {size}")


# ---------------------------------------------------------------- ProDSSM


def save_prodssm(model: ProDSSM, path: str | os.PathLike[str]) -> None:
    """Write a fitted `ProDSSM`."""
    _require_named_activation(model.activation)
    method = _nested_words(model._resolved_method()), _nested_words(model.method_)
    agrees = model.choices_.agrees_with(model.get_params(deep=False))
    if not agrees or method[0] != method[1] or _shape(_template(model)) != _shape(model.ssm_):
        raise ValueError("the parameters of this model were changed after fit: call fit again before save")
    config = {
        "params": _params(model),
        "choices": model.choices_.words(),
        "skill": None if model.skill_ is None else model.skill_.words(),
        "calibration": None if model.calibration_ is None else model.calibration_.words(),
        "time_step": model.scaling_.time_step,
        "controls": model.scaling_.controls,
        "outputs": model.scaling_.outputs,
        "layout": None if model.layout_ is None else asdict(model.layout_),
        "members": [{"seed": each.seed, "history": _history_words(each.history)} for each in model.members_],
    }
    write(path, "ProDSSM", config, flatten(_prodssm_arrays(model)))


def _load_prodssm(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> ProDSSM:
    model = ProDSSM(**_restored_params(config["params"]))
    layout = config["layout"]
    model.layout_ = None if layout is None else Layout(**{name: plain(value) for name, value in layout.items()})
    model.choices_ = _choices(model, config)
    regular = not model.choices_.residual
    scaling = DataScaling.identity(config["outputs"], config["controls"], config["time_step"], regular=regular)
    model.scaling_ = scaling
    template = _template(model)

    def member(seed: int, history: dict[str, Any]) -> FittedModel:
        method = model._resolved_method().seeded(jr.key(seed))
        return FittedModel(template, scaling, method, seed, _history(history), model.layout_)

    model.members_ = tuple(member(**each) for each in config["members"])
    found = restore(_prodssm_arrays(model), arrays)
    model.scaling_ = replace(scaling, y=found["y_scaling"], u=found["u_scaling"])
    pairs = zip(model.members_, found["models"], strict=True)
    model.members_ = tuple(replace(each, ssm=ssm, scaling=model.scaling_) for each, ssm in pairs)
    model.check_ = None
    skill, calibration = config.get("skill"), config.get("calibration")
    model.skill_ = None if skill is None else Skill(**skill | {"ranges": tuple(map(tuple, skill["ranges"]))})
    model.calibration_ = None if calibration is None else Calibration(**{k: np.array(v) for k, v in calibration.items()})
    return model


def _choices(model: ProDSSM, config: dict[str, Any]) -> Choices:
    """What "auto" stood for; of a file that does not say, what was given."""
    given = settings_given(model.get_params(deep=False), config["outputs"])
    words = config.get("choices")
    if words is None:
        return given
    activation = {} if model.activation != "auto" or not words["linear"] else {"activation": "erf"}
    return replace(
        given, **({name: plain(value) if isinstance(value, list) else value for name, value in words.items()} | activation)
    )


def _prodssm_arrays(model: ProDSSM) -> dict[str, Any]:
    """All arrays of a fitted model."""
    models = tuple(member.ssm for member in model.members_)
    return {"models": models, "y_scaling": model.scaling_.y, "u_scaling": model.scaling_.u}


def _template(model: ProDSSM) -> StateSpaceModel:
    """A model of the same shape."""
    outputs = model.scaling_.outputs
    likelihood = model._checked_likelihood().for_data(Standardiser.identity(outputs))
    zeros = jnp.zeros((2, outputs))
    parts = model._architecture(outputs), zeros, model.scaling_.controls, likelihood
    return random_model(*parts, key=jr.key(0), known=model._known_parts())


def _shape(model: StateSpaceModel) -> Any:
    """All of a model but its numbers."""
    return describe_model(model), {name: leaf.shape for name, leaf in flatten(model).items()}


# ---------------------------------------------------------------- DeepStochasticRegressor


def save_regressor(model: DeepStochasticRegressor, path: str | os.PathLike[str]) -> None:
    """Write a fitted `DeepStochasticRegressor`."""
    _require_named_activation(model.activation)
    agrees = model.choices_.agrees_with(model.get_params(deep=False))
    method = _nested_words(model._checked_method()), _nested_words(model._stack.method)
    if (
        not agrees
        or method[0] != method[1]
        or _shape(_regressor_template(model, model.ssms_[0].y_size)) != _shape(model.ssms_[0])
    ):
        raise ValueError("the parameters of this model were changed after fit: call fit again before save")
    names = getattr(model, "feature_names_in_", None)
    config = {
        "params": _params(model),
        "choices": model.choices_.words(),
        "seed": model._seed,
        "features": model.n_features_in_,
        "feature_names": None if names is None else list(names),
        "targets": model.ssms_[0].y_size,
        "members": len(model.ssms_),
        "y_ndim": model._y_ndim,
        "prior_weight": model.prior_weight_,
        "n_iter": model.n_iter_,
        "history": _history_words(model.history_),
        "trials": [[weight, _history_words(history)] for weight, history in model.trials_],
    }
    write(path, "DeepStochasticRegressor", config, flatten(_regressor_arrays(model)))


def _load_regressor(config: dict[str, Any], arrays: dict[str, np.ndarray]) -> DeepStochasticRegressor:
    model = DeepStochasticRegressor(**_restored_params(config["params"]))
    model._seed, model._y_ndim = config["seed"], config["y_ndim"]
    model.choices_ = RowChoices.restored(config.get("choices"), model.get_params(deep=False))
    model._stack = LayerStack(model.choices_.steps, model._checked_method())
    model.n_features_in_, targets = config["features"], config["targets"]
    if config["feature_names"] is not None:
        model.feature_names_in_ = np.asarray(config["feature_names"], dtype=object)
    model.prior_weight_, model.n_iter_ = config["prior_weight"], config["n_iter"]
    model.history_ = _history(config["history"])
    model.trials_ = [(weight, _history(history)) for weight, history in config["trials"]]
    model._x_scaling, model._y_scaling = (Standardiser(np.zeros(n), np.ones(n)) for n in (model.n_features_in_, targets))
    model.ssms_ = (_regressor_template(model, targets),) * config["members"]
    found = restore(_regressor_arrays(model), arrays)
    model.ssms_, model._x_scaling, model._y_scaling = found["models"], found["x_scaling"], found["y_scaling"]
    return model


def _regressor_arrays(model: DeepStochasticRegressor) -> dict[str, Any]:
    return {"models": model.ssms_, "x_scaling": model._x_scaling, "y_scaling": model._y_scaling}


def _regressor_template(model: DeepStochasticRegressor, targets: int) -> StateSpaceModel:
    """A model of the same shape."""
    return model._initial_model(np.zeros((2, model.n_features_in_)), np.zeros((2, targets)), key=jr.key(0))


LOADERS = {"ProDSSM": _load_prodssm, "DeepStochasticRegressor": _load_regressor}


# ---------------------------------------------------------------- JSON


def _params(model: NestedParameters) -> dict[str, Any]:
    """Estimator parameters as JSON can say them."""
    given = model.get_params(deep=False)
    params = {name: plain(value) for name, value in given.items() if name not in (*NESTED, "random_state", "checkpoint")}
    params |= {name: function_words(given[name]) for name in ("physics", "emission") if callable(given.get(name))}
    params["checkpoint"] = None if given["checkpoint"] is None else os.fspath(given["checkpoint"])
    seed = given["random_state"]
    params["random_state"] = int(seed) if isinstance(seed, int | np.integer) else None
    return params | {name: _nested_words(given[name]) for name in NESTED}


def _restored_params(params: dict[str, Any]) -> dict[str, Any]:
    found = {name: plain(value) for name, value in params.items() if name not in NESTED}
    return found | {name: _nested(params[name]) for name in NESTED}


def _nested_words(value: Any) -> Any:
    """A recipe, method or likelihood as its class and constructor arguments; None and names as they are."""
    if value is None or isinstance(value, str):
        return value
    arguments = {name: plain(part) for name, part in constructor_params(value).items() if name != "key"}
    return {"class": type(value).__name__, "arguments": arguments}


def _nested(words: Any) -> Any:
    if words is None or isinstance(words, str):
        return words
    by_name = {"Recipe": Recipe} | {cls.__name__: cls for cls in Method.registry.values()} | Likelihood.registry
    arguments = {name: plain(value) for name, value in words["arguments"].items()}
    return by_name[words["class"]](**arguments)


def _history_words(history: History) -> dict[str, Any]:
    """A history as JSON, which has no NaN: floats as the shortest words that read back to the same bits."""
    numbers = {name: [repr(float(value)) for value in getattr(history, name)] for name in NUMBERS}
    return {"iterations": history.iterations, "stop_reason": history.stop_reason.name} | numbers


def _history(words: dict[str, Any]) -> History:
    numbers: dict[str, Any] = {name: [float(value) for value in words[name]] for name in NUMBERS}
    return History(iterations=words["iterations"], stop_reason=StopReason[words["stop_reason"]], **numbers)


def _require_named_activation(activation: Any) -> None:
    if not isinstance(activation, str) or activation not in (*ACTIVATIONS, "auto"):
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)} to be saved, got {activation!r}")
