r"""Optimal composition of k equal steps: no theorem about (epsilon_0, delta_0) alone is tighter.

Every epsilon_0-private step is a function of randomised response, whose losses are epsilon_0 with
probability p = e^epsilon_0 / (1 + e^epsilon_0) and -epsilon_0 otherwise (Kairouz, Oh and Viswanath
2015, arXiv:1311.0776, Theorem 3.3). So with l the number of negative losses,

.. math:: \delta(\epsilon) = \sum_l P(l) [1 - e^{\epsilon - (k - 2l) \epsilon_0}]_+,
    \quad P = \text{Binomial}(k, 1 - p).

Between the grid points T_i = (k - 2i) epsilon_0 the terms are l < i, and the equation is solved
in closed form: with s = epsilon - T_i,

.. math:: e^s = 1 + (D_i - \delta) / B_i, \quad
    D_i = \sum_{l<i} P(l) (1 - e^{-2 (i-l) \epsilon_0}), \quad
    B_i = \sum_{l<i} P(l) e^{-2 (i-l) \epsilon_0}.

All terms are positive: nothing cancels, and sums are scaled by their largest term, so that delta
may be 1e-100. Why the result is an upper bound: log P(l), by Loader's saddle-point form (Loader
2000, Fast and accurate computation of binomial probabilities), is a constant, plus deviances,
good to a few ulps of themselves, plus what a rounding of p and of 1 - p does, which to first order
is an ulp of \|l - k (1 - p)\|; twice the sum of these is added to it in D and taken off in B. Terms
below a cut-off are left out of B, and bounded by a geometric series in D: P(l - 1) / P(l) falls
with l. D_i too large and B_i too small give an epsilon too large, whichever i that leads to.

Steps that are (epsilon_0, delta_0)-private leak altogether with probability at most k delta_0; the
share of delta for that is the one that the closed form of ``advanced_kov`` likes best, or all of
it, which is naive composition.
"""

import math
from typing import Any

import numpy as np

from jaxdp.accounting import advanced, host, naive, single_step
from jaxdp.accounting.composition import Steps

_ALLOWED = "equal steps, all pure with one epsilon or all Gaussian with one rate and noise"
_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
# log n! less Stirling's formula, for n up to 15; the series below is good to 1e-16 beyond.
_STIRLING_ERRORS = np.array(
    [0.0]
    + [
        math.log(math.factorial(n)) - (n + 0.5) * math.log(n) + n - _HALF_LOG_2PI
        for n in range(1, 16)
    ]
)


def _stirling_error(n: np.ndarray) -> np.ndarray:
    x = np.maximum(n, 16.0)
    y = 1.0 / (x * x)
    series = (1 / 12 - y * (1 / 360 - y * (1 / 1260 - y * (1 / 1680 - y / 1188)))) / x
    return np.where(n < 16.0, _STIRLING_ERRORS[np.minimum(n, 15.0).astype(int)], series)


def _deviance(x: np.ndarray, mean: float) -> np.ndarray:
    """x log(x / mean) + mean - x for x > 0, without cancellation where x is next to mean."""
    difference = x - mean
    v = difference / (x + mean)
    near = np.abs(v) < 0.1
    w = np.where(near, v, 0.0)
    series, power = difference * w, 2.0 * x * w
    for j in range(1, 10):
        power = power * w * w
        series = series + power / (2 * j + 1)
    far = np.where(near, 2.0 * mean, x)
    return np.where(near, series, far * np.log(far / mean) + mean - far)


def _log_binomial(lost: np.ndarray, k: float, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """log P(l) for l = lost, 0 <= l < k, and a bound on its error."""
    odds = math.exp(-epsilon)
    small, large = k * (odds / (1.0 + odds)), k / (1.0 + odds)
    some = np.where(lost > 0.0, lost, 0.5 * k)
    deviance = _deviance(some, small) + _deviance(k - some, large)
    stirling = _stirling_error(np.array([k]))[0] - _stirling_error(some) - _stirling_error(k - some)
    inside = stirling - deviance + 0.5 * (np.log(k / (k - some)) - np.log(some)) - _HALF_LOG_2PI
    none = -k * math.log1p(odds)
    value = np.where(lost > 0.0, inside, none)
    size = np.where(lost > 0.0, deviance, -none)
    return value, 1e-13 + 8.0 * host.ULP * (size + np.abs(lost - small))


def _log_sum(terms: np.ndarray) -> float:
    top = float(np.max(terms))
    return top + math.log(float(np.sum(np.exp(terms - top)))) if top > -math.inf else top


def _log_sums(i: int, k: float, epsilon: float) -> tuple[float, float]:
    """log D_i, rounded up, and log B_i, rounded down, for i >= 1."""
    odds = math.exp(-epsilon)
    # From the larger of the terms downwards they fall at least like exp(-d^2 / (2 l)).
    start = min(i, math.floor(k * odds / (1.0 + odds)))
    first = max(0, start - 14 * math.isqrt(start) - 14)
    lost = np.arange(first, i, dtype=np.float64)
    log_p, error = _log_binomial(lost, k, epsilon)
    excess = 2.0 * (i - lost) * epsilon
    log_d = _log_sum(log_p + error + np.log(-np.expm1(-excess)))
    log_b = _log_sum(log_p - error - excess * (1.0 + 4.0 * host.ULP))
    if first > 0:
        ratio = first / (k - first + 1.0) / odds
        assert ratio < 1.0
        tail = float(log_p[0] + error[0]) + math.log(ratio / (1.0 - ratio))
        log_d = float(np.logaddexp(log_d, tail))
    # Exponentials, a pairwise sum of at most 2^31 of them, and the sum's logarithm.
    log_d += (64.0 + 4.0 * abs(log_d)) * host.ULP
    return log_d, log_b - (64.0 + 4.0 * abs(log_b)) * host.ULP


def _grid_point(k: float, epsilon: float, log_delta: float) -> int | None:
    """The least i with D_i >= delta; None where delta at epsilon 0 is smaller already."""
    last = math.ceil(k / 2.0)
    odds = math.exp(-epsilon)
    mode = k * odds / (1.0 + odds)
    low, high = 0, min(last, math.ceil(mode + 8.0 * math.sqrt(mode)) + 1)
    while _log_sums(high, k, epsilon)[0] < log_delta:
        if high == last:
            return None
        low, high = high, min(last, 2 * high)
    while high - low > 1:
        middle = (low + high) // 2
        if _log_sums(middle, k, epsilon)[0] < log_delta:
            low = middle
        else:
            high = middle
    return high


def optimal_composition(epsilon: float, count: float, log_delta: float) -> float:
    r"""The smallest epsilon that k-fold composition of any epsilon_0-private step has at delta.

    Args:
      epsilon: The epsilon_0 of one step, >= 0.
      count: The number of steps k, a whole number >= 0.
      log_delta: Logarithm of delta, < 0; -inf for delta 0.

    Returns:
      Epsilon, rounded up; 0 where delta alone is enough.

    Guarantee:
      The adaptive composition is (epsilon, delta)-DP for the neighbours of the steps, and
      randomised response attains it.

    Example:
      >>> import math
      >>> from jaxdp.accounting.optimal import optimal_composition
      >>> round(optimal_composition(0.01, 1_000, math.log(1e-5)), 6)
      1.197733

    References:
      Kairouz, Oh and Viswanath 2015, arXiv:1311.0776, Theorem 3.3.
    """
    if count == 0.0 or epsilon == 0.0:
        return 0.0
    # Beyond 700, 1 - p is no float; nearly all steps have the largest loss then.
    if epsilon > 700.0 or log_delta == -math.inf:
        return host.up(count * epsilon)
    i = _grid_point(count, epsilon, log_delta)
    if i is None:
        return 0.0
    log_d, log_b = _log_sums(i, count, epsilon)
    missing = -math.expm1(min(log_delta - log_d, 0.0))
    step = 0.0
    if missing > 0.0:
        step = float(np.logaddexp(0.0, log_d + math.log(missing) - log_b))
    grid = (count - 2.0 * i) * epsilon
    value = grid + min(step, 2.0 * epsilon) * (1.0 + 16.0 * host.ULP)
    return max(0.0, value + 8.0 * host.ULP * abs(grid))


def _only_step(releases: single_step.Releases) -> bool:
    pure = np.unique(releases.pure_epsilons)
    gaussian = np.unique(np.stack([releases.rates, releases.noise_multipliers]), axis=1)
    return pure.size + gaussian.shape[1] <= 1


def applies(steps: Steps) -> bool:
    """Whether the run repeats one step whose own guarantee is known."""
    return single_step.applies(steps) and _only_step(single_step.releases_of(steps))


def epsilon(steps: Steps, log_delta: Any) -> float:
    """The epsilon of a run of equal steps by optimal composition, rounded up.

    Args:
      steps: The run, with Gaussians apart (``single_step.one_by_one``). No number may be traced.
      log_delta: Logarithm of delta, < 0; -inf for the pure guarantee.

    Returns:
      Epsilon >= 0, infinite where a step has no noise.

    Raises:
      ValueError: if a number is traced, or the steps differ.
    """
    log_delta = host.checked_log_delta("optimal", steps, log_delta, applies, _ALLOWED)
    releases = single_step.releases_of(steps)
    pure_count = math.fsum(releases.pure_counts)
    if pure_count > 0.0:
        return optimal_composition(float(releases.pure_epsilons[0]), pure_count, log_delta)
    count = math.fsum(releases.gaussian_counts)
    if count == 0.0:
        return 0.0
    merged = releases._replace(
        rates=releases.rates[:1],
        noise_multipliers=releases.noise_multipliers[:1],
        gaussian_counts=np.array([count]),
    )
    closed, step, log_slack = math.inf, math.inf, log_delta

    def closed_form(epsilons: np.ndarray, slack: float) -> float:
        nonlocal closed, step, log_slack
        value = advanced.advanced_kov(epsilons, merged.gaussian_counts, slack)
        if value < closed:
            closed, step, log_slack = value, float(epsilons[0]), slack
        return value

    advanced.best_split(merged, log_delta, closed_form)
    return min(optimal_composition(step, count, log_slack), naive.epsilon(steps, log_delta))
