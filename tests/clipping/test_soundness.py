"""The norm used for clipping is never below the true one, on data chosen to break it.

The losses here are linear in the parameters with cotangents that come with the batch, so that
the exact gradient of the float32 data can be computed in float64 by hand. A gradient that is
computed in float32 is itself off by the rounding of its sums: that much a norm may be below.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp

STRATEGIES = ["auto", "per_example"]


def clip(loss_fn, params, batch, strategy, threshold=1.0):
    """Contribution and norm of each example: as many batches of one example as there are."""
    grad_fn = jaxdp.clipped_grad(
        loss_fn, l2_clip_norm=threshold, strategy=strategy, return_per_example=True
    )

    def one(*example):
        clipped, reported = grad_fn(params, *(leaf[None] for leaf in example))
        return clipped.value, reported.norm[0]

    return jax.jit(lambda *batch: jax.lax.map(lambda example: one(*example), batch))(*batch)


def lengths(tree):
    """The norm of each row over all leaves, in float64."""
    leaves = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.linalg.norm(
        np.concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves], 1), axis=1
    )


def assert_sound(loss_fn, params, batch, exact, strategy, threshold=1.0):
    """No norm is below the truth, and no contribution above the threshold.

    ``exact(*batch)`` is the gradient of each example in float64, a sum of products of entries
    of the batch.
    """
    contributions, norms = clip(loss_fn, params, batch, strategy, threshold)
    truth = lengths(exact(*batch))
    # Each rounding moves a sum by 2^-24 of the sum of its absolute terms at most; the at most
    # 256 roundings of a sum, as good as independent, add up to 16 times that.
    rounding = 16 * 2.0**-24 * lengths(exact(*map(np.abs, batch)))
    # Each term may be flushed to zero where it is subnormal; there are at most 1e5.
    rounding = rounding + 1e5 * 2.0**-126
    finite = truth < 3e38
    below = (np.asarray(norms, np.float64) < truth - rounding) & finite
    assert not below.any(), f"{below.sum()} of {len(below)}: {(norms / truth)[below].min()}"
    after = lengths(contributions)
    # 1e-12 stands for the rounding of the float64 norm.
    assert np.all(after <= threshold * (1 + 1e-12)), after.max()


def cancelling(rng, seeds, positions, width, size=1e3):
    """Activations about a constant, and cotangents that sum to zero over positions."""
    x = size * (1 + 1e-4 * rng.standard_normal((seeds, positions, width)))
    g = rng.standard_normal((seeds, positions, width))
    return np.float32(x), np.float32(g - g.mean(axis=1, keepdims=True))


def dense_loss(w, x, g):
    return jnp.sum(g * (x @ w))


def outer(x, g):
    return np.einsum("btd,btp->bdp", np.float64(x), np.float64(g))


@pytest.mark.parametrize("spread", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_gram_norm_that_cancels_is_not_below_the_true_one(strategy, spread):
    # CASES 15: in the Gram form the squared norm is the small difference of large sums.
    rng = np.random.default_rng(0)
    seeds, positions, width = 300, 128, 16
    x = 1e3 * (1 + spread * rng.standard_normal((seeds, positions, width)))
    g = rng.standard_normal((seeds, positions, width))
    x, g = np.float32(x), np.float32(g - g.mean(axis=1, keepdims=True))
    params = np.zeros((width, width), np.float32)
    assert_sound(dense_loss, params, (x, g), outer, strategy)


@pytest.mark.parametrize("shape", [(4, 64), (8, 100), (32, 96), (128, 16)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_few_positions_of_wide_matrices_are_sound(strategy, shape):
    x, g = cancelling(np.random.default_rng(1), 40, *shape)
    params = np.zeros((shape[1], shape[1]), np.float32)
    assert_sound(dense_loss, params, (x, g), outer, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_bias_beside_a_matrix_is_summed_before_it_is_squared(strategy):
    # CASES 15: [0.1, 0.1] has the squared norm 0.04 after summing, not 0.02.
    def loss_fn(params, x, g):
        return jnp.sum(g * (x @ params["w"] + params["b"][None]))

    params = {"w": np.zeros((1, 1), np.float32), "b": np.zeros(1, np.float32)}
    x, g = np.zeros((1, 2, 1), np.float32), np.full((1, 2, 1), 0.1, np.float32)
    _, norms = clip(loss_fn, params, (x, g), strategy)
    np.testing.assert_allclose(norms, [0.2], rtol=3e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_products_are_sound_where_squares_overflow_or_vanish(strategy):
    rng = np.random.default_rng(2)
    scales = np.float64([1e-25, 1e-18, 1e-12, 1e-3, 1, 1e3, 1e12, 1e18, 1e25])
    x_scales, g_scales = (s.reshape(-1, 1, 1) for s in np.meshgrid(scales, scales))
    x = np.float32(x_scales * rng.standard_normal((len(x_scales), 3, 40)))
    g = np.float32(g_scales * rng.standard_normal((len(x_scales), 3, 40)))
    params = np.zeros((40, 40), np.float32)
    assert_sound(dense_loss, params, (x, g), outer, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_positions_of_very_different_sizes_are_sound(strategy):
    rng = np.random.default_rng(3)
    sizes = 10.0 ** rng.uniform(-18, 18, (50, 6, 1))
    x = np.float32(sizes * rng.standard_normal((50, 6, 40)))
    g = np.float32(1 / sizes[:, ::-1] * rng.standard_normal((50, 6, 40)))
    params = np.zeros((40, 40), np.float32)
    assert_sound(dense_loss, params, (x, g), outer, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_small_gradient_is_not_lost_beside_a_large_margin(strategy):
    # A margin that grew with the activations alone would shorten every such example.
    x, g = cancelling(np.random.default_rng(4), 40, 128, 16)
    params = np.zeros((16, 16), np.float32)
    contributions, _ = clip(dense_loss, params, (x, g), strategy)
    truth = lengths(outer(x, g))
    # The margin may cost some of the signal here, never most of it.
    assert np.all(lengths(contributions) >= 0.5 * np.minimum(truth, 1))


@pytest.mark.parametrize("shape", [(6, 3, 40), (64, 3, 8), (128, 2, 2)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_convolutions_that_cancel_are_sound(strategy, shape):
    positions, width, channels = shape

    def loss_fn(kernel, x, g):
        y = jax.lax.conv_general_dilated(
            x[None], kernel, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC")
        )
        return jnp.sum(g * y[0])

    rng = np.random.default_rng(5)
    x, _ = cancelling(rng, 30, positions, channels)
    _, g = cancelling(rng, 30, positions - width + 1, channels)
    params = np.zeros((width, channels, channels), np.float32)

    def exact(x, g):
        taps = [outer(x[:, k : k + positions - width + 1], g) for k in range(width)]
        return np.stack(taps, axis=1)

    assert_sound(loss_fn, params, (x, g), exact, strategy)


def scattered(tokens, g, *, rows):
    """The exact gradient of a table's lookups."""
    return outer(tokens[..., None] == np.arange(rows), g)


@pytest.mark.parametrize("rows", [2, 500])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_lookups_of_repeated_tokens_that_cancel_are_sound(strategy, rows):
    def loss_fn(table, tokens, g):
        return jnp.sum(g * table[tokens])

    rng = np.random.default_rng(6)
    tokens = rng.integers(0, 2, (40, 64)).astype(np.int32)
    g = 1e3 * rng.standard_normal((40, 64, 8))
    for token in range(2):
        same = (tokens == token)[..., None]
        g = g - same * (np.sum(g * same, 1, keepdims=True) / np.maximum(same.sum(1)[:, None], 1))
    g = np.float32(g + 1e-3 * rng.standard_normal(g.shape))
    params = np.zeros((rows, 8), np.float32)
    exact = functools.partial(scattered, rows=rows)
    assert_sound(loss_fn, params, (tokens, g), exact, strategy)


@pytest.mark.parametrize("rows", [5, 200])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_tied_embeddings_whose_uses_cancel_are_sound(strategy, rows):
    def loss_fn(table, tokens, x, g_in, g_out):
        return jnp.sum(g_in * table[tokens]) + jnp.sum(g_out * (x @ table.T))

    rng = np.random.default_rng(7)
    tokens = rng.integers(0, rows, (40, 6)).astype(np.int32)
    x = 1e3 * rng.standard_normal((40, 6, 8)).astype(np.float32)
    one_hot = np.float32(tokens[..., None] == np.arange(rows))
    noise = 1e-4 * rng.standard_normal(x.shape)
    # The lookup's cotangent undoes the product's gradient, but for a small rest.
    g_in = np.float32(-x * (1 + noise))
    params = np.zeros((rows, 8), np.float32)

    def exact(tokens, x, g_in, g_out):
        return scattered(tokens, g_in, rows=rows) + outer(g_out, x)

    assert_sound(loss_fn, params, (tokens, x, g_in, one_hot), exact, strategy)


@pytest.mark.parametrize("width", [4, 48])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_matrix_shared_by_all_steps_of_a_scan_is_sound(strategy, width):
    def loss_fn(w, x, g):
        def step(total, inputs):
            row, cotangent = inputs
            return total + jnp.vdot(cotangent, row @ w), None

        return jax.lax.scan(step, jnp.float32(0), (x, g))[0]

    x, g = cancelling(np.random.default_rng(8), 40, 8, width)
    params = np.zeros((width, width), np.float32)
    assert_sound(loss_fn, params, (x, g), outer, strategy)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_matrix_used_with_both_signs_is_sound(strategy):
    def loss_fn(w, x, y, g, minus_g):
        return jnp.sum(g * (x @ w)) + jnp.sum(minus_g * (y @ w))

    def exact(x, y, g, minus_g):
        return outer(x, g) + outer(y, minus_g)

    rng = np.random.default_rng(9)
    x = np.float32(1e3 * rng.standard_normal((40, 3, 48)))
    y = np.float32(x * (1 + 1e-5 * rng.standard_normal(x.shape)))
    g = np.float32(rng.standard_normal(x.shape))
    params = np.zeros((48, 48), np.float32)
    assert_sound(loss_fn, params, (x, y, g, -g), exact, strategy)


def recurrent_loss(params, x):
    def step(h, row):
        return jnp.tanh(row @ params["in"] + h @ params["hidden"] + params["b"]), None

    return jnp.sum(jax.lax.scan(step, jnp.zeros_like(params["b"]), x)[0])


@functools.cache
def recurrent_contributions(strategy, width):
    rng = np.random.default_rng(10)
    shapes = {"in": (3, width), "hidden": (width, width), "b": (width,)}
    params = {name: np.float32(rng.standard_normal(s) / s[0] ** 0.5) for name, s in shapes.items()}
    x = np.float32(rng.standard_normal((40, 6, 3)) * np.geomspace(1e-3, 1e3, 40)[:, None, None])
    return clip(recurrent_loss, params, (x,), strategy, threshold=1e-2)


@pytest.mark.parametrize("width", [4, 32])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_recurrent_networks_contribute_at_most_the_threshold(strategy, width):
    contributions, norms = recurrent_contributions(strategy, width)
    after = lengths(contributions)
    assert np.all(after <= 1e-2 * (1 + 1e-12))
    # Clipped examples keep their length, which is what tells a bound from a bad bound.
    clipped = np.asarray(norms) > 1.01e-2
    assert np.all(after[clipped] >= 1e-2 * (1 - 3e-5))
