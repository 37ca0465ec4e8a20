"""Epsilon and delta of runs against references, other accountants, and the laws they obey."""

import csv
import fractions
import math
import pathlib

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import accounting as acc

HERE = pathlib.Path(__file__).parent


def rows(name):
    with open(HERE / name, newline="") as file:
        return list(csv.DictReader(file))


def sampled(q, sigma, steps):
    return acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


@jax.jit
def in_float32(q, sigma, steps, log_delta):
    grid_free = acc.rdp_epsilon(sampled(q, sigma, steps), jnp.exp(log_delta))
    return grid_free.epsilon


@jax.jit
def exact_in_float32(sigma, steps, delta):
    return acc.epsilon(acc.Gaussian(sigma) * steps, delta)


# The exact values of sampled Gaussians are in test_exact.py, other mechanisms beside their own.
REFERENCE = [
    row
    for row in rows("reference.csv")
    if row["quantity"] == "rdp_optimum"
    or (row["quantity"] == "exact" and row["mechanism"] == "gaussian")
]


@pytest.mark.parametrize("row", REFERENCE, ids=[row["id"] for row in REFERENCE])
def test_epsilon_meets_the_high_precision_reference(row):
    q = float(fractions.Fraction(row["q"])) if "/" in row["q"] else float(row["q"])
    sigma, steps, delta = float(row["sigma"]), int(row["steps"]), float(row["delta"])
    reference = float(row["epsilon"])
    run = sampled(q, sigma, steps)
    if row["quantity"] == "rdp_optimum":
        excess = acc.epsilon(run, delta, accountant="rdp") / reference - 1
        assert 0 <= excess <= 1e-6  # required: an upper bound, tight to 1e-6
        if delta > 1e-37:  # else no float32, and passed as a Python number
            single = in_float32(q, sigma, steps, math.log(delta))
            # The float32 arguments themselves are off by 6e-8, which enters a few times over.
            assert -1e-6 <= float(single) / reference - 1 <= 1e-4
    else:
        excess = acc.epsilon(run, delta) / reference - 1
        # 16 ulps of margin over c = epsilon / mu; the reference itself is good to 12 digits.
        assert -1e-14 <= excess <= 1e-6
        if delta > 1e-37:
            single = float(exact_in_float32(sigma, steps, delta))
            assert -1e-6 <= single / reference - 1 <= 1e-4


def test_a_delta_below_float32_is_right_inside_a_float32_program():
    @jax.jit
    def program(s):
        return acc.epsilon(sampled(0.01, s, 1_000), 1e-100, accountant="rdp")

    assert 0 <= float(program(1.0)) / 30.14685286004314 - 1 <= 1e-4


def test_200_random_runs_lie_between_the_truth_and_dp_accounting():
    """Values of dp_accounting 0.6.0: RDP at its default orders, and a pessimistic PLD.

    The PLD's epsilon is an upper bound on the truth, and here a small one; where it is
    left out it took too long.
    """
    for row in rows("dp_accounting.csv"):
        q, sigma, delta = (float(row[name]) for name in ("q", "sigma", "delta"))
        ours = acc.epsilon(sampled(q, sigma, int(row["steps"])), delta, accountant="rdp")
        assert ours <= float(row["rdp_epsilon"]) + 1e-6, row
        if row["pld_epsilon"]:
            # Written with six digits.
            assert ours >= float(row["pld_epsilon"]) * (1 - 1e-5), row


def test_the_stored_values_of_dp_accounting_are_those_of_the_installed_one():
    for row in rows("dp_accounting.csv")[1:200:40]:
        step = dp_accounting.GaussianDpEvent(float(row["sigma"]))
        step = dp_accounting.PoissonSampledDpEvent(float(row["q"]), step)
        accountant = RdpAccountant()
        accountant.compose(dp_accounting.SelfComposedDpEvent(step, int(row["steps"])))
        theirs = accountant.get_epsilon(float(row["delta"]))
        # Another version may search its orders otherwise: this guards the table, not them.
        assert theirs == pytest.approx(float(row["rdp_epsilon"]), rel=1e-3, abs=1e-9)


def test_epsilon_is_zero_rather_than_negative_when_delta_covers_everything():
    assert acc.epsilon(sampled(0.01, 10.0, 1), 0.1) == 0.0
    assert acc.epsilon(sampled(0.01, 10.0, 1), 0.1, accountant="rdp") == 0.0
    assert in_float32(0.01, 10.0, 1, math.log(0.1)) == 0.0


def test_small_epsilons_have_no_floor():
    # At most 0.00213; libraries whose orders end too early say 0.1029.
    assert acc.epsilon(sampled(0.01, 100.0, 100), 1e-5) <= 0.00213
    assert 0.0019 <= acc.epsilon(sampled(0.01, 100.0, 100), 1e-5, accountant="rdp") <= 0.0024
    for nothing in (sampled(0.01, 1.0, 0), sampled(0.0, 1.0, 10), acc.Composed([])):
        for delta in (0.5, 1e-5, 1e-300):
            assert acc.epsilon(nothing, delta) == 0.0
            assert acc.rdp_epsilon(nothing, delta).epsilon == 0.0
    assert acc.rdp_epsilon(sampled(0.01, 1.0, 0), 1e-5).order_at_edge is False


def test_a_mixed_history_counts_all_its_phases():
    run = sampled(0.01, 1.0, 500) + sampled(0.01, 2.0, 500)
    # The truth is 1.3987, what the last phase alone costs 0.412.
    assert 1.3987 <= acc.epsilon(run, 1e-5, accountant="rdp") <= 1.72


def test_large_epsilons_stay_finite_and_tight():
    # RDP at its best real order gives 60.30 (the truth is 56.73).
    by_renyi = acc.epsilon(sampled(0.125, 0.8, 1000), 1e-6, accountant="rdp")
    assert by_renyi == pytest.approx(60.30, abs=0.01)
    assert 1464.0 <= acc.epsilon(sampled(0.01, 0.05, 100), 1e-5, accountant="rdp") < math.inf


def test_noise_that_changes_every_step_is_accounted_step_by_step():
    run = acc.Composed([acc.PoissonSampled(0.01, acc.Gaussian(0.999**t)) for t in range(300)])
    by_renyi = acc.epsilon(run, 1e-5, accountant="rdp")
    assert by_renyi == pytest.approx(2.5868, abs=5e-4)  # the truth is 1.8814


def test_a_tiny_delta_is_finite_and_smooth():
    run = sampled(0.00033, 4.0, 10_000)
    log_deltas = np.linspace(math.log(1e-16), math.log(1e-20), 60)
    epsilons = np.array(
        [acc.epsilon(run, math.exp(log_delta), accountant="rdp") for log_delta in log_deltas]
    )
    assert np.all(np.diff(epsilons) > 0)
    # Smooth: the slope in log delta is -1/(order - 1), which changes little from point to point.
    assert np.max(np.diff(epsilons)) < 3 * np.min(np.diff(epsilons))
    assert acc.epsilon(run, 1.1e-18, accountant="rdp") <= 0.146


@pytest.mark.parametrize("delta", [0, 0.0, 1, 1.0, 1.5, -1e-5, math.nan, math.inf, "1e-5", None])
@pytest.mark.parametrize("of", [acc.epsilon, acc.rdp_epsilon])
def test_a_delta_that_is_none_is_refused(of, delta):
    with pytest.raises(ValueError, match=r"^delta must be"):
        of(sampled(0.01, 1.0, 10), delta)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "3"])
def test_an_epsilon_that_is_none_is_refused(value):
    with pytest.raises(ValueError, match=r"^epsilon must be"):
        acc.delta(sampled(0.01, 1.0, 10), value)


def test_an_accountant_that_does_not_apply_is_refused():
    with pytest.raises(ValueError, match=r"^accountant must be 'auto', 'pld' or 'rdp'"):
        acc.epsilon(sampled(0.01, 1.0, 10) + acc.Laplace(1.0), 1e-5, accountant="exact")
    with pytest.raises(ValueError, match=r"^accountant must be one of"):
        acc.epsilon(acc.Gaussian(1.0), 1e-5, accountant="prv")
    with pytest.raises(ValueError, match=r"^accountant must be one of"):
        acc.delta(acc.Gaussian(1.0), 1.0, accountant="moments")
    with pytest.raises(ValueError, match=r"^event must be"):
        acc.epsilon(1.0, 1e-5)


def test_no_noise_is_no_privacy():
    for event in (acc.Gaussian(0.0), acc.Laplace(0.0), sampled(0.01, 0.0, 10)):
        assert acc.epsilon(event, 1e-5) == math.inf
        assert acc.delta(event, 3.0) == 1.0
        assert acc.epsilon(event * 0, 1e-5) == 0.0


def test_pure_mechanisms_allow_delta_zero_and_never_cost_more_than_their_pure_epsilon():
    # log(1 + q (e - 1)) per sampled step; the margin is 1e-10.
    run = acc.PoissonSampled(0.1, acc.Laplace(1.0)) * 3 + acc.Laplace(4.0)
    pure = 3 * math.log1p(0.1 * math.expm1(1.0)) + 0.25
    assert acc.epsilon(run, 0.0) == pytest.approx(pure, rel=1e-9)
    assert acc.epsilon(run, 1e-300) == pytest.approx(pure, rel=1e-9)
    assert acc.epsilon(run, 1e-3) < pure
    assert acc.delta(run, pure * (1 + 1e-9)) == 0.0
    assert acc.rdp_epsilon(acc.Laplace(1.0), 1e-100).order == math.inf


def test_one_laplace_step_is_above_its_true_profile():
    # delta = 1 - exp((epsilon - 1/b) / 2).
    for b in (0.5, 1.0, 3.0):
        for delta in (1e-6, 1e-3, 0.05):
            assert acc.epsilon(acc.Laplace(b), delta) >= 1 / b + 2 * math.log1p(-delta)


def test_delta_and_epsilon_are_inverse_to_one_another():
    run = sampled(0.02, 1.1, 500)
    for delta in (1e-2, 1e-5, 1e-12):
        back = acc.delta(run, acc.epsilon(run, delta, accountant="rdp"), accountant="rdp")
        # Both are rounded up: by 1e-10 of terms near 30, with slope order - 1 near 10.
        assert back == pytest.approx(delta, rel=1e-6)
    gaussians = acc.Gaussian(3.0) * 7
    assert acc.delta(gaussians, acc.epsilon(gaussians, 1e-7)) == pytest.approx(1e-7, rel=1e-9)


def test_one_sampled_step_is_above_its_true_profile():
    # Removing: delta(epsilon) = q delta_Gaussian(log(1 + (e^epsilon - 1) / q)).
    for q, sigma in [(0.01, 0.5), (0.1, 1.0), (0.5, 3.0)]:
        for epsilon in (0.1, 1.0, 4.0):
            inner = math.log1p(math.expm1(epsilon) / q)
            truth = q * acc.delta(acc.Gaussian(sigma), inner)
            assert acc.delta(acc.PoissonSampled(q, acc.Gaussian(sigma)), epsilon) >= truth


def test_the_best_order_at_the_end_of_the_grid_is_reported():
    run = sampled(0.01, 1.0, 1000)  # best at 7.78
    assert acc.rdp_epsilon(run, 1e-5, orders=np.arange(2, 6)).order_at_edge is True
    assert acc.rdp_epsilon(run, 1e-5, orders=np.arange(20, 60)).order_at_edge is True
    inside = acc.rdp_epsilon(run, 1e-5, orders=np.arange(2, 64))
    assert inside.order_at_edge is False
    assert inside.order == 8.0
    best = acc.rdp_epsilon(run, 1e-5)
    assert best.order == pytest.approx(7.78, abs=0.01)
    assert best.epsilon <= inside.epsilon


def test_the_derivative_in_the_noise_is_that_of_the_values():
    def spent(s):
        return acc.epsilon(sampled(0.1, s, 40), 1e-5, accountant="rdp")

    step = 1e-4
    difference = (spent(1.2 + step) - spent(1.2 - step)) / (2 * step)
    # The order found in float32 is within 1e-2 of the best; the slope depends on it to first order.
    assert jax.jit(jax.grad(spent))(1.2) == pytest.approx(difference, rel=1e-2)


runs = st.tuples(
    st.floats(1e-6, 1.0),
    st.floats(0.2, 100.0),
    st.integers(1, 10**6),
    st.floats(1e-30, 0.5),
)
SLACK = 1 + 1e-7  # the search stops within 2e-8 of the minimum on either side


@settings(deadline=None, max_examples=80)
@given(runs, st.floats(1.0, 3.0))
def test_epsilon_falls_with_noise_and_delta_and_grows_with_sampling_and_steps(run, factor):
    q, sigma, steps, delta = run

    def spent(q, sigma, steps, delta):
        value = acc.epsilon(sampled(q, sigma, steps), delta, accountant="rdp")
        assert value >= 0  # and so no NaN
        return value

    here = spent(q, sigma, steps, delta)
    assert spent(q, sigma * factor, steps, delta) <= here * SLACK + 1e-12
    assert spent(q, sigma, steps, min(delta * factor, 0.9)) <= here * SLACK + 1e-12
    assert spent(q / factor, sigma, steps, delta) <= here * SLACK + 1e-12
    assert spent(q, sigma, math.ceil(steps * factor), delta) * SLACK + 1e-12 >= here


@settings(deadline=None, max_examples=20)
@given(st.lists(runs, min_size=3, max_size=3))
def test_the_order_and_the_nesting_of_a_composition_do_not_matter(parts):
    a, b, c = (sampled(min(q, 0.99), sigma, steps) for q, sigma, steps, _ in parts)
    one, other, part = (
        acc.epsilon(run, 1e-6, accountant="rdp") for run in ((a + b) + c, c + (b + a), a)
    )
    assert one == pytest.approx(other, rel=1e-9)
    assert one * SLACK + 1e-12 >= part
