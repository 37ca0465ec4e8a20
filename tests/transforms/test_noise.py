"""The noise links: scale, independence, refusals, the contract."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import jaxdp
from jaxdp import ClippedSum, noise

PARAMS = {"w": jnp.ones((3, 4)), "b": jnp.ones(4, jnp.bfloat16)}


def clipped_like(params, l2_sensitivity=1.0, l1_sensitivity=None):
    value = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), params)
    return ClippedSum(value, l2_sensitivity, l1_sensitivity)


LINKS = {
    "gaussian": lambda: jaxdp.add_gaussian_noise(1.5, key=jax.random.key(3)),
    "gaussian scheduled": lambda: jaxdp.add_gaussian_noise(
        lambda step: 1.0 + step, key=jax.random.key(3)
    ),
    "gaussian precomputed": lambda: jaxdp.add_gaussian_noise(
        1.5, key=jax.random.key(3), precompute_steps=3
    ),
    "laplace": lambda: jaxdp.add_laplace_noise(1.5, key=jax.random.key(3)),
}


@pytest.mark.parametrize("name", LINKS)
def test_noise_links_pass_the_contract(name, check_contract):
    check_contract(LINKS[name], clipped_like(PARAMS, 0.7, 0.7), PARAMS)


def test_gaussian_noise_scales_with_the_sensitivity_of_the_sum():
    params = jnp.zeros(200_000)
    tx = jaxdp.add_gaussian_noise(2.0, key=jax.random.key(0))
    draws, _ = tx.update(ClippedSum(params, l2_sensitivity=3.0), tx.init(params))
    # Std of the sample std is sigma / sqrt(2 n): 5 of them fail once in 1.7 million runs.
    assert abs(np.asarray(draws).std() - 6.0) < 5 * 6.0 / (2 * 200_000) ** 0.5
    assert stats.kstest(np.asarray(draws, np.float64) / 6.0, stats.norm().cdf).pvalue > 1e-6


def test_laplace_noise_scales_with_the_l1_sensitivity_of_the_sum():
    params = jnp.zeros(200_000)
    tx = jaxdp.add_laplace_noise(2.0, key=jax.random.key(0))
    draws, _ = tx.update(ClippedSum(params, 1.0, l1_sensitivity=3.0), tx.init(params))
    # E|z| = 6 with standard error 6 / sqrt(n): 5 of them fail once in 1.7 million runs.
    assert abs(np.abs(np.asarray(draws)).mean() - 6.0) < 5 * 6.0 / 200_000**0.5
    assert stats.kstest(np.asarray(draws, np.float64) / 6.0, stats.laplace().cdf).pvalue > 1e-6


def test_a_schedule_sets_the_noise_of_each_step():
    params = jnp.zeros(100_000)
    tx = jaxdp.add_gaussian_noise(lambda step: 2.0**step, key=jax.random.key(1))
    state = tx.init(params)
    for step in range(4):
        draws, state = tx.update(ClippedSum(params, 1.0), state)
        # As above, relative: 5 / sqrt(2 n) = 0.0112.
        assert abs(np.asarray(draws).std() / 2.0**step - 1.0) < 5 / (2 * 100_000) ** 0.5


@pytest.mark.parametrize("name", ["gaussian", "gaussian precomputed", "laplace"])
def test_every_step_draws_its_own_noise_and_a_fresh_init_is_the_same_run(name):
    clipped = clipped_like(PARAMS, 1.0, 1.0)
    runs = []
    for _ in range(2):
        tx = LINKS[name]()
        state, rows = tx.init(PARAMS), []
        for _ in range(10):
            noisy, state = tx.update(clipped, state)
            rows.append(np.asarray(noisy["w"]))
        runs.append(np.stack(rows))
    np.testing.assert_array_equal(runs[0], runs[1])
    assert len({row.tobytes() for row in runs[0]}) == 10


def test_different_keys_give_different_runs():
    first, second = (jaxdp.add_gaussian_noise(1.0, key=jax.random.key(seed)) for seed in (0, 1))
    clipped = clipped_like(PARAMS)
    left, _ = first.update(clipped, first.init(PARAMS))
    right, _ = second.update(clipped, second.init(PARAMS))
    assert not np.any(np.asarray(left["w"]) == np.asarray(right["w"]))


@pytest.mark.parametrize("size", [1, 3, 1000, 100_001])
def test_the_noisy_sum_has_the_same_bits_jitted_scanned_sharded_or_precomputed(size):
    value = jax.random.normal(jax.random.key(5), (size,))
    clipped = ClippedSum({"w": value}, 0.7)
    tx = jaxdp.add_gaussian_noise(1.3, key=jax.random.key(0))
    state = tx.init(clipped.value)
    plain = np.asarray(tx.update(clipped, state)[0]["w"])
    jitted = jax.jit(tx.update)(clipped, state)[0]["w"]
    scanned = jax.lax.scan(lambda s, _: tx.update(clipped, s)[::-1], state, length=2)[1]["w"][0]
    ahead = jaxdp.add_gaussian_noise(1.3, key=jax.random.key(0), precompute_steps=4)
    precomputed = jax.jit(ahead.update)(clipped, ahead.init(clipped.value))[0]["w"]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    spread = jax.jit(tx.update)(jax.device_put(clipped, everywhere), state)[0]["w"]
    for other in (jitted, scanned, precomputed, spread):
        np.testing.assert_array_equal(plain, np.asarray(other))


def test_eight_devices_draw_the_noise_of_one():
    value = jnp.arange(8 * 100.0).reshape(8, 100)
    tx = jaxdp.add_gaussian_noise(1.0, key=jax.random.key(0))
    state = tx.init(value)
    plain, _ = tx.update(ClippedSum(value, 2.0), state)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    sharded, _ = jax.jit(tx.update)(ClippedSum(jax.device_put(value, split), 2.0), state)
    assert len(sharded.sharding.device_set) == 8
    np.testing.assert_array_equal(np.asarray(plain), np.asarray(sharded))


def test_zero_noise_passes_the_sum_through():
    tx = jaxdp.add_gaussian_noise(0.0, key=jax.random.key(0))
    clipped = ClippedSum(jnp.arange(3.0), 1.0)
    noisy, _ = tx.update(clipped, tx.init(clipped.value))
    np.testing.assert_array_equal(np.asarray(noisy), np.arange(3.0))


def test_low_precision_sums_get_float32_noise():
    clipped = ClippedSum(jnp.zeros(1000, jnp.bfloat16), 1.0)
    tx = jaxdp.add_gaussian_noise(1.0, key=jax.random.key(0))
    noisy, _ = tx.update(clipped, tx.init(clipped.value))
    assert noisy.dtype == jnp.float32


@pytest.mark.parametrize("link", ["gaussian", "laplace"])
def test_a_raw_gradient_is_refused_with_what_to_do(link):
    tx = LINKS[link]()
    with pytest.raises(ValueError, match=r"expects the ClippedSum .* got a dict: an unclipped"):
        tx.update(PARAMS, tx.init(PARAMS))


def test_laplace_noise_refuses_a_sum_that_bounds_l2_only():
    tx = LINKS["laplace"]()
    with pytest.raises(ValueError, match="bounds the L2 norm only"):
        tx.update(clipped_like(PARAMS), tx.init(PARAMS))


@pytest.mark.parametrize(
    "meddler",
    [
        optax.scale(0.5),
        optax.clip(0.1),
        optax.clip_by_global_norm(0.1),
        optax.trace(0.9),
        optax.scale_by_adam(),
    ],
)
def test_arithmetic_between_clipping_and_noise_is_refused(meddler):
    clipped = ClippedSum({"w": jnp.ones(3)}, 1.0)
    tx = optax.chain(meddler, jaxdp.add_gaussian_noise(1.0, key=jax.random.key(0)))
    state = tx.init(clipped.value)
    # Optax itself stops at the foreign tree or dtype, or the sum is found tampered with.
    with pytest.raises((ValueError, TypeError)):
        tx.update(clipped, state, clipped.value)


@pytest.mark.parametrize("noise_multiplier", [-1.0, float("nan"), float("inf"), "1", None, True])
@pytest.mark.parametrize("link", [jaxdp.add_gaussian_noise, jaxdp.add_laplace_noise])
def test_a_bad_noise_multiplier_is_refused(link, noise_multiplier):
    with pytest.raises(ValueError, match=r"noise_multiplier must be a finite number >= 0, got"):
        link(noise_multiplier, key=jax.random.key(0))


def test_a_multiplier_rounded_to_bfloat16_is_refused():
    with pytest.raises(ValueError, match="hyperparam_dtype"):
        jaxdp.add_gaussian_noise(jnp.asarray(1.1, jnp.bfloat16), key=jax.random.key(0))


def test_precomputed_noise_is_that_of_the_noise_module():
    tx = LINKS["gaussian precomputed"]()
    state = tx.init(PARAMS)
    for step in range(7):
        noisy, state = tx.update(clipped_like(PARAMS), state)
        unit = noise.gaussian(jax.random.key(3), step, PARAMS)["w"]
        np.testing.assert_array_equal(np.asarray(noisy["w"]), np.asarray(1.5 * unit))
