"""Traced numbers that no mechanism has never look private: they cannot be refused, so they cost."""

import math

import jax
import pytest

from jaxdp import accounting as acc

RUNS = {
    "gaussian": lambda q, s, n: acc.Repeated(acc.Gaussian(s), n),
    "laplace": lambda q, s, n: acc.Repeated(acc.Laplace(s), n),
    "sampled gaussian": lambda q, s, n: acc.Repeated(acc.PoissonSampled(q, acc.Gaussian(s)), n),
    "sampled laplace": lambda q, s, n: acc.Repeated(acc.PoissonSampled(q, acc.Laplace(s)), n),
}
BAD = [
    ("s", -1.0),
    ("s", 0.0),
    ("s", math.nan),
    ("q", -0.5),
    ("q", 1.5),
    ("q", math.nan),
    ("n", -1.0),
    ("n", math.nan),
]


@pytest.mark.parametrize("name", RUNS)
def test_a_traced_number_out_of_range_costs_everything(name):
    def bounds(q, s, n):
        run = RUNS[name](q, s, n)
        return acc.epsilon(run, 1e-5), acc.epsilon(run, 1e-5, accountant="rdp"), acc.delta(run, 1.0)

    compiled = jax.jit(bounds)
    good = {"q": 0.1, "s": 1.0, "n": 3.0}
    epsilon, rdp_epsilon, delta = compiled(**good)
    assert 0.0 < float(epsilon) <= float(rdp_epsilon) * (1 + 1e-6) < math.inf
    assert 0.0 <= float(delta) < 1.0
    free = [{"n": 0.0}, {"q": 0.0}] if "sampled" in name else [{"n": 0.0}]
    for numbers in free:
        assert [float(value) for value in compiled(**(good | numbers))] == [0.0, 0.0, 0.0]
    for argument, value in BAD:
        if argument == "q" and "sampled" not in name:
            continue
        epsilon, rdp_epsilon, delta = compiled(**(good | {argument: value}))
        assert float(epsilon) == float(rdp_epsilon) == math.inf, (argument, value)
        assert float(delta) == 1.0, (argument, value)
