"""The noise of a larger cohort: two epsilons, each under its own name."""

import pytest

from jaxdp import accounting as acc
from jaxdp import federated
from jaxdp._rounding import rounded_up

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
    # Float32 has it, if that is less.
    assert 0.04 * (1 - 2.0**-24) <= found.noise_multiplier <= 0.04
    assert found.real_epsilon == acc.epsilon(acc.Gaussian(found.noise_multiplier) * 2, 1e-6)
    assert found.hypothetical_epsilon == acc.epsilon(acc.Gaussian(4.0) * 2, 1e-6)
    assert found.real_epsilon > 100 * found.hypothetical_epsilon
    real, hypothetical = str(found).splitlines()
    assert real.startswith(f"REAL epsilon {rounded_up(found.real_epsilon)}")
    assert hypothetical.startswith(f"HYPOTHETICAL epsilon {rounded_up(found.hypothetical_epsilon)}")


@pytest.mark.parametrize(
    "simulated", [SMALL, federated.PoissonCohorts(100, expected_cohort_size=10)]
)
@pytest.mark.parametrize("noise_multiplier", [4.0, 0.7, 3.3])
def test_the_plan_that_runs_costs_the_real_epsilon(simulated, noise_multiplier):
    found = both(simulated=simulated, noise_multiplier=noise_multiplier)
    plan = federated.make_plan(
        simulated,
        num_rounds=20,
        l2_clip_norm=1.0,
        noise_multiplier=found.noise_multiplier,
        delta=1e-6,
    )
    # Noise as float32 draws it and slots that overflow included.
    assert plan.epsilon == found.real_epsilon


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
