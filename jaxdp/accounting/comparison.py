"""One run under every accountant that applies to it, side by side."""

from typing import NamedTuple

from jaxdp import _validate
from jaxdp.accounting import (
    advanced,
    composition,
    exact,
    gdp,
    guarantee,
    moments,
    naive,
    optimal,
    single_step,
    zcdp,
)
from jaxdp.accounting.events import Event


class Comparison(NamedTuple):
    """What one accountant says.

    Attributes:
      accountant: Its name, which ``epsilon`` takes if it is certified.
      epsilon: What it says about the run.
      certified: Whether that is a bound. An approximation may be below the truth.
      note: The idea in a few words.
    """

    accountant: str
    epsilon: float
    certified: bool
    note: str


_NOTES = {
    "naive": "epsilons and deltas of the steps added up",
    "advanced": "Dwork, Rothblum and Vadhan 2010",
    "optimal": "best possible from the (epsilon, delta) of equal steps alone",
    "moments": "Abadi et al. 2016: whole orders, tail bound",
    "rdp": "Renyi DP at the best real order",
    "zcdp": "zero-concentrated DP, best real order",
    "gdp": "Gaussian DP, exact for Gaussians",
    "pld": "privacy-loss distribution by tilted FFT",
    "exact": "line integral of the log-moment, or closed form",
}


def compare(event: Event, delta: float) -> list[Comparison]:
    """The epsilon of a run at a given delta by every accountant that applies to it.

    Args:
      event: The run; no number may be traced.
      delta: The delta, in (0, 1).

    Returns:
      A list of ``Comparison(accountant, epsilon, certified, note)``, the certified ones first and
      from the loosest theorem to the tightest; last, labelled, the central limit theorem.

    Raises:
      ValueError: if ``delta`` is out of range or a number in the event is traced.

    Guarantee:
      Where ``certified`` is true, that of ``epsilon`` with the accountant; none where it is false.

    Example:
      >>> from jaxdp import accounting as acc
      >>> for row in acc.compare(acc.Gaussian(2.0) * 10, delta=1e-5):
      ...     print(f"{row.accountant:10}{row.epsilon:8.3f}")  # doctest: +NORMALIZE_WHITESPACE
      naive       22.541
      advanced   232.277
      optimal     22.541
      moments      8.838
      rdp          8.078
      zcdp         8.078
      gdp          7.511
      pld          7.511
      exact        7.511

    References:
      Those of ``epsilon``; Bu, Dong, Long and Su 2020, arXiv:1911.11607, for the limit.
    """
    if _validate.is_traced(event, delta):
        _validate.refuse("event", event, "an event of numbers, not of traced values")
    _validate.delta("delta", delta)
    guarantee.epsilon(event, delta, accountant="rdp")  # checks the event
    steps, singly = composition.steps_of(event), None
    applies = {
        "moments": moments.applies(steps),
        "zcdp": zcdp.applies(steps),
        "gdp": gdp.applies(steps),
        "rdp": True,
        "pld": True,
        "exact": exact.applies(steps),
    }
    singly = single_step.one_by_one(event)
    for name, module in (("naive", naive), ("advanced", advanced), ("optimal", optimal)):
        applies[name] = module.applies(singly)
    rows = [
        Comparison(name, guarantee.epsilon(event, delta, accountant=name), True, note)
        for name, note in _NOTES.items()
        if applies[name]
    ]
    if exact.applies(steps) and steps.sampled_gaussian is not None:
        limit = gdp.clt_epsilon(event, delta)
        rows.append(
            Comparison("clt", limit, False, "an approximation, not a bound: may be too low")
        )
    return rows
