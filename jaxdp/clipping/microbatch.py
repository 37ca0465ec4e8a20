"""A sum over a batch, taken slice by slice to bound the memory it needs."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def sum_by_slices(
    sum_slice: Callable[[Any, jax.Array], tuple[Any, Any]],
    batch: Any,
    is_padding: jax.Array,
    microbatch_size: int | None,
) -> tuple[Any, Any]:
    """Scans ``sum_slice`` over slices of the batch.

    The last slice is filled up with copies of the last example, marked as padding:
    copies, because a made-up example could divide by zero inside the loss.

    Args:
      sum_slice: Function of a slice of the batch and of its padding mask, returning a
        pytree of sums and a pytree of per-example outputs with a leading axis.
      batch: Pytree of arrays with a leading axis ``[batch]``.
      is_padding: Bool ``[batch]``.
      microbatch_size: Examples in a slice; None for the whole batch at once.

    Returns:
      The sums over the whole batch, and the outputs of each example, ``[batch]``.
    """
    (size,) = is_padding.shape
    if microbatch_size is None or microbatch_size >= size:
        return sum_slice(batch, is_padding)
    num_slices = -(-size // microbatch_size)
    missing = num_slices * microbatch_size - size

    def cut(leaf):
        leaf = jnp.asarray(leaf)
        if missing:
            # Indexing, since concatenating would count as a second use of typed keys.
            leaf = leaf[jnp.minimum(jnp.arange(size + missing), size - 1)]
        return leaf.reshape(num_slices, microbatch_size, *leaf.shape[1:])

    filled = jnp.concatenate([is_padding, jnp.ones(missing, bool)])
    slices = jax.tree.map(cut, batch), filled.reshape(num_slices, microbatch_size)

    def body(total, one_slice):
        more, outputs = sum_slice(*one_slice)
        return jax.tree.map(jnp.add, total, more), outputs

    first = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), slices)
    zero = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(sum_slice, *first)[0]
    )
    total, outputs = jax.lax.scan(body, zero, slices)
    return total, jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:size], outputs)
