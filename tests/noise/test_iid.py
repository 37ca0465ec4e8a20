"""The law and the independence of one step's noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxdp import noise

# Every statistical test here fails on a correct library once in a million runs or less.
P_VALUE = 1e-6


def many_draws(sampler, num_keys=200, size=5_000):
    keys = jax.vmap(jax.random.key)(jnp.arange(num_keys))
    draws = jax.vmap(lambda key: sampler(key, 3, jnp.zeros(size)))(keys)
    return np.asarray(draws, np.float64).ravel()


@pytest.mark.parametrize(
    ("sampler", "law"), [(noise.gaussian, stats.norm()), (noise.laplace, stats.laplace())]
)
def test_entries_follow_the_stated_law(sampler, law):
    draws = many_draws(sampler)
    # A float32 sample sits on a grid of relative step 6e-8, far below what the
    # Kolmogorov-Smirnov statistic of a million samples (about 1e-3) resolves.
    assert stats.kstest(draws, law.cdf).pvalue > P_VALUE


@pytest.mark.parametrize(
    ("sampler", "variance", "kurtosis"), [(noise.gaussian, 1.0, 3.0), (noise.laplace, 2.0, 6.0)]
)
def test_variance_is_the_stated_one(sampler, variance, kurtosis):
    draws = many_draws(sampler)
    # The standard error of a mean square is variance * sqrt((kurtosis - 1) / n); five of
    # them are exceeded by a correct sampler once in 1.7 million runs.
    tolerance = 5 * variance * np.sqrt((kurtosis - 1) / draws.size)
    assert abs(np.mean(draws**2) - variance) < tolerance


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_low_precision_parameters_get_float32_noise(dtype):
    z = noise.gaussian(jax.random.key(0), 0, jnp.zeros(100_000, dtype))
    assert z.dtype == jnp.float32
    # bfloat16 samples take 128 values and none beyond 2.9 standard deviations. A correct
    # sampler has 100,000 * 2.7e-3 = 270 entries beyond 3, and none once in e^270 runs.
    assert np.unique(np.asarray(z)).size > 90_000
    assert np.abs(np.asarray(z)).max() > 3.0


def test_no_two_steps_or_leaves_share_noise():
    tree = {"a": jnp.zeros(8), "b": [jnp.zeros(8), jnp.zeros((2, 4))]}
    key = jax.random.key(0)
    rows = [
        np.asarray(leaf).ravel()
        for sampler in (noise.gaussian, noise.laplace)
        for step in range(50)
        for leaf in jax.tree.leaves(sampler(key, step, tree))
    ]
    # 300 rows of 8 float32 samples: two equal rows by chance have probability < 1e-40.
    assert len({row.tobytes() for row in rows}) == 300


def test_steps_and_leaves_are_uncorrelated():
    tree = [jnp.zeros(100_000), jnp.zeros(100_000)]
    key = jax.random.key(1)
    rows = [np.asarray(leaf) for step in range(3) for leaf in noise.gaussian(key, step, tree)]
    off_diagonal = np.corrcoef(rows)[np.triu_indices(6, 1)]
    # A sample correlation of independent rows has standard error 1/sqrt(n); 15 pairs.
    assert np.abs(off_diagonal).max() < 5.5 / np.sqrt(100_000)


def test_the_same_step_gives_the_same_bits_jitted_vmapped_or_sharded():
    key, like = jax.random.key(7), jnp.zeros((8, 1000))
    plain = np.asarray(noise.gaussian(key, 5, like))
    jitted = jax.jit(noise.gaussian)(key, 5, like)
    mapped = jax.vmap(lambda step: noise.gaussian(key, step, like))(jnp.arange(4, 7))[1]
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    assert len(jax.devices()) == 8
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    sharded = jax.jit(noise.gaussian, out_shardings=split)(key, 5, jax.device_put(like, split))
    assert len(sharded.sharding.device_set) == 8
    for other in (jitted, mapped, sharded):
        np.testing.assert_array_equal(plain, np.asarray(other))


def test_an_empty_tree_has_no_noise():
    assert noise.gaussian(jax.random.key(0), 0, {}) == {}


@pytest.mark.parametrize("sampler", [noise.gaussian, noise.laplace])
def test_integer_leaves_and_raw_keys_are_refused(sampler):
    with pytest.raises(ValueError, match=r"tree\['a'\] must be a floating-point array"):
        sampler(jax.random.key(0), 0, {"a": jnp.zeros(3, jnp.int32)})
    with pytest.raises(ValueError, match="key must be a scalar typed PRNG key"):
        sampler(jax.random.PRNGKey(0), 0, jnp.zeros(3))
