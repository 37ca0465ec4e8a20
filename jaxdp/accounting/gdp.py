r"""Gaussian differential privacy: what a run tells is at most what one Gaussian with mu tells.

Runs of Gaussians without sampling *are* mu-GDP, with mu^2 the sum of 1 / sigma^2 (Dong, Roth and
Su 2022, arXiv:1905.02383, Corollary 3.3), and the profile of one Gaussian is exact: ``epsilon`` is
a bound, and tight. Sampled Gaussians only tend to some mu as steps grow many and
sampling rare. That limit is no bound for any finite run, mostly it is too small, and so it has a
function of its own.
"""

import math
from typing import Any

import jax.numpy as jnp
import numpy as np

from jaxdp import _gaussian_profile, _precision, _validate
from jaxdp.accounting import composition, host
from jaxdp.accounting.composition import Steps
from jaxdp.accounting.events import Event

_ALLOWED = (
    "Gaussian steps without sampling (clt_epsilon has the limit for sampled ones, which is no "
    "bound)"
)


def applies(steps: Steps) -> bool:
    """Whether the run is one Gaussian in effect."""
    return host.kinds_of(steps) <= {"gaussian"}


def _epsilon(log_delta: Any, mu_squared: Any) -> Any:
    return _gaussian_profile.epsilon(log_delta, jnp.sqrt(mu_squared))


def epsilon(steps: Steps, log_delta: Any) -> float:
    """The epsilon of a run of Gaussians, exact and rounded up.

    Args:
      steps: The run. No number may be traced.
      log_delta: Logarithm of delta, < 0.

    Returns:
      Epsilon >= 0, infinite where a step has no noise.

    Raises:
      ValueError: if a number is traced, or a step is no Gaussian, or sampled.
    """
    log_delta = host.checked_log_delta("gdp", steps, log_delta, applies, _ALLOWED)
    mu_squared = 0.0 if steps.gaussian is None else steps.gaussian
    return _precision.evaluate(_epsilon, log_delta, mu_squared)


def _limit(steps: Steps) -> float:
    """mu^2 in the limit of many rarely sampled steps."""
    total = 0.0 if steps.gaussian is None else float(steps.gaussian)
    if steps.sampled_gaussian is not None:
        q, s, count = host.columns(*steps.sampled_gaussian)
        taken = (q > 0.0) & (count > 0.0)
        with np.errstate(divide="ignore", over="ignore"):
            growth = np.expm1(1.0 / s[taken] / s[taken])
            total += float(np.sum(count[taken] * q[taken] ** 2 * growth))
    return total


def clt_epsilon(run: Event, delta: float) -> float:
    r"""An approximation of epsilon by the central limit theorem. It is *not* a bound.

    As the steps grow many and their rates small, a run of Poisson-sampled Gaussians tends to one
    Gaussian with :math:`\mu^2 = \sum_i q_i^2 (e^{1 / \sigma_i^2} - 1)`, whose epsilon this is.
    For the runs of practice it is too small, at times by a lot.

    Args:
      run: A composition of Gaussians, Poisson-sampled or not.
      delta: The delta, in (0, 1).

    Returns:
      The approximation, >= 0, a float.

    Raises:
      ValueError: if ``delta`` is out of range, a number is traced, or a step is of another kind.

    Guarantee:
      None: the truth may be larger. ``epsilon`` never returns this value.

    Example:
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting.gdp import clt_epsilon
      >>> run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
      >>> round(clt_epsilon(run, 1e-5), 3)  # at least 1.828 in truth
      1.618

    References:
      Bu, Dong, Long and Su 2020, arXiv:1911.11607, Theorem 5 and Corollary 5.
    """
    if not isinstance(run, Event):
        _validate.refuse("run", run, "an event such as Gaussian(1.0)")
    if _validate.is_traced(run, delta):
        _validate.refuse("run", run, "an event of numbers, not of traced values")
    _validate.delta("delta", delta)
    steps = composition.steps_of(run)
    if not host.kinds_of(steps) <= {"gaussian", "sampled_gaussian"}:
        _validate.refuse("run", run, "a composition of Gaussians, Poisson-sampled or not")
    return _precision.evaluate(_epsilon, math.log(float(delta)), _limit(steps))
