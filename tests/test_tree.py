import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import _tree

# The largest relative excess that the docstring promises, and the floor it promises.
PROMISED = 2 * 1.2e-5
ORDERS = {2: _tree.l2_norm_bound, 1: _tree.l1_norm_bound}
BATCHED = {2: _tree.l2_norm_bounds, 1: _tree.l1_norm_bounds}
COMBINED = {2: _tree.combine_l2, 1: _tree.combine_l1}


def true_norm(tree, order):
    """In float64: squares of float32 are exact there, and NumPy adds pairwise, to 1e-13."""
    leaves = [np.abs(np.asarray(leaf, np.float64)).ravel() for leaf in jax.tree.leaves(tree)]
    flat = np.concatenate([*leaves, np.zeros(0)])
    # float32 subnormals are documented to read as zero.
    flat = np.where(flat < 2.0**-126, 0.0, flat)
    return np.sqrt(np.sum(flat**2)) if order == 2 else np.sum(flat)


def bound_of(tree, order):
    bound = jax.jit(ORDERS[order])(tree)
    return np.float64(bound.scaled) * np.float64(bound.scale)


def assert_tight_upper_bound(tree, order):
    truth, bound = true_norm(tree, order), bound_of(tree, order)
    # 1e-12 stands for the error of the reference.
    assert truth * (1 + 1e-12) <= bound or truth == bound == 0
    assert bound <= truth * (1 + PROMISED)


def hard_vectors(n):
    rng = np.random.default_rng(n)
    first = np.arange(n) == 0
    return {
        "squares vanish beside the first": np.where(first, 1.0, 2.0**-12.5),
        "squares vanish beside the last": np.where(first, 1.0, 2.0**-12.5)[::-1],
        "values vanish beside the first": np.where(first, 1.0, 2.0**-24.5),
        "equal": np.full(n, 0.1),
        "random": rng.standard_normal(n),
        "squares overflow": rng.standard_normal(n) * 1e30,
        "the largest floats": np.full(n, 3.4028235e38),
        "squares underflow": rng.standard_normal(n) * 1e-30,
        "around the smallest normal": rng.standard_normal(n) * 1e-37,
        "subnormal": rng.standard_normal(n) * 1e-40,
        "every magnitude": np.exp(rng.uniform(-85, 85, n)),
        "zero": np.zeros(n),
    }


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 64, 1025, 1_000_000])
def test_the_bound_is_above_the_true_norm_and_close_to_it(n, order):
    cases = hard_vectors(n)
    rows = np.stack(list(cases.values())).astype(np.float32)
    bounds = jax.jit(jax.vmap(ORDERS[order]))(rows)
    for i, name in enumerate(cases):
        truth = true_norm(rows[i], order)
        bound = np.float64(bounds.scaled[i]) * np.float64(bounds.scale[i])
        assert truth * (1 + 1e-12) <= bound or truth == bound == 0, name
        assert bound <= truth * (1 + PROMISED), name


@pytest.mark.parametrize("order", [1, 2])
def test_the_norm_is_taken_over_all_leaves_together(order):
    rng = np.random.default_rng(1)
    tree = {
        "matrix": rng.standard_normal((40, 50)).astype(np.float32),
        "scalar": np.float32(1e4),
        "nothing": np.zeros((0, 3), np.float32),
        "none": None,
        "half": jnp.asarray(rng.standard_normal(100), jnp.float16),
        "brain": jnp.asarray(rng.standard_normal(100), jnp.bfloat16),
    }
    assert_tight_upper_bound(tree, order)


@pytest.mark.parametrize("order", [1, 2])
def test_half_precision_leaves_do_not_overflow(order):
    # The squares, and even the sum of absolute values, are beyond float16's 65504.
    assert_tight_upper_bound(jnp.full(100, 60000, jnp.float16), order)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("tree", [{}, None, jnp.zeros((0,)), {"a": jnp.zeros((2, 0))}])
def test_a_tree_without_entries_has_norm_zero(tree, order):
    assert bound_of(tree, order) == 0


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 57, 99])
def test_an_entry_that_is_not_finite_makes_the_norm_not_finite(bad, place, order):
    vector = np.ones(100, np.float32)
    vector[place] = bad
    assert not np.isfinite(jax.jit(ORDERS[order])(vector).scaled)


def test_finite_entries_keep_a_finite_scaled_norm_even_if_the_norm_overflows():
    bound = jax.jit(_tree.l2_norm_bound)(jnp.full(1000, 3.4e38))
    assert np.isfinite(bound.scaled)
    assert np.isinf(bound.value)


@pytest.mark.parametrize("exponent", [-126, -1, 0, 1, 77, 126])
def test_reciprocals_of_powers_of_two_are_exact(exponent):
    assert _tree.reciprocal(jnp.float32(2.0**exponent)) == np.float32(2.0**-exponent)


@pytest.mark.parametrize("order", [1, 2])
def test_double_precision_leaves_keep_theirs(order):
    # The newer name of the same scoped context manager.
    enable_x64 = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with enable_x64(True):
        tree = {"a": jnp.asarray([3e200, 1e-3]), "b": jnp.asarray([4e200], jnp.float64)}
        bound = ORDERS[order](tree)
        truth = {1: 7e200, 2: 5e200}[order]
        assert bound.scaled.dtype == jnp.float64
        # 34 roundings of 1.1e-16 are allowed for.
        assert truth <= float(bound.scaled) * float(bound.scale) <= truth * (1 + 1e-14)


def exact_values(bound):
    return np.asarray(bound.scaled, np.float64) * np.asarray(bound.scale, np.float64)


def assert_tight_row_bounds(rows, order, bounds):
    values = exact_values(bounds)
    for row, value in zip(rows, values, strict=True):
        truth = true_norm(row, order)
        assert truth * (1 + 1e-12) <= value or truth == value == 0
        assert value <= truth * (1 + PROMISED)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("n", [3, 40, 1024, 4099])
def test_bounds_of_a_batch_hold_where_one_way_of_summing_gives_way_to_the_other(n, order):
    # Every power of two as the largest entry: some of the squares vanish or overflow
    # for part of them, and a batch of one takes its way alone.
    compiled = jax.jit(BATCHED[order])
    small = np.where(np.arange(n) == 0, 1.0, 2.0**-12.5)
    for exponent in [*range(-126, -60, 3), *range(-60, -28, 1), 0, *range(56, 127, 5)]:
        rows = (small[None] * 2.0**exponent).astype(np.float32)
        assert_tight_row_bounds(rows, order, compiled(rows))


@pytest.mark.parametrize("order", [1, 2])
def test_each_row_of_a_batch_is_bounded_whatever_its_neighbours_are(order):
    rows = np.stack(list(hard_vectors(2000).values())).astype(np.float32)
    spoiled = rows.copy()
    spoiled[4, 1999] = np.nan
    bounds = jax.jit(BATCHED[order])(
        {"a": spoiled[:, :300], "b": spoiled[:, 300:].reshape(-1, 2, 850)}
    )
    assert np.flatnonzero(~np.isfinite(bounds.scaled)).tolist() == [4]
    finite = np.arange(len(rows)) != 4
    kept = jax.tree.map(lambda array: array[finite], bounds)
    assert_tight_row_bounds(rows[finite], order, kept)


@pytest.mark.parametrize("order", [1, 2])
def test_the_bound_of_an_example_does_not_depend_on_the_batch_by_one_bit(order):
    # Otherwise one example could change what all others add, by more than its share.
    rows = np.random.default_rng(0).standard_normal((9, 3000)).astype(np.float32)
    ordinary = jax.jit(BATCHED[order])(rows)
    for other in (np.nan, 0.0, 1e-25, 1e30):
        spoiled = rows.copy()
        spoiled[4] = other
        bounds = jax.jit(BATCHED[order])(spoiled)
        for one, two in zip(ordinary, bounds, strict=True):
            np.testing.assert_array_equal(np.delete(one, 4), np.delete(two, 4))


floats = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(floats, min_size=7, max_size=7), min_size=1, max_size=4))
def test_bounds_agree_with_exact_sums_for_any_floats(rows):
    leaf = np.zeros((4, 7), np.float32)
    leaf[: len(rows)] = rows
    tree = {"a": leaf[:, :5], "b": leaf[:, 5:]}
    for order in (1, 2):
        values = exact_values(BATCHED[order](tree))
        for row, value in zip(leaf.astype(np.longdouble), values, strict=True):
            # Products of two float32 are exact in 64 bits of mantissa, which have 1 rounding
            # an addition: 1e-18 relative.
            truth = np.sqrt(np.sum(row**2)) if order == 2 else np.longdouble(math.fsum(abs(row)))
            assert truth <= value * (1 + 1e-15)
            assert value <= truth * (1 + PROMISED)


@pytest.mark.parametrize("order", [1, 2])
def test_bounds_under_vmap_and_scan_are_those_of_the_batch(order):
    rows = np.stack(list(hard_vectors(700).values())).astype(np.float32).reshape(4, 3, 700)
    mapped = jax.jit(jax.vmap(BATCHED[order]))(rows)
    _, scanned = jax.jit(
        lambda rows: jax.lax.scan(lambda _, part: (None, BATCHED[order](part)), None, rows)
    )(rows)
    for bounds in (mapped, scanned):
        flat = jax.tree.map(lambda array: array.reshape(-1), bounds)
        assert_tight_row_bounds(rows.reshape(-1, 700), order, flat)


@pytest.mark.parametrize("order", [1, 2])
def test_a_batch_without_examples_or_entries_has_bounds_all_the_same(order):
    assert BATCHED[order](np.zeros((0, 5), np.float32)).scaled.shape == (0,)
    np.testing.assert_array_equal(BATCHED[order](np.zeros((3, 0), np.float32)).value, np.zeros(3))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("parts", [1, 2, 7, 50])
def test_combined_bounds_are_those_of_the_pieces_together(parts, order):
    rows = np.stack(list(hard_vectors(50 * parts).values())).astype(np.float32)
    pieces = np.split(rows, parts, axis=1)
    bounds = [BATCHED[order](piece) for piece in pieces]
    combined = jax.jit(COMBINED[order])(bounds)
    values = np.stack([exact_values(bound) for bound in bounds])
    truth = np.sqrt(np.sum(values**2, axis=0)) if order == 2 else np.sum(values, axis=0)
    assert np.all(truth * (1 + 1e-12) <= exact_values(combined) * (1 + 1e-300) + 1e-300)
    # (2 k + 64) units roundoff, as the docstring says.
    assert np.all(exact_values(combined) <= truth * (1 + (2 * parts + 64) * 2.0**-24))


def test_a_zero_with_a_large_scale_does_not_make_the_others_vanish():
    zero = _tree.NormBound(jnp.zeros(1), jnp.full(1, 2.0**126))
    tiny = _tree.as_bound(jnp.full(1, 1e-30, jnp.float32))
    for order in (1, 2):
        assert exact_values(COMBINED[order]([zero, tiny])) >= np.float32(1e-30)
        assert exact_values(COMBINED[order]([zero, zero])) == 0


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_combined_bounds_are_not_finite_where_a_piece_is_not(bad, order):
    bad = _tree.as_bound(jnp.asarray([1.0, bad], jnp.float32))
    good = _tree.as_bound(jnp.asarray([1e30, 1e30], jnp.float32))
    assert np.isfinite(COMBINED[order]([bad, good]).scaled).tolist() == [True, False]


def test_a_number_as_a_bound_is_the_same_number():
    numbers = np.float32([0, 2.0**-126, 1e-30, 0.1, 1, 3, 1e30, 3.4028235e38])
    bound = _tree.as_bound(jnp.asarray(numbers))
    np.testing.assert_array_equal(exact_values(bound), numbers)
    assert np.all((np.asarray(bound.scaled) >= 1) | (numbers == 0))
