"""The private step on many devices: noise once, after the sum, in the parameters' sharding."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jaxdp
from jaxdp import ClippedSum, distributed, sampling

KEY = jax.random.key(11)


def mesh_of(devices, model=1):
    grid = np.array(jax.devices()[:devices]).reshape(devices // model, model)
    return Mesh(grid, ("data", "model"))


def test_noise_is_drawn_where_the_parameters_are_and_has_the_bits_of_one_device():
    shapes = {"w": (96, 136), "b": (136,)}
    zeros = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    tx = jaxdp.privatize(
        optax.adam(1e-2), noise_multiplier=1.3, expected_batch_size=10.0, key=jax.random.clone(KEY)
    )

    def noisy(params):
        updates, state = tx.update(ClippedSum(params, 0.7), tx.init(params), params)
        return updates, state[2][0].mu

    expected = jax.jit(noisy)(zeros)
    mesh = mesh_of(8, model=4)
    shardings = {
        "w": NamedSharding(mesh, PartitionSpec(None, "model")),
        "b": NamedSharding(mesh, PartitionSpec("model")),
    }
    program = jax.jit(noisy, out_shardings=(shardings, shardings)).lower(
        jax.device_put(zeros, shardings)
    )
    compiled = program.compile()
    found = compiled(jax.device_put(zeros, shardings))
    # mu is a tenth of the noisy gradient: the same bits, where Adam's quotient may be rounded
    # otherwise in another program.
    for name in shapes:
        np.testing.assert_array_equal(found[1][name], expected[1][name])
        np.testing.assert_allclose(found[0][name], expected[0][name], rtol=1e-5)
        assert found[1][name].sharding.is_equivalent_to(shardings[name], len(shapes[name]))
    text = compiled.as_text()
    assert not re.search("all-gather|all-reduce|all-to-all|collective-permute", text)
    # No device has ever held the whole of it: 136 columns are 34 on each.
    assert "[96,34]" in text
    assert "[96,136]" not in text


@pytest.mark.parametrize("devices", [1, 2, 8])
def test_the_noise_in_an_update_is_z_c_over_e_on_any_number_of_devices(devices):
    """CASES 28: noise of each device's own would be sqrt(devices) too large."""
    entries, z, clip_norm, expected_size = 100_000, 1.5, 0.8, 16
    split = NamedSharding(mesh_of(devices), PartitionSpec("data"))
    grad_fn = distributed.sharded_clipped_grad(
        lambda params, x: x * jnp.sum(params), batch_sharding=split, l2_clip_norm=clip_norm
    )
    tx = jaxdp.dp_sgd(
        1.0, noise_multiplier=z, expected_batch_size=expected_size, key=jax.random.clone(KEY)
    )

    @jax.jit
    def step(params, x):
        updates, _ = tx.update(grad_fn(params, x), tx.init(params), params)
        return updates

    params = jnp.zeros(entries)
    noise = np.asarray(step(params, jax.device_put(jnp.zeros(16), split)), np.float64)
    # Std of the sample std is sigma / sqrt(2 n): 5 of them fail once in 1.7 million runs.
    assert abs(noise.std() / (z * clip_norm / expected_size) - 1) < 5 / (2 * entries) ** 0.5
    signal = np.asarray(step(params, jax.device_put(jnp.full(16, 9.0), split)), np.float64)
    # 16 examples of norm C in the direction of all ones: the noise is the same, bit for bit but
    # for the rounding of the sum.
    expected = -16 * clip_norm / entries**0.5 / expected_size
    np.testing.assert_allclose(signal - noise, expected, atol=1e-6)


def test_the_sampler_draws_the_same_bits_on_many_devices():
    def draw(key):
        return sampling.poisson_batch(
            key, num_examples=1000, sampling_probability=0.1, max_batch_size=160
        )

    alone = draw(jax.random.clone(KEY))
    same = NamedSharding(mesh_of(8), PartitionSpec())
    split = NamedSharding(mesh_of(8), PartitionSpec("data"))
    for sharding in (same, split):
        out = sampling.PoissonBatch(sharding, sharding, same)
        on_many = jax.jit(draw, out_shardings=out)(jax.device_put(jax.random.clone(KEY), same))
        jax.tree.map(np.testing.assert_array_equal, on_many, alone)


def test_the_one_call_step_takes_a_sharded_batch_and_sharded_parameters():
    def loss_fn(params, example):
        x, y = example
        hidden = jnp.tanh(x @ params["in"])
        return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["out"], y)

    private = jaxdp.make_private(
        loss_fn,
        optax.adam(1e-2),
        target_epsilon=8.0,
        delta=1e-5,
        num_examples=64,
        expected_batch_size=64,
        num_steps=5,
        l2_clip_norm=0.5,
    )
    rng = np.random.default_rng(0)
    params = {
        "in": jnp.asarray(rng.normal(size=(12, 16)), jnp.float32),
        "out": jnp.asarray(rng.normal(size=(16, 8)), jnp.float32),
    }
    batch = jnp.asarray(rng.normal(size=(64, 12)), jnp.float32), jnp.arange(64) % 8
    mesh = mesh_of(8, model=2)
    rows = NamedSharding(mesh, PartitionSpec("data"))
    columns = NamedSharding(mesh, PartitionSpec(None, "model"))
    results = []
    for placed in ((params, batch), (jax.device_put(params, columns), jax.device_put(batch, rows))):
        state = private.init(placed[0], jax.random.clone(KEY))
        step = jax.jit(private.step)
        for _ in range(2):
            state, metrics = step(state, placed[1])
        results.append((state.params, metrics))
    for name in params:
        # Two steps of 0.01 of Adam, off by the relative rounding of sums of 64: 64 * 6e-8 * 100.
        one, many = (np.asarray(found[0][name]) for found in results)
        np.testing.assert_allclose(many, one, atol=2 * 0.01 * 4e-4)
    assert float(results[0][1].epsilon) == float(results[1][1].epsilon)
    assert results[1][0]["in"].sharding.is_equivalent_to(columns, 2)


def test_the_one_call_step_splits_its_batch_over_devices():
    def loss_fn(params, example, key):
        x, y = example
        keep = jax.random.bernoulli(key, 0.8, x.shape)
        return (jnp.tanh((x * keep) @ params) @ jnp.ones(4) - y) ** 2

    rng = np.random.default_rng(0)
    params = jnp.asarray(rng.normal(size=(6, 4)) / 3, jnp.float32)
    batch = jnp.asarray(rng.normal(size=(50, 6)), jnp.float32), jnp.ones(50)
    found = []
    for devices, num_shards in ((1, None), (8, None), (1, 16), (8, 16)):
        private = jaxdp.make_private(
            loss_fn,
            optax.sgd(0.5),
            target_epsilon=8.0,
            delta=1e-5,
            num_examples=50,
            expected_batch_size=50,
            num_steps=5,
            l2_clip_norm=0.5,
            loss_takes_key=True,
            batch_sharding=NamedSharding(mesh_of(devices), PartitionSpec("data")),
            num_shards=num_shards,
        )
        state = private.init(params, jax.random.clone(KEY))
        state, metrics = jax.jit(private.step)(state, batch)
        assert 0.2 < float(metrics.clipped_fraction) <= 1.0
        found.append(np.asarray(state.params))
    # One step of half a sum of 50 contributions over 50: 50 * 6e-8 * 0.5 * 0.5.
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], rtol=0, atol=1e-6)
    np.testing.assert_array_equal(found[2], found[3])
