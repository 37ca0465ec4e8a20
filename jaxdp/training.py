"""The one-call layer: a loss and an optimizer become a calibrated, budgeted private step."""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding

from jaxdp import _random, _validate, accounting, sampling
from jaxdp.clipping.api import clipped_grad
from jaxdp.distributed.gradients import sharded_clipped_grad
from jaxdp.optimizers import privatize
from jaxdp.plan import PrivacyPlan
from jaxdp.transforms.budget import budget_state, privacy_spent

# The part of delta that pays for batches too large for their static capacity: it costs next
# to nothing in noise and keeps the capacity within some seven deviations of the mean.
_OVERFLOW_SHARE = 0.01


class PrivateState(NamedTuple):
    """Where a private run stands: what a step reads and returns."""

    params: Any  # pytree, the model: all that is meant to be released
    opt_state: Any  # noise, optimizer and budget
    key: jax.Array  # scalar PRNG key, fixed for the run


class StepMetrics(NamedTuple):
    """What a step reports about itself, private or not."""

    loss: jax.Array  # float scalar, mean over the batch. NOT private
    clipped_fraction: jax.Array  # float scalar, examples above the clip norm. NOT private
    epsilon: jax.Array  # float scalar, spent so far at the plan's delta
    steps_left: jax.Array  # int32 scalar, steps of the plan still to come
    exhausted: jax.Array  # bool scalar, whether the next step will be refused


class Private(NamedTuple):
    """A private run as pure functions, with the plan that they keep."""

    init: Callable[[Any, jax.Array], PrivateState]  # (params, key) -> state
    step: Callable[..., tuple[PrivateState, StepMetrics]]  # (state, batch, is_padding=None)
    sample: Callable[[jax.Array], sampling.PoissonBatch]  # (key) -> indices of a batch
    plan: PrivacyPlan


def _plan(
    target_epsilon: float,
    delta: float,
    num_examples: int,
    expected_batch_size: float,
    num_steps: int,
    l2_clip_norm: float,
) -> PrivacyPlan:
    sampling_probability = expected_batch_size / num_examples
    overflow_delta = _OVERFLOW_SHARE * delta if sampling_probability < 1.0 else 0.0
    mechanism_delta = delta - overflow_delta

    def one_step(noise_multiplier):
        return accounting.PoissonSampled(
            sampling_probability, accounting.Gaussian(noise_multiplier)
        )

    calibrated = accounting.calibrate(
        lambda noise_multiplier: accounting.Repeated(one_step(noise_multiplier), num_steps),
        target_epsilon=target_epsilon,
        delta=mechanism_delta,
    )
    # Noise is drawn in float32: account for the multiplier that will run, rounded up.
    nearest = np.float32(calibrated)
    noise_multiplier = float(
        nearest if float(nearest) >= calibrated else np.nextafter(nearest, np.float32(math.inf))
    )
    run = accounting.Repeated(one_step(noise_multiplier), num_steps)
    max_batch_size = num_examples
    if overflow_delta > 0.0:
        # The budget may let through a step more than was asked for: pay for that one too.
        affordable_steps = accounting.affordable_steps(
            one_step(noise_multiplier), target_epsilon=target_epsilon, delta=mechanism_delta
        )
        max_batch_size = sampling.poisson_capacity(
            num_examples=num_examples,
            sampling_probability=sampling_probability,
            num_steps=affordable_steps,
            overflow_delta=overflow_delta,
        )
    return PrivacyPlan(
        epsilon=accounting.epsilon(run, delta=mechanism_delta),
        delta=delta,
        target_epsilon=target_epsilon,
        noise_multiplier=noise_multiplier,
        l2_clip_norm=l2_clip_norm,
        num_steps=num_steps,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        sampling_probability=sampling_probability,
        max_batch_size=max_batch_size,
        overflow_delta=overflow_delta,
        accountant="exact",
        event=run,
    )


def _mean(values: jax.Array, is_real: jax.Array) -> jax.Array:
    """The mean over the examples that are no padding; 0 for an empty batch."""
    total = jnp.sum(values, where=is_real, dtype=jnp.result_type(float))
    return total / jnp.maximum(jnp.sum(is_real), 1)


def _loss_of_example(loss_fn: Callable[..., Any], takes_key: bool) -> Callable[..., Any]:
    """The loss, refusing by name a call that it does not take, and a pair (loss, aux)."""
    arguments = "(params, example) -> scalar, where an example is one pytree such as (x, y)"
    hint = "; one with an argument key needs loss_takes_key=True"
    if takes_key:
        arguments = arguments.replace("example)", "example, key)")
        hint = "; without key, leave loss_takes_key=False"
    call = _validate.fitting("loss_fn", loss_fn, f"a function {arguments}{hint}")

    def scalar(*args, **keywords):
        loss = call(*args, **keywords)
        if isinstance(loss, tuple):
            allowed = "the loss alone (metrics.loss is its mean; there is no auxiliary output)"
            _validate.refuse("loss_fn's output", loss, allowed)
        return loss

    return scalar


def make_private(
    loss_fn: Callable[..., jax.Array],
    optimizer: optax.GradientTransformation,
    *,
    target_epsilon: float,
    delta: float,
    num_examples: int,
    expected_batch_size: float,
    num_steps: int,
    l2_clip_norm: float,
    microbatch_size: int | None = None,
    loss_takes_key: bool = False,
    batch_sharding: NamedSharding | None = None,
    num_shards: int | None = None,
) -> Private:
    r"""Makes a training step private: clip, noise, optimizer and budget in one function.

    Calibrates the noise so that ``num_steps`` steps on Poisson-sampled batches cost at most
    ``target_epsilon`` at ``delta``, and returns pure functions to jit, scan or vmap at will:

    - ``init(params, key) -> state``: ``state.params`` is the model; one key, one run.
    - ``step(state, batch, is_padding=None) -> (state, metrics)``: one noisy update. After
      the last affordable step it changes nothing more.
    - ``sample(key) -> PoissonBatch(indices, is_padding, overflowed)``: the batch of a step, as
      the plan has it; a fresh key for each step.
    - ``plan``: every number of the run. ``print(plan)`` is the privacy statement.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar`` for one example, a pytree without batch
        axis; called with ``key=`` as well if ``loss_takes_key``.
      optimizer: Any Optax optimizer.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1), overflow of batches included.
      num_examples: Records in the data set, exactly: ``sample`` draws indices below it.
      expected_batch_size: Records in a batch on average, in (0, num_examples].
      num_steps: Steps to calibrate for, >= 1.
      l2_clip_norm: L2 bound on one example's gradient, > 0.
      microbatch_size: Examples whose gradients are held at once, or None for the whole
        batch.
      loss_takes_key: Whether to pass each example a PRNG key of its own (dropout).
      batch_sharding: How examples are split over devices, as for
        ``distributed.sharded_clipped_grad``; None on a single device.
      num_shards: For the same bits on any number of devices, as for
        ``distributed.sharded_clipped_grad``.

    Returns:
      A ``Private(init, step, sample, plan)``. ``batch`` is a pytree whose leaves have a leading
      example axis; ``is_padding`` a bool array [batch].

    Raises:
      ValueError: if an argument is out of range, or the budget cannot be met; in ``init`` and
        ``step``, if what is given is of another kind, or the loss does not take it.

    Guarantee:
      All iterates together are (``target_epsilon``, ``delta``)-DP for one example added or
      removed, provided that each batch is a fresh Poisson sample, as ``sample`` draws it. Batches
      taken in another way (shuffled epochs, fixed size) are not covered. ``metrics.loss``
      and ``metrics.clipped_fraction`` are computed from the batch without noise: they are
      for the curator's eyes.

    Example:
      >>> import jax, jax.numpy as jnp, optax, jaxdp
      >>> def loss_fn(params, example):
      ...     return (params @ example["x"] - example["y"]) ** 2
      >>> private = jaxdp.make_private(loss_fn, optax.sgd(0.1), target_epsilon=1.0, delta=1e-5,
      ...     num_examples=1000, expected_batch_size=100, num_steps=50, l2_clip_norm=1.0)
      >>> state = private.init(jnp.zeros(3), jax.random.key(0))
      >>> batch = {"x": jnp.ones((4, 3)), "y": jnp.ones(4)}
      >>> state, metrics = jax.jit(private.step)(state, batch)
      >>> int(metrics.steps_left), float(metrics.epsilon) < 1.0
      (49, True)

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1.
    """
    _validate.function("loss_fn", loss_fn)
    _validate.optimizer("optimizer", optimizer)
    for name, value in (("target_epsilon", target_epsilon), ("delta", delta)):
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number that is known when the step is built")
    _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("delta", delta)
    num_examples = _validate.integer("num_examples", num_examples, minimum=1)
    num_steps = _validate.integer("num_steps", num_steps, minimum=1)
    _validate.positive("expected_batch_size", expected_batch_size)
    if expected_batch_size > num_examples:
        _validate.refuse(
            "expected_batch_size", expected_batch_size, f"at most num_examples = {num_examples}"
        )
    _validate.positive("l2_clip_norm", l2_clip_norm)
    # Plain numbers: NumPy's small types would lose digits of delta and of the probability.
    target_epsilon, delta = float(target_epsilon), float(delta)
    expected_batch_size, l2_clip_norm = float(expected_batch_size), float(l2_clip_norm)
    plan = _plan(
        float(target_epsilon),
        float(delta),
        num_examples,
        float(expected_batch_size),
        num_steps,
        float(l2_clip_norm),
    )
    make_grad_fn: Callable[..., Any] = clipped_grad
    if batch_sharding is not None:
        make_grad_fn = functools.partial(
            sharded_clipped_grad, batch_sharding=batch_sharding, num_shards=num_shards
        )
    grad_fn = make_grad_fn(
        _loss_of_example(loss_fn, loss_takes_key),
        l2_clip_norm=plan.l2_clip_norm,
        microbatch_size=microbatch_size,
        return_per_example=True,
    )

    def chain(key):
        return privatize(
            optimizer,
            noise_multiplier=plan.noise_multiplier,
            expected_batch_size=plan.expected_batch_size,
            key=jax.random.fold_in(key, 0),
            sampling_probability=plan.sampling_probability,
            target_epsilon=plan.target_epsilon,
            delta=plan.delta - plan.overflow_delta,
        )

    def init(params, key):
        _validate.model_params("params", params)
        _validate.key("key", key)
        return PrivateState(params, chain(key).init(params), _random.copy(key))

    def check_arguments(state, batch, is_padding):
        if not isinstance(state, PrivateState):
            allowed = "the PrivateState that init or the step before returned"
            _validate.refuse("state", type(state).__name__, allowed)
        if isinstance(batch, sampling.PoissonBatch):
            allowed = "the examples at its indices, such as (x[batch.indices], y[batch.indices])"
            _validate.refuse("batch", "what sample returned", f"{allowed}, with batch.is_padding")
        if is_padding is not None and jnp.asarray(is_padding).dtype != bool:
            allowed = (
                "a bool array [batch] (what belongs to an example goes into batch, as a tuple)"
            )
            _validate.refuse("is_padding", is_padding, allowed)
        rows = _validate.leading_axis("batch", batch)
        if rows > plan.max_batch_size:
            _validate.refuse(
                "batch",
                f"{rows} rows",
                f"at most the plan's max_batch_size = {plan.max_batch_size}, as sample draws it",
            )
        if is_padding is None and rows == plan.max_batch_size < plan.num_examples:
            # A forgotten mask would count the record in the padding slots once for each.
            _validate.refuse("is_padding", None, "given with a batch that fills its capacity")

    def step(state, batch, is_padding=None):
        check_arguments(state, batch, is_padding)
        budget = budget_state(state.opt_state)
        loss_key = jax.random.fold_in(jax.random.fold_in(state.key, 1), budget.step)
        clipped, per_example = grad_fn(
            state.params, batch, key=loss_key if loss_takes_key else None, is_padding=is_padding
        )
        updates, opt_state = chain(state.key).update(clipped, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        is_real = jnp.ones(per_example.loss.shape, bool) if is_padding is None else ~is_padding
        return PrivateState(params, opt_state, state.key), StepMetrics(
            loss=_mean(per_example.loss, is_real),
            clipped_fraction=_mean(per_example.norm > plan.l2_clip_norm, is_real),
            epsilon=privacy_spent(opt_state),
            steps_left=jnp.maximum(plan.num_steps - budget_state(opt_state).step, 0),
            exhausted=budget_state(opt_state).exhausted,
        )

    def sample(key):
        return sampling.poisson_batch(
            key,
            num_examples=plan.num_examples,
            sampling_probability=plan.sampling_probability,
            max_batch_size=plan.max_batch_size,
        )

    return Private(init, step, sample, plan)
