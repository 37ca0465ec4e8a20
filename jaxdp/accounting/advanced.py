r"""Advanced composition: the losses of the steps average out.

For steps that are epsilon_i-private and any slack delta' > 0, the run is (epsilon, delta')-private
with, by Dwork, Rothblum and Vadhan 2010 (Boosting and differential privacy, Theorem III.3),

.. math:: \epsilon = \sum_i \epsilon_i (e^{\epsilon_i} - 1)
    + \sqrt{2 \log(1/\delta') \sum_i \epsilon_i^2}.

The theorem is stated for equal steps; its proof holds for unlike ones: given the past, the loss of
step i lies in an interval of width 2 epsilon_i and has a mean of at most
epsilon_i (e^epsilon_i - 1), and the Azuma-Hoeffding inequality for such increments is the square
root. A step that is (epsilon_i, delta_i)-private is, but for an event of probability delta_i,
epsilon_i-private (Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, Theorem 3.2's reduction), so
the deltas of the steps add to the slack. How much of delta is slack, and how much is shared
evenly by the steps that need one, is searched for: any share is valid.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdp import _validate
from jaxdp.accounting import host, single_step
from jaxdp.accounting.composition import Steps


def applies(steps: Steps) -> bool:
    """Whether advanced composition bounds this run."""
    return single_step.applies(steps)


def _expm1(x: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        return np.expm1(x)


def _square(epsilons: np.ndarray, counts: np.ndarray) -> float:
    with np.errstate(over="ignore"):
        return math.fsum(np.square(epsilons) * counts)


def _checked(epsilons: Any, counts: Any, log_slack: Any) -> tuple[np.ndarray, np.ndarray, float]:
    if _validate.is_traced(epsilons, counts, log_slack):
        _validate.refuse("epsilons", epsilons, "numbers, not traced values")
    steps, times = host.columns(epsilons, counts)
    if not np.all(steps >= 0.0):
        _validate.refuse("epsilons", epsilons, "numbers >= 0")
    if not np.all((times >= 0.0) & (times < np.inf)) or times.shape != steps.shape:
        _validate.refuse("counts", counts, "a whole number >= 0 for every epsilon")
    if not float(log_slack) < 0.0:
        _validate.refuse("log_slack", log_slack, "a number below 0")
    kept = (times > 0.0) & (steps > 0.0)
    return steps[kept], times[kept], float(log_slack)


def advanced_drv(epsilons: Any, counts: Any, log_slack: Any) -> float:
    r"""Advanced composition of pure steps by Dwork, Rothblum and Vadhan.

    Args:
      epsilons: The epsilon of each distinct step, shape [n] or a scalar, >= 0.
      counts: How often each is taken, of the same shape.
      log_slack: Logarithm of the slack delta', < 0.

    Returns:
      Epsilon, rounded up. For few steps it may exceed their sum.

    Raises:
      ValueError: if an argument is out of range or traced.

    Guarantee:
      The adaptive composition is (epsilon, delta')-DP, for the neighbours of the steps.

    Example:
      >>> import math
      >>> from jaxdp.accounting.advanced import advanced_drv
      >>> round(advanced_drv(0.01, 1_000, math.log(1e-5)), 6)
      1.617929

    References:
      Dwork, Rothblum and Vadhan 2010, Boosting and differential privacy, Theorem III.3.
    """
    steps, times, log_slack = _checked(epsilons, counts, log_slack)
    if steps.size == 0:
        return 0.0
    mean = math.fsum(steps * _expm1(steps) * times)
    return host.up(mean + math.sqrt(-2.0 * log_slack * _square(steps, times)))


def advanced_kov(epsilons: Any, counts: Any, log_slack: Any) -> float:
    r"""Advanced composition of pure steps by Kairouz, Oh and Viswanath, in closed form.

    The least of :math:`\sum \epsilon_i` and, with :math:`S = \sum \epsilon_i^2` and
    :math:`m = \sum \epsilon_i \tanh(\epsilon_i / 2)`, of
    :math:`m + \sqrt{2 S \log(1/\delta')}` and
    :math:`m + \sqrt{2 S \log(e + \sqrt{S} / \delta')}`.

    Args:
      epsilons, counts, log_slack: As for ``advanced_drv``.

    Returns:
      Epsilon, rounded up.

    Raises:
      ValueError: if an argument is out of range or traced.

    Guarantee:
      The adaptive composition is (epsilon, delta')-DP, for the neighbours of the steps.

    Example:
      >>> import math
      >>> from jaxdp.accounting.advanced import advanced_kov
      >>> round(advanced_kov(0.01, 1_000, math.log(1e-5)), 6)
      1.489563

    References:
      Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, Theorems 3.4 and 3.5.
    """
    steps, times, log_slack = _checked(epsilons, counts, log_slack)
    if steps.size == 0:
        return 0.0
    total, square = math.fsum(steps * times), _square(steps, times)
    if not square < math.inf or log_slack == -math.inf:
        return host.up(total)
    mean = math.fsum(steps * np.tanh(0.5 * steps) * times)
    # log(e + sqrt(S) / delta'), where the quotient may overflow.
    log_sum = float(np.logaddexp(1.0, 0.5 * math.log(square) - log_slack)) if square > 0.0 else 1.0
    deviation = math.sqrt(2.0 * square * min(-log_slack, log_sum))
    return host.up(min(total, mean + deviation), 16.0)


def best_split(
    releases: single_step.Releases, log_delta: float, bound: Callable[[np.ndarray, float], float]
) -> float:
    """The least ``bound(epsilons, log_slack)`` over the share of delta that is slack.

    ``epsilons`` are those of the pure steps and then of the Gaussian ones.
    """
    counts = releases.gaussian_counts
    if counts.size == 0:
        return bound(releases.pure_epsilons, log_delta)
    if log_delta == -math.inf:
        return math.inf
    log_count = math.log(host.up(math.fsum(counts)))

    def at(logit: float) -> float:
        # log of the shares 1 / (1 + e^-x) and 1 / (1 + e^x), rounded down together.
        log_slack = log_delta - math.log1p(math.exp(-logit)) - 8.0 * host.ULP
        log_each = log_delta - math.log1p(math.exp(logit)) - log_count - 8.0 * host.ULP
        gaussian = single_step.gaussian_epsilons(releases, log_each)
        return bound(np.concatenate([releases.pure_epsilons, gaussian]), log_slack)

    return host.least(at, -12.0, 12.0, 1e-3)


def epsilon(steps: Steps, log_delta: Any) -> float:
    """The epsilon of a run by advanced composition (Dwork, Rothblum and Vadhan), rounded up.

    Args:
      steps: The run, with Gaussians apart (``single_step.one_by_one``). No number may be traced.
      log_delta: Logarithm of delta, < 0.

    Returns:
      Epsilon >= 0, infinite where a step has no noise.

    Raises:
      ValueError: if a number is traced, or a step's own guarantee is not known.
    """
    log_delta = host.checked_log_delta("advanced", steps, log_delta, applies, single_step.ALLOWED)
    releases = single_step.releases_of(steps)
    counts = np.concatenate([releases.pure_counts, releases.gaussian_counts])
    return best_split(
        releases,
        log_delta,
        lambda epsilons, log_slack: advanced_drv(epsilons, counts, log_slack),
    )
