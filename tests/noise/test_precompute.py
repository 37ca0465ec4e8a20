"""A block of noise is the same noise, handed out once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import noise

LIKE = {"w": jnp.zeros((3, 5)), "b": jnp.zeros(7, jnp.bfloat16)}


def assert_same_bits(left, right):
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), left, right
    )


@pytest.mark.parametrize("num_steps", [1, 2, 5])
@pytest.mark.parametrize("first_step", [0, 11])
def test_a_block_equals_noise_drawn_step_by_step(num_steps, first_step):
    key = jax.random.key(3)
    block = noise.precompute(key, LIKE, num_steps, first_step=first_step)
    for step in range(first_step, first_step + 12):
        z, block = noise.take(block)
        assert_same_bits(z, noise.gaussian(key, step, LIKE))


def test_a_block_that_runs_inside_scan_never_repeats_a_row():
    block = noise.precompute(jax.random.key(0), jnp.zeros(6), 4)

    def body(block, _):
        z, block = noise.take(block)
        return block, z

    _, rows = jax.jit(lambda block: jax.lax.scan(body, block, length=25))(block)
    # 25 rows of 6 float32 samples: equal rows by chance have probability < 1e-35.
    assert len({row.tobytes() for row in np.asarray(rows)}) == 25


def test_blocks_can_be_mapped_over_keys():
    keys = jax.random.split(jax.random.key(9), 3)
    copies = [jax.random.clone(key) for key in keys]

    def five_steps(key):
        block, rows = noise.precompute(key, jnp.zeros(4), 2), []
        for _ in range(5):
            z, block = noise.take(block)
            rows.append(z)
        return jnp.stack(rows)

    assert_same_bits(jax.vmap(five_steps)(keys), jnp.stack([five_steps(key) for key in copies]))


def test_a_block_of_nothing_counts_its_steps():
    z, block = noise.take(noise.precompute(jax.random.key(0), {}, 2))
    assert z == {}
    assert int(block.step) == 1


@pytest.mark.parametrize("num_steps", [0, -1, 2.0, True, None])
def test_a_bad_number_of_steps_is_refused(num_steps):
    with pytest.raises(ValueError, match=f"num_steps must be an integer >= 1, got {num_steps}"):
        noise.precompute(jax.random.key(0), LIKE, num_steps)
