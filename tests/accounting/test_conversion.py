"""The conversion from Renyi DP on a grid, as programs use it."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import accounting as acc

ORDERS = 1.0 + np.geomspace(0.05, 500.0, 128)


@jax.jit
def in_program(rdp, log_delta):
    return acc.epsilon_from_rdp(rdp, ORDERS, log_delta)


def test_a_fine_grid_comes_close_to_the_best_real_order():
    step = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
    best = acc.epsilon(step * 1000, 1e-5, accountant="rdp")
    spent = in_program(jnp.float32(acc.rdp(step, ORDERS) * 1000), math.log(1e-5))
    # Neighbouring orders less one differ by 7.5 %: half of that squared is 3e-3 at curvature 1.
    assert 0 <= float(spent.epsilon) / best - 1 < 3e-3
    assert not spent.order_at_edge


def test_nothing_spent_is_zero_at_any_delta_and_infinity_stays():
    for delta in (0.5, 1e-5, 1e-300):
        assert in_program(jnp.zeros(128), math.log(delta)).epsilon == 0.0
        without_noise = in_program(jnp.full(128, jnp.inf), math.log(delta))
        assert without_noise.epsilon == jnp.inf
        assert not without_noise.order_at_edge


def test_each_order_alone_gives_the_published_formula():
    for order, rdp, delta in [(2.0, 0.3, 1e-5), (17.5, 1.1, 1e-9), (1.01, 40.0, 1e-3)]:
        formula = rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)
        spent = acc.epsilon_from_rdp(jnp.array([rdp]), [order], math.log(delta))
        # Rounded up by 1.5e-5 of the divergence and 16 ulps of terms up to 1e3.
        assert 0 <= float(spent.epsilon) - formula < 4e-5 * formula


def test_a_delta_above_the_total_variation_costs_no_epsilon():
    # TV <= sqrt(1 - exp(-KL)): 0.0998 at a divergence of 0.01.
    orders = [1.0001, 2.0]
    divergence = jnp.array([0.01, 0.02])
    assert acc.epsilon_from_rdp(divergence, orders, math.log(0.0999)).epsilon == 0.0
    assert acc.epsilon_from_rdp(jnp.array([5.0, 9.0]), orders, math.log(0.5)).epsilon > 0.0


@pytest.mark.parametrize(
    ("rdp", "orders", "name"),
    [
        (np.ones(3), [2.0, 3.0], "rdp"),
        (np.ones((1, 2)), [[2.0, 3.0]], "rdp"),
        (np.ones(2), [1.0, 3.0], "orders"),
        (np.ones(2), [2.0, math.nan], "orders"),
    ],
)
def test_mismatched_or_impossible_orders_are_refused(rdp, orders, name):
    with pytest.raises(ValueError, match=f"^{name} must be"):
        acc.epsilon_from_rdp(jnp.asarray(rdp), orders, -10.0)
