"""The clipped sum of a cohort's model deltas, as a ClippedSum over clients."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _tree, _validate
from jaxdp.clipping import rescale
from jaxdp.clipping.clipped_sum import ClippedSum
from jaxdp.federated import _streams
from jaxdp.federated.client import ClientUpdate, ClientUpdateFn
from jaxdp.federated.data import Cohort
from jaxdp.federated.mime import MimeSum


class PerClient(NamedTuple):
    """What is known about single clients of a cohort. **NOT private.**

    Args:
      norm: Each client's delta before clipping, ``[m]`` or a pytree of such arrays shaped like
        the clip norm: an upper bound within 3e-5 of the true norm. Not finite for a client
        that is left out, zero for padding and for clients without data.
      loss: Mean training loss, ``[m]``, zero for padding.
      num_examples: int32 ``[m]``, zero for padding.
    """

    norm: Any
    loss: jax.Array
    num_examples: jax.Array


def clipped_pseudo_grad(
    client_update: ClientUpdateFn,
    *,
    l2_clip_norm: Any,
    client_chunk_size: int = 1,
    weight_cap: float | None = None,
) -> Callable[[Any, Cohort, jax.Array], tuple[ClippedSum, PerClient]]:
    r"""Makes a function that sums the clipped model deltas of a cohort's clients.

    With :math:`d_i` the delta of client :math:`i`, the sum is the pseudo-gradient

    .. math:: -\sum_i w_i \, d_i \min(1, C / \|d_i\|), \qquad w_i = 1 \text{ or } \min(n_i/N, 1)

    so that a private chain for gradients, such as ``jaxdp.dp_adam``, is a federated server, and
    ``optax.sgd(1.0)`` behind the noise is federated averaging.

    Args:
      client_update: ``(params, client, key) -> ClientUpdate``, as ``local_training`` makes it.
        Its delta must be computed from the rows that ``client.take`` gives, and from nothing
        that another client has.
      l2_clip_norm: The most that one client adds to the sum in L2 norm, in the unit of the
        parameters, in [1e-30, 1e30]; or a pytree prefix of the delta: each subtree is then
        clipped by itself to its own norm. Numbers may be traced.
      client_chunk_size: Clients that train side by side under ``vmap``. One after the other
        (1) is the fastest on CPU, and its cost follows each client's real size. Larger chunks
        serve accelerators: all clients of a chunk then take as many local steps as its largest
        needs, of ``batch_size`` rows each, so that nobody's rounding (which training amplifies)
        depends on who else is in the chunk. Keys must then be of the default kind.
      weight_cap: The number N of examples from which on a client counts in full, from 1 to
        2**31; None gives every client the weight 1. A client with fewer counts in proportion.

    Returns:
      A pure function ``(params, cohort, key) -> (ClippedSum, PerClient)`` with sums in float32
      or wider. The key is the round's: client ``c`` trains with ``fold_in(key, c)``, wherever
      in the cohort it stands. Padding slots cost nothing.

    Raises:
      ValueError: if an argument is out of range, the clip norm is not a prefix of the delta, or
        clients train side by side with keys of a kind that ``vmap`` draws differently from.

    Guarantee:
      One client's contribution has at most the sensitivity's norm, for neighbours that differ
      by adding or removing one client with all its data: weights are at most 1 and multiply
      what is clipped already. A delta that is not finite, a client without data, padding and an
      empty cohort contribute exactly zero. Divide by a public number, the expected size of the
      cohort, never by the sum of the weights. A traced clip norm out of range makes the sum
      zero and the sensitivity NaN.

    Example:
      >>> import jax, jax.numpy as jnp, optax
      >>> from jaxdp import federated
      >>> loss_fn = lambda w, x: 0.5 * jnp.sum((w - x) ** 2)
      >>> client_update = federated.local_training(
      ...     loss_fn, optax.sgd(1.0), num_epochs=1, batch_size=4)
      >>> federation = federated.from_clients([jnp.full((2, 1), 0.5), jnp.full((3, 1), -9.0)])
      >>> cohort = federation.cohort(jnp.array([0, 1]))
      >>> sum_fn = federated.clipped_pseudo_grad(client_update, l2_clip_norm=1.0)
      >>> clipped, per_client = sum_fn(jnp.zeros(1), cohort, jax.random.key(0))
      >>> print(clipped.value.round(2), clipped.l2_sensitivity, per_client.num_examples)
      [0.5] 1.0 [2 3]

    References:
      McMahan et al. 2018, arXiv:1710.06963, Algorithm 1 (with bounded weights).
    """
    _validate.function("client_update", client_update)
    rule = rescale.clip_rule(l2_clip_norm, None, "clip")
    _validate.integer("client_chunk_size", client_chunk_size, minimum=1)
    if weight_cap is not None:
        if _validate.is_traced(weight_cap):
            # Its sign could not be checked, and a weight must not leave [0, 1].
            _validate.refuse("weight_cap", weight_cap, "a number, not a traced value")
        if not 1 <= _validate.positive("weight_cap", weight_cap) <= 2**31:
            _validate.refuse("weight_cap", weight_cap, "a number from 1 to 2**31")

    def pseudo_grad_fn(params, cohort, key):
        check_key(key, client_chunk_size)

        def contribute(updates: ClientUpdate, sizes, is_absent):
            negated = jax.tree.map(jnp.negative, updates.delta)
            _validate.float_tree("client_update's delta", negated)
            rescale.check_structure(rule, negated)
            if isinstance(negated, MimeSum) and not isinstance(l2_clip_norm, MimeSum):
                allowed = (
                    "mime(...).l2_clip_norm: two fixed norms, since the groups are clipped apart"
                )
                _validate.refuse("l2_clip_norm", l2_clip_norm, allowed)
            is_absent |= sizes == 0
            weights = None
            if weight_cap is not None:
                # By the cohort's sizes, whatever a client claims; at most 1.
                weights = jnp.minimum(jnp.where(is_absent, 0, sizes) / jnp.float32(weight_cap), 1)
            total, norm = clip(rule, negated, is_absent, weights)
            report = PerClient(norm, updates.loss, sizes)
            return total, jax.tree.map(
                lambda leaf: jnp.where(is_absent, jnp.zeros((), leaf.dtype), leaf), report
            )

        def train(client, client_id):
            return client_update(params, client, _streams.of_client(key, client_id))

        total, per_client = sum_over_clients(train, contribute, cohort, client_chunk_size)
        return ClippedSum(total, *rescale.sensitivities(rule)), per_client

    return pseudo_grad_fn


def clip(
    rule: rescale.ClipRule, stacked: Any, is_absent: jax.Array, weights: jax.Array | None
) -> tuple[Any, Any]:
    """The weighted sum of clipped rows, and their norms before clipping."""
    treedef: Any = jax.tree.structure(rule.norms)
    rows = jax.tree.map(_tree.rows, stacked)
    subtrees = treedef.flatten_up_to(rows)
    bounds = [_tree.l2_norm_bounds(subtree) for subtree in subtrees]
    shrinks, norms = rescale.shrink(rule, bounds, is_absent)

    def add_up(shrink, leaf):
        clipped = rescale.scaled(shrink, leaf)
        if weights is not None:
            # A weight is 1, or leaves room for the rounding of this product.
            clipped = _tree.flush(clipped * weights[:, None], clipped.dtype)
        return jnp.sum(clipped, axis=0)

    sums = [
        jax.tree.map(lambda leaf, shrink=shrink: add_up(shrink, leaf), subtree)
        for shrink, subtree in zip(shrinks, subtrees, strict=True)
    ]
    return jax.tree.map(
        lambda total, leaf: total.reshape(leaf.shape[1:]), treedef.unflatten(sums), stacked
    ), norms


def check_key(key: jax.Array, client_chunk_size: int) -> None:
    """Refuses a key of a round with which clients side by side would share their draws."""
    _validate.key("key", key)
    kind = jax.random.key_impl(key)
    # Under vmap the others draw for all from the first client's key.
    if client_chunk_size > 1 and kind != "threefry2x32":
        _validate.refuse("key", f"a key of {kind}", "of threefry2x32 where client_chunk_size > 1")


def sum_over_clients(
    train: Callable[[Any, jax.Array], Any],
    contribute: Callable[[Any, jax.Array, jax.Array], tuple[Any, Any]],
    cohort: Cohort,
    client_chunk_size: int,
) -> tuple[Any, Any]:
    """Trains the clients of a cohort chunk by chunk, and adds up what they contribute.

    Args:
      train: Function of a client and its id, to a pytree of arrays.
      contribute: Function of stacked results ``[chunk]``, the clients' sizes ``[chunk]``, and a
        bool ``[chunk]``, true for those that count for nothing; returns what to add, and a
        report ``[chunk]`` on each.
      cohort: The clients.
      client_chunk_size: Clients to a chunk.

    Returns:
      The sum, and the reports ``[m]`` in the cohort's order, zero for padding.
    """
    (slots,) = cohort.client_ids.shape
    chunk = min(client_chunk_size, max(slots, 1))
    missing = -slots % chunk
    # Those of a size side by side, largest first; padding last, and never reached.
    order = jnp.argsort(-jnp.where(cohort.is_padding, -1, cohort.sizes), stable=True)
    order = jnp.pad(order, (0, missing), constant_values=slots).astype(jnp.int32)
    num_clients = jnp.sum(~cohort.is_padding, dtype=jnp.int32)

    def run(number):
        places = jax.lax.dynamic_slice(order, (number * chunk,), (chunk,))
        here = number * chunk + jnp.arange(chunk, dtype=jnp.int32) < num_clients
        places = jnp.where(here, places, slots)  # past the end, so that nothing is written
        inside = jnp.minimum(places, max(slots - 1, 0))
        if client_chunk_size == 1:
            update = train(cohort.client(inside[0]), cohort.client_ids[inside[0]])
            updates = jax.tree.map(lambda leaf: leaf[None], update)
        else:
            loop_size = jnp.max(jnp.where(here, cohort.sizes[inside], 0))
            one = lambda slot: train(cohort.client(slot, loop_size), cohort.client_ids[slot])  # noqa: E731
            updates = jax.vmap(one)(inside)
        return places, *contribute(updates, cohort.sizes[inside], ~here)

    def body(number, carry):
        total, reports = carry
        places, more, report = run(number)
        total = jax.tree.map(jnp.add, total, more)
        return total, jax.tree.map(lambda a, b: a.at[places].set(b, mode="drop"), reports, report)

    if slots == 0:
        _validate.refuse("cohort", "no slots", "of at least one slot, which may be padding")
    _, total, report = jax.eval_shape(run, jnp.zeros((), jnp.int32))
    zeros = (
        jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), total),
        jax.tree.map(lambda leaf: jnp.zeros((slots, *leaf.shape[1:]), leaf.dtype), report),
    )
    return jax.lax.fori_loop(0, (num_clients + chunk - 1) // chunk, body, zeros)
