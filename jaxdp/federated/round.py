"""One round of private federated learning, as a pure function of its carry and its cohort."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from jaxdp import _random, _validate, transforms
from jaxdp.federated import _streams, metrics, terms
from jaxdp.federated import plan as planning
from jaxdp.federated.client import ClientUpdateFn, widened
from jaxdp.federated.data import Cohort, Source
from jaxdp.federated.metrics import RoundMetrics
from jaxdp.federated.plan import AdaptiveClip, ClientPlan
from jaxdp.federated.pseudo_grad import clipped_pseudo_grad
from jaxdp.federated.terms import Terms
from jaxdp.federated.turns import with_budget_in_turns


class Carry(NamedTuple):
    """Where a federated run stands: what a round reads and returns."""

    params: Any  # pytree, the model: all that is meant to be released
    opt_state: Any  # noise, clip norm, server optimizer and budget
    key: jax.Array  # scalar PRNG key, fixed for the run
    round: jax.Array  # int32 scalar, rounds so far, those that the budget refused included
    terms: Terms  # of the plan that the run began under


class FederatedRound(NamedTuple):
    """A federated run as pure functions, with the plan that they keep."""

    init: Callable[[Any, jax.Array], Carry]  # (params, key) -> carry
    sample: Callable[[Source, Carry], Cohort]  # (federation, carry) -> the round's cohort
    round: Callable[[Carry, Cohort], tuple[Carry, RoundMetrics]]
    plan: Any  # what the rounds promise: a ClientPlan, or a LocalPlan


def make_round(
    client_update: ClientUpdateFn,
    server_optimizer: optax.GradientTransformation,
    plan: ClientPlan,
    *,
    client_chunk_size: int = 1,
    weight_cap: float | None = None,
    broadcast: Callable[[Any, Any], Any] | None = None,
    evaluate: Callable[[Any], Any] | None = None,
    wrap_sum: Callable[[Any], Any] | None = None,
) -> FederatedRound:
    r"""Makes the round of DP-FedAvg and its relatives from a client update and an optimizer.

    A round sends the model to its cohort, clips and adds up the deltas, adds noise, divides by
    the *expected* size of the cohort, and gives minus that to the server's optimizer as a
    gradient: ``optax.sgd(1.0)`` is FedAvg, ``optax.sgd(1.0, momentum=0.9)`` FedAvgM,
    ``optax.adam`` FedAdam, ``optax.yogi`` FedYogi. Pure functions to jit and scan at will:

    - ``init(params, key) -> carry``: one key, one run.
    - ``sample(federation, carry) -> cohort``: who takes part in the next round, by the plan's
      sampler; a function of the carry's key and round.
    - ``round(carry, cohort) -> (carry, metrics)``. Once the budget is gone it changes neither
      the model nor the state of noise and optimizer. A cohort that was drawn for another round
      gives the carry back as it was, and so does, where a target is enforced, the carry of
      another plan (sampler, noise or budget).

    Args:
      client_update: ``(params, client, key) -> ClientUpdate``, as ``local_training`` makes it.
      server_optimizer: Any Optax optimizer; all of it is post-processing.
      plan: Sampler, noise, clip norm and budget, by ``make_plan``.
      client_chunk_size: Clients that train side by side; see ``clipped_pseudo_grad``.
      weight_cap: Examples from which on a client counts in full; see ``clipped_pseudo_grad``.
      broadcast: What the clients are sent in place of the params, ``(params, opt_state) ->
        pytree``: a function of what has been released, such as a server's momentum.
      evaluate: Function of the params whose result goes into every round's metrics, such as
        the accuracy on public data.
      wrap_sum: What to make of the sum over clients, the function that ``clipped_pseudo_grad``
        returned, before it is used: ``lambda sum_fn: distributed.sharded_pseudo_grad(sum_fn,
        sharding)`` splits a cohort over devices. Each client must stay in one share.

    Returns:
      A ``FederatedRound(init, sample, round, plan)``.

    Raises:
      ValueError: if an argument is out of range; in ``round``, if a cohort was not drawn by
        the plan's sampler, or for another round than the carry's (where both are known).

    Guarantee:
      All models together are what the plan promises, for one client with all its data, if
      the cohort of each round is the one that ``sample`` draws, rounds follow one
      another, and the client update reads its own client alone. Where no target is enforced
      a plan can go on from another one's carry; what was spent is then not known, and
      reported as infinite. The metrics marked NOT private are for the curator's eyes.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> client_update = federated.local_training(
      ...     lambda w, x: 0.5 * jnp.sum((w - x) ** 2), optax.sgd(0.5), num_epochs=1, batch_size=4)
      >>> federation = federated.from_clients([jnp.ones((4, 2))] * 30)
      >>> plan = federated.make_plan(federated.GroupCohorts(30, min_separation=3), num_rounds=6,
      ...     l2_clip_norm=1.0, target_epsilon=5.0, delta=1e-3)
      >>> fed = federated.make_round(client_update, optax.sgd(1.0), plan)
      >>> carry = fed.init(jnp.zeros(2), jax.random.key(0))
      >>> carry, metrics = jax.jit(fed.round)(carry, fed.sample(federation, carry))
      >>> int(metrics.num_clients), bool(metrics.exhausted), float(metrics.epsilon) < 5.0
      (10, False, True)

    References:
      McMahan et al. 2018, arXiv:1710.06963, Algorithm 1; Reddi et al. 2021, arXiv:2003.00295
      (server optimizers); Andrew et al. 2021, arXiv:1905.03871 (adaptive clipping).
    """
    _validate.function("client_update", client_update)
    if not isinstance(plan, ClientPlan):
        _validate.refuse("plan", plan, "a ClientPlan, as make_plan returns it")
    plan = dataclasses.replace(plan)  # checked again: its numbers may have been mapped over
    if plan.target_epsilon is not None and _validate.is_traced(plan.noise_multiplier):
        _validate.refuse("plan", plan, "of known numbers, where a target is enforced")
    optional = {"broadcast": broadcast, "evaluate": evaluate, "wrap_sum": wrap_sum}
    for name, function in optional.items():
        if function is not None:
            _validate.function(name, function)
    adaptive = plan.l2_clip_norm if isinstance(plan.l2_clip_norm, AdaptiveClip) else None
    epsilon_and_exhausted = _accountant(plan)

    def chain(key):
        return _chain(plan, adaptive, server_optimizer, key)

    def init(params, key):
        _validate.key("key", key)
        params = jax.tree.map(jnp.asarray, _validate.float_tree("params", params))
        # The optimizer will see float32 from the first round on.
        opt_state = chain(key).init(widened(params))
        start = jnp.zeros((), jnp.int32)
        return Carry(params, opt_state, _random.copy(key), start, terms.of_plan(plan))

    def sample(federation, carry):
        return plan.cohorts.sample(federation, carry.key, carry.round)

    def round(carry, cohort):
        is_current = terms.is_current(cohort, plan.cohorts, carry.round)
        is_own = terms.hold(carry.terms, plan)
        is_taken = is_current if plan.target_epsilon is None else is_current & is_own
        norm = transforms.clip_norm(carry.opt_state) if adaptive else plan.l2_clip_norm
        sum_clients = clipped_pseudo_grad(
            client_update,
            l2_clip_norm=norm,
            client_chunk_size=client_chunk_size,
            weight_cap=weight_cap,
        )
        if wrap_sum is not None:
            sum_clients = wrap_sum(sum_clients)
        sent = carry.params if broadcast is None else broadcast(carry.params, carry.opt_state)
        round_key = _streams.of_round(carry.key, _streams.CLIENT, carry.round)
        clipped, per_client = sum_clients(sent, cohort, round_key)
        extra = {}
        if adaptive:
            # A client without data adds nothing to the counts either.
            is_absent = cohort.is_padding | (per_client.num_examples == 0)
            extra["within"] = transforms.count_within(per_client.norm, norm, is_absent)
        updates, opt_state = chain(carry.key).update(
            clipped, carry.opt_state, carry.params, **extra
        )
        params = optax.apply_updates(carry.params, updates)
        after = Carry(
            params,
            opt_state,
            carry.key,
            carry.round + 1,
            terms.after_round(carry.terms, is_own),
        )
        after = terms.select(is_taken, after, carry)
        noise_norm = (
            _delta_multiplier(plan, adaptive)
            * clipped.l2_sensitivity
            * math.sqrt(metrics.num_entries(clipped.value))
        )
        report = metrics.of_clients(cohort, per_client, norm, clipped.value, noise_norm)
        epsilon, exhausted = epsilon_and_exhausted(after.opt_state, after.round)
        return after, RoundMetrics(
            epsilon=jnp.where(is_own, epsilon, jnp.inf),
            exhausted=exhausted | ~is_taken,
            evaluation=None if evaluate is None else evaluate(after.params),
            **report,
        )

    return FederatedRound(init, sample, round, plan)


def _accountant(plan: ClientPlan) -> Callable[[Any, jax.Array], tuple[jax.Array, jax.Array]]:
    """What was spent and whether all of it is, from the state and the number of rounds."""
    if plan.target_epsilon is not None:
        return lambda opt_state, number: (transforms.privacy_spent(opt_state), opt_state.exhausted)
    epsilon_after = metrics.epsilon_after(
        plan.cohorts.event(plan.noise_multiplier),
        plan.cohorts,
        plan.delta,
        plan.cohorts.overflow_delta(1),
    )
    return lambda opt_state, number: (epsilon_after(number), jnp.zeros((), bool))


def _delta_multiplier(plan: ClientPlan, adaptive: AdaptiveClip | None) -> Any:
    """The noise multiplier of the deltas, once the counts have had their share."""
    if adaptive is None:
        return plan.noise_multiplier
    return transforms.split_noise_multiplier(plan.noise_multiplier, adaptive.count_noise_multiplier)


def _chain(
    plan: ClientPlan,
    adaptive: AdaptiveClip | None,
    server_optimizer: optax.GradientTransformation,
    key: jax.Array,
) -> optax.GradientTransformationExtraArgs:
    key = jax.random.fold_in(key, _streams.SERVER)
    expected = plan.cohorts.expected_cohort_size
    links: list[optax.GradientTransformation] = [
        transforms.add_gaussian_noise(_delta_multiplier(plan, adaptive), key=key),
        transforms.scale_by_batch_size(expected),
        server_optimizer,
    ]
    if adaptive is not None:
        first = transforms.adaptive_clip_norm(
            adaptive.initial_clip_norm,
            target_quantile=adaptive.target_quantile,
            learning_rate=adaptive.learning_rate,
            count_noise_multiplier=adaptive.count_noise_multiplier,
            expected_batch_size=expected,
            key=key,
        )
        links.insert(0, first)
    tx = optax.chain(*links)
    if plan.target_epsilon is None or plan.delta is None:
        return optax.with_extra_args_support(tx)
    event = plan.cohorts.event(float(plan.noise_multiplier))
    delta = planning.mechanism_delta(plan.cohorts, plan.delta)
    budget: dict[str, Any] = {"event": event, "target_epsilon": plan.target_epsilon, "delta": delta}
    if plan.cohorts.period == 1:
        return transforms.with_budget(tx, **budget)
    return with_budget_in_turns(tx, period=plan.cohorts.period, **budget)
