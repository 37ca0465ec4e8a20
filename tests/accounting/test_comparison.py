"""The table of accountants: its rows, their order, and what they promise."""

import jax
import pytest

from jaxdp import accounting as acc

RUNS = [
    acc.Gaussian(2.0) * 10,
    acc.PoissonSampled(0.01, acc.Gaussian(1.0)) * 1_000,
    acc.Gaussian(2.0) * 10 + acc.Gaussian(4.0) * 10,
    acc.Laplace(2.0) * 10,
    acc.RandomizedResponse(0.5, 2) * 10,
]


@pytest.mark.parametrize("run", RUNS)
def test_every_certified_row_is_what_its_accountant_says_and_not_below_the_truth(run):
    rows = acc.compare(run, 1e-5)
    lower = acc.epsilon_bounds(run, 1e-5).lower
    names = [row.accountant for row in rows]
    assert len(set(names)) == len(names)
    assert {"rdp", "pld", "naive"} <= set(names)
    for row in rows:
        assert row.note
        if row.certified:
            assert row.epsilon == acc.epsilon(run, 1e-5, accountant=row.accountant)
            assert row.epsilon >= lower
        else:
            assert row is rows[-1]


def test_the_limit_theorem_comes_last_and_is_labelled():
    rows = acc.compare(RUNS[1], 1e-5)
    assert [row.certified for row in rows] == [True] * (len(rows) - 1) + [False]
    assert rows[-1].accountant == "clt"
    assert "not a bound" in rows[-1].note
    with pytest.raises(ValueError, match=r"^accountant must be one of"):
        acc.epsilon(RUNS[1], 1e-5, accountant="clt")


def test_what_does_not_apply_is_left_out():
    names = [[row.accountant for row in acc.compare(run, 1e-5)] for run in RUNS]
    assert {"gdp", "zcdp", "exact"} <= set(names[0])
    assert "clt" not in names[0]
    assert {"gdp", "zcdp"}.isdisjoint(names[1])
    assert "optimal" not in names[2]  # for equal steps only
    assert {"exact", "gdp", "clt"}.isdisjoint(names[3])


def test_traced_numbers_and_bad_deltas_are_refused():
    with pytest.raises(ValueError, match=r"^event must be an event of numbers"):
        jax.eval_shape(lambda s: acc.compare(acc.Gaussian(s), 1e-5)[0].epsilon, 1.0)
    with pytest.raises(ValueError, match=r"^delta must be"):
        acc.compare(RUNS[0], 0.0)
