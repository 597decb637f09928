"""Parameters of an adapter: those of the estimator that it wraps, nested ones included."""

from typing import Any


class WrappedParameters:
    """An estimator of sktime or skpro with the parameters of `_estimator`, an estimator of this library."""

    _estimator: type

    def set_params(self, **params: Any) -> Any:
        """Set parameters; `recipe__learning_rate=0.1` replaces the recipe by one with that learning rate."""
        if not params:
            return self
        changed = self._unfitted().set_params(**params)
        return super().set_params(**changed.get_params(deep=False))  # type: ignore[misc]

    def _unfitted(self) -> Any:
        """The estimator with the parameters of the adapter."""
        return self._estimator(**self.get_params(deep=False))  # type: ignore[attr-defined]
