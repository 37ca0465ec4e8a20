"""What a parameter adds to the norm, and to the sum, by each of the ways to compute them.

- "outer": one outer product, whose norm is the product of the norms;
- "gram": the norm from products of positions by positions;
- "rows": an embedding's gradient held as the rows that were looked up, equal rows added;
- "kept": each example's gradient, held until the sum;
- "recomputed": each example's gradient in turn, held for the norm only.

After "kept" and "rows", the sum is of the very numbers whose norm was taken. After the
others it is one product of all examples' factors, and the norm is one of exact arithmetic.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _tree
from jaxdp.clipping import convolution, factors, gram, rescale
from jaxdp.clipping.factors import Factors
from jaxdp.clipping.uses import Site

_HIGHEST = jax.lax.Precision.HIGHEST
# Up to here a product with a matrix of zeros and ones is faster than sorting.
_FEW_POSITIONS = 128


class Piece(NamedTuple):
    """A part of the gradient that meets no other part.

    Args:
      held: Arrays ``[batch, ...]`` whose norm counts, or None.
      bound: The norm ``[batch]`` where nothing is held.
      total: From how to scale each example to the sum over examples; None where that is
        the weighted sum of what is held.
      finish: From the sum to the parameter's shape.
      smallest_threshold: The threshold ``[batch]`` below which the piece cannot be clipped
        with certainty; None for none.
    """

    held: jax.Array | None
    bound: _tree.NormBound | gram.RawNorm | None
    total: Callable[[rescale.Shrink], jax.Array] | None
    finish: Callable[[jax.Array], jax.Array]
    smallest_threshold: jax.Array | None = None


def held(gradients: jax.Array, finish: Callable[[jax.Array], jax.Array]) -> Piece:
    """Each example's gradient, ``[batch, ...]``."""
    shape = gradients.shape[1:]
    return Piece(_tree.rows(gradients), None, None, lambda total: finish(total.reshape(shape)))


def sums(parts: list[Piece], shrink: rescale.Shrink) -> list[jax.Array]:
    """The sum over examples of each piece, finished."""
    weighted = [part.held for part in parts if part.total is None]
    found = iter(rescale.weighted_sum(shrink, weighted))
    return [
        part.finish(next(found) if part.total is None else part.total(shrink)) for part in parts
    ]


def of_factors(
    way: str,
    order: int,
    parts: list[Factors],
    width: int,
    finish: Callable[[jax.Array], jax.Array],
) -> Piece:
    """The piece made of factors.

    Args:
      way: One of the ways above.
      order: Of the norm, 2 or 1.
      parts: Factors of all uses, with equal m, d and p.
      width: d, which rows of the identity do not show.
      finish: From the gradient ``[m, d, p]`` to the parameter's shape.
    """
    if way == "kept":
        return held(_instantiate(parts, width), finish)
    if way == "rows":
        (part,) = parts
        rows = _add_equal_rows(part)
        return Piece(rows.g, None, lambda shrink: _product_sum(shrink, [rows], width), finish)
    bound: Any
    if order == 2:
        bound = gram.l2_norm(parts)
    else:
        bound = gram.l1_norm_of_one(*parts) if way == "outer" else _l1_norm_in_turn(parts, width)
    return Piece(
        None,
        bound,
        lambda shrink: _product_sum(shrink, parts, width),
        finish,
        gram.smallest_threshold(order, parts),
    )


def of_convolution(
    way: str,
    order: int,
    site: Site,
    data: jax.Array,
    cotangent: jax.Array,
    finish: Callable[[jax.Array], jax.Array],
) -> Piece:
    """The piece of one convolution outside of loops, ``finish``ed from the kernel's shape.

    Its factors repeat every input entry for each kernel offset, so that only the Gram form
    is made of them.
    """
    params, shape = site.params, site.view_shape
    part = factors.of_site(site, data, cotangent)
    data, cotangent = _tree.flush(data, part.x.dtype), factors.weighted(site, cotangent)
    if way == "kept":
        return held(convolution.gradients(params, shape, data, cotangent), finish)
    bound = gram.l2_norm([part]) if order == 2 else gram.l1_norm_of_one(part)

    def total(shrink):
        kept = jnp.where(_tree.along(shrink.keep, data), data, 0)
        scaled = rescale.scaled(shrink, cotangent)
        return convolution.gradient_sum(params, shape, kept, scaled)

    return Piece(None, bound, total, finish, gram.smallest_threshold(order, [part]))


def _instantiate(parts: list[Factors], width: int) -> jax.Array:
    """Each example's gradient, ``[batch, m, d, p]``."""
    total: Any = 0
    for part in parts:
        if part.are_rows:
            one_hot = jax.vmap(jax.vmap(lambda x, g: _scatter(x, g, width)))
            total += one_hot(part.x, part.g)
        else:
            total += jnp.einsum("bmtd,bmtp->bmdp", part.x, part.g, precision=_HIGHEST)
    return total


def _scatter(places: jax.Array, rows: jax.Array, width: int) -> jax.Array:
    return jnp.zeros((width, rows.shape[-1]), rows.dtype).at[places].add(rows)


def _product_sum(shrink: rescale.Shrink, parts: list[Factors], width: int) -> jax.Array:
    """The sum over examples of scaled gradients, ``[m, d, p]``, as one product."""
    total: Any = 0
    for part in parts:
        g = rescale.scaled(shrink, part.g)
        m, p = g.shape[1], g.shape[3]
        if part.are_rows:
            places = part.x + width * jnp.arange(m)[None, :, None]
            total += _scatter(places.reshape(-1), g.reshape(-1, p), m * width).reshape(m, width, p)
            continue
        # A dropped example may hold what is not finite, and zero times that is not zero.
        x = jnp.where(_tree.along(shrink.keep, part.x), part.x, 0)
        if m == 1 and x.shape[2] == 1:
            # Axes of length one make XLA copy both factors first on CPU.
            x, g = x[:, 0, 0], g[:, 0, 0]
            total += jnp.einsum("bd,bp->dp", x, g, precision=_HIGHEST)[None]
        elif m == 1:
            total += jnp.einsum("btd,btp->dp", x[:, 0], g[:, 0], precision=_HIGHEST)[None]
        else:
            total += jnp.einsum("bmtd,bmtp->mdp", x, g, precision=_HIGHEST)
    return total


def _add_equal_rows(part: Factors) -> Factors:
    """The same gradient with every place at most once; rows that are left over are zero."""
    one = _add_by_product if part.x.shape[-1] <= _FEW_POSITIONS else _add_by_sorting
    return Factors(*jax.vmap(jax.vmap(one))(part.x, part.g))


def _add_by_product(x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Adds every row to the first one with the same place."""
    first = jnp.argmax(x[:, None] == x[None, :], axis=1)
    belongs = (first[None, :] == jnp.arange(x.size)[:, None]).astype(g.dtype)
    return x, jnp.matmul(belongs, g, precision=_HIGHEST)


def _add_by_sorting(x: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    order = jnp.argsort(x)
    x, g = x[order], g[order]
    starts = (x[1:] != x[:-1]).astype(x.dtype)
    slot = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(starts)])
    return jnp.zeros_like(x).at[slot].set(x), jnp.zeros_like(g).at[slot].add(g)


def _l1_norm_in_turn(parts: list[Factors], width: int) -> _tree.NormBound:
    """The L1 norm of each example's gradient, one example at a time.

    The sum over examples is another product than the one measured here, so the bound
    allows for the rounding of this one, and of the cotangents when they are scaled.
    """
    unit = float(jnp.finfo(parts[0].g.dtype).eps) / 2
    positions = sum(part.g.shape[2] for part in parts)

    def one(example):
        example = [Factors(part.x[None], part.g[None]) for part in example]
        bounds = [_tree.l1_norm_bounds(_instantiate(example, width))]
        for part in example:
            # Of every entry of the product, summed: |x_t|_1 |g_t|_1 over positions t.
            rows = jnp.ones_like(part.g[..., :1]) if part.are_rows else part.x
            lengths = [jnp.sum(jnp.abs(side), axis=-1) for side in (rows, part.g)]
            slack = lengths[0] * lengths[1] * (2 * (positions + len(parts) + 16) * unit)
            bounds.append(_tree.l1_norm_bounds(slack))
        bound = _tree.combine_l1(bounds)
        return bound.scaled[0], bound.scale[0]

    return _tree.NormBound(*jax.lax.map(one, parts))
