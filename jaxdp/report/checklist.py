"""The points of the reporting checklist, from a claim and from what its author tells."""

import math
from collections.abc import Iterable, Mapping

from jaxdp._rounding import rounded_up
from jaxdp.report import cautions
from jaxdp.report.claims import Claim
from jaxdp.report.statement import Fact

Told = Mapping[str, str | None]

_NOT_STATED = "not stated"
_ACCOUNTANTS = {
    "exact": "exact: closed form, or line integral of the log-moment with a bound on every error; "
    "rounded up",
    "pld": "privacy-loss distribution, discretised pessimistically; rounded up",
}


def told(key: str, label: str, text: str | None) -> Fact:
    """What the author tells, or that nothing was told: never a guess."""
    return Fact(key, label, _NOT_STATED if text is None else text, text)


def _several(key: str, label: str, items: Iterable[str]) -> Fact:
    known = list(items)
    return Fact(key, label, "; ".join(known), known)


def _pair(claim: Claim, epsilon: float) -> str:
    kind = "local differential privacy" if claim.setting == "local" else "differential privacy"
    return f"({rounded_up(epsilon)}, {claim.delta!r})-{kind}"


def _promised(claim: Claim) -> float:
    """What the run costs at most: the budget ends it where the planned steps cost more."""
    return min(claim.epsilon, math.inf if claim.target_epsilon is None else claim.target_epsilon)


def summary(claim: Claim) -> str:
    """The guarantee in one sentence."""
    if claim.delta is None or _promised(claim) == math.inf:
        why = "no delta was given" if claim.delta is None else "epsilon is infinite"
        return f"No differential privacy is claimed: {why}."
    return f"{_pair(claim, _promised(claim))} for {claim.neighbours}, under the assumptions below."


def setting(claim: Claim) -> tuple[Fact, ...]:
    return (Fact("setting", "Setting", f"{claim.setting}: {claim.trust}", claim.setting),)


def definition(claim: Claim, known: Told) -> tuple[Fact, ...]:
    covered = f"the {claim.num_steps} noisy {claim.step_word} that were planned for one run"
    if claim.target_epsilon is not None:
        covered += ", or as many as the budget allows"
    return (
        Fact("covered", "Data accesses covered", covered, covered),
        _several("not_covered", "Not covered", claim.not_covered),
        told("tuning", "Choice of hyperparameters", known["tuning"]),
        told("other_accesses", "Other accesses to the same data", known["other_accesses"]),
        told("public_data", "Data used without privacy", known["public_data"]),
        Fact("output", "Output that the guarantee is about", claim.output, claim.output),
        told("released", "What is released", known["released"]),
        Fact("unit", "Unit of privacy", f"{claim.unit}; {claim.unit_limits}", claim.unit),
        told("unit_meaning", "What a unit is here", known["unit"]),
        Fact("adjacency", "Neighbouring data sets", claim.neighbours, claim.relation),
    )


def accounting(claim: Claim, known: Told) -> tuple[Fact, ...]:
    noise = claim.noise_multiplier
    return (
        _formal(claim),
        *_delta(claim),
        *_budget(claim),
        Fact("mechanism", "Mechanism", claim.mechanism, "Gaussian"),
        Fact(
            "noise_multiplier",
            "Noise multiplier",
            f"{noise!r}, standard deviation over {claim.noise_over}",
            noise,
        ),
        Fact("l2_clip_norm", "L2 clip norm", claim.clipping, claim.l2_clip_norm),
        Fact("num_steps", claim.step_word.capitalize(), f"{claim.num_steps}", claim.num_steps),
        Fact("sampler", "Sampler, as accounted for", claim.sampler, claim.sampler_kind),
        told("sampling", "Sampler, as it ran", known["sampling"]),
        _several("assumptions", "Assumptions", claim.assumptions),
        Fact("accountant", "Accountant", _ACCOUNTANTS[claim.accountant], claim.accountant),
    )


def _formal(claim: Claim) -> Fact:
    epsilon = _promised(claim)
    value = {"epsilon": epsilon, "delta": claim.delta}
    if claim.delta is None or epsilon == math.inf:
        return Fact("guarantee", "Guarantee", "none", value)
    text = f"{_pair(claim, epsilon)}, for {claim.neighbours}, over "
    if claim.is_affordable:
        text += f"the planned {claim.num_steps} {claim.step_word}"
    else:
        text += f"the {claim.step_word} that the budget allows, fewer than were planned"
    return Fact("guarantee", "Guarantee", text, value)


def _delta(claim: Claim) -> tuple[Fact, ...]:
    """Whether delta is small, and how it is divided where part pays for too large samples."""
    facts = []
    caution = cautions.of_delta(claim.delta or 0.0, claim.num_units, claim.units)
    if caution is not None:
        facts.append(Fact("delta_caution", "Caution", caution, caution))
    if claim.overflow_delta > 0.0:
        text = f"{claim.overflow_delta:.3g} of delta, for samples beyond what is kept"
        facts.append(Fact("overflow_delta", "Set aside", text, claim.overflow_delta))
    return tuple(facts)


def _budget(claim: Claim) -> tuple[Fact, ...]:
    if claim.target_epsilon is None:
        text = f"not enforced: more {claim.step_word} than planned cost more"
        return (Fact("enforced_epsilon", "Budget", text, None),)
    text = (
        f"enforced: however many {claim.step_word} are asked for, the program takes none that "
        f"would make epsilon more than {claim.target_epsilon!r} at the same delta"
    )
    return (Fact("enforced_epsilon", "Budget", text, claim.target_epsilon),)
