"""Sums over rows that are split over devices, the same on any number of them if need be."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from jaxdp import _validate
from jaxdp.clipping.clipped_sum import ClippedSum


def _shard_map(function, mesh, in_specs, out_specs, axes: frozenset[str]):
    """``jax.shard_map`` over some axes of the mesh, without the check of replication.

    With the check, differentiating in a device's share would add up the gradients of all
    devices (the parameters are the same on each) before they are clipped.
    """
    if hasattr(jax, "shard_map"):
        return jax.shard_map(
            function,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=axes,
            check_vma=False,
        )
    from jax.experimental import shard_map

    older: Any = shard_map.shard_map
    auto = frozenset(mesh.axis_names) - axes
    return older(function, mesh, in_specs, out_specs, check_rep=False, auto=auto)


def _refuse_older_partitioner() -> None:
    # Seen in jaxlib 0.6.0: inside a loop, every device was given what the first one sorted.
    if not getattr(jax.config, "jax_use_shardy_partitioner", True):
        raise ValueError(
            "jax_use_shardy_partitioner must be True to split examples over devices, got False: "
            "the older partitioner mixes up what different devices sort, and so the examples. "
            "Newer JAX has it on; else jax.config.update('jax_use_shardy_partitioner', True)."
        )


def _split_axes(batch_sharding: Any) -> tuple[str, ...]:
    """The mesh axes that the examples are split over."""
    spec = tuple(batch_sharding.spec) if isinstance(batch_sharding, NamedSharding) else ()
    axes = (spec[0],) if spec and isinstance(spec[0], str) else spec[:1] and spec[0]
    if not axes or any(spec[1:]):
        allowed = "a NamedSharding of one axis, as NamedSharding(mesh, PartitionSpec('data'))"
        _validate.refuse("batch_sharding", batch_sharding, allowed)
    return tuple(axes)


def num_devices(batch_sharding: NamedSharding) -> int:
    """How many shares the rows are split into."""
    return math.prod(batch_sharding.mesh.shape[axis] for axis in _split_axes(batch_sharding))


def _tree_sum(parts: jax.Array) -> jax.Array:
    """The sum over the leading axis, a power of two long, in the order of a binary tree."""
    while parts.shape[0] > 1:
        parts = parts[0::2] + parts[1::2]
    return parts[0]


def _butterfly_sum(part: jax.Array, axes: tuple[str, ...], size: int) -> jax.Array:
    """The sum over devices in the order of the same tree, whatever their number."""
    step = 1
    while step < size:
        pairs = [(device, device ^ step) for device in range(size)]
        part = part + jax.lax.ppermute(part, axes, pairs)
        step *= 2
    return part


def _in_turn(function: Callable[..., Any], shared: Any, rows: Any, num_shards: int) -> Any:
    """Calls the function on one shard of the rows after the other, results stacked.

    The loop's body is compiled by itself, and so alike on any number of devices: the
    compiler does not see how many turns there are.
    """
    shards = jax.tree.map(
        lambda leaf: leaf.reshape(num_shards, leaf.shape[0] // num_shards, *leaf.shape[1:]), rows
    )

    def one(shard):
        return function(shared, jax.tree.map(lambda leaf: leaf[shard], shards))

    results = jax.tree.map(
        lambda leaf: jnp.zeros((num_shards, *leaf.shape), leaf.dtype), jax.eval_shape(one, 0)
    )

    def body(shard, results):
        return jax.tree.map(lambda stack, new: stack.at[shard].set(new), results, one(shard))

    turns = jax.lax.optimization_barrier(jnp.int32(num_shards))
    return jax.lax.fori_loop(0, turns, body, results)


def sum_over_devices(
    function: Callable[[Any, Any], tuple[Any, Any]],
    batch_sharding: NamedSharding,
    *,
    num_shards: int | None = None,
) -> Callable[[Any, Any], tuple[Any, Any]]:
    r"""Runs a sum over rows on each device's rows, and adds up the devices' sums.

    Args:
      function: ``function(shared, rows) -> (sums, outputs)``: sums over the rows (a pytree of
        arrays, or a ``ClippedSum``), and outputs with one entry for each row. It sees the rows
        of one device (or shard) only.
      batch_sharding: A ``NamedSharding`` with a spec of one entry: the mesh axis or axes that
        the rows are split over. Other axes of the mesh are left to the compiler.
      num_shards: None for one share a device, added up in whatever order the devices choose. A
        power of two, twice the number of devices or more, to cut the rows into that many
        shards whatever the number of devices: they are summed in a fixed order, and take that
        many times the memory of the sums, divided by the number of devices.

    Returns:
      A function like the given one, of all rows: the sums are the same on every device, the
      outputs split like the rows.

    Raises:
      ValueError: if an argument is out of range, the rows do not divide among the shards, or
        JAX's older partitioner is in use (JAX 0.6 unless it is told otherwise), which has
        faults that break the guarantee.

    Guarantee:
      What one row adds is what ``function`` makes of it on a single device: no compiler gets
      to split the work inside. A ``ClippedSum`` keeps its sensitivity, since each row is in one
      share. With ``num_shards`` additions are in one order on 1, 2, 4, ... devices, so that the
      result is the same bit for bit wherever a shard's program is: one compiler, one kind of
      device, deterministic kernels. (Tested on CPU, on one process and two.)

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> from jax.sharding import Mesh, NamedSharding, PartitionSpec
      >>> from jaxdp import distributed
      >>> mesh = Mesh(np.array(jax.devices()[:1]), "data")
      >>> split = NamedSharding(mesh, PartitionSpec("data"))
      >>> total = distributed.sum_over_devices(lambda w, x: (jnp.sum(w * x), 2 * x), split)
      >>> total(3.0, jnp.arange(8.0))[0].tolist()
      84.0
    """
    _validate.function("function", function)
    axes = _split_axes(batch_sharding)
    mesh = batch_sharding.mesh
    devices = num_devices(batch_sharding)
    if num_shards is not None:
        _validate.integer("num_shards", num_shards, minimum=1)
        # A loop of a single turn is translated in another way than one of several.
        if num_shards & (num_shards - 1) or num_shards % (2 * devices):
            allowed = f"a power of two that twice the {devices} devices divide"
            _validate.refuse("num_shards", num_shards, allowed)

    def share(shared, rows):
        if num_shards is None:
            sums, outputs = function(shared, rows)
            return _add_up(sums, lambda leaf: jax.lax.psum(leaf, axes)), outputs
        local_shards = num_shards // devices
        sums, outputs = _in_turn(function, shared, rows, local_shards)

        def add_up(leaf):
            return _butterfly_sum(_tree_sum(leaf), axes, devices)

        outputs = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), outputs)
        return _add_up(sums, add_up, stacked=True), outputs

    @functools.wraps(function)
    def split(shared, rows):
        if devices > 1:
            _refuse_older_partitioner()
        size = _validate.leading_axis("rows", rows)
        shards = num_shards or devices
        if size % shards:
            _validate.refuse("rows", f"{size} of them", f"a multiple of {shards} (use padding)")
        row_spec, same = PartitionSpec(axes), PartitionSpec()
        run = _shard_map(share, mesh, (same, row_spec), (same, row_spec), frozenset(axes))
        return run(shared, rows)

    return split


def _add_up(sums: Any, add_up: Callable[[jax.Array], jax.Array], *, stacked: bool = False) -> Any:
    """The sums of all, of which a ``ClippedSum`` keeps one bound: they agree."""
    if not isinstance(sums, ClippedSum):
        return jax.tree.map(add_up, sums)
    children, aux = sums.tree_flatten()
    value, *bounds = children
    bounds = jax.tree.map(lambda leaf: leaf[0] if stacked else leaf, bounds)
    return ClippedSum.tree_unflatten(aux, (jax.tree.map(add_up, value), *bounds))
