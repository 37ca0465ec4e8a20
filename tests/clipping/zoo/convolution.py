"""Convolutions in one to three dimensions, with every attribute they have."""

import jax
import jax.numpy as jnp
from jax import lax

from tests.clipping.zoo.entry import entry, loss_of


def conv(x, kernel, layout, **attributes):
    """A convolution of one example, to which the batch axis is added."""
    attributes = {"window_strides": (1,) * (x.ndim - 1), "padding": "SAME"} | attributes
    return lax.conv_general_dilated(x[None], kernel, dimension_numbers=layout, **attributes)[0]


LAYOUT_1D = ("NWC", "WIO", "NWC")
LAYOUT_2D = ("NHWC", "HWIO", "NHWC")
LAYOUT_3D = ("NDHWC", "DHWIO", "NDHWC")
CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")


@entry()
def convolution_1d(draw):
    def loss_fn(params, x):
        hidden = jnp.tanh(conv(x, params["k1"], LAYOUT_1D) + params["b"][None])
        return loss_of(conv(hidden, params["k2"], LAYOUT_1D, padding="VALID"))

    params = {"k1": draw.weights(3, 2, 4), "b": draw(4), "k2": draw.weights(2, 4, 3)}
    return loss_fn, params, (draw.inputs(9, 2),)


# The margin for the rounding of its Gram form is above 1e-5.
@entry(rtol=2e-5)
def convolution_2d_of_a_small_image_with_many_channels(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D))

    return loss_fn, draw.weights(3, 3, 12, 16), (draw.inputs(2, 2, 12),)


@entry()
def convolution_2d_of_a_large_image_with_few_channels(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D))

    return loss_fn, draw.weights(3, 3, 1, 2), (draw.inputs(12, 12, 1),)


@entry()
def convolution_2d_with_channels_first(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, CHANNELS_FIRST, padding=((0, 1), (2, 1))))

    return loss_fn, draw(4, 2, 3, 2), (draw.inputs(2, 5, 6),)


@entry()
def convolution_2d_strided(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D, window_strides=(2, 3)))

    return loss_fn, draw.weights(3, 3, 2, 4), (draw.inputs(7, 8, 2),)


@entry()
def convolution_2d_strided_that_leaves_pixels_out(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D, window_strides=(3, 3), padding="VALID"))

    return loss_fn, draw.weights(2, 2, 2, 4), (draw.inputs(7, 7, 2),)


@entry()
def convolution_2d_dilated(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D, rhs_dilation=(2, 1), window_strides=(1, 2)))

    return loss_fn, draw.weights(3, 2, 2, 3), (draw.inputs(6, 5, 2),)


@entry()
def convolution_2d_with_a_dilated_input(draw):
    def loss_fn(kernel, x):
        attributes = {"lhs_dilation": (2, 3), "padding": ((1, 2), (0, 1))}
        return loss_of(conv(x, kernel, LAYOUT_2D, **attributes))

    return loss_fn, draw.weights(3, 2, 2, 3), (draw.inputs(4, 3, 2),)


@entry()
def convolution_2d_with_negative_padding(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D, padding=((-1, 0), (1, -2))))

    return loss_fn, draw.weights(2, 2, 2, 3), (draw.inputs(6, 6, 2),)


@entry()
def convolution_2d_grouped(draw):
    def loss_fn(kernel, x):
        attributes = {"feature_group_count": 2, "window_strides": (2, 1)}
        return loss_of(conv(x, kernel, LAYOUT_2D, **attributes))

    return loss_fn, draw.weights(3, 3, 2, 6), (draw.inputs(5, 4, 4),)


@entry()
def convolution_2d_depthwise_and_pointwise(draw):
    def loss_fn(params, x):
        hidden = conv(x, params["depthwise"], LAYOUT_2D, feature_group_count=3)
        return loss_of(conv(jnp.tanh(hidden), params["pointwise"], LAYOUT_2D))

    params = {"depthwise": draw.weights(3, 3, 1, 6), "pointwise": draw.weights(1, 1, 6, 4)}
    return loss_fn, params, (draw.inputs(5, 4, 3),)


@entry()
def convolution_2d_with_a_batch_group_count(draw):
    def loss_fn(kernel, x):
        attributes = {"window_strides": (1, 1), "padding": "SAME", "batch_group_count": 2}
        return loss_of(
            lax.conv_general_dilated(x, kernel, dimension_numbers=LAYOUT_2D, **attributes)
        )

    return loss_fn, draw.weights(2, 2, 3, 4), (draw.inputs(2, 4, 4, 3),)


@entry()
def convolution_2d_transposed(draw):
    def loss_fn(kernel, x):
        y = lax.conv_transpose(x[None], kernel, (2, 2), "SAME", dimension_numbers=LAYOUT_2D)
        return loss_of(y)

    return loss_fn, draw.weights(3, 3, 2, 3), (draw.inputs(3, 4, 2),)


@entry()
def convolution_2d_transposed_with_a_flipped_kernel(draw):
    def loss_fn(kernel, x):
        y = lax.conv_transpose(
            x[None],
            kernel,
            (2, 1),
            "VALID",
            dimension_numbers=LAYOUT_2D,
            transpose_kernel=True,
        )
        return loss_of(y)

    return loss_fn, draw.weights(3, 2, 4, 2), (draw.inputs(3, 4, 2),)


@entry()
def convolution_over_several_images_in_one_example(draw):
    def loss_fn(kernel, frames):
        attributes = {"window_strides": (2, 2), "padding": "SAME"}
        y = lax.conv_general_dilated(frames, kernel, dimension_numbers=LAYOUT_2D, **attributes)
        return loss_of(y)

    return loss_fn, draw.weights(3, 3, 2, 4), (draw.inputs(3, 4, 4, 2),)


@entry(falls_back=True)
def convolution_vmapped_over_kernels(draw):
    def loss_fn(kernels, x):
        return loss_of(jax.vmap(lambda kernel: conv(x, kernel, LAYOUT_1D))(kernels))

    return loss_fn, draw.weights(3, 3, 2, 4), (draw.inputs(5, 2),)


@entry(falls_back=True)
def convolution_vmapped_over_kernels_and_images(draw):
    def loss_fn(kernels, x):
        return loss_of(jax.vmap(lambda kernel, one: conv(one, kernel, LAYOUT_1D))(kernels, x))

    return loss_fn, draw.weights(3, 3, 2, 4), (draw.inputs(3, 5, 2),)


@entry()
def convolution_3d(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_3D, window_strides=(1, 2, 1)))

    return loss_fn, draw.weights(2, 3, 2, 2, 3), (draw.inputs(3, 4, 3, 2),)


@entry()
def patch_embedding(draw):
    def loss_fn(kernel, x):
        return loss_of(conv(x, kernel, LAYOUT_2D, window_strides=(4, 4), padding="VALID"))

    return loss_fn, draw.weights(4, 4, 3, 10), (draw.inputs(8, 8, 3),)


@entry()
def causal_dilated_convolutions(draw):
    def loss_fn(kernels, x):
        for level, kernel in enumerate(kernels):
            attributes = {"rhs_dilation": (2**level,), "padding": ((2**level, 0),)}
            x = x + jnp.tanh(conv(x, kernel, LAYOUT_1D, **attributes))
        return loss_of(x)

    return loss_fn, [draw.weights(2, 3, 3) for _ in range(3)], (draw.inputs(10, 3),)


@entry()
def convolution_1d_by_numpy(draw):
    def loss_fn(w, x):
        return loss_of(jnp.convolve(x, w, mode="same"))

    return loss_fn, draw(4), (draw.inputs(9),)
