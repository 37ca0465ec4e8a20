"""The (epsilon, delta) guarantee of a run of events, under the accountant that is asked for."""

import math
from collections.abc import Callable
from types import ModuleType
from typing import Any

import jax.numpy as jnp

from jaxdp import _precision, _validate
from jaxdp.accounting import (
    advanced,
    composition,
    conversion,
    events,
    exact,
    gaussian_runs,
    gdp,
    moments,
    naive,
    optimal,
    pld,
    renyi_bounds,
    single_step,
    zcdp,
)
from jaxdp.accounting.composition import Steps
from jaxdp.accounting.conversion import RdpEpsilon
from jaxdp.accounting.events import Event
from jaxdp.accounting.exact import Bounds

# Those that run on the host alone. The composition theorems look at every step by itself.
_ONE_BY_ONE: dict[str, ModuleType] = {"naive": naive, "advanced": advanced, "optimal": optimal}
_AT_ONCE: dict[str, ModuleType] = {"moments": moments, "zcdp": zcdp, "gdp": gdp}
ACCOUNTANTS = ("auto", *_ONE_BY_ONE, *_AT_ONCE, "rdp", "pld", "exact")
_PROFILES = ("auto", "rdp", "pld", "exact")  # those that know delta at every epsilon


def _pure_epsilon(steps: Steps, unused: Any) -> Any:
    return renyi_bounds.pure_epsilon(steps, unused.dtype)


def _delta_from_log(log_delta: Any) -> Any:
    """Delta, rounded up also where it would underflow."""
    value = jnp.exp(log_delta) * (1.0 + 8.0 * float(jnp.finfo(log_delta.dtype).eps))
    value = jnp.maximum(value, jnp.finfo(log_delta.dtype).tiny)
    return jnp.where(log_delta > -jnp.inf, jnp.minimum(value, 1.0), 0.0)


def _steps_of(event: Any, relation: Any) -> Steps:
    if not isinstance(event, Event):
        _validate.refuse("event", event, "an event such as Gaussian(1.0)")
    allowed = events.relations_of(event)
    if not allowed:
        _validate.refuse("event", event, "events of one neighbouring relation")
    if relation is not None:
        _validate.choice("neighboring_relation", relation, events.RELATIONS)
        if relation not in allowed:
            words = " or ".join(repr(word) for word in allowed)
            _validate.refuse("neighboring_relation", relation, f"{words} for this run")
    return composition.steps_of(event)


def _accountant(steps: Steps, accountant: str, allowed: tuple[str, ...], at: Any) -> str:
    _validate.choice("accountant", accountant, allowed)
    if accountant == "auto":
        if exact.applies(steps):
            return "exact"
        return "rdp" if _validate.is_traced(steps, at) else "pld"
    if accountant == "exact" and not exact.applies(steps):
        _validate.refuse(
            "accountant",
            accountant,
            "'auto', 'pld' or 'rdp' for a run with other than Gaussians and Poisson-sampled ones",
        )
    return accountant


def _log_delta(delta: Any) -> Any:
    # The log of a number in double precision: a small delta is no float32.
    return jnp.log(delta) if _validate.is_traced(delta) else math.log(float(delta))


def epsilon(
    event: Event, delta: Any, *, accountant: str = "auto", neighboring_relation: str | None = None
) -> Any:
    r"""The epsilon of a run of events at a given delta.

    Args:
      event: The run. Its numbers may be traced for the accountants "auto", "exact" and "rdp".
      delta: Scalar in (0, 1), may be traced; 0 too where every event is pure (Laplace, randomised
        response).
      accountant: One of

        - "auto": "exact" where it applies, else "pld" ("rdp" where a number is traced);
        - "exact": Gaussians and Poisson-sampled Gaussians, any mix: the closed form or the line
          integral of the log-moment;
        - "pld": the privacy-loss distribution by tilted FFT, for every event;
        - "rdp": Renyi DP at the best real order; "moments": Abadi et al. 2016, whole orders;
        - "zcdp", "gdp" (Gaussians alone);
        - "naive", "advanced" (Dwork, Rothblum and Vadhan 2010) and "optimal" (Kairouz, Oh and
          Viswanath 2015, equal steps) composition.
      neighboring_relation: "add_or_remove_one" or "replace_one", checked against what the run's
        events are about; by default whatever they are about.

    Returns:
      Epsilon, >= 0: a float if nothing is traced, else a scalar in the program's float type,
      differentiable in the run's numbers and delta. 0 for a run that releases nothing; inf where
      some step has no noise.

    Raises:
      ValueError: if ``delta`` is out of range, the accountant does not apply, or the neighbouring
        relations of the events differ from each other or from the one that is asked for.

    Guarantee:
      The run is (epsilon, delta)-DP for the events' neighbours, whatever the accountant. Rounded
      up; `epsilon_bounds` says how far it can be from the truth. What is asked may depend on
      earlier answers; the events and their numbers are fixed in advance.

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> round(acc.epsilon(run, delta=1e-5), 4)
      1.8282
      >>> round(acc.epsilon(run, delta=1e-5, accountant="rdp"), 4)
      2.1013

    References:
      DESIGN of each accountant: the docstrings of ``jaxdp.accounting.exact``, ``pld``,
      ``conversion``, ``moments``, ``zcdp``, ``gdp``, ``naive``, ``advanced``, ``optimal``.
    """
    steps = _steps_of(event, neighboring_relation)
    _validate.delta("delta", delta, allow_zero=True)
    accountant = _accountant(steps, accountant, ACCOUNTANTS, delta)
    if not _validate.is_traced(delta) and float(delta) == 0.0:
        return _at_delta_zero(steps, delta)
    log_delta = _log_delta(delta)
    if accountant in _ONE_BY_ONE:
        return _ONE_BY_ONE[accountant].epsilon(single_step.one_by_one(event), log_delta)
    if accountant in _AT_ONCE:
        return _AT_ONCE[accountant].epsilon(steps, log_delta)
    if accountant == "pld":
        return pld.epsilon_bounds(steps, log_delta)[1]
    if accountant == "exact":
        return gaussian_runs.epsilon_bounds(steps, log_delta).upper
    return _precision.evaluate(renyi_bounds.epsilon, steps, log_delta)


def _at_delta_zero(steps: Steps, delta: Any) -> Any:
    pure = steps._replace(laplace=None, sampled_laplace=None, randomized_response=None)
    if any(rows is not None for rows in pure):
        _validate.refuse(
            "delta", delta, "in (0, 1) (only a run of pure mechanisms, such as Laplace, allows 0)"
        )
    return _precision.evaluate(_pure_epsilon, steps, 0.0)


def epsilon_bounds(event: Event, delta: Any, *, neighboring_relation: str | None = None) -> Bounds:
    r"""The epsilon of a run at a given delta between certified bounds.

    By the exact accountant where it applies, by the privacy-loss distribution otherwise.

    Args:
      event: The run. Its numbers may be traced where the exact accountant applies.
      delta: Scalar in (0, 1); may be traced likewise.
      neighboring_relation: As for ``epsilon``.

    Returns:
      ``Bounds(lower, upper)``, floats if nothing is traced.

    Raises:
      ValueError: as for ``epsilon``.

    Guarantee:
      The run is (upper, delta)-DP, and its dominating pair not (epsilon, delta)-DP for any epsilon
      below ``lower``.

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> lower, upper = acc.epsilon_bounds(run, delta=1e-5)
      >>> round(lower, 6), round(upper, 6)
      (1.828237, 1.828237)

    References:
      The proofs stand in ``jaxdp.accounting.exact`` and ``jaxdp.accounting.pld``.
    """
    steps = _steps_of(event, neighboring_relation)
    _validate.delta("delta", delta)
    if exact.applies(steps):
        return gaussian_runs.epsilon_bounds(steps, _log_delta(delta))
    return Bounds(*pld.epsilon_bounds(steps, _log_delta(delta)))


def log_delta(
    event: Event, epsilon: Any, *, accountant: str = "auto", neighboring_relation: str | None = None
) -> Any:
    r"""The natural logarithm of a run's delta at a given epsilon: deltas of 1e-400 are no floats.

    Args:
      event, epsilon, accountant, neighboring_relation: As for ``delta``.

    Returns:
      log delta <= 0, -inf where delta is 0: a float if nothing is traced.

    Raises:
      ValueError: if ``epsilon`` is negative or not finite, or as for ``epsilon``.

    Guarantee:
      The run is (epsilon, delta)-DP for the events' neighbours. Rounded up.

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> round(acc.log_delta(run, epsilon=20.0), 3)
      -153.176

    References:
      Those of ``epsilon``.
    """
    steps = _steps_of(event, neighboring_relation)
    _validate.non_negative("epsilon", epsilon)
    accountant = _accountant(steps, accountant, _PROFILES, epsilon)
    if accountant == "exact":
        return gaussian_runs.log_delta_bounds(steps, epsilon).upper
    if accountant == "pld":
        return pld.log_delta_bounds(steps, epsilon)[1]
    return _precision.evaluate(renyi_bounds.log_delta, steps, epsilon)


def profile(event: Event) -> Callable[[float], float]:
    """A run's log delta as a function of epsilon, for many calls: without the second route."""
    steps = _steps_of(event, None)
    if exact.applies(steps):
        return lambda epsilon: gaussian_runs.log_delta_bounds(steps, epsilon, narrow=False).upper
    return lambda epsilon: pld.log_delta_bounds(steps, epsilon)[1]


def delta(
    event: Event, epsilon: Any, *, accountant: str = "auto", neighboring_relation: str | None = None
) -> Any:
    r"""The delta of a run of events at a given epsilon.

    Args:
      event: The run. Its numbers may be traced for the accountants "auto", "exact" and "rdp".
      epsilon: Scalar >= 0, may be traced likewise.
      accountant: "auto", "exact", "pld" or "rdp", as for ``epsilon``.
      neighboring_relation: As for ``epsilon``.

    Returns:
      Delta in [0, 1]: a float if nothing is traced, else a scalar in the program's float type.

    Raises:
      ValueError: if ``epsilon`` is negative or not finite, or as for ``epsilon``.

    Guarantee:
      The run is (epsilon, delta)-DP for the events' neighbours. Rounded up; never to 0 by
      underflow.

    Example:
      >>> from jaxdp import accounting as acc
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> f"{acc.delta(run, epsilon=3.0):.2e}"
      '9.22e-10'

    References:
      Those of ``epsilon``.
    """
    value = log_delta(
        event, epsilon, accountant=accountant, neighboring_relation=neighboring_relation
    )
    return _precision.evaluate(_delta_from_log, value)


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
    steps = _steps_of(event, None)
    _validate.delta("delta", delta)
    if orders is None:
        return _precision.evaluate(renyi_bounds.rdp_epsilon, steps, _log_delta(delta))
    known = conversion.known_orders(orders)
    return _precision.evaluate(renyi_bounds.rdp_epsilon, steps, _log_delta(delta), known)
