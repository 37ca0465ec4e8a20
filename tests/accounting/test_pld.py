"""The tilted FFT against closed forms, exact references and another library's discretisation."""

import math

import jax
import numpy as np
import pytest
from dp_accounting import pld as their_pld
from scipy import stats

from jaxdp import accounting as acc
from jaxdp.accounting import composition, exact, pld


def epsilons(run, delta):
    return pld.epsilon_bounds(composition.steps_of(run), math.log(delta))


def log_deltas(run, epsilon):
    return pld.log_delta_bounds(composition.steps_of(run), epsilon)


def sampled(q, s):
    return acc.PoissonSampled(q, acc.Gaussian(s))


# Exact epsilons, good to the digits shown (with an uncertainty where it is more): see the README
# beside the reference that DESIGN names. Large tails, few participations, tiny deltas, many steps.
EXACT = [
    (acc.Gaussian(1.0), 1e-30, 11.7438830252317363, 0.0),
    (acc.Gaussian(0.3) * 1_000_000, 1e-5, 5569770.85884118375, 0.0),
    (sampled(1e-6, 0.5) * 1_000_000, 1e-8, 0.29627, 5e-6),
    (sampled(0.01, 0.3) * 100, 1e-5, 26.8347145, 2e-7),
    (sampled(0.001, 0.8) * 100, 1e-6, 0.260337094, 1e-8),
    (sampled(0.01, 1.0) * 1_000, 1e-100, 29.598711590805816, 0.0),
    (acc.Laplace(1.0), 1e-5, 0.999979999899999, 0.0),
    (acc.RandomizedResponse(0.5, 2) * 100, 1e-6, 94.2898678929249, 0.0),
]


@pytest.mark.parametrize(("run", "delta", "exact", "uncertainty"), EXACT)
def test_the_bracket_holds_the_exact_epsilon(run, delta, exact, uncertainty):
    lower, upper = epsilons(run, delta)
    assert lower <= exact + uncertainty
    # The digits given are rounded: a few units of the 15th.
    assert upper >= (exact - uncertainty) * (1.0 - 1e-14)
    assert upper <= (exact + uncertainty) * (1.0 + 1e-4)
    assert lower >= 0.85 * exact  # first order in the grid


def binomial_log_delta(p, k, count, epsilon):
    """Randomised response with two answers: the loss is r (2 X - n), X binomial."""
    truth = 1.0 - p + p / k
    loss = math.log(truth / (p / k))
    j = np.arange(count + 1)
    log_mass = stats.binom.logpmf(j, count, truth)
    y = loss * (2 * j - count)
    above = y > epsilon
    return np.logaddexp.reduce(log_mass[above] + np.log(-np.expm1(epsilon - y[above])))


@pytest.mark.parametrize("epsilon", [0.0, 1.0, 20.0, 60.0, 109.0])
def test_randomised_response_follows_the_binomial_law(epsilon):
    lower, upper = log_deltas(acc.RandomizedResponse(0.5, 2) * 100, epsilon)
    exact = binomial_log_delta(0.5, 2, 100, epsilon)
    # Both laws are sums of the same 101 atoms; scipy's log masses are good to about 1e-12.
    assert lower - 1e-11 <= exact <= upper + 1e-11
    assert upper - lower < 1e-4


def test_the_count_of_a_randomised_response_counts():
    once, often = (epsilons(acc.RandomizedResponse(0.5, 2) * n, 1e-6)[1] for n in (1, 100))
    assert once < 1.1 < 50 < often


def convolution(a, b):
    size = a.size + b.size - 1
    return np.fft.irfft(np.fft.rfft(a, size) * np.fft.rfft(b, size), size)


def laplace_log_delta(r, count, epsilon, cells=20_000):
    """Two sides by a plain convolution of losses rounded down and up to a grid."""
    h = 2 * r / cells
    y = np.linspace(-r, r, cells + 1)
    between = 0.5 * np.exp(0.5 * (y[1:] - r)) * -np.expm1(-0.5 * h)
    ends = np.zeros(cells + 1)
    ends[0], ends[-1] = 0.5 * math.exp(-r), 0.5
    sides = []
    for law in (ends + np.append(between, 0.0), ends + np.insert(between, 0, 0.0)):
        total = np.ones(1)
        for _ in range(count):
            total = convolution(total, law)
        losses = -r * count + h * np.arange(total.size)
        sides.append(math.log(np.sum(total * np.maximum(-np.expm1(epsilon - losses), 0.0))))
    return sides


@pytest.mark.parametrize(("r", "count", "epsilon"), [(1.0, 3, 1.2), (0.3, 4, 0.1), (2.0, 2, 3.5)])
def test_laplace_follows_a_plain_convolution(r, count, epsilon):
    low, high = laplace_log_delta(r, count, epsilon)
    lower, upper = log_deltas(acc.Laplace(1.0 / r) * count, epsilon)
    assert lower <= high
    assert low <= upper
    assert upper - low < 2e-3  # the plain one is of first order in its 20,000 cells
    assert upper - lower < 5e-2


@pytest.mark.parametrize("epsilon", [0.2, 1.0])
def test_one_sampled_laplace_has_its_profile_in_closed_form(epsilon):
    q, r = 0.3, 2.0
    lower, upper = log_deltas(acc.PoissonSampled(q, acc.Laplace(1.0 / r)), epsilon)
    # Balle, Barthe and Gaboardi 2018: q times the profile at the epsilon before sampling,
    # 1 - exp((e - r) / 2) for Laplace.
    inner = math.log1p(math.expm1(epsilon) / q)
    exact = math.log(q * -math.expm1(0.5 * (inner - r)))
    assert lower <= exact <= upper
    assert upper - lower < 2e-2  # next to the largest loss, where delta ends


def theirs(law, count, delta):
    return law.self_compose(count).get_epsilon_for_delta(delta)


def test_sampling_without_replacement_agrees_with_a_brute_force_profile():
    """Order by order: the worse of the pairs that Theorem 11 gives, integrated directly."""
    q, s = 0.2, 0.7
    x = np.linspace(-12 * s, 12 * s + 1, 400_001)
    dx = x[1] - x[0]
    without, with_it = stats.norm.pdf(x, 0, s), stats.norm.pdf(x, 1, s)
    mixed = (1 - q) * without + q * with_it
    run = acc.SampledWithoutReplacement(10, 2, acc.Gaussian(s))
    for epsilon in (0.0, 0.3, 1.0):
        # The trapezoid rule with a kink: an error of dx^2 times a second derivative.
        exact = math.log(np.sum(np.maximum(mixed - math.exp(epsilon) * without, 0.0)) * dx)
        lower, upper = log_deltas(run, epsilon)
        assert lower <= exact + 1e-7
        assert exact <= upper + 1e-7
        assert upper - exact < 1e-4


def test_two_samples_without_replacement_agree_with_a_sum_over_both_losses():
    q, s, epsilon = 0.3, 1.0, 0.4
    mu = 1.0 / s
    edges = np.linspace(-9.0, 10.0, 6_001)
    x = 0.5 * (edges[1:] + edges[:-1])
    z = mu * x - 0.5 * mu * mu
    base = np.diff(stats.norm.cdf(edges))
    moved = np.diff(stats.norm.cdf(edges - mu))
    y = np.log1p(q * np.expm1(z))
    high, low = y > 0, y > 0
    losses = np.concatenate([y[high], -y[low], [0.0]])
    mass = np.concatenate([(1 - q) * base[high] + q * moved[high], base[low]])
    mass = np.append(mass, 1.0 - mass.sum())
    both = np.maximum(-np.expm1(epsilon - losses[:, None] - losses[None, :]), 0.0)
    exact = math.log(mass @ both @ mass)
    run = acc.SampledWithoutReplacement(10, 3, acc.Gaussian(s)) * 2
    lower, upper = log_deltas(run, epsilon)
    # Cells of 0.003: the midpoint rule is good to about 1e-6, and its atom to as much.
    assert lower <= exact + 1e-5
    assert exact <= upper + 1e-5
    assert upper - exact < 1e-4


def test_a_full_batch_is_no_sampling_and_rates_are_in_order():
    gaussian = epsilons(acc.Gaussian(2.0) * 20, 1e-6)
    full = epsilons(acc.SampledWithoutReplacement(1000, 1000, acc.Gaussian(2.0)) * 20, 1e-6)
    assert full[0] <= gaussian[1]
    assert gaussian[0] <= full[1]
    assert full[1] == pytest.approx(gaussian[1], rel=1e-4)
    uppers = [
        epsilons(acc.SampledWithoutReplacement(1000, batch, acc.Gaussian(2.0)) * 20, 1e-6)[1]
        for batch in (500, 900, 990, 999, 1000)
    ]
    # Each is right to 3e-5, and the last three truths are 1e-3 apart.
    assert uppers == sorted(uppers)


@pytest.mark.parametrize("add", [False, True])
def test_a_capacity_costs_no_less_than_the_worst_data_set_shows(add):
    """Six examples that all say -1 but the one that differs, which says +1: one dimension."""
    q, s, others, capacity = 0.4, 0.8, 6, 2
    x = np.linspace(-9.0, 7.0, 100_001)
    dx = x[1] - x[0]
    without, with_it = np.zeros_like(x), np.zeros_like(x)
    for r in range(others + 1):
        weight = stats.binom.pmf(r, others, q)
        plain = stats.norm.pdf(x, -min(r, capacity), s)
        without += weight * plain
        kept = q * min(1.0, capacity / (r + 1.0))
        inside = stats.norm.pdf(x, 1 - min(r, capacity - 1), s)
        with_it += weight * ((1 - kept) * plain + kept * inside)
    run = acc.TruncatedPoissonSampled(
        q, acc.Gaussian(s), num_examples=others, max_batch_size=capacity
    )
    first, second = (without, with_it) if add else (with_it, without)
    for epsilon in (0.05, 0.15):
        worst = np.sum(np.maximum(first - math.exp(epsilon) * second, 0.0)) * dx
        assert math.log(worst) <= log_deltas(run, epsilon)[1] + 1e-7


# The cases' epsilons come from a pair that is a little worse than need be: they bound ours.
CAPACITIES = [(250, 13.71), (300, 4.63), (325, 1.815), (400, 1.594)]


def test_a_capacity_is_accounted():
    free = epsilons(sampled(0.005, 0.8) * 1_000, 1e-5)
    uppers = []
    for capacity, case in CAPACITIES:
        step = acc.TruncatedPoissonSampled(
            0.005, acc.Gaussian(0.8), num_examples=50_000, max_batch_size=capacity
        )
        lower, upper = epsilons(step * 1_000, 1e-5)
        assert upper <= case * 1.0005  # four digits
        assert lower >= 0.85 * case
        assert upper >= free[0]
        uppers.append(upper)
    assert uppers == sorted(uppers, reverse=True)
    assert uppers[-1] == pytest.approx(free[1], rel=1e-4)


OTHER_LIBRARY = [
    (
        acc.DiscreteGaussian(2.0, 3) * 10,
        lambda h: their_pld.privacy_loss_distribution.from_discrete_gaussian_mechanism(
            2.0, sensitivity=3, value_discretization_interval=h
        ),
        10,
    ),
    (
        acc.PoissonSampled(0.1, acc.Laplace(0.5)) * 20,
        lambda h: their_pld.privacy_loss_distribution.from_laplace_mechanism(
            0.5, sampling_prob=0.1, value_discretization_interval=h
        ),
        20,
    ),
    (
        acc.RandomizedResponse(0.3, 5) * 8,
        lambda h: their_pld.privacy_loss_distribution.from_randomized_response(
            0.3, 5, value_discretization_interval=h
        ),
        8,
    ),
    (
        sampled(0.05, 0.9) * 50,
        lambda h: their_pld.privacy_loss_distribution.from_gaussian_mechanism(
            0.9, sampling_prob=0.05, value_discretization_interval=h
        ),
        50,
    ),
]


@pytest.mark.parametrize(("run", "law", "count"), OTHER_LIBRARY)
def test_another_library_agrees_where_it_is_sound(run, law, count):
    lower, upper = epsilons(run, 1e-6)
    bound = theirs(law(1e-4), count, 1e-6)  # pessimistic as well
    assert lower <= bound
    # Theirs is above the truth by its grid: at most a few 1e-4.
    assert upper == pytest.approx(bound, rel=1e-3)


def test_mixed_kinds_add_up():
    parts = [acc.DiscreteGaussian(3.0), acc.Laplace(2.0), acc.RandomizedResponse(0.6, 3)]
    mixed = acc.Composed(parts) * 5
    lower, upper = epsilons(mixed, 1e-6)
    law = their_pld.privacy_loss_distribution.from_discrete_gaussian_mechanism(3.0)
    law = law.compose(their_pld.privacy_loss_distribution.from_laplace_mechanism(2.0))
    law = law.compose(their_pld.privacy_loss_distribution.from_randomized_response(0.6, 3))
    bound = theirs(law, 5, 1e-6)
    assert lower <= bound
    assert upper == pytest.approx(bound, rel=1e-3)
    assert upper >= max(epsilons(part * 5, 1e-6)[0] for part in parts)


def test_steps_told_apart_cost_what_they_do_together():
    apart = epsilons(acc.Schedule(0.05, 0.9, np.array([20, 30])), 1e-6)
    together = epsilons(sampled(0.05, 0.9) * 50, 1e-6)
    assert apart[0] <= together[1]
    assert together[0] <= apart[1]
    assert apart[1] == pytest.approx(together[1], rel=1e-4)
    assert apart[1] > epsilons(sampled(0.05, 0.9) * 30, 1e-6)[1]


def test_more_steps_cost_more():
    uppers = [epsilons(sampled(0.02, 1.0) * n, 1e-6)[1] for n in (0, 1, 5, 50, 300)]
    assert uppers[0] == 0.0
    assert uppers == sorted(uppers)


def test_random_runs_are_bracketed_below_renyi():
    rng = np.random.default_rng(5)
    for _ in range(6):
        q, s = 10 ** rng.uniform(-6, 0), 10 ** rng.uniform(-0.5, 2.3)
        count, log_delta = int(10 ** rng.uniform(0, 3)), -(10 ** rng.uniform(0.4, 2.36))
        run = sampled(q, s) * count
        lower, upper = pld.epsilon_bounds(composition.steps_of(run), log_delta)
        renyi = acc.rdp_epsilon(run, math.exp(log_delta)).epsilon
        message = f"q={q} s={s} count={count} log_delta={log_delta}: {lower} {upper} {renyi}"
        assert 0.0 <= lower <= upper < math.inf, message
        assert upper <= renyi * (1.0 + 1e-4) + 1e-12, message
        back = pld.log_delta_bounds(composition.steps_of(run), upper)
        assert back[0] <= log_delta + 1e-9, message
        if lower > 0.0:
            assert pld.log_delta_bounds(composition.steps_of(run), lower)[1] >= log_delta - 1e-9


def test_where_the_line_integral_leaves_much_open_this_route_narrows_it(monkeypatch):
    def wide(steps, at):
        return acc.Bounds(at - 1e3, at + 1e3)

    for of in ("epsilon_bounds", "log_delta_bounds"):
        monkeypatch.setattr(exact, of, wide)
    run = sampled(0.05, 0.9) * 50
    assert acc.epsilon_bounds(run, 1e-6) == epsilons(run, 1e-6)
    assert acc.epsilon(run, 1e-6) == epsilons(run, 1e-6)[1]
    assert acc.log_delta(run, 1.0) == log_deltas(run, 1.0)[1]


def test_the_ends_of_the_range():
    assert epsilons(acc.Composed([]), 1e-5) == (0.0, 0.0)
    assert epsilons(acc.Gaussian(0.0), 1e-5)[1] == math.inf
    assert epsilons(sampled(0.1, 0.0), 1e-5)[1] == math.inf
    assert epsilons(acc.RandomizedResponse(0.0, 2), 1e-5)[1] == math.inf
    assert epsilons(acc.RandomizedResponse(1.0, 2), 1e-5) == (0.0, 0.0)
    assert epsilons(acc.RandomizedResponse(0.0, 1), 1e-5) == (0.0, 0.0)
    assert epsilons(acc.DiscreteGaussian(0.0), 1e-5)[1] == math.inf
    assert epsilons(sampled(0.01, 10.0), 0.1) == (0.0, 0.0)
    assert log_deltas(acc.Laplace(1.0), 1.001) == (-math.inf, -math.inf)
    assert log_deltas(acc.Gaussian(0.0), 1.0)[1] == 0.0


def test_traced_numbers_are_refused():
    def traced(s):
        return epsilons(sampled(0.1, s), 1e-5)

    with pytest.raises(ValueError, match="known outside the program"):
        jax.jit(traced)(1.0)


def test_more_atoms_than_fit_are_refused():
    with pytest.raises(ValueError, match="standard_deviation must be at most"):
        epsilons(acc.DiscreteGaussian(1e6), 1e-5)
