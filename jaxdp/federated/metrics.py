"""What a round reports about itself, private or not."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _tree, _validate, accounting
from jaxdp.federated.cohort import CohortSampler
from jaxdp.federated.data import Cohort
from jaxdp.federated.pseudo_grad import PerClient

# Renyi orders for the epsilon of a run without a budget, which is reported and not enforced.
_ORDERS = 1.0 + np.geomspace(1e-2, 1e6, 140)


class RoundMetrics(NamedTuple):
    """What a round reports; what is marked NOT private is for the curator's eyes."""

    loss: jax.Array  # float scalar, mean over clients of their training loss. NOT private
    clipped_fraction: jax.Array  # float scalar, share of the clients clipped. NOT private
    norm: Any  # float [m], or a pytree of them: each delta's norm, 0 for padding. NOT private
    num_clients: jax.Array  # int32 scalar, clients that took part. NOT private
    signal_to_noise: jax.Array  # float scalar, norm of the sum over the noise's. NOT private
    overflowed: jax.Array  # bool scalar, whether slots ran out for some clients. NOT private
    clip_norm: Any  # float scalar or pytree: the clip norm of this round
    epsilon: jax.Array  # float scalar, spent so far at the plan's delta; inf without one, or
    # where the run began under another plan
    exhausted: jax.Array  # bool scalar, whether the next round will be refused or this one was
    # (another round's cohort, another plan's carry)
    evaluation: Any  # what ``evaluate`` returned for the params after this round; NOT private
    # if it looks at private data


def epsilon_after(
    event: accounting.Event, cohorts: CohortSampler, delta: float | None, overflow_delta: float
) -> Callable[[jax.Array], jax.Array]:
    """The epsilon of a number of rounds, by Renyi DP inside the program.

    Args:
      event: What one participation costs; its numbers may be traced.
      cohorts: The sampler, which says how many participations rounds amount to.
      delta: Of the whole guarantee, slots that overflow included; None for infinite epsilons.
      overflow_delta: What slots that overflow cost of it in one round.
    """
    if delta is None:
        return lambda number: jnp.asarray(jnp.inf)
    known = None
    if not _validate.is_traced(event):
        known = accounting.rdp(event, _ORDERS)  # now, in float64
    lost = overflow_delta / delta

    def epsilon(number):
        dtype = jnp.result_type(float)
        rdp = accounting.rdp(event, _ORDERS) if known is None else known
        count = cohorts.participations(number).astype(dtype)
        # What overflows adds up, and the rest of delta is the mechanism's; rounded down.
        left = 1 - (number.astype(dtype) * (1.00001 * lost) + 1e-6 * (lost > 0))
        log_delta = math.log(delta) + jnp.log(jnp.maximum(left, 1e-30))
        spent = jnp.asarray(rdp, dtype) * count
        bound = accounting.epsilon_from_rdp(spent, jnp.asarray(_ORDERS, dtype), log_delta)
        return jnp.where(left > 0, bound.epsilon, jnp.inf)

    return epsilon


def of_clients(
    cohort: Cohort, per_client: PerClient, clip_norm: Any, total: Any, noise_norm: Any
) -> dict[str, Any]:
    """The metrics that look at the clients. NOT private, the clip norm excepted.

    Args:
      cohort: The clients.
      per_client: What ``clipped_pseudo_grad`` reports on them.
      clip_norm: The clip norm they were clipped with.
      total: The sum without noise.
      noise_norm: The root of the expected squared norm of the noise on the sum.
    """
    finite = [jnp.isfinite(norm) for norm in jax.tree.leaves(per_client.norm)]
    counted = jnp.all(jnp.stack(finite), axis=0) & (per_client.num_examples > 0)
    clipped = jax.tree.map(
        lambda norm, threshold: _mean(~(norm <= threshold), ~cohort.is_padding),
        per_client.norm,
        clip_norm,
    )
    signal = _tree.l2_norm_bound(total).value
    return {
        "loss": _mean(per_client.loss, counted),
        "clipped_fraction": jnp.mean(jnp.stack(jax.tree.leaves(clipped))),
        "norm": per_client.norm,
        "num_clients": jnp.sum(~cohort.is_padding, dtype=jnp.int32),
        "signal_to_noise": jnp.where(noise_norm > 0, signal / noise_norm, jnp.inf),
        "overflowed": cohort.overflowed,
        "clip_norm": jax.tree.map(lambda c: jnp.asarray(c, jnp.result_type(float)), clip_norm),
    }


def _mean(values: jax.Array, counts: jax.Array) -> jax.Array:
    total = jnp.sum(values, where=counts, dtype=jnp.result_type(float))
    return total / jnp.maximum(jnp.sum(counts), 1)


def num_entries(tree: Any) -> int:
    """How many numbers a tree holds."""
    return sum(jnp.size(leaf) for leaf in jax.tree.leaves(tree))
