"""The privacy of a federated run as data: sampler, noise, budget and what they promise."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxdp import _validate, accounting, transforms
from jaxdp._rounding import rounded_down, rounded_up
from jaxdp.clipping import rescale
from jaxdp.federated.cohort import CohortSampler, PoissonCohorts, keep
from jaxdp.federated.mime import MimeSum

_KNOWN = "a number where target_epsilon is given (close over such a plan; jit would trace it)"
# The part of delta that pays for cohorts too large for their slots.
_OVERFLOW_SHARE = 0.01


class AdaptiveClip(NamedTuple):
    """A clip norm that follows a quantile of the clients' norms (Andrew et al. 2021).

    The arguments of ``transforms.adaptive_clip_norm``. Give it as ``l2_clip_norm``: the noise
    multiplier is then split between the deltas and the counts, so that a round still costs
    what the multiplier says.
    """

    initial_clip_norm: Any
    count_noise_multiplier: Any
    target_quantile: Any = 0.5
    learning_rate: Any = 0.2


class NumbersAsLeaves:
    """A plan as a pytree: the first two fields, its numbers, are leaves; the rest is static."""

    def tree_flatten_with_keys(self):
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        leaves = [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names[:2]]
        return leaves, tuple(getattr(self, name) for name in names[2:])

    @classmethod
    def tree_unflatten(cls, static, leaves):
        # Past __init__ and its checks: JAX also rebuilds pytrees from placeholders.
        plan = object.__new__(cls)
        values = (*leaves, *static)
        for field, value in zip(dataclasses.fields(cls), values, strict=True):  # type: ignore[arg-type]
            object.__setattr__(plan, field.name, value)
        return plan


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class ClientPlan(NumbersAsLeaves):
    """What a federated run promises each client; ``print`` gives the statement to publish.

    Made by ``make_plan``. A pytree: the two numbers are leaves, the rest is static.
    ``dataclasses.replace`` changes a plan and checks it again; it does not calibrate.

    Args:
      noise_multiplier: Noise standard deviation over the L2 sensitivity of the cohort's sum, all
        releases of a round together.
      l2_clip_norm: L2 bound on one client's delta, a pytree prefix of them, or an
        ``AdaptiveClip``.
      cohorts: The sampler.
      num_rounds: Rounds that were planned.
      target_epsilon: The budget that is enforced; None if none is.
      delta: Of the whole guarantee, slots that overflow included; None for a run that nobody
        accounts for.

    Raises:
      ValueError: if an argument is out of range, or the slots of an enforced budget are too few
        for the delta.
    """

    noise_multiplier: Any
    l2_clip_norm: Any
    cohorts: CohortSampler
    num_rounds: int
    target_epsilon: float | None
    delta: float | None

    def __post_init__(self):
        check_run(self.cohorts, self.num_rounds, self.delta)
        _check_target(self.target_epsilon, self.delta)
        keep(self, num_rounds=int(self.num_rounds), delta=plain(self.delta))
        keep(self, target_epsilon=plain(self.target_epsilon))
        # What is drawn is what is accounted for, however the plan came about.
        keep(self, noise_multiplier=as_drawn(self.noise_multiplier))
        _check_clip(self.l2_clip_norm, self.noise_multiplier)
        if isinstance(self.cohorts, PoissonCohorts) and self.cohorts.max_cohort_size is None:
            _validate.refuse("max_cohort_size", None, "a number of slots, as make_plan finds it")
        if self.target_epsilon is not None:
            _check_slots(self.cohorts, self.noise_multiplier, self.target_epsilon, self.delta)

    @property
    def event(self) -> accounting.Event:
        """The run as an event of ``jaxdp.accounting``, for anyone to account for again."""
        return self.cohorts.run_event(_number(self.noise_multiplier), self.num_rounds)

    @property
    def overflow_delta(self) -> float:
        """The part of delta for cohorts that overflow their slots."""
        if self.target_epsilon is not None and self.delta is not None:
            return self.delta - mechanism_delta(self.cohorts, self.delta)
        return self.cohorts.overflow_delta(self.num_rounds)

    @property
    def epsilon(self) -> float:
        """What the planned rounds cost at ``delta``; infinite without noise or delta."""
        if self.delta is None or self.delta <= self.overflow_delta:
            return math.inf
        return accounting.epsilon(self.event, self.delta - self.overflow_delta)

    def __str__(self) -> str:
        relation = accounting.events.relations_of(self.event)[0]
        cohorts = self.cohorts
        epsilon = self.epsilon
        guarantee = "none"
        if self.delta is not None and math.isfinite(epsilon):
            guarantee = f"({rounded_up(epsilon)}, {self.delta!r})-differential privacy"
            # Publishing a client picked at random is (0, 1/n)-private, too.
            if self.delta * cohorts.num_clients >= 1.0:
                guarantee += "; delta is NOT SMALL: at least one over the number of clients"
        enforced = f"enforced up to epsilon {self.target_epsilon}"
        clip = self.l2_clip_norm
        rows = {
            "Guarantee": guarantee,
            "Unit": f"one client, with all its data; neighbours: {relation}",
            "Sampler": f"{type(cohorts).__name__}, {cohorts.expected_cohort_size:g} expected of "
            f"{cohorts.num_clients} clients, {cohorts.max_cohort_size} slots, at most "
            f"{cohorts.participations(self.num_rounds)} participations",
            "Mechanism": "Gaussian, noise multiplier "
            f"{rounded_down(_number(self.noise_multiplier))}, L2 clip norm {clip}, "
            f"{self.num_rounds} rounds",
            "Budget": "not enforced" if self.target_epsilon is None else enforced,
            "Covers": "every released model of the run; not losses, norms or other metrics, the "
            "choice of hyperparameters, or floating-point effects; the number of clients is "
            "taken as public; the server is trusted",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows.items())


def _number(value: Any) -> Any:
    return value if _validate.is_traced(value) else float(value)


def mechanism_delta(cohorts: CohortSampler, delta: float) -> float:
    """What an enforced budget leaves of delta, once cohorts may overflow their slots."""
    return delta * (1.0 - _OVERFLOW_SHARE) if _samples(cohorts) else delta


def _samples(cohorts: CohortSampler) -> bool:
    return isinstance(cohorts, PoissonCohorts) and cohorts.sampling_probability < 1.0


def make_plan(
    cohorts: CohortSampler,
    *,
    num_rounds: int,
    l2_clip_norm: Any,
    noise_multiplier: Any = None,
    target_epsilon: float | None = None,
    delta: float | None = None,
) -> ClientPlan:
    r"""Plans the privacy of a federated run: calibrates its noise, or takes it as given.

    Args:
      cohorts: Who takes part in a round: ``PoissonCohorts``, ``FixedSizeCohorts`` or
        ``GroupCohorts``. Poisson cohorts without ``max_cohort_size`` get the slots they need.
      num_rounds: Rounds to plan for, >= 1.
      l2_clip_norm: L2 bound on one client's delta, in the unit of the parameters, in
        [1e-30, 1e30]; a pytree prefix of such; or an ``AdaptiveClip``. Numbers may be traced.
      noise_multiplier: Standard deviation over L2 sensitivity (add or remove one client),
        >= 0; None to calibrate it to the target. It may be traced if there is no target.
      target_epsilon: The budget to enforce, > 0; None to enforce none.
      delta: The delta of the guarantee, in (0, 1). Needed with a target.

    Returns:
      The plan. ``print(plan)`` is the privacy statement, for one client as the unit.

    Raises:
      ValueError: if an argument is out of range, neither noise nor target is given, the target
        cannot be met, or the slots are too few for the delta.

    Guarantee:
      All models of the planned rounds together are (``plan.epsilon``, ``delta``)-DP for one
      client, with all its data: added or removed, or replaced with ``FixedSizeCohorts``. With
      a target, for any number of rounds.

    Example:
      >>> from jaxdp import federated
      >>> plan = federated.make_plan(federated.GroupCohorts(1000, min_separation=10),
      ...     num_rounds=50, l2_clip_norm=1.0, target_epsilon=3.0, delta=1e-5)
      >>> round(plan.noise_multiplier, 3), plan.epsilon <= 3.0
      (3.109, True)

    References:
      McMahan et al. 2018, arXiv:1710.06963; Andrew et al. 2021, arXiv:1905.03871.
    """
    check_run(cohorts, num_rounds, delta)
    _check_target(target_epsilon, delta)
    delta = None if delta is None else float(delta)
    if target_epsilon is None:
        if noise_multiplier is None:
            _validate.refuse("noise_multiplier", None, "given where target_epsilon is not")
        if isinstance(cohorts, PoissonCohorts) and cohorts.max_cohort_size is None:
            share = _OVERFLOW_SHARE * (1e-6 if delta is None else delta)
            cohorts = cohorts.with_capacity(num_rounds=num_rounds, overflow_delta=share)
        return ClientPlan(noise_multiplier, l2_clip_norm, cohorts, int(num_rounds), None, delta)
    target_epsilon = float(target_epsilon)
    if noise_multiplier is None:
        noise_multiplier = _calibrated(cohorts, num_rounds, target_epsilon, delta)
    noise_multiplier = as_drawn(noise_multiplier)
    if _validate.is_traced(noise_multiplier):
        _validate.refuse("noise_multiplier", noise_multiplier, _KNOWN)
    if isinstance(cohorts, PoissonCohorts) and cohorts.max_cohort_size is None:
        cohorts = _with_slots(cohorts, noise_multiplier, target_epsilon, delta)
    return ClientPlan(
        noise_multiplier, l2_clip_norm, cohorts, int(num_rounds), target_epsilon, delta
    )


def check_run(cohorts: Any, num_rounds: Any, delta: Any) -> None:
    """Refuses what is no sampler, number of rounds, or delta (None for none)."""
    if not isinstance(cohorts, CohortSampler):
        _validate.refuse("cohorts", cohorts, "a sampler such as PoissonCohorts(...)")
    _validate.integer("num_rounds", num_rounds, minimum=1)
    if _validate.is_traced(delta):
        _validate.refuse("delta", delta, "a number that is known when the run is planned")
    if delta is not None:
        _validate.delta("delta", delta)


def plain(value: Any) -> float | None:
    """A number without the rounding of a narrow type; None stays."""
    return None if value is None else float(value)


def _check_target(target_epsilon: Any, delta: Any) -> None:
    if target_epsilon is None:
        return
    if _validate.is_traced(target_epsilon):
        allowed = "a number that is known when the run is planned"
        _validate.refuse("target_epsilon", target_epsilon, allowed)
    _validate.positive("target_epsilon", target_epsilon)
    if delta is None:
        _validate.refuse("delta", None, "given together with target_epsilon")


def as_drawn(noise_multiplier: Any) -> Any:
    """The multiplier that runs, if that is smaller: noise is drawn in float32."""
    _validate.non_negative("noise_multiplier", noise_multiplier)
    if _validate.is_traced(noise_multiplier):
        return noise_multiplier
    return min(float(noise_multiplier), float(np.float32(noise_multiplier)))


def _calibrated(cohorts: Any, num_rounds: int, target_epsilon: float, delta: Any) -> float:
    calibrated = accounting.calibrate(
        lambda noise_multiplier: cohorts.run_event(noise_multiplier, num_rounds),
        target_epsilon=target_epsilon,
        delta=mechanism_delta(cohorts, delta),
    )
    # Noise is drawn in float32: account for the multiplier that will run, rounded up.
    nearest = np.float32(calibrated)
    above = nearest if float(nearest) >= calibrated else np.nextafter(nearest, np.float32(math.inf))
    return float(above)


def _check_clip(l2_clip_norm: Any, noise_multiplier: Any) -> None:
    if not isinstance(l2_clip_norm, AdaptiveClip):
        rescale.clip_rule(l2_clip_norm, None, "clip")
        return
    initial, count_noise_multiplier = l2_clip_norm[:2]
    if isinstance(initial, MimeSum):
        _validate.refuse("l2_clip_norm", l2_clip_norm, "mime(...).l2_clip_norm, which is fixed")
    rescale.clip_rule(initial, None, "clip")
    if not _validate.is_traced((noise_multiplier, count_noise_multiplier)):
        # A count must not cost more than the whole round.
        transforms.split_noise_multiplier(noise_multiplier, count_noise_multiplier)


def _check_slots(
    cohorts: CohortSampler, noise_multiplier: Any, target_epsilon: float, delta: Any
) -> None:
    """Refuses slots whose running out costs more of delta than is set aside for it."""
    if _validate.is_traced(noise_multiplier):
        _validate.refuse("noise_multiplier", noise_multiplier, _KNOWN)
    if cohorts.overflow_delta(1) == 0.0:
        return
    if not isinstance(cohorts, PoissonCohorts):
        allowed = "one without overflow_delta, or PoissonCohorts, where target_epsilon is given"
        _validate.refuse("cohorts", cohorts, allowed)
    enough = _with_slots(cohorts, noise_multiplier, target_epsilon, delta).max_cohort_size
    if enough is not None and (cohorts.max_cohort_size or 0) < enough:
        allowed = f"at least {enough}: fewer slots would cost more of delta"
        _validate.refuse("max_cohort_size", cohorts.max_cohort_size, allowed)


def _with_slots(
    cohorts: PoissonCohorts, noise_multiplier: Any, target_epsilon: float, delta: Any
) -> PoissonCohorts:
    """The sampler with slots for every round that the budget lets through."""
    # By what is drawn, the same number before and after it has been through a program.
    drawn = float(np.float32(noise_multiplier))
    unsized = dataclasses.replace(cohorts, max_cohort_size=None)
    return _enough_slots(unsized, drawn, float(target_epsilon), float(delta))


@functools.lru_cache(maxsize=64)
def _enough_slots(
    cohorts: PoissonCohorts, noise_multiplier: float, target_epsilon: float, delta: float
) -> PoissonCohorts:
    rounds = 1
    if _samples(cohorts):
        rounds = accounting.affordable_steps(
            cohorts.event(noise_multiplier),
            target_epsilon=target_epsilon,
            delta=mechanism_delta(cohorts, delta),
        )
    share = _OVERFLOW_SHARE * delta
    return cohorts.with_capacity(num_rounds=max(rounds, 1), overflow_delta=share)
