"""The Gaussian mechanism: its noise, its calibration, its profile."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp.mechanisms import gaussian

# (epsilon, delta, smallest valid sigma): independently computed reference rows.
SIGMA_ROWS = [
    (0.1, 1e-5, 30.7495661319775),
    (5.0, 1e-5, 0.891868264951518),
    (20.0, 1e-5, 0.290041418032796),
    (1.0, 0.1, 1.08587776519186),
    (1000.0, 1e-6, 0.0248503666869477),
]

laws = settings(deadline=None, max_examples=100)
multipliers = st.floats(1e-3, 1e4)
epsilons = st.floats(1e-4, 1e3)
deltas = st.floats(-300, math.log10(0.5)).map(lambda exponent: 10.0**exponent)


def true_delta(epsilon, sigma):
    with mp.workdps(60):
        epsilon, mu = mp.mpf(epsilon), 1 / mp.mpf(sigma)
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("epsilon", "delta", "sigma"), SIGMA_ROWS)
def test_stddev_is_the_smallest_valid_one_rounded_up(epsilon, delta, sigma):
    # The references have 15 digits.
    got = gaussian.stddev(epsilon=epsilon, delta=delta)
    assert sigma * (1 - 1e-14) <= got <= sigma * (1 + 1e-9)
    traced = jax.jit(lambda e: gaussian.stddev(epsilon=e, delta=delta))(epsilon)
    assert traced.dtype == jnp.float32
    assert sigma <= float(traced) <= sigma * (1 + 1e-4)


def test_calibrated_noise_meets_its_target_in_exact_arithmetic():
    for epsilon, delta, _ in SIGMA_ROWS:
        sigma = gaussian.stddev(epsilon=epsilon, delta=delta)
        assert true_delta(epsilon, sigma) <= delta


def test_composed_gaussians_calibrate_to_the_known_values():
    # 60 releases of sigma are one of sigma / sqrt(60); values known to 6 and 5 digits.
    for epsilon, sigma, digits in [(0.1, 238.185, 3), (1.0, 28.897, 3)]:
        got = gaussian.stddev(epsilon=epsilon, delta=1e-5) * math.sqrt(60)
        assert round(got, digits) == sigma


def test_delta_is_right_from_one_half_to_the_smallest_floats():
    for epsilon, sigma in [(0.0, 0.75), (1.0, 1.0), (10.0, 1.0), (36.0, 1.0), (5.0, 3.0)]:
        truth = true_delta(epsilon, sigma)
        got = gaussian.delta(epsilon=epsilon, noise_multiplier=sigma)
        # 20 units of 2.2e-16, times 1 + |log delta| <= 700 and as much for a.
        assert truth <= got <= truth * (1 + 1e-11)


def test_delta_too_small_for_a_float_is_given_as_a_log():
    truth = mp.log(true_delta(100, 1))
    got = gaussian.log_delta(epsilon=100.0, noise_multiplier=1.0)
    assert truth <= got <= float(truth) * (1 - 1e-12)
    traced = jax.jit(lambda e: gaussian.log_delta(epsilon=e, noise_multiplier=1.0))(100.0)
    assert truth <= float(traced) <= float(truth) * (1 - 1e-5)


def test_delta_that_underflows_is_not_rounded_to_zero():
    assert 0.0 < gaussian.delta(epsilon=1000.0, noise_multiplier=1.0) < 1e-300
    traced = jax.jit(lambda e: gaussian.delta(epsilon=e, noise_multiplier=1.0))(20.0)
    assert float(traced) == float(jnp.finfo(jnp.float32).tiny)


def test_epsilon_takes_a_delta_that_is_no_float32_inside_a_float32_program():
    expected = gaussian.epsilon(delta=1e-300, noise_multiplier=1.0)
    traced = jax.jit(lambda s: gaussian.epsilon(delta=1e-300, noise_multiplier=s))(1.0)
    assert expected <= float(traced) <= expected * (1 + 1e-4)


def test_no_noise_is_no_privacy():
    assert gaussian.epsilon(delta=1e-5, noise_multiplier=0) == math.inf
    assert gaussian.delta(epsilon=1.0, noise_multiplier=0) == 1.0
    assert gaussian.log_delta(epsilon=1.0, noise_multiplier=0) == 0.0


def test_epsilon_is_zero_where_delta_alone_is_enough():
    # delta(0) = 2 Phi(1 / (2 sigma)) - 1 = 0.0399 at sigma 10.
    assert gaussian.epsilon(delta=0.1, noise_multiplier=10.0) == 0.0


def test_classical_stddev_is_the_formula_rounded_up():
    for epsilon, delta in [(0.5, 1e-5), (0.999, 0.3), (0.01, 1e-300)]:
        with mp.workdps(40):
            exact = mp.sqrt(2 * mp.log(mp.mpf(1.25) / mp.mpf(delta))) / mp.mpf(epsilon) * 3
        got = gaussian.classical_stddev(epsilon=epsilon, delta=delta, l2_sensitivity=3.0)
        assert exact <= got <= exact * (1 + 4e-15)
        traced = jax.jit(
            lambda e, d=delta: gaussian.classical_stddev(epsilon=e, delta=d, l2_sensitivity=3.0)
        )(epsilon)
        assert float(traced) == pytest.approx(float(exact), rel=3e-6)


def test_classical_stddev_is_refused_outside_its_proof_and_points_to_the_exact_one():
    for epsilon in (1, 1.0, 8.4198):
        with pytest.raises(ValueError, match=r"epsilon must be below 1.*gaussian\.stddev"):
            gaussian.classical_stddev(epsilon=epsilon, delta=1e-5)


def test_classical_stddev_of_a_traced_epsilon_outside_its_proof_is_infinite():
    formula = jax.jit(lambda e: gaussian.classical_stddev(epsilon=e, delta=1e-5))
    assert [float(formula(e)) for e in (1.0, 2.0, 0.0, -1.0, math.nan)] == [math.inf] * 5


@laws
@given(epsilons, deltas)
def test_the_exact_stddev_never_exceeds_the_classical_one(epsilon, delta):
    epsilon = min(epsilon, 0.99)
    exact = gaussian.stddev(epsilon=epsilon, delta=delta)
    assert exact <= gaussian.classical_stddev(epsilon=epsilon, delta=delta)


@laws
@given(epsilons, multipliers, st.floats(1.001, 10))
def test_delta_falls_with_epsilon_and_with_noise(epsilon, sigma, factor):
    start = gaussian.log_delta(epsilon=epsilon, noise_multiplier=sigma)
    # A factor of 1.001 moves log delta by far more than rounding, unless delta is near 1.
    assert gaussian.log_delta(epsilon=epsilon * factor, noise_multiplier=sigma) <= start
    assert gaussian.log_delta(epsilon=epsilon, noise_multiplier=sigma * factor) <= start


@laws
@given(deltas, multipliers)
def test_epsilon_and_delta_are_inverses_that_round_outwards(delta, sigma):
    epsilon = gaussian.epsilon(delta=delta, noise_multiplier=sigma)
    if 0.01 / sigma < epsilon < math.inf:
        back = gaussian.epsilon(
            delta=gaussian.delta(epsilon=epsilon, noise_multiplier=sigma), noise_multiplier=sigma
        )
        # delta(epsilon) is rounded up, which lowers epsilon by less than its margin raised it:
        # each margin is below 1e-9 relative for epsilon this large.
        assert back == pytest.approx(epsilon, rel=2e-9)


@laws
@given(epsilons, deltas, st.floats(1e-3, 1e3))
def test_stddev_is_proportional_to_the_sensitivity(epsilon, delta, sensitivity):
    one = gaussian.stddev(epsilon=epsilon, delta=delta)
    scaled = gaussian.stddev(epsilon=epsilon, delta=delta, l2_sensitivity=sensitivity)
    # One multiplication and one division are rounded differently.
    assert scaled == pytest.approx(one * sensitivity, rel=1e-15)


def test_stddev_can_be_differentiated():
    # d sigma / d epsilon by a central difference in float64: good to 1e-6 relative, and
    # float32 gradients to 1e-5.
    gradient = jax.jit(jax.grad(lambda e: gaussian.stddev(epsilon=e, delta=1e-5)))(2.0)
    up, down = (gaussian.stddev(epsilon=2.0 + h, delta=1e-5) for h in (1e-4, -1e-4))
    assert float(gradient) == pytest.approx((up - down) / 2e-4, rel=1e-4)


def test_noise_is_normal_with_the_stated_standard_deviation():
    value = {"a": jnp.full((200, 500), 7.0), "b": jnp.zeros(100_000)}
    noisy = gaussian.release(jax.random.key(3), value, stddev=2.5)
    for leaf, centre in ((noisy["a"], 7.0), (noisy["b"], 0.0)):
        draws = (np.asarray(leaf, np.float64).ravel() - centre) / 2.5
        # False alarms: each p-value is below 1e-6 once in a million keys; the key is fixed.
        assert scipy.stats.kstest(draws, "norm").pvalue > 1e-6


def test_leaves_and_keys_do_not_share_noise():
    value = {"a": jnp.zeros(64), "b": jnp.zeros(64)}
    one = gaussian.release(jax.random.key(0), value, stddev=1.0)
    other = gaussian.release(jax.random.key(1), value, stddev=1.0)
    rows = np.concatenate([np.asarray(x) for x in (*one.values(), *other.values())])
    # Two float32 normals agree with probability near 1e-7: 256 draws, 33,000 pairs, 0.3 %.
    assert len(np.unique(rows)) >= 255


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_leaves_get_float32_noise_and_come_back_in_float32(dtype):
    noisy = gaussian.release(jax.random.key(0), jnp.zeros(10_000, dtype), stddev=1.0)
    assert noisy.dtype == jnp.float32
    # In bfloat16 there would be 128 distinct values.
    assert len(np.unique(np.asarray(noisy))) > 9_000


def test_release_is_the_same_under_jit_and_zero_noise_changes_nothing():
    value = (jnp.arange(8.0), jnp.ones((2, 3)))
    release = lambda key, s: gaussian.release(key, value, stddev=s)  # noqa: E731
    plain = release(jax.random.key(5), 0.5)
    jitted = jax.jit(release)(jax.random.key(5), 0.5)
    for x, y in zip(plain, jitted, strict=True):
        # The compiler may fuse the product and the sum: one rounding of at most 8 in size.
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)
    for x, y in zip(release(jax.random.key(5), 0.0), value, strict=True):
        np.testing.assert_array_equal(x, y)


GOOD = {"epsilon": 0.5, "delta": 1e-5, "noise_multiplier": 1.0, "l2_sensitivity": 1.0}
NUMBERS = [math.nan, math.inf, -1.0, True, "1", None, 1j, np.ones(2)]
ARGUMENTS = {
    "stddev": ("epsilon", "delta", "l2_sensitivity"),
    "classical_stddev": ("epsilon", "delta", "l2_sensitivity"),
    "delta": ("epsilon", "noise_multiplier"),
    "log_delta": ("epsilon", "noise_multiplier"),
    "epsilon": ("delta", "noise_multiplier"),
}
BAD_CALLS = [
    (function, name, value)
    for function, names in ARGUMENTS.items()
    for name in names
    for value in NUMBERS + ([0.0, 1.0, 1.5] if name == "delta" else [])
] + [
    ("stddev", "l2_sensitivity", 0.0),
    ("classical_stddev", "l2_sensitivity", 0.0),
    ("classical_stddev", "epsilon", 0.0),
]


@pytest.mark.parametrize(("function", "name", "value"), BAD_CALLS)
def test_a_bad_argument_is_refused_by_name(function, name, value):
    call = {argument: GOOD[argument] for argument in ARGUMENTS[function]} | {name: value}
    with pytest.raises(ValueError, match=f"^{name} must be"):
        getattr(gaussian, function)(**call)


@pytest.mark.parametrize(
    ("key", "value", "stddev", "name"),
    [
        (0, jnp.zeros(2), 1.0, "key"),
        (jax.random.PRNGKey(0), jnp.zeros(2), 1.0, "key"),
        (None, jnp.arange(3), 1.0, "value"),
        (None, {"count": 3}, 1.0, "value"),
        (None, jnp.zeros(2), -1.0, "stddev"),
        (None, jnp.zeros(2), math.nan, "stddev"),
        (None, jnp.zeros(2), math.inf, "stddev"),
        (None, jnp.zeros(2), jnp.ones(2), "stddev"),
    ],
)
def test_a_bad_release_is_refused_by_name(key, value, stddev, name):
    key = jax.random.key(0) if key is None else key
    with pytest.raises(ValueError, match=f"^{name}.* must be"):
        gaussian.release(key, value, stddev=stddev)
