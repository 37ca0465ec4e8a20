"""Counts of any integer type, nested: their product does not wrap around."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import accounting as acc
from jaxdp import federated


@pytest.mark.parametrize("kind", [int, np.int32, np.int64, jnp.int32])
def test_a_product_of_counts_beyond_int32_is_counted(kind):
    once = acc.Gaussian(1e4) * kind(65536)
    # 2^32 Gaussians of noise 1e4 are one of noise 1e4 / 2^16.
    assert acc.epsilon(once * kind(65536), 1e-5) == pytest.approx(
        acc.epsilon(acc.Gaussian(1e4 / 65536), 1e-5), rel=1e-12
    )


@pytest.mark.parametrize(("kind", "count"), [(np.int8, 100), (np.uint8, 16), (np.int16, 300)])
@pytest.mark.parametrize("accountant", ["auto", "rdp"])
def test_small_integer_types_do_not_wrap_around(kind, count, accountant):
    step = acc.PoissonSampled(0.1, acc.Gaussian(20.0))
    plain = acc.epsilon(step * count * count, 1e-5, accountant=accountant)
    assert acc.epsilon(step * kind(count) * kind(count), 1e-5, accountant=accountant) == plain


def test_traced_counts_do_not_wrap_around():
    @jax.jit
    def program(n):
        return acc.epsilon((acc.Gaussian(1e4) * n) * n, 1e-5)

    # Float32 margins of the closed form are 1e-6.
    expected = acc.epsilon(acc.Gaussian(1e4 / 65536), 1e-5)
    assert float(program(jnp.int32(65536))) == pytest.approx(expected, rel=1e-5)


def test_a_fraction_of_small_integers_keeps_its_digits():
    plain = acc.SampledWithoutReplacement(100, 3, acc.Gaussian(2.0)) * 50
    small = acc.SampledWithoutReplacement(np.int8(100), np.int8(3), acc.Gaussian(2.0)) * 50
    assert acc.epsilon(small, 1e-5, accountant="rdp") == acc.epsilon(plain, 1e-5, accountant="rdp")


def test_rounds_of_a_small_integer_type_are_counted():
    cohorts = federated.GroupCohorts(1000, min_separation=2)
    plain = federated.LocalPlan(4.0, 1.0, cohorts, 255, 1e-5)
    assert federated.LocalPlan(4.0, 1.0, cohorts, np.uint8(255), 1e-5).epsilon == plain.epsilon
    small = federated.GroupCohorts(np.int16(1000), min_separation=np.int8(2))
    assert federated.LocalPlan(4.0, 1.0, small, 255, 1e-5).epsilon == plain.epsilon


def test_a_delta_of_a_narrow_type_keeps_its_digits():
    cohorts = federated.PoissonCohorts(1000, expected_cohort_size=50)
    known = {"num_rounds": 10, "l2_clip_norm": 1.0, "noise_multiplier": 2.0}
    narrow = federated.make_plan(cohorts, delta=np.float16(0.001), **known)
    plain = federated.make_plan(cohorts, delta=float(np.float16(0.001)), **known)
    assert narrow.epsilon == plain.epsilon


def test_participations_are_rounded_up_whatever_the_type():
    cohorts = federated.GroupCohorts(10, min_separation=4)
    for rounds, times in ((8, 2), (8.5, 3), (np.uint8(255), 64), (np.int16(9), 3)):
        assert cohorts.participations(rounds) == times
    assert int(jax.jit(cohorts.participations)(np.uint8(255))) == 64
    assert float(jax.jit(cohorts.participations)(jnp.float32(8.5))) == 3.0
