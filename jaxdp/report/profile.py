"""A run's privacy profile, as far as attacks and pictures need it."""

from collections.abc import Callable

from jaxdp import accounting as acc
from jaxdp.accounting import composition, exact, gaussian_runs, guarantee, pld, trade_off

# A difference in log delta that a picture shows.
_VISIBLE = 0.01


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
    """An upper bound on log delta at an epsilon: the profile itself, as far as 1 - delta tells."""
    return trade_off.as_far_as_it_shows(guarantee.profile(run))
