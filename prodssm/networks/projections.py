"""Gaussian-Hermite expansions by quadrature, for activations without a closed form."""

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtr

from prodssm.networks.expansions import Expansion, clip_ratio, root_factorial, stack_coefficients
from prodssm.networks.quadrature import (
    derivative,
    hermite,
    hermite_grid,
    normal_pdf,
    smooth_expectation,
    soft_grid,
    split_grid,
)


def _project(function, mean, std, order, grid, center=None, slope=None):
    """Coefficients by quadrature. The remainder is the mean square of a residual, hence non-negative."""
    nodes, weights = grid(mean, std)
    base = function(mean)
    # Differences from the value at the mean: the constant part would cancel catastrophically when the variance is tiny.
    values = function(mean[None, :] + std[None, :] * nodes) - base[None, :]
    basis = [p / root_factorial(k) for k, p in enumerate(hermite(nodes, order))]
    offset = (weights * values).sum(axis=0) if center is None else center - base
    slope = (weights * values * nodes).sum(axis=0) / std if slope is None else slope
    curved = [(weights * values * basis[k]).sum(axis=0) for k in range(2, order + 1)]
    residual = values - offset[None, :] - (slope * std)[None, :] * nodes
    for k, coefficient in enumerate(curved, start=2):
        residual = residual - coefficient[None, :] * basis[k]
    return Expansion(base + offset, slope, stack_coefficients(curved, mean), (weights * residual**2).sum(axis=0))


def smooth_rule(function, width):
    """The rule of a smooth function that bends within `width` of zero."""
    grid = soft_grid(width)

    def rule(mean, std, order):
        center = smooth_expectation(function, grid, mean, std)
        slope = smooth_expectation(derivative(function), grid, mean, std)
        return _project(function, mean, std, order, grid, center, slope)

    return rule


def _mills(z):
    """(1 - Phi(z)) / phi(z) for z >= -8, without overflow."""
    near = jnp.clip(z, -8.0, 4.0)
    far = jnp.maximum(z, 4.0)
    fraction = far
    for k in range(24, 0, -1):
        fraction = far + k / fraction
    return jnp.where(z > 4.0, 1 / fraction, jnp.exp(log_ndtr(-near) + near**2 / 2) * math.sqrt(2 * math.pi))


def _below_zero(mean, std):
    """E[exp(x); x < 0], which is also E[f''] of elu: two forms, each numerically stable on one side."""
    shifted = mean / std + std
    right = normal_pdf(clip_ratio(mean / std)) * _mills(jnp.maximum(shifted, -1.0))
    left = jnp.exp(jnp.minimum(mean + std**2 / 2, 1.0)) * ndtr(-jnp.minimum(shifted, 1.0))
    return jnp.where(shifted > 0, right, left)


@jax.custom_jvp
def _elu_slope(mean, std):
    return ndtr(clip_ratio(mean / std)) + _below_zero(mean, std)


@_elu_slope.defjvp
def _(primals, tangents):
    mean, std = primals
    second = _below_zero(mean, std)
    return _elu_slope(mean, std), second * tangents[0] + (std * second - normal_pdf(clip_ratio(mean / std))) * tangents[1]


@jax.custom_jvp
def _elu_center(mean, std):
    ratio = clip_ratio(mean / std)
    return mean * ndtr(ratio) + std * normal_pdf(ratio) + _below_zero(mean, std) - ndtr(-ratio)


@_elu_center.defjvp
def _(primals, tangents):
    # Stein's lemma and Price's theorem; differentiating the formula would cancel numbers of size 1/std.
    slope, curvature = _elu_slope(*primals), _below_zero(*primals)
    return _elu_center(*primals), slope * tangents[0] + primals[1] * curvature * tangents[1]


def elu_rule(mean, std, order):
    """The identity above zero, exp(x) - 1 below."""
    center, slope = _elu_center(mean, std), _elu_slope(mean, std)
    return _project(jax.nn.elu, mean, std, order, split_grid((0.0,), 20), center, slope)


def quadrature_rule(function, kinks, nodes, mean, std, order):
    """The rule of any elementwise function with these kinks."""
    grid = split_grid(kinks, nodes) if kinks else hermite_grid(nodes)
    if order >= nodes:
        raise ValueError(f"order must be below the {nodes} quadrature nodes of this activation, got {order}")
    return _project(function, mean, std, order, grid)
