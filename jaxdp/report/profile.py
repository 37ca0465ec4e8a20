"""A run's privacy profile, as far as attacks and pictures need it."""

import functools
from collections.abc import Callable

from jaxdp import accounting as acc
from jaxdp.accounting import composition, exact, gaussian_runs, guarantee, pld

# A difference in log delta that a picture shows.
_VISIBLE = 0.01
# Below e^-40 a delta is lost in 1 - delta, in double precision.
_LOST = -40.0


def log_delta_bounds(run: acc.Event, epsilon: float) -> tuple[float, float]:
    """The logarithm of delta between certified bounds, by the slower route only where it shows."""
    steps = composition.steps_of(run)
    if not exact.applies(steps):
        return pld.log_delta_bounds(steps, epsilon)
    bounds = gaussian_runs.log_delta_bounds(steps, epsilon, narrow=False)
    if bounds.upper - bounds.lower > _VISIBLE:
        bounds = gaussian_runs.log_delta_bounds(steps, epsilon)
    return bounds.lower, bounds.upper


def for_attacks(run: acc.Event) -> Callable[[float], float]:
    """An upper bound on log delta at an epsilon, the profile itself as far as 1 - delta can tell.

    Delta falls with epsilon, so that a bound at a smaller one is a bound. Far out, where the
    profile takes seconds, nothing depends on it.
    """
    profile = guarantee.profile(run)
    known: list[tuple[float, float]] = []  # where it was found to be lost

    @functools.cache
    def log_delta(epsilon: float) -> float:
        for place, value in known:
            if epsilon >= place:
                return value
        value = profile(epsilon)
        if value <= _LOST:
            known.append((epsilon, value))
        return value

    return log_delta
