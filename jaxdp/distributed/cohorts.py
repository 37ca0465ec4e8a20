"""The clipped sum of a cohort whose clients are split over devices."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from jaxdp import _validate
from jaxdp.distributed import sums

# What a cohort has for each slot.
_SLOTS = ("client_ids", "starts", "sizes", "is_padding")


def sharded_pseudo_grad(
    pseudo_grad_fn: Callable[[Any, Any, jax.Array], tuple[Any, Any]],
    cohort_sharding: NamedSharding,
    *,
    num_shards: int | None = None,
) -> Callable[[Any, Any, jax.Array], tuple[Any, Any]]:
    """Splits the clients of a cohort over devices, which train side by side.

    Each device runs the loop over its own clients; then the clipped sums are added up. Slots
    are dealt out in turn, so that the padding at a cohort's end is shared evenly.

    Args:
      pseudo_grad_fn: ``(params, cohort, key) -> (ClippedSum, PerClient)``, as
        ``federated.clipped_pseudo_grad`` makes it.
      cohort_sharding: A ``NamedSharding`` with a spec of one entry, the mesh axis or axes to
        split the clients over. The federation's rows are on every device.
      num_shards: None for one share a device. A power of two, twice the number of devices or
        more, for the deterministic order of ``sum_over_devices``.

    Returns:
      A function like the given one, of the whole cohort.

    Raises:
      ValueError: as ``sum_over_devices``.

    Guarantee:
      That of ``pseudo_grad_fn``: each client is on one device, and trains with the same key
      wherever it is. The sum is the same on 1 or many devices up to the rounding of
      additions; with ``num_shards`` bit for bit.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np, optax
      >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
      >>> from jaxdp import distributed, federated
      >>> client_update = federated.local_training(
      ...     lambda w, x: 0.5 * jnp.sum((w - x) ** 2), optax.sgd(1.0), num_epochs=1, batch_size=4)
      >>> federation = federated.from_clients([jnp.full((2, 1), 0.5), jnp.full((3, 1), -9.0)])
      >>> mesh = Mesh(np.array(jax.devices()[:1]), "clients")
      >>> split = NamedSharding(mesh, PartitionSpec("clients"))
      >>> sum_fn = distributed.sharded_pseudo_grad(
      ...     federated.clipped_pseudo_grad(client_update, l2_clip_norm=1.0), split)
      >>> clipped, _ = sum_fn(jnp.zeros(1), federation.cohort(jnp.arange(2)), jax.random.key(0))
      >>> print(clipped.value.round(2), clipped.l2_sensitivity)
      [0.5] 1.0

    References:
      McMahan et al. 2018, arXiv:1710.06963, Algorithm 1.
    """
    _validate.function("pseudo_grad_fn", pseudo_grad_fn)

    def split_fn(params, cohort, key):
        slots = {name: getattr(cohort, name) for name in _SLOTS}
        size = _validate.leading_axis("cohort", slots)
        shards = num_shards or sums.num_devices(cohort_sharding)
        turns = -(-size // shards)
        # Shard s has the slots s, s + shards, s + 2 shards, ...; those past the end are padding.
        dealt = np.arange(turns * shards).reshape(turns, shards).T.reshape(-1)
        rows = jax.tree.map(lambda leaf: leaf[np.minimum(dealt, size - 1)], slots)
        rows["is_padding"] |= dealt >= size

        def clip(shared, rows):
            params, source, overflowed, key = shared
            share = dataclasses.replace(cohort, source=source, overflowed=overflowed, **rows)
            return pseudo_grad_fn(params, share, key)

        split = sums.sum_over_devices(clip, cohort_sharding, num_shards=num_shards)
        clipped, per_client = split((params, cohort.source, cohort.overflowed, key), rows)
        places = np.argsort(dealt)[:size]
        return clipped, jax.tree.map(lambda leaf: leaf[places], per_client)

    return split_fn
