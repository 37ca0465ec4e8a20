"""The trade-off curve against the curves that are known in closed form."""

import math

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from jaxdp.accounting.trade_off import attack_advantage, type_ii_error
from jaxdp.mechanisms import gaussian

ALPHAS = np.array([0.0, 1e-6, 0.01, 0.05, 0.3, 0.5, 0.8, 0.99, 1.0])


def of_gaussian(sigma):
    return lambda epsilon: gaussian.log_delta(epsilon=epsilon, noise_multiplier=sigma)


def of_laplace(scale):
    def log_delta(epsilon):
        gap = 0.5 * (epsilon - 1.0 / scale)
        return math.log(-math.expm1(gap)) if gap < 0.0 else -math.inf

    return log_delta


def of_response(step):
    """Binary randomised response: delta = p - e^epsilon (1 - p)."""
    p = 1.0 / (1.0 + math.exp(-step))

    def log_delta(epsilon):
        delta = p * -math.expm1(epsilon - step)
        return math.log(delta) if delta > 0.0 else -math.inf

    return log_delta


def assert_below_and_close(found, expected):
    # Certified, up to the rounding of the closed form; the search leaves 1e-8.
    assert np.all(found <= expected + 1e-15)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("sigma", [0.2, 1.0, 5.0, 300.0])
def test_a_gaussian_has_the_gaussian_curve(sigma):
    expected = stats.norm.cdf(stats.norm.isf(ALPHAS) - 1.0 / sigma)
    assert_below_and_close(type_ii_error(ALPHAS, of_gaussian(sigma)), expected)


@pytest.mark.parametrize("scale", [0.1, 1.0, 20.0])
def test_laplace_has_its_curve(scale):
    # Dong, Roth and Su 2022: linear at either end and a hyperbola between.
    decay = math.exp(-1.0 / scale)
    inner = np.where(ALPHAS > 0.0, decay / (4.0 * np.maximum(ALPHAS, 1e-300)), 1.0)
    expected = np.where(
        decay > 2.0 * ALPHAS,
        1.0 - ALPHAS / decay,
        np.where(ALPHAS <= 0.5, inner, decay * (1.0 - ALPHAS)),
    )
    assert_below_and_close(type_ii_error(ALPHAS, of_laplace(scale)), expected)


@pytest.mark.parametrize("step", [0.1, 1.0, 6.0])
def test_randomized_response_has_its_two_lines(step):
    expected = np.maximum(1.0 - math.exp(step) * ALPHAS, math.exp(-step) * (1.0 - ALPHAS))
    assert_below_and_close(type_ii_error(ALPHAS, of_response(step)), expected)


def test_nothing_released_and_everything_released():
    np.testing.assert_allclose(type_ii_error(ALPHAS, lambda _: -math.inf), 1 - ALPHAS, atol=1e-14)
    assert np.all(type_ii_error(ALPHAS, lambda _: 0.0) == 0.0)
    assert attack_advantage(lambda _: -math.inf) == 0.0
    assert attack_advantage(lambda _: 0.0) == 1.0


@settings(max_examples=15, deadline=None)
@given(st.floats(0.1, 50.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_curve_falls_is_convex_and_stays_below_guessing(sigma, first, second):
    alphas = np.array([first, 0.5 * (first + second), second])
    errors = type_ii_error(alphas, of_gaussian(sigma))
    assert np.all((errors >= 0.0) & (errors <= 1.0 - alphas))
    assert errors[1] <= 0.5 * (errors[0] + errors[2]) + 2e-8
    if first < second:
        assert errors[0] >= errors[2] - 2e-8


def test_the_advantage_is_the_total_variation():
    expected = 2.0 * stats.norm.cdf(0.5) - 1.0
    advantage = attack_advantage(of_gaussian(1.0))
    assert expected * (1 - 1e-14) <= advantage <= expected * (1 + 1e-13)
    # 1 - alpha - f(alpha) is largest at this alpha, where it is the advantage.
    alpha = stats.norm.cdf(-0.5)
    assert 1 - alpha - type_ii_error(alpha, of_gaussian(1.0)) == pytest.approx(advantage, rel=1e-8)


def test_shapes_follow_the_type_i_errors():
    assert isinstance(type_ii_error(0.1, of_gaussian(1.0)), float)
    assert type_ii_error(np.full((2, 3), 0.1), of_gaussian(1.0)).shape == (2, 3)


def test_bad_arguments_are_refused():
    for alpha in (-0.1, 1.1, math.nan, "half"):
        with pytest.raises(ValueError, match="alpha must be a probability"):
            type_ii_error(alpha, of_gaussian(1.0))
    with pytest.raises(ValueError, match="log_delta_at must be a function"):
        type_ii_error(0.1, 3.0)
    with pytest.raises(ValueError, match="log_delta_at must be a function"):
        attack_advantage(3.0)
    with pytest.raises(ValueError, match="not traced values"):
        jax.jit(lambda alpha: type_ii_error(alpha, of_gaussian(1.0)))(0.1)
