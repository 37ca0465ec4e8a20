"""What must hold for every batch, whatever its gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdp

BATCH, WIDTH = 6, 5
# Contributions have norm at most C = 1 here, and each of the additions of a float32 sum
# of BATCH of them rounds by at most BATCH * 2^-24 in each of WIDTH entries.
SUM_ROUNDING = BATCH * BATCH * 2.0**-24 * WIDTH**0.5

floats = st.floats(width=32, allow_nan=True, allow_infinity=True)
batches = st.lists(floats, min_size=BATCH * WIDTH, max_size=BATCH * WIDTH).map(
    lambda numbers: np.float32(numbers).reshape(BATCH, WIDTH)
)
masks = st.lists(st.booleans(), min_size=BATCH, max_size=BATCH).map(np.array)
methods = st.sampled_from(["clip", "automatic"])
orders = st.sampled_from([1, 2])


def make(order, method):
    """The clipped sum of rows that are their own gradients, to C = 1, compiled."""
    grad_fn = jaxdp.clipped_grad(jnp.vdot, **{f"l{order}_clip_norm": 1.0}, method=method)
    zeros = jnp.zeros(WIDTH)
    compiled = jax.jit(lambda rows, mask: grad_fn(zeros, rows, is_padding=mask).value)
    return lambda *args: np.asarray(compiled(*args), np.float64)


SUMS = {
    (order, method): make(order, method) for order in (1, 2) for method in ("clip", "automatic")
}
ALL = np.zeros(BATCH, bool)


@settings(deadline=None, max_examples=300)
@given(batches, orders, methods)
def test_one_example_moves_the_sum_by_at_most_the_clip_norm(rows, order, method):
    for i in range(BATCH):
        others = np.arange(BATCH) != i  # all but one are padding: its contribution alone
        contribution = SUMS[order, method](rows, others)
        # Five float64 squares and four additions round by less than 1e-15.
        assert np.linalg.norm(contribution, order) <= 1 - 1e-15


@settings(deadline=None, max_examples=100)
@given(batches, orders, methods, st.integers(0, BATCH - 1))
def test_neighbouring_batches_have_sums_within_the_sensitivity(rows, order, method, left_out):
    with_it = SUMS[order, method](rows, ALL)
    without = SUMS[order, method](rows, np.arange(BATCH) == left_out)
    rounding = 2 * SUM_ROUNDING * (WIDTH**0.5 if order == 1 else 1)
    assert np.linalg.norm(with_it - without, order) <= 1 + rounding


@settings(deadline=None, max_examples=100)
@given(batches, masks, orders, methods, st.permutations(range(BATCH)))
def test_the_order_of_examples_changes_rounding_only(rows, mask, order, method, places):
    places = np.array(places)
    difference = SUMS[order, method](rows, mask) - SUMS[order, method](rows[places], mask[places])
    assert np.linalg.norm(difference) <= 2 * SUM_ROUNDING


@settings(deadline=None, max_examples=100)
@given(batches, batches, masks, orders, methods)
def test_what_padding_holds_changes_not_one_bit(rows, noise, mask, order, method):
    changed = np.where(mask[:, None], noise, rows)
    before, after = SUMS[order, method](rows, mask), SUMS[order, method](changed, mask)
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("microbatch_size", [None, 4])
def test_appended_padding_changes_rounding_only(microbatch_size):
    rows = np.random.default_rng(0).standard_normal((BATCH, WIDTH)).astype(np.float32)
    more = np.concatenate([rows, np.full((3, WIDTH), np.nan, np.float32)])
    grad_fn = jaxdp.clipped_grad(jnp.vdot, l2_clip_norm=1.0, microbatch_size=microbatch_size)
    zeros = jnp.zeros(WIDTH)
    padded = grad_fn(zeros, more, is_padding=np.arange(BATCH + 3) >= BATCH)
    difference = np.asarray(padded.value) - np.asarray(grad_fn(zeros, rows).value)
    assert np.linalg.norm(difference) <= 2 * SUM_ROUNDING
