"""The (epsilon, delta) guarantee of a run of events."""

import math
from typing import Any

import jax.numpy as jnp

from jaxdp import _gaussian_profile, _precision, _validate
from jaxdp.accounting import composition, conversion
from jaxdp.accounting.conversion import RdpEpsilon
from jaxdp.accounting.events import Event

_ACCOUNTANTS = ("auto", "exact", "rdp")


def _rdp_epsilon(steps: composition.Steps, log_delta: Any, orders: Any = None) -> RdpEpsilon:
    dtype = log_delta.dtype

    def bound(t):
        return conversion.epsilon_at(t, composition.log_moment_of(steps, t) / t, log_delta)

    if orders is None:
        epsilon, t, at_edge = conversion.search(bound, dtype)
        order, at_edge = 1.0 + t, at_edge & (epsilon > 0.0) & (epsilon < jnp.inf)
    else:
        rdp = composition.log_moment_of(steps, orders - 1.0) / (orders - 1.0)
        epsilon, order, at_edge = conversion.epsilon_from_rdp(rdp, orders, log_delta)
    pure = composition.pure_epsilon_of(steps, dtype) * (1.0 + conversion.margin(dtype))
    better = pure < epsilon
    return RdpEpsilon(
        jnp.where(better, pure, epsilon), jnp.where(better, jnp.inf, order), at_edge & ~better
    )


def _rdp_epsilon_value(steps: composition.Steps, log_delta: Any) -> Any:
    return _rdp_epsilon(steps, log_delta).epsilon


def _pure_epsilon(steps: composition.Steps, unused: Any) -> Any:
    dtype = unused.dtype
    return composition.pure_epsilon_of(steps, dtype) * (1.0 + conversion.margin(dtype))


def _exact_epsilon(mu_squared: Any, log_delta: Any) -> Any:
    return _gaussian_profile.epsilon(log_delta, jnp.sqrt(mu_squared))


def _delta_from_log(log_delta: Any) -> Any:
    """Delta, rounded up also where it would underflow."""
    value = jnp.exp(log_delta) * (1.0 + 8.0 * float(jnp.finfo(log_delta.dtype).eps))
    value = jnp.maximum(value, jnp.finfo(log_delta.dtype).tiny)
    return jnp.where(log_delta > -jnp.inf, jnp.minimum(value, 1.0), 0.0)


def _rdp_delta(steps: composition.Steps, epsilon: Any) -> Any:
    def bound(t):
        return conversion.log_delta_at(t, composition.log_moment_of(steps, t), epsilon)

    dtype = epsilon.dtype
    log_delta, _, _ = conversion.search(bound, dtype)
    pure = composition.pure_epsilon_of(steps, dtype) * (1.0 + conversion.margin(dtype))
    return jnp.where(epsilon >= pure, 0.0, _delta_from_log(log_delta))


def _exact_delta(mu_squared: Any, epsilon: Any) -> Any:
    return _delta_from_log(_gaussian_profile.log_delta(epsilon, jnp.sqrt(mu_squared)))


def _steps_and_accountant(event: Any, accountant: str) -> tuple[composition.Steps, str]:
    if not isinstance(event, Event):
        _validate.refuse("event", event, "an event such as Gaussian(1.0)")
    _validate.choice("accountant", accountant, _ACCOUNTANTS)
    steps = composition.steps_of(event)
    only_gaussians = all(rows is None for rows in steps[1:])
    if accountant == "exact" and not only_gaussians:
        _validate.refuse(
            "accountant", accountant, "'rdp' or 'auto' for a run with sampled or Laplace events"
        )
    if accountant == "auto":
        accountant = "exact" if only_gaussians else "rdp"
    return steps, accountant


def _log_delta(delta: Any) -> Any:
    # The log of a number in double precision: a small delta is no float32.
    return jnp.log(delta) if _validate.is_traced(delta) else math.log(float(delta))


def epsilon(event: Event, delta: Any, *, accountant: str = "auto") -> Any:
    r"""The epsilon of a run of events at a given delta.

    Args:
      event: The run. Its numbers may be traced.
      delta: Scalar in (0, 1), may be traced; 0 too where every event is pure (Laplace).
      accountant: "rdp" (Renyi DP at the best real order); "exact" (runs of Gaussians without
        sampling, whose composition is again a Gaussian with a profile in closed form); "auto"
        takes the exact one where it applies, Renyi DP otherwise.

    Returns:
      Epsilon, >= 0: a float if nothing is traced, else a scalar in the program's float type.
      0 for a run that releases nothing; inf where some step has no noise.

    Raises:
      ValueError: if ``delta`` is out of range, or the accountant does not apply.

    Guarantee:
      The run is (epsilon, delta)-DP for neighbours that differ by one example added or
      removed. Rounded up: by 1e-10 of the Renyi part in float64, 1.5e-5 in float32. What
      is asked may depend on earlier answers; the events and their numbers are fixed in advance.

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> round(acc.epsilon(run, delta=1e-5), 4)
      2.1013

    References:
      Mironov 2017, arXiv:1702.07476; Canonne, Kamath and Steinke 2020, arXiv:2004.00010,
      Proposition 12; Balle and Wang 2018, arXiv:1805.06530, Theorem 8 (exact).
    """
    steps, accountant = _steps_and_accountant(event, accountant)
    _validate.delta("delta", delta, allow_zero=True)
    if not _validate.is_traced(delta) and float(delta) == 0.0:
        if steps.gaussian is not None or steps.sampled_gaussian is not None:
            _validate.refuse(
                "delta", delta, "in (0, 1) (only a run of pure mechanisms, Laplace, allows 0)"
            )
        return _precision.evaluate(_pure_epsilon, steps, 0.0)
    if accountant == "exact":
        mu_squared = 0.0 if steps.gaussian is None else steps.gaussian
        return _precision.evaluate(_exact_epsilon, mu_squared, _log_delta(delta))
    return _precision.evaluate(_rdp_epsilon_value, steps, _log_delta(delta))


def delta(event: Event, epsilon: Any, *, accountant: str = "auto") -> Any:
    r"""The delta of a run of events at a given epsilon.

    Args:
      event: The run. Its numbers may be traced.
      epsilon: Scalar >= 0, may be traced.
      accountant: "rdp", "exact" or "auto", as for ``epsilon``.

    Returns:
      Delta in [0, 1]: a float if nothing is traced, else a scalar in the program's float type.

    Raises:
      ValueError: if ``epsilon`` is negative or not finite, or the accountant does not apply.

    Guarantee:
      The run is (epsilon, delta)-DP for neighbours that differ by one example added or
      removed. Rounded up, the log-moment by 1e-10 in float64 and
      1.5e-5 in float32; never to 0 by underflow.

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> f"{acc.delta(run, epsilon=3.0):.2e}"
      '1.88e-08'

    References:
      Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 12; Balle and Wang 2018,
      arXiv:1805.06530, Theorem 8 (exact).
    """
    steps, accountant = _steps_and_accountant(event, accountant)
    _validate.non_negative("epsilon", epsilon)
    if accountant == "exact":
        mu_squared = 0.0 if steps.gaussian is None else steps.gaussian
        return _precision.evaluate(_exact_delta, mu_squared, epsilon)
    return _precision.evaluate(_rdp_delta, steps, epsilon)


def rdp_epsilon(event: Event, delta: Any, *, orders: Any = None) -> RdpEpsilon:
    """The epsilon of a run by Renyi DP, with the order that it comes from.

    Args:
      event: The run. Its numbers may be traced.
      delta: Scalar in (0, 1), may be traced.
      orders: Renyi orders > 1 to look at, ascending, shape [n]; by default the best real
        order is searched for.

    Returns:
      An ``RdpEpsilon(epsilon, order, order_at_edge)``. A true ``order_at_edge`` is a warning:
      the best order is the first or the last one looked at, so a better one may lie beyond.

    Raises:
      ValueError: if ``delta`` is out of range or an order is not above 1.

    Guarantee:
      That of ``epsilon`` with accountant "rdp".

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> found = acc.rdp_epsilon(run, delta=1e-5)
      >>> round(found.epsilon, 4), round(found.order, 1), found.order_at_edge
      (2.1013, 7.8, False)
      >>> acc.rdp_epsilon(run, delta=1e-5, orders=[2.0, 3.0, 4.0]).order_at_edge
      True

    References:
      Mironov 2017, arXiv:1702.07476; Canonne, Kamath and Steinke 2020, arXiv:2004.00010.
    """
    steps, _ = _steps_and_accountant(event, "rdp")
    _validate.delta("delta", delta)
    if orders is None:
        return _precision.evaluate(_rdp_epsilon, steps, _log_delta(delta))
    known = conversion.known_orders(orders)
    return _precision.evaluate(_rdp_epsilon, steps, _log_delta(delta), known)
