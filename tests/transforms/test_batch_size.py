"""Division by the expected batch size, and by nothing else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import ClippedSum

PARAMS = {"w": jnp.ones((3, 4)), "b": jnp.ones(4, jnp.bfloat16)}


def test_scale_by_batch_size_passes_the_contract(check_contract):
    sums = {"w": jnp.ones((3, 4)), "b": jnp.ones(4)}
    check_contract(lambda: jaxdp.scale_by_batch_size(7.5), sums, PARAMS)


def test_it_divides_by_the_number_given_whatever_the_batch_held():
    tx = jaxdp.scale_by_batch_size(8)
    mean, _ = tx.update(jnp.asarray([4.0, 0.0]), tx.init(None))
    np.testing.assert_array_equal(np.asarray(mean), [0.5, 0.0])


def test_the_batch_size_may_be_traced():
    mean = jax.jit(lambda size: jaxdp.scale_by_batch_size(size).update(jnp.ones(2), ())[0])(4.0)
    np.testing.assert_array_equal(np.asarray(mean), [0.25, 0.25])


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("inf"), None, "8", True])
def test_a_bad_batch_size_is_refused(size):
    with pytest.raises(ValueError, match="expected_batch_size must be a finite number > 0, got"):
        jaxdp.scale_by_batch_size(size)


def test_a_sum_without_noise_is_refused():
    tx = jaxdp.scale_by_batch_size(8)
    with pytest.raises(ValueError, match="put add_gaussian_noise"):
        tx.update(ClippedSum(jnp.ones(3), 1.0), tx.init(None))
