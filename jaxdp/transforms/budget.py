"""A privacy budget around an Optax chain: spent step by step, refused once it is gone."""

import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxdp import _control, _validate, accounting
from jaxdp.accounting import events, running

Event = accounting.Event
ACCOUNTANTS = ("auto", "exact", "rdp")


class BudgetState(NamedTuple):
    """What a budgeted chain has spent so far, and on what terms."""

    inner_state: Any  # state of the chain inside, frozen once exhausted
    step: jax.Array  # int32 scalar, steps paid for so far
    exhausted: jax.Array  # bool scalar, whether the next step would overspend
    spent: Any  # `_Spent`
    residue: Any  # `_Spent`, what rounding left out of `spent`
    orders: jax.Array  # float [num_orders], Renyi orders > 1
    lines: Any  # `running.Lines` that the moments are on, or None
    event: jax.Array  # uint32 [2], a hash of the event of all steps so far; 0 if it varied
    relation: jax.Array  # int32 scalar, place of all steps' neighbouring relation in `RELATIONS`
    target_epsilon: jax.Array  # float scalar, the budget
    log_delta: jax.Array  # float scalar, log of the budget's delta


class _Spent(NamedTuple):
    rdp: Any  # float [num_orders], Renyi divergence
    moments: Any  # `running.Moments`, or None


class _Known:
    """An event of numbers, compared by them."""

    def __init__(self, event: Event):
        leaves, structure = jax.tree.flatten(event)
        numbers = [np.asarray(leaf, np.float64) for leaf in leaves]
        self.event: Event = jax.tree.unflatten(
            structure, [number.item() if number.ndim == 0 else number for number in numbers]
        )
        shapes = [number.shape for number in numbers]
        content = repr((structure, shapes)).encode() + b"".join(n.tobytes() for n in numbers)
        self.digest = hashlib.sha256(content).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Known) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)


def _orders(target_epsilon: float, delta: float) -> np.ndarray:
    """Renyi orders, dense where the best one lies when the budget runs out.

    The best order 1 + t satisfies t >= log(1/delta) / epsilon up to the conversion's small
    terms, and t = 2 log(1/delta) / epsilon for Gaussians; the rest serves the epsilon that
    is reported on the way there, which for few sampled steps has its order between 1 and 500.
    """
    reference = math.log(1.0 / delta) / target_epsilon
    dense = reference * np.geomspace(0.5, 5.0, 80)
    sparse = [
        np.geomspace(0.5, 500.0, 140),
        np.geomspace(1e-2, 0.5, 12),
        np.geomspace(500, 1e6, 24),
    ]
    return 1.0 + np.unique(np.concatenate([dense, *sparse]))


@functools.lru_cache(maxsize=256)
def _affordable_steps(known: _Known, target_epsilon: float, delta: float, accountant: str) -> int:
    # A step that is not compiled builds its chain anew every time.
    return accounting.affordable_steps(
        known.event, target_epsilon=target_epsilon, delta=delta, accountant=accountant
    )


def _add_compensated(total: jax.Array, residue: jax.Array, term: jax.Array):
    """Adds a term to a sum kept as a pair, so that a million small terms are not lost."""
    corrected = term + residue
    new_total = total + corrected
    lost = jnp.where(jnp.isfinite(new_total), corrected - (new_total - total), 0.0)
    return new_total, lost


def _add(total: _Spent, residue: _Spent, term: _Spent) -> tuple[_Spent, _Spent]:
    pairs = jax.tree.map(_add_compensated, total, residue, term)
    return jax.tree.transpose(jax.tree.structure(total), jax.tree.structure((0, 0)), pairs)


def _relation_of(event: Event) -> int:
    """The neighbouring relation that an event is accounted under."""
    allowed = events.relations_of(event)
    if not allowed:
        _validate.refuse("event", event, "an event of one neighbouring relation")
    return events.RELATIONS.index(allowed[0])


def _cost(event: Event, orders: np.ndarray, lines: Any) -> _Spent:
    rdp = jnp.asarray(accounting.rdp(event, orders), jnp.result_type(float))
    return _Spent(rdp, None if lines is None else running.moments(event, lines))


def with_budget(
    transformation: optax.GradientTransformation,
    *,
    event: Event | Callable[[jax.Array], Event],
    target_epsilon: float,
    delta: float,
    accountant: str = "auto",
) -> optax.GradientTransformationExtraArgs:
    r"""Stops a private chain for good before the step that would exceed its budget.

    Step :math:`t` is taken only if steps :math:`0, \dots, t` together cost at most
    ``target_epsilon`` at ``delta``. From the first step that is not affordable on, the update is
    exactly zero, the state inside is frozen and no noise is drawn. It all happens inside the
    compiled step.

    Args:
      transformation: The whole private chain: what is wrapped must contain the noise.
      event: What one step does, an event of ``jaxdp.accounting`` such as
        ``PoissonSampled(q, Gaussian(noise_multiplier))``; or a function from the step
        (int32 scalar) to one, for schedules. It has to describe the chain and the sampler
        as they are: ``privatize`` and the ``dp_*`` optimizers build both from one set of
        numbers. It may hold traced values.
      target_epsilon: The budget, > 0.
      delta: The budget's delta, in (0, 1).
      accountant: "auto", "exact" or "rdp". For an event whose numbers are known when the chain is
        built, the number of affordable steps is solved for ahead, as by
        ``accounting.affordable_steps``. What is spent on the way, and all that an event which
        varies or is traced may spend, is counted in Renyi divergences; by "exact" in log-moments
        on lines in the complex plane too (Gaussians and Poisson-sampled ones only; a few seconds
        more to compile and, for an event that varies, some milliseconds a step).

    Returns:
      A transformation whose state is a ``BudgetState``: ``state.exhausted`` says that no
      further step will be taken, ``privacy_spent(state)`` what the steps so far cost.

    Raises:
      ValueError: if ``target_epsilon`` or ``delta`` is out of range, ``event`` is neither an
        event nor a function, or mixes neighbouring relations, or the accountant does not apply.

    Guarantee:
      A state goes on under the target, delta and neighbouring relation that it began with; under
      others it takes no further step. The steps taken are (``target_epsilon``, ``delta``)-DP,
      if ``event`` is true, for neighbours that differ by one record added or removed, or by
      one replaced where the event knows that relation alone.
      An event whose numbers are known when the chain is built is accounted in float64, and the
      number of affordable steps is exact; a state that has taken steps of another event goes on
      by Renyi DP. Otherwise the program accounts in its own float type, over a fixed grid of
      orders and, for "exact", of lines, rounded outward, so that it may stop a step early and
      never late. The event's numbers must not be chosen from what the run has released: the
      best order is taken at the end, which is proved for schedules fixed in advance, not for
      adaptive ones. Stopping earlier than the budget, for whatever reason, only lowers the cost.

    Example:
      >>> import jax, jax.numpy as jnp, optax, jaxdp
      >>> from jaxdp import accounting as acc
      >>> noise = jaxdp.add_gaussian_noise(4.0, key=jax.random.key(0))
      >>> event = acc.PoissonSampled(0.01, acc.Gaussian(4.0))
      >>> tx = jaxdp.with_budget(
      ...     optax.chain(noise, jaxdp.scale_by_batch_size(100), optax.sgd(0.1)),
      ...     event=event, target_epsilon=1.0, delta=1e-5)
      >>> params = jnp.zeros(3)
      >>> state = tx.init(params)
      >>> updates, state = tx.update(jaxdp.ClippedSum(params, 1.0), state, params)
      >>> bool(state.exhausted), float(jaxdp.privacy_spent(state, delta=1e-5)) < 1.0
      (False, True)

    References:
      Mironov 2017, arXiv:1702.07476; Abadi et al. 2016, arXiv:1607.00133; Feldman and Zrnic
      2021, arXiv:2008.11193 (what adaptive budgets need); ``jaxdp.accounting.running`` for the
      proof on lines.
    """
    for name, value in (("target_epsilon", target_epsilon), ("delta", delta)):
        if _validate.is_traced(value):
            _validate.refuse(name, value, "a number that is known when the chain is built")
    _validate.positive("target_epsilon", target_epsilon)
    _validate.delta("delta", delta)
    _validate.choice("accountant", accountant, ACCOUNTANTS)
    if not isinstance(event, accounting.Event) and not callable(event):
        _validate.refuse("event", event, "an event of jaxdp.accounting or a function to one")
    if isinstance(event, accounting.Event):
        _relation_of(event)
    inner = optax.with_extra_args_support(transformation)
    orders = _orders(float(target_epsilon), float(delta))
    log_delta = math.log(float(delta))
    known = None
    if isinstance(event, accounting.Event) and not _validate.is_traced(event):
        # float64 and the tightest bound: a plan calibrated to the budget gets all its steps.
        known = _Known(event)
        affordable = _affordable_steps(known, float(target_epsilon), float(delta), accountant)
    lines = None
    if accountant == "exact":
        lines = running.lines_for(float(target_epsilon), float(delta))
    if known is not None:
        # Compiled here, since JAX 0.6 does not compile inside compile-time evaluation.
        accounting.rdp(known.event, orders)
        if lines is not None:
            running.moments(known.event, lines)
        with jax.ensure_compile_time_eval():
            known_cost = _cost(known.event, orders, lines)
    digest = np.zeros(2, np.uint32) if known is None else np.frombuffer(known.digest[:8], np.uint32)

    def event_of_step(step) -> Event:
        return event if isinstance(event, accounting.Event) else event(step)

    def cost_of_step(step) -> _Spent:
        if known is not None:
            return jax.tree.map(jnp.asarray, known_cost)
        return _cost(event_of_step(step), orders, lines)

    def would_overspend(step, spent, residue, cost, steps_event):
        total, _ = _add(spent, residue, cost)
        overspends = ~(_epsilon(total, orders, lines, log_delta) <= target_epsilon)
        if known is None:
            return overspends
        # The exact count holds if every step before was of this event (a resumed state).
        return jnp.where(jnp.all(steps_event == digest), step >= affordable, overspends)

    def init(params):
        step = jnp.zeros((), jnp.int32)
        cost = cost_of_step(step)
        spent, residue = jax.tree.map(jnp.zeros_like, (cost, cost))
        dtype = cost.rdp.dtype
        return BudgetState(
            inner_state=inner.init(params),
            step=step,
            exhausted=jnp.asarray(would_overspend(step, spent, residue, cost, digest)),
            spent=spent,
            residue=residue,
            orders=jnp.asarray(orders, dtype),
            lines=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), lines),
            event=jnp.asarray(digest),
            relation=jnp.asarray(_relation_of(event_of_step(step)), jnp.int32),
            target_epsilon=jnp.asarray(target_epsilon, dtype),
            log_delta=jnp.asarray(log_delta, dtype),
        )

    def update(updates, state, params=None, **extra_args):
        # The event as it stands now, not as the last step foresaw it: a caller may have
        # changed a traced noise multiplier in between.
        cost = cost_of_step(state.step)

        def take_step():
            new_updates, inner_state = inner.update(
                updates, state.inner_state, params, **extra_args
            )
            spent, residue = _add(state.spent, state.residue, cost)
            step = state.step + 1
            next_cost = cost_of_step(step) if callable(event) else cost
            steps_event = jnp.where(state.event == digest, state.event, 0)
            return new_updates, state._replace(
                inner_state=inner_state,
                step=step,
                exhausted=jnp.asarray(
                    would_overspend(step, spent, residue, next_cost, steps_event)
                ),
                spent=spent,
                residue=residue,
                event=steps_event,
            )

        def refuse_step():
            shapes, _ = jax.eval_shape(take_step)
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return zeros, state._replace(exhausted=jnp.ones((), bool))

        overspends = would_overspend(state.step, state.spent, state.residue, cost, state.event)
        # A state that began under another target or delta has spent at other orders.
        overspends |= (state.target_epsilon != target_epsilon) | (state.log_delta != log_delta)
        # Divergences between neighbours of one kind do not add up with those of another kind.
        overspends |= state.relation != _relation_of(event_of_step(state.step))
        return _control.cond(state.exhausted | overspends, refuse_step, take_step)

    return optax.GradientTransformationExtraArgs(init, update)


def _epsilon(spent: _Spent, orders: Any, lines: Any, log_delta: Any) -> jax.Array:
    """Epsilon by the better of Renyi DP and, if there are any, the moments on lines."""
    epsilon = accounting.epsilon_from_rdp(spent.rdp, orders, log_delta=log_delta).epsilon
    if spent.moments is None:
        return epsilon
    dtype = epsilon.dtype
    lines = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), lines)
    wanted = jnp.asarray(log_delta, dtype)
    # The logarithm may have been rounded up.
    wanted = wanted - float(jnp.finfo(dtype).eps) * jnp.abs(wanted)
    return running.epsilon(spent.moments, lines, wanted, epsilon)


def privacy_spent(opt_state: Any, *, delta: float | None = None) -> jax.Array:
    """The epsilon of the steps that a budgeted chain has taken so far.

    Args:
      opt_state: An optimizer state with one ``BudgetState`` somewhere in it.
      delta: The delta to report at, in (0, 1); by default the budget's own.

    Returns:
      Epsilon, a float scalar >= 0, jittable; inf where a step had no noise.

    Raises:
      ValueError: if ``delta`` is out of range, or ``opt_state`` holds no ``BudgetState``, or
        more than one (epsilons of several budgets do not simply add up).

    Guarantee:
      Rounded up by the accountant's margin for the program's float type. At the budget's
      delta, or a larger one, never above the budget, which the steps taken are within.

    Example:
      >>> import jax, jax.numpy as jnp, optax, jaxdp
      >>> tx = jaxdp.dp_sgd(0.1, noise_multiplier=1.0, expected_batch_size=10,
      ...     key=jax.random.key(0), sampling_probability=0.01, target_epsilon=3.0, delta=1e-5)
      >>> float(jaxdp.privacy_spent(tx.init(jnp.zeros(3)), delta=1e-5))
      0.0

    References:
      Canonne, Kamath and Steinke 2020, arXiv:2004.00010, Proposition 12.
    """
    budget = budget_state(opt_state)
    if delta is None:
        log_delta: Any = budget.log_delta
    else:
        _validate.delta("delta", delta)
        log_delta = jnp.log(delta) if _validate.is_traced(delta) else math.log(float(delta))
    spent = _epsilon(budget.spent, budget.orders, budget.lines, log_delta)
    within_budget = (log_delta >= budget.log_delta) & (spent > budget.target_epsilon)
    return jnp.where(within_budget, budget.target_epsilon, spent)


def budget_state(opt_state: Any) -> BudgetState:
    """The one ``BudgetState`` inside an optimizer state."""
    nodes = jax.tree.leaves(opt_state, is_leaf=lambda node: isinstance(node, BudgetState))
    found = [node for node in nodes if isinstance(node, BudgetState)]
    if len(found) != 1:
        raise ValueError(
            f"opt_state must hold exactly one BudgetState, got {len(found)}: wrap the private "
            "chain in with_budget, or give privatize and the dp_* optimizers "
            "sampling_probability, target_epsilon and delta."
        )
    return found[0]
