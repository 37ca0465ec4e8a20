r"""Laplace or Gaussian noise: which one errs less at the same guarantee, computed.

A query answers with d numbers, and a neighbour moves each by at most c. Laplace noise of scale b
is, in every coordinate, dominated by itself shifted by exactly c (its profile grows with the
shift), and dominating pairs compose (Zhu, Dong and Wang 2022, arXiv:2106.08567, Theorem 10): n
queries cost no more than n d scalar Laplace releases with multiplier b / c. That is tighter than
to take a query as one release of L1 sensitivity d c. Gaussian noise of standard deviation s on n
queries of L2 sensitivity sqrt(d) c is one Gaussian with mu = sqrt(n d) c / s.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from jaxdp import _validate
from jaxdp.accounting import host, optimal
from jaxdp.accounting.events import Laplace
from jaxdp.accounting.guarantee import epsilon as epsilon_of
from jaxdp.mechanisms import gaussian, laplace

_TOLERANCE = 1e-7  # of the Laplace scale, relative: how far above the least one it may stay


class NoiseError(NamedTuple):
    """One kind of noise at the guarantee asked for, in the unit of the answers.

    Attributes:
      scale: The scale of Laplace noise, the standard deviation of Gaussian noise; infinite
        where no noise of this kind is enough.
      coordinate_error: Root mean square error of one coordinate of one answer.
      l2_error: Root of the expected squared L2 norm of one answer's error.
      max_error: Expected L-infinity norm of one answer's error.
    """

    scale: float
    coordinate_error: float
    l2_error: float
    max_error: float


class Choice(NamedTuple):
    """Which noise has the smaller L2 error; ``print`` it for a summary.

    Attributes:
      winner: "laplace" or "gaussian".
      ratio: The loser's L2 error over the winner's, >= 1; infinite where one is impossible.
      laplace: Laplace noise at the guarantee.
      gaussian: Gaussian noise at the guarantee.
    """

    winner: str
    ratio: float
    laplace: NoiseError
    gaussian: NoiseError

    def __str__(self) -> str:
        rows = [f"{'':9}{'scale':>12}{'L2 error':>12}{'max error':>12}"]
        for name, noise in (("laplace", self.laplace), ("gaussian", self.gaussian)):
            numbers = (noise.scale, noise.l2_error, noise.max_error)
            rows.append(f"{name:9}" + "".join(f"{number:12.5g}" for number in numbers))
        rows.append(f"{self.winner} wins: the other's L2 error is {self.ratio:.4g} times as large")
        return "\n".join(rows)


def _laplace_epsilon(noise_multiplier: float, releases: int, delta: float) -> float:
    """The best certified epsilon of that many scalar Laplace releases."""
    if releases == 1:
        return laplace.epsilon(delta=delta, noise_multiplier=noise_multiplier)
    loss = host.up(1.0 / noise_multiplier)
    generic = optimal.optimal_composition(loss, releases, math.log(delta))
    return min(generic, epsilon_of(Laplace(noise_multiplier) * releases, delta))


def _laplace_multiplier(releases: int, epsilon: float, delta: float) -> float:
    """The least scale, in units of the coordinate bound, that meets the target, rounded up."""
    high = host.up(releases / epsilon)  # the losses add up to epsilon: enough at delta 0
    if delta == 0.0:
        return high
    low = high
    while _laplace_epsilon(low, releases, delta) <= epsilon:
        low, high = 0.5 * low, low
    while high > low * (1.0 + _TOLERANCE):
        middle = math.sqrt(low * high)
        if _laplace_epsilon(middle, releases, delta) <= epsilon:
            high = middle
        else:
            low = middle
    return high


def _harmonic(n: int) -> float:
    """1 + 1/2 + ... + 1/n."""
    if n < 1_000:
        return math.fsum(1.0 / k for k in range(1, n + 1))
    return math.log(n) + 0.5772156649015329 + 0.5 / n - 1.0 / (12.0 * n * n)


def _largest_of_normals(n: int) -> float:
    """The expected largest absolute value of n standard normal numbers, to about 1e-6.

    The integral over x of 1 - (1 - p)^n, with p = erfc(x / sqrt 2) the tail's mass: the
    midpoint rule up to where n p is below 1e-16.
    """
    end = math.sqrt(2.0 * math.log(n) + 75.0)
    points = (np.arange(2_000) + 0.5) / 2_000 * end
    tails = (math.erfc(x / math.sqrt(2.0)) for x in points.tolist())
    return end / 2_000 * math.fsum(-math.expm1(n * math.log1p(-tail)) for tail in tails)


def choose(
    *, dimension: int, coordinate_bound: Any, num_queries: int, epsilon: Any, delta: Any
) -> Choice:
    r"""Which of Laplace and Gaussian noise answers with the smaller error, and by how much.

    Both are calibrated to the same (epsilon, delta) over all queries: Laplace by composing its
    scalar releases, over queries and coordinates alike, under the tightest accountant at hand;
    Gaussian by its exact profile at the L2 sensitivity of all answers together,
    :math:`\sqrt{n d} c`.

    Args:
      dimension: Numbers d in one answer, an integer >= 1.
      coordinate_bound: The most c by which a neighbour moves one number, > 0, in the unit of
        the answers. The L1 sensitivity of one query is d c, the L2 sensitivity sqrt(d) c.
      num_queries: Queries n that are answered, an integer >= 1; each may depend on the answers
        before it.
      epsilon: The target for all of them together, > 0.
      delta: The target's delta, in [0, 1). With 0 Gaussian noise is impossible.

    Returns:
      A ``Choice``, with the scale and the errors of either.

    Raises:
      ValueError: if an argument is out of range or traced.

    Guarantee:
      Either scale makes all answers together (epsilon, delta)-DP, for the neighbours that
      ``coordinate_bound`` is for; rounded up. The Laplace scale is within 1e-7, relative, of
      the least one that the accountant allows. The errors are expectations, not bounds.

    Example:
      >>> from jaxdp.mechanisms.choose import choose
      >>> found = choose(
      ...     dimension=100, coordinate_bound=1.0, num_queries=10, epsilon=1.0, delta=1e-6)
      >>> found.winner
      'gaussian'
      >>> choose(
      ...     dimension=1, coordinate_bound=1.0, num_queries=1, epsilon=1.0, delta=1e-6).winner
      'laplace'

    References:
      Dwork and Roth 2014, The Algorithmic Foundations of Differential Privacy, Theorem 3.6;
      Balle and Wang 2018, arXiv:1805.06530, Theorem 9; Kairouz, Oh and Viswanath 2015,
      arXiv:1311.0776, Theorem 3.3.
    """
    d = _validate.integer("dimension", dimension, minimum=1)
    n = _validate.integer("num_queries", num_queries, minimum=1)
    numbers = {"coordinate_bound": coordinate_bound, "epsilon": epsilon, "delta": delta}
    for name, value in numbers.items():
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number, not a traced value")
    c = float(_validate.positive("coordinate_bound", coordinate_bound))
    epsilon = float(_validate.positive("epsilon", epsilon))
    delta = float(_validate.delta("delta", delta, allow_zero=True))

    scale = host.up(c * _laplace_multiplier(n * d, epsilon, delta))
    by_laplace = NoiseError(
        scale, math.sqrt(2.0) * scale, math.sqrt(2.0 * d) * scale, _harmonic(d) * scale
    )
    stddev = math.inf
    if delta > 0.0:
        sensitivity = host.up(math.sqrt(n * d) * c)
        stddev = gaussian.stddev(epsilon=epsilon, delta=delta, l2_sensitivity=sensitivity)
    by_gaussian = NoiseError(stddev, stddev, math.sqrt(d) * stddev, _largest_of_normals(d) * stddev)
    errors = {"laplace": by_laplace.l2_error, "gaussian": by_gaussian.l2_error}
    winner = min(errors, key=errors.__getitem__)
    return Choice(winner, max(errors.values()) / errors[winner], by_laplace, by_gaussian)
