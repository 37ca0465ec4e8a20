"""The two factors of a parameter's gradient at a site, in one axis order for every rule.

The gradient of one example is :math:`M = X^T G`, a sum of outer products over positions: the
rows of X come from the site's data operand, the rows of G from the cotangent of its result.
For an embedding the rows of X are rows of the identity matrix, and only their places are kept.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _tree
from jaxdp.clipping import convolution
from jaxdp.clipping.uses import Site

LOOKUPS = ("gather", "dynamic_slice")


class Factors(NamedTuple):
    """X and G with m blocks of d x p entries and T positions.

    Args:
      x: ``[batch, m, T, d]``, or int ``[batch, m, T]``: the places of rows of the identity.
      g: ``[batch, m, T, p]``.
    """

    x: jax.Array
    g: jax.Array

    @property
    def are_rows(self) -> bool:
        return self.x.ndim == 3


class Sizes(NamedTuple):
    """The sizes of a gradient M and of the sum that it is; ``batch`` not included."""

    m: int
    T: int
    d: int
    p: int


def of_site(site: Site, data: jax.Array, cotangent: jax.Array) -> Factors:
    """The factors from what was recorded, both ``[batch, *loops, ...]``, in float32 or wider."""
    dtype = jnp.promote_types(site.output.dtype, jnp.float32)
    cotangent = weighted(site, cotangent)
    if site.rule not in LOOKUPS:
        data = _tree.flush(data, dtype)
    if site.rule == "conv_general_dilated" and not site.loops:
        return Factors(*convolution.factors(site.params, site.view_shape, data, cotangent))
    factor = _RULES[site.rule].factor
    for _ in range(1 + len(site.loops)):
        factor = jax.vmap(factor, in_axes=(None, 0, 0))
    x, g = factor(site, data, cotangent)
    return Factors(_merge_loops(site, x), _merge_loops(site, g))


def weighted(site: Site, cotangent: jax.Array) -> jax.Array:
    """The cotangent in float32 or wider, times the number that the view is multiplied by."""
    wide = cotangent.astype(jnp.promote_types(cotangent.dtype, jnp.float32))
    return _tree.flush(wide * site.view.factor, wide.dtype)


def _merge_loops(site: Site, array: jax.Array) -> jax.Array:
    """``[batch, *loops, m, T, ...]`` to ``[batch, m, T, ...]``.

    A loop over the parameter's entries makes more blocks; a loop in which every turn uses the
    same entries makes more positions.
    """
    count = len(site.loops)
    if not count:
        return array
    blocks = [1 + place for place, mapped in enumerate(site.view.mapped) if mapped]
    positions = [1 + place for place, mapped in enumerate(site.view.mapped) if not mapped]
    rest = range(count + 3, array.ndim)
    array = array.transpose(0, *blocks, count + 1, *positions, count + 2, *rest)
    m = math.prod(array.shape[1 : len(blocks) + 2])
    positions_size = math.prod(array.shape[len(blocks) + 2 : count + 3])
    return array.reshape(array.shape[0], m, positions_size, *array.shape[count + 3 :])


def to_view(site: Site, gradient: jax.Array) -> jax.Array:
    """The gradient ``[m, d, p]`` in the shape of the site's view, mapped loops in front."""
    mapped = _mapped_lengths(site)
    gradient = gradient.reshape(*mapped, -1, *gradient.shape[1:])
    restore = _RULES[site.rule].restore
    for _ in mapped:
        restore = jax.vmap(restore, in_axes=(None, 0))
    return restore(site, gradient)


def sizes(site: Site) -> Sizes:
    """The sizes that ``of_site`` will find."""

    def factors(data, cotangent):
        return of_site(site, data, cotangent)

    batch = (1, *site.loops)
    data = jax.ShapeDtypeStruct((*batch, *site.data.shape), site.data.dtype)
    cotangent = jax.ShapeDtypeStruct((*batch, *site.output.shape), site.output.dtype)
    g = jax.eval_shape(factors, data, cotangent).g
    view_size = math.prod(site.view_shape) * math.prod(_mapped_lengths(site))
    _, m, positions, p = g.shape
    return Sizes(m, positions, view_size // (m * p) if m * p else 0, p)


def sides(site: Site) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """The axes of the view (without loops) that make up m, d and p, each in order."""
    rank = len(site.view_shape)
    if site.rule in LOOKUPS:
        axis = _looked_up(site)
        return (), (axis,), tuple(place for place in range(rank) if place != axis)
    if site.rule == "dot_general":
        contracting, batch = (pair[site.position] for pair in site.params["dimension_numbers"])
        free = (place for place in range(rank) if place not in (*contracting, *batch))
        return tuple(batch), tuple(contracting), tuple(free)
    return (), tuple(range(rank)), ()  # a kernel's axes can be shared between m, d and p


def _mapped_lengths(site: Site) -> tuple[int, ...]:
    pairs = zip(site.loops, site.view.mapped, strict=True)
    return tuple(length for length, mapped in pairs if mapped)


class _Rule(NamedTuple):
    factor: Any  # (site, data, cotangent) of one example and turn -> X [m, T, d], G [m, T, p]
    restore: Any  # (site, [m, d, p]) -> the view's shape


def _dot(site: Site, data: jax.Array, cotangent: jax.Array):
    contracting, batch = (pair[1 - site.position] for pair in site.params["dimension_numbers"])
    free = [place for place in range(data.ndim) if place not in (*contracting, *batch)]
    sizes = [math.prod(data.shape[axis] for axis in axes) for axes in (batch, free, contracting)]
    x = data.transpose(*batch, *free, *contracting).reshape(sizes)
    # The result has the batch axes, then the left operand's free axes, then the right one's.
    m, positions, _ = sizes
    if site.position == 1:
        return x, cotangent.reshape(m, positions, -1)
    return x, jnp.swapaxes(cotangent.reshape(m, -1, positions), 1, 2)


def _dot_restore(site: Site, gradient: jax.Array) -> jax.Array:
    batch, contracting, free = sides(site)
    order = (*batch, *contracting, *free)
    gradient = gradient.reshape([site.view_shape[axis] for axis in order])
    return gradient.transpose([order.index(axis) for axis in range(len(order))])


def _looked_up(site: Site) -> int:
    """The axis of the view along which rows are looked up."""
    if site.rule == "dynamic_slice":
        return site.data_position - 1
    (axis,) = site.params["dimension_numbers"].start_index_map
    return axis


def _lookup(site: Site, indices: jax.Array, cotangent: jax.Array):
    # Narrow integers cannot hold the places that they are compared with.
    wide = jnp.int32 if indices.dtype.itemsize < 4 else indices.dtype
    rows = indices.reshape(-1).astype(wide)
    size = site.view_shape[_looked_up(site)]
    if site.rule == "dynamic_slice":
        return jnp.clip(rows, 0, size - 1)[None], cotangent.reshape(1, 1, -1)
    offsets = site.params["dimension_numbers"].offset_dims
    positions = [place for place in range(cotangent.ndim) if place not in offsets]
    g = cotangent.transpose(*positions, *offsets).reshape(rows.size, -1)
    if site.params["mode"].name != "CLIP":
        # Out of range, the lookup does not depend on the parameter.
        inside = (rows >= 0) & (rows < size)
        g = jnp.where(inside[:, None], g, 0)
    return jnp.clip(rows, 0, size - 1)[None], g[None]


def _lookup_restore(site: Site, gradient: jax.Array) -> jax.Array:
    _, (axis,), others = sides(site)
    gradient = gradient.reshape(-1, *(site.view_shape[place] for place in others))
    return jnp.moveaxis(gradient, 0, axis)


def _convolution(site: Site, data: jax.Array, cotangent: jax.Array):
    x, g = convolution.factors(site.params, site.view_shape, data[None], cotangent[None])
    return x[0], g[0]


def _convolution_restore(site: Site, gradient: jax.Array) -> jax.Array:
    return convolution.to_kernel(site.params, site.view_shape, gradient)


_RULES = {
    "dot_general": _Rule(_dot, _dot_restore),
    "gather": _Rule(_lookup, _lookup_restore),
    "dynamic_slice": _Rule(_lookup, _lookup_restore),
    "conv_general_dilated": _Rule(_convolution, _convolution_restore),
}
