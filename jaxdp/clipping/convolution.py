"""Gradients of a convolution's kernel as products of input patches and output cotangents.

An output entry is a sum over kernel offsets of input entries times kernel entries. So the
gradient is one matrix product over output positions: the patches of the input that the
positions see, times the cotangent.

On CPUs the examples are taken in turn. The patches repeat each input entry for every kernel
offset; those of one example stay in the cache, and those of a batch do not. XLA's own
per-example gradient is one grouped convolution, which is slow there. Times over that of XLA's
gradient of the whole batch, on two cores in float32; "at once" is one product per example as
well, but with the patches of all examples made first:

=========================================  =========  ====  =======  =========
convolution                                gradients   sum  at once  XLA's own
=========================================  =========  ====  =======  =========
8x8, 1 to 16, 28x28, stride 2, batch 256         1.3   1.3      1.7        4.8
4x4, 16 to 32, 13x13, stride 2, batch 256        2.0   1.2      1.4        3.9
3x3, 16 to 64, 32x32, batch 32                   0.8   0.8      0.8        3.0
3x3, 64 to 64, 32x32, batch 32                   0.6   0.6      1.8        3.1
3x3, 256 to 256, 8x8, batch 32                   2.9   1.1      4.4        7.7
1x1, 64 to 128, 32x32, batch 32                  0.3   0.3      0.3        1.3
3x3, 64 depthwise, 32x32, batch 32               0.4   0.4      2.4       > 30
3x3, 64 to 64 in 4 groups, 32x32, batch 32      0.01  0.01     0.06
=========================================  =========  ====  =======  =========

Where the gradients are far larger than the input (the 256 channels), writing them is what
takes the time.

Elsewhere XLA's own gradients are used: a loop would leave an accelerator idle, and would
gather a batch that is spread over devices.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

Params: TypeAlias = Mapping[str, Any]
Shape: TypeAlias = Sequence[int]

_HIGHEST = lax.Precision.HIGHEST
# Entries of the patches that one product of the sum is made of: 1 MiB, a core's cache. Half or
# four times that changed times by a fifth; without a limit some were up to 4 times longer.
_CHUNK_ENTRIES = 1 << 18
_WINDOW = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


def factors(
    params: Params, kernel_shape: Shape, x: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Matrices ``X`` and ``G`` whose product ``X^T G`` is each example's kernel gradient.

    Args:
      params: The parameters of a ``conv_general_dilated`` equation whose right operand is the
        kernel.
      kernel_shape: The kernel's shape.
      x: Left operand of each example, ``[batch, *lhs_shape]``.
      g: Cotangent of the output of each example, ``[batch, *out_shape]``.

    Returns:
      ``X [batch, m, T, d]`` and ``G [batch, m, T, p]`` in float32 or wider, with m groups, T
      output positions (times the convolution's own batch), d entries of a patch, and p
      output channels of one group. ``to_kernel`` leads back to the kernel's shape.
    """

    def one(x, g):
        patches, cotangent = _patches_and_cotangent(params, kernel_shape, x[None], g[None])
        return jnp.swapaxes(patches, -1, -2), cotangent

    return jax.vmap(one)(x, g)


def to_kernel(params: Params, kernel_shape: Shape, matrix: jax.Array) -> jax.Array:
    """``[..., m, d, p]``, a gradient in the order of ``factors``, to ``[..., *kernel_shape]``."""
    channels_out, channels_in, *spatial = _kernel_sizes(params, kernel_shape)
    *lead, groups, _, channels_of_group = matrix.shape
    # Its axes: lead, m, *spatial, channels in, p. The kernel's output channels are (m, p).
    split = matrix.reshape(*lead, groups, *spatial, channels_in, channels_of_group)
    at = len(lead)
    by_channel = jnp.moveaxis(split, (-1, -2), (at + 1, at + 2))
    merged = by_channel.reshape(*lead, channels_out, channels_in, *spatial)
    rhs_spec = params["dimension_numbers"].rhs_spec
    return jnp.moveaxis(merged, range(at, merged.ndim), [at + axis for axis in rhs_spec])


def gradients(params: Params, kernel_shape: Shape, x: jax.Array, g: jax.Array) -> jax.Array:
    """Each example's kernel gradient, ``[batch, *kernel_shape]``, in float32 or wider.

    The arguments are those of ``factors``. An example that is not finite leaves the others
    alone.
    """

    def in_turn(x, g):
        def one(example):
            return _product(params, kernel_shape, *(side[None] for side in example))

        return lax.map(one, (x, g))

    def at_once(x, g):
        def one(x, g):
            return _transposed(params, kernel_shape, x[None], g[None])

        return jax.vmap(one)(x, g)

    return _by_platform(params, in_turn, at_once, x, g)


def gradient_sum(params: Params, kernel_shape: Shape, x: jax.Array, g: jax.Array) -> jax.Array:
    """The sum of ``gradients`` over the batch, ``kernel_shape``, in float32 or wider.

    Examples that are to count for nothing must be zero in ``x`` and in ``g``: zeros in one of
    them alone let entries of the other that are not finite through.
    """

    def in_turn(x, g):
        size = _examples_at_once(params, kernel_shape, g)
        count = x.shape[0] // size

        def add(total, start):
            x_part, g_part = (lax.dynamic_slice_in_dim(side, start, size) for side in (x, g))
            return total + _product(params, kernel_shape, x_part, g_part), None

        rest = _product(params, kernel_shape, x[count * size :], g[count * size :])
        return lax.scan(add, rest, size * jnp.arange(count))[0] if count else rest

    def at_once(x, g):
        return _transposed(params, kernel_shape, x, g)

    return _by_platform(params, in_turn, at_once, x, g)


def _by_platform(
    params: Params,
    in_turn: Callable[[jax.Array, jax.Array], Any],
    at_once: Callable[[jax.Array, jax.Array], Any],
    x: jax.Array,
    g: jax.Array,
) -> Any:
    if not params["window_strides"]:
        # JAX 0.6.0 maps the gradient over a batch wrongly where there are no spatial axes.
        return in_turn(x, g)
    return lax.platform_dependent(x, g, cpu=in_turn, default=at_once)


def _examples_at_once(params: Params, kernel_shape: Shape, g: jax.Array) -> int:
    channels_out, channels_in, *spatial = _kernel_sizes(params, kernel_shape)
    batch, *out = g.shape
    positions = math.prod(out) // max(channels_out, 1)
    entries = _groups(params) * math.prod(spatial) * channels_in * positions
    return max(1, min(batch, _CHUNK_ENTRIES // max(entries, 1)))


def _product(params: Params, kernel_shape: Shape, x: jax.Array, g: jax.Array) -> jax.Array:
    """The sum of the examples' gradients as one matrix product over all their positions."""
    patches, cotangent = _patches_and_cotangent(params, kernel_shape, x, g)
    return to_kernel(params, kernel_shape, jnp.matmul(patches, cotangent, precision=_HIGHEST))


def _transposed(params: Params, kernel_shape: Shape, x: jax.Array, g: jax.Array) -> jax.Array:
    """The sum of the examples' gradients as XLA itself makes the gradient of a batch."""
    dtype = _wide(x, g)
    window = {name: params[name] for name in _WINDOW}

    def convolve(kernel):
        def one(x):
            return lax.conv_general_dilated(x, kernel, precision=_HIGHEST, **window)

        return jax.vmap(one)(x.astype(dtype))

    # Inside shard_map, a kernel that does not vary as x does would get the sum over devices.
    kernel = jnp.zeros(kernel_shape, dtype) + jnp.sum(x[:0], dtype=dtype)
    (total,) = jax.vjp(convolve, kernel)[1](g.astype(dtype))
    return total


def _patches_and_cotangent(
    params: Params, kernel_shape: Shape, x: jax.Array, g: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``[m, d, T]`` and ``[m, T, p]``, with T over the examples too.

    Positions come last in the patches. Rows of the input are then copied whole, even where
    there are few channels.
    """
    _, channels_in, *spatial = _kernel_sizes(params, kernel_shape)
    cotangent = _cotangent(params, g.astype(_wide(x, g)))
    groups, *out, channels_out = cotangent.shape
    positions = math.prod(out)
    d = math.prod(spatial) * channels_in
    cotangent = cotangent.reshape(groups, positions, channels_out)
    if not (positions and d):
        return jnp.zeros((groups, d, positions), cotangent.dtype), cotangent
    patches = _pad(params, _inputs(params, x.astype(cotangent.dtype)))
    # One spatial axis after the other: k_h + k_w slices instead of k_h * k_w.
    for axis in reversed(range(len(spatial))):
        patches = _windows(params, axis, spatial[axis], out[1 + axis], patches)
    return patches.reshape(groups, d, positions), cotangent


def _kernel_sizes(params: Params, kernel_shape: Shape) -> list[int]:
    """Output channels of all groups, input channels of one group, and the spatial sizes."""
    return [kernel_shape[axis] for axis in params["dimension_numbers"].rhs_spec]


def _wide(x: jax.Array, g: jax.Array) -> Any:
    return jnp.result_type(jnp.float32, x.dtype, g.dtype)


def _groups(params: Params) -> int:
    # A convolution groups its channels or its own batch, never both.
    return params["feature_group_count"] * params["batch_group_count"]


def _inputs(params: Params, x: jax.Array) -> jax.Array:
    """``[batch, *lhs_shape]`` to ``[m, channels, n, *spatial]``, n over the examples too."""
    batch_axis, channel_axis, *spatial = (1 + a for a in params["dimension_numbers"].lhs_spec)
    x = jnp.transpose(x, (batch_axis, channel_axis, 0, *spatial))
    of_batch, of_channels = params["batch_group_count"], params["feature_group_count"]
    n, channels, batch, *sizes = x.shape
    x = x.reshape(of_batch, n // of_batch, of_channels, channels // of_channels, batch, *sizes)
    x = jnp.moveaxis(x, 1, 4)
    return x.reshape(_groups(params), x.shape[2], -1, *sizes)


def _cotangent(params: Params, g: jax.Array) -> jax.Array:
    """``[batch, *out_shape]`` to ``[m, n, *spatial, channels]``, n over the examples too."""
    batch_axis, channel_axis, *spatial = (1 + a for a in params["dimension_numbers"].out_spec)
    g = jnp.transpose(g, (0, batch_axis, *spatial, channel_axis))
    batch, n, *sizes, channels = g.shape
    groups = _groups(params)
    g = g.reshape(batch * n, *sizes, groups, channels // groups)
    return jnp.moveaxis(g, -2, 0)


def _pad(params: Params, x: jax.Array) -> jax.Array:
    spatial = [
        (low, high, dilation - 1)
        for (low, high), dilation in zip(params["padding"], params["lhs_dilation"], strict=True)
    ]
    return lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0)] * 3 + spatial)


def _windows(params: Params, axis: int, size: int, out: int, x: jax.Array) -> jax.Array:
    """Strided slices of a spatial axis, one for each kernel offset, stacked after the groups."""
    stride, dilation = params["window_strides"][axis], params["rhs_dilation"][axis]
    place = x.ndim - len(params["window_strides"]) + axis
    slices = [
        lax.slice_in_dim(x, start, start + (out - 1) * stride + 1, stride, axis=place)
        for start in range(0, size * dilation, dilation)
    ]
    return jnp.stack(slices, axis=1)
