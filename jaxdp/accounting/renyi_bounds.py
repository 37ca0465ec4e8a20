"""The epsilon and the delta of a run's steps by Renyi DP at the best order, as pure formulas."""

from typing import Any

import jax.numpy as jnp

from jaxdp.accounting import composition, conversion
from jaxdp.accounting.composition import Steps
from jaxdp.accounting.conversion import RdpEpsilon


def pure_epsilon(steps: Steps, dtype: Any) -> Any:
    """The largest loss of the run, infinite where some step has none; rounded up."""
    return composition.pure_epsilon_of(steps, dtype) * (1.0 + conversion.margin(dtype))


def rdp_epsilon(steps: Steps, log_delta: Any, orders: Any = None) -> RdpEpsilon:
    """Epsilon at a log delta, at the best of the orders or of all real ones, and that order."""
    dtype = log_delta.dtype

    def bound(t):
        return conversion.epsilon_at(t, composition.log_moment_of(steps, t) / t, log_delta)

    if orders is None:
        value, t, at_edge = conversion.search(bound, dtype)
        order, at_edge = 1.0 + t, at_edge & (value > 0.0) & (value < jnp.inf)
    else:
        rdp = composition.log_moment_of(steps, orders - 1.0) / (orders - 1.0)
        value, order, at_edge = conversion.epsilon_from_rdp(rdp, orders, log_delta)
    pure = pure_epsilon(steps, dtype)
    better = pure < value
    return RdpEpsilon(
        jnp.where(better, pure, value), jnp.where(better, jnp.inf, order), at_edge & ~better
    )


def epsilon(steps: Steps, log_delta: Any) -> Any:
    """Epsilon at a log delta, by the best real order."""
    return rdp_epsilon(steps, log_delta).epsilon


def log_delta(steps: Steps, epsilon: Any) -> Any:
    """Log delta at an epsilon, by the best real order; -inf from the largest loss on."""

    def bound(t):
        return conversion.log_delta_at(t, composition.log_moment_of(steps, t), epsilon)

    value, _, _ = conversion.search(bound, epsilon.dtype)
    return jnp.where(epsilon >= pure_epsilon(steps, epsilon.dtype), -jnp.inf, value)
