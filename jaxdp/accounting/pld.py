r"""The privacy-loss-distribution accountant: every kind of run, between certified bounds.

A run's steps have loss laws (``loss_rows``), moved outward onto a grid (``loss_law``); the law of
their sum comes from tilted FFTs (``cyclic_sum``), and delta or epsilon from that law, with all
errors moved outward (``sum_profile``). Where the grid, the window and the tilts go is planned on
the host (``loss_plan``), first coarsely, then around the epsilon that was found.

References:
  Koskela, Jälkö and Honkela 2020, arXiv:1906.03049; Doroshenko, Ghazi, Kamath, Kumar and
  Manurangsi 2022, arXiv:2207.04380; Alghamdi et al. 2022, arXiv:2208.09595 (tilting).
"""

import math
from typing import Any

import numpy as np

from jaxdp import _precision, _validate
from jaxdp.accounting import (
    composition,
    loss_plan,
    loss_rows,
    renyi_bounds,
    sum_profile,
)
from jaxdp.accounting.composition import Steps

# So that the index of every loss in the sum is an exact integer.
_MOST_STEPS = 2.0**32
# Parameters past this are no noise at all.
_LARGEST_NUMBER = 1e100
# Sketches for an unknown delta reach to this.
_LEAST_LOG_DELTA = -750.0


def _arguments(found: list[loss_rows.Laws], chosen: loss_plan.Plan) -> tuple[tuple[Any, ...], Any]:
    laws = tuple((row.columns, row.times) for row in found)
    kinds = tuple(row.kind for row in found)
    tilts = tuple(min(tilt, 1e300) for tilt in chosen.tilts)
    grids = tuple(zip(chosen.starts, chosen.ends, strict=True))
    arguments = (laws, grids, chosen.spacing, chosen.bottom, tilts)
    return arguments, {"kinds": kinds, "size": chosen.size, "split": chosen.split}


def _directions(steps: Steps) -> tuple[bool, ...]:
    directed = (steps.sampled_gaussian, steps.sampled_laplace, steps.truncated_gaussian)
    return (False,) if all(rows is None for rows in directed) else (False, True)


def _refuse_traced(*trees: Any) -> None:
    if _validate.is_traced(trees):
        _validate.refuse(
            "event",
            "traced numbers",
            "of numbers known outside the program for the accountant 'pld', whose grid depends on "
            "them and whose margins need float64",
        )


def _checked_laws(steps: Steps, add: bool) -> list[loss_rows.Laws]:
    found = loss_rows.laws_of(steps, add)
    if sum(laws.times.sum() for laws in found) > _MOST_STEPS:
        _validate.refuse("count", "more steps", f"at most {_MOST_STEPS:.0e} for this accountant")
    return found


def _without_noise(found: list[loss_rows.Laws]) -> bool:
    """Whether some release has an infinite loss, or one past the numbers there are."""
    return any(
        not np.all(np.abs(column) < _LARGEST_NUMBER) for laws in found for column in laws.columns
    )


def _one_epsilon(steps: Steps, log_delta: float, add: bool) -> tuple[float, float]:
    found = _checked_laws(steps, add)
    if not found:
        return 0.0, 0.0
    if _without_noise(found):
        return 0.0, math.inf
    sketched = loss_plan.sketches(found, log_delta)
    rows = [row for kind in sketched for row in kind]
    guess = loss_plan.chernoff_epsilon(rows, log_delta)
    lower, upper = 0.0, math.inf
    # Coarsely first: where epsilon is decides where the window and the tilts go.
    for largest, whole in (
        (loss_plan.COARSE, True),
        (loss_plan.COARSE, False),
        (loss_plan.LARGEST, False),
    ):
        chosen = loss_plan.plan(found, sketched, log_delta, guess, largest=largest, whole=whole)
        arguments, static = _arguments(found, chosen)
        low, high = _precision.evaluate(sum_profile.epsilons, *arguments, log_delta, **static)
        # A NaN, if arithmetic broke down, is no bound and leaves the ends as they are.
        lower, upper = max(lower, low), min(upper, high)
        guess = min(guess, upper)
    return lower, upper


def _one_log_delta(steps: Steps, epsilon: float, add: bool) -> tuple[float, float]:
    found = _checked_laws(steps, add)
    if not found:
        return -math.inf, -math.inf
    if _without_noise(found):
        return -math.inf, 0.0
    sketched = loss_plan.sketches(found, _LEAST_LOG_DELTA)
    rows = [row for kind in sketched for row in kind]
    guess = loss_plan.chernoff_log_delta(rows, epsilon)
    lower, upper = -math.inf, 0.0
    for largest in (loss_plan.COARSE, loss_plan.LARGEST):
        chosen = loss_plan.plan(found, sketched, guess, epsilon, largest=largest)
        arguments, static = _arguments(found, chosen)
        low, high = _precision.evaluate(sum_profile.log_deltas, *arguments, epsilon, **static)
        # A NaN, if arithmetic broke down, is no bound and leaves the ends as they are.
        lower, upper = max(lower, low), min(upper, high)
        guess = min(guess, upper)
    return lower, upper


def epsilon_bounds(steps: Steps, log_delta: float) -> tuple[float, float]:
    r"""A certified bracket around the smallest epsilon of a run at a given delta.

    Args:
      steps: The run; known numbers.
      log_delta: Natural logarithm of delta, < 0.

    Returns:
      ``(lower, upper)``, both >= 0; upper is infinite where some step has no noise.

    Raises:
      ValueError: if a number is traced, or there are more than 2^32 steps.

    Guarantee:
      The run's dominating pairs (the worse of both directions) are (upper, delta)-DP and not
      (epsilon, delta)-DP for any epsilon < lower. The proof stands in
      ``cyclic_sum`` and ``sum_profile``.

    Example:
      >>> import math
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting import composition, pld
      >>> steps = composition.steps_of(acc.RandomizedResponse(0.5, 2) * 100)
      >>> lower, upper = pld.epsilon_bounds(steps, math.log(1e-6))
      >>> lower <= 94.2898678929249 <= upper, round(upper, 6)
      (True, 94.289868)
    """
    _refuse_traced(steps, log_delta)
    bounds = [_one_epsilon(steps, log_delta, add) for add in _directions(steps)]
    lower, upper = (max(ends) for ends in zip(*bounds, strict=True))
    pure = float(_precision.evaluate(_pure_epsilon, steps, 0.0))
    if upper == math.inf:  # where the grid's margins are too wide, the Chernoff bound still holds
        upper = float(_precision.evaluate(renyi_bounds.epsilon, steps, log_delta))
    upper = min(upper, pure)
    return min(lower, upper), upper


def log_delta_bounds(steps: Steps, epsilon: float) -> tuple[float, float]:
    r"""A certified bracket around the log of the smallest delta of a run at a given epsilon.

    Args:
      steps: The run; known numbers.
      epsilon: Epsilon, >= 0.

    Returns:
      ``(lower, upper)``, both <= 0, natural logarithms, since a small delta is no number.

    Raises:
      ValueError: if a number is traced, or there are more than 2^32 steps.

    Guarantee:
      That of ``epsilon_bounds``.

    Example:
      >>> import math
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.accounting import composition, pld
      >>> steps = composition.steps_of(acc.Laplace(1.0))
      >>> lower, upper = pld.log_delta_bounds(steps, 0.5)
      >>> lower <= math.log(1 - math.exp(-0.25)) <= upper
      True
    """
    _refuse_traced(steps, epsilon)
    if _precision.evaluate(_pure_epsilon, steps, 0.0) <= epsilon:
        return -math.inf, -math.inf
    bounds = [_one_log_delta(steps, epsilon, add) for add in _directions(steps)]
    lower, upper = (max(ends) for ends in zip(*bounds, strict=True))
    return min(lower, upper), upper


def _pure_epsilon(steps: Steps, unused: Any) -> Any:
    return composition.pure_epsilon_of(steps, unused.dtype) * (1.0 + 1e-12)
