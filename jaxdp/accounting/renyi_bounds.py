"""The epsilon and the delta of a run's steps by Renyi DP at the best order, as pure formulas."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp.accounting import composition, conversion
from jaxdp.accounting.composition import Steps
from jaxdp.accounting.conversion import RdpEpsilon


def pure_epsilon(steps: Steps, dtype: Any) -> Any:
    """The largest loss of the run, infinite where some step has none; rounded up."""
    return composition.pure_epsilon_of(steps, dtype) * (1.0 + conversion.margin(dtype))


def best_order(steps: Steps, log_delta: Any) -> tuple[Any, Any]:
    """The t = order - 1 of the least epsilon, and whether it is an end of the range."""
    fixed = jax.lax.stop_gradient(steps)
    # Where to look needs fewer digits than what is found there.
    return conversion.best_for_epsilon(
        lambda t: composition.log_moment_of(fixed, t, rough=True), jax.lax.stop_gradient(log_delta)
    )


def best_order_at(steps: Steps, epsilon: Any) -> Any:
    """The t = order - 1 of the least delta at an epsilon."""
    fixed = jax.lax.stop_gradient(steps)
    return conversion.best_for_delta(
        lambda t: composition.log_moment_of(fixed, t, rough=True), jax.lax.stop_gradient(epsilon)
    )[0]


def epsilons(steps: Steps, t: Any, log_delta: Any) -> Any:
    """Epsilon by each of some orders 1 + t."""
    return conversion.epsilon_at(t, composition.log_moment_of(steps, t) / t, log_delta)


def log_deltas(steps: Steps, t: Any, epsilon: Any) -> Any:
    """Log delta by each of some orders 1 + t."""
    return conversion.log_delta_at(t, composition.log_moment_of(steps, t), epsilon)


def rdp_epsilon(steps: Steps, log_delta: Any, orders: Any = None) -> RdpEpsilon:
    """Epsilon at a log delta, at the best of the orders or of all real ones, and that order."""
    dtype = log_delta.dtype
    if orders is None:
        # At a minimum the derivative in t is 0, so that of the value there is that of the minimum.
        t, at_edge = best_order(steps, log_delta)
        value = conversion.least(epsilons(steps, conversion.and_least(t), log_delta))
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
    t = conversion.and_least(best_order_at(steps, epsilon))
    values = log_deltas(steps, t, epsilon)
    pure = epsilon >= pure_epsilon(steps, epsilon.dtype)
    return jnp.where(pure, -jnp.inf, conversion.least(values))
