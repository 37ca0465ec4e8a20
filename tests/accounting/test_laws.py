"""Laws that epsilon obeys whatever the run, searched for counterexamples."""

import functools
import math

import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import accounting as acc
from jaxdp.accounting import composition

few = settings(deadline=None, derandomize=True, max_examples=6)
# Runs for which the line integral settles in little time; the whole range is in test_exact.py.
probabilities = st.floats(1e-3, 0.5)
multipliers = st.floats(0.6, 10.0)
counts = st.integers(20, 10_000)
log_deltas = st.floats(-40.0, -5.0)
factors = st.floats(1.05, 2.0)
parts = st.tuples(probabilities, multipliers, counts)
# Upper bounds are within 1e-8 of the truth, so that two of them compare to within that.
SLACK = 1.0 + 1e-8


def sampled(q, sigma, steps):
    return acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


@functools.cache
def bounds_of(q, sigma, steps, log_delta):
    return acc.epsilon_bounds(sampled(q, sigma, steps), math.exp(log_delta))


@few
@given(probabilities, multipliers, counts, log_deltas, factors)
def test_epsilon_falls_with_noise_and_delta_and_grows_with_sampling_and_steps(
    q, sigma, steps, log_delta, factor
):
    here = bounds_of(q, sigma, steps, log_delta)
    assert 0.0 <= here.lower <= here.upper
    assert bounds_of(q, sigma * factor, steps, log_delta).lower <= here.upper
    assert bounds_of(q, sigma, steps, log_delta * 0.9).lower <= here.upper
    assert bounds_of(q / factor, sigma, steps, log_delta).lower <= here.upper
    assert bounds_of(q, sigma, math.ceil(steps * factor), log_delta).upper >= here.lower
    # Post-processing: forgetting what some of the steps released costs nothing.
    assert bounds_of(q, sigma, steps // 2, log_delta).lower <= here.upper


@few
@given(probabilities, multipliers, counts, log_deltas)
def test_no_certified_accountant_is_below_the_exact_one(q, sigma, steps, log_delta):
    run, delta = sampled(q, sigma, steps), math.exp(log_delta)
    lower, upper = bounds_of(q, sigma, steps, log_delta)
    by_renyi = acc.epsilon(run, delta, accountant="rdp")
    assert lower <= upper <= by_renyi * SLACK
    # Moments look at whole orders alone, by a weaker conversion; searches stop within 1e-6.
    assert by_renyi <= acc.epsilon(run, delta, accountant="moments") * (1.0 + 1e-6)
    for accountant in ("naive", "advanced", "optimal"):
        assert lower <= acc.epsilon(run, delta, accountant=accountant) * SLACK


@few
@given(st.floats(0.3, 100.0), st.integers(1, 10_000), log_deltas)
def test_no_accountant_of_gaussians_is_below_the_exact_one(sigma, steps, log_delta):
    run, delta = acc.Gaussian(sigma) * steps, math.exp(log_delta)
    lower, upper = acc.epsilon_bounds(run, delta)
    by_renyi, by_zcdp, by_moments, by_gdp = (
        acc.epsilon(run, delta, accountant=accountant)
        for accountant in ("rdp", "zcdp", "moments", "gdp")
    )
    assert lower <= upper <= by_renyi * SLACK
    assert by_renyi <= by_zcdp * (1.0 + 1e-6)
    assert by_renyi <= by_moments * (1.0 + 1e-6)
    assert lower <= by_gdp <= upper * SLACK


@few
@given(parts, parts, parts, log_deltas)
def test_composition_is_commutative_and_associative_and_costs_at_least_its_parts(
    a, b, c, log_delta
):
    runs = [sampled(*part) for part in (a, b, c)]
    schedule = acc.Schedule(*(np.array(column, float) for column in zip(a, b, c, strict=True)))
    whole = (runs[0] + runs[1]) + runs[2]
    for same in (runs[0] + (runs[1] + runs[2]), schedule):
        # What is accounted for is the same to the bit, and so is the answer.
        jax.tree.map(np.testing.assert_array_equal, *map(composition.steps_of, (whole, same)))
    one, other = (
        acc.epsilon_bounds(run, math.exp(log_delta)) for run in (whole, runs[2] + runs[1] + runs[0])
    )
    assert max(one.lower, other.lower) <= min(one.upper, other.upper)
    assert one.upper >= max(bounds_of(*part, log_delta).lower for part in (a, b, c))


@settings(few, max_examples=3)
@given(probabilities, multipliers, counts, log_deltas)
def test_the_two_routes_agree_within_their_margins(q, sigma, steps, log_delta):
    run, delta = sampled(q, sigma, steps), math.exp(log_delta)
    lower, upper = bounds_of(q, sigma, steps, log_delta)
    by_pld = acc.epsilon(run, delta, accountant="pld")
    # The privacy-loss distribution is above the truth, by 1e-4 of it where that is not tiny.
    assert lower <= by_pld <= upper * (1.0 + 1e-4) + 1e-5
