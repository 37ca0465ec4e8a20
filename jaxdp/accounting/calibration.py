"""The value of one number, or the most steps, with which a run just meets its target.

Log epsilon is next to linear in the log of most numbers, so the search closes in by false position
on that scale (Illinois), with a halving wherever it gains little. What is returned has been
evaluated: the guarantee rests on no property of the search or of the run.

Tight accountants take long where epsilon is huge. The search asks Renyi DP first, which
answers in no time and is never far away, and then looks around its answer.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxdp import _validate
from jaxdp.accounting.events import Event, Repeated
from jaxdp.accounting.guarantee import epsilon

_NOISE_MULTIPLIERS = (1e-3, 1e6)
_TIGHT = ("auto", "exact", "pld")  # accountants that Renyi DP leads to
_CLOSE = 9e-7  # how far below the target the achieved epsilon may stay, relative
_NEAR = 1e-2  # the same for the answer by Renyi DP
_UNLIMITED = 2**31 - 1  # steps are counted in int32 inside programs


class _Tried(NamedTuple):
    value: Any
    epsilon: float
    met: bool
    miss: float  # log(epsilon / target)


_Try = Callable[[Any], _Tried]


class _Grid(NamedTuple):
    """The values that a search may try."""

    near: Callable[[float], Any]  # one of them near a number
    after: Callable[[Any, Any], Any]  # the one after a value, on the way to another


def _floats(kind: type) -> _Grid:
    return _Grid(
        lambda number: float(kind(number)),
        lambda value, other: float(np.nextafter(kind(value), kind(other))),
    )


_SINGLE, _DOUBLE = _floats(np.float32), _floats(np.float64)
_WHOLE = _Grid(math.floor, lambda value, other: value + (1 if other > value else -1))


def _close_in(
    attempt: _Try, met: _Tried, unmet: _Tried, grid: _Grid, within: float
) -> tuple[_Tried, _Tried]:
    """Narrows a bracket until one end meets the target within that much, or the ends touch."""
    aim = -0.4 * within
    weight = {True: 1.0, False: 1.0}  # of the ends' misses; less for an end that stays
    last_met, widest, slow = None, math.inf, 0
    while within == 0.0 or met.miss < -within:
        width = abs(math.log(unmet.value / met.value))
        widest, slow = (0.5 * width, 0) if width <= widest else (widest, slow + 1)
        below, above = weight[True] * (met.miss - aim), weight[False] * (unmet.miss - aim)
        false_position = slow < 3 and math.isfinite(below) and math.isfinite(above)
        share = below / (below - above) if false_position else 0.5
        low, high = sorted((met.value, unmet.value))
        value = grid.near(met.value * (unmet.value / met.value) ** share)
        if value <= low:
            value = grid.after(low, high)
        if value >= high:
            value = grid.after(high, low)
        if not low < value < high:
            break
        tried = attempt(value)
        weight[tried.met] = 1.0
        if tried.met == last_met:
            weight[not tried.met] *= 0.5
        last_met = tried.met
        met, unmet = (tried, unmet) if tried.met else (met, tried)
    return met, unmet


def _bracket(
    attempt: _Try, start: Any, bounds: tuple[Any, Any], grid: _Grid, grows: bool
) -> tuple[_Tried | None, _Tried | None]:
    """Looks for values that meet the target, and do not; None where the bounds hold no such one.

    The first step is twice what would do if epsilon were proportional to the value.
    """
    low, high = bounds
    here = attempt(start)
    step = 2.0 * max(abs(here.miss), 1e-6) if math.isfinite(here.miss) else 1.0
    while True:
        end = high if here.met == grows else low
        if here.value == end:
            return (here, None) if here.met else (None, here)
        move = step if end == high else -step
        value = grid.near(here.value * math.exp(min(max(move, -700.0), 700.0)))
        if value == here.value:
            value = grid.after(value, end)
        there = attempt(min(max(value, low), high))
        if there.met != here.met:
            return (here, there) if here.met else (there, here)
        here, step = there, 2.0 * step


def _check_target(target_epsilon: Any, delta: Any) -> None:
    for name, value in (("target_epsilon", target_epsilon), ("delta", delta)):
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number, not a traced value")
    _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("delta", delta)


def _check_bounds(bounds: Any) -> tuple[float, float]:
    allowed = "two finite numbers, 0 < low < high"
    if not isinstance(bounds, tuple | list) or len(bounds) != 2:
        _validate.refuse("bounds", bounds, allowed)
    low, high = (float(_validate.positive("bounds", end)) for end in bounds)
    if low >= high:
        _validate.refuse("bounds", bounds, allowed)
    return low, high


def _attempts(
    make_event: Callable[[Any], Event], target_epsilon: float, delta: float, accountant: str
) -> _Try:
    def attempt(value):
        achieved = epsilon(make_event(value), delta, accountant=accountant)
        miss = math.log(achieved) - math.log(target_epsilon) if achieved > 0.0 else -math.inf
        return _Tried(value, achieved, achieved <= target_epsilon, miss)

    return attempt


def calibrate(
    make_event: Callable[[float], Event],
    *,
    target_epsilon: float,
    delta: float,
    accountant: str = "auto",
    bounds: tuple[float, float] = _NOISE_MULTIPLIERS,
) -> float:
    r"""The noise multiplier, or any other number, with which a run just meets its target.

    Whatever ``make_event`` takes: a noise multiplier, a sampling probability, the share of one of
    two clip norms. Epsilon may fall with it or grow; `affordable_steps` finds a number of steps.

    Args:
      make_event: Function from the number (a float) to the run; its epsilon has to be monotone.
      target_epsilon: The target, > 0.
      delta: The target's delta, in (0, 1).
      accountant: As for ``epsilon``.
      bounds: Where to look, 0 < low < high; made for noise multipliers.

    Returns:
      The number, a float: the smallest that will do if epsilon falls with it (noise), the largest
      if epsilon grows (sampling). A float32 number where one is close enough, so that programs
      run with the very number that was accounted for.

    Raises:
      ValueError: if no number within the bounds meets the target, or every one does; or an
        argument is bad.

    Guarantee:
      ``epsilon(make_event(number), delta, accountant)`` is at most ``target_epsilon``, evaluated;
      and within 1e-6 of it, relative, unless that accountant's bound jumps there.
      For derivatives: along ``epsilon(event(number, x)) = target`` the number moves by
      -(d epsilon / dx) / (d epsilon / d number), both by ``jax.grad`` of ``epsilon`` in a program,
      and by 1 / (d epsilon / d number) with the target.

    Example:
      >>> from jaxdp import accounting as acc
      >>> sigma = acc.calibrate(lambda s: acc.PoissonSampled(0.01, acc.Gaussian(s)) * 1_000,
      ...                       target_epsilon=1.0, delta=1e-5)
      >>> round(sigma, 4)
      1.4146
      >>> q = acc.calibrate(lambda q: acc.PoissonSampled(q, acc.Gaussian(2.0)) * 1_000,
      ...                   target_epsilon=1.0, delta=1e-5, bounds=(1e-6, 1.0))
      >>> round(q, 4)
      0.0154

    References:
      Dowell and Jarratt 1971, A modified regula falsi method; Balle and Wang 2018,
      arXiv:1805.06530, for calibration by the exact profile.
    """
    _validate.function("make_event", make_event)
    _check_target(target_epsilon, delta)
    bounds = _check_bounds(bounds)
    guide = "rdp" if accountant in _TIGHT else accountant
    attempt = _attempts(make_event, target_epsilon, delta, guide)
    low, high = (attempt(end) for end in bounds)
    grows = high.miss > low.miss
    mild, costly = (low, high) if grows else (high, low)
    if costly.epsilon == 0.0:
        _validate.refuse("make_event", make_event, "a function to a run that releases something")
    met, unmet = (mild if mild.met else None), (None if costly.met else costly)
    if guide != accountant and unmet is not None:
        start = mild
        if met is not None:
            start, _ = _close_in(attempt, met, unmet, _SINGLE, _NEAR)
        attempt = _attempts(make_event, target_epsilon, delta, accountant)
        met, unmet = _bracket(attempt, start.value, bounds, _SINGLE, grows)
        mild, costly = unmet or mild, met or costly
    for missing, words, end in ((met, "at least", mild), (unmet, "below", costly)):
        if missing is None:
            reached = f"{words} {end.epsilon:.6g}, which {end.value:g} gives"
            _validate.refuse("target_epsilon", target_epsilon, reached)
    assert met is not None
    assert unmet is not None
    for grid in (_SINGLE, _DOUBLE):
        met, unmet = _close_in(attempt, met, unmet, grid, _CLOSE)
    return met.value


def affordable_steps(
    event: Event, *, target_epsilon: float, delta: float, accountant: str = "auto"
) -> int:
    """The largest number of times that an event may be repeated within a target.

    Args:
      event: One step.
      target_epsilon: The target, > 0.
      delta: The target's delta, in (0, 1).
      accountant: As for ``epsilon``.

    Returns:
      The number of steps, from 0 to 2**31 - 1 (which stands for any number: a step that
      releases nothing).

    Raises:
      ValueError: if an argument is out of range, or a number in the event is traced.

    Guarantee:
      ``epsilon(Repeated(event, steps), delta, accountant)`` is at most ``target_epsilon``,
      evaluated; one step more exceeds it, by the same accountant.

    Example:
      >>> from jaxdp import accounting as acc
      >>> step = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
      >>> acc.affordable_steps(step, target_epsilon=2.0, delta=1e-5)
      1202

    References:
      Those of ``calibrate``.
    """
    _check_target(target_epsilon, delta)
    if _validate.is_traced(event):
        _validate.refuse("event", event, "an event of numbers, not of traced values")
    start = 1
    for each in ("rdp", accountant) if accountant in _TIGHT else (accountant,):
        attempt = _attempts(lambda n: Repeated(event, n), target_epsilon, delta, each)
        met, unmet = _bracket(attempt, start, (1, _UNLIMITED), _WHOLE, grows=True)
        if met is not None and unmet is not None:
            met, unmet = _close_in(attempt, met, unmet, _WHOLE, 0.0)
        start = 1 if met is None else met.value
    return 0 if met is None else start
