"""Gaussian differential privacy: exact for Gaussians, and a limit that is no bound otherwise."""

import math

import jax
import numpy as np
import pytest
from scipy import optimize, stats

from jaxdp import accounting as acc
from jaxdp.accounting import composition, gdp
from jaxdp.accounting.gdp import clt_epsilon


def profile(epsilon, mu):
    """Balle and Wang 2018, Theorem 8, with SciPy's tails."""
    first = stats.norm.logcdf(mu / 2 - epsilon / mu)
    second = epsilon + stats.norm.logcdf(-mu / 2 - epsilon / mu)
    return math.exp(first) - math.exp(second)


def inverse(delta, mu):
    return optimize.brentq(lambda x: profile(x, mu) - delta, 0.0, 100.0, xtol=1e-13)


@pytest.mark.parametrize(("sigma", "steps", "delta"), [(1.0, 1, 1e-5), (10.0, 500, 1e-8)])
def test_gaussians_are_exact(sigma, steps, delta):
    mu = math.sqrt(steps) / sigma
    found = gdp.epsilon(composition.steps_of(acc.Gaussian(sigma) * steps), math.log(delta))
    # SciPy's difference of tails loses about 1e-16 / delta, which is 1e-8 at worst here.
    assert found == pytest.approx(inverse(delta, mu), rel=2e-8)


def test_degenerate_runs():
    def of(run):
        return gdp.epsilon(composition.steps_of(run), math.log(1e-5))

    assert of(acc.Composed([])) == 0.0
    assert of(acc.Gaussian(1.0) * 0) == 0.0
    assert of(acc.Gaussian(0.0)) == math.inf


def test_what_is_no_gaussian_is_refused():
    for run in (acc.Laplace(1.0), acc.PoissonSampled(0.1, acc.Gaussian(1.0))):
        with pytest.raises(ValueError, match="accountant must be one that applies"):
            gdp.epsilon(composition.steps_of(run), -9.0)
    with pytest.raises(ValueError, match="accountant must be 'rdp' or 'exact'"):
        jax.jit(lambda s: gdp.epsilon(composition.steps_of(acc.Gaussian(s)), -9.0))(1.0)


def test_the_limit_is_the_published_formula_and_below_the_truth():
    run = acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000
    mu = 0.01 * math.sqrt(1_000 * (math.e - 1.0))
    found = clt_epsilon(run, 1e-5)
    assert found == pytest.approx(inverse(1e-5, mu), rel=1e-9)
    assert found == pytest.approx(1.618, abs=5e-4)
    assert found < 1.828  # the truth


def test_the_limit_counts_all_phases():
    phases = [acc.PoissonSampled(0.01, acc.Gaussian(s)) * 500 for s in (1.0, 2.0)]
    mixed = acc.Composed(phases)
    schedule = acc.Schedule(0.01, np.array([1.0, 2.0]), 500)
    assert clt_epsilon(mixed, 1e-5) == clt_epsilon(schedule, 1e-5)
    assert clt_epsilon(mixed, 1e-5) > max(clt_epsilon(phase, 1e-5) for phase in phases)
    assert clt_epsilon(acc.Gaussian(3.0), 1e-5) == pytest.approx(inverse(1e-5, 1 / 3), rel=1e-9)
    assert clt_epsilon(acc.PoissonSampled(0.1, acc.Gaussian(0.0)), 1e-5) == math.inf
    assert clt_epsilon(acc.PoissonSampled(0.1, acc.Gaussian(0.01)), 1e-5) == math.inf
    assert clt_epsilon(acc.Composed([]), 1e-5) == 0.0


def test_the_limit_refuses_other_runs_and_bad_numbers():
    with pytest.raises(ValueError, match="run must be a composition of Gaussians"):
        clt_epsilon(acc.Laplace(1.0), 1e-5)
    with pytest.raises(ValueError, match="run must be an event"):
        clt_epsilon(1.0, 1e-5)
    with pytest.raises(ValueError, match="delta must be"):
        clt_epsilon(acc.Gaussian(1.0), 0.0)
    with pytest.raises(ValueError, match="not of traced values"):
        jax.jit(lambda s: clt_epsilon(acc.Gaussian(s), 1e-5))(1.0)
