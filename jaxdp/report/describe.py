"""The privacy statement of a plan, point by point of the reporting checklist."""

from typing import Any

from jaxdp import _validate
from jaxdp.report import checklist, consequences, verification
from jaxdp.report.claims import claim_of
from jaxdp.report.statement import Section, Statement


def describe(
    plan: Any,
    *,
    unit: str | None = None,
    released: str | None = None,
    sampling: str | None = None,
    tuning: str | None = None,
    other_accesses: str | None = None,
    public_data: str | None = None,
    code: str | None = None,
) -> Statement:
    """The privacy statement of a run, for a paper or a model card.

    It has every point of the checklist of Ponomareva et al. 2023. What follows from the plan is
    taken from the plan; what only you know is an argument, and "not stated" without it.

    Args:
      plan: A ``PrivacyPlan``, a ``federated.ClientPlan`` or a ``federated.LocalPlan``.
      unit: What one example, or one client, is in the application, and how many of them one
        person may have.
      released: What is given out: the last model, all of them, an interface to it.
      sampling: How batches or cohorts were drawn in fact.
      tuning: How hyperparameters were chosen, and whether the guarantee covers that, or a guarantee
        of its own.
      other_accesses: What else has read the same data: preprocessing, evaluation, other models.
      public_data: Data without privacy that was used, such as a pretrained model's.
      code: Where the code can be read.

    Returns:
      The statement: ``print`` gives Markdown, ``to_json()`` the same facts for machines.

    Raises:
      ValueError: if ``plan`` is no plan, holds traced values, or a fact is no text.

    Guarantee:
      What it promises is what the plan promises. Numbers are rounded so that they stay true.

    Example:
      >>> from jaxdp import federated, report
      >>> plan = federated.make_plan(federated.GroupCohorts(1000, min_separation=10),
      ...     num_rounds=50, l2_clip_norm=1.0, target_epsilon=3.0, delta=1e-5)
      >>> statement = report.describe(plan, unit="one phone; a person may have two")
      >>> print(statement.summary)  # doctest: +ELLIPSIS
      (3.00000, 1e-05)-differential privacy for one client added or removed, under ...

    References:
      Ponomareva et al. 2023, arXiv:2303.00654, Section 5.3.3.
    """
    claim = claim_of(plan)
    stated = {
        "unit": unit,
        "released": released,
        "sampling": sampling,
        "tuning": tuning,
        "other_accesses": other_accesses,
        "public_data": public_data,
        "code": code,
    }
    for name, text in stated.items():
        if text is not None and (not isinstance(text, str) or not text.strip()):
            _validate.refuse(name, text, "a text that is not empty, or None for not stated")
    told = {name: None if text is None else " ".join(text.split()) for name, text in stated.items()}
    verify = [*verification.facts_of(claim), checklist.told("code", "Code", told["code"])]
    sections = [
        Section("setting", "Setting", checklist.setting(claim)),
        Section("definition", "What is protected", checklist.definition(claim, told)),
        Section("accounting", "Accounting", checklist.accounting(claim, told)),
    ]
    if claim.is_finite and claim.is_affordable:
        title = f"What follows, for the planned {claim.num_steps} {claim.step_word}"
        facts = tuple(consequences.facts_of(claim))
        sections.append(Section("consequences", title, facts))
    sections.append(Section("verification", "To check it", tuple(verify)))
    return Statement(checklist.summary(claim), tuple(sections))
