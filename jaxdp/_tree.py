"""Norms of pytrees that are never below the true norm, in float32 or wider.

Clipping to a norm that was rounded down would leave more than the bound that the noise
is scaled to, so the norms here are upper bounds in exact arithmetic. Two measures keep
them within 1e-5 of the truth:

- Leaves are scaled by a power of two near their largest entry (exact), so that squares
  neither overflow nor vanish.
- Terms are added in blocks of 32, then the blocks' sums in blocks of 32, and so on. No
  term passes through more than 31 additions a level, whatever order the compiler picks
  inside a block, so the rounding error has a static bound that grows with log(n).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

_BLOCK = 32
# Roundings to allow for besides the sums': the square root and the products by
# constants, some of which accelerators round by a few units in the last place.
_OTHER_ROUNDINGS = 32
_BITS = {4: jnp.uint32, 8: jnp.uint64}


class NormBound(NamedTuple):
    """An upper bound on a norm, kept in two factors so that it cannot overflow.

    The bound is ``scaled * scale``. Both are scalars. ``scale`` is a power of two, so a
    division by it is exact; ``scaled`` is not finite exactly where an entry is not
    finite, is at least 1 where the tree has a normal non-zero entry, and 0 where not.
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


def _blocks(terms: jax.Array) -> tuple[jax.Array, int]:
    """Sums of blocks of a vector, and the number of additions behind the longest."""
    (size,) = terms.shape
    if size <= _BLOCK:
        return jnp.sum(terms, keepdims=True), max(size - 1, 0)
    full = size - size % _BLOCK
    # A block is a column: adding rows of a matrix vectorises, adding along a row does not.
    sums = [jnp.sum(terms[:full].reshape(_BLOCK, -1), axis=0)]
    if full < size:
        sums.append(jnp.sum(terms[full:], keepdims=True))
    return jnp.concatenate(sums), _BLOCK - 1


def _sum_non_negative(terms: list[jax.Array]) -> tuple[jax.Array, int]:
    """The sum of vectors of non-negative terms, and the number of additions behind it."""
    levels = [_blocks(leaf) for leaf in terms]
    partial = jnp.concatenate([sums for sums, _ in levels])
    additions = max(depth for _, depth in levels)
    while partial.size > 1:
        # Without a barrier the compiler may merge two levels into one long reduction.
        partial, depth = _blocks(jax.lax.optimization_barrier(partial))
        additions += depth
    return partial[0], additions


def _norm_bound(
    tree: Any,
    term: Callable[[jax.Array], jax.Array],
    inverse: Callable[[jax.Array], jax.Array],
) -> NormBound:
    dtype = wide_dtype(tree)
    leaves = [flush(leaf, dtype).reshape(-1) for leaf in jax.tree.leaves(tree) if leaf.size]
    if not leaves:
        return NormBound(jnp.zeros((), dtype), jnp.ones((), dtype))
    largest = jnp.max(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in leaves]))
    scale = _power_of_two_below(largest)
    # Scaled entries that vanish lose less than 2^-126 each: nothing next to the largest.
    total, additions = _sum_non_negative([term(leaf * reciprocal(scale)) for leaf in leaves])
    unit = float(jnp.finfo(dtype).eps) / 2
    excess = additions * unit / (1 - additions * unit) + _OTHER_ROUNDINGS * unit
    return NormBound(inverse(total) * jnp.asarray(1 + excess, dtype), scale)


def l2_norm_bound(tree: Any) -> NormBound:
    """An upper bound on the L2 norm over all leaves together.

    Args:
      tree: Pytree of real floating-point arrays.

    Returns:
      The bound, in float32 or wider, zero for a tree without entries.

    Guarantee:
      The bound times ``1 - 2 e`` is below the true norm of the tree (its subnormal
      entries read as zero) and the bound is not, with ``e < 1.2e-5`` in float32 up to
      ``32^5`` = 3e7 entries a leaf.
    """
    return _norm_bound(tree, jnp.square, jnp.sqrt)


def l1_norm_bound(tree: Any) -> NormBound:
    """An upper bound on the sum of absolute values over all leaves; see ``l2_norm_bound``."""
    return _norm_bound(tree, jnp.abs, lambda total: total)
