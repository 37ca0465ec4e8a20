"""Samplers draw what their event says."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp import federated

KEY = jax.random.key(11)
POISSON = federated.PoissonCohorts(40, expected_cohort_size=10, max_cohort_size=40)
FIXED = federated.FixedSizeCohorts(40, cohort_size=10)
GROUPS = federated.GroupCohorts(40, min_separation=6)
SAMPLERS = [POISSON, FIXED, GROUPS]


def draws(cohorts, num_rounds, key=KEY):
    """Who takes part in each round, bool [num_rounds, num_clients]."""

    def one(round_number):
        draw = cohorts.draw(key, round_number)
        took_part = jnp.zeros(cohorts.num_clients, jnp.int32)
        return took_part.at[draw.client_ids].add(~draw.is_padding)

    counts = np.asarray(jax.jit(lambda: jax.lax.map(one, jnp.arange(num_rounds)))())
    assert counts.max() == 1, "nobody takes part twice"
    return counts.astype(bool)


@pytest.mark.parametrize("cohorts", SAMPLERS)
def test_a_draw_is_a_function_of_key_and_round_with_static_shapes(cohorts):
    first, again = draws(cohorts, 8), draws(cohorts, 8)
    np.testing.assert_array_equal(first, again)
    draw = cohorts.draw(KEY, 0)
    assert draw.client_ids.shape == draw.is_padding.shape == (cohorts.max_cohort_size,)
    if cohorts is not GROUPS:
        assert len({row.tobytes() for row in first}) == 8
        assert np.any(first != draws(cohorts, 8, jax.random.key(12)))


@pytest.mark.parametrize("cohorts", [POISSON, FIXED])
def test_everyone_takes_part_equally_often(cohorts):
    # Binomial(4000, 1/4) has standard deviation 27.4; one of 40 clients is 6 of them away from
    # the mean once in 12 million draws.
    often = draws(cohorts, 4000).sum(0)
    assert np.all(np.abs(often - 1000) < 6 * 27.4)


def test_poisson_cohorts_vary_in_size_and_fixed_ones_do_not():
    sizes = draws(POISSON, 4000).sum(1)
    # The variance of Binomial(40, 1/4) is 7.5; the sample variance's standard deviation is about
    # sqrt(2 / 4000) of it, and 6 of these are 13 %.
    assert abs(sizes.var() / 7.5 - 1) < 0.15
    assert set(draws(FIXED, 50).sum(1)) == {10}


def test_pairs_take_part_together_as_often_as_the_law_says():
    together = draws(FIXED, 4000).astype(np.int64)
    together = together.T @ together
    expected = 4000 * 10 * 9 / (40 * 39)
    # 780 pairs, each Binomial(4000, 0.0577) with standard deviation 14.7: 6.5 of them fail once
    # in 16 million draws.
    pairs = together[np.triu_indices(40, 1)]
    assert np.all(np.abs(pairs - expected) < 6.5 * 14.7)


@pytest.mark.parametrize("num_rounds", [1, 6, 7, 23])
def test_group_members_take_part_at_most_as_often_as_is_accounted_and_stay_apart(num_rounds):
    took_part = draws(GROUPS, num_rounds)
    assert took_part.sum(0).max() == GROUPS.participations(num_rounds) == -(-num_rounds // 6)
    for client in took_part.T:
        (rounds,) = np.nonzero(client)
        assert np.all(np.diff(rounds) >= 6)


def test_groups_do_not_change_when_a_client_joins():
    larger = federated.GroupCohorts(41, min_separation=6)
    np.testing.assert_array_equal(draws(larger, 12)[:, :40], draws(GROUPS, 12))


def test_events_are_those_of_the_samplers():
    assert POISSON.run_event(2.0, 9) == acc.Repeated(acc.PoissonSampled(0.25, acc.Gaussian(2.0)), 9)
    # Replacing one client moves the sum by twice the clip norm.
    assert FIXED.run_event(2.0, 9) == acc.Repeated(
        acc.SampledWithoutReplacement(40, 10, acc.Gaussian(1.0)), 9
    )
    assert GROUPS.run_event(2.0, 13) == acc.Repeated(acc.Gaussian(2.0), 3)


def test_slots_are_chosen_for_a_part_of_delta_and_overflow_shows():
    cohorts = federated.PoissonCohorts(40, expected_cohort_size=10)
    roomy = cohorts.with_capacity(num_rounds=100, overflow_delta=1e-7)
    assert (
        roomy.overflow_delta(100)
        <= 1e-7
        < federated.PoissonCohorts(
            40, expected_cohort_size=10, max_cohort_size=roomy.max_cohort_size - 1
        ).overflow_delta(100)
    )
    tight = federated.PoissonCohorts(40, expected_cohort_size=10, max_cohort_size=2)
    assert bool(tight.draw(KEY, 0).overflowed)
    assert not bool(roomy.draw(KEY, 0).overflowed)


@pytest.mark.parametrize(
    ("match", "call"),
    [
        (
            "expected_cohort_size must be at most num_clients = 5",
            lambda: federated.PoissonCohorts(5, expected_cohort_size=6),
        ),
        (
            "max_cohort_size must be an integer >= 1",
            lambda: federated.PoissonCohorts(5, expected_cohort_size=2, max_cohort_size=0),
        ),
        (
            "max_cohort_size must be a number of slots",
            lambda: federated.PoissonCohorts(5, expected_cohort_size=2).draw(KEY, 0),
        ),
        (
            "cohort_size must be an integer >= 1 and <= 5",
            lambda: federated.FixedSizeCohorts(5, cohort_size=6),
        ),
        (
            "min_separation must be an integer >= 1 and <= 5",
            lambda: federated.GroupCohorts(5, min_separation=6),
        ),
        (
            "min_separation must be below 2",
            lambda: federated.GroupCohorts(2**31 - 1, min_separation=1),
        ),
        (
            "federation must be of the sampler's 40 clients, got 'one of 2 clients'",
            lambda: FIXED.sample(federated.from_clients([np.zeros(1)] * 2), KEY, 0),
        ),
    ],
)
def test_bad_samplers_are_refused(match, call):
    with pytest.raises(ValueError, match=match):
        call()
