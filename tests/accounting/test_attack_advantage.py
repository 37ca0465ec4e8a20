"""What attacks on a run can achieve, against the curves known in closed form."""

import jax
import numpy as np
import pytest
from scipy import stats

from jaxdp import accounting as acc

ALPHAS = np.array([0.0, 1e-6, 0.01, 0.05, 0.3, 0.5, 0.9, 1.0])


@pytest.mark.parametrize("run", [acc.Gaussian(1.0), acc.Gaussian(6.0) * 9])
def test_gaussians_have_the_gaussian_curve(run):
    mu = 1.0 if isinstance(run, acc.Gaussian) else 0.5
    expected = stats.norm.cdf(stats.norm.isf(ALPHAS) - mu)
    found = acc.type_ii_error(run, ALPHAS)
    # A lower bound, up to the rounding of the closed form; the search leaves 1e-8.
    assert np.all(found <= expected + 1e-15)
    np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-13)
    assert acc.attack_advantage(run) == pytest.approx(2 * stats.norm.cdf(mu / 2) - 1, rel=1e-9)


def test_one_sampled_step_has_the_symmetric_hull_of_its_curve():
    q, mu, alphas = 0.1, 1.0, np.array([0.01, 0.5])
    run = acc.PoissonSampled(q, acc.Gaussian(1.0 / mu))
    # Removing: with Q against (1 - q) Q + q P, the error is (1 - q)(1 - alpha) + q G(alpha); the
    # curve for both directions is the lower convex hull of this one and its inverse.
    one_way = (1 - q) * (1 - alphas) + q * stats.norm.cdf(stats.norm.isf(alphas) - mu)
    found = acc.type_ii_error(run, alphas)
    assert np.all(found <= one_way + 1e-12)
    advantage = q * (2 * stats.norm.cdf(mu / 2) - 1)
    # log delta is rounded up by 1e-6 at most where the line integral gives it.
    assert advantage * (1 - 1e-12) <= acc.attack_advantage(run) <= advantage * (1 + 1e-5)
    assert np.all(found >= 1 - alphas - advantage * (1 + 1e-5))


def test_more_steps_help_an_attack():
    run = acc.PoissonSampled(0.1, acc.Gaussian(1.0))
    few, many = acc.type_ii_error(run * 10, 0.05), acc.type_ii_error(run * 100, 0.05)
    assert 0.0 < many < few < 0.95


def test_nothing_released_leaves_guessing_and_bad_numbers_are_refused():
    assert acc.attack_advantage(acc.Composed([])) == 0.0
    np.testing.assert_allclose(acc.type_ii_error(acc.Composed([]), ALPHAS), 1 - ALPHAS, atol=1e-12)
    with pytest.raises(ValueError, match=r"^type_i_error must be"):
        acc.type_ii_error(acc.Gaussian(1.0), 1.5)
    with pytest.raises(ValueError, match=r"^event must be an event of numbers"):
        jax.eval_shape(lambda s: acc.attack_advantage(acc.Gaussian(s)), 1.0)
