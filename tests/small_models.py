"""Data and models of the estimator tests. Compilation dominates their time, so most models skip the training in `fit`."""

from contextlib import contextmanager
from dataclasses import fields

import jax
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.estimators import fitting, regressor
from prodssm.training.history import History

TIME, AHEAD = 24, 12
OF_RECIPE = {part.name for part in fields(ps.Recipe)}


def make(estimator, **settings):
    """An estimator; settings of the recipe are recognised by name."""
    recipe = ps.Recipe(**{name: value for name, value in settings.items() if name in OF_RECIPE})
    return estimator(**({"recipe": recipe} | {name: value for name, value in settings.items() if name not in OF_RECIPE}))


def small_prodssm(**settings):
    """An unfitted model of five hidden units."""
    defaults = {"hidden": (5,), "emission": "identity", "method": ps.Moments(order=1), "iterations": 50, "progress": False}
    return make(ps.ProDSSM, **(defaults | settings))


def linear_prodssm(**settings):
    """An unfitted linear model, which compiles fast."""
    return small_prodssm(**({"hidden": (), "method": "moments"} | settings))


def linear_regressor(**settings):
    """An unfitted linear regressor that compiles and learns fast; most tests share its compiled functions."""
    defaults = {"hidden": (), "noise_hidden": (), "steps": 1, "n_estimators": 1, "prior_weight": 0.01, "validation": 0.0}
    defaults |= {"batch": 32, "iterations": 50, "learning_rate": 0.03}
    return make(ps.DeepStochasticRegressor, **(defaults | settings))


@contextmanager
def standard_promotion():
    """optax mixes its integer step counter with floats."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@contextmanager
def without_training(*, found=None, check=False):
    """`train` returns the initial model, or the given one; the check of the Gaussian assumption is skipped unless asked for."""
    with pytest.MonkeyPatch.context() as patch, standard_promotion():
        patch.setattr(fitting, "train", lambda start, *_, **__: (start if found is None else found, History([1], [0.0])))
        if not check:
            patch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
        yield patch


def no_check(model, series):
    model.check_ = None


def fit_untrained(data, **settings):
    """A model that went through all of `fit` but training and the check."""
    with without_training():
        return small_prodssm(**settings).fit(data)


def fit_unchecked(model, data, **more):
    """A model that was trained, without the check at the end."""
    with pytest.MonkeyPatch.context() as patch, standard_promotion():
        patch.setattr(ps.ProDSSM, "_check_gaussian", no_check)
        return model.fit(data, **more)


def fit_untrained_regressor(X, y, **settings):
    """A regressor that went through all of `fit` but training."""
    with pytest.MonkeyPatch.context() as patch, standard_promotion():
        patch.setattr(regressor, "maximise", lambda task, learned, **_: (learned, History([1], [0.0])))
        return linear_regressor(**settings).fit(X, y)


def wave(length=TIME, seed=0):
    """A noisy sine."""
    return np.sin(0.4 * np.arange(length))[:, None] + 0.1 * np.random.default_rng(seed).normal(size=(length, 1))


def irregular(length=TIME):
    """A noisy sine at irregular times."""
    return ps.Series(array(wave(length)), time=array(np.cumsum(np.random.default_rng(0).uniform(0.2, 1.0, length))))


def rich(seed, length):
    """Two outputs with a gap, a control, irregular time."""
    rng = np.random.default_rng(seed)
    y = np.cumsum(rng.normal(size=(length, 2)), axis=0)
    y[length // 2 : length // 2 + 4], y[1, 0] = np.nan, np.nan
    u, time = rng.normal(size=(length, 1)), np.cumsum(rng.uniform(0.2, 1.0, length))
    return ps.Series(*(array(part) for part in (y, u, time)))


def same(first, second):
    """Whether two trees agree in every bit."""
    leaves = [jax.tree.leaves(tree) for tree in (first, second)]
    return all(a.dtype == b.dtype and (np.asarray(a) == np.asarray(b)).all() for a, b in zip(*leaves, strict=True))
