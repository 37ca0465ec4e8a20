"""Clipped sums of a split batch: those of one device, without gathering, bit for bit if asked."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdp
from jaxdp import distributed
from tests.distributed.losses import LOSSES, RNG


def over(devices, *, shape=None, axes="data", spec="data"):
    grid = np.array(jax.devices()[:devices])
    mesh = Mesh(grid if shape is None else grid.reshape(shape), axes)
    return NamedSharding(mesh, PartitionSpec(spec))


def place(tree, sharding):
    return jax.device_put(tree, NamedSharding(sharding.mesh, PartitionSpec()))


def assert_close(actual, expected, rtol):
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        largest = np.max(np.abs(np.asarray(other)), initial=0)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=rtol * largest, rtol=0)


def bits(tree):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def collectives(program):
    """The operations of a compiled program that move data between devices, with their shapes."""
    kinds = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
    return {
        (match[2], shape)
        for match in re.finditer(rf"= (\S.*?) ({kinds})(?:-start)?\(", program)
        for shape in re.findall(r"\w+\[[\d,]*\]", match[1])
    }


@pytest.mark.parametrize("strategy", ["auto", "per_example"])
@pytest.mark.parametrize("name", LOSSES)
def test_eight_devices_clip_what_one_does_and_gather_nothing(name, strategy):
    loss_fn, params, x = LOSSES[name]
    options = {"l2_clip_norm": 0.7, "strategy": strategy, "return_per_example": True}
    is_padding = jnp.arange(len(x)) >= 30
    expected, report = jax.jit(jaxdp.clipped_grad(loss_fn, **options))(
        params, x, is_padding=is_padding
    )
    split = over(8)
    grad_fn = distributed.sharded_clipped_grad(loss_fn, batch_sharding=split, **options)
    arguments = place(params, split), jax.device_put(x, split)
    program = jax.jit(grad_fn).lower(*arguments, is_padding=is_padding).compile()
    clipped, split_report = program(*arguments, is_padding=is_padding)
    # Additions in another order, of 30 terms of up to the sum's size each: 30 * 6e-8. Norms by
    # book-keeping carry a margin that depends on the strategy, and that on the batch: 1e-4.
    rtol = 2e-6 if strategy == "per_example" else 1e-4
    assert_close(clipped.value, expected.value, rtol)
    assert_close(split_report, report, rtol)
    assert float(clipped.l2_sensitivity) == float(expected.l2_sensitivity)
    shapes = {f"f32[{','.join(map(str, leaf.shape))}]" for leaf in jax.tree.leaves(params)}
    assert collectives(program.as_text()) == {("all-reduce", shape) for shape in shapes}


@pytest.mark.parametrize("name", LOSSES)
def test_a_fixed_number_of_shards_gives_the_same_bits_on_any_number_of_devices(name):
    loss_fn, params, x = LOSSES[name]
    found = []
    for devices in (1, 8):
        split = over(devices)
        grad_fn = distributed.sharded_clipped_grad(
            loss_fn, batch_sharding=split, num_shards=16, l2_clip_norm=0.7, return_per_example=True
        )
        clipped, report = jax.jit(grad_fn)(place(params, split), jax.device_put(x, split))
        found.append(bits((clipped.value, report, clipped.l2_sensitivity)))
    assert found[0] == found[1]
    expected = jax.jit(jaxdp.clipped_grad(loss_fn, l2_clip_norm=0.7))(params, x)
    assert_close(clipped.value, expected.value, 1e-4)


@pytest.mark.parametrize(("num_shards", "microbatch_size"), [(None, 3), (8, None)])
def test_keys_aux_frozen_arguments_and_odd_batches_are_those_of_one_device(
    num_shards, microbatch_size
):
    def loss_fn(params, x, scale, y, key):
        keep = jax.random.bernoulli(key, 0.5, x.shape)
        return jnp.sum(jnp.tanh((x * keep) @ params) * scale["by"] * y), jnp.sum(keep)

    options = {
        "l2_clip_norm": 0.3,
        "has_aux": True,
        "return_per_example": True,
        "frozen_argnums": 2,
        "microbatch_size": microbatch_size,
    }
    params, x = jnp.ones((6, 5)), jnp.asarray(RNG.normal(size=(13, 6)), jnp.float32)
    arguments = (params, x, {"by": jnp.float32(2.0)}, jnp.arange(13.0))
    key = jax.random.key(3)
    expected = jax.jit(jaxdp.clipped_grad(loss_fn, **options))(*arguments, key=key)
    grad_fn = distributed.sharded_clipped_grad(
        loss_fn, batch_sharding=over(4), num_shards=num_shards, **options
    )
    clipped, kept, report = jax.jit(grad_fn)(*arguments, key=key)
    np.testing.assert_array_equal(kept, expected[1])
    # 13 additions, and the margin of book-keeping's norms.
    assert_close(clipped.value, expected[0].value, 1e-5)
    assert_close(report, expected[2], 1e-5)


@pytest.mark.parametrize("spec", ["data", ("data", "model")])
def test_parameters_may_be_split_over_a_model_axis(spec):
    loss_fn, params, x = LOSSES["convolution"]
    split = over(8, shape=(4, 2), axes=("data", "model"), spec=spec)
    channels = {"kernel": PartitionSpec(None, None, None, "model"), "out": PartitionSpec("model")}
    shardings = {name: NamedSharding(split.mesh, channels[name]) for name in params}
    options = {"l2_clip_norm": 0.7, "strategy": "per_example"}
    grad_fn = distributed.sharded_clipped_grad(loss_fn, batch_sharding=split, **options)
    clipped = jax.jit(grad_fn)(jax.device_put(params, shardings), jax.device_put(x, split))
    expected = jax.jit(jaxdp.clipped_grad(loss_fn, **options))(params, x)
    assert_close(clipped.value, expected.value, 2e-6)


def test_an_adapted_clip_norm_may_be_traced():
    loss_fn, params, x = LOSSES["lookup"]

    def run(clip_norm, x):
        grad_fn = distributed.sharded_clipped_grad(
            loss_fn, batch_sharding=over(8), l2_clip_norm={"table": clip_norm, "out": 0.5}
        )
        return grad_fn(params, x)

    clipped = jax.jit(run)(0.25, x)
    expected = jaxdp.clipped_grad(loss_fn, l2_clip_norm={"table": 0.25, "out": 0.5})(params, x)
    assert_close(clipped.value, expected.value, 1e-4)
    assert float(clipped.l2_sensitivity) == float(expected.l2_sensitivity)


def test_no_example_weighs_more_than_the_clip_norm_on_any_number_of_devices():
    loss_fn, params, x = LOSSES["convolution"]
    for num_shards in (None, 16):
        grad_fn = jax.jit(
            distributed.sharded_clipped_grad(
                loss_fn, batch_sharding=over(8), num_shards=num_shards, l2_clip_norm=0.01
            )
        )
        everyone = jnp.zeros(len(x), bool)
        total = grad_fn(params, 100 * x, is_padding=everyone).value
        for i in (0, 13, 31):
            without = grad_fn(params, 100 * x, is_padding=everyone.at[i].set(True)).value
            moved = jax.tree.map(lambda a, b: np.asarray(a - b, np.float64), total, without)
            norm = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(moved)))
            # Rounding of sums of 32 contributions, in 1184 entries: 32 * 6e-8 * 0.01 * 34.
            assert 0.0099 < norm <= 0.01 + 7e-7


def test_an_unbounded_sum_of_anything_may_be_split_too():
    total = distributed.sum_over_devices(
        lambda weight, x: ({"sum": weight * jnp.sum(x), "rows": jnp.float32(x.shape[0])}, -x),
        over(8),
    )
    sums, outputs = total(2.0, jnp.arange(16.0))
    assert (float(sums["sum"]), float(sums["rows"])) == (240.0, 16.0)
    np.testing.assert_array_equal(outputs, -np.arange(16.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: over(8, spec=None), "batch_sharding must be a NamedSharding of one axis"),
        (lambda: "data", "batch_sharding must be a NamedSharding"),
        (lambda: jax.sharding.SingleDeviceSharding(jax.devices()[0]), "batch_sharding must be"),
    ],
)
def test_a_sharding_that_does_not_split_the_examples_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        distributed.sum_over_devices(lambda w, x: (w, x), call())


@pytest.mark.parametrize("num_shards", [0, 3, 8, 24, 16.0])
def test_shards_that_the_devices_do_not_divide_are_refused(num_shards):
    with pytest.raises(ValueError, match="num_shards must be"):
        distributed.sum_over_devices(lambda w, x: (w, x), over(8), num_shards=num_shards)


def test_rows_that_do_not_divide_and_bad_masks_are_refused():
    with pytest.raises(ValueError, match=r"rows must be a multiple of 8 \(use padding\), got '12"):
        distributed.sum_over_devices(lambda w, x: (w, x), over(8))(1.0, jnp.ones(12))
    grad_fn = distributed.sharded_clipped_grad(jnp.vdot, l2_clip_norm=1.0, batch_sharding=over(8))
    with pytest.raises(ValueError, match="is_padding must be a bool array of shape"):
        grad_fn(jnp.zeros(2), jnp.ones((3, 2)), is_padding=jnp.zeros(2, bool))
    with pytest.raises(ValueError, match="l2_clip_norm must be"):
        distributed.sharded_clipped_grad(jnp.vdot, l2_clip_norm=-1.0, batch_sharding=over(8))


def test_a_loop_around_what_sorts_is_the_loop_of_one_device():
    # The older partitioner of JAX 0.6 gave every device what the first one had sorted.
    def loss_fn(params, x):
        return jnp.sum(jnp.sort(jnp.abs(x)) * jnp.arange(6.0) * params)

    params, x = jnp.ones(6), jnp.asarray(RNG.normal(size=(16, 6)), jnp.float32)

    def run(grad_fn):
        def step(params, _):
            return params - 0.1 * grad_fn(params, x).value, None

        return jax.jit(lambda: jax.lax.scan(step, params, length=3)[0])()

    options = {"l2_clip_norm": 1.0, "strategy": "per_example"}
    alone = run(jaxdp.clipped_grad(loss_fn, **options))
    # Three sums of 16 terms below 1, a tenth of each.
    for num_shards in (None, 16):
        split = distributed.sharded_clipped_grad(
            loss_fn, batch_sharding=over(8), num_shards=num_shards, **options
        )
        np.testing.assert_allclose(run(split), alone, atol=3 * 16 * 6e-8)


def test_the_older_partitioner_is_refused():
    jax.config.update("jax_use_shardy_partitioner", False)
    with pytest.raises(ValueError, match="jax_use_shardy_partitioner must be True"):
        distributed.sum_over_devices(lambda w, x: (w, x), over(8))(1.0, jnp.ones(8))
    distributed.sum_over_devices(lambda w, x: (w, x), over(1))(1.0, jnp.ones(8))
