import math

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxdp.clipping import convolution

# jax.enable_x64 is the newer name of the same scoped context manager.
if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64

HIGHEST = lax.Precision.HIGHEST
BATCH = 3

# Left operand, kernel and options. Each example's own batch axis counts as part of its shape.
CONVOLUTIONS = {
    "images, channels last": (
        (1, 8, 8, 3),
        (3, 3, 3, 5),
        {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NHWC")},
    ),
    "images, channels first": ((1, 3, 8, 7), (5, 3, 3, 2), {}),
    "one channel in and out": ((1, 1, 9, 9), (1, 1, 4, 4), {"window_strides": (2, 2)}),
    "one by one": ((1, 6, 4, 5), (3, 6, 1, 1), {}),
    "one by one, strided": ((1, 6, 5, 4), (3, 6, 1, 1), {"window_strides": (2, 3)}),
    "no spatial axes": ((4, 6), (3, 6), {}),
    "sequence, causal": (
        (1, 10, 4),
        (3, 4, 6),
        {"padding": ((4, 0),), "rhs_dilation": (2,), "dimension_numbers": ("NWC", "WIO", "NWC")},
    ),
    "volume": ((1, 2, 5, 6, 7), (4, 2, 3, 2, 3), {"window_strides": (1, 2, 1)}),
    "negative padding": ((1, 2, 9, 8), (3, 2, 3, 3), {"padding": ((-1, 2), (3, -2))}),
    "transposed": (
        (1, 5, 4, 3),
        (3, 3, 3, 2),
        {
            "padding": ((2, 1), (1, 2)),
            "lhs_dilation": (2, 3),
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        },
    ),
    "everything at once": (
        (2, 8, 9, 4),
        (3, 2, 2, 6),
        {
            "window_strides": (2, 1),
            "padding": ((-1, 3), (3, -2)),
            "lhs_dilation": (2, 3),
            "rhs_dilation": (1, 2),
            "feature_group_count": 2,
            "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
        },
    ),
    "grouped": ((2, 6, 8, 9), (12, 2, 3, 3), {"feature_group_count": 3}),
    "depthwise": ((1, 6, 8, 8), (6, 1, 3, 3), {"feature_group_count": 6}),
    "depthwise, two filters each": ((1, 6, 8), (12, 1, 3), {"feature_group_count": 6}),
    "grouped by batch": ((6, 4, 8, 9), (12, 4, 3, 3), {"batch_group_count": 3}),
    "strange axis orders": (
        (9, 4, 2, 6),
        (3, 3, 12, 2),
        {"feature_group_count": 3, "dimension_numbers": ("WHNC", "HWOI", "CNHW")},
    ),
    "window beyond the input": ((1, 2, 3), (4, 2, 5), {}),
    "a window over one entry of padding": ((1, 2, 1), (4, 2, 3), {"padding": ((1, 1),)}),
}


def forward(kernel, x, options):
    spatial = kernel.ndim - 2
    defaults = {"window_strides": (1,) * spatial, "padding": "VALID", "precision": HIGHEST}
    return lax.conv_general_dilated(x, kernel, **(defaults | options))


def params_of(lhs, kernel, options):
    """What the equation says, as the clipping code finds it."""
    shapes = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (kernel, lhs)]
    closed = jax.make_jaxpr(lambda w, x: forward(w, x, options))(*shapes)
    (equation,) = (e for e in closed.jaxpr.eqns if e.primitive.name == "conv_general_dilated")
    return equation.params


def draw(lhs, kernel, options, *, batch=BATCH, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    shapes = [jax.ShapeDtypeStruct(shape, dtype) for shape in (kernel, lhs)]
    out = jax.eval_shape(lambda w, x: forward(w, x, options), *shapes)
    return tuple(jnp.asarray(rng.normal(size=(batch, *shape)), dtype) for shape in (lhs, out.shape))


def oracle(kernel, options, x, g):
    def one(x, g):
        zeros = jnp.zeros(kernel, x.dtype)
        return jax.vjp(lambda w: forward(w, x, options), zeros)[1](g)[0]

    if len(kernel) == 2:
        # JAX 0.6.0 maps this gradient over a batch wrongly where there are no spatial axes.
        return jnp.stack([one(*example) for example in zip(x, g, strict=True)])
    return jax.vmap(one)(x, g)


def through_factors(params, kernel, x, g):
    rows, columns = convolution.factors(params, kernel, x, g)
    product = jnp.einsum("bmtd,bmtp->bmdp", rows, columns, precision=HIGHEST)
    return convolution.to_kernel(params, kernel, product)


def assert_all_agree(lhs, kernel, options, **kind):
    params = params_of(lhs, kernel, options)
    x, g = draw(lhs, kernel, options, **kind)

    @jax.jit
    def run(x, g):
        references = [oracle(kernel, options, *sides) for sides in ((x, g), (abs(x), abs(g)))]
        functions = (through_factors, convolution.gradients, convolution.gradient_sum)
        return references, [function(params, kernel, x, g) for function in functions]

    (expected, magnitude), (*each, total) = jax.tree.map(np.asarray, run(x, g))
    # n products are added in an unknown order: each result is within n eps / 2 of the truth,
    # relative to the sum of absolute values.
    terms = math.prod(g.shape[1:]) // kernel[params["dimension_numbers"].rhs_spec[0]] + 2
    bound = float(jnp.finfo(x.dtype).eps) * magnitude
    for actual in each:
        assert actual.shape == expected.shape
        assert actual.dtype == x.dtype
        assert np.all(np.abs(actual - expected) <= terms * bound)
    assert total.shape == tuple(kernel)
    assert total.dtype == x.dtype
    # The products' rounding, and adding up the batch in either order.
    allowance = (terms + len(x)) * bound.sum(axis=0)
    assert np.all(np.abs(total - expected.sum(axis=0)) <= allowance)


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with enable_x64(request.param == "float64"):
        yield np.dtype(request.param)


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradients_are_those_of_the_convolution(name, dtype):
    assert_all_agree(*CONVOLUTIONS[name], dtype=dtype)


@st.composite
def convolutions(draw_from):
    def per_axis(low, high):
        return tuple(draw_from(st.integers(low, high)) for _ in range(rank))

    rank = draw_from(st.integers(1, 3))
    sizes, window = per_axis(1, 6), per_axis(1, 3)
    groups = draw_from(st.integers(1, 3))
    channels_in, channels_out, own_batch = (draw_from(st.integers(1, 3)) for _ in range(3))
    by_batch = draw_from(st.booleans())
    lhs = {"N": own_batch * (groups if by_batch else 1), "C": channels_in}
    lhs["C"] *= 1 if by_batch else groups
    kernel = {"O": channels_out * groups, "I": channels_in}
    spatial = "DHW"[:rank]
    lhs |= dict(zip(spatial, sizes, strict=True))
    kernel |= dict(zip(spatial, window, strict=True))
    lhs_order, out_order = ("".join(draw_from(st.permutations("NC" + spatial))) for _ in range(2))
    kernel_order = "".join(draw_from(st.permutations("OI" + spatial)))
    options = {
        "window_strides": per_axis(1, 3),
        "padding": tuple(zip(per_axis(-2, 3), per_axis(-2, 3), strict=True)),
        "lhs_dilation": per_axis(1, 3),
        "rhs_dilation": per_axis(1, 3),
        "batch_group_count" if by_batch else "feature_group_count": groups,
        "dimension_numbers": (lhs_order, kernel_order, out_order),
    }
    drawn = (
        tuple(lhs[axis] for axis in lhs_order),
        tuple(kernel[axis] for axis in kernel_order),
        options,
    )
    try:
        params_of(*drawn)
    except ValueError:  # more is cut off than there is
        hypothesis.reject()
    return drawn


@pytest.mark.newest_only
@hypothesis.settings(deadline=None, max_examples=40, derandomize=True)
@hypothesis.given(convolutions(), st.integers(0, 3))
def test_gradients_of_any_convolution(drawn, batch):
    assert_all_agree(*drawn, batch=batch)


@pytest.mark.parametrize("limit", [1, 700, 1 << 18])
def test_the_sum_is_the_same_in_any_number_of_pieces(monkeypatch, limit):
    """One example's patches have 9 * 2 * 12 = 216 entries; 7 examples leave a rest."""
    monkeypatch.setattr(convolution, "_CHUNK_ENTRIES", limit)
    assert_all_agree((1, 2, 5, 6), (4, 2, 3, 3), {}, batch=7)


@pytest.mark.parametrize("name", ["images, channels last", "grouped by batch", "transposed"])
def test_both_platform_branches_agree(name):
    """What accelerators run is checked here on the CPU."""
    lhs, kernel, options = CONVOLUTIONS[name]
    params = params_of(lhs, kernel, options)
    x, g = draw(lhs, kernel, options)
    expected = oracle(kernel, options, x, g).sum(axis=0)
    bound = oracle(kernel, options, abs(x), abs(g)).sum(axis=0)
    terms = BATCH * math.prod(g.shape[1:])
    actual = convolution._transposed(params, kernel, x, g)
    assert np.all(np.abs(actual - expected) <= terms * jnp.finfo(jnp.float32).eps * bound)


@pytest.mark.parametrize("narrow", [jnp.bfloat16, jnp.float16])
def test_narrow_types_are_added_up_in_float32(narrow):
    lhs, kernel, options = CONVOLUTIONS["images, channels last"]
    params = params_of(lhs, kernel, options)
    x, g = (side.astype(narrow) for side in draw(lhs, kernel, options))
    wide = [side.astype(jnp.float32) for side in (x, g)]
    for function in (convolution.gradients, convolution.gradient_sum, through_factors):
        actual, expected = function(params, kernel, x, g), function(params, kernel, *wide)
        assert actual.dtype == jnp.float32
        # The same float32 program after an exact conversion; fusion may reorder 64 additions.
        scale = float(jnp.max(jnp.abs(expected)))
        np.testing.assert_allclose(actual, expected, rtol=0, atol=BATCH * 64 * 2**-23 * scale)


@pytest.mark.parametrize("name", ["images, channels first", "depthwise", "grouped by batch"])
@pytest.mark.parametrize("side", [0, 1])
def test_an_example_that_is_not_finite_leaves_the_others_alone(name, side):
    lhs, kernel, options = CONVOLUTIONS[name]
    params = params_of(lhs, kernel, options)
    sides = list(draw(lhs, kernel, options))
    clean = convolution.gradients(params, kernel, *sides)
    sides[side] = sides[side].at[1].set(jnp.nan)
    dirty = convolution.gradients(params, kernel, *sides)
    assert np.all(np.isnan(dirty[1]))
    np.testing.assert_array_equal(dirty[::2], clean[::2])


@pytest.mark.parametrize("wrap", ["jit", "vmap", "sharded"])
def test_gradients_inside_transformations(wrap):
    lhs, kernel, options = CONVOLUTIONS["images, channels last"]
    params = params_of(lhs, kernel, options)
    x, g = draw(lhs, kernel, options, batch=16)
    expected = oracle(kernel, options, x, g)
    # 64 positions of a gradient are added, and 16 examples.
    bound = 2**-23 * oracle(kernel, options, abs(x), abs(g))

    def both(x, g):
        return (
            convolution.gradients(params, kernel, x, g),
            convolution.gradient_sum(params, kernel, x, g),
        )

    if wrap == "vmap":
        pairs = [side.reshape(8, 2, *side.shape[1:]) for side in (x, g)]
        each, total = jax.jit(jax.vmap(both))(*pairs)
        each, total = each.reshape(expected.shape), total.sum(axis=0)
    else:
        if wrap == "sharded":
            mesh = jax.sharding.Mesh(np.array(jax.devices()), "batch")
            spread = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
            x, g = jax.device_put((x, g), spread)
        each, total = jax.jit(both)(x, g)
    assert np.all(np.abs(each - expected) <= 66 * bound)
    assert np.all(np.abs(total - expected.sum(axis=0)) <= (66 + 16) * bound.sum(axis=0))
