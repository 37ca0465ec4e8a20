"""Whether what a plan states is backed by its own numbers: in a file it may be anything."""

import jax

from jaxdp import _validate, accounting, sampling
from jaxdp.plan import PrivacyPlan

# Other versions and processors may round the same epsilon another way.
_SLACK = 1e-9


def check(plan: PrivacyPlan, where: str) -> None:
    """Refuses a plan that promises more than its event, sampler and capacity give.

    Args:
      plan: The plan, as a file or a caller has it.
      where: What to call it in errors.

    Raises:
      ValueError: if a number is out of range, the numbers contradict each other, or what is
        stated is less than what the event costs.
    """
    _check_plain(plan, where)
    _check_numbers(plan, where)
    step = accounting.PoissonSampled(
        plan.sampling_probability, accounting.Gaussian(plan.noise_multiplier)
    )
    if plan.event != accounting.Repeated(step, plan.num_steps):
        allowed = f"that of the plan's own numbers, {step} repeated {plan.num_steps} times"
        _validate.refuse(f"{where}.event", plan.event, allowed)
    mechanism_delta = plan.delta - plan.overflow_delta
    cost = accounting.epsilon(accounting.Repeated(step, plan.num_steps), mechanism_delta)
    if not plan.epsilon >= cost * (1.0 - _SLACK):
        allowed = f"at least {cost!r}, which is what the event costs at delta = {mechanism_delta!r}"
        _validate.refuse(f"{where}.epsilon", plan.epsilon, allowed)
    if not plan.epsilon <= plan.target_epsilon:
        allowed = f"at least what is stated, {plan.epsilon!r}"
        _validate.refuse(f"{where}.target_epsilon", plan.target_epsilon, allowed)
    _check_capacity(plan, step, mechanism_delta, where)


def _check_plain(plan: PrivacyPlan, where: str) -> None:
    """Refuses what is no plain number: a float16 equals numbers that it is not, and rounds."""
    fields = {name: getattr(plan, name) for name in PrivacyPlan._fields if name != "event"}
    leaves = {f"event{jax.tree_util.keystr(path)}": leaf
              for path, leaf in jax.tree_util.tree_leaves_with_path(plan.event)}  # fmt: skip
    for name, value in (fields | leaves).items():
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            _validate.refuse(f"{where}.{name}", value, "a plain number")


def _check_numbers(plan: PrivacyPlan, where: str) -> None:
    _validate.non_negative(f"{where}.epsilon", plan.epsilon)
    _validate.positive(f"{where}.target_epsilon", plan.target_epsilon)
    _validate.delta(f"{where}.delta", plan.delta)
    _validate.non_negative(f"{where}.overflow_delta", plan.overflow_delta)
    if not plan.overflow_delta < plan.delta:
        allowed = f"below the whole delta, {plan.delta!r}"
        _validate.refuse(f"{where}.overflow_delta", plan.overflow_delta, allowed)
    _validate.positive(f"{where}.noise_multiplier", plan.noise_multiplier)
    _validate.positive(f"{where}.l2_clip_norm", plan.l2_clip_norm)
    for name in ("num_steps", "num_examples", "max_batch_size"):
        _validate.integer(f"{where}.{name}", getattr(plan, name), minimum=1)
    _validate.positive(f"{where}.expected_batch_size", plan.expected_batch_size)
    if plan.sampling_probability != plan.expected_batch_size / plan.num_examples:
        allowed = "the expected batch size over the number of examples"
        _validate.refuse(f"{where}.sampling_probability", plan.sampling_probability, allowed)
    _validate.probability(f"{where}.sampling_probability", plan.sampling_probability)
    words = {"neighboring_relation": "add_or_remove_one", "sampler": "Poisson"}
    words |= {"unit": "one example", "accountant": "exact"}
    for name, word in words.items():
        _validate.choice(f"{where}.{name}", getattr(plan, name), (word,))


def _check_capacity(
    plan: PrivacyPlan, step: accounting.Event, mechanism_delta: float, where: str
) -> None:
    """Refuses slots whose running out costs more of delta than the plan says it does."""
    if plan.sampling_probability == 1.0 or plan.overflow_delta == 0.0:
        needed = plan.num_examples
    else:
        # The budget lets through as many steps as it affords, however many were planned.
        affordable = accounting.affordable_steps(
            step, target_epsilon=plan.target_epsilon, delta=mechanism_delta
        )
        needed = sampling.poisson_capacity(
            num_examples=plan.num_examples,
            sampling_probability=plan.sampling_probability,
            num_steps=max(affordable, 1),
            overflow_delta=plan.overflow_delta,
        )
    if plan.max_batch_size < needed:
        allowed = f"at least {needed}: fewer slots would cost more of delta than is stated"
        _validate.refuse(f"{where}.max_batch_size", plan.max_batch_size, allowed)
