"""Inputs on which other libraries failed their users, one test each.

The values are by an independent privacy-loss distribution, upper bounds good to the digits shown.
Calibration, step counts, fractional orders and batches of a limited size are beside the tests of
their modules.
"""

import math

import numpy as np
import pytest
from scipy import optimize, stats

from jaxdp import accounting as acc
from jaxdp.accounting import composition, pld
from jaxdp.mechanisms import gaussian


def sampled(q, sigma, steps):
    return acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


ACCOUNTANTS = ("auto", "exact", "rdp", "pld", "moments", "naive", "advanced", "optimal")


def test_epsilon_is_not_negative_where_delta_covers_everything():
    for accountant in ACCOUNTANTS:
        assert acc.epsilon(sampled(0.01, 10.0, 1), 0.1, accountant=accountant) >= 0.0
    for accountant in ("auto", "exact", "rdp", "pld"):
        assert acc.epsilon(sampled(0.01, 10.0, 1), 0.1, accountant=accountant) == 0.0


def test_nothing_released_costs_nothing_and_little_costs_little():
    for nothing in (sampled(0.01, 1.0, 0), sampled(0.0, 1.0, 100), acc.Composed([])):
        for accountant in ACCOUNTANTS:
            assert acc.epsilon(nothing, 1e-5, accountant=accountant) == 0.0
    # So many small steps are next to one Gaussian at multiplier 1000, to 2e-3 (its exact epsilon).
    limit = acc.epsilon(acc.Gaussian(1000.0), 1e-5)
    # 0.00213 is what a grid of 1e-4 makes of it.
    assert limit == pytest.approx(acc.epsilon(sampled(0.01, 100.0, 100), 1e-5), rel=2e-3)
    assert acc.epsilon(sampled(0.01, 100.0, 100), 1e-5) <= 0.00213


def test_the_central_limit_is_no_bound_and_every_phase_counts():
    run = sampled(0.01, 1.0, 1000)
    assert acc.clt_epsilon(run, 1e-5) == pytest.approx(1.618, abs=5e-4)
    assert acc.epsilon(run, 1e-5) == pytest.approx(1.828, abs=5e-4)
    mixed = sampled(0.01, 1.0, 500) + sampled(0.01, 2.0, 500)
    assert acc.epsilon(mixed, 1e-5) == pytest.approx(1.3987, abs=1e-4)


def epsilon_of_rare_jumps(q, sigma, steps, delta):
    """With little noise the law is a binomial mixture of normals.

    A jump has loss log q + N(v / 2, v), v = 1 / sigma^2, any other step log(1 - q), and delta is
    E[(1 - e^(epsilon - L))_+].
    """
    jumps, v = np.arange(1, steps + 1), 1.0 / sigma**2
    mean = jumps * (math.log(q) + 0.5 * v) + (steps - jumps) * math.log1p(-q)
    deviation = np.sqrt(jumps * v)

    def excess(epsilon):
        z = (mean - epsilon) / deviation
        tails = stats.norm.cdf(z) - np.exp(
            epsilon - mean + 0.5 * deviation**2 + stats.norm.logcdf(z - deviation)
        )
        return stats.binom.pmf(jumps, steps, q) @ tails - delta

    return optimize.brentq(excess, 0.0, 1e4, xtol=1e-9)


def test_large_epsilons_are_tight():
    assert acc.epsilon(sampled(0.125, 0.8, 1000), 1e-6) == pytest.approx(56.73, abs=0.005)
    truth = epsilon_of_rare_jumps(0.01, 0.05, 2, 1e-5)
    lower, upper = acc.epsilon_bounds(sampled(0.01, 0.05, 2), 1e-5)
    # The sum of 1e-5 is right to 1e-15: 1e-10 of it, and of epsilon less.
    assert lower * (1 - 1e-10) <= truth <= upper * (1 + 1e-10)
    assert upper <= lower * (1 + 1e-8)
    # By the second route, for along the line 100 such steps take a minute; the reference, on its
    # grid, has 1464.0.
    steps = composition.steps_of(sampled(0.01, 0.05, 100))
    truth = epsilon_of_rare_jumps(0.01, 0.05, 100, 1e-5)
    assert truth == pytest.approx(1463.01237, abs=5e-6)
    lower, upper = pld.epsilon_bounds(steps, math.log(1e-5))
    assert truth * (1 - 1e-3) <= lower <= truth <= upper <= truth * (1 + 1e-5)


def test_no_noise_is_no_privacy():
    for accountant in ("auto", "exact", "rdp", "pld"):
        assert acc.epsilon(sampled(0.01, 0.0, 10), 1e-5, accountant=accountant) == math.inf
        assert acc.epsilon(acc.Gaussian(0.0), 1e-5, accountant=accountant) == math.inf
    assert acc.epsilon(acc.Laplace(2.0) * 3, 0.0) == pytest.approx(1.5, rel=1e-9)


def test_a_tiny_delta_is_finite_and_smooth():
    run = sampled(0.00033, 4.0, 10_000)
    log_deltas = np.linspace(math.log(1e-16), math.log(1e-20), 8)
    epsilons = np.array([acc.epsilon(run, math.exp(log_delta)) for log_delta in log_deltas])
    rises = np.diff(epsilons)
    assert np.all(rises > 0.0)
    assert np.max(rises) < 3 * np.min(rises)  # the slope changes little from point to point
    assert max(acc.epsilon(run, 1.13e-18), acc.epsilon(run, 1.1e-18)) <= 0.146


def test_noise_that_changes_at_every_step_is_composed_step_by_step():
    run = acc.Composed([acc.PoissonSampled(0.01, acc.Gaussian(0.999**t)) for t in range(300)])
    spent = acc.epsilon(run, 1e-5)
    # From a grid of 1e-3.
    assert spent == pytest.approx(1.8814, abs=2e-3)
    schedule = acc.Schedule(0.01, 0.999 ** np.arange(300))
    assert acc.epsilon(schedule, 1e-5) == pytest.approx(spent, rel=1e-8)


def test_the_classical_noise_is_refused_where_it_is_not_proved():
    assert gaussian.classical_stddev(epsilon=0.99, delta=1e-5) > gaussian.stddev(
        epsilon=0.99, delta=1e-5
    )
    with pytest.raises(ValueError, match=r"^epsilon must be .*stddev"):
        gaussian.classical_stddev(epsilon=1.0, delta=1e-5)


def test_a_sampler_is_accounted_for_its_own_neighbours_only():
    poisson = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
    fixed = acc.SampledWithoutReplacement(100, 1, acc.Gaussian(1.0))
    with pytest.raises(ValueError, match=r"^neighboring_relation must be 'add_or_remove_one'"):
        acc.epsilon(poisson, 1e-5, neighboring_relation="replace_one")
    with pytest.raises(ValueError, match=r"^neighboring_relation must be 'replace_one'"):
        acc.epsilon(fixed, 1e-5, neighboring_relation="add_or_remove_one")
    with pytest.raises(ValueError, match=r"^event must be events of one neighbouring relation"):
        acc.epsilon(poisson + fixed, 1e-5)
