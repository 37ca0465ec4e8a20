"""The least noise, or the most steps, that a target allows."""

import math
from collections.abc import Callable
from typing import Any

from jaxdp import _validate
from jaxdp.accounting.events import Event, Repeated
from jaxdp.accounting.guarantee import epsilon

_LEAST, _MOST = 1e-3, 1e6  # noise multipliers that the search covers
_TOLERANCE = 2e-7  # how far below the target the achieved epsilon may stay, relative
_UNLIMITED = 2**31 - 1  # steps are counted in int32 inside programs


def _check_target(target_epsilon: Any, delta: Any) -> None:
    for name, value in (("target_epsilon", target_epsilon), ("delta", delta)):
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number, not a traced value")
    _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("delta", delta)


def calibrate(
    make_event: Callable[[float], Event],
    *,
    target_epsilon: float,
    delta: float,
    accountant: str = "auto",
) -> float:
    """The smallest noise multiplier with which a run meets its target.

    Args:
      make_event: Function from a noise multiplier (a float) to the run. Its epsilon must not
        grow with the noise multiplier.
      target_epsilon: The target, > 0.
      delta: The target's delta, in (0, 1).
      accountant: "auto", "exact" or "rdp", as for ``epsilon``.

    Returns:
      The noise multiplier, a float.

    Raises:
      ValueError: if the target is out of reach of noise multipliers up to 1e6, or met already
        by the least one, 1e-3 (a run that releases next to nothing); or an argument is bad.

    Guarantee:
      ``epsilon(make_event(noise_multiplier), delta)`` is at most ``target_epsilon``, and within
      1e-6 of it, relative: the bracket's upper end, evaluated, is what is returned.

    Example:
      >>> from jaxdp import accounting as acc
      >>> sigma = acc.calibrate(lambda s: acc.PoissonSampled(0.01, acc.Gaussian(s)) * 1_000,
      ...                       target_epsilon=2.0, delta=1e-5)
      >>> round(sigma, 4)
      1.0223

    References:
      Bisection on a monotone function; Balle and Wang 2018, arXiv:1805.06530, for the exact
      Gaussian profile.
    """
    _validate.function("make_event", make_event)
    _check_target(target_epsilon, delta)
    target = float(target_epsilon)

    def achieved(log_multiplier: float) -> float:
        return epsilon(make_event(math.exp(log_multiplier)), delta, accountant=accountant)

    low, high = math.log(_LEAST), math.log(_MOST)
    least, most = achieved(high), achieved(low)
    if least > target:
        _validate.refuse(
            "target_epsilon", target_epsilon, f"at least {least:.6g}, which noise {_MOST:g} gives"
        )
    if most == 0.0:
        _validate.refuse("make_event", make_event, "a function to a run that releases something")
    if most <= target:
        _validate.refuse(
            "target_epsilon", target_epsilon, f"below {most:.6g}, which noise {_LEAST:g} gives"
        )
    # 100 halvings leave no float between the ends; steep profiles need most of them.
    for _ in range(100):
        if least >= target * (1.0 - _TOLERANCE):
            break
        middle = 0.5 * (low + high)
        there = achieved(middle)
        if there <= target:
            high, least = middle, there
        else:
            low = middle
    return math.exp(high)


def affordable_steps(
    event: Event, *, target_epsilon: float, delta: float, accountant: str = "auto"
) -> int:
    """The largest number of times that an event may be repeated within a target.

    Args:
      event: One step.
      target_epsilon: The target, > 0.
      delta: The target's delta, in (0, 1).
      accountant: "auto", "exact" or "rdp", as for ``epsilon``.

    Returns:
      The number of steps, from 0 to 2**31 - 1 (which stands for any number: a step that
      releases nothing).

    Raises:
      ValueError: if an argument is out of range, or a number in the event is traced.

    Guarantee:
      ``epsilon(Repeated(event, steps), delta)`` is at most ``target_epsilon``, evaluated; one
      step more exceeds it, by the same accountant.

    Example:
      >>> from jaxdp import accounting as acc
      >>> step = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
      >>> acc.affordable_steps(step, target_epsilon=2.0, delta=1e-5)
      881

    References:
      Bisection on a monotone function.
    """
    _check_target(target_epsilon, delta)
    if _validate.is_traced(event):
        _validate.refuse("event", event, "an event of numbers, not of traced values")

    def affordable(steps: int) -> bool:
        return epsilon(Repeated(event, steps), delta, accountant=accountant) <= target_epsilon

    if affordable(_UNLIMITED):
        return _UNLIMITED
    low, high = 0, 1
    while affordable(high):
        low, high = high, min(2 * high, _UNLIMITED)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if affordable(middle) else (low, middle)
    return low
