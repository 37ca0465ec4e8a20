"""Norms of pytrees that are never below the true norm, in float32 or wider.

Clipping to a norm that was rounded down would leave more than the bound that the noise
is scaled to, so the norms here are upper bounds in exact arithmetic. Two measures keep
them within 3e-5 of the truth:

- Terms are added in blocks of at most 32, then the blocks' sums likewise, and so on. No
  term passes through more than 31 additions a level, whatever order the compiler picks
  inside a block, so the rounding error has a static bound that grows with log(n). Setting
  the last bit of each block's sum keeps the compiler from merging the levels.
- Where a plain sum could have overflowed, or lost terms that vanished, the row is first
  scaled by a power of two near its largest entry (exact). Gradients are read once if no
  row of the batch needs that.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_BLOCK = 32
# Below this many entries an example, leaves are joined before they are added up.
_SMALL = 1024
# Roundings to allow for besides the sums': the terms that vanish, the square, the square
# root and products by constants, some of which accelerators round by a few units in the
# last place.
_OTHER_ROUNDINGS = 32
_BITS = {4: jnp.uint32, 8: jnp.uint64}


class NormBound(NamedTuple):
    """Upper bounds on norms, kept in two factors so that they cannot overflow.

    The bound is ``scaled * scale``, of one shape: ``[]``, or ``[batch]`` for one norm an
    example. ``scale`` is a power of two, so a division by it is exact; ``scaled`` is not
    finite exactly where an entry is not finite, is at least 1 where there is a normal
    non-zero entry, and 0 where not.
    """

    scaled: jax.Array
    scale: jax.Array

    @property
    def value(self) -> jax.Array:
        """The bound itself; it may overflow to infinity where the entries are near the limit."""
        return self.scaled * self.scale


def wide_dtype(tree: Any) -> Any:
    """The float type that the tree's leaves are added in: float32, or wider if they are."""
    return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(tree)))


def flush(leaf: jax.Array, dtype: Any) -> jax.Array:
    """The leaf in ``dtype`` with its subnormal entries set to zero.

    Devices differ in whether arithmetic reads subnormal numbers as zero; once they are
    zero, what was measured is what is there.
    """
    leaf = leaf.astype(dtype)
    return jnp.where(jnp.abs(leaf) < jnp.finfo(dtype).tiny, jnp.zeros((), dtype), leaf)


def reciprocal(power_of_two: jax.Array) -> jax.Array:
    """The exact inverse of a normal power of two, by its exponent bits.

    A device's division need not be exact even there.
    """
    dtype = power_of_two.dtype
    info, unsigned = jnp.finfo(dtype), _BITS[dtype.itemsize]
    # The biased exponents of x and 1 / x add up to twice the bias.
    total = unsigned(2 * (1 - int(info.minexp)) << int(info.nmant))
    bits = total - jax.lax.bitcast_convert_type(power_of_two, unsigned)
    return jax.lax.bitcast_convert_type(bits, dtype)


def _power_of_two_below(x: jax.Array) -> jax.Array:
    """The largest power of two that is at most x, held to where its inverse is normal."""
    info, unsigned = jnp.finfo(x.dtype), _BITS[x.dtype.itemsize]
    exponent = unsigned(2 * (1 - int(info.minexp)) + 1 << int(info.nmant))
    bits = jax.lax.bitcast_convert_type(x, unsigned) & exponent
    power = jax.lax.bitcast_convert_type(bits, x.dtype)
    largest = jnp.asarray(2.0 ** -int(info.minexp), x.dtype)
    return jnp.clip(jnp.where(x < largest, power, largest), info.tiny, largest)


def as_bound(value: jax.Array) -> NormBound:
    """A number, or each of an array's, as a ``NormBound``: the same to the last bit.

    Args:
      value: Upper bounds on norms in float32 or wider, >= 0, or not finite where an
        entry is not. A subnormal bound reads as zero.
    """
    value = flush(value, value.dtype)
    scale = _power_of_two_below(value)
    return NormBound(value * reciprocal(scale), scale)


def _block_of(size: int) -> int:
    """The length of the blocks that a row of this length is cut into."""
    # A divisor spares the padding, which would copy the row.
    return min(size, next((d for d in range(_BLOCK, 7, -1) if size % d == 0), _BLOCK))


def _terms(rows: jax.Array, order: int) -> jax.Array:
    return jnp.square(rows) if order == 2 else jnp.abs(rows)


def _in_blocks(rows: jax.Array) -> jax.Array:
    """Rows ``[batch, n]`` as ``[batch, blocks, block]``, filled up with zeros."""
    batch, size = rows.shape
    block = _block_of(size)
    if size % block:
        rows = jnp.pad(rows, ((0, 0), (0, -size % block)))
    # Without the barrier the compiler may reshape the terms instead of the rows, and on CPU
    # write them out to do so: 10 times slower.
    return jax.lax.optimization_barrier(rows.reshape(batch, -1, block))


def keep_rounding(sums: jax.Array) -> jax.Array:
    """Sums with their last bit set, which makes them no smaller in size.

    No compiler can see through it. A sum of sums may become one long reduction otherwise,
    behind an optimization barrier too: XLA fuses the two after it has removed the barrier,
    and LLVM then reassociates the loops.
    """
    unsigned = _BITS[sums.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(sums, unsigned) | unsigned(1)
    return jax.lax.bitcast_convert_type(bits, sums.dtype)


def _sum_terms(
    leaves: list[jax.Array], order: int, dtype: Any, down: jax.Array | None = None
) -> jax.Array:
    """The sum of ``|x * down|^order`` over every leaf's row, ``[batch]``."""

    def sums(rows):
        blocks = _in_blocks(rows).astype(dtype)
        terms = _terms(blocks if down is None else blocks * down[:, None, None], order)
        return keep_rounding(jnp.sum(terms, 2))

    partial = jnp.concatenate([sums(rows) for rows in leaves], axis=1)
    while partial.shape[1] > 1:
        partial = keep_rounding(jnp.sum(_in_blocks(partial), 2))
    return partial[:, 0]


def _additions(sizes: list[int]) -> int:
    """The most additions that a term passes through in ``_sum_terms``."""
    additions = max(_block_of(size) - 1 for size in sizes)
    blocks = sum(-(-size // _block_of(size)) for size in sizes)
    while blocks > 1:
        block = _block_of(blocks)
        additions, blocks = additions + block - 1, -(-blocks // block)
    return additions


def _round_up(total: jax.Array, additions: int, order: int) -> jax.Array:
    """A bound on the norm of the order, from a sum of terms behind that many additions."""
    unit = float(jnp.finfo(total.dtype).eps) / 2
    # A total short by a relative e makes the root short by e / order at most.
    excess = additions * unit / (1 - additions * unit) / order + _OTHER_ROUNDINGS * unit
    root = jnp.sqrt(total) if order == 2 else total
    return root * jnp.asarray(1 + excess, total.dtype)


def rows(leaf: jax.Array) -> jax.Array:
    """The leaf ``[batch, ...]`` as ``[batch, n]``, for whatever reads it more than once.

    Without this, compilers compute and hold a cheap leaf once for each reader, and each in
    the memory layout that suits it (XLA on CPU: up to four times the memory).
    """
    return jax.lax.optimization_barrier(_flat(leaf))


def along(of_examples: jax.Array, leaf: jax.Array) -> jax.Array:
    """Numbers ``[batch]`` with the axes it takes to broadcast against ``[batch, ...]``."""
    return of_examples.reshape(-1, *(1,) * (leaf.ndim - 1))


def _flat(leaf: jax.Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0], math.prod(leaf.shape[1:]))


def _norm_bounds(tree: Any, order: int) -> NormBound:
    dtype = wide_dtype(tree)
    info = jnp.finfo(dtype)
    leaves = [_flat(leaf) for leaf in jax.tree.leaves(tree)]
    shape = leaves[0].shape[:1] if leaves else ()
    large = [leaf for leaf in leaves if leaf.shape[1] >= _SMALL]
    small = [leaf.astype(dtype) for leaf in leaves if leaf.shape[1] < _SMALL]
    leaves = large + ([jnp.concatenate(small, axis=1)] if small else [])
    leaves = [leaf for leaf in leaves if leaf.size]
    if not leaves:
        return NormBound(jnp.zeros(shape, dtype), jnp.full(shape, info.tiny, dtype))
    sizes = [leaf.shape[1] for leaf in leaves]
    additions = _additions(sizes)

    def scaled(leaves):
        maxima = [jnp.max(jnp.abs(leaf), axis=1).astype(dtype) for leaf in leaves]
        largest = flush(jnp.max(jnp.stack(maxima), axis=0), dtype)
        scale = _power_of_two_below(largest)
        # Scaled entries that vanish are below 2^-126 each: nothing next to the largest.
        norm = _round_up(_sum_terms(leaves, order, dtype, reciprocal(scale)), additions, order)
        return NormBound(jnp.where(largest == 0, jnp.zeros((), dtype), norm), scale)

    if sum(sizes) < _SMALL:
        # Not worth the second way, which the compiler would have to translate as well.
        return scaled(leaves)
    total = _sum_terms(leaves, order, dtype)
    # What vanishes below the smallest normal number, at each entry and addition, must
    # weigh less than one rounding of the total.
    enough = 4 * sum(sizes) * float(info.tiny) / float(info.eps)
    is_plain = (total >= enough) & (total <= float(info.max) / 2)
    plain = as_bound(_round_up(total, additions, order))

    def careful(leaves):
        # An example's bound must not depend, by a rounding, on what else is in the batch.
        return jax.tree.map(lambda *choice: jnp.where(is_plain, *choice), plain, scaled(leaves))

    return jax.lax.cond(jnp.all(is_plain), lambda _: plain, careful, leaves)


def l2_norm_bounds(tree: Any) -> NormBound:
    """Upper bounds on each example's L2 norm over all leaves together.

    Args:
      tree: Pytree of real floating-point arrays with a leading axis ``[batch]``, best as
        ``rows`` gives them.

    Returns:
      The bounds ``[batch]``, in float32 or wider (a scalar zero for a tree without leaves).

    Guarantee:
      The bound times ``1 - 2 e`` is below the true norm of the example and the bound is
      not, with ``e < 1.2e-5`` in float32 up to ``32^5`` = 3e7 entries an example. Subnormal
      entries read as zero or as what they are: devices differ.
    """
    return _norm_bounds(tree, 2)


def l1_norm_bounds(tree: Any) -> NormBound:
    """Upper bounds on each example's sum of absolute values; see ``l2_norm_bounds``."""
    return _norm_bounds(tree, 1)


def _of_one(tree: Any, order: int) -> NormBound:
    one = jax.tree.map(lambda leaf: leaf[None], tree)
    return jax.tree.map(lambda array: array.reshape(()), _norm_bounds(one, order))


def l2_norm_bound(tree: Any) -> NormBound:
    """An upper bound on one tree's L2 norm, a scalar; see ``l2_norm_bounds``."""
    return _of_one(tree, 2)


def l1_norm_bound(tree: Any) -> NormBound:
    """An upper bound on one tree's sum of absolute values, a scalar; see ``l2_norm_bounds``."""
    return _of_one(tree, 1)


def _combine(bounds: Sequence[NormBound], order: int) -> NormBound:
    dtype = jnp.result_type(*(bound.scaled for bound in bounds))
    scaled = jnp.stack([bound.scaled.astype(dtype) for bound in bounds])
    scales = jnp.stack([bound.scale.astype(dtype) for bound in bounds])
    # The scale of a zero says nothing, and must not make the others vanish.
    scales = jnp.where(scaled == 0, jnp.finfo(dtype).tiny, scales)
    scale = jnp.max(scales, axis=0)
    total = jnp.sum(_terms(scaled * (scales * reciprocal(scale)[None]), order), axis=0)
    return NormBound(_round_up(total, len(bounds) - 1, order), scale)


def combine_l2(bounds: Sequence[NormBound]) -> NormBound:
    """The bound on the L2 norm of disjoint pieces together, from the pieces' bounds.

    Args:
      bounds: Bounds of one shape, at least one of them.

    Guarantee:
      Never below the root of the sum of squares in exact arithmetic, and above it by
      ``(2 k + 64)`` units roundoff for ``k`` pieces; not finite where a piece is not.
    """
    return _combine(bounds, 2)


def combine_l1(bounds: Sequence[NormBound]) -> NormBound:
    """The bound on the L1 norm of disjoint pieces together; see ``combine_l2``."""
    return _combine(bounds, 1)
