"""The Gaussian profile against 60-digit arithmetic, in both float types."""

import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jaxdp import _gaussian_profile as profile

# The newer name of the same scoped context manager; jax.experimental's warns there.
if hasattr(jax, "enable_x64"):
    enable_x64 = jax.enable_x64
else:
    from jax.experimental import enable_x64

# Largest relative excess of epsilon that is promised.
PROMISED = {"float32": 1e-4, "float64": 1e-9}

# (noise multiplier, delta, epsilon): the exact column of independently computed reference rows.
# Runs of several steps enter as one Gaussian with noise multiplier sigma / sqrt(steps).
EXACT_ROWS = [
    (0.3, 1, 1e-5, 19.1307678343619248),
    (1.0, 1, 1e-5, 4.37717809568122463),
    (1.0, 1, 1e-30, 11.7438830252317363),
    (2.0, 1, 1e-6, 2.25408465021974094),
    (10.0, 1, 1e-5, 0.340669364684326411),
    (200.0, 1, 1e-5, 0.0125134221258861128),
    (200.0, 10_000, 1e-5, 1.99309140441511963),
    (1000.0, 1_000_000, 1e-6, 4.886554117462212),
    (10.0, 1000, 1e-15, 29.613454177668446),
    (0.3, 1_000_000, 1e-5, 5569770.85884118375),
    (100.0, 1, 1e-3, 0.00904807259303879783),
    (100_000.0, 1_000_000, 1e-9, 0.0488663930157032725),
]


mp.mp.dps = 100
ROOT = mp.sqrt(2)


def true_log_delta(epsilon, mu):
    """The log of the textbook difference of two tails, with digits to spare."""
    epsilon, mu = mp.mpf(epsilon), mp.mpf(mu)
    a = epsilon / mu - mu / 2
    return mp.log((mp.erfc(a / ROOT) - mp.exp(epsilon) * mp.erfc((a + mu) / ROOT)) / 2)


def true_epsilon(log_delta, mu):
    """Bisection on the true profile, to 20 digits."""
    log_delta, mu = mp.mpf(log_delta), mp.mpf(mu)
    if true_log_delta(0, mu) <= log_delta:
        return mp.mpf(0)
    low, high = mp.mpf(0), mu * (mp.sqrt(-2 * log_delta) + mu / 2)
    while high - low > high * mp.mpf(10) ** -20:
        middle = (low + high) / 2
        low, high = (middle, high) if true_log_delta(middle, mu) > log_delta else (low, middle)
    return high


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    with enable_x64(request.param == "float64"):
        yield jnp.dtype(request.param)


@pytest.fixture
def grid(dtype):
    """(log delta, mu) over the promised range, rounded to the dtype."""
    deltas = [0.5, 0.1, 1e-3, 1e-5, 1e-9, 1e-15, 1e-30, 1e-100, 1e-300]
    pairs = [(math.log(d), 10.0**m) for d in deltas for m in range(-6, 5)]
    return (jnp.asarray(column, dtype) for column in zip(*pairs, strict=True))


def test_log_delta_is_never_below_the_truth_nor_far_above(dtype):
    mus = 10.0 ** np.linspace(-6, 4, 11)
    # Around every switch between forms, and far into both tails.
    tails = np.array([-8, -1, -0.3, 0, 0.5, 1.9, 2.1, 2.9, 3.1, 6, 15, 37])
    tails, mus = (x.ravel() for x in np.meshgrid(tails, mus))
    epsilons = jnp.asarray(np.maximum(tails + mus / 2, 0) * mus, dtype)
    mus = jnp.asarray(mus, dtype)
    got = np.asarray(jax.jit(jax.vmap(profile.log_delta))(epsilons, mus), np.float64)
    unit = float(jnp.finfo(dtype).eps)
    for epsilon, mu, value in zip(epsilons, mus, got, strict=True):
        epsilon, mu = float(epsilon), float(mu)
        truth = true_log_delta(epsilon, mu)
        assert value >= truth or value == 0.0
        # The stated margin: 16 units and 2 units of a's own rounding, plus as much again for
        # the evaluation error that the margin covers.
        b = epsilon / mu + mu / 2
        slope = max(epsilon / mu - mu / 2, 0) + 1.3
        allowed = 20 * unit * (1 + abs(truth)) + 4 * unit * slope * b
        assert value - truth <= allowed


def test_epsilon_is_never_below_the_truth_nor_far_above(dtype, grid):
    log_deltas, mus = grid
    got = np.asarray(jax.jit(jax.vmap(profile.epsilon))(log_deltas, mus), np.float64)
    for log_delta, mu, value in zip(log_deltas, mus, got, strict=True):
        truth = true_epsilon(float(log_delta), float(mu))
        assert value >= truth
        assert value <= truth * (1 + PROMISED[dtype.name])


def test_mu_is_never_above_the_truth_nor_far_below(dtype, grid):
    log_deltas, mus = grid
    epsilons = jax.jit(jax.vmap(profile.epsilon))(log_deltas, mus)
    epsilons = jnp.where(epsilons > 0, epsilons, 1.0)
    got = np.asarray(jax.jit(jax.vmap(profile.mu))(epsilons, log_deltas), np.float64)
    for epsilon, log_delta, value in zip(epsilons, log_deltas, got, strict=True):
        # delta rises with mu, so the truth lies between the value and a little more.
        assert true_log_delta(float(epsilon), value) <= float(log_delta)
        more = value * (1 + PROMISED[dtype.name])
        assert true_log_delta(float(epsilon), more) > float(log_delta)


def test_reference_rows_are_reproduced_from_above(dtype):
    inverse = jax.jit(profile.epsilon)
    for sigma, steps, delta, exact in EXACT_ROWS:
        log_delta = jnp.asarray(math.log(delta), dtype)
        got = float(inverse(log_delta, jnp.asarray(math.sqrt(steps) / sigma, dtype)))
        # Rounding sigma and log delta to float32 moves the truth by up to 1e-6 relative:
        # less than the margin, so the bound holds for the unrounded numbers too. The
        # references themselves are good to 1e-12.
        assert exact * (1 - 1e-12) <= got <= exact * (1 + PROMISED[dtype.name])


def test_gradients_agree_with_differences_of_the_truth(dtype):
    mp_step = mp.mpf(10) ** -12
    gradient = jax.jit(jax.grad(profile.epsilon, argnums=(0, 1)))
    profile_gradient = jax.jit(jax.grad(profile.log_delta, argnums=(0, 1)))
    mu_gradient = jax.jit(jax.grad(profile.mu, argnums=(0, 1)))
    for mu, epsilon in [(1e-4, 1e-4), (0.5, 1.0), (3.0, 20.0), (50.0, 1400.0)]:
        mu, epsilon = jnp.asarray(mu, dtype), jnp.asarray(epsilon, dtype)
        m, e = mp.mpf(float(mu)), mp.mpf(float(epsilon))
        by_epsilon = mp.diff(lambda x, m=m: true_log_delta(x, m), e, h=e * mp_step)
        by_mu = mp.diff(lambda x, e=e: true_log_delta(e, x), m, h=m * mp_step)
        # The derivative of delta in log space carries the error of log delta (up to 1e-2 in
        # float32 at mu = 50, where an ulp of epsilon moves it so): 2 % there, 1e-9 in float64.
        tolerance = 2e-2 if dtype == jnp.float32 else 1e-9
        got = profile_gradient(epsilon, mu)
        assert float(got[0]) == pytest.approx(float(by_epsilon), rel=tolerance)
        assert float(got[1]) == pytest.approx(float(by_mu), rel=tolerance)
        log_delta = profile.log_delta(epsilon, mu)
        got = gradient(log_delta, mu)
        assert float(got[0]) == pytest.approx(float(1 / by_epsilon), rel=tolerance)
        assert float(got[1]) == pytest.approx(float(-by_mu / by_epsilon), rel=tolerance)
        got = mu_gradient(epsilon, log_delta)
        assert float(got[0]) == pytest.approx(float(-by_epsilon / by_mu), rel=tolerance)
        assert float(got[1]) == pytest.approx(float(1 / by_mu), rel=tolerance)


def test_gradients_are_finite_over_the_whole_range(dtype, grid):
    log_deltas, mus = grid
    gradients = jax.jit(jax.vmap(jax.grad(profile.epsilon, (0, 1))))(log_deltas, mus)
    epsilons = jax.jit(jax.vmap(profile.epsilon))(log_deltas, mus)
    gradients += jax.jit(jax.vmap(jax.grad(profile.mu, (0, 1))))(epsilons, log_deltas)
    gradients += jax.jit(jax.vmap(jax.grad(profile.log_delta, (0, 1))))(epsilons, mus)
    assert all(bool(jnp.isfinite(gradient).all()) for gradient in gradients)


INF, NAN = math.inf, math.nan


def evaluate(function, dtype, *pairs):
    batched = jax.jit(jax.vmap(function))
    first, second = (jnp.asarray(column, dtype) for column in zip(*pairs, strict=True))
    return batched(first, second).tolist()


def test_no_sensitivity_costs_nothing_and_no_noise_costs_everything(dtype):
    assert evaluate(profile.epsilon, dtype, (-1, 0), (-1, INF)) == [0, INF]
    assert evaluate(profile.log_delta, dtype, (1, 0), (0, 0), (1, INF)) == [-INF, -INF, 0]
    assert evaluate(profile.log_delta, dtype, (INF, 1)) == [-INF]
    assert evaluate(profile.epsilon, dtype, (-INF, 1)) == [INF]
    assert evaluate(profile.mu, dtype, (1, -INF), (INF, -1), (1, 0)) == [0, INF, INF]


def test_what_is_not_a_number_is_charged_in_full(dtype):
    assert evaluate(profile.epsilon, dtype, (NAN, 1), (-1, NAN)) == [INF, INF]
    assert evaluate(profile.log_delta, dtype, (NAN, 1), (1, NAN), (-1, 1)) == [0, 0, 0]
    assert evaluate(profile.mu, dtype, (NAN, -1), (1, NAN), (-1, -1)) == [0, 0, 0]


def test_extreme_arguments_overflow_into_bounds_and_not_into_nan(dtype):
    far = evaluate(profile.log_delta, dtype, (1e30, 1), (1, 1e-30))
    assert all(value < -1e30 for value in far)
    assert evaluate(profile.log_delta, dtype, (1, 1e30)) == [0]
    assert evaluate(profile.epsilon, dtype, (-1e-3, 1e-30)) == [0]
