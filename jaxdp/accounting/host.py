"""What accountants that run on the host alone share: numbers only, rounded outward."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.accounting.composition import Steps

# Twice the unit roundoff of float64: one elementary operation is off by at most one of these.
ULP = 2.0**-52
_GOLDEN = 0.5 * (3.0 - math.sqrt(5.0))


def up(value: float, ulps: float = 8.0) -> float:
    """A non-negative number moved up past the rounding of the operations that made it."""
    return value * (1.0 + ulps * ULP)


def kinds_of(steps: Steps) -> set[str]:
    """The names of the kinds of step that occur."""
    return {name for name, rows in zip(Steps._fields, steps, strict=True) if rows is not None}


def checked_log_delta(
    accountant: str,
    steps: Steps,
    log_delta: Any,
    applies: Callable[[Steps], bool],
    allowed: str,
) -> float:
    """Log delta, moved down past the rounding of the logarithm.

    Refuses what is traced, and a run that the accountant has no theorem about.
    """
    if _validate.is_traced(steps, log_delta):
        _validate.refuse(
            "accountant",
            accountant,
            "'rdp' or 'exact' where a number of the event or delta is traced (this one runs on "
            "the host)",
        )
    log_delta = float(log_delta)
    if not log_delta < 0.0:
        _validate.refuse("log_delta", log_delta, "a number below 0")
    if not applies(steps):
        _validate.refuse("accountant", accountant, f"one that applies: this one is for {allowed}")
    return log_delta * (1.0 + 2.0 * ULP) - ULP


def columns(*parts: Any) -> tuple[np.ndarray, ...]:
    """Float64 vectors of one length."""
    return tuple(np.atleast_1d(np.asarray(part, np.float64)) for part in parts)


def least(value: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """The least ``value(x)`` that Brent's search over [low, high] meets (Brent 1973, chapter 5).

    For bounds that hold at every x: a value with several minima costs tightness only. The search
    ends where x is known to the tolerance: relative, or of the interval's width times 1e-3.
    """
    width = high - low
    x = second = third = low + _GOLDEN * width
    at_x = at_second = at_third = value(x)
    step = before = 0.0
    for _ in range(200):
        middle, near = 0.5 * (low + high), tolerance * (abs(x) + 1e-3 * width)
        if abs(x - middle) <= 2.0 * near - 0.5 * (high - low):
            break
        # The vertex of the parabola through the three best points, if it is well inside and
        # the steps shrink; a golden section of the larger part otherwise.
        r = (x - second) * (at_x - at_third)
        q = (x - third) * (at_x - at_second)
        p, q = (x - third) * q - (x - second) * r, 2.0 * (q - r)
        p, q = (-p, q) if q > 0.0 else (p, -q)
        inside = abs(p) < abs(0.5 * q * before) and q * (low - x) < p < q * (high - x)
        if inside:
            before, step = step, p / q
        else:
            before = (high if x < middle else low) - x
            step = _GOLDEN * before
        u = x + math.copysign(max(abs(step), near), step)
        at_u = value(u)
        if at_u <= at_x:
            low, high = (x, high) if u >= x else (low, x)
            third, at_third, second, at_second, x, at_x = second, at_second, x, at_x, u, at_u
            continue
        low, high = (u, high) if u < x else (low, u)
        if at_u <= at_second or second == x:
            third, at_third, second, at_second = second, at_second, u, at_u
        elif at_u <= at_third or third in (x, second):
            third, at_third = u, at_u
    return at_x
