r"""Zero-concentrated differential privacy: Renyi DP of at most rho a at every order a.

The rho of a run is the sum over its steps (Bun and Steinke 2016, arXiv:1605.02065, Lemma 1.7). A
step has

- Gaussian: rho = mu^2 / 2, exactly (their Proposition 1.6);
- discrete Gaussian: rho = (sensitivity / standard deviation)^2 / 2 (Canonne, Kamath and Steinke
  2020, arXiv:2004.00010, Theorem 4);
- epsilon_0-private: rho = epsilon_0^2 / 2 (Bun and Steinke 2016, Proposition 1.4).

From rho to (epsilon, delta) by the tight conversion of Renyi DP (Canonne, Kamath and Steinke 2020,
Proposition 12), at the best real order a = 1 + t:

.. math:: \epsilon = \rho (1 + t) - \log(1 + 1/t) + \frac{\log(1/\delta) - \log(1 + t)}{t}.

It holds at every order, so the search decides on tightness only. Epsilon is 0 where delta is at
least the total variation, which is at most sqrt(1 - exp(-rho)) (Bretagnolle and Huber), the
Kullback-Leibler divergence being at most rho. Rho is moved up by 1e-5 there, more than the least
order that the Renyi accountant looks at exceeds 1: so that one is never above this one.
"""

import math
from typing import Any

import numpy as np

from jaxdp.accounting import host, single_step
from jaxdp.accounting.composition import Steps

_ALLOWED = "Gaussian, discrete Gaussian and pure steps without sampling"
_KINDS = {"gaussian", "laplace", "sampled_laplace", "discrete_gaussian", "randomized_response"}


def applies(steps: Steps) -> bool:
    """Whether every step has a known rho: sampled Gaussians have none of use."""
    return host.kinds_of(steps) <= _KINDS


def rho_of(steps: Steps) -> float:
    """The rho of a run that the accountant applies to, rounded up."""
    total = 0.0 if steps.gaussian is None else 0.5 * float(steps.gaussian)
    if steps.discrete_gaussian is not None:
        deviation, sensitivity, count = host.columns(*steps.discrete_gaussian)
        moved = (sensitivity > 0.0) & (count > 0.0)
        with np.errstate(divide="ignore"):
            ratio = sensitivity[moved] / deviation[moved]
        total += math.fsum(0.5 * ratio * ratio * count[moved])
    pure = single_step.releases_of(steps._replace(gaussian=None, discrete_gaussian=None))
    epsilons, counts = pure.pure_epsilons, pure.pure_counts
    with np.errstate(over="ignore"):
        total += math.fsum(0.5 * epsilons * epsilons * counts)
    return host.up(total)


def _pure_epsilon(steps: Steps) -> float:
    if steps.gaussian or steps.discrete_gaussian is not None:
        return math.inf
    pure = single_step.releases_of(steps)
    return host.up(math.fsum(pure.pure_epsilons * pure.pure_counts))


def epsilon_from_rho(rho: float, log_delta: float) -> float:
    """The smallest epsilon that rho-zCDP gives at delta by the tight conversion, rounded up."""
    if rho == 0.0:
        return 0.0
    if rho == math.inf or log_delta == -math.inf:
        return math.inf
    log_total_variation = 0.5 * math.log(-math.expm1(-rho * (1.0 + 1e-5)))
    if log_delta >= log_total_variation + 8.0 * host.ULP:
        return 0.0

    def at(log_t: float) -> float:
        t = math.exp(log_t)
        terms = (rho * (1.0 + t), math.log1p(1.0 / t), -log_delta / t, math.log1p(t) / t)
        value = terms[0] - terms[1] + terms[2] - terms[3]
        return max(0.0, value + 8.0 * host.ULP * sum(terms))

    # With log(1 + t) dropped the best t is sqrt(log(1/delta) / rho); it moves the best one by
    # less than the factors on either side.
    middle = 0.5 * (math.log(-log_delta) - math.log(rho))
    return host.least(at, middle - 40.0, middle + 5.0, 1e-9)


def epsilon(steps: Steps, log_delta: Any) -> float:
    """The epsilon of a run by zero-concentrated differential privacy, rounded up.

    Args:
      steps: The run. No number may be traced.
      log_delta: Logarithm of delta, < 0; -inf for the pure guarantee.

    Returns:
      Epsilon >= 0, at most the pure one; infinite where a step has no noise.

    Raises:
      ValueError: if a number is traced, or a step has no known rho.
    """
    log_delta = host.checked_log_delta("zcdp", steps, log_delta, applies, _ALLOWED)
    return min(epsilon_from_rho(rho_of(steps), log_delta), _pure_epsilon(steps))
