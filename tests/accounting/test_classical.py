"""Naive, advanced and optimal composition against sums in high precision, and one another."""

import itertools
import math

import jax
import mpmath as mp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import accounting as acc
from jaxdp.accounting import advanced, composition, naive, optimal, single_step
from jaxdp.accounting.advanced import advanced_drv, advanced_kov
from jaxdp.accounting.optimal import optimal_composition
from jaxdp.mechanisms import gaussian

ENGINES = {"naive": naive, "advanced": advanced, "optimal": optimal}


def of(engine, run, delta):
    return ENGINES[engine].epsilon(single_step.one_by_one(run), math.log(delta))


def sampled(q, sigma, steps):
    return acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


def exact_delta(epsilon, step, k):
    """Delta of k-fold randomised response in 60 digits, by the ratio of binomial terms."""
    with mp.workdps(60):
        epsilon, step = mp.mpf(epsilon), mp.mpf(step)
        i = int(min(k, max(0, mp.floor((k - epsilon / step) / 2)))) + 1  # terms below i count
        p = mp.exp(step) / (1 + mp.exp(step))
        lost = min(i, k + 1) - 1
        term = mp.binomial(k, lost) * p ** (k - lost) * (1 - p) ** lost
        total, largest = mp.mpf(0), term
        while lost >= 0 and term > largest * mp.mpf(10) ** -30:
            total += term * max(mp.mpf(0), -mp.expm1(epsilon - (k - 2 * lost) * step))
            largest = max(largest, term)
            if lost:
                term *= mp.mpf(lost) / (k - lost + 1) * mp.exp(step)
            lost -= 1
        return total


@pytest.mark.parametrize(
    ("step", "k", "delta", "drv", "kov", "best"),
    [
        (0.01, 1000, 1e-5, 1.617928800226827, 1.48956332797668, 1.19773279830867),
        (0.01, 1000, 1e-6, 1.7627598071107906, 1.6414911232077067, 1.36544670999376),
        (0.1, 100, 1e-6, 6.308230950513408, 5.756105519335732, 4.77456758810799),
    ],
)
def test_reference_values_of_pure_steps(step, k, delta, drv, kov, best):
    run = acc.Laplace(1.0 / step) * k
    # The references are given to 15 digits.
    assert of("naive", run, delta) == pytest.approx(10.0, rel=1e-14)
    assert of("advanced", run, delta) == pytest.approx(drv, rel=1e-13)
    assert advanced_kov(step, k, math.log(delta)) == pytest.approx(kov, rel=1e-13)
    assert of("optimal", run, delta) == pytest.approx(best, rel=1e-11)
    assert of("optimal", run, delta) >= best * (1 - 1e-14)


def test_a_hundred_randomised_responses():
    run = acc.RandomizedResponse(0.5, 2) * 100
    assert of("optimal", run, 1e-6) == pytest.approx(94.2898678929249, rel=1e-13)
    assert of("naive", run, 1e-6) == pytest.approx(100 * math.log(3.0), rel=1e-14)


@pytest.mark.parametrize(
    ("step", "k", "log10_delta"),
    [
        (1.0, 1, -3), (1.0, 2, -0.05), (0.5, 7, -100), (3.0, 40, -5), (0.1, 1001, -30),
        (0.01, 1000, -100), (1e-3, 100_000, -5), (1e-4, 1_000_000, -12), (20.0, 50, -8),
        (100.0, 30, -2), (1e-7, 5_000, -9), (2.0, 3, -0.001), (1.0, 999, -0.0001),
    ],
)  # fmt: skip
def test_optimal_composition_inverts_the_binomial_sum(step, k, log10_delta):
    log_delta = log10_delta * math.log(10.0)
    epsilon = optimal_composition(step, k, log_delta)
    with mp.workdps(60):
        target = mp.exp(log_delta)
        assert exact_delta(epsilon, step, k) <= target
        if epsilon > 0.0:
            # The margins of the module: 1e-12 of delta for the terms, 1e-14 for epsilon, and
            # d epsilon = d delta / B, B at least e^-2step of delta's own sum.
            less = epsilon * (1 - 1e-10) - 1e-10 * min(1.0, step)
            assert exact_delta(less, step, k) > target


def test_the_published_grid_of_optimal_composition():
    step, k = 0.3, 9
    for i in range(1, 5):
        # Theorem 3.3: epsilon (k - 2i) step has this delta.
        delta = (
            sum(
                math.comb(k, lost)
                * (math.exp((k - lost) * step) - math.exp((k - 2 * i + lost) * step))
                for lost in range(i)
            )
            / (1 + math.exp(step)) ** k
        )
        found = optimal_composition(step, k, math.log(delta))
        assert found == pytest.approx((k - 2 * i) * step, rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(st.floats(1e-6, 30.0), st.integers(1, 100_000), st.floats(math.log(1e-100), math.log(0.9)))
def test_optimal_is_the_least_of_the_bounds_for_pure_steps(step, k, log_delta):
    best = optimal_composition(step, k, log_delta)
    # Upward rounding: 1e-10 as in the test against the sum.
    slack = 1e-10 * (1.0 + step)
    assert 0.0 <= best <= k * step * (1 + 1e-14)
    assert best <= advanced_kov(step, k, log_delta) * (1 + 1e-10) + slack
    assert best <= advanced_drv(step, k, log_delta) * (1 + 1e-10) + slack
    assert advanced_kov(step, k, log_delta) <= advanced_drv(step, k, log_delta) * (1 + 1e-14)
    assert best <= optimal_composition(step, k + 1, log_delta) * (1 + 1e-10) + slack
    assert best <= optimal_composition(step * 1.01, k, log_delta) * (1 + 1e-10) + slack
    assert best <= optimal_composition(step, k, log_delta - 0.1) * (1 + 1e-10) + slack


def composed_delta(steps, epsilon):
    """Delta of randomised responses with unlike losses, by enumerating all outcomes."""
    losses, masses = np.zeros(1), np.ones(1)
    for step in steps:
        p = 1 / (1 + math.exp(-step))
        losses = np.concatenate([losses + step, losses - step])
        masses = np.concatenate([masses * p, masses * (1 - p)])
    return float(np.sum(masses * np.maximum(0.0, -np.expm1(epsilon - losses))))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.01, 3.0), min_size=1, max_size=10), st.floats(1e-8, 0.5))
def test_closed_forms_hold_for_unlike_steps(steps, slack):
    for bound in (advanced_drv, advanced_kov):
        epsilon = bound(steps, np.ones(len(steps)), math.log(slack))
        assert composed_delta(steps, epsilon) <= slack * (1 + 1e-12)


@pytest.mark.parametrize(("q", "sigma"), [(0.01, 0.8), (0.3, 2.0), (0.999, 1.0), (1.0, 1.0)])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_a_sampled_step_has_its_exact_profile_and_the_other_direction_is_smaller(q, sigma, delta):
    releases = single_step.releases_of(single_step.one_by_one(sampled(q, sigma, 1)))
    epsilon = float(single_step.gaussian_epsilons(releases, math.log(delta))[0])
    assert epsilon > 0.0

    def profile(epsilon, sign):
        def excess(x):
            q_density = scipy.stats.norm.pdf(x, 0.0, sigma)
            mixed = (1 - q) * q_density + q * scipy.stats.norm.pdf(x, 1.0, sigma)
            first, second = (mixed, q_density) if sign > 0 else (q_density, mixed)
            return max(0.0, first - math.exp(epsilon) * second)

        edges = np.linspace(-12 * sigma, 1 + 12 * sigma, 400)
        return sum(scipy.integrate.quad(excess, *pair, epsabs=0.0, limit=200)[0]
                   for pair in itertools.pairwise(edges))  # fmt: skip

    # Quadrature across the kink: 1e-6 relative is what it reaches with these panels.
    assert profile(epsilon, 1) == pytest.approx(delta, rel=1e-6)
    assert profile(epsilon, -1) <= delta * (1 + 1e-6)


def test_naive_adds_epsilons_and_shares_delta_evenly():
    sigma = gaussian.stddev(epsilon=0.5, delta=1e-7)
    assert of("naive", acc.Gaussian(sigma) * 100, 1e-5) == pytest.approx(50.0, rel=1e-12)
    run = acc.Gaussian(2.0) * 3 + acc.Laplace(4.0) * 2 + acc.RandomizedResponse(0.5, 2)
    alone = gaussian.epsilon(delta=1e-6 / 3, noise_multiplier=2.0)
    expected = 3 * alone + 2 / 4.0 + math.log(3.0)
    assert of("naive", run, 1e-6) == pytest.approx(expected, rel=1e-12)


def test_steps_one_by_one_keep_gaussians_apart():
    parts = [
        acc.Gaussian(2.0) * 3,
        acc.PoissonSampled(1.0, acc.Gaussian(2.0) + acc.Gaussian(2.0)) * 5,
        acc.Schedule(np.array([1.0, 0.1]), np.array([3.0, 4.0]), np.array([2, 7])) * 2,
        acc.PoissonSampled(0.2, acc.Gaussian(1.0)),
        acc.Laplace(1.0) * 4,
    ]
    steps = single_step.one_by_one(acc.Composed(parts) * 2)
    rows = sorted(map(tuple, np.stack(steps.sampled_gaussian, axis=1).round(12).tolist()))
    merged = round(2.0 / math.sqrt(2.0), 12)
    assert rows == sorted([
        (1.0, 2.0, 6.0), (1.0, merged, 10.0), (1.0, 3.0, 8.0), (0.1, 4.0, 28.0), (0.2, 1.0, 2.0),
    ])  # fmt: skip
    assert steps.gaussian is None
    assert steps.laplace[1].tolist() == [8.0]


@settings(max_examples=30, deadline=None)
@given(st.floats(1e-6, 1.0), st.floats(0.3, 200.0), st.integers(1, 10**6), st.floats(-230.0, -2.3))
def test_bounds_for_sampled_gaussians_are_ordered(q, sigma, steps, log_delta):
    run = single_step.one_by_one(sampled(q, sigma, steps))
    best = optimal.epsilon(run, log_delta)
    assert 0.0 <= best <= naive.epsilon(run, log_delta) * (1 + 1e-14)
    # The share of the slack is found for the closed form and to 1e-3 of its logit.
    assert best <= advanced.epsilon(run, log_delta) * (1 + 1e-3)


@pytest.mark.parametrize("run", [acc.Gaussian(20.0) * 200, sampled(0.02, 1.5, 500)])
def test_theorems_about_steps_are_above_renyi_for_gaussians(run):
    tight = acc.epsilon(run, 1e-6, accountant="rdp")
    assert tight < of("optimal", run, 1e-6) < of("advanced", run, 1e-6)
    assert of("optimal", run, 1e-6) < of("naive", run, 1e-6)


def test_the_share_of_the_slack_is_near_the_best():
    run = acc.Gaussian(30.0) * 500
    found = of("advanced", run, 1e-6)
    shares = []
    for share in np.linspace(0.01, 0.99, 99):
        step = gaussian.epsilon(delta=1e-6 * (1 - share) / 500, noise_multiplier=30.0)
        shares.append(advanced_drv(step, 500, math.log(1e-6 * share)))
    # The grid is coarse: the search may only be better than it.
    assert found <= min(shares) * (1 + 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_degenerate_runs(engine):
    assert of(engine, acc.Composed([]), 1e-5) == 0.0
    for step in (acc.Laplace(1.0), acc.Gaussian(1.0), acc.RandomizedResponse(0.1, 3)):
        assert of(engine, step * 0, 1e-5) == 0.0
    assert of(engine, acc.RandomizedResponse(0.1, 1) * 10, 1e-5) == 0.0
    assert of(engine, acc.RandomizedResponse(1.0, 3) * 10, 1e-5) == 0.0
    for silent in (acc.Laplace(0.0), acc.Gaussian(0.0), acc.RandomizedResponse(0.0, 2)):
        assert of(engine, silent * 3, 1e-5) == math.inf
    assert of(engine, acc.PoissonSampled(0.1, acc.Laplace(1e-2)) * 2, 1e-5) < math.inf


def test_delta_zero_needs_pure_steps():
    pure, other = (single_step.one_by_one(e * 4) for e in (acc.Laplace(2.0), acc.Gaussian(2.0)))
    for engine in (naive, optimal):
        assert engine.epsilon(pure, -math.inf) == pytest.approx(2.0, rel=1e-14)
        assert engine.epsilon(other, -math.inf) == math.inf
    assert advanced.epsilon(pure, -math.inf) == math.inf


@pytest.mark.parametrize("engine", ENGINES)
def test_a_million_steps_at_a_tiny_delta(engine):
    for run in (acc.Laplace(1e3) * 1_000_000, sampled(1e-4, 2.0, 1_000_000)):
        assert 0.0 < of(engine, run, 1e-100) < math.inf


def test_subsets_of_a_fixed_size_are_amplified_like_samples():
    subset = acc.SampledWithoutReplacement(1_000, 100, acc.Gaussian(3.0)) * 10
    assert of("naive", subset, 1e-6) == of("naive", sampled(0.1, 3.0, 10), 1e-6)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_has_no_theorem_is_refused(engine):
    truncated = acc.TruncatedPoissonSampled(
        0.1, acc.Gaussian(1.0), num_examples=100, max_batch_size=20
    )
    with pytest.raises(ValueError, match="accountant must be one that applies"):
        of(engine, truncated, 1e-5)
    with pytest.raises(ValueError, match="accountant must be 'rdp' or 'exact'"):
        jax.jit(lambda s: ENGINES[engine].epsilon(composition.steps_of(acc.Gaussian(s)), -9.0))(1.0)
    with pytest.raises(ValueError, match="log_delta must be a number below 0"):
        ENGINES[engine].epsilon(composition.steps_of(acc.Laplace(1.0)), 0.1)


def test_optimal_composition_is_for_equal_steps():
    assert not optimal.applies(single_step.one_by_one(acc.Laplace(1.0) + acc.Laplace(2.0)))
    assert not optimal.applies(single_step.one_by_one(acc.Laplace(1.0) + acc.Gaussian(2.0)))
    with pytest.raises(ValueError, match="equal steps"):
        of("optimal", acc.Laplace(1.0) + acc.Laplace(2.0), 1e-5)
    apart = acc.Laplace(2.0) * 3 + acc.Gaussian(1.0) * 0 + acc.Laplace(2.0) * 4
    assert of("optimal", apart, 1e-5) == of("optimal", acc.Laplace(2.0) * 7, 1e-5)


@pytest.mark.parametrize("bound", [advanced_drv, advanced_kov])
def test_closed_forms_refuse_bad_numbers(bound):
    for arguments, name in (
        ((-1.0, 2, -3.0), "epsilons"),
        ((math.nan, 2, -3.0), "epsilons"),
        ((1.0, -2, -3.0), "counts"),
        ((1.0, [1, 2], -3.0), "counts"),
        ((1.0, 2, 0.0), "log_slack"),
    ):
        with pytest.raises(ValueError, match=name):
            bound(*arguments)
    assert bound([0.0, 1.0], [5, 0], -3.0) == 0.0
    assert bound(math.inf, 1, -3.0) == math.inf
