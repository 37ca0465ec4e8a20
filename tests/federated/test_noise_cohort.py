"""The noise of a larger cohort: two epsilons, each under its own name."""

import pytest

from jaxdp import accounting as acc
from jaxdp import federated

SMALL = federated.GroupCohorts(100, min_separation=10)
LARGE = federated.GroupCohorts(10_000, min_separation=10)


def both(**changed):
    settings = {"noise_multiplier": 4.0, "num_rounds": 20, "delta": 1e-6} | changed
    return federated.noise_cohort(
        settings.pop("simulated", SMALL), settings.pop("hypothetical", LARGE), **settings
    )


def test_the_noise_on_the_mean_is_that_of_the_large_cohort_and_both_epsilons_are_labelled():
    found = both()
    # z C / M of the deployment, M = 1000, is z' C / m of the simulation, m = 10.
    assert found.noise_multiplier / 10 == pytest.approx(4.0 / 1000, rel=1e-12)
    assert found.real_epsilon == acc.epsilon(acc.Gaussian(0.04) * 2, 1e-6)
    assert found.hypothetical_epsilon == acc.epsilon(acc.Gaussian(4.0) * 2, 1e-6)
    assert found.real_epsilon > 100 * found.hypothetical_epsilon
    real, hypothetical = str(found).splitlines()
    assert real.startswith(f"REAL epsilon {found.real_epsilon:.6g}")
    assert hypothetical.startswith(f"HYPOTHETICAL epsilon {found.hypothetical_epsilon:.6g}")


def test_a_plan_with_that_noise_states_the_real_epsilon():
    found = both()
    plan = federated.make_plan(
        SMALL,
        num_rounds=20,
        l2_clip_norm=1.0,
        noise_multiplier=found.noise_multiplier,
        delta=1e-6,
    )
    # The plan counts the multiplier as float32 has it, if that is smaller.
    assert plan.epsilon == pytest.approx(found.real_epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("match", "changed"),
    [
        (
            "hypothetical must be of at least the simulated size",
            {"hypothetical": federated.GroupCohorts(50, min_separation=10)},
        ),
        ("noise_multiplier must be a finite number > 0", {"noise_multiplier": 0.0}),
        ("delta must be a number in", {"delta": 2.0}),
        ("num_rounds must be an integer >= 1", {"num_rounds": 0}),
        ("simulated must be a sampler", {"simulated": 10}),
    ],
)
def test_bad_arguments_are_refused(match, changed):
    with pytest.raises(ValueError, match=match):
        both(**changed)
