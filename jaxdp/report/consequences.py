"""What else follows from a claim: what an attack can achieve, and other notions of privacy."""

import math
from typing import Any

import numpy as np

from jaxdp._rounding import rounded_down, rounded_up
from jaxdp.accounting import composition, gdp, host, trade_off, zcdp
from jaxdp.report import profile
from jaxdp.report.claims import Claim
from jaxdp.report.statement import Fact

_TYPE_I_ERROR = 0.05


def _log_delta_at(claim: Claim) -> Any:
    """The profile of what runs: that of the event, and what samples too large add to it."""
    log_delta_of_event = profile.for_attacks(claim.event)
    if claim.overflow_delta == 0.0:
        return log_delta_of_event
    added = math.log(claim.overflow_delta)

    def log_delta(epsilon: float) -> float:
        value = float(np.logaddexp(log_delta_of_event(epsilon), added))
        return min(0.0, value + 8.0 * host.ULP * (1.0 + abs(value)))

    return log_delta


def facts_of(claim: Claim) -> list[Fact]:
    """The facts that follow from the event of a claim with a finite epsilon."""
    log_delta_at = _log_delta_at(claim)
    advantage = trade_off.attack_advantage(log_delta_at)
    missed = trade_off.type_ii_error(_TYPE_I_ERROR, log_delta_at)
    facts = [
        Fact(
            "attack_advantage",
            "Advantage of any attack",
            f"the true positive rate of telling two neighbours apart exceeds the false positive "
            f"rate by at most {rounded_up(advantage)}",
            advantage,
        ),
        Fact(
            "type_ii_error_at_0.05",
            "Attacks with 5 % false positives",
            f"miss at least {rounded_down(missed)} of the true cases",
            missed,
        ),
    ]
    steps = composition.steps_of(claim.event)
    if claim.overflow_delta > 0.0:
        return facts  # a sample too large breaks the notions that have no delta
    if gdp.applies(steps):
        mu = host.up(math.sqrt(float(steps.gaussian or 0.0)))
        text = f"mu-GDP with mu = {rounded_up(mu)}: all else follows from it"
        facts.append(Fact("gdp_mu", "Gaussian DP", text, mu))
    if zcdp.applies(steps):
        rho = zcdp.rho_of(steps)
        text = f"rho-zCDP with rho = {rounded_up(rho)}"
        facts.append(Fact("zcdp_rho", "Zero-concentrated DP", text, rho))
    return facts
