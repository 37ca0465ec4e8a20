"""A whole federated run as one scan over rounds."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import optax

from jaxdp import _validate
from jaxdp.federated.client import ClientUpdateFn
from jaxdp.federated.data import Source
from jaxdp.federated.metrics import RoundMetrics
from jaxdp.federated.plan import ClientPlan
from jaxdp.federated.round import Carry, FederatedRound, make_round

_CLIENT_UPDATE = "a function (params, client, key) -> ClientUpdate, such as local_training makes"


class Simulation(NamedTuple):
    """A finished run."""

    params: Any  # pytree, the model after the last round
    metrics: RoundMetrics  # stacked over rounds, leaves [num_rounds, ...]
    plan: ClientPlan  # what the run promises


def simulate(
    client_update: ClientUpdateFn,
    federation: Source,
    params: Any,
    key: jax.Array,
    *,
    plan: ClientPlan,
    server_optimizer: optax.GradientTransformation,
    client_chunk_size: int = 1,
    weight_cap: float | None = None,
    broadcast: Callable[[Any, Any], Any] | None = None,
    evaluate: Callable[[Any], Any] | None = None,
) -> Simulation:
    """Runs the planned rounds of private federated learning in one compiled loop.

    Each round draws its cohort, trains it, and releases the next model: ``make_round`` under
    ``jax.lax.scan``. Call it as it is, under ``jax.jit``, or under ``jax.vmap`` over keys,
    learning rates and noise multipliers (a key of its own for each run). In a compiled function,
    pass the federation as an argument: closed over, its data would be written into the program.

    Args:
      client_update: ``(params, client, key) -> ClientUpdate``, as ``local_training`` makes it.
      federation: A ``Federation`` or ``GeneratedFederation``.
      params: Pytree of float arrays, the first model; public.
      key: Scalar typed PRNG key, a new one for each run of which anything leaves the curator,
        those of a sweep too (``jax.random.split``). Runs that share a key share their noise,
        and a linear combination of two such models cancels it.
      plan: Sampler, noise, clip norm, rounds and budget, by ``make_plan``.
      server_optimizer: Any Optax optimizer; ``optax.sgd(1.0)`` is federated averaging.
      client_chunk_size: As for ``make_round``, like the arguments below.
      weight_cap: Examples from which on a client counts in full.
      broadcast: What the clients are sent in place of the params.
      evaluate: Function of the params whose result goes into every round's metrics.

    Returns:
      A ``Simulation(params, metrics, plan)``.

    Raises:
      ValueError: as ``make_round``, if an argument is of another kind, or if the federation is
        not of the sampler's size.

    Guarantee:
      All models of the run together are what ``plan`` promises, for one client with all its
      data, if no other run has the key; what several runs cost adds up. The metrics marked NOT
      private in ``RoundMetrics`` are not covered.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> federation = federated.from_clients([jnp.full((4, 2), 1.0)] * 30)
      >>> client_update = federated.local_training(
      ...     lambda w, x: 0.5 * jnp.sum((w - x) ** 2), optax.sgd(0.5), num_epochs=1, batch_size=4)
      >>> plan = federated.make_plan(federated.GroupCohorts(30, min_separation=3), num_rounds=9,
      ...     l2_clip_norm=1.0, target_epsilon=50.0, delta=1e-3)
      >>> params, metrics, plan = federated.simulate(client_update, federation, jnp.zeros(2),
      ...     jax.random.key(0), plan=plan, server_optimizer=optax.sgd(1.0))
      >>> metrics.loss.shape, bool(metrics.exhausted[-1])
      ((9,), True)

    References:
      McMahan et al. 2018, arXiv:1710.06963, Algorithm 1.
    """
    _check_arguments(client_update, federation, params, server_optimizer)
    federated_round = make_round(
        _validate.fitting("client_update", client_update, _CLIENT_UPDATE),
        server_optimizer,
        plan,
        client_chunk_size=client_chunk_size,
        weight_cap=weight_cap,
        broadcast=broadcast,
        evaluate=evaluate,
    )
    carry = federated_round.init(params, key)
    carry, metrics = run_rounds(federated_round, federation, carry, plan.num_rounds)
    return Simulation(carry.params, metrics, plan)


def _check_arguments(client_update: Any, federation: Any, params: Any, optimizer: Any) -> None:
    """Refuses each by its name and kind: swapped, they would fail far from here."""
    if not callable(client_update):
        _validate.refuse("client_update", type(client_update).__name__, _CLIENT_UPDATE)
    _check_federation(federation)
    _validate.model_params("params", params)
    _validate.optimizer("server_optimizer", optimizer)


def _check_federation(federation: Any) -> None:
    if not hasattr(federation, "cohort"):
        allowed = (
            "a Federation or a GeneratedFederation (from_clients makes one of a list of clients; "
            "a HostFederation is for stream_rounds)"
        )
        _validate.refuse("federation", type(federation).__name__, allowed)


def run_rounds(
    federated_round: FederatedRound, federation: Source, carry: Carry, num_rounds: int
) -> tuple[Carry, RoundMetrics]:
    """Runs some more rounds, each on the cohort that its sampler draws, in one loop.

    Args:
      federated_round: What ``make_round`` or ``make_local_round`` returned.
      federation: A ``Federation`` or ``GeneratedFederation``.
      carry: Where the run stands.
      num_rounds: How many rounds, >= 1.

    Returns:
      The carry after them, and their metrics, stacked.

    Raises:
      ValueError: if the federation is not of the sampler's size, or is none.

    Guarantee:
      That of the rounds.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> federation = federated.from_clients([jnp.ones((4, 2))] * 30)
      >>> client_update = federated.local_training(
      ...     lambda w, x: 0.5 * jnp.sum((w - x) ** 2), optax.sgd(0.5), num_epochs=1, batch_size=4)
      >>> plan = federated.make_plan(federated.GroupCohorts(30, min_separation=3), num_rounds=9,
      ...     l2_clip_norm=1.0, noise_multiplier=1.0)
      >>> fed = federated.make_round(client_update, optax.sgd(1.0), plan)
      >>> carry = fed.init(jnp.zeros(2), jax.random.key(0))
      >>> for _ in range(3):  # with room for a progress bar in between
      ...     carry, metrics = federated.run_rounds(fed, federation, carry, 3)
      >>> int(carry.round), metrics.loss.shape
      (9, (3,))

    References:
      McMahan et al. 2018, arXiv:1710.06963, Algorithm 1.
    """
    _check_federation(federation)
    num_rounds = _validate.integer("num_rounds", num_rounds, minimum=1)

    def body(carry, _):
        return federated_round.round(carry, federated_round.sample(federation, carry))

    return jax.lax.scan(body, carry, length=num_rounds)
