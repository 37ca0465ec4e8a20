"""The choice between Laplace and Gaussian noise against other accountants and simulation."""

import math

import jax
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, optimize, stats

from jaxdp.mechanisms.choose import _harmonic, _largest_of_normals, choose

# Arithmetic of the host around the accountants, which have tests on every version.
pytestmark = pytest.mark.newest_only


def chosen(dimension, num_queries=1, epsilon=1.0, delta=1e-6, coordinate_bound=1.0):
    return choose(
        dimension=dimension,
        coordinate_bound=coordinate_bound,
        num_queries=num_queries,
        epsilon=epsilon,
        delta=delta,
    )


def gaussian_delta(mu, epsilon):
    """Balle and Wang 2018, Theorem 8, with SciPy's tails."""
    first = stats.norm.cdf(mu / 2 - epsilon / mu)
    return first - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize(("d", "n", "epsilon"), [(1, 1, 0.5), (100, 3, 2.0), (7, 50, 8.0)])
def test_the_gaussian_meets_its_target_exactly(d, n, epsilon):
    found = chosen(d, n, epsilon, coordinate_bound=0.3)
    mu = optimize.brentq(lambda m: gaussian_delta(m, epsilon) - 1e-6, 1e-2, 1e2, xtol=1e-14)
    # SciPy's difference of tails is good to 1e-16 / 1e-6.
    assert found.gaussian.scale == pytest.approx(0.3 * math.sqrt(d * n) / mu, rel=1e-8)


@pytest.mark.parametrize(
    ("d", "n", "epsilon", "delta", "excess"),
    [(2, 1, 1.0, 1e-3, 0.01), (10, 5, 1.0, 1e-6, 0.01), (60, 2, 3.0, 1e-5, 0.02)],
)
def test_the_laplace_scale_holds_and_is_tight_by_another_accountant(d, n, epsilon, delta, excess):
    scale = chosen(d, n, epsilon, delta).laplace.scale

    def other(scale, pessimistic):
        pld = privacy_loss_distribution.from_laplace_mechanism(
            scale, pessimistic_estimate=pessimistic, value_discretization_interval=1e-4 / d
        )
        return pld.self_compose(n * d).get_delta_for_epsilon(epsilon)

    # An optimistic grid is below the truth, a pessimistic one above.
    assert other(scale, False) <= delta
    assert other(scale * (1 - excess), True) > delta


def test_one_number_asked_once_has_the_closed_form():
    found = chosen(1, 1, 0.7, 1e-3, coordinate_bound=2.0)
    expected = 2.0 / (0.7 - 2 * math.log1p(-1e-3))
    assert expected <= found.laplace.scale <= expected * (1 + 3e-7)


def test_without_delta_only_laplace_is_possible():
    found = chosen(5, 4, 2.0, 0.0)
    assert found.winner == "laplace"
    assert found.ratio == found.gaussian.scale == math.inf
    assert found.laplace.scale == pytest.approx(10.0, rel=1e-14)


def test_coordinates_compose_like_queries():
    assert chosen(12, 1).laplace.scale == chosen(3, 4).laplace.scale
    # One release of the whole L1 norm would cost a scale of d / epsilon.
    assert chosen(200, 1).laplace.scale < 0.5 * 200


def test_who_wins():
    assert chosen(1).winner == "laplace"
    assert chosen(1, delta=1e-30).winner == "laplace"
    assert chosen(4, delta=1e-30).winner == "laplace"
    assert chosen(1_000).winner == "gaussian"
    assert chosen(1, 1_000).winner == "gaussian"
    many = chosen(10_000, 10)
    # In the limit both are one Gaussian with mu = sqrt(n d) c / scale, and the variance of
    # Laplace noise is twice its scale's square; the next order is below 1 % here.
    assert many.ratio == pytest.approx(math.sqrt(2.0), rel=0.01)


@pytest.mark.parametrize("d", [1, 2, 30])
def test_errors_are_those_of_the_noise(d):
    found = chosen(d)
    rng = np.random.default_rng(0)
    draws = {
        "laplace": rng.laplace(scale=found.laplace.scale, size=(100_000, d)),
        "gaussian": rng.normal(scale=found.gaussian.scale, size=(100_000, d)),
    }
    for name, noise in (("laplace", found.laplace), ("gaussian", found.gaussian)):
        # 100,000 draws: a standard error of about 1 / 316 of a mean, 5 of them allowed.
        spread = 5 / math.sqrt(100_000)
        squares = np.sum(draws[name] ** 2, axis=1)
        assert np.mean(squares) == pytest.approx(noise.l2_error**2, rel=3 * spread)
        assert noise.coordinate_error * math.sqrt(d) == pytest.approx(noise.l2_error, rel=1e-12)
        largest = np.max(np.abs(draws[name]), axis=1)
        assert np.mean(largest) == pytest.approx(noise.max_error, rel=spread)


def largest_of_normals(d):
    """The expected largest absolute value of d standard normal numbers, by SciPy's quadrature."""
    return integrate.quad(
        lambda x: -math.expm1(d * math.log1p(-min(2 * stats.norm.sf(x), 1 - 1e-16))),
        0.0, 12.0, points=[math.sqrt(2 * math.log(d + 1))], limit=200,
    )[0]  # fmt: skip


def harmonic(d):
    return np.sum(1.0 / np.arange(1, d + 1))


@pytest.mark.parametrize("d", [1, 3, 1_000])
def test_largest_errors_by_another_quadrature(d):
    found = chosen(d, delta=0.5, epsilon=50.0)
    expected = largest_of_normals(d)
    assert found.gaussian.max_error / found.gaussian.scale == pytest.approx(expected, rel=1e-6)
    assert found.laplace.max_error / found.laplace.scale == pytest.approx(harmonic(d), rel=1e-12)


def test_the_largest_of_ten_million_by_another_quadrature():
    # The accountant, which takes longer the more releases there are, has no part in these.
    assert _largest_of_normals(10**7) == pytest.approx(largest_of_normals(10**7), rel=1e-6)
    assert _harmonic(10**7) == pytest.approx(harmonic(10**7), rel=1e-12)


@pytest.mark.parametrize("harder", ["queries", "coordinates", "epsilon", "delta"])
@settings(max_examples=2, deadline=None)
@given(
    st.integers(1, 200), st.integers(1, 50), st.floats(0.05, 20.0), st.floats(-60.0, math.log(0.1))
)
def test_more_queries_more_coordinates_or_less_delta_need_more_noise(
    harder, d, n, epsilon, log_delta
):
    delta = math.exp(log_delta)
    base = chosen(d, n, epsilon, delta)
    changed = {
        "queries": (d, n + 1, epsilon, delta),
        "coordinates": (d + 1, n, epsilon, delta),
        "epsilon": (d, n, 0.9 * epsilon, delta),
        "delta": (d, n, epsilon, 0.5 * delta),
    }
    more = chosen(*changed[harder])
    # Scales are within 1e-7 of the least.
    assert more.laplace.scale >= base.laplace.scale * (1 - 3e-7)
    assert more.gaussian.scale >= base.gaussian.scale * (1 - 1e-9)
    assert base.laplace.scale <= n * d / epsilon * (1 + 1e-14)
    assert base.ratio >= 1.0


def test_errors_scale_with_the_bound():
    small, large = chosen(5), chosen(5, coordinate_bound=1e-3)
    np.testing.assert_allclose(large.laplace, 1e-3 * np.array(small.laplace), rtol=1e-12)
    np.testing.assert_allclose(large.gaussian, 1e-3 * np.array(small.gaussian), rtol=1e-9)


def test_it_prints_a_summary():
    lines = str(chosen(100, 10)).splitlines()
    assert lines[0].split() == ["scale", "L2", "error", "max", "error"]
    assert lines[1].startswith("laplace")
    assert lines[2].startswith("gaussian")
    assert lines[3].startswith("gaussian wins")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dimension", 0), ("dimension", 1.5), ("num_queries", 0), ("epsilon", 0.0),
        ("epsilon", math.inf), ("delta", 1.0), ("delta", -0.1), ("coordinate_bound", 0.0),
        ("coordinate_bound", math.nan),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(name, value):
    good = {
        "dimension": 2, "num_queries": 1, "epsilon": 1.0, "delta": 1e-5, "coordinate_bound": 1.0,
    }  # fmt: skip
    with pytest.raises(ValueError, match=f"{name} must be"):
        choose(**{**good, name: value})


def test_traced_numbers_are_refused():
    with pytest.raises(ValueError, match="epsilon must be a number, not a traced value"):
        jax.jit(lambda epsilon: chosen(1, epsilon=epsilon))(1.0)
