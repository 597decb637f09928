"""Nested estimator parameters: `set_params(recipe__learning_rate=...)` replaces the nested object."""

import inspect
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state

from prodssm._validation import require_integer
from prodssm.methods.base import Method, find_method
from prodssm.models.likelihoods.base import Likelihood, find_likelihood
from prodssm.models.likelihoods.gaussian import GaussianLikelihood
from prodssm.training.recipe import Recipe


def constructor_params(nested: Any) -> dict[str, Any]:
    """The constructor arguments of a recipe, method or likelihood, by name."""
    if isinstance(nested, Likelihood):
        return nested.constructor_params()
    return {name: getattr(nested, name) for name in inspect.signature(type(nested)).parameters}


class NestedParameters(BaseEstimator):
    """An estimator whose `recipe`, `method` and `likelihood` are immutable objects with parameters of their own.

    scikit-learn discards what a nested `set_params` returns, so the estimator replaces the nested object itself; where it is
    None or a name, the default object of that name is meant.
    """

    recipe: Recipe | None
    method: str | Method
    likelihood: str | Likelihood | None

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters, with those of nested objects as `recipe__learning_rate` if `deep`.

        Example:
            >>> model.get_params()["recipe__iterations"]
            5
        """
        found = super().get_params(deep=False)
        if deep:
            for name, nested in self._nested().items():
                found |= {f"{name}__{inner}": value for inner, value in constructor_params(nested).items()}
        return found

    def set_params(self, **params: Any) -> "NestedParameters":
        """Set parameters; `recipe__learning_rate=0.1` replaces the recipe by one with that learning rate.

        Example:
            >>> model.set_params(recipe__learning_rate=0.1).recipe
            Recipe(iterations=5, learning_rate=0.1)
        """
        changes: dict[str, dict[str, Any]] = {}
        for name in [name for name in params if "__" in name]:
            outer, inner = name.split("__", 1)
            changes.setdefault(outer, {})[inner] = params.pop(name)
        super().set_params(**params)
        for outer, inner in changes.items():
            nested = self._nested().get(outer)
            if nested is None:
                raise ValueError(f"{outer!r} has no nested parameters; those that have are {', '.join(self._nested())}")
            known = constructor_params(nested)
            unknown = [name for name in inner if name not in known]
            if unknown:
                raise ValueError(f"{outer} has no parameter {unknown[0]!r}; it has {', '.join(known) or 'none'}")
            changed = replace(nested, **inner) if isinstance(nested, Recipe) else type(nested)(**(known | inner))
            setattr(self, outer, changed)
        return self

    def _nested(self) -> dict[str, Any]:
        """The objects behind nested parameters; without values of a wrong type or name, which `fit` refuses."""
        found = {}
        for name, find in (("method", find_method), ("likelihood", find_likelihood)):
            with suppress(TypeError, ValueError):
                found[name] = find(getattr(self, name))
        recipe = Recipe() if self.recipe is None else self.recipe
        return ({"recipe": recipe} if isinstance(recipe, Recipe) else {}) | found

    def _checked_recipe(self, defaults: Recipe) -> Recipe:
        given = self.recipe
        if given is not None and not isinstance(given, Recipe):
            raise TypeError(f"recipe must be a prodssm.Recipe or None, got {type(given).__name__}")
        return (given or Recipe()).filled(defaults)

    def _checked_likelihood(self) -> Likelihood:
        return find_likelihood(self.likelihood)

    def _checked_method(self) -> Method:
        return find_method(self.method)


def seed_of(random_state: Any) -> int:
    """The seed that a `random_state` stands for: an integer itself, else one drawn from it."""
    if isinstance(random_state, int | np.integer) and not isinstance(random_state, bool):
        require_integer("random_state", random_state, least=0)
        return int(random_state)
    return int(check_random_state(random_state).randint(2**31 - 1))


def likelihood_of(measurement_noise: Any, likelihood: Any) -> GaussianLikelihood:
    """The likelihood that a variance of the measurement noise stands for."""
    if likelihood is not None:
        raise ValueError("give either measurement_noise or likelihood, not both")
    try:
        return GaussianLikelihood(measurement_noise)
    except (TypeError, ValueError) as error:
        raise type(error)(f"measurement_noise: {error}") from error


def require_no_target(y: Any) -> None:
    """Raise if observations came as a target."""
    if y is not None:
        raise ValueError("y must be None: observations and controls come together as data, see prodssm.Series(y, u)")
