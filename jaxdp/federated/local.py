"""Local privacy: every client adds noise to its own delta, and the server need not be trusted."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdp import _random, _validate, accounting, noise
from jaxdp.clipping import rescale
from jaxdp.federated import _streams, metrics, terms
from jaxdp.federated.client import ClientUpdateFn, widened
from jaxdp.federated.cohort import CohortSampler, keep
from jaxdp.federated.metrics import RoundMetrics
from jaxdp.federated.plan import NumbersAsLeaves, as_drawn, check_run, plain
from jaxdp.federated.pseudo_grad import PerClient, check_key, clip, sum_over_clients
from jaxdp.federated.round import Carry, FederatedRound


@jax.tree_util.register_pytree_with_keys_class
@dataclasses.dataclass(frozen=True)
class LocalPlan(NumbersAsLeaves):
    """What a run under local privacy promises each client that takes part.

    Args:
      noise_multiplier: z, each client's noise standard deviation over twice the clip norm, which
        is how far apart the deltas of two data sets can be; >= 0, and it may be traced.
      l2_clip_norm: L2 bound on one client's delta, or a pytree prefix of them.
      cohorts: The sampler.
      num_rounds: Rounds that were planned, >= 1.
      delta: Of the guarantee, in (0, 1); None for a run that nobody accounts for.

    Raises:
      ValueError: if an argument is out of range.

    Example:
      >>> from jaxdp import federated
      >>> plan = federated.LocalPlan(4.0, 1.0, federated.GroupCohorts(1000, min_separation=10),
      ...                            num_rounds=20, delta=1e-5)
      >>> round(plan.epsilon, 2)
      1.36
    """

    noise_multiplier: Any
    l2_clip_norm: Any
    cohorts: CohortSampler
    num_rounds: int
    delta: float | None

    def __post_init__(self):
        check_run(self.cohorts, self.num_rounds, self.delta)
        keep(self, num_rounds=int(self.num_rounds), delta=plain(self.delta))
        rescale.clip_rule(self.l2_clip_norm, None, "clip")
        # What is drawn is what is accounted for.
        keep(self, noise_multiplier=as_drawn(self.noise_multiplier))

    @property
    def event(self) -> accounting.Event:
        """All messages of a client that takes part as often as it can."""
        return accounting.Repeated(
            accounting.Gaussian(self.noise_multiplier),
            self.cohorts.participations(self.num_rounds),
        )

    @property
    def epsilon(self) -> float:
        """The local epsilon, of all that one client sends, whoever reads it."""
        return math.inf if self.delta is None else accounting.epsilon(self.event, self.delta)


def make_local_round(
    client_update: ClientUpdateFn,
    server_optimizer: optax.GradientTransformation,
    plan: LocalPlan,
    *,
    client_chunk_size: int = 1,
    evaluate: Callable[[Any], Any] | None = None,
) -> FederatedRound:
    r"""Makes the round of federated averaging in which each client protects itself.

    Client :math:`i` sends :math:`d_i \min(1, C/\|d_i\|) + \mathcal{N}(0, (2 C z)^2 I)`; the server
    adds up, divides by the expected size of the cohort, and takes an optimizer's step. A
    client without data, or with a delta that is not finite, sends noise alone, as it must.

    Args:
      client_update: ``(params, client, key) -> ClientUpdate``.
      server_optimizer: Any Optax optimizer; all of it is post-processing.
      plan: Noise, clip norm and sampler, a ``LocalPlan``.
      client_chunk_size: Clients that train side by side.
      evaluate: Function of the params whose result goes into every round's metrics.

    Returns:
      A ``FederatedRound(init, sample, round, plan)``; run it with ``run_rounds``.

    Raises:
      ValueError: if an argument is out of range; in ``round``, if a cohort was not drawn by
        the plan's sampler, or for another round than the carry's (where both are known; else
        the carry comes back as it was).

    Guarantee:
      ``plan.epsilon``: local, for one client's whole data set replaced by any other, against
      whoever reads its messages. It counts participations and claims nothing from
      sampling: that a client takes part is no secret. The metrics marked NOT private are
      computed from what never leaves the clients, and are for the simulation alone.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> client_update = federated.local_training(
      ...     lambda w, x: 0.5 * jnp.sum((w - x) ** 2), optax.sgd(0.5), num_epochs=1, batch_size=4)
      >>> federation = federated.from_clients([jnp.ones((4, 2))] * 30)
      >>> plan = federated.LocalPlan(
      ...     2.0, 1.0, federated.GroupCohorts(30, min_separation=3), num_rounds=6, delta=1e-3)
      >>> fed = federated.make_local_round(client_update, optax.sgd(1.0), plan)
      >>> carry = fed.init(jnp.zeros(2), jax.random.key(0))
      >>> carry, metrics = federated.run_rounds(fed, federation, carry, plan.num_rounds)
      >>> bool(metrics.epsilon[-1] < 1.2 * plan.epsilon)  # in the program by Renyi DP
      True

    References:
      Kasiviswanathan et al. 2011, What can we learn privately?; Geyer, Klein and Nabi 2017,
      arXiv:1712.07557.
    """
    _validate.function("client_update", client_update)
    if not isinstance(plan, LocalPlan):
        _validate.refuse("plan", plan, "a LocalPlan")
    _validate.integer("client_chunk_size", client_chunk_size, minimum=1)
    rule = rescale.clip_rule(plan.l2_clip_norm, None, "clip")
    expected = plan.cohorts.expected_cohort_size
    event = accounting.Gaussian(plan.noise_multiplier)
    # Whether a client has a slot does not depend on anyone's data: nothing overflows here.
    epsilon_after = metrics.epsilon_after(event, plan.cohorts, plan.delta, overflow_delta=0.0)

    def init(params, key):
        _validate.key("key", key)
        params = jax.tree.map(jnp.asarray, _validate.float_tree("params", params))
        opt_state = server_optimizer.init(widened(params))
        start = jnp.zeros((), jnp.int32)
        return Carry(params, opt_state, _random.copy(key), start, terms.of_plan(plan))

    def sample(federation, carry):
        return plan.cohorts.sample(federation, carry.key, carry.round)

    def round(carry, cohort):
        is_taken = terms.is_current(cohort, plan.cohorts, carry.round)
        check_key(carry.key, client_chunk_size)
        stddev = 2 * plan.noise_multiplier * rescale.sensitivities(rule)[0]
        train_key = _streams.of_round(carry.key, _streams.CLIENT, carry.round)
        noise_key = _streams.of_round(carry.key, _streams.LOCAL_NOISE, carry.round)

        def train(client, client_id):
            update = client_update(carry.params, client, _streams.of_client(train_key, client_id))
            own = noise.gaussian(noise_key, client_id, update.delta)
            return update, jax.tree.map(lambda z: stddev.astype(z.dtype) * z, own)

        def contribute(results, sizes, is_absent):
            updates, noises = results
            rescale.check_structure(rule, updates.delta)
            total, norm = clip(rule, updates.delta, is_absent | (sizes == 0), None)

            def message(clipped, noise_rows):
                there = ~is_absent.reshape(-1, *(1,) * (noise_rows.ndim - 1))
                zero = jnp.zeros((), noise_rows.dtype)
                return clipped + jnp.sum(jnp.where(there, noise_rows, zero), axis=0)

            report = jax.tree.map(
                lambda leaf: jnp.where(is_absent, jnp.zeros((), leaf.dtype), leaf),
                PerClient(norm, updates.loss, sizes),
            )
            return (total, jax.tree.map(message, total, noises)), report

        (exact, total), per_client = sum_over_clients(train, contribute, cohort, client_chunk_size)
        mean = jax.tree.map(lambda leaf: -leaf / expected, total)
        updates, opt_state = server_optimizer.update(mean, carry.opt_state, carry.params)
        params = optax.apply_updates(carry.params, updates)
        is_own = terms.hold(carry.terms, plan)
        own_terms = terms.after_round(carry.terms, is_own)
        after = Carry(params, opt_state, carry.key, carry.round + 1, own_terms)
        after = terms.select(is_taken, after, carry)
        clients = jnp.sum(~cohort.is_padding)
        noise_norm = stddev * jnp.sqrt(clients * jnp.float32(metrics.num_entries(exact)))
        report = metrics.of_clients(cohort, per_client, plan.l2_clip_norm, exact, noise_norm)
        return after, RoundMetrics(
            epsilon=jnp.where(is_own, epsilon_after(after.round), jnp.inf),
            exhausted=~is_taken,
            evaluation=None if evaluate is None else evaluate(after.params),
            **report,
        )

    return FederatedRound(init, sample, round, plan)
