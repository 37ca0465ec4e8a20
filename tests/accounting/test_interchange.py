"""Events of dp_accounting: the same mechanism on both sides, by that library's own numbers."""

import math
import sys

import dp_accounting as dp
import jax
import numpy as np
import pytest
from dp_accounting import pld, rdp
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import accounting as acc
from jaxdp.accounting.interchange import from_dp_accounting, to_dp_accounting

REPLACE_ONE = dp.NeighboringRelation.REPLACE_ONE

noises = st.floats(0.0, 100.0)
probabilities = st.floats(0.0, 1.0)
gaussians = st.builds(acc.Gaussian, noises)


def composed(events):
    return st.recursive(
        events,
        lambda inner: (
            st.builds(acc.Repeated, inner, st.integers(0, 1000))
            | st.builds(acc.Composed, st.lists(inner, max_size=3))
        ),
        max_leaves=4,
    )


@st.composite
def without_replacement(draw):
    num_examples = draw(st.integers(1, 1000))
    batch_size = draw(st.integers(0, num_examples))
    return acc.SampledWithoutReplacement(num_examples, batch_size, draw(composed(gaussians)))


kinds = [
    gaussians,
    st.builds(acc.Laplace, noises),
    st.builds(acc.RandomizedResponse, probabilities, st.integers(1, 10)),
    st.builds(acc.PoissonSampled, probabilities, composed(gaussians)),
    st.builds(acc.PoissonSampled, probabilities, st.builds(acc.Laplace, noises)),
    st.builds(
        acc.TruncatedPoissonSampled,
        probabilities,
        gaussians,
        num_examples=st.integers(0, 1000),
        max_batch_size=st.integers(1, 1000),
    ),
    without_replacement(),
]


@settings(max_examples=100, deadline=None)
@given(composed(st.one_of(kinds)))
def test_there_and_back_is_the_same_event(event):
    assert from_dp_accounting(to_dp_accounting(event)) == event


def test_events_are_described_in_the_words_of_dp_accounting():
    gaussian = dp.GaussianDpEvent(2.0)
    pairs = [
        (acc.Gaussian(2.0), gaussian),
        (acc.Laplace(0.5), dp.LaplaceDpEvent(0.5)),
        (acc.RandomizedResponse(0.25, 4), dp.RandomizedResponseDpEvent(0.25, 4)),
        (acc.PoissonSampled(0.1, acc.Gaussian(2.0)), dp.PoissonSampledDpEvent(0.1, gaussian)),
        (
            acc.SampledWithoutReplacement(50, 5, acc.Gaussian(2.0)),
            dp.SampledWithoutReplacementDpEvent(
                source_dataset_size=50, sample_size=5, event=gaussian
            ),
        ),
        (
            acc.TruncatedPoissonSampled(0.1, acc.Gaussian(2.0), num_examples=50, max_batch_size=7),
            dp.TruncatedSubsampledGaussianDpEvent(
                dataset_size=50,
                sampling_probability=0.1,
                truncated_batch_size=7,
                noise_multiplier=2.0,
            ),
        ),
        (acc.Gaussian(2.0) * 3, dp.SelfComposedDpEvent(gaussian, 3)),
        (
            acc.Gaussian(2.0) + acc.Laplace(1.0),
            dp.ComposedDpEvent([gaussian, dp.LaplaceDpEvent(1.0)]),
        ),
        (acc.Composed([]), dp.ComposedDpEvent([])),
    ]
    for ours, theirs in pairs:
        assert to_dp_accounting(ours) == theirs
        assert from_dp_accounting(theirs) == ours


def test_a_schedule_becomes_its_steps():
    schedule = acc.Schedule([0.1, 1.0], 2.0, [3, 4])
    assert to_dp_accounting(schedule) == dp.ComposedDpEvent(
        [
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 3),
            dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(1.0, dp.GaussianDpEvent(2.0)), 4),
        ]
    )


def test_several_gaussians_about_one_truncated_sample_become_one():
    def truncated(event):
        return acc.TruncatedPoissonSampled(0.1, event, num_examples=9, max_batch_size=3)

    converted = to_dp_accounting(truncated(acc.Gaussian(2.0) * 3 + acc.Gaussian(2.0)))
    # 4 / 2^2 is 1, so the multiplier is 1: all exact in binary.
    assert converted == dp.TruncatedSubsampledGaussianDpEvent(9, 0.1, 3, 1.0)
    assert to_dp_accounting(truncated(acc.Composed([]))) == dp.NoOpDpEvent()


def test_nothing_and_everything_have_their_epsilons():
    nothing, everything = (
        from_dp_accounting(dp.NoOpDpEvent()),
        from_dp_accounting(dp.NonPrivateDpEvent()),
    )
    assert acc.epsilon(nothing, 1e-5) == 0.0
    assert acc.epsilon(everything, 1e-5) == math.inf


def test_numbers_held_in_arrays_become_plain_numbers():
    held = acc.PoissonSampled(np.float64(0.1), acc.Gaussian(jax.numpy.float32(2.0))) * np.int64(3)
    converted = to_dp_accounting(held)
    assert converted == dp.SelfComposedDpEvent(
        dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 3
    )
    assert type(converted.count) is int
    assert type(converted.event.event.noise_multiplier) is float


ORDERS = [float(order) for order in range(2, 65)]


def renyi_epsilon(event, **options):
    accountant = rdp.RdpAccountant(ORDERS, **options)
    return accountant.compose(event).get_epsilon(1e-5)


@pytest.mark.parametrize(
    "event",
    [
        acc.Gaussian(1.5) * 3,
        acc.PoissonSampled(0.02, acc.Gaussian(0.9)) * 500,
        acc.PoissonSampled(0.02, acc.Gaussian(0.9) * 2 + acc.Gaussian(2.0)) * 100,
        acc.Laplace(1.2) * 3 + acc.Gaussian(2.0),
    ],
)
def test_both_libraries_give_the_same_renyi_epsilon(event):
    ours = acc.rdp_epsilon(event, 1e-5, orders=ORDERS).epsilon
    # At whole orders both use closed forms in float64; ours is raised by 1e-10, relative, of the
    # Renyi part. Their sums of logarithms lose some 1e-9 of small moments.
    assert ours == pytest.approx(renyi_epsilon(to_dp_accounting(event)), rel=1e-8)


@pytest.mark.parametrize(("capacity", "epsilon"), [(250, 13.71), (400, 1.594)])
def test_a_truncated_sample_has_the_epsilon_of_an_independent_computation(capacity, epsilon):
    event = acc.TruncatedPoissonSampled(
        0.005, acc.Gaussian(0.8), num_examples=50_000, max_batch_size=capacity
    )
    accountant = pld.PLDAccountant(value_discretization_interval=1e-3)
    accountant.compose(to_dp_accounting(event * 1_000))
    # The other computation bounds the truncation a little more loosely; 5e-3 covers that and both
    # grids, and each argument moves epsilon by far more.
    assert accountant.get_epsilon(1e-5) == pytest.approx(epsilon, rel=5e-3)


def test_randomised_response_redraws_the_true_answer_too():
    accountant = pld.PLDAccountant(REPLACE_ONE, value_discretization_interval=1e-4)
    accountant.compose(to_dp_accounting(acc.RandomizedResponse(0.5, 4)))
    # log((1 - p + p / k) / (p / k)) = log(0.625 / 0.125); pessimistic by one grid step at most.
    assert 0.0 <= accountant.get_epsilon(0.0) - math.log(5.0) <= 1e-4


def test_without_replacement_both_measure_noise_against_replacing():
    everyone = to_dp_accounting(acc.SampledWithoutReplacement(40, 40, acc.Gaussian(1.7)))
    # A sample of everyone is no sample: their accountant then gives the plain Gaussian at the
    # same multiplier, relative to the sensitivity under the relation, as ours is.
    plain = renyi_epsilon(dp.GaussianDpEvent(1.7))
    assert renyi_epsilon(everyone, neighboring_relation=REPLACE_ONE) == pytest.approx(plain)


def test_under_replace_one_their_pld_doubles_the_sensitivity_of_a_gaussian():
    def epsilon(noise_multiplier, relation):
        accountant = pld.PLDAccountant(relation, value_discretization_interval=1e-3)
        return accountant.compose(dp.GaussianDpEvent(noise_multiplier)).get_epsilon(1e-5)

    # The documented difference: if this changes, the module's first lines are out of date.
    add_or_remove = epsilon(1.0, dp.NeighboringRelation.ADD_OR_REMOVE_ONE)
    assert epsilon(2.0, REPLACE_ONE) == pytest.approx(add_or_remove, rel=1e-6)


@pytest.mark.parametrize(
    "event",
    [
        dp.UnsupportedDpEvent(),
        dp.dp_event.DiscreteLaplaceDpEvent(1.0, 1),
        dp.ZCDpEvent(0.5),
        dp.dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], [0.5, 0.5]),
        dp.SampledWithReplacementDpEvent(10, 2, dp.GaussianDpEvent(1.0)),
        dp.SingleEpochTreeAggregationDpEvent(1.0, 4),
        dp.dp_event.RepeatAndSelectDpEvent(dp.GaussianDpEvent(1.0), 2.0, 1.0),
    ],
)
def test_events_without_a_counterpart_are_refused_by_name(event):
    nested = dp.ComposedDpEvent([dp.GaussianDpEvent(1.0), dp.SelfComposedDpEvent(event, 2)])
    for given_event in (event, nested):
        with pytest.raises(ValueError, match=type(event).__name__ + " is not"):
            from_dp_accounting(given_event)


def test_a_discrete_gaussian_is_refused_by_name():
    with pytest.raises(ValueError, match="which has no DiscreteGaussian"):
        to_dp_accounting(acc.DiscreteGaussian(2.0) * 10)


@pytest.mark.parametrize("value", [1.0, None, dp.GaussianDpEvent(1.0)])
def test_what_is_no_event_of_ours_is_refused(value):
    with pytest.raises(ValueError, match="event must be an event such as Gaussian"):
        to_dp_accounting(value)


def test_what_is_no_event_of_theirs_is_refused():
    with pytest.raises(ValueError, match="event must be an event of dp_accounting"):
        from_dp_accounting(acc.Gaussian(1.0))


def test_numbers_out_of_range_are_refused():
    with pytest.raises(ValueError, match="noise_multiplier must be"):
        from_dp_accounting(dp.GaussianDpEvent(-1.0))
    with pytest.raises(ValueError, match="sampling_probability must be"):
        from_dp_accounting(dp.PoissonSampledDpEvent(1.5, dp.GaussianDpEvent(1.0)))
    with pytest.raises(ValueError, match="count must be"):
        from_dp_accounting(dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), -1))


def test_traced_numbers_are_refused():
    with pytest.raises(ValueError, match="an event of numbers, not of traced values"):
        jax.jit(lambda noise: to_dp_accounting(acc.Gaussian(noise)) and 0.0)(1.0)


def test_without_the_library_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    for convert, event in ((to_dp_accounting, acc.Gaussian(1.0)), (from_dp_accounting, None)):
        with pytest.raises(ImportError, match=r"pip install 'dp-accounting>=0\.6'"):
            convert(event)
