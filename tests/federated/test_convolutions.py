"""Convolutions in another layout are the same convolutions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.federated import convolutions

RNG = np.random.default_rng(12)

# (input shape, kernel shape, keyword arguments of conv_general_dilated)
CASES = {
    "as images are": ((4, 7, 6, 3), (3, 2, 3, 5), {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}),
    "channels first": ((4, 3, 7, 6), (5, 3, 3, 2), {"padding": "SAME"}),
    "mixed": (
        (3, 4, 7, 6),
        (5, 2, 3, 3),
        {"dimension_numbers": ("CNHW", "OWHI", "HCWN"), "window_strides": (2, 1)},
    ),
    "dilated": (
        (4, 3, 9, 8),
        (5, 3, 3, 2),
        {"rhs_dilation": (2, 3), "lhs_dilation": (1, 2), "padding": ((1, 2), (0, 3))},
    ),
    "grouped": ((4, 6, 7, 5), (9, 2, 3, 3), {"feature_group_count": 3}),
    "batch groups": ((4, 3, 7, 5), (6, 3, 3, 3), {"batch_group_count": 2}),
    "sequence": ((4, 3, 11), (5, 3, 4), {"window_strides": (3,)}),
    "volume": ((2, 3, 5, 4, 6), (5, 3, 2, 2, 3), {}),
}


def is_fast(equation):
    numbers = equation.params["dimension_numbers"]
    last = len(numbers.lhs_spec) - 1
    return numbers.lhs_spec[:2] == numbers.out_spec[:2] == (0, last) and numbers.rhs_spec[:2] == (
        last,
        last - 1,
    )


def convolutions_of(jaxpr):
    for equation in jaxpr.eqns:
        if equation.primitive.name == "conv_general_dilated":
            yield equation
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda p: hasattr(p, "jaxpr")
        ):
            if hasattr(inner, "jaxpr"):
                yield from convolutions_of(inner.jaxpr)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradients_are_the_same_and_every_convolution_is_fast(name):
    input_shape, kernel_shape, settings = CASES[name]
    settings = {"window_strides": (1,) * (len(input_shape) - 2), "padding": "VALID"} | settings
    inputs, kernel = (
        jnp.asarray(RNG.normal(size=shape), jnp.float32) for shape in (input_shape, kernel_shape)
    )

    @functools.partial(jax.jit, inline=False)
    def convolve(inputs, kernel):
        return jax.lax.conv_general_dilated(inputs, kernel, **settings)

    def loss(arguments):
        return jnp.sum(jnp.tanh(convolve(arguments["x"], arguments["k"]))), {"aux": jnp.ones(2)}

    plain = jax.value_and_grad(loss, has_aux=True)
    fast = convolutions.in_fast_layout(plain)
    arguments = {"x": inputs, "k": kernel}
    expected, actual = plain(arguments), fast(arguments)
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for a, e in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        # Sums of some hundred float32 products of numbers near 1, in another order.
        np.testing.assert_allclose(a, e, rtol=0, atol=1e-4)
    found = list(convolutions_of(jax.make_jaxpr(fast)(arguments).jaxpr))
    assert len(found) == 3
    assert all(map(is_fast, found))


def test_a_function_without_convolutions_is_left_alone():
    calls = []

    def fn(x):
        calls.append(1)
        return jnp.sin(x)

    wrapped = convolutions.in_fast_layout(fn)
    assert str(jax.make_jaxpr(wrapped)(1.0)) == str(jax.make_jaxpr(fn)(1.0))


def test_values_that_are_closed_over_keep_their_gradients_and_batches():
    x = jnp.asarray(RNG.normal(size=(2, 3, 6, 6)), jnp.float32)
    kernel = jnp.asarray(RNG.normal(size=(4, 3, 3, 3)), jnp.float32)

    def run(scale):
        def fn(kernel):
            return jax.lax.conv_general_dilated(scale * x, kernel, (1, 1), "SAME")

        return jnp.sum(convolutions.in_fast_layout(fn)(kernel))

    def plain(scale):
        return jnp.sum(jax.lax.conv_general_dilated(scale * x, kernel, (1, 1), "SAME"))

    scales = jnp.array([1.0, 2.0])
    np.testing.assert_allclose(jax.vmap(run)(scales), jax.vmap(plain)(scales), rtol=1e-4)
