"""A privacy budget that fixed groups of clients spend in turn."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _control, _validate, accounting, transforms


class TurnsState(NamedTuple):
    inner_state: Any  # state of the chain inside, frozen once exhausted
    budget: transforms.BudgetState  # counts participations, not rounds
    round: jax.Array  # int32 scalar, rounds taken so far
    exhausted: jax.Array  # bool scalar, whether the next round will be refused
    period: jax.Array  # int32 scalar, rounds in a cycle, the same for the whole run


def with_budget_in_turns(
    transformation: optax.GradientTransformation,
    *,
    event: accounting.Event,
    period: int,
    target_epsilon: float,
    delta: float,
) -> optax.GradientTransformationExtraArgs:
    r"""Stops a private chain before any client would exceed its budget, groups taking turns.

    Rounds come in cycles of ``period``, in which each of as many disjoint groups of clients
    takes part once. A cycle is begun only if one participation more is affordable to every
    client, and then it may be finished; else, from there on, the update is exactly zero, the
    state inside is frozen and no noise is drawn.

    Args:
      transformation: The whole private chain.
      event: What one participation costs, of numbers (not traced).
      period: Rounds in a cycle, >= 1.
      target_epsilon: The budget of each client, > 0.
      delta: The budget's delta, in (0, 1).

    Returns:
      A transformation whose state is a ``TurnsState``; ``jaxdp.privacy_spent`` reads it.

    Raises:
      ValueError: if an argument is out of range.

    Guarantee:
      (``target_epsilon``, ``delta``)-DP for one client added or removed, if round t has clients
      of group t mod ``period`` alone, groups that do not depend on the data, and ``event`` is
      true. Solved for ahead, in float64, as by ``accounting.affordable_steps``. A state that
      began under another period takes no further step: who has taken part would not be known.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from jaxdp import accounting as acc
      >>> from jaxdp.federated.turns import with_budget_in_turns
      >>> tx = with_budget_in_turns(optax.identity(), event=acc.Gaussian(5.0), period=2,
      ...                           target_epsilon=1.0, delta=1e-5)
      >>> state, taken = tx.init(jnp.zeros(1)), []
      >>> for _ in range(5):
      ...     update, state = tx.update(jnp.ones(1), state)
      ...     taken.append(int(update[0]))
      >>> taken
      [1, 1, 0, 0, 0]

    References:
      McSherry 2009, Privacy integrated queries (parallel composition).
    """
    _validate.integer("period", period, minimum=1)
    inner = optax.with_extra_args_support(transformation)
    # What goes through the gate says whether a cycle was paid for: 1, or 0 if it was refused.
    gate = transforms.with_budget(
        optax.identity(), event=event, target_epsilon=target_epsilon, delta=delta
    )
    token = jnp.ones((), jnp.float32)

    def init(params):
        budget = gate.init(token)
        return TurnsState(
            inner.init(params),
            budget,
            jnp.zeros((), jnp.int32),
            jnp.array(budget.exhausted, copy=True),  # a buffer of its own, to be donated
            jnp.asarray(period, jnp.int32),
        )

    def update(updates, state, params=None, **extra_args):
        def begin_cycle():
            passed, budget = gate.update(token, state.budget)
            return passed > 0, budget

        def go_on():
            return ~state.exhausted, state.budget

        is_own = state.period == period
        begins = is_own & (state.round % period == 0)
        is_open, budget = _control.cond(begins, begin_cycle, go_on)

        def take_round():
            new_updates, inner_state = inner.update(
                updates, state.inner_state, params, **extra_args
            )
            number = state.round + 1
            exhausted = (number % period == 0) & budget.exhausted
            return new_updates, TurnsState(inner_state, budget, number, exhausted, state.period)

        def refuse_round():
            shapes, _ = jax.eval_shape(take_round)
            zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
            return zeros, state._replace(budget=budget, exhausted=jnp.ones((), bool))

        return _control.cond(is_own & is_open, take_round, refuse_round)

    return optax.GradientTransformationExtraArgs(init, update)
