import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import _tree

# The largest relative excess that the docstring promises, and the floor it promises.
PROMISED = 2 * 1.2e-5
ORDERS = {2: _tree.l2_norm_bound, 1: _tree.l1_norm_bound}


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
