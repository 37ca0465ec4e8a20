"""The Laplace mechanism: its noise, its calibration, its profile."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.mechanisms import laplace

laws = settings(deadline=None, max_examples=100)
multipliers = st.floats(1e-3, 1e4)
epsilons = st.floats(0, 1e3)
deltas = st.floats(1e-12, 0.9)


def true_delta(epsilon, multiplier):
    with mp.workdps(40):
        return max(mp.mpf(0), -mp.expm1((mp.mpf(epsilon) - 1 / mp.mpf(multiplier)) / 2))


def delta_by_quadrature(epsilon, shift):
    """The hockey-stick divergence of Laplace(0, 1) from Laplace(shift, 1)."""

    def integrand(x):
        p, q = 0.5 * math.exp(-abs(x)), 0.5 * math.exp(-abs(x - shift))
        return max(p - math.exp(epsilon) * q, 0.0)

    kink = (shift - epsilon) / 2
    points = sorted({0.0, shift, min(max(kink, -40.0), 40.0)})
    edges = [-60.0, *points, shift + 60.0]
    return sum(
        scipy.integrate.quad(integrand, a, b, epsabs=1e-13)[0] for a, b in itertools.pairwise(edges)
    )


def test_delta_agrees_with_quadrature_of_the_two_densities():
    for multiplier in (0.3, 1.0, 5.0):
        for fraction in (0.0, 0.3, 0.9):
            epsilon = fraction / multiplier
            got = laplace.delta(epsilon=epsilon, noise_multiplier=multiplier)
            # The quadrature is asked for 1e-13 on each of four pieces.
            assert got == pytest.approx(delta_by_quadrature(epsilon, 1 / multiplier), abs=1e-12)


def test_epsilon_of_the_reference_row():
    got = laplace.epsilon(delta=1e-5, noise_multiplier=1.0)
    exact = 0.999979999899999
    # The reference has 15 digits.
    assert exact * (1 - 1e-15) <= got <= exact * (1 + 1e-14)


def test_a_pure_guarantee_has_delta_zero():
    assert 10.0 <= laplace.epsilon(delta=0, noise_multiplier=0.1) <= 10.0 * (1 + 1e-14)
    for epsilon in (0.01, 0.3, 1.0, 7.0):
        scale = laplace.scale(epsilon=epsilon)
        assert laplace.delta(epsilon=epsilon, noise_multiplier=scale) == 0.0


def test_no_noise_is_no_privacy():
    assert laplace.epsilon(delta=1e-5, noise_multiplier=0) == math.inf
    assert laplace.delta(epsilon=1.0, noise_multiplier=0) == 1.0


def test_traced_numbers_that_are_none_are_charged_in_full():
    delta = jax.jit(lambda e, b: laplace.delta(epsilon=e, noise_multiplier=b))
    epsilon = jax.jit(lambda d, b: laplace.epsilon(delta=d, noise_multiplier=b))
    assert float(delta(math.nan, 1.0)) == float(delta(1.0, math.nan)) == 1.0
    assert float(epsilon(math.nan, 1.0)) == float(epsilon(0.1, math.nan)) == math.inf


def profile_of_two_coordinates(epsilon, first, second):
    """Delta of two Laplace coordinates, from one's profile and the other's privacy loss.

    The privacy loss of a shift s is s with probability 1/2, -s with probability e^-s / 2,
    and has the density e^((y - s) / 2) / 4 in between.
    """

    def one(t):
        inside = -np.expm1((t - second) / 2)
        return np.where(t > second, 0.0, np.where(t < -second, -np.expm1(t), inside))

    nodes, weights = np.polynomial.legendre.leggauss(40)
    # Kinks of the integrand: where epsilon - y meets +-second.
    edges = np.clip([-first, epsilon - second, epsilon + second, first], -first, first)
    total = 0.5 * one(epsilon - first) + 0.5 * math.exp(-first) * one(epsilon + first)
    for low, high in itertools.pairwise(edges):
        y = low + (high - low) * (nodes + 1) / 2
        density = np.exp((y - first) / 2) / 4
        total += (high - low) / 2 * np.sum(weights * density * one(epsilon - y))
    return float(total)


def test_splitting_a_move_over_two_coordinates_is_never_worse():
    for total in (0.05, 0.5, 1.0, 3.0, 10.0):
        for share in np.linspace(0.01, 0.5, 15):
            first, second = share * total, (1 - share) * total
            for epsilon in np.linspace(0.0, total, 21):
                split = profile_of_two_coordinates(epsilon, first, second)
                whole = laplace.delta(epsilon=float(epsilon), noise_multiplier=1 / total)
                # Gauss-Legendre on smooth pieces: rounding only.
                assert split <= whole + 1e-14
                # The closed form that the docstring derives.
                bonus = min(2 * first, total - epsilon) / 4
                closed = 1 - math.exp((epsilon - total) / 2) * (1 + bonus)
                assert split == pytest.approx(closed, abs=1e-13)


def test_two_coordinates_by_brute_force_on_a_grid():
    # The oracle above, checked against the definition: a Riemann sum over the plane with
    # step 0.02 on densities with kinks is good to 1e-3.
    x = np.arange(-15.01, 17, 0.02)
    p = 0.5 * np.exp(-np.abs(x)) * 0.02
    q_first, q_second = (0.5 * np.exp(-np.abs(x - s)) * 0.02 for s in (0.4, 1.1))
    for epsilon in (0.0, 0.5, 1.2):
        excess = np.outer(p, p) - math.exp(epsilon) * np.outer(q_first, q_second)
        expected = profile_of_two_coordinates(epsilon, 0.4, 1.1)
        assert np.maximum(excess, 0).sum() == pytest.approx(expected, abs=1e-3)


@laws
@given(epsilons, multipliers)
def test_delta_is_never_below_the_truth(epsilon, multiplier):
    got = laplace.delta(epsilon=epsilon, noise_multiplier=multiplier)
    truth = true_delta(epsilon, multiplier)
    # Two units in the last place of 1/b, and four of delta.
    assert truth <= got <= truth * (1 + 2e-15) + mp.mpf(5e-16) / multiplier


@laws
@given(deltas, multipliers)
def test_epsilon_is_never_below_the_truth(delta, multiplier):
    got = laplace.epsilon(delta=delta, noise_multiplier=multiplier)
    with mp.workdps(40):
        truth = max(mp.mpf(0), 1 / mp.mpf(multiplier) + 2 * mp.log1p(-mp.mpf(delta)))
    # The stated margins, and as much again for rounding: 4 units of 1/b, 16 of 2 log(1 - delta)
    # (at most 5.2 delta for delta <= 0.9), 4 of the result.
    allowed = (4 * truth + 4 / multiplier + 16 * 5.2 * delta) * 2.3e-16
    assert truth <= got <= truth + allowed


@laws
@given(epsilons, multipliers, st.floats(1.001, 10))
def test_delta_falls_with_epsilon_and_with_noise(epsilon, multiplier, factor):
    start = laplace.delta(epsilon=epsilon, noise_multiplier=multiplier)
    assert laplace.delta(epsilon=epsilon * factor, noise_multiplier=multiplier) <= start
    assert laplace.delta(epsilon=epsilon, noise_multiplier=multiplier * factor) <= start


@laws
@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_scale_is_sensitivity_over_epsilon_rounded_up(epsilon, sensitivity):
    got = laplace.scale(epsilon=epsilon, l1_sensitivity=sensitivity)
    with mp.workdps(40):
        exact = mp.mpf(sensitivity) / mp.mpf(epsilon)
    assert exact <= got <= exact * (1 + 2e-15)


def test_noise_is_laplace_with_the_stated_scale():
    noisy = laplace.release(jax.random.key(3), jnp.full(100_000, 7.0), scale=2.5)
    draws = (np.asarray(noisy, np.float64) - 7.0) / 2.5
    # False alarms: the p-value is below 1e-6 once in a million keys; the key is fixed.
    assert scipy.stats.kstest(draws, "laplace").pvalue > 1e-6


def test_narrow_leaves_get_float32_noise_and_leaves_do_not_share_it():
    value = {"a": jnp.zeros(2_000, jnp.bfloat16), "b": jnp.zeros(2_000, jnp.float16)}
    noisy = laplace.release(jax.random.key(0), value, scale=1.0)
    assert noisy["a"].dtype == noisy["b"].dtype == jnp.float32
    rows = np.concatenate([np.asarray(leaf) for leaf in noisy.values()])
    # Of 8 million pairs a few coincide by chance; a shared or narrow stream would lose half.
    assert len(np.unique(rows)) > 3_900


GOOD = {"epsilon": 0.5, "delta": 1e-5, "noise_multiplier": 1.0, "l1_sensitivity": 1.0}
NUMBERS = [math.nan, math.inf, -1.0, True, "1", None, 1j, np.ones(2)]
ARGUMENTS = {
    "scale": ("epsilon", "l1_sensitivity"),
    "delta": ("epsilon", "noise_multiplier"),
    "epsilon": ("delta", "noise_multiplier"),
}


@pytest.mark.parametrize(
    ("function", "name", "value"),
    [
        (function, name, value)
        for function, names in ARGUMENTS.items()
        for name in names
        for value in NUMBERS
        + ([1.0, 1.5] if name == "delta" else [])
        + ([0.0] if function == "scale" else [])
    ],
)
def test_a_bad_argument_is_refused_by_name(function, name, value):
    call = {argument: GOOD[argument] for argument in ARGUMENTS[function]} | {name: value}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        getattr(laplace, function)(**call)


@pytest.mark.parametrize(
    ("key", "value", "scale", "name"),
    [
        (0, jnp.zeros(2), 1.0, "key"),
        (None, jnp.arange(3), 1.0, "value"),
        (None, jnp.zeros(2), -1.0, "scale"),
        (None, jnp.zeros(2), math.nan, "scale"),
        (None, jnp.zeros(2), math.inf, "scale"),
    ],
)
def test_a_bad_release_is_refused_by_name(key, value, scale, name):
    key = jax.random.key(0) if key is None else key
    with pytest.raises(ValueError, match=f"^{name}.* must be"):
        laplace.release(key, value, scale=scale)
