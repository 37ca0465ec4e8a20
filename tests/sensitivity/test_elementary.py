"""Sensitivities against brute force over every pair of neighbours of a small domain."""

import itertools
import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxdp import sensitivity

RELATIONS = ("add_or_remove_one", "replace_one", "replace_special")


def brute_force(contributions, relation, query=lambda rows: rows.sum(axis=0), num_records=3):
    """The largest L1 and L2 move of a query over all neighbours with records from a set."""
    contributions = np.asarray(contributions, float)
    nothing = np.zeros((1, contributions.shape[1]))
    l1 = l2 = 0.0
    for rest in itertools.combinations_with_replacement(contributions, num_records - 1):
        rest = np.array(rest).reshape(num_records - 1, -1)
        for x in contributions:
            whole = query(np.concatenate([rest, x[None]]))
            if relation == "add_or_remove_one":
                others = [query(rest)]
            elif relation == "replace_special":
                others = [query(np.concatenate([rest, nothing]))]
            else:
                others = [query(np.concatenate([rest, y[None]])) for y in contributions]
            for other in others:
                l1 = max(l1, np.abs(whole - other).sum())
                l2 = max(l2, np.sqrt(((whole - other) ** 2).sum()))
    return l1, l2


def grid(values, dimension, keep=lambda x: True):
    return [x for x in itertools.product(values, repeat=dimension) if keep(np.array(x))]


# The domains hold the extreme points (axes, diagonals, corners), so that brute force attains
# the supremum; sums of three small dyadic numbers are exact, norms good to 1e-15.
EXACT = 1e-14


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("lower", "upper"), [(0.0, 1.0), (-1.0, 1.0), (-2.0, 0.5), (1.0, 3.0)])
def test_a_box_bounds_the_sum_by_its_corners(relation, lower, upper):
    middle = (lower + upper) / 2
    domain = grid([lower, middle, upper], 2)
    got = sensitivity.bounded_sum(
        dimension=2, coordinate_bounds=(lower, upper), neighboring_relation=relation
    )
    assert got == pytest.approx(brute_force(domain, relation), rel=EXACT)


@pytest.mark.parametrize("relation", RELATIONS)
def test_an_l2_bound_gives_l1_on_the_diagonal(relation):
    angles = np.arange(16) * math.pi / 8
    domain = 2.0 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    got = sensitivity.bounded_sum(dimension=2, l2_bound=2.0, neighboring_relation=relation)
    assert got == pytest.approx(brute_force(domain, relation), rel=EXACT)


@pytest.mark.parametrize("relation", RELATIONS)
def test_an_l1_bound_gives_l2_on_an_axis(relation):
    domain = grid([-1.0, -0.5, 0.0, 0.5, 1.0], 2, lambda x: np.abs(x).sum() <= 1.0)
    got = sensitivity.bounded_sum(dimension=2, l1_bound=1.0, neighboring_relation=relation)
    assert got == pytest.approx(brute_force(domain, relation), rel=EXACT)


@pytest.mark.parametrize("relation", ["replace_one", "replace_special"])
@pytest.mark.parametrize("bound", ["l2_bound", "l1_bound", "coordinate_bounds"])
def test_a_mean_moves_by_the_sum_over_the_public_size(relation, bound):
    if bound == "coordinate_bounds":
        domain, value = grid([-1.0, 0.0, 2.0], 2), (-1.0, 2.0)
    elif bound == "l1_bound":
        domain, value = [(1, 0), (-1, 0), (0, 1), (0.5, 0.5)], 1.0
    else:
        domain, value = [(3, 4), (-3, -4), (5, 0), (math.sqrt(12.5), math.sqrt(12.5))], 5.0
        domain.append((-math.sqrt(12.5), -math.sqrt(12.5)))
    got = sensitivity.bounded_mean(
        dimension=2, num_examples=3, neighboring_relation=relation, **{bound: value}
    )
    expected = brute_force(domain, relation, lambda rows: rows.sum(axis=0) / 3)
    assert got == pytest.approx(expected, rel=EXACT)


@pytest.mark.parametrize("dimension", [1, 4, 9, 100])
def test_a_mean_of_d_vectors_moves_by_one_in_l1_and_one_over_root_d_in_l2(dimension):
    got = sensitivity.bounded_mean(
        dimension=dimension,
        num_examples=dimension,
        coordinate_bounds=(0, 1),
        neighboring_relation="replace_one",
    )
    assert got.l1 == 1.0
    assert Fraction(got.l2) ** 2 >= Fraction(1, dimension)
    assert got.l2 == pytest.approx(1 / math.sqrt(dimension), rel=3e-16)


def test_a_mean_over_a_private_size_is_refused_with_the_reason():
    with pytest.raises(
        ValueError, match=r"for a mean: when a record may be missing.*add_or_remove"
    ):
        sensitivity.bounded_mean(
            dimension=1, num_examples=3, l2_bound=1, neighboring_relation="add_or_remove_one"
        )


@pytest.mark.parametrize("relation", RELATIONS)
def test_a_count_moves_by_one_under_every_relation(relation):
    got = sensitivity.count(neighboring_relation=relation)
    assert got == brute_force([(0.0,), (1.0,)], relation)


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize(("bins", "most"), [(2, 1), (3, 1), (4, 2), (3, 2), (3, 3), (1, 1)])
def test_a_histogram_moves_by_its_bins(relation, bins, most):
    domain = grid([0.0, 1.0], bins, lambda x: x.sum() <= most)
    got = sensitivity.histogram(
        num_bins=bins, max_bins_per_record=most, neighboring_relation=relation
    )
    assert got == pytest.approx(brute_force(domain, relation), rel=EXACT)


def test_replacing_a_record_in_a_histogram_costs_two_and_root_two():
    got = sensitivity.histogram(num_bins=10, neighboring_relation="replace_one")
    assert got.l1 == 2.0
    assert 2.0**0.5 * (1 - 2e-16) <= got.l2 <= 2.0**0.5 * (1 + 3e-16)
    assert Fraction(got.l2) ** 2 >= 2


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 10**9),
    st.floats(1e-100, 1e100),
    st.integers(1, 10**6),
    st.sampled_from(["replace_one", "replace_special"]),
)
def test_results_are_the_smallest_floats_not_below_the_exact_value(
    dimension, bound, size, relation
):
    got = sensitivity.bounded_mean(
        dimension=dimension, num_examples=size, l2_bound=bound, neighboring_relation=relation
    )
    exact = Fraction(bound) * (2 if relation == "replace_one" else 1) / size
    for value, square in ((got.l1, dimension * exact**2), (got.l2, exact**2)):
        assert Fraction(value) ** 2 >= square
        assert Fraction(math.nextafter(value, 0.0)) ** 2 < square


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 1000), st.floats(1e-3, 1e3))
def test_norms_are_ordered_and_replacing_costs_at_most_twice(dimension, bound):
    one = sensitivity.bounded_sum(dimension=dimension, l2_bound=bound)
    two = sensitivity.bounded_sum(
        dimension=dimension, l2_bound=bound, neighboring_relation="replace_one"
    )
    assert one.l2 <= one.l1
    # Doubling is exact, and so is the rounding of a doubled number.
    assert two == (2 * one.l1, 2 * one.l2)


SUM = {"dimension": 2, "l2_bound": 1.0}
MEAN = SUM | {"num_examples": 3, "neighboring_relation": "replace_one"}
HISTOGRAM = {"num_bins": 3}
BOX = {"l2_bound": None}


@pytest.mark.parametrize(
    ("function", "good", "bad", "message"),
    [
        ("bounded_sum", SUM, {"dimension": 0}, "^dimension must be"),
        ("bounded_sum", SUM, {"dimension": 1.5}, "^dimension must be"),
        ("bounded_sum", SUM, {"dimension": True}, "^dimension must be"),
        ("bounded_sum", SUM, {"l2_bound": 0}, "^l2_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": -1.0}, "^l2_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": math.nan}, "^l2_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": math.inf}, "^l2_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": "1"}, "^l2_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": np.ones(2)}, "^l2_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": None, "l1_bound": -2}, "^l1_bound must be"),
        ("bounded_sum", SUM, {"l2_bound": None}, "^Give exactly one of l2_bound"),
        ("bounded_sum", SUM, {"l1_bound": 2.0}, "^Give exactly one of l2_bound"),
        ("bounded_sum", SUM, BOX | {"coordinate_bounds": 1.0}, "^coordinate_bounds must be"),
        ("bounded_sum", SUM, BOX | {"coordinate_bounds": (1, 0)}, "^coordinate_bounds must be"),
        ("bounded_sum", SUM, BOX | {"coordinate_bounds": (1, 1)}, "^coordinate_bounds must be"),
        ("bounded_sum", SUM, BOX | {"coordinate_bounds": (0, math.inf)}, r"bounds\[1\] must be"),
        ("bounded_sum", SUM, BOX | {"coordinate_bounds": (math.nan, 1)}, r"bounds\[0\] must be"),
        ("bounded_sum", SUM, {"neighboring_relation": "remove"}, "^neighboring_relation must"),
        ("bounded_mean", MEAN, {"num_examples": 0}, "^num_examples must be"),
        ("bounded_mean", MEAN, {"num_examples": 2.0}, "^num_examples must be"),
        ("bounded_mean", MEAN, {"neighboring_relation": None}, "^neighboring_relation must"),
        ("count", {}, {"neighboring_relation": 3}, "^neighboring_relation must be"),
        ("histogram", HISTOGRAM, {"num_bins": 0}, "^num_bins must be"),
        ("histogram", HISTOGRAM, {"max_bins_per_record": 0}, "^max_bins_per_record must be"),
        ("histogram", HISTOGRAM, {"max_bins_per_record": 4}, "^max_bins_per_record must be"),
        ("histogram", HISTOGRAM, {"neighboring_relation": ""}, "^neighboring_relation must"),
    ],
)
def test_a_bad_argument_is_refused_by_name(function, good, bad, message):
    with pytest.raises(ValueError, match=message):
        getattr(sensitivity, function)(**(good | bad))


def test_a_traced_bound_is_refused():
    with pytest.raises(ValueError, match=r"^l2_bound must be a number, not a traced"):
        jax.jit(lambda c: sensitivity.bounded_sum(dimension=2, l2_bound=c).l2)(1.0)
