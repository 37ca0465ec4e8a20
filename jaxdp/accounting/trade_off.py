r"""The trade-off curve of a guarantee: the least type II error of any attack at a type I error.

An attack decides between two neighbouring data sets. By Wasserman and Zhou 2010, if the run is
(epsilon, delta)-DP for every epsilon with delta = delta(epsilon), then at type I error alpha its
type II error is at least (Dong, Roth and Su 2022, arXiv:1905.02383, Proposition 2.5)

.. math:: f(\alpha) = \sup_{\epsilon \ge 0} \max\{0, 1 - \delta(\epsilon) - e^\epsilon \alpha,
    e^{-\epsilon} (1 - \delta(\epsilon) - \alpha)\}.

Any single epsilon gives a lower bound, so a search for the best one decides on tightness only. Of
an exact profile, delta is convex in x = e^epsilon (a maximum of lines), hence the first form
concave in x; the second is (1 - alpha) / x less the perspective of delta, concave in 1/x. Each has
one maximum.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.accounting import host

# A profile is looked at on this grid first, and then between the neighbours of the best point.
# Beyond its end e^-epsilon is next to no float.
_GRID = (0.0, *(4.0**j for j in range(-15, 5)), 700.0)
# e^-40 is lost in 1 - delta.
_LOST = -40.0


def as_far_as_it_shows(log_delta_at: Callable[[float], Any]) -> Callable[[float], float]:
    """The profile, each epsilon asked once, and none beyond one at which 1 - delta is 1.

    Delta falls with epsilon, so that a bound at a smaller one is a bound: far out, where a profile
    may take seconds, nothing depends on it.
    """
    lost: list[tuple[float, float]] = []

    @functools.cache
    def profile(epsilon: float) -> float:
        for place, value in lost:
            if epsilon >= place:
                return value
        value = min(float(log_delta_at(epsilon)), 0.0)
        if value <= _LOST:
            lost.append((epsilon, value))
        return value

    return profile


def _largest(value: Callable[[float], float]) -> float:
    """The largest value(epsilon) that a search over epsilon >= 0 meets, for one maximum."""
    at = max(range(len(_GRID)), key=lambda index: value(_GRID[index]))
    low, high = _GRID[max(at - 1, 0)], _GRID[min(at + 1, len(_GRID) - 1)]
    between = -host.least(lambda epsilon: -value(epsilon), low, high, 1e-9)
    return max(value(_GRID[at]), between)


def _type_ii_error(alpha: float, log_delta_at: Callable[[float], float]) -> float:
    # Both forms are rounded down: by what the exponentials and differences may be off.
    def kept(epsilon: float) -> float:
        return -math.expm1(log_delta_at(epsilon)) - 4.0 * host.ULP

    def first(epsilon: float) -> float:
        return kept(epsilon) - alpha * math.exp(epsilon) * (1.0 + 4.0 * host.ULP)

    def second(epsilon: float) -> float:
        return math.exp(-epsilon) * (kept(epsilon) - alpha) * (1.0 - 4.0 * host.ULP)

    # The forms are equal at epsilon 0, and the curve is convex: only one of them rises from there.
    highest = [max(map(form, _GRID)) for form in (first, second)]
    rising = first if highest[0] > highest[1] else second
    return max(0.0, _largest(rising))


def type_ii_error(alpha: Any, log_delta_at: Callable[[float], Any]) -> Any:
    r"""The least type II error of any attack at a type I error, from the profile of a run.

    Args:
      alpha: Type I error in [0, 1], a scalar or an array: the probability that the attack
        takes the first data set for the second one.
      log_delta_at: Function from an epsilon >= 0 (a float) to the logarithm of delta there, that
        is the run's profile or an upper bound on it.

    Returns:
      The probability, shaped like ``alpha``: a float, or a NumPy array.

    Raises:
      ValueError: if ``alpha`` is traced or outside [0, 1].

    Guarantee:
      A lower bound, for the neighbours of the profile: no attack with type I error at most
      ``alpha`` has a smaller type II error. Rounded down; with an exact profile within 1e-8.

    Example:
      >>> import math
      >>> from jaxdp.accounting.trade_off import type_ii_error
      >>> from jaxdp.mechanisms import gaussian
      >>> error = type_ii_error(
      ...     0.05, lambda epsilon: gaussian.log_delta(epsilon=epsilon, noise_multiplier=1.0))
      >>> round(error, 6)  # Phi(Phi^-1(0.95) - 1)
      0.740489

    References:
      Wasserman and Zhou 2010, arXiv:0811.2501; Dong, Roth and Su 2022, arXiv:1905.02383,
      Proposition 2.5.
    """
    if _validate.is_traced(alpha):
        _validate.refuse("alpha", alpha, "a number or an array of numbers, not traced values")
    known = np.asarray(alpha)
    for number in known.ravel().tolist():
        _validate.probability("alpha", number)
    _validate.function("log_delta_at", log_delta_at)

    profile = as_far_as_it_shows(log_delta_at)
    errors = [_type_ii_error(float(number), profile) for number in known.ravel()]
    return np.reshape(errors, known.shape) if known.ndim else errors[0]


def attack_advantage(log_delta_at: Callable[[float], Any]) -> float:
    r"""The most that an attack's true positive rate can exceed its false positive rate.

    That is delta at epsilon 0, the total variation of the two outputs.

    Args:
      log_delta_at: Function from an epsilon >= 0 to the logarithm of delta there.

    Returns:
      The advantage in [0, 1], a float.

    Raises:
      ValueError: if ``log_delta_at`` is no function.

    Guarantee:
      An upper bound for the neighbours of the profile, rounded up.

    Example:
      >>> from jaxdp.accounting.trade_off import attack_advantage
      >>> from jaxdp.mechanisms import gaussian
      >>> round(attack_advantage(
      ...     lambda epsilon: gaussian.log_delta(epsilon=epsilon, noise_multiplier=1.0)), 6)
      0.382925

    References:
      Yeom, Giacomelli, Fredrikson and Jha 2018, arXiv:1709.01604 (the advantage); Wasserman and
      Zhou 2010, arXiv:0811.2501.
    """
    _validate.function("log_delta_at", log_delta_at)
    return min(1.0, host.up(math.exp(min(float(log_delta_at(0.0)), 0.0))))
