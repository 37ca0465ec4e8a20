"""A plan that was changed by hand still promises what it can keep, or is refused."""

import dataclasses

import jax
import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp import federated

POISSON = federated.PoissonCohorts(1000, expected_cohort_size=100)
SETTINGS = {"num_rounds": 20, "l2_clip_norm": 1.0, "target_epsilon": 2.0, "delta": 1e-5}


@pytest.fixture(scope="module")
def plan():
    return federated.make_plan(POISSON, **SETTINGS)


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        ("num_rounds must be an integer >= 1", {"num_rounds": 0}),
        ("target_epsilon must be a finite number > 0", {"target_epsilon": -1.0}),
        ("delta must be given together with target_epsilon", {"delta": None}),
        ("delta must be a number in", {"delta": 2.0}),
        ("cohorts must be a sampler", {"cohorts": None}),
        ("l2_clip_norm must be a finite number > 0", {"l2_clip_norm": -1.0}),
        ("noise_multiplier must be a finite number >= 0", {"noise_multiplier": float("nan")}),
        ("max_cohort_size must be a number of slots", {"cohorts": POISSON}),
        (
            "noise_multiplier must be below twice count_noise_multiplier",
            {"l2_clip_norm": federated.AdaptiveClip(1.0, 0.1)},
        ),
    ],
)
def test_a_changed_plan_is_checked(plan, match, changed):
    with pytest.raises(ValueError, match=match):
        dataclasses.replace(plan, **changed)


def test_slots_are_enough_for_every_round_that_the_budget_lets_through(plan):
    slots = plan.cohorts.max_cohort_size
    fewer = dataclasses.replace(plan.cohorts, max_cohort_size=slots - 1)
    with pytest.raises(ValueError, match=f"max_cohort_size must be at least {slots}"):
        dataclasses.replace(plan, cohorts=fewer)
    # More noise lets more rounds through, whose slots may run out more often.
    with pytest.raises(ValueError, match="max_cohort_size must be at least"):
        dataclasses.replace(plan, noise_multiplier=30 * plan.noise_multiplier)
    # Without a budget what overflows is counted as it is, and here it is everything.
    honest = dataclasses.replace(plan, cohorts=fewer, target_epsilon=None)
    assert honest.overflow_delta == fewer.overflow_delta(20)


def test_the_noise_that_is_accounted_for_is_the_noise_that_is_drawn():
    groups = federated.GroupCohorts(10, min_separation=2)
    plan = federated.make_plan(groups, num_rounds=2, l2_clip_norm=1.0, noise_multiplier=1.0)
    changed = dataclasses.replace(plan, noise_multiplier=0.7)
    assert float(np.float32(0.7)) < 0.7
    assert changed.event == acc.Gaussian(float(np.float32(0.7))) * 1


def test_a_plan_is_a_pytree_of_two_numbers(plan):
    assert len(jax.tree.leaves(plan)) == 2
    through = jax.jit(lambda plan: plan)(plan)
    assert float(through.noise_multiplier) == plan.noise_multiplier
    assert jax.tree.structure(through) == jax.tree.structure(plan)
    # The number is the same again, and so is what is checked.
    assert dataclasses.replace(through).noise_multiplier == plan.noise_multiplier
