r"""The moments accountant: log-moments at whole orders with the classical tail bound.

With K(a) the log-moment of the run, which adds up over steps (Abadi et al. 2016,
arXiv:1607.00133, Theorem 2), for every whole order a >= 2

.. math:: \epsilon = \frac{K(a) + \log(1/\delta)}{a - 1},

and the least over a is taken (their lambda is a - 1). K is convex and 0 at a = 1, so the quotient
has one minimum over real orders and falls, then rises, along the whole ones; it is bracketed
between 2 and 10^15, far beyond the best order of any run that has some privacy left to lose. As a
grows without end, the bound tends to the largest loss, which counts too where it is finite.
"""

import math
from typing import Any

import numpy as np

from jaxdp import _precision
from jaxdp.accounting import composition, conversion, host
from jaxdp.accounting.composition import Steps

_ALLOWED = "Gaussian and Laplace steps, Poisson-sampled or not"
_KINDS = {"gaussian", "laplace", "sampled_gaussian", "sampled_laplace"}
_LAST = 15.0  # the largest order is 10 to this power
_POINTS = 32


def applies(steps: Steps) -> bool:
    """Whether the log-moments of all steps are known."""
    return host.kinds_of(steps) <= _KINDS


def _log_moments(steps: Steps, t: Any) -> Any:
    return composition.log_moment_of(steps, t)


def _pure(steps: Steps, unused: Any) -> Any:
    return composition.pure_epsilon_of(steps, unused.dtype)


def epsilon(steps: Steps, log_delta: Any) -> float:
    """The epsilon of a run by the moments accountant, rounded up.

    Args:
      steps: The run. No number may be traced.
      log_delta: Logarithm of delta, < 0.

    Returns:
      Epsilon >= 0, infinite where a step has no noise.

    Raises:
      ValueError: if a number is traced, or a step's log-moment is not known.
    """
    log_delta = host.checked_log_delta("moments", steps, log_delta, applies, _ALLOWED)
    pure = host.up(_precision.evaluate(_pure, steps, 0.0), 16.0)
    if pure == 0.0 or log_delta == -math.inf:
        return pure
    low, high, best = 2.0, 10.0**_LAST, pure
    while True:
        few = high - low < _POINTS
        whole = low + np.arange(_POINTS) if few else np.geomspace(low, high, _POINTS).round()
        orders = np.minimum(whole, high)
        moments = _precision.evaluate(_log_moments, steps, orders - 1.0)
        moments = moments * (1.0 + conversion.margin(moments.dtype))
        bounds = (moments - log_delta) / (orders - 1.0) * (1.0 + 8.0 * host.ULP)
        at = int(np.argmin(bounds))
        best = min(best, float(bounds[at]))
        if few:
            return best
        low, high = orders[max(at - 1, 0)], orders[min(at + 1, _POINTS - 1)]
