r"""The value of one number, or the most steps, with which a run just meets its target.

The search closes in on the value by false position on log epsilon against the log of the value,
which are next to linear, with a halving wherever that gains little (Illinois). Each answer has been
evaluated, so no property of the search or of the run enters the guarantee.

The tight accountants are slow where epsilon is large, so that the search starts from the answer by
Renyi DP, which is never far away.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxdp import _validate
from jaxdp.accounting.events import Event, Repeated
from jaxdp.accounting.guarantee import epsilon

_NOISE_MULTIPLIERS = (1e-3, 1e6)
_GUIDED = ("auto", "exact", "pld")
_TOLERANCE = 9e-7  # how far below the target the achieved epsilon may stay, relative
_GUIDE_TOLERANCE = 1e-2
_UNLIMITED = 2**31 - 1  # steps are counted in int32 inside programs


class _Point(NamedTuple):
    value: float
    miss: float  # log(epsilon / target): met where it is not positive


class _Grid(NamedTuple):
    """The values that a search may try."""

    down: Callable[[float], float]  # to a value nearby
    after: Callable[[float, float], float]  # the one next to a value, towards another


def _floats(kind: type) -> _Grid:
    return _Grid(
        lambda value: float(kind(value)),
        lambda value, towards: float(np.nextafter(kind(value), kind(towards))),
    )


_SINGLE, _DOUBLE = _floats(np.float32), _floats(np.float64)
_WHOLE = _Grid(math.floor, lambda value, towards: value + 1 if towards > value else value - 1)


def _check_target(target_epsilon: Any, delta: Any) -> None:
    for name, value in (("target_epsilon", target_epsilon), ("delta", delta)):
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number, not a traced value")
    _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("delta", delta)


def _check_bounds(bounds: Any) -> tuple[float, float]:
    try:
        low, high = bounds
    except (TypeError, ValueError):
        _validate.refuse("bounds", bounds, "a pair of numbers (low, high)")
    for value in (low, high):
        _validate.positive("bounds", value)
    if not low < high:
        _validate.refuse("bounds", bounds, "a pair of numbers with low < high")
    return float(low), float(high)


def _close_in(
    point: Callable[[float], _Point], met: _Point, unmet: _Point, grid: _Grid, tolerance: float
) -> tuple[_Point, _Point]:
    """Narrows a bracket until its end that meets the target is close, or next to the other one."""
    aim = -0.4 * tolerance
    weights = [1.0, 1.0]  # of the ends' misses: less for one that has stayed
    wide, since = math.inf, 0
    while met.miss < -tolerance:
        width = abs(math.log(unmet.value / met.value))
        wide, since = (width, 0) if width <= 0.5 * wide else (wide, since + 1)
        ends = [(met.miss - aim) * weights[0], (unmet.miss - aim) * weights[1]]
        share = 0.5
        if since < 3 and all(map(math.isfinite, ends)) and ends[0] < 0.0 < ends[1]:
            share = ends[0] / (ends[0] - ends[1])
        value = grid.down(met.value * (unmet.value / met.value) ** share)
        if not min(met.value, unmet.value) < value < max(met.value, unmet.value):
            value = grid.after(*((met, unmet) if share < 0.5 else (unmet, met))[0:1], 0)
        tried = point(value)
    return met, unmet
