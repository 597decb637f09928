"""Models that several files test: a linear one, whose exact answer is one joint Gaussian, and one with global weights."""

from functools import cached_property

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from oracles import array

import prodssm as ps

X, Y, U, TIME, AHEAD = 3, 2, 1, 12, 4


class LinearProblem:
    """A linear model with controls, a series of it, and the controls that follow; its answers by dense algebra."""

    time, ahead = TIME, AHEAD

    def __init__(self, seed, *, residual=False, irregular=False, missing=False):
        rng = np.random.default_rng(seed)
        self.residual = residual
        self.a, self.b, self.c = 0.4 * rng.normal(size=(X, X)), rng.normal(size=(X, U)), rng.normal(size=X)
        self.h, self.d = rng.normal(size=(Y, X)), rng.normal(size=Y)
        self.q, self.r = np.array([0.1, 0.2, 0.3]), np.array([0.3, 0.2])
        self.initial_mean, self.initial_cov = rng.normal(size=X), 0.5 * np.eye(X) + 0.2
        self.y, self.u = rng.normal(size=(TIME, Y)), rng.normal(size=(TIME + AHEAD, U))
        if missing:
            self.y[3, 0], self.y[5], self.y[-1, 1] = np.nan, np.nan, np.nan
        self.stamps = np.cumsum(rng.uniform(0.3, 1.5, TIME)) if irregular else np.arange(TIME, dtype=float)

    @property
    def model(self):
        """The model, as the library has it."""
        return ps.StateSpaceModel(
            initial=ps.Gaussian(array(self.initial_mean), array(self.initial_cov)),
            transition=ps.Network.from_arrays([array(np.hstack([self.a, self.b]))], [array(self.c)]),
            emission=ps.Network.from_arrays([array(self.h)], [array(self.d)]),
            process_noise=array(self.q),
            measurement_noise=array(self.r),
            residual=self.residual,
        )

    @property
    def series(self):
        """The past."""
        return ps.Series(array(self.y), array(self.u[:TIME]), array(self.stamps))

    @property
    def future_u(self):
        """The controls that follow."""
        return array(self.u[TIME:])

    @cached_property
    def posterior(self):
        """Log evidence, and means and covariances of all states, past and future, given all observations."""
        mean, cov = self.prior()
        total = TIME + AHEAD
        seen = ~np.isnan(self.y.ravel())
        h = np.hstack([np.kron(np.eye(TIME), self.h), np.zeros((TIME * Y, AHEAD * X))])[seen]
        innovation = self.y.ravel()[seen] - h @ mean - np.tile(self.d, TIME)[seen]
        s = h @ cov @ h.T + np.diag(np.tile(self.r, TIME)[seen])
        gain = np.linalg.solve(s, h @ cov).T
        distance, log_det = innovation @ np.linalg.solve(s, innovation), np.linalg.slogdet(s)[1]
        evidence = -0.5 * (distance + log_det + len(innovation) * np.log(2 * np.pi))
        cov = cov - gain @ h @ cov
        covs = np.stack([cov[t * X : (t + 1) * X, t * X : (t + 1) * X] for t in range(total)])
        return evidence, (mean + gain @ innovation).reshape(total, X), covs

    def prior(self):
        """Mean and covariance of all states, stacked, before any observation."""
        total, steps = TIME + AHEAD, np.diff(self.stamps)
        steps = np.concatenate([steps, np.full(AHEAD, steps[-1])])
        mean, cov = [self.initial_mean], np.zeros((total * X, total * X))
        cov[:X, :X] = self.initial_cov
        for t in range(total - 1):
            dt = steps[t] if self.residual else 1.0
            slope = np.eye(X) + dt * self.a if self.residual else self.a
            mean.append(slope @ mean[-1] + dt * (self.b @ self.u[t] + self.c))
            before, now, later = slice(0, (t + 1) * X), slice(t * X, (t + 1) * X), slice((t + 1) * X, (t + 2) * X)
            cov[later, before] = slope @ cov[now, before]
            cov[before, later] = cov[later, before].T
            cov[later, later] = slope @ cov[now, now] @ slope.T + dt * np.diag(self.q)
        return np.concatenate(mean), cov


@pytest.fixture(scope="session")
def linear_problem():
    """The class, for a problem with settings of its own."""
    return LinearProblem


@pytest.fixture(
    scope="session", params=[{}, {"residual": True, "irregular": True, "missing": True}], ids=["regular", "irregular"]
)
def problem(request):
    """A plain linear problem; and a residual one, sampled irregularly, with missing values."""
    return LinearProblem(0, **request.param)


@pytest.fixture(params=["moments", "linearised", "unscented"])
def method(request):
    """Every deterministic method is exact on a linear model."""
    return request.param


@pytest.fixture(scope="session")
def global_problem():
    """A model with global weights whose covariance is kept at a rank, and a series of 30 steps."""

    def make(rank, hidden=(6,)):
        model = ps.StateSpaceModel(
            initial=ps.Gaussian(jnp.zeros(2), jnp.eye(2)),
            transition=ps.Network.mlp((2, *hidden, 2), key=jr.key(1), log_var=-3.0),
            emission=ps.Network.from_arrays([jr.normal(jr.key(2), (3, 2))], [jnp.zeros(3)]),
            process_noise=jnp.full(2, 0.05),
            measurement_noise=jnp.full(3, 0.1),
            weights="global",
            rank=rank,
        )
        return model, np.random.default_rng(0).normal(size=(30, 3)).cumsum(axis=0) * 0.3

    return make


@pytest.fixture(scope="session")
def drift_model():
    """x' = x + dt b with a global bias b of this variance: all is linear and Gaussian."""

    def make(bias_var):
        network = ps.Network.from_arrays([[[0.0]]], [[0.2]], weight_vars=[[[0.0]]], bias_vars=[[bias_var]])
        return ps.StateSpaceModel(
            initial=ps.Gaussian([0.0], [[1.0]]),
            transition=network,
            process_noise=[0.1],
            measurement_noise=[0.3],
            weights="global",
            residual=True,
        )

    return make
