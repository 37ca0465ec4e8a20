"""The exact accountant against the reference, closed forms, and differences of its own values."""

import csv
import fractions
import functools
import math
import pathlib

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdp import _precision
from jaxdp import accounting as acc
from jaxdp.accounting import composition, exact

ULP = 2.0**-24  # half a unit in the last place of float32, relative


def sampled(q, sigma, steps):
    return acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


def reference(mechanism):
    with open(pathlib.Path(__file__).parent / "reference.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if row["quantity"] == "exact" and row["mechanism"] == mechanism]


SAMPLED = reference("poisson_gaussian")


def numbers_of(row):
    numbers = float(fractions.Fraction(row["q"])), float(row["sigma"]), float(row["steps"])
    # Values are written with 16 digits, and an uncertainty where fewer of them are known.
    known_to = float(row["abs_uncertainty"] or 0.0) + 1e-12 * float(row["epsilon"])
    return numbers, float(row["delta"]), float(row["epsilon"]), known_to


def bounds_and_slopes(q, sigma, steps, log_delta):
    """(upper, lower) and the derivatives of upper, in whatever precision it is traced in."""

    def upper_and_lower(*numbers):
        run = composition.steps_of(sampled(*numbers[:3]))
        bounds = exact.epsilon_bounds(run, numbers[3])
        return bounds.upper, bounds.lower

    numbers = (q, sigma, steps, log_delta)
    return jax.value_and_grad(upper_and_lower, argnums=(0, 1, 2, 3), has_aux=True)(*numbers)


in_float32 = jax.jit(bounds_and_slopes)

# With 0.1 large losses expected in all, delta is what is left of sums ten times as large. Rounding
# of the terms is bounded by some 64 ulps of 6e-8 of them, and epsilon is 0.26, with 0.065 for each
# unit of log delta: 10 * 64 * 6e-8 * 0.065 / 0.26 is 1e-5, on top of what is asked.
FLOAT32_EXCESS = {"S27": 1.5e-5}


def by_float32(*numbers):
    return in_float32(*(jnp.float32(number) for number in numbers))


@pytest.mark.parametrize("row", SAMPLED, ids=[row["id"] for row in SAMPLED])
def test_the_reference_lies_in_the_bracket_and_the_bracket_is_tight(row):
    numbers, delta, truth, known_to = numbers_of(row)
    lower, upper = acc.epsilon_bounds(sampled(*numbers), delta)
    assert lower <= truth + known_to
    assert truth - known_to <= upper <= truth * (1.0 + 1e-8) + known_to
    assert acc.epsilon(sampled(*numbers), delta) == upper
    assert acc.epsilon(sampled(*numbers), delta, accountant="exact") == upper


@pytest.mark.parametrize("row", SAMPLED, ids=[row["id"] for row in SAMPLED])
def test_a_float32_program_is_above_the_reference_by_little(row):
    numbers, delta, truth, known_to = numbers_of(row)
    arguments = (*numbers, math.log(delta))
    (upper, lower), slopes = by_float32(*arguments)
    # The arguments are rounded to float32: each moves epsilon by its slope times that.
    moved = sum(
        abs(float(slope) * argument) * ULP
        for slope, argument in zip(slopes, arguments, strict=True)
    )
    assert float(lower) <= truth + moved + known_to
    assert truth - moved - known_to <= float(upper)
    assert float(upper) <= truth * (1.0 + FLOAT32_EXCESS.get(row["id"], 1e-5)) + moved + known_to


GAUSSIANS = reference("gaussian")


@pytest.mark.parametrize("row", GAUSSIANS, ids=[row["id"] for row in GAUSSIANS])
def test_gaussians_have_their_closed_form_between_the_bounds(row):
    (_, sigma, steps), delta, truth, known_to = numbers_of(row)
    lower, upper = acc.epsilon_bounds(acc.Gaussian(sigma) * int(steps), delta)
    assert lower <= truth + known_to
    assert truth - known_to <= upper <= truth * (1.0 + 1e-8)


def single_step_epsilon(q, sigma, delta):
    """log(1 + q (e^x - 1)), where the Gaussian has delta / q at x: by mpmath, to 30 digits."""
    with mpmath.workdps(60):
        mu, wanted = 1 / mpmath.mpf(sigma), mpmath.mpf(delta) / mpmath.mpf(q)

        def excess(x):
            above = mpmath.ncdf(mu / 2 - x / mu)
            return mpmath.log(above - mpmath.exp(x) * mpmath.ncdf(-mu / 2 - x / mu)) - mpmath.log(
                wanted
            )

        low, high = mpmath.mpf(0), mpmath.mpf(1000)
        for _ in range(120):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return float(mpmath.log1p(mpmath.mpf(q) * mpmath.expm1(low)))


SINGLE = [
    (0.01, 1.0, 1e-5),
    (0.3, 2.0, 1e-8),
    (0.9, 0.7, 1e-3),
    (1e-4, 0.5, 1e-12),
    # The log of what lies below a cut, small against what lies above it, once lost its digits.
    (0.5, 3.0, 4.5e-46),
]


@pytest.mark.parametrize(("q", "sigma", "delta"), SINGLE)
def test_one_step_has_its_closed_form_with_and_without_the_line_integral(q, sigma, delta):
    truth = single_step_epsilon(q, sigma, delta)
    lower, upper = acc.epsilon_bounds(sampled(q, sigma, 1), delta)
    # The closed form itself, rounded outward by a few hundred ulps.
    assert truth * (1.0 - 1e-12) <= upper <= truth * (1.0 + 1e-12)
    assert lower <= truth * (1.0 + 1e-12)
    steps = composition.steps_of(sampled(q, sigma, 1))
    lower, upper = _precision.evaluate(exact.epsilon_bounds, steps, math.log(delta))
    # Rounding of log delta, a few tens, is 1e-14 of epsilon.
    assert lower <= truth * (1.0 + 1e-13)
    assert truth * (1.0 - 1e-13) <= upper <= truth * (1.0 + 1e-8)
    (upper, lower), _ = by_float32(q, sigma, 1.0, math.log(delta))
    # As above, with log delta off by 6e-8 of some tens, over a slope of 10 and more. Next to the
    # end of float32's range Renyi DP has to do.
    assert lower <= truth * (1.0 + 1e-6)
    assert truth * (1.0 - 1e-6) <= upper <= truth * (1.0 + (1e-4 if delta > 1e-38 else 0.02))


def test_what_float32_cannot_hold_is_in_the_bounds_all_the_same():
    # Jumps above a cut of 3.7 make 1.3 % of this delta, and moments that underflow in float32.
    q, sigma, log_delta = (float(np.float32(x)) for x in (3.7150145e-05, 1.2967379, -131.06363))
    truth = single_step_epsilon(q, sigma, math.exp(log_delta))
    (upper, lower), _ = by_float32(q, sigma, 1.0, log_delta)
    assert lower <= truth * (1.0 + 1e-6)
    assert truth * (1.0 - 1e-6) <= upper


@pytest.mark.parametrize(
    "numbers",
    [
        (0.01, 1.0, 1_000.0, math.log(1e-5)),
        (0.1, 2.0, 300.0, math.log(1e-8)),
        (0.02, 0.8, 100.0, math.log(1e-6)),
        (0.5, 4.0, 100.0, math.log(1e-5)),
    ],
)
def test_derivatives_are_those_of_the_values(numbers):
    @functools.cache
    def value(*numbers):
        # Counts between whole numbers have their log-moments too.
        columns = tuple(np.array([number]) for number in numbers[:3])
        steps = composition.steps_of(sampled(0.5, 1.0, 1))._replace(sampled_gaussian=columns)
        bounds = _precision.evaluate(exact.epsilon_bounds, steps, numbers[3])
        return 0.5 * (bounds.lower + bounds.upper)

    _, slopes = by_float32(*numbers)
    for at, slope in enumerate(slopes):
        # Central differences are off by h^2 / 6 of a third derivative, some 1e-6 of the first;
        # values by 1e-10 over h; the sums in float32 by 1e-5, and by 3e-4 where sums cancel.
        def moved(by, at=at):
            return value(*numbers[:at], numbers[at] * (1.0 + by), *numbers[at + 1 :])

        h = 1e-3
        difference = (moved(h) - moved(-h)) / (2.0 * h * numbers[at])
        assert float(slope) == pytest.approx(difference, rel=5e-4), at


MIXES = [
    # (run, delta, epsilon by an independent privacy-loss distribution, to the digits shown)
    (sampled(0.01, 1.0, 500) + sampled(0.01, 2.0, 500), 1e-5, 1.3987),
    (acc.Schedule(np.full(2, 0.01), np.array([1.0, 2.0]), np.array([500, 500])), 1e-5, 1.3987),
    (acc.Schedule(0.01, 0.999 ** np.arange(300)), 1e-5, 1.8814),
]


@pytest.mark.parametrize(("run", "delta", "published"), MIXES)
def test_mixes_have_their_known_epsilons(run, delta, published):
    lower, upper = acc.epsilon_bounds(run, delta)
    assert upper - lower <= 1e-8 * upper
    # Those values are rounded upper bounds on a grid of 1e-4 and 1e-3.
    assert published * (1.0 - 1e-3) <= upper <= published + 5e-5


def test_gaussians_beside_sampled_ones_lie_within_the_second_route():
    run = acc.Gaussian(20.0) * 4 + sampled(0.01, 1.0, 1_000)
    lower, upper = acc.epsilon_bounds(run, 1e-5)
    assert upper - lower <= 1e-8 * upper
    by_pld = acc.epsilon(run, 1e-5, accountant="pld")
    assert lower <= by_pld <= upper * (1.0 + 1e-4)
    # Each part alone costs less, and both together no more than their sum.
    parts = [acc.epsilon(part, 5e-6) for part in (acc.Gaussian(20.0) * 4, sampled(0.01, 1.0, 1000))]
    assert max(acc.epsilon(part, 1e-5) for part in run.events) < upper < sum(parts)


def test_a_permuted_composition_costs_the_same():
    a, b = sampled(0.01, 1.0, 500), sampled(0.03, 2.0, 200)
    first, second = acc.epsilon_bounds(a + b, 1e-5), acc.epsilon_bounds(b + a, 1e-5)
    # Both brackets hold the same truth.
    assert max(first.lower, second.lower) <= min(first.upper, second.upper)
    assert first.upper == pytest.approx(second.upper, rel=1e-8)


def test_configurations_under_vmap_are_as_one_by_one():
    q = jnp.array([0.01, 0.1, 0.02])
    s = jnp.array([1.0, 2.0, 0.8])
    n = jnp.array([1_000.0, 300.0, 100.0])
    log_delta = jnp.log(jnp.array([1e-5, 1e-8, 1e-6]))
    (together, _), _ = jax.jit(jax.vmap(bounds_and_slopes))(q, s, n, log_delta)
    for i, one in enumerate(together):
        (alone, _), _ = by_float32(q[i], s[i], n[i], log_delta[i])
        # Another program rounds otherwise: brackets are some 1e-5 wide.
        assert float(one) == pytest.approx(float(alone), rel=1e-5)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-12, 1e-60])
def test_delta_and_epsilon_are_inverse_to_one_another(delta):
    run = sampled(0.01, 1.0, 1_000)
    bounds = acc.epsilon_bounds(run, delta)
    back = acc.log_delta(run, bounds.upper)
    # epsilon is up to 1e-8 of itself too high, with a slope in log delta of at most 20 here; the
    # log of delta is rounded up by up to 1e-6.
    assert back == pytest.approx(math.log(delta), abs=1e-6 + 20.0 * 1e-8 * bounds.upper)
    assert acc.delta(run, bounds.lower) >= delta * (1.0 - 1e-12)


def test_a_run_that_releases_nothing_or_everything():
    for nothing in (sampled(0.01, 1.0, 0), sampled(0.0, 1.0, 10), acc.Composed([])):
        assert acc.epsilon_bounds(nothing, 1e-5) == (0.0, 0.0)
    assert acc.epsilon(sampled(0.01, 0.0, 10), 1e-5, accountant="exact") == math.inf
    for numbers in ((0.01, 0.0, 10.0), (1.5, 1.0, 10.0), (0.1, 1.0, -1.0), (0.1, math.nan, 1.0)):
        (upper, _), _ = by_float32(*numbers, math.log(1e-5))
        assert float(upper) == math.inf
    for numbers in ((0.01, 1.0, 0.0), (0.0, 1.0, 10.0)):
        (upper, lower), slopes = by_float32(*numbers, math.log(1e-5))
        assert float(upper) == float(lower) == 0.0
        assert np.all(np.isfinite(slopes))


def random_configurations(count):
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield (
            math.exp(rng.uniform(math.log(1e-6), 0.0)),
            math.exp(rng.uniform(math.log(0.3), math.log(200.0))),
            round(math.exp(rng.uniform(0.0, math.log(1e6)))),
            rng.uniform(math.log(1e-100), math.log(0.1)),
        )


def test_random_runs_are_bracketed_below_renyi():
    for q, sigma, steps, log_delta in random_configurations(25):
        run, delta = sampled(q, sigma, steps), math.exp(log_delta)
        lower, upper = acc.epsilon_bounds(run, delta)
        by_renyi = acc.epsilon(run, delta, accountant="rdp")
        assert 0.0 <= lower <= upper < math.inf
        assert upper <= by_renyi * (1.0 + 1e-9)  # two searches for the same order
        (single, least), _ = by_float32(q, sigma, steps, log_delta)
        assert 0.0 <= least <= single < math.inf
        # Rounded arguments: log delta by 6e-8 of at most 230, over a slope of at least 1 / epsilon.
        assert single >= lower * (1.0 - 2e-5)
        assert least <= upper * (1.0 + 2e-5)
        assert single <= by_renyi * (1.0 + 1e-3) + 1e-30


def epsilon_of_one_step(q, sigma, log_delta):
    """The closed form: delta(eps') = q delta_Gaussian(eps), e^eps' = 1 - q + q e^eps."""
    with mpmath.workdps(60):
        rate, mu = mpmath.mpf(q), 1 / mpmath.mpf(sigma)
        delta = mpmath.exp(mpmath.mpf(log_delta)) / rate

        def excess(eps):
            below = mpmath.ncdf(-mu / 2 - eps / mu)
            return mpmath.ncdf(mu / 2 - eps / mu) - mpmath.exp(eps) * below - delta

        low, high = mpmath.mpf(0), mpmath.mpf(2000)
        for _ in range(150):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return mpmath.log1p(rate * mpmath.expm1(high))


# One step of much noise, hardly ever taken: Renyi DP is off by a thousand there, and the orders
# that matter are so high that float32 knows little of c log c.
RARE = [
    (1.3331589e-06, 156.06552, -69.03704),
    (2e-6, 120.0, -60.0),
    (1e-5, 60.0, -40.0),
    (1e-4, 200.0, -90.0),
    (3e-5, 20.0, -150.0),
    (1e-3, 8.0, -25.0),
]


@pytest.mark.parametrize(("q", "sigma", "log_delta"), RARE)
def test_a_float32_program_is_no_lower_than_one_rare_step_needs(q, sigma, log_delta):
    numbers = [float(np.float32(number)) for number in (q, sigma, log_delta)]
    truth = epsilon_of_one_step(*numbers)
    (upper, lower), _ = by_float32(numbers[0], numbers[1], 1.0, numbers[2])
    assert float(lower) <= truth <= float(upper)


log_delta_in_float32 = jax.jit(
    lambda event, epsilon: exact.log_delta_bounds(composition.steps_of(event), epsilon).upper
)


@pytest.mark.parametrize(("q", "sigma", "log_delta"), RARE)
def test_a_float32_program_s_delta_is_no_lower_than_one_rare_step_has(q, sigma, log_delta):
    q, sigma = (float(np.float32(number)) for number in (q, sigma))
    epsilon = np.float32(float(epsilon_of_one_step(q, sigma, log_delta)))
    steps = sampled(jnp.float32(q), jnp.float32(sigma), 1)
    upper = float(log_delta_in_float32(steps, jnp.float32(epsilon)))
    # The closed form at the very epsilon, rounded to float32, that the program got.
    with mpmath.workdps(60):
        rate, mu = mpmath.mpf(q), 1 / mpmath.mpf(sigma)
        own = mpmath.log1p(mpmath.expm1(mpmath.mpf(float(epsilon))) / rate)
        below = mpmath.exp(own) * mpmath.ncdf(-mu / 2 - own / mu)
        truth = mpmath.log(rate * (mpmath.ncdf(mu / 2 - own / mu) - below))
    assert upper >= truth
