"""A small problem that training solves in no time, which a killed process imports too; and series of a linear system."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps
from prodssm.training.recipe import SERIES_RECIPE, Recipe
from prodssm.training.series_task import train


class TrainingProblem(NamedTuple):
    """A model, three series, and a recipe of 60 iterations."""

    model: ps.StateSpaceModel
    series: list[ps.Series]
    recipe: Recipe
    method: ps.Method

    def train(self, recipe=None, **more):
        """The trained model and its history, on the same key unless another is given."""
        settings = {"key": jr.key(1), "method": self.method, "progress": False} | more
        return train(settings.pop("model", self.model), self.series, recipe or self.recipe, **settings)


def make_problem():
    """The problem, in the precision of JAX."""
    rng = np.random.default_rng(0)
    model = ps.StateSpaceModel(
        initial=ps.Gaussian([0.0], [[1.0]]),
        transition=ps.Network.mlp((1, 6, 1), key=jr.key(0)),
        process_noise=jnp.array([0.1]),
        measurement_noise=jnp.array([0.2]),
    )
    series = [ps.Series(array(np.cumsum(rng.normal(size=(12, 1)), axis=0) * 0.3)) for _ in range(3)]
    return TrainingProblem(model, series, Recipe(iterations=60).filled(SERIES_RECIPE), ps.Moments(order=1))


@pytest.fixture(scope="session")
def training_problem():
    return make_problem()


@pytest.fixture(scope="session")
def same():
    """Whether two trees are equal bit by bit."""

    def compare(first, second):
        return all((a == b).all() for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True))

    return compare


@pytest.fixture(scope="session")
def linear_system():
    """A series of a linear system of two states that is driven by random controls."""
    a, b, c = np.array([[0.9, 0.2], [-0.2, 0.8]]), np.array([[0.5], [1.0]]), np.array([[1.0, -0.5]])

    def simulate(steps, seed=0, noise=0.0):
        rng = np.random.default_rng(seed)
        u, x = rng.normal(size=(steps, 1)), np.zeros((steps, 2))
        for t in range(steps - 1):
            x[t + 1] = a @ x[t] + b @ u[t] + noise * rng.normal(size=2)
        return ps.Series(x @ c.T + noise * rng.normal(size=(steps, 1)), u)

    return simulate
