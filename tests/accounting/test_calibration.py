"""Calibration meets its target from below, closely, or says that it cannot."""

import math

import jax
import numpy as np
import pytest

import jaxdp
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
    # Figures of an independent PLD computation, good to half a unit of the last digit.
    for q, steps, target, sigma, digits in [
        (0.01, 100, 0.05, 5.96, 5e-3),
        (0.01, 1000, 1.0, 1.4146, 5e-5),
        (0.01, 1000, 3.0, 0.8136, 5e-5),
    ]:
        found = acc.calibrate(sampled(q, steps), target_epsilon=target, delta=1e-5)
        assert found == pytest.approx(sigma, abs=digits)


@pytest.mark.parametrize("accountant", ["rdp", "exact", "moments", "zcdp"])
def test_any_accountant_is_met_from_below(accountant):
    make_event = gaussians(60) if accountant == "zcdp" else sampled(0.01, 1000)
    sigma = acc.calibrate(make_event, target_epsilon=1.5, delta=1e-5, accountant=accountant)
    achieved = acc.epsilon(make_event(sigma), 1e-5, accountant=accountant)
    assert 1.5 * (1 - 1e-6) <= achieved <= 1.5


def test_a_sampling_probability_and_a_share_are_calibrated_too():
    def by_probability(q):
        return acc.PoissonSampled(q, acc.Gaussian(1.0)) * 1000

    q = acc.calibrate(by_probability, target_epsilon=1.0, delta=1e-5, bounds=(1e-6, 1.0))
    assert 1.0 - 1e-6 <= acc.epsilon(by_probability(q), 1e-5) <= 1.0
    assert acc.epsilon(by_probability(q * (1 + 1e-5)), 1e-5) > 1.0

    def by_share(share):
        # A joint clip norm of 1, of which a group gets its share; noise of 20 on one, 2 on the
        # other: mu^2 = share^2 / 4 + (1 - share^2) / 400.
        return acc.Composed([acc.Gaussian(2.0 / share), acc.Gaussian(20.0 / (1 - share**2) ** 0.5)])

    share = acc.calibrate(by_share, target_epsilon=0.5, delta=1e-5, bounds=(1e-3, 0.999))
    mu = jaxdp.mechanisms.gaussian.stddev(epsilon=0.5, delta=1e-5) ** -1.0
    # log epsilon is next to linear in log mu with slope about 1, so mu is right to 1e-6.
    assert (share**2 / 4 + (1 - share**2) / 400) ** 0.5 == pytest.approx(mu, rel=2e-6)


def test_the_number_is_one_that_float32_holds():
    for target in (0.3, 1.0, 7.0):
        sigma = acc.calibrate(sampled(0.01, 1000), target_epsilon=target, delta=1e-5)
        assert float(np.float32(sigma)) == sigma
        step = acc.PoissonSampled(0.01, acc.Gaussian(np.float32(sigma)))
        assert acc.affordable_steps(step, target_epsilon=target, delta=1e-5) == 1000


def test_noise_split_with_a_quantile_costs_what_the_combined_multiplier_does():
    # Adaptive clipping: a gradient at z_delta and a quantile of sensitivity 1/2 at sigma_b about
    # one sample are one Gaussian with z = (z_delta^-2 + (2 sigma_b)^-2)^(-1/2); here z = 1.
    z_delta = (1.0 - 0.25) ** -0.5
    assert z_delta == pytest.approx(1.1547, abs=5e-5)
    split = acc.Composed([acc.Gaussian(z_delta), acc.Gaussian(2.0)])
    together = acc.PoissonSampled(0.01, split) * 1000
    alone = acc.PoissonSampled(0.01, acc.Gaussian(z_delta)) * 1000
    assert acc.epsilon(together, 1e-5, accountant="rdp") == pytest.approx(2.101, abs=5e-4)
    one = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1000
    assert acc.epsilon(together, 1e-5) == pytest.approx(acc.epsilon(one, 1e-5), rel=1e-9)
    assert acc.epsilon(alone, 1e-5) < acc.epsilon(one, 1e-5)


@pytest.mark.parametrize("bounds", [1.0, (1.0,), (2.0, 1.0), (0.0, 1.0), (1.0, math.inf), "ab"])
def test_bad_bounds_are_refused_by_name(bounds):
    with pytest.raises(ValueError, match=r"^bounds must be"):
        acc.calibrate(gaussians(1), target_epsilon=1.0, delta=1e-5, bounds=bounds)


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
