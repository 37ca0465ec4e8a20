"""The contribution of each example obeys its threshold in exact arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import _tree
from jaxdp.clipping import rescale

THRESHOLDS = np.float32([1e-30, 1e-3, 0.7, 1.0, 5e4, 1e30])
# The largest loss against exact clipping that the docstring of shrink allows.
LOSS = 3e-5
TINY = 2.0**-126  # the smallest normal float32


def exact_norm(rows, order):
    """Norms of float32 rows in float64: exact squares, added pairwise, right to 1e-13."""
    wide = np.abs(np.asarray(rows, np.float64))
    return np.sqrt(np.sum(wide**2, axis=-1)) if order == 2 else np.sum(wide, axis=-1)


def clip_batch(rule, gradients, is_padding):
    """Each example's contribution, ``[batch, ...]``, and the norms."""
    treedef = jax.tree.structure(rule.norms)
    subtrees = treedef.flatten_up_to(gradients)
    norm_bounds = _tree.l2_norm_bounds if rule.order == 2 else _tree.l1_norm_bounds
    shrinks, norms = rescale.shrink(rule, [norm_bounds(s) for s in subtrees], is_padding)
    scaled = [
        jax.tree.map(lambda rows, one=one: rescale.scaled(one, rows), subtree)
        for one, subtree in zip(shrinks, subtrees, strict=True)
    ]
    return treedef.unflatten(scaled), norms


def clip_one(rule, gradient):
    batch = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], gradient)
    return jax.tree.map(lambda leaf: leaf[0], clip_batch(rule, batch, jnp.zeros(1, bool)))


def clip_rows(rows, thresholds, order, method="clip"):
    """Every row clipped to every threshold: ``[threshold, row, n]``, and the norms."""

    def clip(threshold, rows):
        rule = rescale.ClipRule(threshold, order, method)
        return clip_batch(rule, rows, jnp.zeros(len(rows), bool))

    clipped, norms = jax.jit(jax.vmap(clip, in_axes=(0, None)))(thresholds, rows)
    return np.asarray(clipped), np.asarray(norms[0])


def hard_rows(n):
    rng = np.random.default_rng(n)
    first = np.arange(n) == 0
    rows = [
        np.where(first, 1.0, 2.0**-12.5),  # squares that vanish one by one beside the first
        np.where(first, 1.0, 2.0**-12.5)[::-1],
        np.where(first, 1.0, 2.0**-24.5),  # values that do
        np.full(n, 0.1),
        np.full(n, 1 / np.sqrt(n)),  # norm at a threshold
        rng.standard_normal(n),
        rng.standard_normal(n) / np.sqrt(n),
        rng.standard_normal(n) * 1e4,  # beyond float16
        rng.standard_normal(n) * 1e30,
        np.full(n, 3.4028235e38),  # the norm itself overflows
        rng.standard_normal(n) * 1e-30,
        rng.standard_normal(n) * 1e-37,  # normal and subnormal
        rng.standard_normal(n) * 1e-40,
        np.exp(rng.uniform(-85, 85, n)),
        np.zeros(n),
    ]
    return np.stack(rows).astype(np.float32)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("n", [1, 3, 33, 5000, 1_000_000])
def test_clipped_norms_never_exceed_the_threshold_and_lose_little(n, order):
    rows = hard_rows(n)
    # Big rows against two thresholds only, to spare the tests' memory.
    thresholds = THRESHOLDS if n < 10_000 else THRESHOLDS[[0, 3]]
    clipped, _ = clip_rows(rows, thresholds, order)
    norms = exact_norm(np.where(np.abs(rows) < TINY, 0, rows), order)
    after = exact_norm(clipped, order)
    # 1e-12 stands for the error of the reference.
    assert np.all(after * (1 + 1e-12) <= thresholds[:, None].astype(np.float64))
    # Entries below 2^-126 after clipping may have become zero, n of them at most.
    floor = np.minimum(norms, thresholds[:, None]) * (1 - LOSS) - n * TINY
    assert np.all(after >= floor)


def test_automatic_clipping_never_exceeds_the_threshold_and_matches_its_formula():
    rows = hard_rows(5000)
    clipped, _ = clip_rows(rows, THRESHOLDS, 2, "automatic")
    rows64 = np.where(np.abs(rows) < TINY, 0, rows).astype(np.float64)
    thresholds = THRESHOLDS.astype(np.float64)[:, None, None]
    assert np.all(exact_norm(clipped, 2) * (1 + 1e-12) <= thresholds[:, :, 0])
    expected = rows64 * (thresholds / (exact_norm(rows64, 2)[:, None] + 0.01))
    # A subnormal result may be zero, and so may an entry 2^126 times below the largest.
    lost = TINY * (1 + thresholds)
    assert np.all(np.abs(clipped - expected) <= LOSS * np.abs(expected) + lost)


@pytest.mark.parametrize("order", [1, 2])
def test_gradients_well_below_the_threshold_pass_bit_for_bit(order):
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((50, 300)).astype(np.float32)
    rows *= (0.9999 / exact_norm(rows, order)).astype(np.float32)[:, None]
    clipped, _ = clip_rows(rows, np.float32([1.0]), order)
    np.testing.assert_array_equal(clipped[0], rows)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_low_precision_gradients_are_clipped_in_float32(dtype):
    # CASES 21: in float16 the squares overflow and the example would vanish; in bfloat16
    # the rounding of the product alone could exceed the threshold by 0.4 %.
    row = jnp.asarray(np.random.default_rng(0).standard_normal(1000) * 3000, dtype)
    rule = rescale.ClipRule(1.0, 2, "clip")
    clipped, _ = clip_one(rule, {"a": row, "b": row[:3]})
    assert {leaf.dtype for leaf in jax.tree.leaves(clipped)} == {jnp.dtype(jnp.float32)}
    flat = np.concatenate(jax.tree.leaves(clipped))
    assert 1 - LOSS <= exact_norm(flat, 2) <= 1


def test_a_zero_gradient_contributes_zero_and_has_norm_zero():
    for method in rescale.METHODS:
        clipped, norms = clip_rows(np.zeros((1, 5), np.float32), THRESHOLDS, 2, method)
        np.testing.assert_array_equal(clipped, 0)
        np.testing.assert_array_equal(norms, 0)


@pytest.mark.parametrize("method", rescale.METHODS)
@pytest.mark.parametrize("threshold", [0.0, -1.0, np.nan, np.inf, 1e-31])
def test_a_traced_threshold_out_of_range_makes_every_contribution_zero(threshold, method):
    clipped, _ = clip_rows(hard_rows(7), np.float32([threshold]), 2, method)
    np.testing.assert_array_equal(clipped, 0)
    sensitivity = jax.jit(lambda c: rescale.sensitivities(rescale.ClipRule(c, 2, method))[0])
    assert np.isnan(sensitivity(threshold))


def test_each_subtree_is_clipped_to_its_own_threshold():
    rng = np.random.default_rng(0)
    gradient = {
        "layer": {"w": rng.standard_normal((3, 4)), "b": rng.standard_normal(4)},
        "head": rng.standard_normal(6) * 1e-2,
    }
    gradient = jax.tree.map(np.float32, gradient)
    rule = rescale.clip_rule({"layer": 0.5, "head": 2.0}, None, "clip")
    clipped, norms = clip_one(rule, gradient)
    layer = np.concatenate([clipped["layer"]["w"].ravel(), clipped["layer"]["b"]])
    assert 0.5 * (1 - LOSS) <= exact_norm(layer, 2) <= 0.5
    np.testing.assert_array_equal(clipped["head"], gradient["head"])
    assert set(norms) == {"layer", "head"}


def test_an_infinity_in_one_subtree_silences_the_whole_example():
    rule = rescale.clip_rule({"a": 1.0, "b": 1.0}, None, "clip")
    gradient = {"a": jnp.ones(2), "b": jnp.array([1.0, jnp.inf])}
    clipped, norms = clip_one(rule, gradient)
    np.testing.assert_array_equal(clipped["a"], 0)
    np.testing.assert_array_equal(clipped["b"], 0)
    assert np.isfinite(norms["a"])
    assert not np.isfinite(norms["b"])


@pytest.mark.parametrize("thresholds", [[0.3], [0.1, 0.7], [1e30, 1e-30, 1.0], [0.1] * 100])
def test_sensitivities_of_several_thresholds_are_rounded_up(thresholds):
    wide = np.float32(thresholds).astype(np.float64)
    l2, l1 = rescale.sensitivities(rescale.ClipRule(thresholds, 2, "clip"))
    assert l1 is None
    assert exact_norm(wide, 2) <= l2 <= exact_norm(wide, 2) * (1 + LOSS)
    l2, l1 = rescale.sensitivities(rescale.ClipRule(thresholds, 1, "clip"))
    assert exact_norm(wide, 1) <= l1 <= exact_norm(wide, 1) * (1 + LOSS)
    assert exact_norm(wide, 2) <= l2 <= exact_norm(wide, 2) * (1 + LOSS)


def test_one_threshold_is_the_sensitivity_bit_for_bit():
    for threshold in THRESHOLDS:
        l2, l1 = rescale.sensitivities(rescale.ClipRule(threshold, 1, "clip"))
        assert l2 == l1 == threshold


def sum_of_one(rule, rows, i):
    """Row i's contribution as the sum over a batch in which the others are padding."""
    return rescale.clip_and_sum(rule, rows, jnp.arange(len(rows)) != i)[0]


@pytest.mark.parametrize("method", rescale.METHODS)
@pytest.mark.parametrize("order", [1, 2])
def test_in_a_sum_no_example_exceeds_its_threshold_however_it_is_summed(order, method):
    hard = hard_rows(300)
    ordinary = hard[5:8]
    run = jax.jit(lambda c, rows, i: sum_of_one(rescale.ClipRule(c, order, method), rows, i))
    for threshold in THRESHOLDS:
        limit = np.float64(threshold)
        # All ordinary, so summed in one contraction; then one among hard ones.
        for rows in (ordinary, hard):
            for i in range(len(rows)):
                assert exact_norm(run(threshold, rows, i), order) * (1 + 1e-12) <= limit


@pytest.mark.parametrize("method", rescale.METHODS)
@pytest.mark.parametrize("size", [1, 5, 16, 33])
def test_the_sum_is_that_of_the_contributions_with_bad_rows_and_without(size, method):
    rng = np.random.default_rng(size)
    good = rng.standard_normal((size, 3, 40)).astype(np.float32)
    bad = good.copy()
    bad[0, 1, 1] = np.nan
    huge = good * np.float32(1e30)
    is_padding = np.arange(size) % 4 == 3
    rule = rescale.ClipRule({"a": 1e-20, "b": 2.0, "c": 1.0}, 2, method)
    # Two programs, so that neither shares what it computes with the other.
    summed = jax.jit(lambda gradients: rescale.clip_and_sum(rule, gradients, is_padding))
    one_by_one = jax.jit(lambda gradients: clip_batch(rule, gradients, is_padding))
    for rows in (good, bad, huge, np.zeros_like(good)):
        gradients = {"a": rows, "b": rows[:, 0], "c": rows[:, :0]}
        total, norms = summed(gradients)
        contributions, _ = one_by_one(gradients)
        assert {norm.shape for norm in jax.tree.leaves(norms)} == {(size,)}
        for one, terms in zip(*map(jax.tree.leaves, (total, contributions)), strict=True):
            wide = np.asarray(terms, np.float64)
            # One rounding a term for each addition, and four for the coefficient.
            slack = (size + 4) * 2.0**-23 * np.sum(np.abs(wide), axis=0) + size * TINY
            assert np.all(np.abs(np.asarray(one, np.float64) - wide.sum(axis=0)) <= slack)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4e38, 1e-30, 1e-40])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_what_a_dropped_example_holds_changes_not_one_bit_of_the_sum(bad, dtype):
    rows = np.random.default_rng(0).standard_normal((6, 50)).astype(dtype)
    spoiled = rows.copy()
    with np.errstate(over="ignore"):
        spoiled[1:5, 7:] = dtype(bad)
    dropped = np.array([False, True, True, True, True, False])
    rule = rescale.clip_rule(1.0, None, "clip")
    clip_and_sum = jax.jit(lambda rows, dropped: rescale.clip_and_sum(rule, rows, dropped)[0])
    np.testing.assert_array_equal(clip_and_sum(spoiled, dropped), clip_and_sum(rows, dropped))
    if not np.isfinite(bad):
        unmarked = clip_and_sum(spoiled, np.zeros(6, bool))
        np.testing.assert_array_equal(unmarked, clip_and_sum(rows, dropped))
        np.testing.assert_array_equal(clip_and_sum(spoiled, ~dropped), 0)


def test_low_precision_gradients_are_summed_in_float32():
    rows = jnp.asarray(np.random.default_rng(0).standard_normal((12, 100)) * 3000, jnp.float16)
    rule = rescale.clip_rule(1.0, None, "clip")
    total, _ = rescale.clip_and_sum(
        rule, {"half": rows, "other": rows.astype(float)}, jnp.zeros(12, bool)
    )
    assert {leaf.dtype for leaf in jax.tree.leaves(total)} == {jnp.dtype(jnp.float32)}
    # The two may be added in another order: 12 terms of at most one, 2^-24 for each addition.
    np.testing.assert_allclose(total["half"], total["other"], rtol=0, atol=2 * 12 * 12 * 2.0**-24)


def test_a_tree_or_a_batch_of_nothing_sums_to_nothing():
    rule = rescale.clip_rule(1.0, None, "clip")
    assert rescale.clip_and_sum(rule, {}, jnp.zeros(3, bool))[0] == {}
    total, norms = rescale.clip_and_sum(rule, jnp.zeros((0, 4)), jnp.zeros(0, bool))
    np.testing.assert_array_equal(total, np.zeros(4))
    assert norms.shape == (0,)
