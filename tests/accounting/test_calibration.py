"""Calibration meets its target from below, closely, or says that it cannot."""

import math

import jax
import pytest

from jaxdp import accounting as acc


def sampled(q, steps):
    return lambda sigma: acc.PoissonSampled(q, acc.Gaussian(sigma)) * steps


def gaussians(steps):
    return lambda sigma: acc.Gaussian(sigma) * steps


@pytest.mark.parametrize(
    ("make_event", "target"),
    [
        (sampled(0.01, 100), 0.05),
        (sampled(0.01, 1000), 1.0),
        (sampled(0.01, 1000), 3.0),
        (sampled(1e-4, 10_000), 0.01),
        (sampled(0.2, 10), 200.0),
        (gaussians(60), 0.1),
        (gaussians(1), 1e4),
        (lambda b: acc.Laplace(b) * 20, 0.7),
        (lambda b: acc.PoissonSampled(0.1, acc.Laplace(b)) * 20, 0.7),
    ],
)
def test_the_achieved_epsilon_is_at_most_the_target_and_within_1e_6_of_it(make_event, target):
    sigma = acc.calibrate(make_event, target_epsilon=target, delta=1e-5)
    achieved = acc.epsilon(make_event(sigma), 1e-5)
    assert target * (1 - 1e-6) <= achieved <= target


def test_known_noise_multipliers_are_met():
    # Exact Gaussian, 60 steps; figures known to the digits shown.
    for target, sigma in [(0.1, 238.185), (1.0, 28.897)]:
        found = acc.calibrate(gaussians(60), target_epsilon=target, delta=1e-5)
        assert found == pytest.approx(sigma, abs=6e-4)
    # The truth is 5.96, RDP with orders to 4096 gives 6.71.
    assert 5.96 <= acc.calibrate(sampled(0.01, 100), target_epsilon=0.05, delta=1e-5) <= 6.71
    # The truths; RDP needs more noise, but not a tenth more.
    for target, sigma in [(1.0, 1.4146), (3.0, 0.8136)]:
        found = acc.calibrate(sampled(0.01, 1000), target_epsilon=target, delta=1e-5)
        assert sigma <= found <= 1.1 * sigma


def test_a_target_out_of_reach_is_refused_by_name():
    with pytest.raises(ValueError, match=r"^target_epsilon must be at least"):
        acc.calibrate(gaussians(1), target_epsilon=1e-9, delta=1e-9)
    with pytest.raises(ValueError, match=r"^target_epsilon must be below"):
        acc.calibrate(gaussians(1), target_epsilon=1e9, delta=1e-5)
    with pytest.raises(ValueError, match=r"^make_event must be"):
        acc.calibrate(sampled(0.0, 10), target_epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"target_epsilon": 0.0}, "target_epsilon"),
        ({"target_epsilon": -1.0}, "target_epsilon"),
        ({"target_epsilon": math.nan}, "target_epsilon"),
        ({"target_epsilon": math.inf}, "target_epsilon"),
        ({"target_epsilon": "1"}, "target_epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"delta": 1.0}, "delta"),
        ({"delta": 1.5}, "delta"),
        ({"delta": math.nan}, "delta"),
        ({"accountant": "clt"}, "accountant"),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, name):
    arguments = {"target_epsilon": 1.0, "delta": 1e-5} | arguments
    with pytest.raises(ValueError, match=f"^{name} must be"):
        acc.calibrate(gaussians(1), **arguments)
    with pytest.raises(ValueError, match=f"^{name} must be"):
        acc.affordable_steps(acc.Gaussian(1.0), **arguments)


def test_one_step_more_than_is_affordable_exceeds_the_target():
    for step, target in [
        (acc.PoissonSampled(0.01, acc.Gaussian(1.0)), 2.0),
        (acc.PoissonSampled(1e-3, acc.Gaussian(30.0)), 0.5),
        (acc.Gaussian(10.0), 1.0),
        (acc.Laplace(50.0), 0.5),
    ]:
        steps = acc.affordable_steps(step, target_epsilon=target, delta=1e-5)
        assert steps > 0
        assert acc.epsilon(step * steps, 1e-5) <= target < acc.epsilon(step * (steps + 1), 1e-5)


def test_affordable_steps_at_the_ends_are_none_and_any_number():
    costly = acc.PoissonSampled(0.5, acc.Gaussian(0.1))
    assert acc.affordable_steps(costly, target_epsilon=0.1, delta=1e-5) == 0
    free = acc.PoissonSampled(0.0, acc.Gaussian(1.0))
    assert acc.affordable_steps(free, target_epsilon=0.1, delta=1e-5) == 2**31 - 1
    with pytest.raises(ValueError, match=r"^event must be an event of numbers"):
        jax.jit(lambda s: acc.affordable_steps(acc.Gaussian(s), target_epsilon=1.0, delta=1e-5))(
            1.0
        )
