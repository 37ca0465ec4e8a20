"""Removing one example changes the sum by at most the sensitivity, whatever the batch."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from tests.clipping.zoo import oracle
from tests.clipping.zoo.catalogue import ENTRIES, build
from tests.clipping.zoo.entry import BATCH

THRESHOLD = 0.75
STRATEGIES = ["auto", "per_example"]
NAMES = [
    "mlp",
    "many_positions_through_a_narrow_matrix",
    "few_positions_through_a_wide_matrix",
    "batched_product_of_few_positions_with_wide_matrices",
    "matrix_used_in_two_layers",
    "convolution_2d_of_a_small_image_with_many_channels",
    "convolution_2d_of_a_large_image_with_few_channels",
    "recurrent_network",
    "layer_norm_between_dense_layers",
    "weight_normalisation",
    "printing_inside_the_loss",
]


def batches(x):
    """The entry's own batch, and ones that are hostile in their values."""
    rng = np.random.default_rng(0)
    constant = np.ones_like(x) + 1e-3 * x
    mixed = x.copy()
    mixed[0] = np.nan
    mixed[1].flat[0] = np.inf
    mixed[2] = 0
    mixed[3] *= 1e20
    mixed[4] *= 1e-20
    mixed[5].flat[-1] = -np.inf
    return {
        "ordinary": x,
        "large": 1e3 * x,
        "huge": 1e18 * x,
        "near the limit": 3e38 * np.sign(x),
        "tiny": 1e-20 * x,
        "subnormal": 1e-39 * x,
        "constant and large": 1e3 * constant,
        "alternating": 1e4 * np.where(rng.random(x.shape) < 0.5, -1, 1) * constant,
        "zero": 0 * x,
        "mixed": mixed,
    }


def length(tree, order=2):
    flat = np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])
    return np.linalg.norm(flat, order)


@functools.cache
def compiled_sum(name, strategy, order):
    """A function of padding and the batch's first argument, and that argument."""
    entry, problem = ENTRIES[name], build(name)
    first, *others = problem.batch

    def run(is_padding, first):
        grad_fn = jaxdp.clipped_grad(
            problem.loss_fn, **{f"l{order}_clip_norm": THRESHOLD}, strategy=strategy
        )
        clipped = grad_fn(
            problem.params, first, *others, is_padding=is_padding, **oracle.keywords(entry)
        )
        return clipped.value

    return jax.jit(run), first


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NAMES)
def test_one_example_moves_the_sum_by_at_most_the_sensitivity(name, strategy, order):
    run, first = compiled_sum(name, strategy, order)
    size = sum(leaf.size for leaf in jax.tree.leaves(build(name).params))
    # Each partial sum over BATCH contributions is at most BATCH * THRESHOLD in L2 norm, so that
    # an addition moves it by BATCH * THRESHOLD * 2^-24 in norm; there are BATCH of them in each
    # of two sums, and up to 64 times as many where positions are added up in one go with
    # examples. In L1 norm that is at most sqrt(size) times as much.
    slack = 64 * 2 * BATCH * BATCH * THRESHOLD * 2.0**-24 * (size**0.5 if order == 1 else 1)
    for kind, x in batches(first).items():
        whole = run(np.zeros(BATCH, bool), x)
        assert np.isfinite(length(whole)), kind
        for i in range(BATCH):
            left_out = np.arange(BATCH) == i
            change = jax.tree.map(lambda a, b: np.float64(a) - b, whole, run(left_out, x))
            assert length(change, order) <= THRESHOLD + slack, (kind, i)
            # Alone, an example is added to exact zeros; 1e-12 is the float64 norm's rounding.
            assert length(run(~left_out, x), order) <= THRESHOLD * (1 + 1e-12), (kind, i)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NAMES)
def test_examples_that_are_not_finite_leave_the_others_as_they_are(name, strategy):
    run, x = compiled_sum(name, strategy, 2)
    bad = np.arange(BATCH) % 2 == 0
    for poison in (np.nan, np.inf):
        poisoned = np.where(bad.reshape(-1, *[1] * (x.ndim - 1)), np.float32(poison), x)
        in_the_batch = run(np.zeros(BATCH, bool), poisoned)
        as_padding = run(bad, poisoned)
        jax.tree.map(np.testing.assert_array_equal, in_the_batch, as_padding)
        assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(in_the_batch))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_an_example_whose_gradient_overflows_on_the_way_contributes_zero(strategy):
    # The products of activations and cotangents overflow, although neither does.
    def loss_fn(w, x, g):
        return jnp.sum(g * (x @ w))

    x = np.float32([[[1e25, 1e25]], [[1.0, 2.0]]])
    g = np.float32([[[1e25]], [[1.0]]])
    grad_fn = jaxdp.clipped_grad(
        loss_fn, l2_clip_norm=0.5, strategy=strategy, return_per_example=True
    )
    clipped, reported = jax.jit(grad_fn)(jnp.zeros((2, 1)), x, g)
    assert not np.isfinite(reported.norm[0])
    np.testing.assert_allclose(clipped.value[:, 0], 0.5 * x[1, 0] / 5**0.5, rtol=3e-5)
