"""The norm of a product from its Gram matrices is never below the true one."""

import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp.clipping import gram
from jaxdp.clipping.factors import Factors


def bound(*parts):
    factors = [Factors(jnp.asarray(x), jnp.asarray(g)) for x, g in parts]
    (norm,) = gram.norms([gram.l2_norm(factors)])
    return np.asarray(norm.value, np.float64)


def true_norm(*parts):
    total = sum(
        np.einsum("bmtd,bmtp->bmdp", x.astype(np.float64), g.astype(np.float64)) for x, g in parts
    )
    return np.sqrt(np.sum(total**2, axis=(1, 2, 3)))


def draw(rng, *shape, scale=1.0):
    return (scale * rng.standard_normal(shape)).astype(np.float32)


def test_cancelling_positions_do_not_lower_the_norm():
    # The plain Gram form of such factors is negative for a third of all seeds.
    rng = np.random.default_rng(0)
    x = 1e3 + draw(rng, 300, 1, 128, 16, scale=1e-3)
    g = draw(rng, 300, 1, 128, 16)
    g -= g.mean(axis=2, keepdims=True)
    assert np.all(bound((x, g)) >= true_norm((x, g)))


@pytest.mark.parametrize("scale", [1e-30, 1e-15, 1.0, 1e15])
@pytest.mark.parametrize("sizes", [(1, 1, 5, 7), (3, 1, 4, 4), (1, 9, 30, 20), (2, 40, 8, 3)])
def test_the_norm_is_tight_and_never_below(sizes, scale):
    m, positions, d, p = sizes
    rng = np.random.default_rng(1)
    x, g = draw(rng, 50, m, positions, d, scale=scale), draw(rng, 50, m, positions, p)
    found, expected = bound((x, g)), true_norm((x, g))
    assert np.all(found >= expected)
    # Of 40 positions, each row's rounding counts some 60 units, and lengths some 6 times more.
    assert np.all(found <= expected * (1 + 1e-4))


def test_uses_of_one_parameter_add_up_before_the_norm_is_taken():
    rng = np.random.default_rng(2)
    one, other = ((draw(rng, 20, 1, 4, 6), draw(rng, 20, 1, 4, 5)) for _ in range(2))
    found = bound(one, other)
    assert np.all(found >= true_norm(one, other))
    assert np.all(found <= true_norm(one, other) * (1 + 2e-5))
    opposite = one[0], -one[1]
    assert np.all(bound(one, opposite) <= 1e-2 * true_norm(one))


def test_rows_of_the_identity_are_given_by_their_places():
    rng = np.random.default_rng(3)
    places = rng.integers(0, 7, (20, 1, 9)).astype(np.int32)
    g = draw(rng, 20, 1, 9, 5)
    dense = draw(rng, 20, 1, 3, 7), draw(rng, 20, 1, 3, 5)
    one_hot = np.eye(7, dtype=np.float32)[places], g
    found, expected = bound((places, g), dense), true_norm(one_hot, dense)
    assert np.all(found >= expected)
    assert np.all(found <= expected * (1 + 2e-5))


def test_a_zero_gradient_has_norm_zero_and_what_is_not_finite_shows():
    x, g = np.ones((4, 1, 3, 2), np.float32), np.ones((4, 1, 3, 2), np.float32)
    g[0] = 0
    g[1, 0, 0, 0] = np.nan
    x[2, 0, 1, 1] = np.inf
    found = bound((x, g))
    assert found[0] == 0
    assert not np.isfinite(found[1:3]).any()
    assert np.isfinite(found[3])
