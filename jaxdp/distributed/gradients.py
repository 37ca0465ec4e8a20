"""The clipped gradient of a batch that is split over devices."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxdp import _validate
from jaxdp.clipping import frozen
from jaxdp.clipping.api import clipped_grad
from jaxdp.distributed import sums


def sharded_clipped_grad(
    loss_fn: Callable[..., Any],
    *,
    batch_sharding: NamedSharding,
    num_shards: int | None = None,
    frozen_argnums: int | tuple[int, ...] = (),
    **options: Any,
) -> Callable[..., Any]:
    r"""Makes the function that ``clipped_grad`` makes, for a batch split over devices.

    Each device clips and sums the gradients of its own examples, by the program that a single
    device would run; then the sums are added up, the only communication there is.

    Left to itself, a compiler that is given a sharded batch splits ``clipped_grad`` too, but
    gathers per-example gradients on every device; and XLA's splitting has a fault that
    matters here: for convolutions under ``strategy="per_example"`` (the gradient of a
    kernel under ``vmap``) jaxlib 0.10.2 mixes the gradients of different examples, without
    an error. What is clipped then is no example's gradient, and nothing is guaranteed.

    Args:
      loss_fn: As for ``clipped_grad``.
      batch_sharding: A ``NamedSharding`` with a spec of one entry, the mesh axis or axes that
        the examples are split over. Give it all axes to split the examples over all
        devices, whatever the parameters are split over; axes that it leaves out are the
        compiler's to use inside the loss.
      num_shards: None for one share a device. A power of two, twice the number of devices or
        more, for the deterministic order of ``sum_over_devices``.
      frozen_argnums: As for ``clipped_grad``.
      **options: All other options of ``clipped_grad``; ``microbatch_size`` counts examples of
        one device (or shard).

    Returns:
      A function ``(params, *batch, key=None, is_padding=None)``, as from ``clipped_grad``. A
      batch that does not divide among the devices is filled up with padding. With ``key``, the
      example at place ``i`` of the whole batch has ``fold_in(key, i)``, on any device.

    Raises:
      ValueError: as ``clipped_grad`` and ``sum_over_devices``.

    Guarantee:
      That of ``clipped_grad``: each example is in one device's sum. The sum is the same on 1
      or many devices up to the rounding of additions, and of norm bounds where the
      strategy depends on the number of examples at once; with ``num_shards`` bit for bit.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
      >>> from jaxdp import distributed
      >>> mesh = Mesh(np.array(jax.devices()[:1]), "data")
      >>> split = NamedSharding(mesh, PartitionSpec("data"))
      >>> grad_fn = distributed.sharded_clipped_grad(
      ...     jnp.vdot, l2_clip_norm=1.0, batch_sharding=split)
      >>> clipped = grad_fn(jnp.zeros(2), jnp.array([[0.5, 0.0], [0.0, 8.0]]))
      >>> print(clipped.value.round(3), clipped.l2_sensitivity)
      [0.5 1. ] 1.0

    References:
      Abadi et al. 2016, arXiv:1607.00133, Algorithm 1.
    """
    places = frozen.places(frozen_argnums)
    plain = clipped_grad(loss_fn, frozen_argnums=places, **options)

    # A device does not know the places that its examples have in the whole batch: they come as
    # one more batch argument, behind the key.
    def loss_of_keyed(params, key, index, *arguments):
        return loss_fn(params, *arguments, key=jax.random.fold_in(key, index))

    keyed_places = (1, *(place + 2 for place in places))
    keyed = clipped_grad(loss_of_keyed, frozen_argnums=keyed_places, **options)

    def grad_fn(params, *arguments, key=None, is_padding=None):
        frozen.bind(loss_fn, places, arguments)  # refuses places that there are not
        batch = [a for place, a in enumerate(arguments, start=1) if place not in places]
        size = _validate.leading_axis("batch", batch)
        mask = jnp.zeros(size, bool) if is_padding is None else jnp.asarray(is_padding)
        if mask.shape != (size,) or mask.dtype != jnp.bool_:
            _validate.refuse("is_padding", is_padding, f"a bool array of shape ({size},)")
        if key is not None:
            _validate.key("key", key)
            batch.insert(0, jnp.arange(size))

        def clip(shared, rows):
            params, fixed, key = shared
            batch, mask = rows
            remaining = iter(batch)
            first = () if key is None else (key, next(remaining))
            merged = [
                fixed[place] if place in fixed else next(remaining)
                for place in range(1, len(arguments) + 1)
            ]
            grad_of_share = plain if key is None else keyed
            output = grad_of_share(params, *first, *merged, is_padding=mask)
            clipped, *extras = output if isinstance(output, tuple) else (output,)
            return clipped, extras

        fixed = {place: arguments[place - 1] for place in places}
        split = sums.sum_over_devices(clip, batch_sharding, num_shards=num_shards)
        shards = num_shards or sums.num_devices(batch_sharding)
        rows = _fill_up(batch, mask, -size % shards)
        clipped, extras = split((params, fixed, key), rows)
        extras = jax.tree.map(lambda leaf: leaf[:size], extras)
        return (clipped, *extras) if extras else clipped

    return grad_fn


def _fill_up(batch: Any, is_padding: jax.Array, missing: int) -> tuple[Any, jax.Array]:
    """The rows with copies of the last one behind them that are marked as padding."""
    if not missing:
        return batch, is_padding
    size = is_padding.shape[0]
    places = jnp.minimum(jnp.arange(size + missing), size - 1)
    # Indexing, since concatenating would count as a second use of typed keys.
    filled = jax.tree.map(lambda leaf: jnp.asarray(leaf)[places], batch)
    return filled, jnp.concatenate([is_padding, jnp.ones(missing, bool)])
