r"""Naive composition: the epsilons of the steps add up, and so do their deltas.

Of Dwork, Kenthapadi, McSherry, Mironov and Naor 2006 (Our data, ourselves), Theorem 1. The delta
is split evenly over the steps that need one (the Gaussians): each spends delta over their number,
at the epsilon that its exact profile gives there; pure steps spend none.
"""

import math
from typing import Any

from jaxdp.accounting import host, single_step
from jaxdp.accounting.composition import Steps


def applies(steps: Steps) -> bool:
    """Whether naive composition bounds this run."""
    return single_step.applies(steps)


def epsilon(steps: Steps, log_delta: Any) -> float:
    """The epsilon of a run by naive composition, rounded up.

    Args:
      steps: The run, with Gaussians apart (``single_step.one_by_one``) to be taken as so many
        steps; merged, they count as one. No number may be traced.
      log_delta: Logarithm of delta, < 0; -inf for the pure guarantee.

    Returns:
      Epsilon >= 0, infinite where a step has no noise.

    Raises:
      ValueError: if a number is traced, or a step's own guarantee is not known.
    """
    log_delta = host.checked_log_delta("naive", steps, log_delta, applies, single_step.ALLOWED)
    releases = single_step.releases_of(steps)
    total = math.fsum(releases.pure_epsilons * releases.pure_counts)
    counts = releases.gaussian_counts
    if counts.size:
        if log_delta == -math.inf:
            return math.inf
        each = log_delta - math.log(host.up(math.fsum(counts)))
        total += math.fsum(single_step.gaussian_epsilons(releases, each) * counts)
    return host.up(total)
