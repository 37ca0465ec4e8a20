"""Concentrated differential privacy against Renyi divergences and brute force over orders."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import accounting as acc
from jaxdp.accounting import composition, zcdp

ORDERS = np.array([1.001, 1.1, 1.5, 2.0, 4.0, 16.0, 100.0])


def of(run, delta):
    return zcdp.epsilon(composition.steps_of(run), math.log(delta))


def rho_of(run):
    return zcdp.rho_of(composition.steps_of(run))


def divergences(p, q):
    """Renyi divergences of two finite distributions at the orders."""
    return np.array([np.log(np.sum(q * (p / q) ** a)) / (a - 1.0) for a in ORDERS])


def test_gaussians_have_half_of_mu_squared():
    assert rho_of(acc.Gaussian(2.0) * 8) == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_allclose(acc.rdp(acc.Gaussian(2.0) * 8, ORDERS), ORDERS, rtol=1e-12)


@pytest.mark.parametrize("scale", [0.05, 0.5, 3.0, 100.0])
def test_laplace_stays_below_rho_times_the_order(scale):
    # The log-moment is right to 1e-10.
    assert np.all(acc.rdp(acc.Laplace(scale), ORDERS) <= rho_of(acc.Laplace(scale)) * ORDERS)


@pytest.mark.parametrize(("p", "k"), [(0.5, 2), (0.01, 2), (0.9, 10)])
def test_randomized_response_stays_below_rho_times_the_order(p, k):
    first = np.full(k, p / k)
    first[0] += 1.0 - p
    assert np.all(
        divergences(first, np.roll(first, 1))
        <= rho_of(acc.RandomizedResponse(p, k)) * ORDERS * (1 + 1e-12)
    )


@pytest.mark.parametrize(("deviation", "sensitivity"), [(0.5, 1), (2.0, 1), (7.0, 3)])
def test_the_discrete_gaussian_stays_below_rho_times_the_order(deviation, sensitivity):
    reach = int(40 * deviation) + 2 * int(ORDERS[-1]) * sensitivity
    grid = np.arange(-reach, reach + 1.0)

    def log_mass(center):
        log_weight = -((grid - center) ** 2) / (2.0 * deviation**2)
        return log_weight - np.log(np.sum(np.exp(-(grid**2) / (2.0 * deviation**2))))

    log_p, log_q = log_mass(sensitivity), log_mass(0.0)
    rho = rho_of(acc.DiscreteGaussian(deviation, sensitivity))
    for a in ORDERS:
        terms = a * log_p + (1 - a) * log_q
        top = np.max(terms)
        divergence = (top + np.log(np.sum(np.exp(terms - top)))) / (a - 1.0)
        # Equal where the sensitivity is whole; float sums of terms next to 1, over a - 1 = 0.001.
        assert divergence <= rho * a * (1 + 1e-12) + 1e-12


@settings(max_examples=60, deadline=None)
@given(st.floats(math.log(1e-12), math.log(1e6)), st.floats(-230.0, -0.01))
def test_the_conversion_is_the_least_over_a_fine_grid_of_orders(log_rho, log_delta):
    rho = math.exp(log_rho)
    t = np.exp(np.linspace(-60.0, 60.0, 60_001))
    grid = rho * (1 + t) - np.log1p(1 / t) + (-log_delta - np.log1p(t)) / t
    found = zcdp.epsilon_from_rho(rho, log_delta)
    best = max(0.0, float(np.min(grid)))
    # Zero also where delta exceeds the total variation. A step of 0.002 in log t is off by
    # 1e-6 relative in its square; rounding by some ulps of the terms at the best t.
    assert found <= best + 1e-12 * (1.0 + rho)
    if found > 0.0:
        assert found >= best * (1 - 1e-5) - 1e-12 * (1.0 + rho)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 1e4), st.floats(0.1, 1e3), st.integers(1, 1000), st.floats(-200.0, -0.1))
def test_renyi_is_at_most_concentrated(sigma, scale, steps, log_delta):
    noises = (acc.Gaussian(sigma), acc.Laplace(scale))
    for run in (noises[0] * steps, noises[1] * steps, noises[0] + noises[1]):
        renyi = acc.epsilon(run, math.exp(log_delta), accountant="rdp")
        # Renyi moments are moved up by 1e-10 and the search leaves 2e-8, of terms of order 1
        # that nearly cancel where epsilon is small.
        assert renyi <= of(run, math.exp(log_delta)) * (1 + 3e-8) + 2e-8


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 1e4), st.floats(-200.0, -0.1))
def test_exact_is_at_most_concentrated(sigma, log_delta):
    exact = acc.epsilon(acc.Gaussian(sigma), math.exp(log_delta))
    assert exact <= of(acc.Gaussian(sigma), math.exp(log_delta)) * (1 + 1e-13)


def test_mixed_runs_add_up():
    run = acc.Gaussian(1.0) + acc.Laplace(0.5) * 2 + acc.DiscreteGaussian(2.0, 3) * 4
    assert rho_of(run) == pytest.approx(0.5 + 2 * 2.0 + 4 * 9 / 8, rel=1e-14)


def test_degenerate_runs():
    assert of(acc.Composed([]), 1e-5) == 0.0
    assert of(acc.Gaussian(1.0) * 0, 1e-5) == 0.0
    assert of(acc.Gaussian(0.0), 1e-5) == math.inf
    assert of(acc.DiscreteGaussian(0.0), 1e-5) == math.inf
    assert of(acc.DiscreteGaussian(0.0, 0), 1e-5) == 0.0
    assert of(acc.Gaussian(10.0), 0.1) == 0.0  # the total variation is 0.04
    pure = composition.steps_of(acc.Laplace(2.0) * 3)
    assert zcdp.epsilon(pure, -math.inf) == pytest.approx(1.5, rel=1e-14)
    assert zcdp.epsilon(composition.steps_of(acc.Gaussian(1.0)), -math.inf) == math.inf


def test_sampled_gaussians_and_traced_numbers_are_refused():
    step = acc.PoissonSampled(0.1, acc.Gaussian(1.0))
    with pytest.raises(ValueError, match="accountant must be one that applies"):
        of(step, 1e-5)
    with pytest.raises(ValueError, match="accountant must be 'rdp' or 'exact'"):
        jax.jit(lambda s: zcdp.epsilon(composition.steps_of(acc.Gaussian(s)), -9.0))(1.0)
