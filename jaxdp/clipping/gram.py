r"""The norm of a sum of outer products, without the sum.

With :math:`M = \sum_a X_a^T G_a` over the uses of a parameter,

.. math:: \|M\|_F^2 = \sum_{a, b} \langle X_a X_b^T, G_a G_b^T \rangle,

which needs products of positions by positions only. Where positions cancel, the terms are
larger than their sum and rounding may leave less than the truth, even less than nothing; so
what is returned carries a bound on that rounding. Every term is at most
:math:`|x_t| |x_s| |g_t| |g_s|`, and with n terms in a sum, in any order, each is rounded at
most n times (Higham 2002, Accuracy and Stability of Numerical Algorithms, section 3.1).
The same holds for the rounding of the cotangents when they are scaled for the sum: where
positions cancel, it does not shrink with the gradient, so the norm has room for it.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _tree
from jaxdp.clipping.factors import Factors

_HIGHEST = jax.lax.Precision.HIGHEST
# Entries are scaled to below 2 before they are squared: what vanishes then is below this.
_VANISHED = 2.0**-126
# Longer rows are multiplied in pieces, so that the bound on the rounding stays small.
_LONGEST_ROW = 2**14
# Over the part of a threshold that clipping leaves free for roundings.
_MARGIN = 2.0**20
# The largest powers of two whose inverse is a normal number.
_LARGEST = {32: 2.0**126, 64: 2.0**1022}


class RawNorm(NamedTuple):
    """Upper bounds on norms, ``(sqrt(squared) + more) * scale``; arrays ``[batch]``."""

    squared: jax.Array  # NaN where not finite
    more: jax.Array
    scale: jax.Array  # power of two


def l1_norm_of_one(part: Factors) -> _tree.NormBound:
    r"""The L1 norm of one outer product, :math:`\|x\|_1 \|g\|_1`.

    Args:
      part: Factors with one block and one position.

    Returns:
      An upper bound ``[batch]``.
    """
    g = _tree.l1_norm_bounds(part.g)
    return g if part.are_rows else _product(_tree.l1_norm_bounds(part.x), g)


def l2_norm(parts: list[Factors]) -> RawNorm:
    """The L2 norm of the sum of all parts' outer products, and its rounding when scaled.

    Args:
      parts: Factors with equal m, d and p.

    Returns:
      An upper bound ``[batch]`` in exact arithmetic on the factors' float values.
    """
    parts, scale, is_zero, overflows = _scaled(parts)
    unit = float(jnp.finfo(scale.dtype).eps) / 2
    total = slack = terms = jnp.zeros_like(scale)
    if len(parts) == 1 and parts[0].g.shape[2] == 1:
        total, slack = _of_one_position(parts[0])
    else:
        for place, one in enumerate(parts):
            for other in parts[: place + 1]:
                # Each pair of different uses counts twice, once in each order.
                count = 1 if one is other else 2
                product, rounding = _inner_product(one, other)
                total, slack = total + count * product, slack + count * rounding
            x, g = map(_lengths, _own_products(one))
            terms += jnp.sum(x * g, axis=(1, 2))
    positions = sum(part.g.shape[2] for part in parts)
    entries = parts[0].g.shape[1] * sum(_width(part.x) * part.g.shape[-1] for part in parts)
    squared = jnp.maximum(total, 0) + slack + 64 * positions**2 * entries * _VANISHED
    squared = jnp.where(is_zero, 0, squared)
    # A NaN need not survive the maximum above.
    squared = jnp.where(jnp.isfinite(total) & ~overflows, squared, jnp.nan)
    # One rounding of each entry of G, and as much again for the lengths.
    return RawNorm(squared, 2 * unit * terms, scale)


def smallest_threshold(order: int, parts: list[Factors]) -> jax.Array | None:
    """The threshold ``[batch]`` below which scaled cotangents vanish in a way that counts.

    An entry of G that vanishes below the smallest normal number changes the gradient by as
    much as the entries of X that it meets. Where positions cancel, that can make it longer;
    below this threshold by more than the margin, in the norm of the order given. None where
    nothing can cancel.
    """
    positions = sum(part.g.shape[2] for part in parts)
    if positions == 1:
        return None
    info = jnp.finfo(parts[0].g.dtype)
    entries = parts[0].g.shape[1] * sum(_width(part.x) * part.g.shape[-1] for part in parts)
    spread = math.sqrt(entries) if order == 2 else entries
    reach = positions * spread * float(info.tiny) * _MARGIN
    sizes = [jnp.ones(()) if part.are_rows else _largest(part.x) for part in parts]
    return reach * functools.reduce(jnp.maximum, sizes)


def norms(pieces: list[RawNorm]) -> list[_tree.NormBound]:
    """The norms themselves, worked out together to keep the program short."""
    stacked = RawNorm(*(jnp.stack(arrays) for arrays in zip(*pieces, strict=True)))
    up = 1 + 4 * float(jnp.finfo(stacked.squared.dtype).eps)
    bounds = _tree.as_bound((jnp.sqrt(stacked.squared) + stacked.more) * up)
    both = _product(bounds, _tree.NormBound(jnp.ones_like(stacked.scale), stacked.scale))
    return [_tree.NormBound(*pair) for pair in zip(both.scaled, both.scale, strict=True)]


def _of_one_position(part: Factors) -> tuple[jax.Array, jax.Array]:
    """The squared norm of one outer product a block: no terms of either sign to cancel."""
    # Sums, not matrix products, so that the scaled factors need not be written out.
    g = _square_sum(part.g)
    x = jnp.ones_like(g) if part.are_rows else _square_sum(part.x)
    total = jnp.sum(x * g, axis=1)
    unit = float(jnp.finfo(g.dtype).eps) / 2
    additions = _additions(_width(part.x)) + _additions(part.g.shape[-1]) + g.shape[1]
    return total, total * _gamma(additions + 4, unit)


def _square_sum(rows: jax.Array) -> jax.Array:
    """The squared lengths ``[batch, m]`` of single rows ``[batch, m, 1, n]``."""
    pieces = jnp.sum(jnp.square(_in_pieces(rows)), axis=-1)
    if pieces.shape[-1] > 1:
        pieces = _tree.keep_rounding(pieces)
    return jnp.sum(pieces, axis=(2, 3))


def _in_pieces(rows: jax.Array) -> jax.Array:
    """Rows ``[..., n]`` as ``[..., pieces, length]``, filled up with zeros."""
    size = rows.shape[-1]
    count = max(-(-size // _LONGEST_ROW), 1)
    length = -(-size // count)
    filled = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, count * length - size)])
    return filled.reshape(*rows.shape[:-1], count, length)


def _additions(size: int) -> int:
    """The most additions behind the product of two rows of this length."""
    count = max(-(-size // _LONGEST_ROW), 1)
    return -(-size // count) + count


def _inner_product(one: Factors, other: Factors) -> tuple[jax.Array, jax.Array]:
    """The inner product ``[batch]`` of two gradients, and the most that rounding takes from it.

    With K and L the products of rows of X and of G, computed with relative errors a and b of
    the rows' lengths, the sum over K L is off by at most the sum of
    ``a |x||x||L| + b |K||g||g| + a b |x||x||g||g|``, and of ``c |K L|`` for the sum itself.
    """
    k_x, k_g = _row_products(one, other), _g_products(one, other)
    lengths = [[_lengths(products) for products in _own_products(part)] for part in (one, other)]
    xx, gg = (lengths[0][i][..., :, None] * lengths[1][i][..., None, :] for i in (0, 1))
    unit = float(jnp.finfo(k_g.dtype).eps) / 2
    _, m, rows, columns = k_g.shape
    exact = one.are_rows or other.are_rows
    # A few more than the products have terms, for devices that compose them of parts.
    a = 0.0 if exact else _gamma(_additions(one.x.shape[-1]) + 4, unit)
    b = _gamma(_additions(one.g.shape[-1]) + 4, unit)
    c = _gamma(columns + m * rows + 4, unit)
    size_x, size_g = jnp.abs(k_x), jnp.abs(k_g)
    rounding = xx * (a * size_g + a * b * gg) + size_x * (b * gg + c * size_g)
    # The slack is itself rounded, a few units in all of its own size.
    return _sum(k_x * k_g), _sum(rounding) * (1 + _gamma(columns + m * rows + 16, unit))


def _gamma(additions: int, unit: float) -> float:
    """The relative error of a sum, with room for lengths that carry the same error."""
    assert additions * unit < 0.01, "the strategy keeps sums in one go shorter"
    return additions * unit / (1 - 2 * additions * unit)


def _product(one: _tree.NormBound, other: _tree.NormBound) -> _tree.NormBound:
    """The product of two bounds; not finite where its power of two is out of range."""
    info = jnp.finfo(one.scale.dtype)
    scale = one.scale * other.scale
    scaled = one.scaled * other.scaled * (1 + 4 * float(info.eps))
    scaled = jnp.where((scale > _LARGEST[info.bits]) & (scaled != 0), jnp.inf, scaled)
    return _tree.NormBound(scaled, jnp.clip(scale, info.tiny, _LARGEST[info.bits]))


def _width(x: jax.Array) -> int:
    """Entries in a row of X that are not known to be zero."""
    return 1 if x.ndim == 3 else x.shape[-1]


def _scaled(
    parts: list[Factors],
) -> tuple[list[Factors], jax.Array, jax.Array, jax.Array]:
    """The parts over one power of two, their entries below 2 in absolute value.

    Returns:
      The parts; and of each example the power, whether every part has a factor that is all
      zero, and whether the power is out of range.
    """
    scaled, bounds, zeros = [], [], []
    for part in parts:
        largest = [_largest(part.g)] if part.are_rows else [_largest(part.g), _largest(part.x)]
        scales = [_tree.as_bound(size).scale for size in largest]
        ones = jnp.ones_like(scales[0])
        bound = _tree.NormBound(ones, scales[0])
        x = part.x
        if not part.are_rows:
            x = x * _tree.along(_tree.reciprocal(scales[1]), x)
            bound = _product(bound, _tree.NormBound(ones, scales[1]))
        scaled.append(Factors(x, part.g * _tree.along(_tree.reciprocal(scales[0]), part.g)))
        bounds.append(bound)
        zeros.append(functools.reduce(jnp.minimum, largest) == 0)
    overflows = functools.reduce(jnp.logical_or, (~jnp.isfinite(one.scaled) for one in bounds))
    is_zero = functools.reduce(jnp.logical_and, zeros)
    if len(parts) == 1:
        return scaled, bounds[0].scale, is_zero, overflows
    top = functools.reduce(jnp.maximum, (one.scale for one in bounds))
    inverse = _tree.reciprocal(top)
    weighted = [
        part._replace(g=part.g * _tree.along(one.scale * inverse, part.g))
        for part, one in zip(scaled, bounds, strict=True)
    ]
    return weighted, top, is_zero, overflows


def _largest(array: jax.Array) -> jax.Array:
    """The largest absolute value of each example."""
    return jnp.max(jnp.abs(array), axis=tuple(range(1, array.ndim)), initial=0)


def _own_products(part: Factors) -> tuple[jax.Array, jax.Array]:
    return _row_products(part, part), _g_products(part, part)


def _g_products(one: Factors, other: Factors) -> jax.Array:
    return _products(one.g, other.g)


def _row_products(one: Factors, other: Factors) -> jax.Array:
    """X of one times the transpose of X of the other, ``[batch, m, T, S]``."""
    if one.are_rows and other.are_rows:
        same = one.x[..., :, None] == other.x[..., None, :]
        return same.astype(one.g.dtype)
    if other.are_rows:
        return jnp.take_along_axis(one.x, other.x[..., None, :], axis=-1)
    if one.are_rows:
        return jnp.swapaxes(_row_products(other, one), -1, -2)
    return _products(one.x, other.x)


def _products(one: jax.Array, other: jax.Array) -> jax.Array:
    """The products of all rows with all rows, ``[batch, m, T, S]``."""
    if one.shape[-1] <= _LONGEST_ROW:
        return jnp.einsum("bmtd,bmsd->bmts", one, other, precision=_HIGHEST)
    one, other = _in_pieces(one), _in_pieces(other)
    return jnp.sum(jnp.einsum("bmtkd,bmskd->kbmts", one, other, precision=_HIGHEST), axis=0)


def _lengths(products: jax.Array) -> jax.Array:
    """The lengths of rows from their products with one another."""
    return jnp.sqrt(jnp.maximum(jnp.diagonal(products, axis1=-2, axis2=-1), 0))


def _sum(terms: jax.Array) -> jax.Array:
    """The sum over all but the batch axis: over columns first, then over the rest."""
    return jnp.sum(_tree.keep_rounding(jnp.sum(terms, axis=-1)), axis=(1, 2))
