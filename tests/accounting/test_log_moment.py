"""Log-moments of one step against arbitrary-precision integrals and sums."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdp import _precision, _special
from jaxdp.accounting import conversion, log_moment

BELOW = conversion.margin(jnp.float32)  # what the conversion allows for: 1.5e-5
ABOVE = 4e-5  # float32 errs upwards, by its allowance for exponents that cancel


def sampled_gaussian(t, q, s, begin=None, end=None):
    """K by the trapezoid rule in 40 digits, on [begin, end] in units of s."""
    with mpmath.workdps(40):
        t, q, s = mpmath.mpf(t), mpmath.mpf(q), mpmath.mpf(s)
        begin = mpmath.mpf(-14) if begin is None else begin
        end = max(1 + t, 2) / s + 14 if end is None else end
        # Errors exp(-2 pi^2 / h^2) and exp(-2 pi^2 s / h): below 1e-21.
        count = int(mpmath.ceil((end - begin) / min(mpmath.mpf("0.5"), s * mpmath.mpf("0.4"))))
        h = (end - begin) / count

        def term(y):
            u = q * mpmath.expm1(y / s - 1 / (2 * s * s))
            return ((1 + u) ** (1 + t) - 1 - (1 + t) * u) * mpmath.exp(-y * y / 2)

        total = mpmath.fsum(term(begin + i * h) for i in range(count + 1))
        return float(mpmath.log1p(total * h / mpmath.sqrt(2 * mpmath.pi)))


def sampled_laplace(t, q, b):
    with mpmath.workdps(40):
        a, q, r = 1 + mpmath.mpf(t), mpmath.mpf(q), 1 / mpmath.mpf(b)

        def excess(z):
            u = q * mpmath.expm1(z)
            return (1 + u) ** a - 1 - a * u

        splits = {-r, r} | {r - 4**k / a for k in range(-3, 8) if 4**k / a < 2 * r}
        splits |= {-r + mpmath.mpf(4) ** k for k in range(-3, 8) if mpmath.mpf(4) ** k < 2 * r}
        between = mpmath.quad(lambda z: excess(z) * mpmath.exp(-(z + r) / 2) / 4, sorted(splits))
        return float(mpmath.log1p(excess(-r) / 2 + mpmath.exp(-r) / 2 * excess(r) + between))


def laplace(t, b):
    with mpmath.workdps(40):
        a, r = 1 + mpmath.mpf(t), 1 / mpmath.mpf(b)
        up, down = a * mpmath.exp((a - 1) * r), (a - 1) * mpmath.exp(-a * r)
        return float(mpmath.log((up + down) / (2 * a - 1)))


def random_points(seed, count, t_range, q_range, s_range):
    """Numbers that float32 holds exactly, so that both precisions see the same problem."""
    rng = np.random.default_rng(seed)
    for i in range(count):
        t, q, s = (10 ** rng.uniform(*np.log10(bounds)) for bounds in (t_range, q_range, s_range))
        if i % 3 == 0:
            q = 1 - 10 ** rng.uniform(-5, -0.3)
        yield tuple(float(np.float32(number)) for number in (t, q, s))


in_float32 = {
    f: jax.jit(f)
    for f in (log_moment.poisson_gaussian, log_moment.poisson_laplace, log_moment.laplace)
}


def both_precisions(formula, t, *numbers):
    double = _precision.evaluate(formula, np.array([t]), *numbers)[0]
    single = in_float32[formula](jnp.float32([t]), *map(jnp.float32, numbers))[0]
    return double, float(single)


def test_the_sampled_gaussian_is_right_at_real_orders_over_a_wide_range():
    points = list(random_points(0, 36, (1e-5, 60.0), (1e-9, 1.0), (0.12, 1000.0)))
    for t, q, s in points:
        truth = sampled_gaussian(t, q, s)
        double, single = both_precisions(log_moment.poisson_gaussian, t, q, s)
        # The discretisation was designed for 1e-10; the oracle is good to 1e-15.
        assert double == pytest.approx(truth, rel=1e-10, abs=0.0), (t, q, s)
        assert -BELOW < single / truth - 1 < ABOVE, (t, q, s)


@pytest.mark.parametrize(
    ("t", "q", "s", "begin", "end"),
    [
        (999_999.0, 0.01, 200.0, 4960, 5010),  # one distant maximum
        (39.0, 0.01, 0.05, 770, 815),  # windows apart, the right one matters
        (1.0, 0.5, 0.05, -14, 54),  # narrow noise
        (4e6, 0.5, 1000.0, 0, 4100),  # about the flattest maximum there is
        (1e-6, 0.999, 0.25, -14, 20),  # order next to one, mass left of the maximum
    ],
)
def test_the_sampled_gaussian_is_right_where_the_mass_moves_away(t, q, s, begin, end):
    t, q, s = (float(np.float32(number)) for number in (t, q, s))
    truth = sampled_gaussian(t, q, s, mpmath.mpf(begin), mpmath.mpf(end))
    double, single = both_precisions(log_moment.poisson_gaussian, t, q, s)
    assert double == pytest.approx(truth, rel=1e-10, abs=0.0)
    assert -BELOW < single / truth - 1 < ABOVE


def test_float32_is_never_too_low_where_two_maxima_of_the_integrand_merge():
    # The second maximum appears and vanishes around orders a with a / s^2 near 4 and above.
    rng = np.random.default_rng(4)
    s = 10 ** rng.uniform(-1, 3, 2_000)
    q = 10 ** rng.uniform(-9, -0.01, 2_000)
    turn = np.maximum(4, np.log((1 - q) / q) + 0.5 / s**2) * 10 ** rng.uniform(-0.15, 0.25, 2_000)
    points = [np.float32(x) for x in (np.clip(turn * s * s - 1, 1e-4, 2500 * s), q, s)]

    def each(t, q, s):
        return jax.vmap(lambda t, q, s: log_moment.poisson_gaussian(t[None], q, s)[0])(t, q, s)

    single = np.float64(jax.jit(each)(*points))
    double = _precision.evaluate(each, *map(np.float64, points))
    dense = _precision.evaluate(_dense, *map(np.float64, points))
    normal = (dense > 1e-34) & (dense < 1e37)
    np.testing.assert_allclose(double[normal], dense[normal], rtol=1e-10, atol=0.0)
    assert np.all((single / dense)[normal] > 1 - BELOW)


def _dense(t, q, s):
    """The same integrand on thousands of nodes over all that could matter."""

    def one(point):
        t, q, s = point
        end = (1.0 + t) / s + 2.0 / s + 14.0
        spacing = (end + 14.0) / 8_000
        y = -14.0 + spacing * (jnp.arange(8_000) + 0.5)
        log_ratio = log_moment._log_ratio(y / s - 0.5 / s / s, q)
        log_terms = _special.log_bernoulli_excess(log_ratio, t) - 0.5 * y * y
        scale = jnp.log(spacing * t / jnp.sqrt(2.0 * jnp.pi))
        return jnp.logaddexp(jax.nn.logsumexp(log_terms) + scale, 0.0)

    return jax.lax.map(one, (t, q, s), batch_size=50)


def test_the_finite_sum_and_the_quadrature_agree_at_whole_orders():
    orders = (2, 3, 7, 20, 64, 250)
    for _, q, s in random_points(1, 20, (1.0, 2.0), (1e-7, 1.0), (0.2, 300.0)):
        summed = _precision.evaluate(_at_integers, q, s, orders=orders)
        integrated = _precision.evaluate(log_moment.poisson_gaussian, np.array(orders) - 1.0, q, s)
        # Log-sum-exp of exponents up to 1e6 at 1e-16 each.
        np.testing.assert_allclose(integrated, summed, rtol=1e-9, atol=0.0)


def _at_integers(q, s, *, orders):
    return log_moment.poisson_gaussian_at_integers(orders, jnp.asarray(q), jnp.asarray(s))


def test_the_laplace_and_the_sampled_laplace_are_right_at_real_orders():
    for t, q, b in random_points(2, 16, (1e-5, 1e4), (1e-8, 1.0), (0.02, 1e4)):
        truth = sampled_laplace(t, q, b)
        double, single = both_precisions(log_moment.poisson_laplace, t, q, b)
        assert double == pytest.approx(truth, rel=1e-11, abs=0.0), (t, q, b)
        assert -BELOW < single / truth - 1 < 10 * ABOVE, (t, q, b)
        truth = laplace(t, b)
        double, single = both_precisions(log_moment.laplace, t, b)
        assert double == pytest.approx(truth, rel=1e-12, abs=0.0), (t, b)
        assert -BELOW < single / truth - 1 < ABOVE, (t, b)


def test_a_laplace_vector_costs_at_most_what_its_whole_shift_in_one_coordinate_does():
    rng = np.random.default_rng(3)
    t = np.logspace(-4, 4, 40)
    for _ in range(20):
        shifts = rng.dirichlet(np.ones(4)) * 10 ** rng.uniform(-2, 2)
        parts = [_precision.evaluate(log_moment.laplace, t, 1.0 / shift) for shift in shifts]
        whole = _precision.evaluate(log_moment.laplace, t, 1.0 / shifts.sum())
        assert np.all(sum(parts) <= whole * (1 + 1e-12))  # rounding of either side


def test_the_direction_that_is_accounted_dominates_the_other():
    # The reverse moment E_P[(Q/P)^a], P the mixture, on a fine grid: 1e-9 is its accuracy.
    y = np.linspace(-40.0, 60.0, 400_001)
    for q, s, a in [(0.01, 1.0, 1.5), (0.3, 0.8, 4.0), (0.9, 2.0, 12.0), (0.5, 5.0, 30.0)]:
        base = np.exp(-0.5 * y * y) / np.sqrt(2 * np.pi)
        log_ratio = np.log1p(q * np.expm1(np.minimum(y / s - 0.5 / s / s, 700.0)))
        reverse = np.log(np.sum(base * np.exp((1 - a) * log_ratio)) * (y[1] - y[0]))
        accounted = _precision.evaluate(log_moment.poisson_gaussian, np.array([a - 1]), q, s)[0]
        assert reverse <= accounted + 1e-9


def test_sampling_everybody_or_nobody_meets_the_closed_forms():
    t = np.array([1e-3, 0.5, 9.0])
    everybody = _precision.evaluate(log_moment.poisson_gaussian, t, 1.0, 2.0)
    np.testing.assert_allclose(everybody, t * (1 + t) / 8, rtol=1e-14)
    assert not np.any(_precision.evaluate(log_moment.poisson_gaussian, t, 0.0, 2.0))
    nearly = _precision.evaluate(log_moment.poisson_laplace, t, 1 - 1e-12, 2.0)
    np.testing.assert_allclose(nearly, _precision.evaluate(log_moment.laplace, t, 2.0), rtol=1e-9)


def test_without_noise_the_log_moment_is_infinite_and_it_never_underflows_to_zero():
    t = jnp.float32([1e-3, 1.0, 1e3])
    for formula in (log_moment.poisson_gaussian, log_moment.poisson_laplace):
        assert jnp.all(jax.jit(formula)(t, jnp.float32(0.1), jnp.float32(0.0)) == jnp.inf)
        assert jnp.all(jax.jit(formula)(t, jnp.float32(1e-25), jnp.float32(1e3)) > 0)
    without = log_moment.poisson_gaussian_at_integers((2, 9), jnp.float32(0.1), jnp.float32(0.0))
    assert jnp.all(without == jnp.inf)
