"""Certified bounds for runs of Gaussians, sampled or not: a closed form where there is one.

One Gaussian, or several without sampling, have the Gaussian profile; one Poisson-sampled Gaussian
taken once has it after sampling; every other run has the line integral of its log-moment
(``exact``), whose bracket the privacy-loss distribution narrows where it is wide.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdp import _gaussian_profile, _precision, _validate
from jaxdp.accounting import exact, pld
from jaxdp.accounting.composition import Steps
from jaxdp.accounting.exact import Bounds

_WIDE = 1e-6  # a bracket from the line integral that calls for the second route
_HOPELESS = 1e4  # an epsilon that nobody needs to know better


def _gaussian_epsilon(mu_squared: Any, log_delta: Any) -> Any:
    return _gaussian_profile.epsilon(log_delta, jnp.sqrt(mu_squared))


def _gaussian_log_delta(mu_squared: Any, epsilon: Any) -> Any:
    return _gaussian_profile.log_delta(epsilon, jnp.sqrt(mu_squared))


def _only_gaussians(steps: Steps) -> bool:
    return exact.applies(steps) and steps.sampled_gaussian is None


def _mu_squared(steps: Steps) -> Any:
    return 0.0 if steps.gaussian is None else steps.gaussian


def _padded(steps: Steps) -> Steps:
    """More rows that do nothing, so that programs are compiled for few lengths only."""
    if steps.sampled_gaussian is None or _validate.is_traced(steps):
        return steps
    n = steps.sampled_gaussian[0].size
    longer = 2 ** math.ceil(math.log2(n)) if n <= 64 else 64 * math.ceil(n / 64)
    idle = (0.5, 1.0, 0.0)
    rows = (
        np.append(column, np.full(longer - n, value))
        for column, value in zip(steps.sampled_gaussian, idle, strict=True)
    )
    return steps._replace(sampled_gaussian=tuple(rows))


def _one_sampled_step(steps: Steps) -> bool:
    """Whether the run is one Poisson-sampled Gaussian, taken once."""
    rows = steps.sampled_gaussian
    if steps.gaussian is not None or rows is None or _validate.is_traced(rows):
        return False
    return rows[0].size == 1 and float(rows[2][0]) == 1.0


def _single_epsilon(q: Any, s: Any, log_delta: Any) -> Any:
    """log(1 + q (e^eps - 1)), where eps is what the Gaussian itself needs at delta / q."""
    log_ratio = log_delta - jnp.log(q)
    epsilon = _gaussian_profile.epsilon(jnp.minimum(log_ratio, -1e-300), 1.0 / s)
    large = epsilon > 1.0
    sampled = jnp.where(large, epsilon + jnp.log(q), 0.0) + jnp.log1p(
        jnp.where(
            large, (1.0 - q) / q * jnp.exp(-epsilon), q * jnp.expm1(jnp.minimum(epsilon, 1.0))
        )
    )
    sampled = sampled * (1.0 + 64.0 * float(jnp.finfo(log_delta.dtype).eps))
    return jnp.where((log_ratio >= 0.0) | (s == jnp.inf), 0.0, sampled)


def epsilon_bounds(steps: Steps, log_delta: Any) -> Bounds:
    if _only_gaussians(steps):
        epsilon = _precision.evaluate(_gaussian_epsilon, _mu_squared(steps), log_delta)
        return Bounds(epsilon * (1.0 - _margin(epsilon)), epsilon)
    if _one_sampled_step(steps):
        q, s, _ = (float(column[0]) for column in steps.sampled_gaussian)
        if s == 0.0:
            return Bounds(math.inf, math.inf)
        epsilon = _precision.evaluate(_single_epsilon, q, s, log_delta)
        return Bounds(epsilon * (1.0 - 2.0 * _margin(epsilon)), epsilon)
    bounds = _precision.evaluate(exact.epsilon_bounds, _padded(steps), log_delta)
    if _validate.is_traced(bounds) or bounds.upper - bounds.lower <= _WIDE * bounds.upper:
        return bounds
    if bounds.upper > _HOPELESS:
        return bounds
    # Where the line integral does not settle, the second route narrows the bracket.
    lower, upper = pld.epsilon_bounds(steps, log_delta)
    return Bounds(max(bounds.lower, lower), min(bounds.upper, upper))


def log_delta_bounds(steps: Steps, epsilon: Any, *, narrow: bool = True) -> Bounds:
    if _only_gaussians(steps):
        log_delta = _precision.evaluate(_gaussian_log_delta, _mu_squared(steps), epsilon)
        # Gaussian profiles are rounded by a few ulps of log delta.
        below = log_delta - 2.0 * _margin(log_delta) * (1.0 + abs(log_delta))
        return Bounds(below, log_delta)
    bounds = _precision.evaluate(exact.log_delta_bounds, _padded(steps), epsilon)
    if _validate.is_traced(bounds) or not narrow or bounds.upper - bounds.lower <= _WIDE:
        return bounds
    lower, upper = pld.log_delta_bounds(steps, epsilon)
    return Bounds(max(bounds.lower, lower), min(bounds.upper, upper))


def _margin(value: Any) -> float:
    """Twice what the Gaussian profile is rounded by, relative."""
    traced = _validate.is_traced(value)
    return 64.0 * float(jnp.finfo(jnp.result_type(float)).eps) if traced else 1e-13
