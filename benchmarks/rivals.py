"""Filters of other libraries and ours behind one signature: observations to means, log likelihood and covariances.

The initial belief is about the first observed state: every step conditions, then predicts. Import `common` before this.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import prodssm as ps

Run = Callable[[Any], tuple[Any, Any, Any]]
Makers = dict[str, Callable[[bool], Run]]  # the argument: whether to smooth


def functions(ssm: ps.StateSpaceModel, like: Any) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
    """Transition and emission at the mean weights, in plain NumPy or JAX."""

    def plain(network: ps.Network | None) -> Callable[[Any], Any]:
        if network is None:
            return lambda x: x
        layers = [(like.asarray(layer.weight), like.asarray(layer.bias)) for layer in network.linears]

        def call(x):
            for weight, bias in layers[:-1]:
                x = like.maximum(weight @ x + bias, 0)
            return layers[-1][0] @ x + layers[-1][1]

        return call

    return plain(ssm.transition), plain(ssm.emission)


def covariances(ssm: ps.StateSpaceModel) -> tuple[jax.Array, jax.Array]:
    """Covariances of the process noise and of the measurement noise."""
    assert ssm.log_process_noise is not None
    return jnp.diag(jnp.exp(ssm.log_process_noise)), jnp.diag(ssm.likelihood.variance)


def ours(ssm: ps.StateSpaceModel, smooth: bool, method: str) -> Run:
    """The filter or smoother of prodssm through its public functions."""

    def run(y):
        found = (ps.smooth_states if smooth else ps.filter_states)(ssm, y, method)
        return found.mean, found.log_likelihood, found.cov

    return run


def dynamax(ssm: ps.StateSpaceModel, smooth: bool, kind: str, augmented: bool = False) -> Run:
    """The extended or unscented filter of dynamax, filtered moments only; `augmented` adds the weights to the state."""
    from dynamax import nonlinear_gaussian_ssm as rival

    f, h = functions(ssm, jnp)
    process, measurement = covariances(ssm)
    mean, cov = ssm.initial.mean, ssm.initial.cov
    if augmented:
        weights, x = ssm.transition.weights, mean.size
        f = lambda z: jnp.concatenate([ssm.transition.with_weights(z[x:])(z[:x]), z[x:]])  # noqa: E731
        h = lambda z: z[:x]  # noqa: E731
        block = jax.scipy.linalg.block_diag
        mean, cov = jnp.concatenate([mean, weights.mean]), block(cov, weights.cov())
        process = block(process, jnp.zeros_like(weights.cov()))
    params = rival.ParamsNLGSSM(mean, cov, f, process, h, measurement)
    points = () if kind == "EKF" else (rival.UKFHyperParams(math.sqrt(3), 2, 1),)  # type: ignore[arg-type]
    fields = {"output_fields": ["filtered_means", "filtered_covariances"]}
    filters = {"EKF": rival.extended_kalman_filter, "UKF": rival.unscented_kalman_filter}
    smoothers = {"EKF": rival.extended_kalman_smoother, "UKF": rival.unscented_kalman_smoother}

    def run(y) -> Any:
        if smooth:
            found = smoothers[kind](params, y, *points)
            return found.smoothed_means, found.marginal_loglik, found.smoothed_covariances
        found = filters[kind](params, y, *points, **fields)  # type: ignore[arg-type]
        return found.filtered_means, found.marginal_loglik, found.filtered_covariances

    return run


def cuthbert(ssm: ps.StateSpaceModel, smooth: bool) -> Run:
    """The linearised square-root filter of cuthbert. It predicts first, so the first update is done before it starts."""
    import cuthbert as rival
    from cuthbert.gaussian import moments
    from cuthbertlib.kalman import filter_update
    from cuthbertlib.linearize import linearize_moments

    f, h = functions(ssm, jnp)
    process, measurement = (jnp.sqrt(cov) for cov in covariances(ssm))  # Cholesky factors of diagonal matrices

    def dynamics(state, model_inputs) -> Any:
        return (lambda x: (f(x), process)), state.mean

    def emission(state, model_inputs) -> Any:
        return (lambda x: (h(x), measurement)), state.mean, model_inputs

    def run(y) -> Any:
        slope, shift, _ = linearize_moments(lambda x: (h(x), measurement), ssm.initial_mean)
        (mean, chol), first = filter_update(ssm.initial_mean, ssm.initial_chol, slope, shift, measurement, y[0])
        built = moments.build_filter(mean, chol, dynamics, emission)
        states: Any = rival.filter(built, y[1:], built.init_prepare())
        log_likelihood = first + states.log_normalizing_constant[-1]
        if smooth:
            states = rival.smoother(moments.build_smoother(dynamics), states)
        return states.mean, log_likelihood, states.chol_cov

    return run


def filterpy(ssm: ps.StateSpaceModel, smooth: bool, kind: str) -> Run:
    """The filters of filterpy in a loop over time; its extended filter has no smoother."""
    from filterpy.kalman import ExtendedKalmanFilter, MerweScaledSigmaPoints, UnscentedKalmanFilter

    f, h = functions(ssm, np)
    slope, emission_slope = jacobian(ssm.transition), jacobian(ssm.emission)
    process, measurement = (np.asarray(cov) for cov in covariances(ssm))
    x, y_size = ssm.x_size, ssm.y_size
    points: Any = MerweScaledSigmaPoints(x, alpha=1.0, beta=2.0, kappa=0.0)

    class Extended(ExtendedKalmanFilter):
        def predict_x(self, u=0):
            self.x, self.F = f(self.x), slope(self.x)

    def run(y):
        tool: Any = (
            Extended(x, y_size) if kind == "EKF" else UnscentedKalmanFilter(x, y_size, 1.0, h, lambda s, dt: f(s), points)
        )
        tool.x, tool.P = np.asarray(ssm.initial.mean), np.asarray(ssm.initial.cov)
        tool.Q, tool.R = process, measurement
        if kind == "UKF":
            tool.sigmas_f = points.sigma_points(tool.x, tool.P)
        means, covs, total = np.empty((len(y), x)), np.empty((len(y), x, x)), 0.0
        for t, seen in enumerate(y):
            tool.update(seen, *((emission_slope, h) if kind == "EKF" else ()))
            means[t], covs[t], total = tool.x, tool.P, total + tool.log_likelihood
            tool.predict()
        if smooth:
            means, covs, _ = tool.rts_smoother(means, covs)
        return means, total, covs

    return run


def jacobian(network: ps.Network | None) -> Callable[[np.ndarray], np.ndarray]:
    """The Jacobian of a ReLU network at its mean weights, in NumPy."""
    if network is None:
        return lambda x: np.eye(len(x))
    layers = [(np.asarray(layer.weight), np.asarray(layer.bias)) for layer in network.linears]

    def call(x):
        slope = np.eye(len(x))
        for weight, bias in layers[:-1]:
            x = weight @ x + bias
            slope, x = (x > 0)[:, None] * (weight @ slope), np.maximum(x, 0)
        return layers[-1][0] @ slope

    return call


def contenders(ssm: ps.StateSpaceModel, *, quick: bool = False, python: bool = True) -> Makers:
    """All filters for point weights, ours first."""
    found: Makers = {"moments": partial(ours, ssm, method="moments"), "dynamax EKF": partial(dynamax, ssm, kind="EKF")}
    if not quick:
        found |= {name: partial(ours, ssm, method=name) for name in ("linearised", "unscented")}
        found |= {"dynamax UKF": partial(dynamax, ssm, kind="UKF")}
    found |= {"cuthbert EKF": partial(cuthbert, ssm)}
    if python:
        found |= {f"filterpy {kind}": partial(filterpy, ssm, kind=kind) for kind in ("EKF", "UKF")}
    return found
