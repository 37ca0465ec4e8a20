"""Renyi DP of runs: known values, shapes, transformations, refusals."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp.accounting import composition


def test_fractional_orders_match_the_published_high_precision_values():
    # Ten digits were published.
    step = acc.PoissonSampled(0.01, acc.Gaussian(1.0))
    assert acc.rdp(step, 1.5) == pytest.approx(1.272537433e-4, rel=5e-10, abs=0.0)
    step = acc.PoissonSampled(0.001, acc.Gaussian(200.0))
    assert acc.rdp(step, 1.5) == pytest.approx(1.875023414e-11, rel=5e-10, abs=0.0)


def test_orders_keep_their_shape_and_whole_ones_their_place_among_the_others():
    step = acc.PoissonSampled(0.02, acc.Gaussian(0.9))
    orders = np.array([[1.5, 2.0, 300.0], [7.5, 3.0, 2.5]])
    values = acc.rdp(step, orders)
    assert values.shape == orders.shape
    for index in np.ndindex(orders.shape):
        assert values[index] == pytest.approx(acc.rdp(step, float(orders[index])), rel=1e-12)
    in_program = jax.jit(lambda s: acc.rdp(acc.PoissonSampled(0.02, acc.Gaussian(s)), orders))(0.9)
    np.testing.assert_allclose(in_program, values, rtol=4e-5)
    traced = jax.jit(lambda a: acc.rdp(step, a))(jnp.asarray(orders))
    np.testing.assert_allclose(traced, values, rtol=4e-5)


def test_a_million_steps_are_a_count_times_one_value_in_float32():
    step = acc.PoissonSampled(0.001, acc.Gaussian(100.0))
    exact = acc.rdp(step, [1.5, 8.0]) * 1e6

    def million(s):
        return acc.rdp(acc.PoissonSampled(0.001, acc.Gaussian(s)) * 1_000_000, [1.5, 8.0])

    np.testing.assert_allclose(jax.jit(million)(100.0), exact, rtol=4e-5)


def test_thousands_of_different_steps_add_up_in_float32():
    scales = np.linspace(5.0, 50.0, 4_000)
    many = composition.Steps(None, (scales, np.ones(4_000)), *[None] * 6)

    def total(steps):
        return composition.log_moment_of(jax.tree.map(jnp.asarray, steps), jnp.ones(1))

    exact = sum(math.log((2 * math.exp(1 / b) + math.exp(-2 / b)) / 3) for b in scales)
    # Terms good to a few ulps and a compensated sum; a plain one would be off by more.
    np.testing.assert_allclose(jax.jit(total)(many), exact, rtol=2e-6)


@pytest.mark.parametrize("mechanism", [acc.Gaussian, acc.Laplace])
def test_the_derivative_in_the_noise_is_that_of_the_values(mechanism):
    def total(s):
        run = acc.PoissonSampled(0.1, mechanism(s)) + mechanism(2.0 * s)
        return acc.rdp(run, [1.5, 2.5, 20.0]).sum()

    step = 1e-4
    difference = (total(1.3 + step) - total(1.3 - step)) / (2 * step)
    # float32 against a central difference whose own error is about step^2.
    assert jax.jit(jax.grad(total))(1.3) == pytest.approx(difference, rel=1e-4)


def test_events_can_be_mapped_over():
    events = jax.vmap(acc.Gaussian)(jnp.array([0.5, 1.0, 4.0]))
    values = jax.jit(jax.vmap(lambda event: acc.rdp(acc.PoissonSampled(0.1, event), [2.5, 4.0])))
    mapped = values(events)
    single = [acc.rdp(acc.PoissonSampled(0.1, acc.Gaussian(s)), [2.5, 4.0]) for s in (0.5, 1, 4)]
    np.testing.assert_allclose(mapped, np.array(single), rtol=4e-5)


@pytest.mark.parametrize("orders", [1.0, 0.5, [2.0, np.inf], [np.nan], [], "two", None])
def test_orders_that_are_no_orders_are_refused(orders):
    with pytest.raises(ValueError, match="orders"):
        acc.rdp(acc.Gaussian(1.0), orders)
