"""What each kind of plan claims, in one form: who is trusted, unit, sampler, budget and event."""

import math
from typing import Any, NamedTuple

import jax

from jaxdp import _validate, federated, transforms
from jaxdp._rounding import rounded_down
from jaxdp.accounting import Event, composition, events, exact
from jaxdp.federated import AdaptiveClip
from jaxdp.plan import PrivacyPlan
from jaxdp.serialization import statements

_NOT_COVERED = (
    "the choice of hyperparameters",
    "losses, norms and other metrics of the run, which are computed without noise",
    "the run's state, which holds the key of the noise: whoever has it can subtract the noise",
    "finite precision of floating-point noise, and side channels",
)


class Claim(NamedTuple):
    """The facts of a plan that a statement is made of."""

    setting: str  # "central" or "local"
    trust: str  # who is trusted with what
    unit: str
    unit_limits: str  # who is protected less
    num_units: int
    units: str  # "examples" or "clients"
    relation: str
    neighbours: str
    output: str
    not_covered: tuple[str, ...]
    mechanism: str
    sampler: str
    sampler_kind: str
    assumptions: tuple[str, ...]
    step_word: str  # "steps" or "rounds"
    num_steps: int
    noise_multiplier: float
    noise_over: str  # what the noise multiplier is relative to
    l2_clip_norm: Any  # a number, or a dict of numbers
    clipping: str  # the clip norm in words
    epsilon: float
    delta: float | None
    overflow_delta: float
    target_epsilon: float | None
    event: Event

    @property
    def mechanism_delta(self) -> float:
        """What is left of delta for the noise."""
        return (self.delta or 0.0) - self.overflow_delta

    @property
    def accountant(self) -> str:
        return "exact" if exact.applies(composition.steps_of(self.event)) else "pld"

    @property
    def is_finite(self) -> bool:
        return self.delta is not None and self.epsilon < math.inf

    @property
    def is_affordable(self) -> bool:
        """Whether the budget, if there is one, lasts for all that was planned."""
        return self.target_epsilon is None or self.epsilon <= self.target_epsilon


def claim_of(plan: Any) -> Claim:
    """The claim of a plan of any kind.

    Raises:
      ValueError: if it is no plan, or a number in it is traced.
    """
    if _validate.is_traced(plan):
        _validate.refuse("plan", plan, "a plan of known numbers, not of traced values")
    if isinstance(plan, PrivacyPlan):
        statements.check(plan, "plan")
        return _of_examples(plan)
    if isinstance(plan, federated.ClientPlan):
        return _of_clients(plan)
    if isinstance(plan, federated.LocalPlan):
        return _of_local(plan)
    _validate.refuse("plan", plan, "a PrivacyPlan, federated.ClientPlan or federated.LocalPlan")


def _of_examples(plan: PrivacyPlan) -> Claim:
    n, b, q = plan.num_examples, plan.expected_batch_size, plan.sampling_probability
    assumptions = [
        "every batch is a fresh Poisson sample with this probability, as the plan's own sampler "
        "draws it; shuffled epochs and batches of a fixed size are a different mechanism",
        "who is in a batch is secret",
        "the loss of an example depends on that example and on what was released alone",
        f"the number of examples, {n}, is public",
        "the run's key serves one run and is secret",
    ]
    if q < 1.0:
        sampler = (
            f"Poisson: every step draws each example independently with probability {q!r} "
            f"({b:g} of {n} expected, at most {plan.max_batch_size} kept)"
        )
    else:
        sampler = f"Poisson with probability 1: every step sees all {n} examples"
        assumptions[:2] = ["every step sees every example once"]
    return Claim(
        setting="central",
        trust="whoever trains holds all the data and is trusted with it",
        unit=plan.unit,
        unit_limits="somebody with several examples is protected less, by group privacy",
        num_units=n,
        units="examples",
        relation=plan.neighboring_relation,
        neighbours=f"{plan.unit} added or removed",
        output="every model of the run, the last one and all before it, together",
        not_covered=_NOT_COVERED,
        mechanism="independent Gaussian noise on the sum of clipped per-example gradients",
        sampler=sampler,
        sampler_kind=plan.sampler,
        assumptions=tuple(assumptions),
        step_word="steps",
        num_steps=plan.num_steps,
        noise_multiplier=plan.noise_multiplier,
        noise_over="the clip norm",
        l2_clip_norm=_norms(plan.l2_clip_norm),
        clipping=_clipping(plan.l2_clip_norm, plan.noise_multiplier),
        epsilon=plan.epsilon,
        delta=plan.delta,
        overflow_delta=plan.overflow_delta,
        target_epsilon=plan.target_epsilon,
        event=plan.event,
    )


def _of_clients(plan: federated.ClientPlan) -> Claim:
    relation = events.relations_of(plan.event)[0]
    change = "replaced by another" if relation == events.REPLACE_ONE else "added or removed"
    sampler, who_is_in = _cohorts(plan.cohorts, plan.num_rounds)
    return Claim(
        setting="central",
        trust="the server that adds up the clients' updates and adds the noise is trusted",
        unit="one client, with all its data",
        unit_limits="somebody whose data several clients hold is protected less, by group privacy",
        num_units=plan.cohorts.num_clients,
        units="clients",
        relation=relation,
        neighbours=f"one client {change}",
        output="every model of the run, the last one and all before it, together",
        not_covered=_NOT_COVERED,
        mechanism="independent Gaussian noise on the sum of the clients' clipped updates",
        sampler=sampler,
        sampler_kind=type(plan.cohorts).__name__,
        assumptions=(
            *who_is_in,
            "what a client sends depends on its own data and on what was released alone",
            f"the number of clients, {plan.cohorts.num_clients}, is public",
            "the run's key serves one run and is secret",
        ),
        step_word="rounds",
        num_steps=plan.num_rounds,
        noise_multiplier=float(plan.noise_multiplier),
        noise_over="the L2 sensitivity of a round's releases, for one client added or removed",
        l2_clip_norm=_norms(plan.l2_clip_norm),
        clipping=_clipping(plan.l2_clip_norm, float(plan.noise_multiplier)),
        epsilon=plan.epsilon,
        delta=plan.delta,
        overflow_delta=plan.overflow_delta,
        target_epsilon=plan.target_epsilon,
        event=plan.event,
    )


def _of_local(plan: federated.LocalPlan) -> Claim:
    times = plan.cohorts.participations(plan.num_rounds)
    sampler, _ = _cohorts(plan.cohorts, plan.num_rounds)
    return Claim(
        setting="local",
        trust="each client adds noise to its own update before it sends it, and trusts nobody",
        unit="one client, with all its data",
        unit_limits="somebody whose data several clients hold is protected less, by group privacy",
        num_units=plan.cohorts.num_clients,
        units="clients",
        relation=events.REPLACE_ONE,
        neighbours="one client's whole data set replaced by any other",
        output="all that one client sends in the run, whoever reads it, and so every model, too",
        not_covered=(
            "that a client takes part, which is no secret",
            "the choice of hyperparameters",
            "losses, norms and other metrics, which never leave the clients in a deployment",
            "the keys of the clients' noise: whoever has one can subtract the noise",
            "finite precision of floating-point noise, and side channels",
        ),
        mechanism="independent Gaussian noise on each client's clipped update",
        sampler=f"{sampler}; nothing is claimed from sampling: {times} participations are counted",
        sampler_kind=type(plan.cohorts).__name__,
        assumptions=(
            "what a client sends depends on its own data and on what it was sent alone",
            f"a client takes part in no more than {times} rounds",
        ),
        step_word="rounds",
        num_steps=plan.num_rounds,
        noise_multiplier=float(plan.noise_multiplier),
        noise_over="twice the clip norm (of all parts together, where there are several)",
        l2_clip_norm=_norms(plan.l2_clip_norm),
        clipping=_clipping(plan.l2_clip_norm, float(plan.noise_multiplier)),
        epsilon=plan.epsilon,
        delta=plan.delta,
        overflow_delta=0.0,
        target_epsilon=None,
        event=plan.event,
    )


def _cohorts(cohorts: federated.CohortSampler, num_rounds: int) -> tuple[str, tuple[str, ...]]:
    """The sampler in words, and what its accounting takes for granted."""
    n = cohorts.num_clients
    if isinstance(cohorts, federated.PoissonCohorts):
        if cohorts.sampling_probability == 1.0:
            return f"every round has all {n} clients", ()
        slots = cohorts.max_cohort_size
        kept = "" if slots is None else f", at most {slots} kept"
        words = (
            f"Poisson: every round draws each client independently with probability "
            f"{cohorts.sampling_probability!r} ({cohorts.expected_cohort_size:g} of {n} "
            f"expected{kept})"
        )
        return words, ("every cohort is a fresh Poisson sample", "who is in a cohort is secret")
    if isinstance(cohorts, federated.FixedSizeCohorts):
        words = f"every round draws {cohorts.cohort_size} of {n} clients without replacement"
        return words, (
            "every cohort is a fresh uniformly random subset",
            "who is in a cohort is secret",
            "a client replaced moves the clipped sum by up to twice the clip norm, so that the "
            "noise counts half",
        )
    if isinstance(cohorts, federated.GroupCohorts):
        times = cohorts.participations(num_rounds)
        words = (
            f"{cohorts.min_separation} fixed, public groups of {n} clients take turns; nothing is "
            f"sampled, and a client takes part at most {times} times"
        )
        return words, (
            "a client's group depends on its id alone; ids are public, and those of the others "
            "stay when one client comes or goes",
        )
    words = f"{type(cohorts).__name__}, {cohorts.expected_cohort_size:g} of {n} clients expected"
    return words, ("every cohort is drawn by that sampler, and its event is true",)


def _norms(l2_clip_norm: Any) -> Any:
    """The clip norm as a number, or as a dict of them for a pytree or an adaptive one."""
    if isinstance(l2_clip_norm, AdaptiveClip):
        return {name: _norms(value) for name, value in l2_clip_norm._asdict().items()}
    leaves = jax.tree_util.tree_leaves_with_path(l2_clip_norm)
    if len(leaves) == 1 and not leaves[0][0]:
        return float(leaves[0][1])
    return {jax.tree_util.keystr(path): float(norm) for path, norm in leaves}


def _clipping(l2_clip_norm: Any, noise_multiplier: float) -> str:
    """The clip norm in words; an adaptive one with its share of the noise."""
    norms = _norms(l2_clip_norm)
    if not isinstance(l2_clip_norm, AdaptiveClip):
        return str(norms)
    count = norms["count_noise_multiplier"]
    own = float(transforms.split_noise_multiplier(noise_multiplier, count))
    return (
        f"adaptive: starts at {norms['initial_clip_norm']} and follows the "
        f"{norms['target_quantile']:g} quantile by a private count, with count noise {count:g}; "
        f"the updates have multiplier {rounded_down(own)}, and both together cost what the noise "
        "multiplier above does"
    )
