"""Log-moments of the kinds beyond Gaussian and Laplace, against mpmath and plain sums."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from scipy import stats

from jaxdp import _precision
from jaxdp import accounting as acc
from jaxdp.accounting import composition, conversion, log_moment_kinds

BELOW = conversion.margin(jnp.float32)  # what the conversion to epsilon allows for
POINTS = [(1.0, 0.1, 1.0), (0.5, 0.01, 2.0), (31.0, 0.3, 3.0), (3.0, 0.5, 0.5), (0.01, 1e-3, 20.0)]


def on_host(formula, t, *numbers):
    return _precision.evaluate(formula, np.array([t]), *(float(number) for number in numbers))[0]


def without_replacement(t, q, s):
    """K by its definition: R^a under Q, the law of removal where R > 1, of addition where R < 1."""
    with mpmath.workdps(30):
        a, q, mu = 1 + mpmath.mpf(t), mpmath.mpf(q), 1 / mpmath.mpf(s)
        points = [mu / 2 + mpmath.mpf(k) / 2 for k in range(int(2 * (20 + a * mu)))]

        def term(x):
            ratio = 1 + q * mpmath.expm1(mu * x - mu * mu / 2)
            # Removal: Q = N(0, 1), R = ratio. Addition: Q is the mixture, R = 1 / ratio.
            return mpmath.npdf(x) * (ratio**a + ratio * ratio**-a)

        beyond = mpmath.quad(term, points)
        high = mpmath.ncdf(-mu / 2)  # P(ratio > 1) under N(0, 1), and under the mixture
        higher = (1 - q) * high + q * mpmath.ncdf(mu / 2)
        return float(mpmath.log(beyond + 1 - high - higher))


@pytest.mark.parametrize(("t", "q", "s"), POINTS)
def test_without_replacement_is_right_in_both_precisions(t, q, s):
    t, q, s = (float(np.float32(number)) for number in (t, q, s))
    exact = without_replacement(t, q, s)
    formula = log_moment_kinds.gaussian_without_replacement
    assert on_host(formula, t, q, s) == pytest.approx(exact, rel=1e-10)
    single = float(jax.jit(formula)(jnp.asarray([t], jnp.float32), q, s)[0])
    assert exact * (1 - BELOW) <= single <= exact * (1 + 1e-4)


def test_without_replacement_grows_with_the_batch_up_to_the_gaussian():
    rates = [0.0, 0.1, 0.5, 0.9, 0.999, 1.0]
    values = [on_host(log_moment_kinds.gaussian_without_replacement, 4.0, q, 1.5) for q in rates]
    assert values[0] == 0.0
    assert values == sorted(values)
    assert values[-1] == pytest.approx(0.5 * 5.0 * 4.0 / 1.5**2, rel=1e-12)


@pytest.mark.parametrize(("p", "k"), [(0.5, 2), (0.1, 10), (0.99, 3), (1.0, 4), (0.3, 1)])
@pytest.mark.parametrize("t", [1e-3, 1.0, 20.0])
def test_randomised_response_is_a_sum_over_its_answers(p, k, t):
    with mpmath.workdps(40):
        other = mpmath.mpf(p) / k
        truth, a = 1 - mpmath.mpf(p) + other, 1 + mpmath.mpf(t)
        total = truth**a * other ** (1 - a) + other**a * truth ** (1 - a) + (k - 2) * other
        exact = float(mpmath.log(total)) if k > 1 else 0.0
    value = on_host(log_moment_kinds.randomized_response, t, p, k)
    assert value == pytest.approx(exact, rel=1e-12, abs=1e-300)


def test_the_discrete_gaussian_is_below_the_continuous_one():
    k = np.arange(-100, 101)
    for s, sensitivity, t in [(0.4, 1, 2.0), (2.0, 3, 5.0), (5.0, 1, 0.5)]:
        law, moved = (-0.5 * ((k - shift) / s) ** 2 for shift in (0, sensitivity))
        # Both have the same normaliser.
        exact = np.logaddexp.reduce((1 + t) * moved - t * law) - np.logaddexp.reduce(law)
        value = on_host(log_moment_kinds.discrete_gaussian, t, s, sensitivity)
        assert exact <= value * (1 + 1e-10)
        assert value <= exact * 1.5 + 1e-9


BINOMIALS = [(0.005, 50_000, 300), (0.005, 50_000, 400), (0.1, 10, 10), (0.5, 10, 9), (0.2, 9, 1)]


@pytest.mark.parametrize(("q", "n", "capacity"), BINOMIALS)
def test_the_bound_on_an_overflow_is_above_it_and_not_far(q, n, capacity):
    exact = stats.binom.logsf(capacity - 1, n, q)
    bound = _precision.evaluate(log_moment_kinds.log_overflow_bound, q, float(n), float(capacity))
    assert exact <= bound + 1e-12
    assert bound <= exact + 1.0  # a factor e: about 2 of sharpness next to the mean


def test_a_sample_that_cannot_overflow_is_poisson():
    assert _precision.evaluate(log_moment_kinds.log_overflow_bound, 0.1, 10.0, 11.0) == -math.inf
    step = acc.PoissonSampled(0.1, acc.Gaussian(1.0))
    capped = acc.TruncatedPoissonSampled(0.1, acc.Gaussian(1.0), num_examples=10, max_batch_size=11)
    assert acc.rdp(capped, 3.0) == pytest.approx(acc.rdp(step, 3.0), rel=1e-12)


def test_a_capacity_costs_at_most_the_mixture_of_both_outcomes():
    """Order by order at the exact probabilities, with moments from the definition."""
    q, s, n, capacity, t = 0.1, 1.0, 40, 6, 3.0
    x = np.linspace(-14.0, 40.0, 400_001)
    dx = x[1] - x[0]

    def moment(rate, mu):
        base = stats.norm.pdf(x)
        return np.sum(base * (1 + rate * np.expm1(mu * x - mu * mu / 2)) ** (1 + t)) * dx

    full = stats.binom.sf(capacity - 1, n, q)
    r = np.arange(capacity, n + 1)
    kept = q * np.sum(stats.binom.pmf(r, n, q) * capacity / (r + 1)) / full
    exact = math.log((1 - full) * moment(q, 1 / s) + full * moment(kept, 2 / s))
    value = on_host(log_moment_kinds.truncated_poisson_gaussian, t, q, s, n, capacity)
    assert exact <= value <= 3.0 * exact


KINDS = [
    acc.DiscreteGaussian(2.0),
    acc.RandomizedResponse(0.5, 2),
    acc.TruncatedPoissonSampled(0.1, acc.Gaussian(1.0), num_examples=100, max_batch_size=20),
    acc.SampledWithoutReplacement(100, 10, acc.Gaussian(1.0)),
]


@pytest.mark.parametrize("event", KINDS)
def test_no_kind_is_ignored(event):
    steps, thrice = composition.steps_of(event), composition.steps_of(event * 3)

    def moment(steps, t):
        return composition.log_moment_of(steps, t)

    def pure(steps, unused):
        return composition.pure_epsilon_of(steps, unused.dtype)

    t = np.array([0.5, 2.0])
    once = _precision.evaluate(moment, steps, t)
    assert np.all(once > 0.0)
    np.testing.assert_allclose(_precision.evaluate(moment, thrice, t), 3 * once, rtol=1e-14)
    none = composition.steps_of(event * 0)
    np.testing.assert_array_equal(_precision.evaluate(moment, none, t), 0.0)
    assert _precision.evaluate(pure, none, 0.0) == 0.0
    if isinstance(event, acc.RandomizedResponse):
        assert _precision.evaluate(pure, thrice, 0.0) == pytest.approx(3 * math.log(3), rel=1e-14)
    else:
        assert _precision.evaluate(pure, thrice, 0.0) == math.inf


def test_traced_numbers_out_of_range_cost_infinity():
    t = jnp.asarray([1.0], jnp.float32)
    for formula, numbers in [
        (log_moment_kinds.randomized_response, (-0.1, 2.0)),
        (log_moment_kinds.randomized_response, (0.5, 0.0)),
        (log_moment_kinds.randomized_response, (jnp.nan, 2.0)),
        (log_moment_kinds.discrete_gaussian, (-1.0, 1.0)),
        (log_moment_kinds.discrete_gaussian, (jnp.nan, 1.0)),
        (log_moment_kinds.discrete_gaussian, (1.0, -1.0)),
        (log_moment_kinds.gaussian_without_replacement, (1.5, 1.0)),
        (log_moment_kinds.gaussian_without_replacement, (jnp.nan, 1.0)),
        (log_moment_kinds.gaussian_without_replacement, (0.5, -1.0)),
        (log_moment_kinds.truncated_poisson_gaussian, (0.5, 1.0, 10.0, 0.0)),
        (log_moment_kinds.truncated_poisson_gaussian, (-0.5, 1.0, 10.0, 5.0)),
        (log_moment_kinds.truncated_poisson_gaussian, (0.5, 1.0, jnp.nan, 5.0)),
        (log_moment_kinds.truncated_poisson_gaussian, (0.5, 0.0, 10.0, 5.0)),
    ]:
        value = jax.jit(formula)(t, *(jnp.asarray(number, jnp.float32) for number in numbers))
        assert value[0] == jnp.inf, (formula.__name__, numbers)
